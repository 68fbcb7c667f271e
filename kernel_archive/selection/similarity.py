"""How alike programs are beyond exact near duplicates, within a cell and to what a trainer sees: Jaccard similarity of token 5-grams.

Tokens are identifiers, numbers and single punctuation marks of :func:`~kernel_archive.ids.token_text` (comments and
docstrings are gone). The similarity of two programs is the share of 5-grams that both have among those that either has.
Tokens and 5-grams are compared by 64-bit hashes, found for many texts at once with numpy, 11 MB of text a second where
sets of Python tuples manage 7; an archive of 12,000 kernels holds 25 to 75 MB.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive.ids import program_id, token_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

NGRAM: Final = 5
#: Least Jaccard index of two programs that are called near copies in the report.
THRESHOLD: Final = 0.7
#: So many similar rows are named in the report; all are counted.
EXAMPLES: Final = 10
#: Evaluation rows that are compared at a time: the table of their 5-grams grows with the square of their number.
TOGETHER: Final = 1_000
#: Text that is hashed at a time, bytes: fits the cache.
_CHUNK: Final = 1 << 17
_SPACE, _WORD, _MARK = 0, 1, 2


def _kind(byte: int) -> int:
    if byte >= 128 or chr(byte).isalnum() or chr(byte) == "_":
        return _WORD
    return _SPACE if byte == 0 or chr(byte).isspace() else _MARK


_KINDS: Final = np.array([_kind(byte) for byte in range(256)], np.uint8)
_RANDOM: Final = np.random.PCG64(np.random.SeedSequence(20261121))
_BYTE_HASH: Final = np.where(_KINDS == _SPACE, np.uint64(0), _RANDOM.random_raw(256) | np.uint64(1))
_PLACE_HASH: Final = _RANDOM.random_raw(4096) | np.uint64(1)
_GRAM_HASH: Final = _RANDOM.random_raw(NGRAM) | np.uint64(1)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the information of a 64-bit word over all its bits (the finaliser of MurmurHash3)."""
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values


def _chunk_grams(encoded: Sequence[bytes]) -> Iterator[NDArray[np.uint64]]:
    """Hashes of the different 5-grams of each of a few texts."""
    data = np.frombuffer(b"\0".join((*encoded, b"")), np.uint8)
    ends = np.cumsum([len(text) + 1 for text in encoded])
    kinds = _KINDS[data]
    begins = kinds == _MARK
    begins[0] |= kinds[0] == _WORD
    begins[1:] |= (kinds[1:] == _WORD) & (kinds[:-1] != _WORD)
    starts = np.flatnonzero(begins)
    if not len(starts):
        yield from (np.zeros(0, np.uint64) for _ in encoded)
        return
    # White space after a token weighs nothing, so that a token may run to the start of the next one.
    data, ends, starts = data[starts[0] :], ends - starts[0], starts - starts[0]
    lengths = np.diff(starts, append=len(data))
    within = np.arange(len(data), dtype=np.int32) - np.repeat(starts.astype(np.int32), lengths)
    tokens = _mixed(np.add.reduceat(_BYTE_HASH[data] * _PLACE_HASH[within & 4095], starts))
    bounds = [0, *np.searchsorted(starts, ends, side="left").tolist()]
    for first, last in pairwise(bounds):
        size = last - first - NGRAM + 1
        grams = np.zeros(max(size, 0), np.uint64)
        if size > 0:
            for k in range(NGRAM):
                grams += tokens[first + k : first + k + size] * _GRAM_HASH[k]
        yield np.unique(_mixed(grams))


def token_grams(texts: Iterable[str]) -> Iterator[NDArray[np.uint64]]:
    """Hashes of the different token 5-grams of each text (already without comments), sorted."""
    held: list[bytes] = []
    size = 0
    for text in texts:
        held.append(text.encode("utf-8", "surrogatepass"))
        size += len(held[-1])
        if size >= _CHUNK:
            yield from _chunk_grams(held)
            held, size = [], 0
    if held:
        yield from _chunk_grams(held)


