"""The dataset card and the files beside it: rendered from an archive, written into it, and checked against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.bins import scheme
from kernel_archive.errors import Finding, UsageError, printable
from kernel_archive.publishing.benchmark import eval_yaml
from kernel_archive.publishing.croissant import croissant
from kernel_archive.publishing.facts import collect_facts
from kernel_archive.publishing.hub import check_name
from kernel_archive.publishing.pictures import pictures
from kernel_archive.publishing.readme import readme, title_of
from kernel_archive.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Files that a card consists of; the pictures are in ``assets/``.
CARD_FILES: Final = (
    "README.md",
    "croissant.json",
    "eval.yaml",
    "assets/bins.svg",
    "assets/gpus.svg",
    "assets/speedups.svg",
)
#: Further files of an archive directory that are published when they are there.
EXTRA_FILES: Final = ("LICENSE", "CHANGELOG.md", "CITATION.cff")


def render_card(archive: Archive, *, name: str | None = None, facts: dict[str, Any] | None = None) -> dict[str, bytes]:
    """The card of an archive.

    Args:
        archive: the archive.
        name: the repository that the card is for; the manifest's name when not given.
        facts: what :func:`~kernel_archive.publishing.facts.collect_facts` gave, where that is at hand.

    Returns:
        File name relative to the archive -> content: ``README.md``, the pictures, ``croissant.json``, ``eval.yaml``
        (only where there is an evaluation split). The same bytes for the same archive: no time, host or order of rows
        is in them.
    """
    shown = check_name(name or archive.manifest.name)
    facts = collect_facts(archive) if facts is None else facts
    files = {"README.md": readme(archive, facts, shown).encode("utf-8", "replace")}
    files |= pictures(facts, scheme(archive.manifest.bin_scheme).name)
    files["croissant.json"] = croissant(archive, shown, title_of(archive), facts["totals"]["kernels"])
    if "eval" in archive.manifest.splits:
        files["eval.yaml"] = eval_yaml(archive, title_of(archive))
    return files


def write_card(directory: Path, facts: dict[str, Any] | None = None) -> list[Path]:
    """Render an archive directory's card into it; files are replaced, never written into.

    Args:
        directory: the archive directory.
        facts: as for :func:`render_card`.

    Returns:
        The files.
    """
    made = render_card(open_archive(directory), facts=facts)
    for name in CARD_FILES:
        path = directory / name
        if name not in made:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, made[name])
    return [directory / name for name in made]


def card_name(archive: Archive) -> str | None:
    """The repository that the present card was rendered for (a pushed card names its own)."""
    try:
        url = msgspec.json.decode((archive.path / "croissant.json").read_bytes())["url"]
        name = str(url).removeprefix("https://huggingface.co/datasets/")
        return check_name(name)
    except (OSError, msgspec.DecodeError, RecursionError, KeyError, TypeError, UsageError):
        return None


def check_card(archive: Archive, *, names: Sequence[str] = ()) -> list[Finding]:
    """Whether the card in the directory is what the data gives.

    Args:
        archive: the archive.
        names: repositories that the card may be for, beside the archive's own name; any when not given.

    Returns:
        An error per file that differs when this version of the package wrote it, a warning when another did (its prose
        may differ).
    """
    from jinja2 import TemplateError

    package = archive.manifest.package
    repo = card_name(archive)
    if names and repo not in (*names, archive.manifest.name):
        repo = names[0]
    try:
        made = render_card(archive, name=repo)
    except (LookupError, TypeError, ValueError, AttributeError, TemplateError) as error:
        # A manifest is a stranger's text: its builders, reports and facts may be of any shape.
        message = f"no card can be made from it: {type(error).__name__}: {printable(str(error), 200)}"
        return [
            Finding(code="bad-manifest", message=message, file=str(archive.path / MANIFEST_NAME), fix="Build again")
        ]
    found: list[Finding] = []
    for name in CARD_FILES:
        path = archive.path / name
        present = path.read_bytes() if path.is_file() else None
        if present == made.get(name):
            continue
        fault: dict[str, Any] = {"code": "stale-card", "fix": "Build again; the card is never edited by hand"}
        if present is None:
            fault = {"code": "missing-card", "message": "a file of the card is missing", "fix": "Build or pull again"}
        elif name not in made:
            fault |= {"message": "this archive has no such file in its card", "fix": "Delete it"}
        elif package == __version__:
            fault |= {"message": "the card is not what the data gives"}
        else:
            message = f"the card is not what the data gives; kernel-archive {package} wrote it, this is {__version__}"
            fault |= {"message": message, "severity": "warning"}
        found.append(Finding(file=str(path), **fault))
    return found
