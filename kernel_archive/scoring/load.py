"""Load the rows of an archive's split, held against its manifest, ready to score against."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive.bins import assign_bins
from kernel_archive.bins import scheme as scheme_of
from kernel_archive.errors import ArchiveMismatchError, UsageError
from kernel_archive.scoring.controls import read_surface, surface_columns
from kernel_archive.scoring.replay import load_worlds
from kernel_archive.scoring.rules import normalise
from kernel_archive.scoring.split import (
    Clusters,
    OtherRows,
    Split,
    TargetFacts,
    Zero,
    forecast_split,
    split_facts,
)
from kernel_archive.splits import FORECAST_SPLITS, REPLAY
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.splits import SplitSpec


#: Splits about new problems: their clusters are the problems.
_BY_PROBLEM: Final = frozenset({"eval_problems", "eval_transfer"})


def load_split(
    archive: Archive | str | Path | None = None,
    split: str = "eval",
    scheme: str | None = None,
    *,
    labels: str | Path | None = None,
    blind: bool = False,
) -> Split:
    """Load the rows of an archive's split.

    ``archive`` is one, or its directory (default: ``gpu-forecasters/kernels``). ``split`` names a
    split that is forecast, or its table. Under another ``scheme`` than the split's own labels are
    computed anew. ``labels`` is the folder of withheld labels; ``blind`` loads rows without theirs:
    every speedup is then 1.

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the files are not those of the manifest, or the labels are others'.
        UsageError: unknown split or scheme, no such split yet, or its labels are withheld.
    """
    from kernel_archive.archive.manifest import shard_faults
    from kernel_archive.archive.open import Archive, open_archive

    spec = forecast_split(split)
    opened = archive if isinstance(archive, Archive) else open_archive(archive)
    if spec.name == REPLAY.name:
        if not blind:
            raise UsageError(
                "replay's rows are searched again, not scored. Use: kernel-archive replay FILE"
            )
        return load_worlds(opened).target
    facts = split_facts(opened, spec)
    faults = list(shard_faults(opened.path, opened.manifest.shards(spec.table)))
    if faults:  # no edited label is scored under an old digest
        raise ArchiveMismatchError.from_findings(faults)
    shown = ("row_id", spec.task, spec.group, "gpu", spec.value, "bin", "search_id")
    columns = dict.fromkeys((*shown, *surface_columns(spec)))
    rows = opened.arrow(spec.table, columns=list(columns))
    withheld = facts.origin == "withheld"
    if withheld:
        if labels is None and not blind:
            what = f"the labels of {spec.name} are withheld from the archive in {opened.path}"
            raise UsageError(f"{what}. Whoever holds them scores with the option --labels DIR")
        rows, facts = _with_labels(opened, spec, rows, facts, labels)
    elif labels is not None:
        raise UsageError(
            f"the labels of {spec.name} are in the archive: --labels is for withheld ones"
        )
    # Not to_numpy(): it imports pandas where that is installed, which takes longer than a score.
    values = {name: rows[name].to_pylist() for name in columns}
    ends = [float(v) for v in map(facts.facts.get, ("m_1", "m_8")) if isinstance(v, (int, float))]
    loaded = Split.from_arrays(
        row_ids=values["row_id"],
        tasks=values[spec.task],
        groups=values[spec.group],
        speedups=values[spec.value],
        bins=values["bin"],
        scheme=scheme_of(facts.scheme).name,
        split=spec.name,
        ends=(ends[0], ends[1]) if len(ends) == 2 else None,
        surface=read_surface(opened, spec, values),
        clusters=read_clusters(opened, spec, values),
        zero=read_zero(facts.logical_digest, opened.manifest.version, spec, values["row_id"]),
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
    loaded = replace(loaded, withheld=withheld, others=partial(_other_rows, opened, spec))
    return loaded if scheme is None else loaded.under(scheme_of(scheme).name)


class _StoredZero(msgspec.Struct):
    """Hold a file of ``splits/zero``, which ``benchmarks/zero.py`` writes."""

    split_digest: str
    forecast: str
    probabilities: dict[str, list[float]]


def read_zero(digest: str, version: str, spec: SplitSpec, row_ids: Sequence[str]) -> Zero | None:
    """Read what a skill of 0 stands for on these very rows; ``None`` where nothing is fixed."""
    path = content_path("splits") / "zero" / version / f"{spec.name}.json.gz"
    if "/" in version or not path.is_file():
        return None
    stored = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=_StoredZero)
    if stored.split_digest != digest:
        return None
    p = np.array([stored.probabilities[row] for row in row_ids])
    return Zero(name=stored.forecast, probabilities=normalise(raw=p))


class _FrozenRows(msgspec.Struct):
    """Hold a file of ``splits/frozen``; the first value of a row is its id."""

    rows: list[list[Any]]


def _other_rows(archive: Archive, split: SplitSpec) -> Iterator[OtherRows]:
    """List the archive's other splits, then those of released data versions, newest first."""
    for other in FORECAST_SPLITS.values():
        if other.table != split.table and other.table in archive.manifest.tables:
            ids = archive.arrow(other.table, columns=["row_id"])["row_id"].to_pylist()
            yield OtherRows(other.name, f"Use --split {other.name}", set(ids))
    own = archive.manifest.version
    folders = [f for f in (content_path("splits") / "frozen").iterdir() if f.name != own]
    for folder in sorted(folders, key=lambda f: [int(n) for n in f.name.split(".")], reverse=True):
        for spec in FORECAST_SPLITS.values():
            path = folder / f"{spec.table}.json"
            if path.is_file():
                rows = msgspec.json.decode(path.read_bytes(), type=_FrozenRows).rows
                fix = f"This archive is version {own}: forecast its rows, or build the other one"
                name = f"{spec.name} in data version {folder.name}"
                yield OtherRows(name, fix, {row[0] for row in rows})


