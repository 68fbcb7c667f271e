"""The dataset card with its pictures and the files beside it: rendered from an archive, written into it, and checked against it.

The pictures are plain text out of plain numbers: the same bytes on every machine (``validate`` compares them), which a plotting
library does not promise from one version to the next. Each brings its own background and follows the reader's light or dark setting.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.manifest import MANIFEST_NAME
from kernel_archive.archive.open import DEFAULT_DIRECTORY, Archive, open_archive
from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES, BinScheme, Scheme, bin_of, scheme
from kernel_archive.errors import Finding, UsageError, printable
from kernel_archive.publishing.benchmark import eval_yaml
from kernel_archive.publishing.croissant import croissant
from kernel_archive.publishing.facts import collect_facts, splits_of
from kernel_archive.publishing.hub import check_name, tag_of
from kernel_archive.publishing.templates import render
from kernel_archive.schema import TABLES
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from kernel_archive.archive.manifest import SplitFacts

#: Example of use -> program.
_EXAMPLES: Final = {
    "datasets": """from datasets import load_dataset

kernels = load_dataset("{name}")
print(kernels["{split}"][0]["problem"], kernels["{split}"][0]["speedup"])
""",
    "polars": """import polars as pl
from huggingface_hub import snapshot_download

folder = snapshot_download("{name}", repo_type="dataset")
kernels = pl.read_parquet(f"{{folder}}/data/kernels/*.parquet")
speedup = pl.col("speedup")
print(kernels.group_by("problem").agg(pl.len(), speedup.median(), best=speedup.max()))
""",
    "duckdb": """import duckdb
from huggingface_hub import snapshot_download

