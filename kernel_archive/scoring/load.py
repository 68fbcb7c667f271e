"""Targets from archives: the rows of a split are read, held against the manifest, and made ready to score against."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_archive.bins import assign_bins
from kernel_archive.bins import scheme as scheme_of
from kernel_archive.errors import ArchiveMismatchError, UsageError
from kernel_archive.scoring.controls import read_surface, surface_columns
from kernel_archive.scoring.target import Target, TargetFacts, forecast_split, split_facts
from kernel_archive.scoring.worlds import load_worlds
from kernel_archive.splits import FORECAST_SPLITS, REPLAY

if TYPE_CHECKING:
    import pyarrow as pa

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.splits import Split


def load_target(
    archive: Archive | str | Path | None = None,
    split: str = "eval",
    scheme: str | None = None,
    *,
    labels: str | Path | None = None,
    blind: bool = False,
) -> Target:
    """The rows of an archive's split, ready to score against.

    Args:
        archive: an opened archive or its directory; ``gpu-forecasters/kernels`` here when not given.
        split: name of a split that is forecast, for example ``eval`` or ``discovery``, or of its table.
        scheme: bin scheme to score under; the split's own when not given. Under another one the labels are computed
            anew from the speedups.
        labels: folder with the labels, where they are withheld (:mod:`kernel_archive.selection.withheld`).
        blind: the rows are wanted, not their labels: where these are withheld every row has the speedup 1.

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the split's files are not those that the manifest describes, or the labels are others'.
        UsageError: unknown split or scheme, the archive has no such split yet, or its labels are withheld.
    """
    from kernel_archive.archive.manifest import shard_faults
    from kernel_archive.archive.open import Archive, open_archive

    spec = forecast_split(split)
    opened = archive if isinstance(archive, Archive) else open_archive(archive)
    if spec.name == REPLAY.name:
        if not blind:
            raise UsageError("the rows of replay are searched again, not scored. Use: kernel-archive replay FILE")
        return load_worlds(opened).target()
    facts = split_facts(opened, spec)
    faults = list(shard_faults(opened.path, opened.manifest.shards(spec.table)))
    if faults:  # no edited label is scored under an old digest
        raise ArchiveMismatchError.from_findings(faults)
    columns = dict.fromkeys(["row_id", spec.task, spec.group, "gpu", spec.value, "bin", *surface_columns(spec)])
    rows = opened.arrow(spec.table, columns=list(columns))
    withheld = facts.origin == "withheld"
    if withheld:
        rows, facts = _with_labels(opened, spec, rows, facts, labels, blind=blind)
    elif labels is not None:
        raise UsageError(f"the labels of {spec.name} are in the archive itself: --labels is for withheld ones")
    # Not to_numpy(): it imports pandas wherever that is installed, which takes longer than a whole score.
    values = {name: rows[name].to_pylist() for name in columns}
    low, high = facts.facts.get("m_1"), facts.facts.get("m_8")
    ends = (float(low), float(high)) if isinstance(low, (int, float)) and isinstance(high, (int, float)) else None
    target = Target.from_arrays(
        row_ids=values["row_id"],
        tasks=values[spec.task],
        groups=values[spec.group],
        speedups=values[spec.value],
        bins=values["bin"],
        scheme=scheme_of(facts.scheme).name,
        split=spec.name,
        ends=ends,
        surface=read_surface(opened, spec, values),
        facts=TargetFacts(
            archive_name=opened.manifest.name,
            archive_version=opened.manifest.version,
            archive_digest=opened.manifest.logical_digest,
            table=spec.table,
            split_name=facts.name,
            split_digest=facts.logical_digest,
            origin=facts.origin,
            gpus=tuple(sorted(set(values["gpu"]))),
            n_rows=rows.num_rows,
        ),
    )
    target = replace(target, withheld=withheld, others=partial(_other_ids, opened, spec))
    return target if scheme is None else target.under(scheme_of(scheme).name)


def _other_ids(archive: Archive, split: Split) -> dict[str, set[str]]:
    """The row ids of the archive's other splits that are forecast."""
    others = [s for s in FORECAST_SPLITS.values() if s.table != split.table and s.table in archive.manifest.tables]
    return {s.name: set(archive.arrow(s.table, columns=["row_id"])["row_id"].to_pylist()) for s in others}


def _with_labels(
    archive: Archive, split: Split, rows: pa.Table, facts: SplitFacts, labels: str | Path | None, *, blind: bool
) -> tuple[pa.Table, SplitFacts]:
    """The rows of a split whose labels are withheld, from the labels' folder or blind; and the split's facts."""
    from kernel_archive.selection.withheld import labelled, with_column

    if labels is not None:
        found, facts = labelled(archive, split.table, Path(labels))
        return found.select(rows.column_names), facts
    if not blind:
        raise UsageError(
            f"the labels of {split.name} are withheld from the archive in {archive.path}. Whoever holds them scores with "
            "the option --labels DIR"
        )
    for name, value in ((split.value, 1.0), ("bin", int(assign_bins([1.0], scheme_of(facts.scheme).name)[0]))):
        rows = with_column(rows, name, [value] * rows.num_rows)
    return rows, facts


def target_of(archive: Archive | Target | str | Path | None, split: str, bins: str | None) -> Target:
    """A target as it is, or the split of an archive; under another scheme when one is named."""
    if not isinstance(archive, Target):
        return load_target(archive, split, bins)
    return archive if bins is None else archive.under(scheme_of(bins).name)
