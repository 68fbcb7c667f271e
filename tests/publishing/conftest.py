"""Shared pieces of the publishing tests: an archive with a card, the published tables, a Hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_hub import FakeHub
from support.folders import contents
from support.hub_client import Client
from support.programs import program
from support.published_layout import Published, use_shapes, write_published
from support.puct import RunLog, recipe
from support.servers import running

from kernel_archive.pipeline import build
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.publishing import push

NAME = "gpu-forecasters/kernels"
SPEEDUPS = (0.2, 0.3, 0.6, 0.9, 1.2, 1.7, 3.0, 5.0)


def build_archive(root: Path, version: str, *, added: bool = False) -> Path:
    """Build a small archive: two searches per task, one held out; one more if ``added``."""
    logs = root / "builder"
    for number, task in enumerate(GPU_MODE_TASKS):
        roles = ["held_out", "training", *(["training"] if added and number == 0 else [])]
        for which, role in enumerate(roles):
            log = RunLog(
                task=task,
                serial=1 + 1000 * number + 300 * which,
                reference=f"def reference(x):\n    return x  # {task}\n",
            )
            name = f"{task}_{role}_{which}"
            best = log.root(program(name))
            for i, speedup in enumerate(SPEEDUPS[which::2] if role == "training" else SPEEDUPS):
                log.child(best, program(f"{name}_{i}"), speedup * (1 + 0.01 * number))
            log.child(best, program(f"{name}_broken"), outcome="incorrect")
            use_shapes(log.events, task)
            log.write(logs / role / f"{task}__{which}")
    builder = recipe(logs, ("held_out/*", "held_out"), ("training/*", "training"))
    text = builder.read_text().replace("CC0-1.0", "CC-BY-4.0")
    builder.write_text(f"{text}\n[eval]\nbins = 1\n")
    out = root / NAME
    build([str(builder)], out=out, version=version)
    return out


@pytest.fixture(scope="session")
def archive_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built archive, version 1.0.0; read only."""
    return build_archive(tmp_path_factory.mktemp("archive"), "1.0.0")


@pytest.fixture(scope="session")
def next_archive_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next version of it, 1.1.0, with one more search; read only."""
    return build_archive(tmp_path_factory.mktemp("next"), "1.1.0", added=True)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A copy of the published layout; read only."""
    return write_published(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="session", autouse=True)
def _validated_once():
    """Files that were valid, or not, are so each time that they are pushed."""
    reports = {}
    validate = push.validate_whole

    def validate_once(archive):
        key = str(archive.path), tuple(contents(archive.path).items())
        if key not in reports:
            reports[key] = validate(archive)
        return reports[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(push, "validate_whole", validate_once)
        yield


@pytest.fixture(scope="session")
def loopback():
    """A loopback Hub."""
    with running(FakeHub()) as hub:
        yield hub


@pytest.fixture
def hub(loopback: FakeHub) -> FakeHub:
    """The loopback Hub, empty."""
    loopback.clear()
    return loopback


@pytest.fixture
def client(hub: FakeHub, tmp_path: Path, monkeypatch, capsys) -> Client:
    """Calls in an empty directory."""
    return Client(hub, tmp_path, monkeypatch, capsys)