folder = snapshot_download("{name}", repo_type="dataset")
print(duckdb.sql(f\"\"\"
    SELECT problem, gpu, count(*) AS kernels, median(speedup) AS middle, max(speedup) AS best
    FROM '{{folder}}/data/kernels/*.parquet'
    GROUP BY problem, gpu ORDER BY problem, gpu
\"\"\"))
""",
    "package": """import kernel_archive

archive = kernel_archive.load("{name}")
frame = archive.polars("kernels", "{split}")
print(archive.sql("SELECT bin, count(*) AS n FROM kernels GROUP BY bin ORDER BY bin").to_pylist())
""",
    "score": """kernel-archive pull {name}
kernel-archive template --split eval -o forecasts.jsonl --force --archive {name}
kernel-archive check forecasts.jsonl --archive {name}
kernel-archive score forecasts.jsonl --archive {name}
""",
}
#: What the first example goes on with where there is an evaluation split.
_EVAL_EXAMPLE: Final = """
rows = load_dataset("{name}", "eval", split="test")
print(rows[0]["task"], rows[0]["speedup"], rows[0]["bin"])
"""
_SIZES: Final = {
    1_000: "n<1K",
    10_000: "1K<n<10K",
    100_000: "10K<n<100K",
    1_000_000: "100K<n<1M",
    10_000_000: "1M<n<10M",
}
_TAGS: Final = (
    "gpu", "cuda", "triton", "gpu-kernels", "performance-prediction", "forecasting", "calibration", "benchmark",
)  # fmt: skip
#: Licences that the Hub knows by their SPDX name in lower case; any other is ``other``.
_LICENCES: Final = {"cc-by-4.0", "apache-2.0", "mit", "cc0-1.0", "cc-by-sa-4.0", "bsd-3-clause"}


def configs(archive: Archive) -> list[dict[str, Any]]:
    """The ``configs`` of the card: every table with its shards by name; splits without rows left out.

    A split without rows would make ``load_dataset`` fail for the whole configuration.
    """
    made = []
    for name in archive.tables:
        files = [
            {"split": split, "path": [shard.path for shard in shards]}
            for split, shards, rows in splits_of(archive, name)
            if rows
        ]
        if files:
            made.append({"config_name": name, **({"default": True} if name == "kernels" else {}), "data_files": files})
    return made


def _builders(archive: Archive) -> list[dict[str, Any]]:
    """The recipes of the manifest with every key that the card speaks of."""
    names = ("name", "version", "licence", "description", "url", "citation")
    return [
        {
            **{name: str(b.get(name) or "") for name in names},
            "notes": [str(note) for note in b.get("notes") or ()],
            "findings": sum(run.findings for run in archive.manifest.inputs if run.builder == b.get("name")),
        }
        for b in archive.manifest.builders
    ]


def _front_matter(archive: Archive, n_kernels: int) -> dict[str, Any]:
    stated = {builder["licence"].lower() for builder in _builders(archive)}
    licences = sorted({name if name in _LICENCES else "other" for name in stated}) or ["other"]
    return {
        "pretty_name": title_of(archive),
        "license": licences[0] if len(licences) == 1 else licences,
        "language": ["code", "en"],
        "tags": list(_TAGS),
        "task_categories": ["text-classification", "tabular-regression"],
        "size_categories": [next((label for limit, label in _SIZES.items() if n_kernels < limit), "n>10M")],
        "configs": configs(archive),
    }


def title_of(archive: Archive) -> str:
    """The dataset's title."""
    shipped = archive.manifest.name == DEFAULT_DIRECTORY.as_posix()
    return archive.manifest.about.get("title") or ("GPU Forecasters kernels" if shipped else archive.manifest.name)


def _type_name(type_: pa.DataType) -> str:
    """An Arrow type as people say it."""
    text = str(type_)
    if text.startswith("list<"):
        return "list of struct" if "struct" in text else f"list of {type_.value_type}"
    return "boolean" if text == "bool" else text


def _gpus_of(split: SplitFacts) -> list[str]:
    """GPUs of an evaluation split: the one that was chosen, or those of the rows that were published."""
    chosen = split.parameters.get("gpu")
    return [chosen] if chosen else list(split.facts.get("gpus", {}))


def readme(archive: Archive, facts: dict[str, Any], name: str) -> str:
    """The card's text with its front matter, for the repository of that name."""
    manifest = archive.manifest
    first = next((split for split, _, rows in splits_of(archive, "kernels") if rows), "train")
    counted = {row["name"]: row["n"] for row in facts["flags"]}
    rules = {flag.name: (flag.rule, flag.why) for flag in FLAGS}
    splits = {table: split for table, split in manifest.splits.items() if split.rows}
    examples = _EXAMPLES | ({"datasets": _EXAMPLES["datasets"] + _EVAL_EXAMPLE} if "eval" in splits else {})
    text = render(
        "dataset.md",
        has_references=any(rows for _, _, rows in splits_of(archive, "references")),
        front_matter=_front_matter(archive, facts["totals"]["kernels"]),
        manifest=manifest,
        builders=_builders(archive),
        facts=facts,
        name=name,
        title=title_of(archive),
        tag=tag_of(manifest.version),
        configs=configs(archive),
        examples={key: text.format(name=name, split=first).strip() for key, text in examples.items()},
        tables=[{"spec": TABLES[table], "splits": splits_of(archive, table)} for table in archive.tables],
        type_name=_type_name,
        schemes=SCHEMES,
        bin_names=BIN_NAMES,
        splits={table: splits[table] for table in SPLIT_TABLES if table in splits},
        split_tables=SPLIT_TABLES,
        gpus=_gpus_of,
        flags=[
            {"name": flag, "rule": rule, "why": why, "n": counted.get(flag, 0)}
            for flag in sorted({*rules, *counted})
            for rule, why in [rules.get(flag, ("", ""))]
        ],
    )
    return re.sub(r"\n{3,}", "\n\n", text)


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
    """The card of an archive, for the repository of that name (the manifest's when not given).

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
    """Whether the card in the directory is what the data gives, for any repository, or for one of ``names`` or the archive's own.

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