def _with_labels(
    archive: Archive,
    split: SplitSpec,
    rows: pa.Table,
    facts: SplitFacts,
    labels: str | Path | None,
) -> tuple[pa.Table, SplitFacts]:
    """Fill in withheld labels from their folder, or blind ones, and return the split's facts."""
    from kernel_archive.selection.withheld import labelled, with_column

    if labels is not None:
        whole, facts = labelled(archive, split.table, Path(labels))
        return whole.select(rows.column_names), facts
    blind_bin = int(assign_bins([1.0], scheme_of(facts.scheme).name)[0])
    for name, value in ((split.value, 1.0), ("bin", blind_bin)):
        rows = with_column(rows, name, [value] * rows.num_rows)
    return rows, facts


def read_clusters(
    archive: Archive, spec: SplitSpec, rows: Mapping[str, Sequence[Any]]
) -> Clusters | None:
    """Name the cluster of every row; ``None`` where the data name fewer than two.

    An author stands in the settings of a search. A natural search without one is a chain, and a
    cluster of its own; a row of any other search is its own cluster.
    """
    if spec.name in _BY_PROBLEM:
        unit, names = "problems", list(rows[spec.problem_column])
    else:
        chains, authors = search_authors(archive)
        searches = rows["search_id"]
        unit = "authors" if any(search in authors for search in searches) else "chains"
        if not any(search in chains for search in searches):
            return None
        own = [s if s in chains else row for s, row in zip(searches, rows["row_id"], strict=True)]
        names = [authors.get(s, o) for s, o in zip(searches, own, strict=True)]
    return Clusters(unit=unit, names=tuple(names)) if len(set(names)) > 1 else None


def search_authors(archive: Archive) -> tuple[set[str], dict[str, str]]:
    """List the searches of natural programs, and the authors of those that name one."""
    if "searches" not in archive.manifest.tables:
        return set(), {}
    natural = {str(b["name"]) for b in archive.manifest.builders if b.get("natural") is True}
    columns = ("search_id", "builder", "hyperparameters")
    table = archive.arrow("searches", columns=list(columns))
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    chains = {search: (builder, text) for search, builder, text in rows if builder in natural}
    authors = {}
    for search, (builder, text) in chains.items():
        author = json.loads(text or "{}").get("author")
        if isinstance(author, str) and author:
            authors[search] = f"{builder} {author}"
    return set(chains), authors


def as_split(archive: Archive | Split | str | Path | None, split: str, bins: str | None) -> Split:
    """Return a split as it is or load it; under another scheme when one is named."""
    if not isinstance(archive, Split):
        return load_split(archive, split, bins)
    return archive if bins is None else archive.under(scheme_of(bins).name)
