"""What a staged fragment holds: its columns, limits of a row, and what follows from a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import asdict

from kernel_archive.ids import canonical_json, canonical_text, program_id, token_id
from kernel_archive.program_text import language_of
from kernel_archive.readers.records import Case, Evaluation, SearchFacts
from kernel_archive.schema import TABLES

#: Leave out a number that is larger, so that it fits its column and sums stay finite. Texts are
#: bounded where lines are read.
LARGEST: Final = {
    **dict.fromkeys(("step", "n_logged", "source_line", "goal_bin"), 2**31 - 1),
    **dict.fromkeys(("n_pending", "n_mutations_failed", "n_deferred", "n_forecasts"), 2**31 - 1),
    **dict.fromkeys(("input_tokens", "output_tokens"), 2**53),
    **dict.fromkeys(("gpu_seconds", "wall_seconds", "runtime_us", "reference_runtime_us"), 1e18),
}

#: What a table has beyond single evaluations: it is made when fragments are merged.
_MERGE_COLUMNS: Final = frozenset(
    {"bin", "bin_scheme", "canary", "flags", "n_evaluations", "n_measurements"}
    | {"speedup_max", "speedup_min"}
)
#: Columns of a staged fragment: all that the tables say of an evaluation and its program, and what
#: only merging needs.
FRAGMENT_SCHEMA: Final = pa.schema(
    [
        *{
            field.name: field
            for table in ("failures", "kernels", "evaluations")
            for field in TABLES[table].schema
            if field.name not in _MERGE_COLUMNS
        }.values(),
        pa.field("seq", pa.int64(), nullable=False),  # position in the run
        pa.field("role", pa.string(), nullable=False),
        pa.field("source_key", pa.string(), nullable=False),
        pa.field("artificial", pa.bool_(), nullable=False),  # of successes only
        pa.field("narrow_domain", pa.bool_(), nullable=False),
    ]
)


def unfit_numbers(record: Evaluation | SearchFacts) -> list[str]:
    """List the fields whose number is larger than :data:`LARGEST`, or no number."""
    return [
        name
        for name, most in LARGEST.items()
        if (value := getattr(record, name, None)) is not None and not abs(value) <= most
    ]


def json_text(value: Any) -> str | None:
    """Write a value as canonical JSON, ``None`` for ``None``."""
    return None if value is None else canonical_json(value).decode()


def fragment_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Put rows together as a fragment holds them; ``cases`` are tuples of ``Case``."""
    plain = [{**row, "cases": list(map(_case_row, row["cases"]))} for row in rows]
    # All columns at once, in half the time of an array for each.
    columns = pa.array(plain, pa.struct(list(FRAGMENT_SCHEMA))).flatten()
    return pa.table(columns, schema=FRAGMENT_SCHEMA)


def _case_row(case: Case) -> dict[str, Any]:
    return asdict(case) | {"shape": json_text(case.shape or None)}


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_us(text: str | None) -> int | None:
    """Convert ISO 8601 to microseconds since the epoch; ``None`` for any other text."""
    try:
        moment = datetime.fromisoformat(text or "")
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def overall_us(record: Evaluation, column: str) -> float | None:
    """Return the time of all cases of a program, in us: as stated, else the geometric mean."""
    stated: float | None = getattr(record, column)
    if stated is not None or not record.cases:
        return stated
    times = [getattr(case, column) for case in record.cases]
    if not all(time is not None and 0 < time < math.inf for time in times):
        return None
    logarithms = list(map(math.log, times))
    # Rounded to a picosecond: logarithms may differ in the last digit between machines.
    return round(math.exp(math.fsum(logarithms) / len(logarithms)), 6)


class ProgramText(NamedTuple):
    """A program's columns: its canonical text, and what follows from it."""

    code: str
    program_id: str
    token_id: str
    language: str


@lru_cache(maxsize=64)  # references and re-measured programs come again and again
def program_columns(logged: str) -> ProgramText:
    """Derive the columns of a program from its text in the log."""
    code = canonical_text(logged)
    return ProgramText(code, program_id(code), token_id(code), language_of(code))
