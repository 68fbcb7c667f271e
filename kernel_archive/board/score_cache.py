"""A cache of scores beside a board, in ``.scores``: a build computes only what is new.

A file is named by all that a score depends on: the forecasts, the rows and labels, the draws, the
seed, and the code that scores. It begins with the digest of what follows, so damage costs a new
score and nothing else; so does whatever else lies in the place of a file or of the folder. Who can
write into the folder can plant a score: ``leaderboard verify`` reads none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

import kernel_archive.scoring
from kernel_archive._version import __version__
from kernel_archive.scoring import Forecasts, Score, Split
from kernel_archive.scoring.arrays import Floats
from kernel_archive.storage import write_atomically
from kernel_archive.untrusted import UntrustedFileError, regular_file

CACHE_FOLDER: Final = ".scores"
_DIGEST_BYTES: Final = 32
#: Read no file of more bytes: a score with 100,000 draws has a few million.
_MAX_BYTES: Final = 64 << 20


class CachedScore(msgspec.Struct, frozen=True, kw_only=True):
    """A score, and the bytes of its bootstrap draws by metric (float64)."""

    record: Score
    draws: dict[str, bytes]

    @classmethod
    def of(cls, record: Score, draws: dict[str, Floats]) -> CachedScore:
        """Make a cached score of a record and its draws."""
        data = {name: np.asarray(d, np.float64).tobytes() for name, d in draws.items()}
        return cls(record=record, draws=data)

    def arrays(self) -> dict[str, Floats]:
        """Return the draws by metric."""
        return {name: np.frombuffer(data, np.float64) for name, data in self.draws.items()}


@cache
def _scorer_digest() -> str:
    """Digest the code that scores."""
    total = hashlib.sha256(__version__.encode())
    for path in sorted(Path(kernel_archive.scoring.__file__).parent.iterdir()):
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()


def score_key(split: Split, forecasts: Forecasts, *, draws: int, seed: int) -> str:
    """Name the score of these forecasts under these terms: 64 hex digits."""
    facts = split.facts
    parts = [_scorer_digest(), facts.archive_digest, facts.split_digest, split.scheme]
    parts += [forecasts.digest, str(draws), str(seed)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_cached(folder: Path, key: str) -> CachedScore | None:
    """Read a cached score; ``None`` where it is missing or damaged."""
    try:
        with regular_file(folder / key).open("rb") as stream:
            data = stream.read(_MAX_BYTES)
        body = data[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
            return None
        return msgspec.msgpack.decode(body, type=CachedScore)
    except (OSError, UntrustedFileError, msgspec.DecodeError, RecursionError):
        return None


def write_cached(folder: Path, key: str, score: CachedScore) -> None:
    """Write a score for the next build, where the folder can be written."""
    body = msgspec.msgpack.encode(score)
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        write_atomically(folder / key, hashlib.sha256(body).digest() + body, durable=False)


def prune(folder: Path, keys: Iterable[str]) -> None:
    """Remove the scores that a build did not use."""
    used = set(keys)
    for path in folder.glob("?" * 64):
        if path.name not in used and not path.is_dir():
            path.unlink(missing_ok=True)
