"""Every install that a page shows resolves from the registry, and the first command after it runs.

Each install has a virtual environment of its own, as the pages say. The command is asked for its
help: that imports what it needs, and sends nothing. The pages say ``pip install``; uv takes the
same words, resolves the same packages, and is many times faster.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
    *sorted((ROOT / "environments").rglob("README.md")),
    ROOT / "measure/README.md",
]
#: Distributions that are installed from a checkout until they are on the registry.
LOCAL = {"kernel-archive": ["."], "kernel-measure": [".", "./measure"]}
#: With one of these an install takes gigabytes: it is resolved, and not made.
LARGE = {"torch", "xllamacpp"}

#: Commands of the shell: what comes after them is what was installed.
SHELL = re.compile("mkdir|cd ")

pytestmark = pytest.mark.slow


def installs():
    """Find every install of the pages: the folder, what is installed, the first command after."""
    for page in PAGES:
        fences = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        for block in (text for kind, text in fences if kind in {"", "console", "bash", "sh"}):
            lines = [line.strip().removeprefix("$ ") for line in block.splitlines()]
            for number, line in enumerate(lines):
                after = next((x for x in lines[number + 1 :] if not SHELL.match(x)), "")
                if line.startswith("pip install "):
                    folder = page.parent if "environments" in page.parts else ROOT
                    wanted, command = (shlex.split(part, comments=True) for part in (line, after))
                    yield pytest.param(folder, wanted[2:], command, id=f"{page.name} {wanted[2:]}")


def local(wanted):
    """Name the folders of a distribution of this repository, in a checkout."""
    name = re.match(r"[\w-]*", wanted)[0]
    *more, last = LOCAL.get(name, [name])
    return [*more, last + wanted.removeprefix(name)]


def install(python, *arguments, folder=ROOT):
    """Install into an environment, or only resolve; the finished process."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
    environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def _registry():
    """Skip where there is no registry."""
    tried = install(sys.executable, "--dry-run", "--reinstall", "--no-deps", "msgspec")
    if tried.returncode:
        pytest.skip(f"no registry can be reached: {tried.stderr.strip()[-200:]}")


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize(("folder", "wanted", "command"), [*installs()])
def test_an_install_resolves_and_its_first_command_runs(folder, wanted, command, tmp_path):
    """All in one environment, as it stands on the page."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv/bin"
    wanted = [place for name in wanted for place in local(name)]
    done = install(programs / "python", "--dry-run", *wanted, folder=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    names = set(re.findall(r"^ \+ ([\w.-]+)==", done.stderr, re.MULTILINE))
    assert names, done.stderr
    if LARGE & names or not command:
        return
    done = install(programs / "python", "--quiet", *wanted, folder=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    words = [word for word in command[:2] if re.fullmatch(r"[a-z][a-z-]+", word)]
    run = [programs / words[0], *words[1:], "--help"]
    shown = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "sage" in shown.stdout
