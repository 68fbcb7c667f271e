"""The whole way from logs to a publishable directory: tables, splits, card, one rename."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_archive.archive.build import Advance, Build, BuildOptions, BuildResult, refuse_empty
from kernel_archive.archive.manifest import MANIFEST_NAME, write_manifest
from kernel_archive.archive.open import default_directory, open_archive
from kernel_archive.archive.swap import locked_work_folder, replaced_directory
from kernel_archive.archive.validate import ValidationReport
from kernel_archive.errors import UsageError
from kernel_archive.publishing.card import validate_whole, write_card
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from kernel_archive.selection.make import RemadeSplit


def build(
    builders: Sequence[str] = (), *, advance: Advance | None = None, **options: Any
) -> BuildResult:
    """Build a whole dataset from logs: measured tables, canonical splits, card.

    ``builders`` and ``options`` are those of :class:`~kernel_archive.archive.build.BuildOptions`;
    ``advance`` is called with done, total and what.

    Raises:
        KernelArchiveError: with findings that name file, line, field and fix.
    """
    run = Build(BuildOptions(builders=builders, **options), _content_digest())
    with locked_work_folder(run.work_folder):
        run.stage_runs(advance)
        if result := run.unchanged_result():
            return result
        from kernel_archive.selection.make import make_splits, store_published

        with replaced_directory(run.target) as new:
            manifest = run.write_tables(new)
            # Splits that others published are taken as they are.
            rows = [staged.published_rows for staged in run.runs if staged.published_rows]
            published = [io.BytesIO(run.store.read(file)) for file in rows]
            manifest = store_published(new, published, manifest)
            refuse_empty(manifest)
            others = [name for name in SPLIT_TABLES if name not in manifest.splits]
            manifest = write_manifest(new, make_splits(new, manifest, split_tables=others))
            write_card(new)
            return run.result(manifest)


def ensure_archive(
    directory: str | Path | None, *, notify: Callable[[str], None], advance: Advance | None = None
) -> Path:
    """Return the archive directory that a user means; the shipped archive is built if need be.

    It is built only where no directory was named, and ``notify`` gets a message before: a misspelt
    path must not become an archive.

    Raises:
        ArchiveNotFoundError: the named directory holds no archive.
        UsageError: there is a recipe here, of which an archive is to be built first.
    """
    if directory is not None:
        return open_archive(directory).path
    default = default_directory()
    if not (default / MANIFEST_NAME).exists():
        if Path("builder.toml").is_file():
            raise UsageError(
                "there is no archive here yet, but a builder.toml. Build its archive first: "
                "kernel-archive build builder.toml, or name another with --archive DIR"
            )
        notify(f"No archive in {default}: the embedded one is built first (kernel-archive build).")
        build(out=default, advance=advance)
    return default


def remake_split(directory: str | Path, table: str, **options: Any) -> RemadeSplit:
    """Make one split of an archive again, with its card.

    Options and errors are those of :func:`~kernel_archive.selection.make.remade_split`.
    """
    from kernel_archive.selection.make import remade_split

    with remade_split(directory, table, **options) as made:
        write_card(made.directory)
    return made


def withhold_labels(directory: str | Path, folder: str | Path) -> list[Path]:
    """Take the labels of the evaluation splits out of an archive, and render the card anew.

    What is left in the directory is the archive's public part.

    Raises:
        UsageError: labels are withheld already or published, or the folder is inside the archive.
        TargetExistsError: there is something in the folder.
    """
    from kernel_archive.selection.withheld import withheld_labels

    with withheld_labels(Path(directory), Path(folder)) as new:
        write_card(new)
    return sorted(Path(folder).iterdir())


def validate(path: str | Path | None = None) -> ValidationReport:
    """Check an archive directory: its tables, splits (facts, leaks, frozen ids) and card.

    Raises:
        ArchiveNotFoundError: there is no archive.
    """
    return validate_whole(open_archive(path))


def _content_digest() -> str:
    """Digest of the split definitions and card templates, on which a build depends."""
    total = hashlib.sha256()
    for root in (content_path("splits"), content_path("cards")):
        for path in sorted(root.rglob("*")):
            if path.is_file() and "frozen" not in path.parts:
                name = path.relative_to(root).as_posix().encode()
                total.update(b"".join((name, b"\0", path.read_bytes(), b"\0")))
    return total.hexdigest()
