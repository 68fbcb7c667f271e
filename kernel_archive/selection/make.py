"""Making the splits of an archive directory: carry out what was planned, and note it in the manifest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import shard_faults, write_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.archive.swap import locked_stage, replaced_directory, stage_directory
from kernel_archive.errors import ArchiveMismatchError
from kernel_archive.schema import TABLES
from kernel_archive.selection.inputs import with_inputs
from kernel_archive.selection.plan import Plan, Rules, compared_programs, plan_splits
from kernel_archive.selection.published import published_rows, published_split
from kernel_archive.selection.similarity import similarity_report
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kernel_archive.archive.manifest import Manifest, SplitFacts
    from kernel_archive.archive.team import Team
    from kernel_archive.bins import Scheme
    from kernel_archive.selection.selected import Selection


class Made(msgspec.Struct, kw_only=True):
    """What was done.

    Attributes:
        facts: facts per split's table that the archive has now.
        changed: tables that were written.
        kept: published tables that were left as they are.
        skipped: table -> why it was not made.
        leakage: the manifest's report: findings that are warnings, and similarity.
    """

    facts: dict[str, SplitFacts]
    changed: list[str] = []
    kept: list[str] = []
    skipped: dict[str, str] = {}
    leakage: dict[str, Any] = {}


def _carry_out(plan: Plan, directory: Path) -> Made:
    """Write what was planned, the similarity report beside it, and the manifest last."""
    manifest = plan.tables.archive.manifest
    with ThreadPoolExecutor(1) as pool:
        # The report reads texts only; compression, most of the writing, runs outside the interpreter's lock.
        compared = compared_programs(plan.tables, plan.selections).values()
        rows = list({program.name: program for programs in compared for program in programs}.values())
        report = pool.submit(lambda: similarity_report(rows, plan.tables.neighbours.of(rows)))
        stored = _written(directory, manifest, plan.selections.values())
        similarity = report.result()
    leakage = {"warnings": [msgspec.to_builtins(f) for f in plan.warnings], "similarity": similarity}
    # What was not asked for this time is still missing for the reason that was found then.
    before = manifest.reports.get("splits_not_made", {})
    missing = {**{n: why for n, why in before.items() if n not in plan.names}, **plan.skipped}
    reports = {**manifest.reports, "leakage": leakage, "splits_not_made": missing}
    write_manifest(directory, msgspec.structs.replace(with_inputs(directory, stored), reports=reports))
    return Made(facts=dict(stored.splits), changed=list(plan.selections), skipped=plan.skipped, leakage=leakage)


def _written(directory: Path, manifest: Manifest, selections: Iterable[Selection]) -> Manifest:
    """The manifest with these splits in place of those that it names, once their files are written."""
    tables, splits = dict(manifest.tables), dict(manifest.splits)
    for selection in selections:
        name = selection.split.table
        metadata = {"bin_scheme": selection.scheme, "split": selection.variant}
        (split,) = TABLES[name].splits
        tables[name] = write_table(directory, name, {split: selection.parts()}, metadata=metadata)
        selection.written(tables[name].logical_digest)
        splits[name] = selection.facts
    return msgspec.structs.replace(
        manifest,
        tables={name: tables[name] for name in TABLES if name in tables},
        splits={name: splits[name] for name in SPLIT_TABLES if name in splits},
    )


def make_splits(
    directory: str | Path,
    names: Sequence[str] = tuple(SPLIT_TABLES),
    *,
    rules: Rules | None = None,
    skip_ambiguous: bool = True,
    workers: Team | None = None,
) -> Made:
    """Make derived tables of an archive directory that nobody else reads yet (a build's, before it is renamed).

    Nothing is written when the splits would leak.

    Args:
        directory: the archive directory; its files are replaced one by one.
        names: derived tables to make.
        rules: how; canonically when not given.
        skip_ambiguous: leave ``eval`` out, with the reason in the manifest, when held-out kernels exist on several GPUs
            and none is the canonical one; else that is an error.
        workers: who looks at the parts of a large archive, on this machine; this process alone when not given.

    Raises:
        LeakageError: training would hold something of the evaluation; the rows are named.
        UsageError: there is nothing on the GPU that was named.
    """
    archive = open_archive(directory)
    plan = plan_splits(archive, names, rules, skip_ambiguous=skip_ambiguous, workers=workers)
    return _carry_out(plan, Path(directory))


def remake_splits(
    directory: str | Path,
    names: Sequence[str],
    *,
    rules: Rules | None = None,
    reselect: bool = False,
    scheme: Scheme | None = None,
    finish: Callable[[Path], object] | None = None,
) -> Made:
    """Make derived tables of an existing archive anew; readers see the old archive or the new one, never half of it.

    A split that others published is left as it is unless ``reselect`` is given; with ``scheme`` its labels alone are
    made anew, which makes it a variant. What would come out as it is already is not written, unless its files are not
    those that the manifest names.

    Args:
        directory: the archive directory.
        names: derived tables to make.
        rules: how; canonically when not given.
        reselect: select a published split anew from ``kernels``.
        scheme: labels of a published split.
        finish: called with the new directory before it takes its place (the card).

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the files of a published split are not those that the manifest names.
        KernelArchiveError: another process is at work on the archive.
        LeakageError: training would hold something of the evaluation; the rows are named.
        UsageError: there is nothing on the GPU that was named, or several GPUs and none was.
    """
    place = Path(directory)
    # Before the lock, whose folder would otherwise be made beside an archive that is not there.
    open_archive(place)
    with locked_stage(stage_directory(place)):
        # Read again: another process may have replaced the archive just before the lock was free.
        archive = open_archive(place)
        splits = archive.manifest.splits
        published = [] if reselect else [n for n in names if n in splits and splits[n].origin == "published"]
        damaged = {n: list(shard_faults(place, archive.manifest.shards(n))) for n in names}
        if faults := [fault for n in published for fault in damaged[n]]:
            # A published split can't be selected again: where its files were changed, only its source has it.
            raise ArchiveMismatchError.from_findings(faults)
        kept = [n for n in published if scheme is None or splits[n].scheme == scheme]
        chosen = [n for n in names if n not in kept]
        if chosen:
            plan = plan_splits(archive, chosen, rules, skip_ambiguous=False, scheme=None if reselect else scheme)
            if any(
                splits.get(n) != s.facts or n not in archive.manifest.tables or damaged[n]
                for n, s in plan.selections.items()
            ):
                with replaced_directory(place, copy=True) as new:
                    made = _carry_out(plan, new)
                    if finish is not None:
                        finish(new)
                made.kept = kept
                return made
        return Made(facts=dict(splits), kept=kept, leakage=archive.manifest.reports.get("leakage", {}))


def store_published(directory: str | Path, staged: Sequence[Path]) -> list[str]:
    """Write the splits that others published into an archive directory that nobody else reads yet.

    Args:
        directory: the archive directory.
        staged: Parquet files of staged published rows; each file's rows keep their order, files come as given.

    Returns:
        Names of the tables that were written.

    Raises:
        DataError: a row id stands twice, a speedup is not finite and above 0, or a label is not 1 to 8.
    """
    rows = [row for path in staged for row in sorted(published_rows(pq.read_table(path)), key=lambda r: r.order)]
    published = [split for name, split in SPLIT_TABLES.items() if any(row.split == name for row in rows)]
    if not published:
        return []
    archive = open_archive(directory)
    kernels = archive.arrow("kernels", columns=["problem", "gpu", "program_id", "kernel_id"])
    selections = {split.table: published_split(split, rows, kernels=kernels) for split in published}
    stored = _written(Path(directory), archive.manifest, selections.values())
    facts = {name: msgspec.to_builtins(selection.facts) for name, selection in selections.items()}
    write_manifest(
        Path(directory), msgspec.structs.replace(stored, reports={**stored.reports, "published_splits": facts})
    )
    return list(selections)
