"""What follows from a program's text alone, found once in a process, however many searches have the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kernel_archive.ids import program_id, token_id
from kernel_archive.program_text import SUSPECT, artificial_patterns, language_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Token id and language by program id, and whether a program is artificial by its id and the reference. Begun again when
#: full, so that hostile logs can't fill the memory with them.
_KNOWN: Final[dict[str, tuple[str, str]]] = {}
_ARTIFICIAL: Final[dict[tuple[str, str], bool]] = {}
_MAX_KNOWN: Final = 50_000


class Program(NamedTuple):
    """A program's columns: its text, and what follows from it."""

    code: str
    program_id: str
    token_id: str
    language: str


def program_of(code: str) -> Program:
    """The program of a canonical text that can be encoded."""
    key = program_id(code)
    known = _KNOWN.get(key)
    if known is None:
        known = token_id(code), language_of(code)
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = known
    return Program(code, key, *known)


def are_artificial(
    programs: Sequence[Program], codes: pa.Array, asked: Sequence[bool], references: Sequence[str]
) -> list[bool]:
    """Which of the programs that are asked for have an artificial pattern.

    Few programs match the one expression that all that have a pattern do: Arrow looks for it in a quarter of the time
    that the patterns take one by one (:func:`~kernel_archive.program_text.artificial_patterns`).

    Args:
        programs: the programs.
        codes: their texts.
        asked: ``False`` gives ``False``.
        references: the reference of each, empty where it is not known.
    """

    def is_artificial(program: Program, reference: str) -> bool:
        key = program.program_id, program_id(reference)
        if key not in _ARTIFICIAL:
            if len(_ARTIFICIAL) >= _MAX_KNOWN:
                _ARTIFICIAL.clear()
            _ARTIFICIAL[key] = bool(artificial_patterns(program.code, reference))
        return _ARTIFICIAL[key]

    suspect = iter(pc.match_substring_regex(codes.filter(pa.array(asked, pa.bool_())), SUSPECT).to_pylist())
    return [
        ask and next(suspect) and is_artificial(program, reference)
        for program, ask, reference in zip(programs, asked, references, strict=True)
    ]
