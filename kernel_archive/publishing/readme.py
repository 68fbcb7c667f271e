"""The text of the dataset card: the values that ``cards/dataset.md`` and its parts are filled with, and the examples of use in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.open import DEFAULT_DIRECTORY
from kernel_archive.bins import BIN_NAMES, SCHEMES
from kernel_archive.publishing.facts import splits_of
from kernel_archive.publishing.hub import tag_of
from kernel_archive.publishing.templates import render
from kernel_archive.schema import TABLES
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive

#: Example of use -> program.
_EXAMPLES: Final = {
    "datasets": """
from datasets import load_dataset

kernels = load_dataset("{name}")
print(kernels["{split}"][0]["problem"], kernels["{split}"][0]["speedup"])
""",
    "polars": """
import polars as pl
from huggingface_hub import snapshot_download

folder = snapshot_download("{name}", repo_type="dataset")
kernels = pl.read_parquet(f"{{folder}}/data/kernels/*.parquet")
speedup = pl.col("speedup")
print(kernels.group_by("problem").agg(pl.len(), speedup.median(), best=speedup.max()))
""",
    "duckdb": """
import duckdb
from huggingface_hub import snapshot_download

folder = snapshot_download("{name}", repo_type="dataset")
print(duckdb.sql(f\"\"\"
    SELECT problem, gpu, count(*) AS kernels, median(speedup) AS middle, max(speedup) AS best
    FROM '{{folder}}/data/kernels/*.parquet'
    GROUP BY problem, gpu ORDER BY problem, gpu
\"\"\"))
""",
    "package": """
import kernel_archive

archive = kernel_archive.load("{name}")
frame = archive.polars("kernels", "{split}")
print(archive.sql("SELECT bin, count(*) AS n FROM kernels GROUP BY bin ORDER BY bin").to_pylist())
""",
    "score": """
kernel-archive pull {name}
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


def _gpus(split: SplitFacts) -> list[str]:
    """GPUs of an evaluation split: the one that was chosen, or those of the rows that were published."""
    chosen = split.parameters.get("gpu")
    return [chosen] if chosen else list(split.facts.get("gpus", {}))


def readme(archive: Archive, facts: dict[str, Any], name: str) -> str:
    """The card's text with its front matter, for the repository of that name."""
    manifest = archive.manifest
    first = next((split for split, _, rows in splits_of(archive, "kernels") if rows), "train")
    counted = {row["name"]: row["n"] for row in facts["flags"]}
    rules = {flag.name: (flag.rule, flag.why) for flag in FLAGS}
    splits = {name: facts for name, facts in manifest.splits.items() if facts.rows}
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
        gpus=_gpus,
        flags=[
            {"name": flag, "rule": rule, "why": why, "n": counted.get(flag, 0)}
            for flag in sorted({*rules, *counted})
            for rule, why in [rules.get(flag, ("", ""))]
        ],
    )
    return re.sub(r"\n{3,}", "\n\n", text)
