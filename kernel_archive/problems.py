"""Problems that kernels are written for: those of ``problem_data/``, KernelBench, and others."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Family = Literal["gpu_mode", "kernelbench", "kernel_archive", "other"]


class Work(msgspec.Struct, frozen=True):
    """The least that a correct program does for one case, by the cheapest known algorithm."""

    bytes_read: int
    bytes_written: int
    flops: int


class TimedCase(msgspec.Struct, frozen=True):
    """One timed case: its shape fields, and the least work of it."""

    shape: dict[str, Any]
    least_work: Work


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One problem, as its file in ``problem_data/`` states it."""

    name: str  # canonical id, the name of the file
    family: Family  # the suite that it comes from
    title: str  # one line for people
    aliases: tuple[str, ...] = ()  # other names of it in logs
    #: Where cases and tolerances are published; ``None`` when they are stated here.
    source: str | None = None
    inputs: str = ""  # the arguments of a program, in words
    shape_fields: tuple[str, ...] = ()  # names of the fields of a case, in order
    cases: tuple[TimedCase, ...] = ()  # the timed cases, in order
    rtol: float | None = None  # relative tolerance of the check
    atol: float | None = None  # absolute tolerance of the check
    tolerance_note: str = ""  # the tolerance in words, where it differs between outputs
    reference: str = ""  # text of the reference program
    #: Program ids of all texts that ever were its reference. A table of others that names the
    #: problem means this one only where its reference is among them.
    references: tuple[str, ...] = ()
    held_out: bool = False  # whether no program of it may be trained on

    @property
    def benchmark_cases(self) -> tuple[dict[str, Any], ...]:
        """Shapes of the timed cases, in order."""
        return tuple(case.shape for case in self.cases)


_FILES: Final = sorted(Path(__file__).with_name("problem_data").glob("*.toml"))
#: Problem by canonical id, in alphabetical order.
PROBLEMS: Final[dict[str, Problem]] = {
    path.stem: msgspec.convert(
        {"name": path.stem, **tomllib.loads(path.read_text("utf-8"))}, Problem
    )
    for path in _FILES
}
#: Ids of the six evaluation tasks, in the order of every table.
GPU_MODE_TASKS: Final = tuple(
    name for name, p in PROBLEMS.items() if p.family == "gpu_mode" and p.cases
)
#: Ids of the problems that this package states itself.
OWN_PROBLEMS: Final = tuple(name for name, p in PROBLEMS.items() if p.family == "kernel_archive")
#: Problem -> ids of its reference programs, where they are known.
REFERENCE_IDS: Final[dict[str, frozenset[str]]] = {
    name: frozenset(p.references) for name, p in PROBLEMS.items() if p.references
}
#: Ids of the problems that no program may be trained on.
HELD_OUT_PROBLEMS: Final = tuple(name for name, p in PROBLEMS.items() if p.held_out)

_ALIASES: Final = {alias: name for name, p in PROBLEMS.items() for alias in (name, *p.aliases)}
_KERNELBENCH: Final = re.compile(
    r"(?:kernelbench[_/-]?)?(?:level|l)[_-]?(\d+)[_/-]+(?:problem|p|task)?[_-]?(\d+)(?:[_-].*)?",
    re.IGNORECASE,
)


def normalise_problem(name: str) -> str:
    """Find the canonical id of a problem; keep an unknown name without white space around it.

    >>> normalise_problem("level3/48_Mamba2ReturnY"), normalise_problem("trimul")
    ('kernelbench_l3_p48', 'trimul')
    """
    text = name.strip()
    if text in _ALIASES:
        return _ALIASES[text]
    match = _KERNELBENCH.fullmatch(text)
    return f"kernelbench_l{int(match[1])}_p{int(match[2])}" if match else text


def family_of(name: str) -> Family:
    """Name the suite of a problem."""
    return get_problem(name).family


def get_problem(name: str) -> Problem:
    """Look up a problem by id or alias; an unknown one has an id, a family and nothing else.

    >>> get_problem("swiglu").cases[0].least_work.flops
    1174405120
    >>> get_problem("kernelbench_l1_p7").family
    'kernelbench'
    """
    canonical = normalise_problem(name)
    if canonical in PROBLEMS:
        return PROBLEMS[canonical]
    family: Family = "kernelbench" if canonical.startswith("kernelbench_") else "other"
    return Problem(name=canonical, family=family, title=canonical)
