"""``hub-eval-set``, ``hub-discovery-pairs`` and ``hub-training-pool``: splits that others published as tables on the Hugging Face Hub.

Each row is kept as it was published, with its id, its place and its label. A row of the evaluation set is a measurement
of a candidate against its reference besides, so that reader yields it as an evaluation too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from kernel_archive.bins import N_BINS, bin_of
from kernel_archive.errors import Finding
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, PublishedRow, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.tables import rows_with
from kernel_archive.readers.values import from_text, natural, object_of, positive, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

#: Fields of a published row that every row must have; each table has names of its own for them.
_REQUIRED: Final = ("row_id", "problem", "anchor_code", "candidate_code", "speedup", "label", "gpu")
_OPTIONAL: Final = ("pair_type", "parent_node_id", "child_node_id", "source_search")
_PAIR_TYPES: Final = ("seed", "parent_edit", "pair")


def _speedup(value: Any) -> float | None:
    speedup = positive(from_text(value))
    low, high = SPEEDUP_RANGE
    return speedup if speedup is not None and low <= speedup <= high else None


def _required(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The required fields of a row; ``None`` for one that is missing or wrong."""
    values: dict[str, Any] = {ours: text_of(row.get(theirs)) for ours, theirs in names.items()}
    values["speedup"] = _speedup(row.get(names["speedup"]))
    values["label"] = natural(from_text(row.get(names["label"])), N_BINS) or None
    values["gpu"] = values["gpu"] or text_of(object_of(row.get(names["gpu"])).get("device_name"))
    return values


def _spec(
    name: str, title: str, split: Literal["eval", "discovery_pairs", "train_pairs"], columns: tuple[str, ...]
) -> ReaderSpec:
    """The reader of one table; ``columns`` are its names for the required fields."""
    names = dict(zip(_REQUIRED, columns, strict=True))

    def published(row: dict[str, Any], file: str, number: int, order: int, report: Report) -> PublishedRow | None:
        """A published row; ``None``, reported, where it lacks something."""
        values = _required(row, names)
        lacking = next((ours for ours, value in values.items() if value is None), None)
        if lacking is not None:
            message = "the row lacks a value or has a wrong one; skipped"
            field = names[lacking]
            report.error("bad-row", message, file=file, line=number, field=field, value=repr(row.get(field)))
            return None
        if bin_of(values["speedup"], "released") != values["label"]:
            message = f"not the label that the released rule gives to {values['speedup']:.6g}; kept as published"
            where = {"field": names["label"], "value": str(values["label"])}
            report.warning("label-differs", message, file=file, line=number, **where)
        more: dict[str, Any] = {field: text_of(row.get(field)) for field in _OPTIONAL}
        if split == "train_pairs" and more["pair_type"] not in _PAIR_TYPES:
            where = {"field": "pair_type", "value": str(more["pair_type"])}
            report.warning("unknown-pair-type", "kept as published", file=file, line=number, **where)
        return PublishedRow(split=split, order=order, source_file=file, source_line=number, **values, **more)

    def records(run: RunFiles) -> Iterator[Record]:
        """The table's rows, and what was wrong."""
        report = Report()
        seen: set[str] = set()
        searches: dict[str | None, int] = {}
        n_rows = 0
        for item in rows_with(run, spec, {names[n] for n in ("row_id", "anchor_code", "candidate_code")}, report):
            if isinstance(item, Finding):
                yield item
                continue
            n_rows += 1
            number, cells = item
            row = published(cells, run.name(run.path), number, len(seen), report)
            if row is not None and row.row_id in seen:
                message = "a row id stands twice; the first is kept"
                report.error("duplicate-row", message, file=row.source_file, line=number, value=row.row_id)
            elif row is not None:
                seen.add(row.row_id)
                yield row
                if split == "eval":
                    searches[row.source_search] = searches.get(row.source_search, 0) + 1
                    yield _evaluation(row)
        if n_rows == 0:
            return
        yield from report
        counts = {"rows_skipped": n_rows - len(seen)} if n_rows > len(seen) else {}
        for search, n in (searches or {None: len(seen)}).items():
            yield SearchFacts(search=search, counts={"published_rows": n, **counts})
            counts = {}

    expects = f"files (Parquet, JSON lines or CSV) with the columns {', '.join(columns)}"
    spec = ReaderSpec(name=name, title=title, expects=expects, files=(), version=2, records=records)
    return spec


def _evaluation(row: PublishedRow) -> Evaluation:
    """The measurement in a row of the evaluation set."""
    return Evaluation(
        node_id=row.row_id,
        code=row.candidate_code,
        outcome="success",
        source_file=row.source_file,
        source_line=row.source_line,
        speedup=row.speedup,
        problem=row.problem,
        gpu=row.gpu,
        reference_code=row.anchor_code,
        search=row.source_search,
    )


EVAL_SET: Final = _spec(
    "hub-eval-set",
    "The published evaluation set, one row per comparison",
    "eval",
    ("comparison_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "true_bin", "hardware"),
)
DISCOVERY_PAIRS: Final = _spec(
    "hub-discovery-pairs",
    "The published discovery pairs, one row per edge",
    "discovery_pairs",
    ("pair_id", "problem_id", "parent_code", "child_code", "g_speedup", "true_bin", "hardware"),
)
TRAINING_POOL: Final = _spec(
    "hub-training-pool",
    "The published training pool, one row per pair",
    "train_pairs",
    ("row_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "relative_bin", "hardware"),
)
