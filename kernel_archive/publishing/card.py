"""Render the dataset card, and check a card against its archive."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from kernel_archive._version import __version__
from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.manifest import MANIFEST_NAME, Manifest, SplitFacts
from kernel_archive.archive.open import DEFAULT_DIRECTORY, Archive, open_archive
from kernel_archive.archive.validate import ValidationReport, validate_measured
from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES, assign_bins
from kernel_archive.errors import Finding, UsageError, printable
from kernel_archive.gpus import gpu_lines
from kernel_archive.publishing.hub import check_name, tag_of
from kernel_archive.publishing.templates import render_markdown
from kernel_archive.schema import TABLES
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.storage import write_atomically
from kernel_archive.toml_files import toml_beside

#: The card.
CARD_FILE: Final = "README.md"
#: Further files of an archive directory that are published when they are there.
EXTRA_FILES: Final = ("LICENSE", "CHANGELOG.md", "CITATION.cff")
_DISCUSSIONS: Final = re.compile(r"https://huggingface\.co/datasets/(\S+)/discussions")
#: The Hub's classes of size: fewer rows than this -> name.
_SIZES: Final = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M"}
_TAGS: Final = ["gpu", "cuda", "triton", "gpu-kernels", "performance-prediction", "forecasting"]
#: Licences that the Hub knows by their SPDX name in lower case; any other is ``other``.
_LICENCES: Final = {"cc-by-4.0", "apache-2.0", "mit", "cc0-1.0", "cc-by-sa-4.0", "bsd-3-clause"}
#: Fact -> query.
_QUERIES: Final = toml_beside(__file__, "facts.toml")


def published_files(manifest: Manifest) -> list[str]:
    """List every file of a published archive by path; some need not be there."""
    return [*(shard.path for shard in manifest.shards()), CARD_FILE, *EXTRA_FILES, MANIFEST_NAME]


def collect_facts(archive: Archive) -> dict[str, Any]:
    """Count everything that the card states: the rows of ``facts.toml``, and a few facts more.

    ``schemes`` are kernels per bin under each, ``relabelled`` those whose bin differs between them.
    """
    facts: dict[str, Any] = {
        name: archive.sql(query).to_pylist() for name, query in _QUERIES.items()
    }
    facts["totals"] = facts["totals"][0]
    speedups = archive.polars("kernels", columns=["speedup"])["speedup"].to_numpy()
    labels = {name: assign_bins(speedups, name) for name in SCHEMES}
    facts["schemes"] = {
        name: np.bincount(bins, minlength=N_BINS + 1)[1:].tolist() for name, bins in labels.items()
    }
    facts["relabelled"] = int((labels["paper"] != labels["released"]).sum())
    facts["stated_gpus"] = [
        {"name": name, "facts": list(gpu_lines(gpu)), "source": gpu.source}
        for name, gpu in archive.stated_gpus.items()
    ]
    # Summed exactly: the order of rows must not change the last digit.
    facts["gpu_hours"] = math.fsum(row["n"] for row in facts["gpu_seconds"]) / 3600
    return facts


def _rows(archive: Archive, table: str) -> dict[str, int]:
    """Map the splits of a table to their rows, in the order of the schema."""
    rows = archive.manifest.tables[table].rows
    return {split: rows[split] for split in TABLES[table].splits if split in rows}


def configs(archive: Archive) -> list[dict[str, Any]]:
    """List the card's ``configs``: every table with its shards by name.

    Splits without rows are left out: ``load_dataset`` would fail for the whole configuration.
    """
    listed = []
    for table in archive.tables:
        shards = archive.manifest.tables[table].splits
        files = [
            {"split": split, "path": [shard.path for shard in shards[split]]}
            for split, n in _rows(archive, table).items()
            if n
        ]
        default = {"default": True} if table == "kernels" else {}
        if files:
            listed.append({"config_name": table, **default, "data_files": files})
    return listed


def _builders(archive: Archive) -> list[dict[str, Any]]:
    """Return the manifest's recipes with every key that the card names."""
    keys = ("name", "version", "licence", "description", "url", "citation")
    inputs = archive.manifest.inputs
    return [
        {
            **{key: str(builder.get(key) or "") for key in keys},
            "notes": [str(note) for note in builder.get("notes") or ()],
            "findings": sum(run.findings for run in inputs if run.builder == builder.get("name")),
        }
        for builder in archive.manifest.builders
    ]


def _front_matter(archive: Archive, n_kernels: int) -> dict[str, Any]:
    stated = {builder["licence"].lower() for builder in _builders(archive)}
    licences = sorted({name if name in _LICENCES else "other" for name in stated}) or ["other"]
    size = next((label for limit, label in _SIZES.items() if n_kernels < limit), "1M<n<10M")
    return {
        "pretty_name": title_of(archive),
        "license": licences[0] if len(licences) == 1 else licences,
        "language": ["code", "en"],
        "tags": [*_TAGS, "calibration", "benchmark"],
        "task_categories": ["text-classification", "tabular-regression"],
        "size_categories": [size],
        "configs": configs(archive),
    }


