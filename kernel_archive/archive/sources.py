"""Sources that lie elsewhere: files behind a URL of fsspec, or one commit of a Git repository.

``git+https://HOST/OWNER/REPO@COMMIT#PATH`` is a path in the tree of a commit, named by all forty
digits of its id, which git verifies; only the files below the path are fetched. Every other URL
goes to the package that fsspec has for it, which repeats requests as it does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kernel_archive.archive.swap import make_work_folder
from kernel_archive.errors import RecipeError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.storage import new_file

_GIT_URL: Final = re.compile(r"git\+((?:https|file)://[^@#]+)@([0-9a-f]{40})#([^/].*)")
#: Give up when git has not ended after this long, s.
_GIT_SECONDS: Final = 1800
#: No hooks, links, filters or prompts: a stranger's tree is written as plain files.
_PLAIN: Final = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=false", "-c", "core.autocrlf=false"),
    *("-c", "core.attributesFile=/dev/null", "-c", "filter.lfs.smudge=", "-c", "gc.auto=0"),
    *("-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"),
)
#: Fetch this many files at a time.
_CONNECTIONS: Final = 8
#: What services call the state of a file in their listings; another content has another state.
_STATES: Final = (
    *("ETag", "etag", "blob_id", "md5Hash", "content_md5", "generation"),
    *("mtime", "LastModified", "CRC", "sha"),
)
_NETWORK: Final = "Check the network and the address, or name a local copy with --source DIR"


def fetch_source(url: str, work_folder: Path, *, beside: bool = False) -> tuple[Path, str]:
    """Fetch what a URL matches; return a folder in the work folder, and the pattern below that.

    With ``beside`` a reader may read files beside the matched ones: all below the folder before the
    first wildcard are fetched. What was fetched is not fetched again while it is the same there.
    A RecipeError names a URL at fault, a file that does not come whole or leads out of its folder.
    """
    cache = make_work_folder(work_folder) / "sources"
    return _fetch_commit(url, cache) if url.startswith("git+") else _fetch(url, cache, beside)


def _bad_url(url: str, message: str, fix: str) -> RecipeError:
    field = "source.path"
    return RecipeError.of(code="bad-source", message=message, field=field, value=url, fix=fix)


def first_wildcard(steps: tuple[str, ...]) -> int:
    """Find the position of a path's first step with a wildcard; behind the last one without any."""
    return next((i for i, step in enumerate(steps) if re.search(r"[*?\[]", step)), len(steps))


def _fetch_commit(url: str, cache: Path) -> tuple[Path, str]:
    match = _GIT_URL.fullmatch(url)
    if match is None or ".." in PurePosixPath(match[3]).parts:
        fix = "Write git+https://HOST/OWNER/REPO@COMMIT#PATH with all 40 digits of the commit"
        raise _bad_url(url, "is not the address of a commit", fix)
    remote, commit, path = match.groups()
    steps = PurePosixPath(path).parts
    wild = first_wildcard(steps)
    name = remote.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
    copy = cache / sha256_hex(url.encode())[:32] / name
    if not copy.is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=copy.parent))
        pathspec = f":(literal){'/'.join(steps[:wild]) or '.'}"
        try:
            _git(url, new, "init", "--quiet")
            _git(url, new, "remote", "add", "origin", remote)
            _git(url, new, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
            _git(url, new, "checkout", "--quiet", commit, "--", pathspec)
            shutil.rmtree(new / ".git")
            new.rename(copy)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    above = min(wild, len(steps) - 1)
    if above < 0:  # the whole tree
        return copy.parent, copy.name
    return copy.joinpath(*steps[:above]), "/".join(steps[above:])


def _git(url: str, folder: Path, *arguments: str) -> None:
    try:
        subprocess.run(
            ["git", *_PLAIN, *arguments],
            cwd=folder,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            check=True,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
        )
    except FileNotFoundError:
        raise _bad_url(url, "needs git, which is not installed", "Install git") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = str(error.stderr or error).strip().splitlines()[-1:]
        message = f"git {arguments[0]} failed: {printable(''.join(reason), 300)}"
        raise _bad_url(url, message, _NETWORK) from error


def _fetch(url: str, cache: Path, beside: bool) -> tuple[Path, str]:
    import fsspec

    try:
        system, pattern = fsspec.core.url_to_fs(url)
        steps = PurePosixPath(pattern).parts
        wild = min(first_wildcard(steps), len(steps) - 1)
        above = "/".join(steps[:wild])
        files = system.glob(pattern, detail=True)
        folders = [name for name, facts in files.items() if facts["type"] == "directory"]
        for folder in [above] if beside and files else folders:
            files |= system.find(folder, detail=True)
    except ImportError as error:
        raise _bad_url(url, "needs a library that is not installed", printable(error)) from None
    except Exception as error:  # back-ends of fsspec raise whatever their service does
        message = f"cannot be reached: {printable(error, 300)}"
        raise _bad_url(url, message, _NETWORK) from error
    paths = {n: _path_below(url, n, above) for n in sorted(files) if n not in folders}
    states = [[files[name].get(key) for key in ("size", *_STATES)] for name in paths]
    copy = cache / sha256_hex(repr((url, paths, states)).encode())[:32]
    if not all(any(state[1:]) for state in states):
        shutil.rmtree(copy, ignore_errors=True)  # the listing does not tell another content

    def fetch(name: str) -> None:
        path, size = copy / paths[name], files[name].get("size")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            with new_file(path, durable=False) as new:
                system.get_file(name, str(new))
                if size not in (None, new.stat().st_size):
                    raise OSError(f"{new.stat().st_size} bytes came, the listing says {size}")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        downloads = {name: pool.submit(fetch, name) for name in paths}
    for name, download in downloads.items():
        reason = download.exception()
        if reason is not None:
            message = f"download of {printable(name)} failed: {printable(reason, 300)}"
            raise _bad_url(url, message, "Build again: what was fetched stays") from reason
    return copy, "/".join(steps[wild:])


def _path_below(url: str, name: str, above: str) -> str:
    """Return where a listed file goes below its source; a name that would lead out is refused."""
    parts: Any = PurePosixPath(name.removeprefix(f"{above}/")).parts
    if not parts or any(p in ("..", "/", "") or "\\" in p or "\0" in p for p in parts):
        message = f"the listing names a file outside of the folder it is in: {printable(name)}"
        fix = "Such a listing is an attack or a damaged archive; nothing of it was fetched"
        raise _bad_url(url, message, fix)
    return "/".join(parts)
