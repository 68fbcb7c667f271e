"""What others published: splits and search events as tables on the Hugging Face Hub.

``hub-eval-set``, ``hub-discovery-pairs`` and ``hub-training-pool``: each row is kept as it was published, with its id, its place and
its label. A row of the evaluation set is a measurement of a candidate against its reference besides, so that reader yields it as an
evaluation too. ``hub-events``: one event a row, several searches in one file.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from kernel_archive.bins import N_BINS, bin_of
from kernel_archive.errors import printable
from kernel_archive.readers.beside import use_config, use_experiment
from kernel_archive.readers.event_log import EventLog
from kernel_archive.readers.reading import Reading, log_format
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, PublishedRow, SearchFacts
from kernel_archive.readers.tables import rows_with, table_rows
from kernel_archive.readers.values import BAD_JSON, any_json, from_text, natural, object_of, positive, storable, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.files import ReaderSpec
    from kernel_archive.readers.records import Record

#: Fields of a published row that every row must have; each table has names of its own for them.
_REQUIRED: Final = ("row_id", "problem", "anchor_code", "candidate_code", "speedup", "label", "gpu")
_OPTIONAL: Final = ("pair_type", "parent_node_id", "child_node_id", "source_search")
_PAIR_TYPES: Final = ("seed", "parent_edit", "pair")
Split: TypeAlias = Literal["eval", "discovery_pairs", "train_pairs"]


def _required(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The required fields of a row; ``None`` for one that is missing or wrong."""
    values: dict[str, Any] = {ours: text_of(row.get(theirs)) for ours, theirs in names.items()}
    low, high = SPEEDUP_RANGE
    speedup = positive(from_text(row.get(names["speedup"])))
    values["speedup"] = speedup if speedup is not None and low <= speedup <= high else None
    values["label"] = natural(from_text(row.get(names["label"])), N_BINS) or None
    values["gpu"] = values["gpu"] or text_of(object_of(row.get(names["gpu"])).get("device_name"))
    return values


class _Published(Reading):
    """One published table; ``names`` are its columns for the required fields."""

    def __init__(self, *arguments: Any, split: Split, names: dict[str, str]) -> None:
        super().__init__(*arguments)
        self.split = split
        self.names = names
        self.rows: dict[str, PublishedRow] = {}

    def read(self, path: Path) -> bool:
        columns = {self.names[field] for field in ("row_id", "anchor_code", "candidate_code")}
        for line, row in rows_with(self.run, path, columns, self.report):
            self.take(line, row)
        return bool(self.rows or self.facts.counts)

    def take(self, line: int, row: dict[str, Any]) -> None:
        values = _required(row, self.names)
        more: dict[str, Any] = {field: text_of(row.get(field)) for field in _OPTIONAL}
        lacking = next((self.names[ours] for ours, value in values.items() if value is None), None)
        if lacking is not None:
            message = "the row lacks a value or has a wrong one; skipped"
            self.error("bad-row", message, line=line, field=lacking, value=repr(row.get(lacking)))
            self.count("rows_skipped")
            return
        if bin_of(values["speedup"], "released") != values["label"]:
            message = f"not the label that the released rule gives to {values['speedup']:.6g}; kept as published"
            self.warning("label-differs", message, line=line, field=self.names["label"], value=str(values["label"]))
        if self.split == "train_pairs" and more["pair_type"] not in _PAIR_TYPES:
            value = str(more["pair_type"])
            self.warning("unknown-pair-type", "kept as published", line=line, field="pair_type", value=value)
        name = values["row_id"]
        if name in self.rows:
            self.error("duplicate-row", "a row id stands twice; the first is kept", line=line, value=name)
            self.count("rows_skipped")
            return
        self.rows[name] = PublishedRow(
            split=self.split, order=len(self.rows), source_file=self.file, source_line=line, **values, **more
        )

    def records(self) -> Iterator[Record]:
        searches: Counter[str | None] = Counter()
        for row in self.rows.values():
            yield row
            if self.split == "eval":
                searches[row.source_search] += 1
                yield _evaluation(row)
        yield from self.report
        counts = self.facts.counts
        for search, n in (searches or {None: len(self.rows)}).items():
            yield SearchFacts(search=search, counts={"published_rows": n, **counts})
            counts = {}


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