def overlap(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """Jaccard index of two sets of 5-grams (:func:`token_grams`); 0 where one is empty.

    >>> overlap(*token_grams(map(token_text, ("import x; y = a + b", "import x;y=a+b  # the same tokens"))))
    1.0
    """
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / max(1, len(a) + len(b) - shared)


class Program(msgspec.Struct, frozen=True):
    """A program to compare: its name in the report, its problem, its text."""

    name: str
    problem: str
    code: str


class Near(msgspec.Struct, frozen=True):
    """The names of an evaluation row and of the training program most like it, and the Jaccard index of their 5-grams."""

    row: str
    program: str
    similarity: float


def nearest(rows: Sequence[Program], others: Iterable[Program]) -> Iterator[Near]:
    """For each program the nearest one of the others, of equally near ones the first; nobody (``""``, 0) is a Near too.

    Args:
        rows: programs of one problem, with names of their own.
        others: programs of the same problem; each is read once.
    """
    names: list[str] = []

    def texts() -> Iterator[str]:
        for program in others:
            names.append(program.name)
            yield token_text(program.code)

    theirs: Iterable[NDArray[np.uint64]] = token_grams(texts())
    if len(rows) > TOGETHER:
        theirs = list(theirs)
    for start in range(0, len(rows), TOGETHER):
        yield from _nearest(rows[start : start + TOGETHER], names, theirs)


def _nearest(rows: Sequence[Program], names: Sequence[str], theirs: Iterable[NDArray[np.uint64]]) -> Iterator[Near]:
    """The nearest one of each of a few programs; the names are known when their 5-grams are."""
    grams = list(token_grams(token_text(p.code) for p in rows))
    sizes = np.array([len(g) for g in grams])
    universe, place = np.unique(np.concatenate(grams), return_inverse=True)
    if not len(universe):
        yield from (Near(row.name, "", 0.0) for row in rows)
        return
    # One row per 5-gram of the evaluation, one column per evaluation row that has it.
    has = np.zeros((len(universe), len(rows)), np.uint8)
    has[place, np.repeat(np.arange(len(rows)), sizes)] = 1
    best = np.zeros(len(rows))
    nearest = [""] * len(rows)
    for i, their in enumerate(theirs):
        at = np.searchsorted(universe, their)
        at[at == len(universe)] = 0
        counted = has[at[universe[at] == their]]
        # Short numbers are added several times as fast.
        shared = counted.sum(axis=0, dtype=np.uint16 if len(counted) < 2**16 else np.int64).astype(np.int64)
        similarity = shared / np.maximum(sizes + len(their) - shared, 1)
        for j in np.flatnonzero(similarity > best):
            best[j], nearest[j] = similarity[j], names[i]
    for row, similarity, name in zip(rows, best.tolist(), nearest, strict=True):
        yield Near(row.name, name, similarity)


class Neighbours:
    """The nearest training program of any program, within its problem; each pair is compared once."""

    def __init__(self, training: Callable[[str], Iterable[Program]]) -> None:
        """Training programs of a problem, each once."""
        self._training = training
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    def of(self, programs: Iterable[Program]) -> dict[str, Near]:
        """Name -> the nearest training program, for every program that shares anything with one."""
        asked = list(programs)
        keys = {program.name: (program.problem, program_id(program.code)) for program in asked}
        missing: dict[str, dict[str, Program]] = {}
        for program in asked:
            problem, text = keys[program.name]
            if (problem, text) not in self._known:
                missing.setdefault(problem, {})[text] = Program(text, problem, program.code)
        for problem in sorted(missing):
            for near in nearest(list(missing[problem].values()), self._training(problem)):
                self._known[problem, near.row] = (near.program, near.similarity)
        found = {name: Near(name, *self._known[key]) for name, key in keys.items()}
        return {name: near for name, near in found.items() if near.similarity > 0}

    def known(self, programs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, float]]:
        """What was found of programs, by problem and program id."""
        return {key: self._known[key] for key in programs if key in self._known}

    def learn(self, known: Mapping[tuple[str, str], tuple[str, float]]) -> None:
        """Take what another has found."""
        self._known.update(known)


class Copies:
    """Which of a few programs are near copies of each other; texts are looked at once."""

    def __init__(self, programs: Sequence[Program], threshold: float) -> None:
        """Programs, and the similarity from which two are near copies."""
        self._grams = dict(
            zip((p.name for p in programs), token_grams(token_text(p.code) for p in programs), strict=True)
        )
        self._threshold = threshold

    def near(self, name: str, others: Iterable[str]) -> bool:
        """Whether a program is a near copy of one of the others."""
        return any(overlap(self._grams[name], self._grams[other]) >= self._threshold for other in others)


def similarity_report(rows: Sequence[Program], nears: Mapping[str, Near]) -> dict[str, Any]:
    """How many evaluation rows have a very similar training program, with examples: for the manifest and the card."""
    problem_of = {row.name: row.problem for row in rows}
    near = sorted((n for n in nears.values() if n.similarity >= THRESHOLD), key=lambda n: (-n.similarity, n.row))
    per_task: dict[str, int] = dict.fromkeys(sorted(set(problem_of.values())), 0)
    for item in near:
        per_task[problem_of[item.row]] += 1
    return {
        "measure": f"Jaccard index of token {NGRAM}-grams, comments left out, within a problem",
        "threshold": THRESHOLD,
        "rows": len(rows),
        "similar_rows": len(near),
        "largest": round(max((n.similarity for n in nears.values()), default=0.0), 6),
        "per_task": per_task,
        "examples": [
            {"row_id": n.row, "training": n.program, "similarity": round(n.similarity, 6)} for n in near[:EXAMPLES]
        ],
    }
