"""Sources in a Git repository: one commit, which git fetches and verifies by its own ids.

``git+https://HOST/OWNER/REPO@COMMIT#PATH`` is a path in the tree of a commit, named by all forty
digits of its id. Only the files below the path are fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

from kernel_archive.archive.swap import make_stage
from kernel_archive.errors import RecipeError, printable
from kernel_archive.ids import sha256_hex

GIT_URL: Final = re.compile(r"git\+((?:https|file)://[^@#]+)@([0-9a-f]{40})#([^/].*)")
#: Give up when git has not ended after this long, s.
_SECONDS: Final = 1800
#: No hooks, links, filters or prompts: a stranger's tree is written as plain files.
_PLAIN: Final = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=false", "-c", "core.autocrlf=false"),
    *("-c", "core.attributesFile=/dev/null", "-c", "filter.lfs.smudge=", "-c", "gc.auto=0"),
    *("-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"),
)


def fetch_commit(url: str, stage: Path) -> tuple[Path, str]:
    """Fetch what a URL names into a stage, once; return its folder, and the pattern in it.

    Raises:
        RecipeError: the URL is not of the form above, git is missing, or the fetch fails.
    """
    match = GIT_URL.fullmatch(url)
    if match is None or ".." in PurePosixPath(match[3]).parts:
        fix = "Write git+https://HOST/OWNER/REPO@COMMIT#PATH with all 40 digits of the commit"
        raise _bad_url(url, "is not the address of a commit", fix)
    remote, commit, path = match.groups()
    steps = PurePosixPath(path).parts
    wild = next((i for i, step in enumerate(steps) if re.search(r"[*?\[]", step)), len(steps))
    name = remote.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
    copy = make_stage(stage) / "sources" / sha256_hex(url.encode())[:32] / name
    if not copy.is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=copy.parent))
        try:
            _git(url, new, "init", "--quiet")
            _git(url, new, "remote", "add", "origin", remote)
            _git(url, new, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
            wanted = "/".join(steps[:wild]) or "."
            _git(url, new, "checkout", "--quiet", commit, "--", f":(literal){wanted}")
            shutil.rmtree(new / ".git")
            new.rename(copy)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    above = min(wild, len(steps) - 1)
    if above < 0:  # the whole tree
        return copy.parent, copy.name
    return copy.joinpath(*steps[:above]), "/".join(steps[above:])


def _git(url: str, folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", *_PLAIN, *arguments]
    try:
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except FileNotFoundError:
        raise _bad_url(url, "needs git, which is not installed", "Install git") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = str(error.stderr or error).strip().splitlines() or ["it says nothing"]
        message = f"git {arguments[0]} failed: {printable(said[-1], 300)}"
        fix = "Check the network and the address, or name a local clone with --source DIR"
        raise _bad_url(url, message, fix) from error


def _bad_url(url: str, message: str, fix: str) -> RecipeError:
    field = "source.path"
    return RecipeError.of(code="bad-source", message=message, field=field, value=url, fix=fix)
