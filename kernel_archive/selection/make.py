"""Making the splits of an archive directory: decide, prove that nothing leaks, write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl

from kernel_archive.archive.manifest import Manifest, SplitFacts, write_manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.archive.swap import locked_work_folder, replaced_directory, work_folder_of
from kernel_archive.errors import UsageError
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.selection.close import select_close
from kernel_archive.selection.definitions import (
    CandidateDefinition,
    CloseDefinition,
    Definition,
    DiscoveryDefinition,
    EvalDefinition,
    TrainDefinition,
    TransferDefinition,
    ValidityDefinition,
    load_definition,
    with_changes,
)
from kernel_archive.selection.discovery import select_discovery
from kernel_archive.selection.evaluation import (
    SplitNotMadeError,
    choose_gpu,
    select_eval,
    select_transfer,
    select_validity,
)
from kernel_archive.selection.inputs import write_inputs
from kernel_archive.selection.leakage import read_leak_ids, refuse_leaks
from kernel_archive.selection.own_archive import canonical_definition
from kernel_archive.selection.published import read_published
from kernel_archive.selection.selected import (
    CANONICAL,
    ChosenRows,
    Selection,
    label_rows,
    leak_ids,
)
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.selection.training import select_train
from kernel_archive.splits import SPLIT_TABLES, SplitSpec


class RemadeSplit(msgspec.Struct, kw_only=True):
    """What remaking a split did."""

    facts: SplitFacts  # of the split that the archive has now
    directory: Path  # where the new archive lies until it takes the old one's place


def select_split(
    split: SplitSpec,
    tables: ArchiveTables,
    members: Mapping[str, pl.DataFrame],
    definition: Definition | None = None,
    gpu: str | None = None,
) -> Selection:
    """Select one split of an archive.

    ``members`` are ids of the rows of the other splits, by table: training pairs must not hold
    them, transfer rows not show them. Without a ``definition`` the archive's canonical one counts;
    ``gpu`` is the GPU of a :class:`CandidateDefinition`, where that should not choose.

    Raises:
        UsageError: the GPU that was named has no kernel.
        SplitNotMadeError: no GPU was named, and none of several is preferred.
        DataError: a speedup is not finite and above 0.
    """
    standard = canonical_definition(split, tables)
    definition = definition or standard
    match definition:
        case EvalDefinition():
            chosen = select_eval(tables, definition, gpu)
        case CloseDefinition():
            chosen = select_close(tables, definition, gpu)
        case ValidityDefinition():
            chosen = select_validity(tables, definition, gpu)
        case TransferDefinition():
            chosen = select_transfer(tables, definition, members)
        case DiscoveryDefinition():
            chosen = select_discovery(tables, definition)
        case TrainDefinition():
            chosen = select_train(tables, definition, members)
        case _:
            raise UsageError(f"no rule selects by a {type(definition).__name__}")
    parameters = definition.parameters
    if isinstance(definition, CandidateDefinition):
        parameters |= {"preferred_gpu": definition.gpu, "gpu": chosen.gpu}
    base_facts = SplitFacts(
        name=_name_of(split, definition, standard, chosen, parameters),
        origin="selected",
        scheme=definition.scheme,
        logical_digest="",
        rows=len(chosen.rows),
        parameters=parameters,
        facts=dict(chosen.facts),
    )
    return label_rows(split, chosen.rows, base_facts, tables)


def _name_of(
    split: SplitSpec,
    definition: Definition,
    standard: Definition,
    choice: ChosenRows,
    parameters: Mapping[str, Any],
) -> str:
    """Name a selection: a variant, by another definition or GPU, by a hash of its parameters."""
    gpu = None
    if isinstance(standard, CandidateDefinition):
        with suppress(SplitNotMadeError):
            gpu = choose_gpu(choice.gpus, standard.gpu)
    if (definition, choice.gpu) == (standard, gpu):
        return CANONICAL
    return f"{split.name}-{sha256_hex(canonical_json(parameters))[:8]}"


def _write_selections(
    directory: Path, manifest: Manifest, selections: Iterable[Selection], **reports: Any
) -> Manifest:
    """Write the files of splits; return the manifest with them and with further reports."""
    table_facts, split_facts = dict(manifest.tables), dict(manifest.splits)
    for selection in selections:
        name = selection.split.table
        (part,) = TABLES[name].splits
        table_facts[name] = write_table(directory, name, {part: selection.parts()})
        digest = table_facts[name].logical_digest
        split_facts[name] = msgspec.structs.replace(selection.base_facts, logical_digest=digest)
    return msgspec.structs.replace(
        manifest,
        tables=table_facts,
        splits=split_facts,
        reports={**manifest.reports, **reports},
    )


def make_splits(
    directory: str | Path,
    manifest: Manifest | None = None,
    *,
    split_tables: Sequence[str] = tuple(SPLIT_TABLES),
    definition: Definition | None = None,
    gpu: str | None = None,
) -> Manifest:
    """Make the splits with these tables, in an archive directory that nobody else reads yet.

    Nothing is written when the splits would leak. A split that an archive's kernels don't allow by
    its canonical definition is left out, with the reason in the manifest, which is returned.

    ``manifest`` is one that the caller will write; without it, the stored one is read and written
    again. ``definition`` and ``gpu`` are of a single split, as :func:`select_split` takes them.

    Raises:
        LeakageError: training would hold something of the evaluation; the rows are named.
        SplitNotMadeError: there are no rows by the definition that is given.
    """
    path = Path(directory)
    archive = Archive(path, manifest) if manifest else open_archive(path)
    tables = ArchiveTables(archive)
    members = read_leak_ids(tables, [n for n in SPLIT_TABLES if n not in split_tables])
    selections: dict[str, Selection] = {}
    reasons_before = archive.manifest.reports.get("splits_not_made", {})
    not_made = {name: why for name, why in reasons_before.items() if name not in split_tables}
    for name in (n for n in SPLIT_TABLES if n in split_tables):
        try:
            selections[name] = select_split(SPLIT_TABLES[name], tables, members, definition, gpu)
            members[name] = leak_ids(SPLIT_TABLES[name], selections[name].rows)
        except SplitNotMadeError as error:
            if definition is not None:
                raise
            not_made[name] = str(error)
    refuse_leaks(tables, members, selections)
    result = _write_selections(
        path, archive.manifest, selections.values(), splits_not_made=not_made
    )
    result = write_inputs(path, result)
    return result if manifest else write_manifest(path, result)


@contextmanager
def remade_split(
    directory: str | Path,
    table: str,
    *,
    definition: str | Path | None = None,
    gpu: str | None = None,
    **changes: Any,
) -> Iterator[RemadeSplit]:
    """Make one split of an existing archive anew.

    Readers see the old archive or the new one, never half of it: the new one lies in the
    ``directory`` of what is yielded, for a card to be written, and takes the old one's place at the
    end of the block.

    ``definition`` is the file of one, without it the archive's canonical one counts; ``gpu`` the
    GPU, where it should not choose; ``changes`` are fields of it to change, where ``None`` leaves
    one as it is.

    Raises:
        UsageError: the labels are withheld, others published the split, the definition is at
            fault, or the GPU has no kernel or must be named.
        KernelArchiveError: there is no archive, another process is at work on it, or training
            would leak.
    """
    archive_path, split = Path(directory), SPLIT_TABLES[table]
    with locked_archive(archive_path) as archive:
        present = archive.manifest.splits.get(table)
        if present is not None and present.origin != "selected":
            withheld = "its labels are withheld. Build the archive again from its logs"
            published = "it was published by others. score --bins labels its rows by another scheme"
            why = withheld if present.origin == "withheld" else published
            raise UsageError(f"{table} can't be made again: {why}")
        if definition is None:
            loaded = canonical_definition(split, ArchiveTables(archive))
        else:
            loaded = load_definition(table, definition)
        loaded = with_changes(loaded, **changes)
        with replaced_directory(archive_path, copy=True) as new:
            manifest = make_splits(new, split_tables=[table], definition=loaded, gpu=gpu)
            # What this split asks about now may not be shown in others.
            others = (s for s in SPLIT_TABLES.values() if s.known and s.table != table)
            showing = [s.table for s in others if s.table in manifest.splits]
            if showing:
                manifest = make_splits(new, split_tables=showing)
            yield RemadeSplit(facts=manifest.splits[table], directory=new)


@contextmanager
def locked_archive(directory: Path) -> Iterator[Archive]:
    """Open an archive that no other process replaces in the meantime."""
    # Before the lock, whose folder would otherwise be made beside an archive that is not there.
    open_archive(directory)
    with locked_work_folder(work_folder_of(directory)):
        # Read again: another process may have replaced the archive just before the lock was free.
        yield open_archive(directory)


def store_published(
    directory: Path, staged: Sequence[Path | IO[bytes]], manifest: Manifest
) -> Manifest:
    """Write the splits that others published into an archive directory that nobody else reads yet.

    ``staged`` are files of published rows. Return the manifest with these splits.
    """
    return _write_selections(directory, manifest, read_published(staged))
