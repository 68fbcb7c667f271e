"""The dataset card with its pictures and the files beside it: rendered from an archive, written into it, and checked against it.

The pictures are plain text out of plain numbers: the same bytes on every machine (``validate`` compares them), which a plotting
library does not promise from one version to the next. Each brings its own background and follows the reader's light or dark setting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.bins import N_BINS, BinScheme, Scheme, bin_of, scheme
from kernel_archive.errors import Finding, UsageError, printable
from kernel_archive.publishing.benchmark import eval_yaml
from kernel_archive.publishing.croissant import croissant
from kernel_archive.publishing.facts import collect_facts
from kernel_archive.publishing.hub import check_name
from kernel_archive.publishing.readme import readme, title_of
from kernel_archive.publishing.templates import render
from kernel_archive.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: One colour per bin, slow (warm) to fast (cool); apart for colour-blind readers too.
BIN_COLOURS: Final = ("#b2182b", "#d6604d", "#ee9268", "#e6b08f", "#8fb9d8", "#5a9fcb", "#3a7fb8", "#215f9e")
_METHOD_COLOURS: Final = ("#2f6fb2", "#b26a00", "#1d7f5f", "#a8457f", "#6a5fb0", "#b0472f", "#6b747d")
#: More problems or GPUs than this are drawn together as "others".
MAX_ROWS: Final = 12
#: Octaves of the speedup axis, and bars in each.
_LOW, _HIGH, _PER_OCTAVE = -6, 6, 4


def _short_range(rule: BinScheme, bin_: int) -> str:
    low, high = rule.interval(bin_)
    if bin_ == 1:
        return f"to {high:.3g}x"
    return f"over {low:.3g}x" if bin_ == N_BINS else f"{low:.2g}\N{EN DASH}{high:.2g}x"


def _bins(facts: dict[str, Any], rule: BinScheme) -> str:
    grid = facts["problems"].largest(MAX_ROWS)
    rows = list(zip(grid.rows, grid.counts, strict=True))
    described = "; ".join(f"{name}: {', '.join(map(str, counts))}" for name, counts in rows)
    return render(
        "bins.svg",
        title="Kernels per problem and speedup bin",
        description=f"Counts for bins 1 to 8. {described}",
        height=148 + 30 * len(rows),
        rule=rule,
        bins=[
            {"number": b, "colour": BIN_COLOURS[b - 1], "interval": rule.describe(b), "short": _short_range(rule, b)}
            for b in range(1, N_BINS + 1)
        ],
        rows=rows,
        most=max((n for counts in grid.counts for n in counts), default=0),
        totals=grid.column_totals,
    )


def _gpus(facts: dict[str, Any]) -> str:
    grid = facts["gpu_methods"].largest(MAX_ROWS)
    methods = [
        {"label": name.replace("_", " ")[:22], "colour": _METHOD_COLOURS[min(i, len(_METHOD_COLOURS) - 1)]}
        for i, name in enumerate(grid.columns)
    ]
    rows = [
        (gpu, [{"count": n, "method": m["label"], "colour": m["colour"]} for n, m in zip(counts, methods, strict=True)])
        for gpu, counts in zip(grid.rows, grid.counts, strict=True)
    ]
    return render(
        "gpus.svg",
        title="Kernels per GPU and generation method",
        description="; ".join(f"{gpu}: {n}" for gpu, n in zip(grid.rows, grid.row_totals, strict=True)),
        height=108 + 34 * len(rows),
        methods=methods,
        rows=rows,
        most=max(grid.row_totals, default=0),
    )


def _histogram(name: str, speedups: Sequence[float], scheme: Scheme) -> dict[str, Any]:
    counts = [0] * ((_HIGH - _LOW) * _PER_OCTAVE)
    for s in speedups:
        counts[min(len(counts) - 1, max(0, math.floor((math.log2(s) - _LOW) * _PER_OCTAVE)))] += 1
    edges = [2.0 ** (_LOW + i / _PER_OCTAVE) for i in range(len(counts) + 1)]
    bars = [
        {
            "slot": i,
            "count": n,
            "span": f"{edges[i]:.3g} to {edges[i + 1]:.3g}x",
            "colour": BIN_COLOURS[bin_of(math.sqrt(edges[i] * edges[i + 1]), scheme) - 1],
        }
        for i, n in enumerate(counts)
    ]
    return {"name": name, "total": len(speedups), "most": max(counts), "bars": bars}


def _speedups(facts: dict[str, Any], rule: BinScheme) -> str:
    by_problem = {row["name"]: row["values"] for row in facts["speedups"]}
    largest = sorted(by_problem, key=lambda p: (-len(by_problem[p]), p))[:MAX_ROWS]
    drawn = {name: values for name, values in by_problem.items() if name in largest}
    left_out = len(by_problem) - len(drawn)
    return render(
        "speedups.svg",
        title="Distribution of measured speedups",
        description="; ".join(f"{p}: {len(s)} kernels, {s[0]:.3g}x to {s[-1]:.3g}x" for p, s in drawn.items()),
        height=118 + 58 * len(drawn) + (22 if left_out else 0),
        rule=rule,
        octaves=range(_LOW, _HIGH + 1),
        rows=[_histogram(name, values, rule.name) for name, values in drawn.items()],
        left_out=left_out,
    )


def pictures(facts: dict[str, Any], rule: BinScheme) -> dict[str, bytes]:
    """File name in the archive -> SVG."""
    drawn = {"bins": _bins(facts, rule), "gpus": _gpus(facts), "speedups": _speedups(facts, rule)}
    return {f"assets/{name}.svg": text.encode("utf-8", "replace") for name, text in drawn.items()}


#: Files that a card consists of; the pictures are in ``assets/``.
CARD_FILES: Final = (
    "README.md",
    "croissant.json",
    "eval.yaml",
    *(f"assets/{name}.svg" for name in ("bins", "gpus", "speedups")),
)
#: Further files of an archive directory that are published when they are there.
EXTRA_FILES: Final = ("LICENSE", "CHANGELOG.md", "CITATION.cff")


def render_card(archive: Archive, *, name: str | None = None) -> dict[str, bytes]:
    """The card of an archive.

    Args:
        archive: the archive.
        name: the repository that the card is for; the manifest's name when not given.

    Returns:
        File name relative to the archive -> content: ``README.md``, the pictures, ``croissant.json``, ``eval.yaml``
        (only where there is an evaluation split). The same bytes for the same archive: no time, host or order of rows
        is in them.
    """
    shown = check_name(name or archive.manifest.name)
    facts = collect_facts(archive)
    files = {"README.md": readme(archive, facts, shown).encode("utf-8", "replace")}
    files |= pictures(facts, scheme(archive.manifest.bin_scheme))
    files["croissant.json"] = croissant(archive, shown, title_of(archive), facts["totals"]["kernels"])
    if "eval" in archive.manifest.splits:
        files["eval.yaml"] = eval_yaml(archive, title_of(archive))
    return files


def write_card(directory: Path) -> list[Path]:
    """Render an archive directory's card into it; files are replaced, never written into. The files."""
    made = render_card(open_archive(directory))
    for name in CARD_FILES:
        path = directory / name
        if name in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, made[name])
        else:
            path.unlink(missing_ok=True)
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
        A finding per file that differs: a warning when another version of the package wrote it (its prose may differ).
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
        stale: dict[str, Any] = {"code": "stale-card", "fix": "Build again; the card is never edited by hand"}
        if present is None:
            stale = {"code": "missing-card", "message": "a file of the card is missing", "fix": "Build or pull again"}
        elif name not in made:
            stale |= {"message": "this archive has no such file in its card", "fix": "Delete it"}
        elif package == __version__:
            stale |= {"message": "the card is not what the data gives"}
        else:
            message = f"the card is not what the data gives; kernel-archive {package} wrote it, this is {__version__}"
            stale |= {"message": message, "severity": "warning"}
        found.append(Finding(file=str(path), **stale))
    return found