def title_of(archive: Archive) -> str:
    """Return the dataset's title."""
    if title := archive.manifest.about.get("title"):
        return str(title)
    shipped = archive.manifest.name == DEFAULT_DIRECTORY.as_posix()
    return "GPU Forecasters kernels" if shipped else archive.manifest.name


def _type_name(kind: pa.DataType) -> str:
    """Name an Arrow type as people say it."""
    text = str(kind)
    if text.startswith("list<"):
        return "list of struct" if "struct" in text else f"list of {kind.value_type}"
    return "boolean" if text == "bool" else text


def _gpus_of(split: SplitFacts) -> list[str]:
    """Name the GPU chosen for an evaluation split, or those of the published rows."""
    chosen = split.parameters.get("gpu")
    return [chosen] if chosen else list(split.facts.get("gpus", {}))


def _flags(counted: dict[str, int]) -> list[dict[str, Any]]:
    """Return the audit flags with their rules and numbers of kernels; unknown ones have no rule."""
    flags = {name: {"rule": "", "why": ""} for name in counted}
    flags |= {flag.name: {"rule": flag.rule, "why": flag.why} for flag in FLAGS}
    return [{"name": name, **flags[name], "n": counted.get(name, 0)} for name in sorted(flags)]


def _card_text(archive: Archive, facts: dict[str, Any], name: str) -> str:
    """Render the card's text with its front matter, for the repository of that name."""
    manifest = archive.manifest
    rows = {table: _rows(archive, table) for table in archive.tables}
    splits = {table: split for table, split in manifest.splits.items() if split.rows}
    text = render_markdown(
        "dataset.md",
        has_references=any(rows["references"].values()),
        front_matter=_front_matter(archive, facts["totals"]["kernels"]),
        manifest=manifest,
        builders=_builders(archive),
        facts=facts,
        name=name,
        title=title_of(archive),
        tag=tag_of(manifest.version),
        configs=configs(archive),
        first_split=next((part for part, n in rows["kernels"].items() if n), "train"),
        tables=[(TABLES[table], parts) for table, parts in rows.items()],
        type_name=_type_name,
        schemes=SCHEMES,
        bin_names=BIN_NAMES,
        splits={table: splits[table] for table in SPLIT_TABLES if table in splits},
        split_tables=SPLIT_TABLES,
        gpus=_gpus_of,
        flags=_flags({row["name"]: row["n"] for row in facts["flags"]}),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def render_card(archive: Archive, *, name: str | None = None) -> bytes:
    """Render the card of an archive for the repository of that name.

    The same archive gives the same bytes: no time, host or order of rows is in them.
    """
    repository = check_name(name or archive.manifest.name)
    return _card_text(archive, collect_facts(archive), repository).encode("utf-8", "replace")


def write_card(directory: Path) -> None:
    """Render a directory's card into it."""
    write_atomically(directory / CARD_FILE, render_card(open_archive(directory)))


def repository_of_card(archive: Archive) -> str | None:
    """Return the repository that the present card names; a pushed card names its own."""
    try:
        text = (archive.path / CARD_FILE).read_text(encoding="utf-8", errors="replace")
        named = _DISCUSSIONS.findall(text)
        return check_name(named[-1]) if named else None
    except (OSError, UsageError):
        return None


def validate_whole(archive: Archive) -> ValidationReport:
    """Check an archive: its tables, splits (facts, leaks, frozen ids) and card."""
    from kernel_archive.selection.check import check_splits

    return validate_measured(archive, (("splits", check_splits), ("card", check_card)))


def check_card(archive: Archive, *, repositories: Sequence[str] = ()) -> list[Finding]:
    """Compare the card in the directory with what the data gives.

    The card may be for any repository, or only for one of ``repositories`` or the archive's own. A
    difference is a warning when another package version wrote the card: its prose may differ.
    """
    from jinja2 import TemplateError

    repository = repository_of_card(archive)
    if repositories and repository not in (*repositories, archive.manifest.name):
        repository = repositories[0]
    try:
        expected = render_card(archive, name=repository)
    except (LookupError, TypeError, ValueError, AttributeError, TemplateError) as error:
        # A manifest is foreign text: its builders, reports and facts may be of any shape.
        message = f"no card can be made from it: {type(error).__name__}: {printable(error, 200)}"
        manifest = str(archive.path / MANIFEST_NAME)
        return [Finding(code="bad-manifest", message=message, file=manifest, fix="Build again")]
    path = archive.path / CARD_FILE
    present = path.read_bytes() if path.is_file() else None
    if present == expected:
        return []
    package = archive.manifest.package
    code, message = "stale-card", "the card is not what the data gives"
    severity: Literal["error", "warning"] = "error"
    if present is None:
        code, message = "missing-card", "the card is missing"
    elif package != __version__:
        severity = "warning"
        message += f"; kernel-archive {package} wrote it, this is {__version__}"
    fix = "Build or pull again; the card is never edited by hand"
    return [Finding(code=code, message=message, severity=severity, file=str(path), fix=fix)]
