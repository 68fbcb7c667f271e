"""The metrics of draws of rows: the one way from forecasts to figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import RowSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.samples import ForecastRows


@dataclass(frozen=True, eq=False)
class Figures:
    """The metrics in every draw.

    Attributes:
        overall: metric -> shape (D,).
        groups: group -> metric -> shape (D,).
        curve: recovery curve, shape (100, D); ``None`` where its area was not asked for.
    """

    overall: Mapping[str, Floats]
    groups: Mapping[str, Mapping[str, Floats]]
    curve: Floats | None


def measure(sample: RowSample, names: Collection[str] | None = None, *, groups: Collection[str] = ()) -> Figures:
    """Metrics of a sample, in the order of :data:`~kernel_archive.scoring.metrics.METRICS`.

    Args:
        sample: draws of rows.
        names: the metrics; all of this kind of split when not given.
        groups: metrics to compute for every reported group as well.
    """
    every = metrics_of(sample.rows.kind)
    overall = {name: metric.of(sample) for name, metric in every.items() if names is None or name in names}
    by_group: dict[str, dict[str, Floats]] = {}
    for group, at in sample.rows.groups.items() if groups else ():
        if len(at) == len(sample.rows):  # all rows: what is known of them need not be computed again
            by_group[group] = {name: found for name, found in overall.items() if every[name].groups != "none"}
            continue
        part = sample.of_group(group)
        by_group[group] = {name: metric.of(part) for name, metric in every.items() if name in groups}
    return Figures(overall, by_group, sample.curve if "recovery_area" in overall else None)


def joined(parts: Iterable[Figures]) -> Figures:
    """Several portions of draws as one."""
    found = list(parts)
    first = found[0]
    return Figures(
        {name: np.concatenate([p.overall[name] for p in found]) for name in first.overall},
        {
            group: {name: np.concatenate([p.groups[group][name] for p in found]) for name in metrics}
            for group, metrics in first.groups.items()
        },
        None if first.curve is None else np.concatenate([p.curve for p in found if p.curve is not None], axis=1),
    )


def repeats_of(rows: ForecastRows, names: Collection[str] | None = None, *, groups: bool = True) -> Figures:
    """Metrics of every repeat, where a "draw" is one repeat with every row once.

    Args:
        rows: the rows.
        names: the metrics; all of this kind of split when not given.
        groups: also per reported group.
    """
    of_groups = [name for name, metric in METRICS.items() if metric.groups != "none"] if groups else ()
    return joined(measure(RowSample.once(rows.repeat(r)), names, groups=of_groups) for r in range(rows.n_repeats))
