"""The whole way from logs to a publishable directory: archive, splits, card. The rooms below know nothing of each other."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from kernel_archive.archive.build import BuildResult, build_archive
from kernel_archive.archive.team import team
from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kernel_archive.archive.build import Advance
    from kernel_archive.archive.validate import Report
    from kernel_archive.selection.make import Made


def build(
    builders: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    name: str | None = None,
    version: str | None = None,
    jobs: int | None = None,
    strict: bool = False,
    replace: bool = False,
    scheme: Scheme = DEFAULT_SCHEME,
    source: str | Path | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    stage: str | Path | None = None,
    advance: Advance | None = None,
    say: Callable[[str], None] | None = None,
) -> BuildResult:
    """Build a whole dataset: consolidate raw logs, cut the three canonical splits, render the card.

    Args:
        builders: names of shipped builders or paths of ``builder.toml``; the shipped default ones when empty.
        out: the archive directory, the archive's name when not given; it is written beside its place and renamed into it.
        name: name of the archive, ``owner/dataset``; the recipe's, else ``gpu-forecasters/kernels``, when not given.
        version: name of a release.
        jobs: processes; one per core when not given.
        strict: a damaged log line ends the build.
        replace: allow another release to be overwritten.
        scheme: bin scheme of the labels.
        source: a local copy of the sources of a recipe that reads from the Hub.
        engine: ``local``, processes of this machine, or ``dask`` (extra ``dask``); the archive is the same.
        scheduler: address of a running Dask scheduler; without one, a cluster on this machine.
        stage: where fragments are kept, a directory or a URL that all workers see; a hidden folder beside ``out`` without.
        advance: progress, called with done, total and what.
        say: told where the work of a cluster can be watched.

    Raises:
        KernelArchiveError: with findings that name file, line, field and way out; see :mod:`kernel_archive.errors`.
    """
    from kernel_archive.archive.recipe import local_copy

    def finish(directory: Path, published: Sequence[Path]) -> None:
        from kernel_archive.publishing.card import write_card
        from kernel_archive.selection.make import make_splits, store_published

        # The archive lies on this machine alone, whatever engine made it: so its splits are the work of local processes.
        with team(jobs) as workers:
            kept = store_published(directory, published)
            make_splits(directory, names=[n for n in SPLIT_TABLES if n not in kept], workers=workers)
        write_card(directory)

    return build_archive(
        builders,
        out=out,
        name=name,
        version=version,
        jobs=jobs,
        strict=strict,
        replace=replace,
        scheme=scheme,
        override=None if source is None else lambda loaded: local_copy(loaded, source),
        finish=finish,
        finish_key=_content_digest(),
        engine=engine,
        scheduler=scheduler,
        stage=stage,
        advance=advance,
        say=say,
    )


def ensure_archive(directory: str | Path | None, *, say: Callable[[str], None], advance: Advance | None = None) -> Path:
    """The archive directory that a user means, with an archive in it.

    The embedded archive is built, after saying so, only in the default directory and only when no directory was named:
    a misspelt path must not become an archive.

    ``directory`` is what the user named, ``None`` for the default one; ``say`` is told before anything is built.

    Raises:
        ArchiveNotFoundError: a directory was named and holds no archive; the message says how to build one there.
        KernelArchiveError: as :func:`build`; a directory that holds something else is left alone.
    """
    from kernel_archive.archive.manifest import MANIFEST_NAME
    from kernel_archive.archive.open import default_directory, open_archive

    if directory is not None:
        return open_archive(directory).path
    default = default_directory()
    if not (default / MANIFEST_NAME).exists():
        say(f"No archive in {default}: building the embedded one there first (kernel-archive build).")
        build(out=default, advance=advance)
    return default


def remake_split(
    directory: str | Path,
    table: str,
    *,
    definition: str | Path | None = None,
    gpu: str | None = None,
    scheme: Scheme | None = None,
    reselect: bool = False,
    **changes: Any,
) -> Made:
    """Make one split of an archive again, with its card, by the canonical definition or a changed one.

    ``definition`` is one of one's own; ``gpu`` is that of ``eval``; ``reselect`` selects anew what others published; ``changes`` are
    fields of the definition to change, where ``None`` leaves a field as it is.

    Raises:
        UsageError: the split was published by others and only ``reselect`` could change it so; or the GPU must be named.
        LeakageError: training would hold something of the evaluation.
    """
    from kernel_archive.archive.open import open_archive
    from kernel_archive.errors import UsageError
    from kernel_archive.publishing.card import write_card
    from kernel_archive.selection.make import Rules, remake_splits

    archive = open_archive(directory)
    rules = Rules.changed(table, archive=archive, definition=definition, gpu=gpu, scheme=scheme, **changes)
    facts = archive.manifest.splits.get(table)
    if facts is not None and facts.origin == "withheld":
        raise UsageError(
            f"the labels of {table} are withheld, and the kernels that it is made from with them: build the archive again "
            "from its logs to make another split"
        )
    asked = [name for name, value in {"definition": definition, "gpu": gpu, **changes}.items() if value is not None]
    if facts is not None and facts.origin == "published" and asked and not reselect:
        raise UsageError(
            f"{table} of this archive was published by others and is kept as it is; a variant with another "
            f"{', '.join(asked)} is selected with --reselect"
        )
    return remake_splits(directory, [table], rules=rules, reselect=reselect, scheme=scheme, finish=write_card)


def withhold_labels(directory: str | Path, folder: str | Path) -> list[Path]:
    """Take the labels of the evaluation splits out of an archive into a folder of their own, and render the card anew.

    What is left in the directory is the archive's public part.

    Raises:
        UsageError: labels are withheld already, a split was published by others, or the folder is inside the archive.
        TargetExistsError: there is something in the folder.
    """
    from pathlib import Path

    from kernel_archive.publishing.card import write_card
    from kernel_archive.selection.withheld import withhold

    return withhold(Path(directory), Path(folder), finish=write_card)


def validate(path: str | Path | None = None) -> Report:
    """Check an archive directory in all layers: its tables, then splits (facts, leaks, frozen ids) and card.

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the manifest can't be read.
    """
    from kernel_archive.archive.open import open_archive
    from kernel_archive.archive.validate import validate_measured
    from kernel_archive.publishing.card import check_card
    from kernel_archive.selection.check import check_splits

    return validate_measured(open_archive(path), (("splits", check_splits), ("card", check_card)))


def _content_digest() -> str:
    """Digest of the split definitions and card templates: a change of them is a change of the build."""
    total = hashlib.sha256()
    for folder in ("splits", "cards"):
        root = content_path(folder)
        for path in sorted(root.rglob("*")):
            if path.is_file() and "frozen" not in path.parts:
                total.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
