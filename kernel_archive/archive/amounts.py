"""Turn what a log states of times and amounts into numbers of one unit."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.readers.records import Evaluation

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str | None) -> int | None:
    """Convert ISO 8601 to microseconds since the epoch; ``None`` for any other text."""
    try:
        moment = datetime.fromisoformat(text or "")
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def total_time(record: Evaluation, name: str) -> float | None:
    """The time that the log states for all cases, else their geometric mean if all have one."""
    stated: float | None = getattr(record, name)
    if stated is not None or not record.cases:
        return stated
    times = [getattr(case, name) for case in record.cases]
    if not all(time is not None and 0 < time < math.inf for time in times):
        return None
    logarithms = list(map(math.log, times))
    # Rounded to a picosecond: logarithms may differ in the last digit between machines.
    return round(math.exp(math.fsum(logarithms) / len(logarithms)), 6)


def total(values: Sequence[Any]) -> Any:
    """The sum of the values, exact for floats; ``None`` where there are none."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)
