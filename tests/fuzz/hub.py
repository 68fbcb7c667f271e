"""A hostile Hub: pulls and pushes against answers, headers, contents and broken connections that no
honest Hub gives.

``run(seed, count)`` plays that many cases and raises at the first that breaks a promise:

- a command ends in bounded time with status 0 or 1 and one message: no traceback, no internal
error, no raw escape;
- a pull writes the published archive byte for byte, or leaves its target as it was, and nothing
outside of it;
- a push leaves no tag on anything but the archive's content, and the next push completes it.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from support.archives import make_archive, six_tasks
from support.fake_hub import FakeHub
from support.hub_client import Client, Done, Process

from kernel_archive.publishing.card import write_card
from kernel_archive.selection.make import make_splits

NAME = "some-body/kernels"
#: Seconds that one command may take on a loaded machine.
LIMIT = 60.0
ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e"
# fmt: off
#: What is put in place of a value of JSON.
VALUES: tuple[Any, ...] = (
    None, True, -1, 2**63, 1e400, "", ESCAPE, "../../../../evil", "/etc/passwd", [], {}, [[]] * 3,
    {"a": {}}, "x" * 100_000,
)
BODIES = (
    b"", b"{", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"9" * 5000,
    b'"' + b"a" * 100 + b'"',
)
READING = (
    r"^/api/datasets/[^/]+/[^/]+$", "/revision/", "/refs$", "/tree/", "/resolve/.*manifest",
    r"/resolve/.*parquet",
)
WRITING = (
    "/repos/create", "/validate-yaml", "/preupload/", "/objects/batch", "/lfs-store/", "/commit/",
    "/tag/",
)
# fmt: on


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def mutated(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced, removed or doubled."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    copy: Any = value.copy()
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    if rng.random() < 0.1:
        del copy[key]
    else:
        copy[key] = mutated(copy[key], rng)
    return copy


def broken_answer(rng: random.Random) -> dict[str, Any]:
    """A fault of any kind, as :meth:`FakeHub.fail` takes it."""
    etags = ("../../../../../../evil", '"../x"', "a/b", "x" * 5000, "\x80")
    statuses = (400, 401, 403, 404, 409, 412, 413, 416, 429, 500, 503)
    commits = ("../../../../evil", "", ESCAPE.encode().decode("latin-1"))
    info = mutated({"sha": "a" * 40, "tags": [], "siblings": []}, rng)
    faults: list[dict[str, Any]] = [
        {"status": rng.choice(statuses), "message": ESCAPE},
        {"status": 429, "headers": {"Retry-After": "999999999"}},
        {"status": 302, "headers": {"Location": "http://127.0.0.1:9/"}},
        {"drop": True},
        {"after": True},
        {"truncate": rng.randrange(500)},
        {"flip": True},
        {"delay": 2.5, "drop": True},
        {"cut_request": rng.randrange(2000)},
        {"body": rng.choice(BODIES)},
        {"body": json.dumps(info).encode()},
        {"headers": {"ETag": rng.choice(etags)}},
        {"headers": {"X-Linked-Etag": rng.choice(etags), "X-Linked-Size": "-1"}},
        {"headers": {"X-Repo-Commit": rng.choice(commits)}},
    ]
    return rng.choice(faults)


def changed_archive(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """The files of an archive as somebody who means harm would change them."""
    changed = dict(files)
    kind = rng.randrange(5)
    if kind == 0:
        path = rng.choice(sorted(changed))
        data = bytearray(changed[path])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        changed[path] = bytes(data)
    elif kind == 1:
        manifest = json.loads(changed["manifest.json"])
        for _ in range(rng.randrange(1, 4)):
            manifest = mutated(manifest, rng)
        changed["manifest.json"] = json.dumps(manifest).encode()
    elif kind == 2:
        a, b = rng.sample([p for p in sorted(changed) if p.endswith(".parquet")], 2)
        changed[a], changed[b] = changed[b], changed[a]
    elif kind == 3:
        del changed[rng.choice(sorted(changed))]
    else:
        changed[rng.choice(("data/eval/evil.parquet", "README.md", "eval.yaml"))] = b"evil"
    return changed


class Campaign:
    """A Hub, a client and a small archive, for many cases."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archive = make_archive(root / "archive", *six_tasks(4), version="1.0.0")
        make_splits(self.archive)
        write_card(self.archive)
        self.files = contents(self.archive)
        self.hub = FakeHub()

    def ended(self, done: Done, started: float) -> None:
        """Refuse a command that took too long or told its user the wrong thing."""
        assert time.monotonic() - started < LIMIT, f"took {time.monotonic() - started:.0f} s"
        assert done.status in (0, 1), done
        for text in (done.out, done.err):
            assert not [c for c in text if (ord(c) < 32 and c not in "\n\t") or c == "\u202e"], (
                repr(text)
            )
            assert "internal error" not in text, text
            assert len(text) < 20_000, len(text)

    def pull(self, client: Client, rng: random.Random) -> str:
        """One pull of a repository that is broken in one or two ways."""
        served = changed_archive(self.files, rng) if rng.random() < 0.5 else self.files
        repo = self.hub.create(NAME, served)
        repo.tags["v1.0.0"] = repo.main
        for _ in range(rng.randrange(0 if served is not self.files else 1, 3)):
            fault = broken_answer(rng) | {"times": rng.choice((1, 1000)), "skip": rng.randrange(3)}
            self.hub.fail("*", rng.choice(READING), **fault)
        asked = rng.choice(((), ("--version", "1.0.0"), ("--version", "nowhere")))
        started = time.monotonic()
        done = client.cli("pull", NAME, *asked)
        self.ended(done, started)
        target = client.cwd / NAME
        if done.status == 0:
            got = contents(target)
            assert {p: b for p, b in got.items() if p.startswith("data/")} == {
                p: b for p, b in self.files.items() if p.startswith("data/")
            }
            # Prose of another version can't be compared; then a warning says so.
            assert (
                got == self.files
                or "warning" in done.err
                or served["manifest.json"] != self.files["manifest.json"]
            ), done
        else:
            assert not target.exists(), done
        outside = list(client.cwd.parent.rglob("*evil*"))
        assert not outside, outside
        return "pulled" if done.status == 0 else "refused"

    def push(self, client: Client, rng: random.Random) -> str:
        """One push that something breaks, and a second one that nothing does."""
        for _ in range(rng.randrange(1, 3)):
            fault = broken_answer(rng) | {"times": rng.choice((1, 1000)), "skip": rng.randrange(3)}
            self.hub.fail("*", rng.choice((*WRITING, *READING)), **fault)
        started = time.monotonic()
        done = client.cli("push", NAME, "--archive", str(self.archive))
        self.ended(done, started)
        if NAME in self.hub.repos:
            repo = self.hub.repos[NAME]
            for tag, commit in repo.tags.items():
                held = {
                    p: f.data
                    for p, f in repo.commits[commit].files.items()
                    if p.startswith("data/")
                }
                assert tag == "v1.0.0"
                assert held == {p: b for p, b in self.files.items() if p.startswith("data/")}
            assert done.status == 0 or "published" in done.err or "sent" in done.err, done
        self.hub.faults.clear()
        again = client.cli("push", NAME, "--archive", str(self.archive))
        assert again.status == 0, again
        repo = self.hub.repos[NAME]
        assert repo.tags == {"v1.0.0": repo.main}
        return "pushed" if done.status == 0 else "refused"


def run(seed: int, count: int) -> dict[str, int]:
    """Play ``count`` cases; how each kind ended.

    Raises:
        AssertionError: a promise was broken; the message names the case.
    """
    seen: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        campaign = Campaign(root)
        with campaign.hub as hub:
            process = Process(hub, root / "home")
            try:
                for i in range(count):
                    rng = random.Random(f"{seed}:{i}")
                    hub.clear()
                    for place in (root / "home", root / "work"):
                        shutil.rmtree(place, ignore_errors=True)
                    (root / "work").mkdir()
                    play = campaign.pull if rng.random() < 0.7 else campaign.push
                    try:
                        ended = play(Client(process, root / "work"), rng)
                    except AssertionError as error:
                        faults = list(hub.faults)
                        raise AssertionError(
                            f"seed {seed}, case {i} ({play.__name__}, {faults}): {error}"
                        ) from error
                    seen[f"{play.__name__} {ended}"] = seen.get(f"{play.__name__} {ended}", 0) + 1
            finally:
                process.close()
    return seen
