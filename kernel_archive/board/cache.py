"""Keep scored entries between builds of a board, in its folder ``cache``.

A file per entry is named by the digest of all that its figures depend on, and sealed with a key of
this user on this machine: what comes with a stranger's board is not read, and scored anew.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import secrets
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kernel_archive._version import __version__
from kernel_archive.board.entries import Evaluated, ScoringTerms, Shown
from kernel_archive.board.submissions import FORECASTS_FILE, RECORD_FILE
from kernel_archive.scoring import METRIC_VERSION
from kernel_archive.storage import file_sha256, write_atomically

if TYPE_CHECKING:
    from kernel_archive.scoring import Split


@cache
def _user_key() -> bytes:
    """Load the key of this user, made at the first use; without a home, one for this process."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "kernel-archive" / "board.key"
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(32))
        key = path.read_bytes()
    except OSError:
        key = b""
    return key if len(key) == 32 else secrets.token_bytes(32)


@cache
def _code_digest() -> str:
    """Digest the code that scores, which may change within a version."""
    modules = sorted(files("kernel_archive.scoring").iterdir(), key=lambda path: path.name)
    texts = [path.read_bytes() for path in modules if path.name.endswith(".py")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def cache_key(folder: Path, target: Split, terms: ScoringTerms) -> str:
    """Digest all that a submission's figures depend on."""
    facts = target.facts
    parts = (
        [file_sha256(folder / name) for name in (FORECASTS_FILE, RECORD_FILE)],
        [facts.archive_digest, target.spec.name, facts.split_digest, target.scheme],
        [METRIC_VERSION, __version__, _code_digest(), np.__version__, terms.draws, terms.seed],
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class ScoreCache:
    """The kept entries of one board."""

    def __init__(self, board: Path) -> None:
        """Open the cache of a board; its folder is made when something is kept."""
        self.folder = board / "cache"
        self.used: set[str] = set()

    def _seal(self, key: str, content: bytes) -> bytes:
        return hmac.digest(_user_key(), key.encode() + content, "sha256")

    def load(self, key: str) -> Evaluated | None:
        """Load a kept entry; ``None`` where there is none, or it is not what was kept here."""
        path = self.folder / key
        if self.folder.is_symlink() or path.is_symlink() or not path.is_file():
            return None
        data = path.read_bytes()
        content = data[32:]
        if not hmac.compare_digest(data[:32], self._seal(key, content)):
            return None
        self.used.add(key)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            kept = msgspec.json.decode(arrays["facts"].tobytes(), type=Evaluated)
            shown = Shown(**{name: arrays[name] for name in Shown.__struct_fields__})
            draws = {name: arrays[f"draws.{name}"] for name in kept.draws}
        return msgspec.structs.replace(kept, shown=shown, draws=draws)

    def keep(self, key: str, entry: Evaluated) -> None:
        """Keep an entry for the next build."""
        if self.folder.is_symlink():
            return
        facts = msgspec.structs.replace(entry, shown=None, draws=dict.fromkeys(entry.draws))
        arrays = msgspec.structs.asdict(entry.shown) if entry.shown else {}
        arrays |= {f"draws.{name}": values for name, values in entry.draws.items()}
        stream = io.BytesIO()
        np.savez(stream, facts=np.frombuffer(msgspec.json.encode(facts), np.uint8), **arrays)
        content = stream.getvalue()
        self.used.add(key)
        self.folder.mkdir(exist_ok=True)
        write_atomically(self.folder / ".gitignore", b"*\n", durable=False)
        write_atomically(self.folder / key, self._seal(key, content) + content, durable=False)

    def remove_unused(self) -> None:
        """Remove what this build did not use."""
        for path in () if self.folder.is_symlink() else self.folder.glob("[0-9a-f]*"):
            if path.name not in self.used and len(path.name) == 64:
                path.unlink()