def _published(name: str, title: str, split: Split, columns: tuple[str, ...]) -> ReaderSpec:
    """The reader of one table; ``columns`` are its names for the required fields."""
    return log_format(
        partial(_Published, split=split, names=dict(zip(_REQUIRED, columns, strict=True))),
        name=name,
        title=title,
        expects=f"files (Parquet, JSON lines or CSV) with the columns {', '.join(columns)}",
        version=2,
    )


EVAL_SET: Final = _published(
    "hub-eval-set",
    "The published evaluation set, one row per comparison",
    "eval",
    ("comparison_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "true_bin", "hardware"),
)
DISCOVERY_PAIRS: Final = _published(
    "hub-discovery-pairs",
    "The published discovery pairs, one row per edge",
    "discovery_pairs",
    ("pair_id", "problem_id", "parent_code", "child_code", "g_speedup", "true_bin", "hardware"),
)
TRAINING_POOL: Final = _published(
    "hub-training-pool",
    "The published training pool, one row per pair",
    "train_pairs",
    ("row_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "relative_bin", "hardware"),
)


_SUMMARIES: Final = ("../*_summaries/*.parquet", "../*_summaries/*.jsonl", "*_summaries.parquet", "*_summaries.jsonl")


def _object(value: Any) -> dict[str, Any]:
    """An object, also from its JSON text, without nulls: a table's struct has every field of every kind of event."""
    if isinstance(value, str):
        value = any_json(value.encode("utf-8", "surrogatepass"))
    return object_of(_without_nulls(storable(value)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _event_row(row: dict[str, Any], number: int) -> tuple[int, int, bytes]:
    """One event: its place in the search, its row in the table, and itself as a line of a log.

    Raises:
        ValueError: it has no payload or kind that can be read.
    """
    payload = _object(row.get("payload"))
    kind = row.get("event_kind") or payload.get("kind")
    if not payload or not isinstance(kind, str):
        raise ValueError("no event_kind, or no payload that is an object")
    index = natural(from_text(row.get("event_index")))
    return number if index is None else index, number, msgspec.json.encode({**payload, "kind": kind})


class _HubEvents(Reading):
    """Every search of one table of events."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._evaluations: list[Evaluation] = []
        self._facts: list[SearchFacts] = []

    def read(self, path: Path) -> bool:
        searches: dict[str | None, list[tuple[int, int, bytes]]] = {}
        for number, row in rows_with(self.run, path, {"payload", "event_kind"}, self.report):
            try:
                event = _event_row(row, number)
            except (*BAD_JSON, TypeError, OverflowError) as error:
                self.error("bad-row", f"{printable(str(error))}; skipped", line=number, field="payload")
            else:
                searches.setdefault(text_of(row.get("source_search")), []).append(event)
        summaries = self._summaries() if searches else {}
        any_seen = False
        for name, rows in searches.items():
            search = EventLog(self.run, path, self.report, search=name)
            any_seen |= search.read_lines((number, line) for _, number, line in sorted(rows))
            rows.clear()
            search.finish()
            self._evaluations += search.evaluations()
            self._facts.append(search.facts)
            if name in summaries:
                _use_summary(search, summaries[name])
        return any_seen

    def _summaries(self) -> dict[str | None, Any]:
        """The settings in the published summary of each search, where the table of summaries lies beside."""
        out: dict[str | None, Any] = {}
        for path in self.run.files:
            for _, row in table_rows(self.run, path, self.report) if path != self.run.path else ():
                if text_of(row.get("source_search")) and "config_snapshot" in row:
                    out[row["source_search"]] = row["config_snapshot"]
        return out

    def records(self) -> Iterator[Record]:
        yield from self._evaluations
        yield from self.report
        yield from self._facts


def _use_summary(search: EventLog, snapshot: Any) -> None:
    search.facts.finished = True  # summaries are made of runs that came to their end
    try:
        config = _object(snapshot)
    except BAD_JSON:
        return
    if config:
        use_config(config, search)
        use_experiment(config, search)


HUB_EVENTS: Final = log_format(
    _HubEvents,
    name="hub-events",
    title="The published table of search events; one file may hold several searches",
    expects="files (Parquet or JSON lines) with the columns event_index, event_kind, payload, source_search",
    beside=_SUMMARIES,
    version=2,
)
