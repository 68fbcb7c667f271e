"""Load the rows of an archive's split, held against its manifest, ready to score against."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kernel_archive.archive.manifest import WITHHELD_SUFFIX, SplitFacts, shard_faults
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.bins import assign_bins, checked_scheme
from kernel_archive.errors import ArchiveMismatchError, UsageError
from kernel_archive.schema import TABLES
from kernel_archive.scoring.cues import read_row_facts
from kernel_archive.scoring.rules import normalise
from kernel_archive.scoring.split import (
    Clusters,
    Split,
    SplitIdentity,
    Zero,
    forecast_split,
    split_facts,
    table_rows,
)
from kernel_archive.splits import FORECAST_SPLITS, SplitSpec
from kernel_archive.storage import content_path


def load_split(
    archive: Archive | Split | str | Path | None = None,
    split: str = "eval",
    scheme: str | None = None,
    *,
    labels: str | Path | None = None,
    blind: bool = False,
) -> Split:
    """Load the rows of an archive's split.

    ``archive`` is one, its directory (default: ``gpu-forecasters/kernels``), or a split that is
    loaded. ``split`` names a split that is forecast, or its table. Under another ``scheme`` than
    the split's own labels are computed anew. ``labels`` is the folder of withheld labels; ``blind``
    loads rows without theirs: every speedup is then 1.

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the files are not those of the manifest, or the labels are others'.
        UsageError: unknown split or scheme, no such split yet, or its labels are withheld.
    """
    if isinstance(archive, Split):
        if blind or labels is not None:
            raise UsageError("a split that is loaded has its labels: name the archive instead")
        return archive if scheme is None else archive.under(checked_scheme(scheme))
    spec = forecast_split(split)
    opened = archive if isinstance(archive, Archive) else open_archive(archive)
    manifest, facts = opened.manifest, split_facts(opened, spec)
    faults = list(shard_faults(opened.path, manifest.shards(spec.table)))
    if faults:  # no edited label is scored under an old digest
        raise ArchiveMismatchError.from_findings(faults)
    withheld = facts.origin == "withheld"
    if withheld and labels is None and not blind:
        raise UsageError(
            f"the labels of {spec.name} are withheld from the archive in {opened.path}. Whoever "
            "holds them scores with: kernel-archive score FILE --labels DIR. No board takes them"
        )
    if not facts.rows and spec.table in manifest.reports.get("withheld", {}).get("emptied", ()):
        raise UsageError(f"{spec.name} was emptied when labels were withheld from {opened.path}")
    if labels is not None and not withheld:
        raise UsageError(
            f"the labels of {spec.name} are in the archive: --labels is for withheld ones"
        )
    reference = spec.anchor if spec.shows_reference else ""  # many long texts, which nothing reads
    columns = [name for name in TABLES[spec.table].schema.names if name != reference]
    table = opened.arrow(spec.table, columns=columns)
    rows = {name: table[name].to_pylist() for name in columns}
    if withheld:
        rows, facts = _with_labels(opened, spec, rows, facts, labels)
    # Representatives frozen with the split: a foreign manifest may lack them, or hold no numbers.
    ends = [float(v) for v in map(facts.facts.get, ("m_1", "m_8")) if isinstance(v, (int, float))]
    loaded = Split.from_arrays(
        row_ids=rows["row_id"],
        tasks=rows[spec.task],
        groups=rows[spec.group],
        speedups=rows[spec.value],
        bins=rows["bin"],
        scheme=checked_scheme(facts.scheme),
        split=spec.name,
        ends=(ends[0], ends[1]) if len(ends) == 2 else None,
        row_facts=read_row_facts(opened, spec, rows),
        clusters=read_clusters(opened, spec, rows),
        zero=read_zero(facts.logical_digest, manifest.version, spec, rows["row_id"]),
        identity=SplitIdentity(
            archive_name=manifest.name,
            archive_version=manifest.version,
            archive_digest=manifest.logical_digest,
            table=spec.table,
            split_name=facts.name,
            split_digest=facts.logical_digest,
            origin=facts.origin,
            gpus=tuple(sorted(set(rows["gpu"]))),
            n_rows=table.num_rows,
        ),
    )
    loaded = replace(loaded, withheld=withheld, others=partial(_other_splits, opened.path, spec))
    return loaded if scheme is None else loaded.under(checked_scheme(scheme))


def read_zero(digest: str, version: str, spec: SplitSpec, row_ids: Sequence[str]) -> Zero | None:
    """Read what a skill of 0 stands for on these very rows; ``None`` where nothing is fixed.

    ``benchmarks/zero.py`` wrote it. Rows whose labels were withheld are the same with them.
    """
    version = version.removesuffix(WITHHELD_SUFFIX)
    path = content_path("splits") / "zero" / version / f"{spec.name}.json.gz"
    if "/" in version or not path.is_file():
        return None
    stored = json.loads(gzip.decompress(path.read_bytes()))
    if stored["split_digest"] != digest:
        return None
    p = np.array([stored["probabilities"][row] for row in row_ids], np.float64)
    return Zero(name=stored["forecast"], probabilities=normalise(raw=p))


def _other_splits(path: Path, spec: SplitSpec) -> dict[str, set[str]]:
    """Map the other splits of the archive in a directory to the ids of their rows."""
    archive = open_archive(path)
    others = [other for other in FORECAST_SPLITS.values() if other.table != spec.table]
    return {o.name: {row for (row,) in table_rows(archive, o.table, "row_id")} for o in others}


def _with_labels(
    archive: Archive,
    spec: SplitSpec,
    rows: dict[str, list[Any]],
    facts: SplitFacts,
    labels: str | Path | None,
) -> tuple[dict[str, list[Any]], SplitFacts]:
    """Fill in withheld labels from their folder, or blind ones, and return the split's facts."""
    from kernel_archive.selection.withheld import labelled

    if labels is not None:
        whole, facts = labelled(archive, spec.table, Path(labels))
        return {name: whole[name].to_pylist() for name in rows}, facts
    n, blind_bin = len(rows["bin"]), int(assign_bins([1.0], checked_scheme(facts.scheme))[0])
    return rows | {spec.value: [1.0] * n, "bin": [blind_bin] * n}, facts


def read_clusters(
    archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]
) -> Clusters | None:
    """Name the cluster of every row; ``None`` where the data name fewer than two.

    A row of a search that is no natural one is its own cluster.
    """
    if spec.cluster:
        unit, names = "problems", list(rows[spec.cluster])
    else:
        clusters, searches = search_clusters(archive), rows["search_id"]
        if clusters.keys().isdisjoint(searches):
            return None
        unit = "authors" if any(clusters.get(s, s) != s for s in searches) else "chains"
        names = [clusters.get(s, row) for s, row in zip(searches, rows["row_id"], strict=True)]
    return Clusters(unit=unit, names=tuple(names)) if len(set(names)) > 1 else None


def search_clusters(archive: Archive) -> dict[str, str]:
    """Map each search of natural programs to its author, or to itself, a chain, without one."""
    natural = archive.manifest.natural_builders
    clusters = {}
    columns = ("search_id", "builder", "hyperparameters")
    for search, builder, settings in table_rows(archive, "searches", *columns):
        if builder in natural:
            author = json.loads(settings or "{}").get("author")
            named = isinstance(author, str) and author
            clusters[search] = f"{builder} {author}" if named else search
    return clusters
