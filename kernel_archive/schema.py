"""The data contract: every table with its columns, types, units and meaning (``schema.toml``).

One table is one configuration on the Hub. The card, the validator, the writer and the SQL views are
all made from :data:`TABLES`; nothing else states a column.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, Literal, get_args

import msgspec
import pyarrow as pa

from kernel_archive.toml_files import toml_beside

#: How an evaluation can end.
Outcome = Literal[
    "success", "compile_failed", "runtime_error", "incorrect", "infrastructure_failure"
]
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)
#: Use of a search: ``held_out`` may enter eval, ``training`` train_pairs, ``archive`` neither.
Role = Literal["held_out", "training", "archive"]
ROLES: Final[tuple[str, ...]] = get_args(Role)

CASE: Final = pa.struct(
    [
        pa.field("shape", pa.string()),  # canonical JSON; null where the log has none
        pa.field("speedup", pa.float64()),
        pa.field("runtime_us", pa.float64()),
        pa.field("reference_runtime_us", pa.float64()),
    ]
)
#: Type in ``schema.toml`` -> type of the column in Arrow.
_TYPES: Final = {
    "text": pa.string(),
    "float64": pa.float64(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "int8": pa.int8(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "texts": pa.list_(pa.string()),
    "cases": pa.list_(CASE),
}


class Column(msgspec.Struct, frozen=True):
    """One column: name, Arrow type, meaning with unit, and whether a value may be missing."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One table."""

    name: str  # name of the table and of its Hub configuration
    title: str  # one line for people
    splits: tuple[str, ...]  # those of the Hub (train, test), in order; not those of splits.toml
    key: str  # the column that names a row
    columns: tuple[Column, ...]  # all columns; long texts last, so that viewers can page
    derived: bool = False  # made after the measured tables, and not from log lines

    @cached_property
    def schema(self) -> pa.Schema:
        """Make the Arrow schema, without metadata."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])


def _column(name: str, fields: dict[str, Any]) -> Column:
    """Make a column of its entry in ``schema.toml``."""
    return Column(name, _TYPES[fields["type"]], fields["doc"], fields.get("nullable", False))


def _read_tables() -> dict[str, Table]:
    """Read ``schema.toml``: a column of a table is an entry, or the name of a shared one."""
    content = toml_beside(__file__)
    shared = {name: _column(name, fields) for name, fields in content["columns"].items()}
    tables: dict[str, Table] = {}
    for name, facts in content["tables"].items():
        columns = tuple(
            shared[entry] if isinstance(entry, str) else _column(entry["name"], entry)
            for entry in facts.get("columns", ())
        )
        columns = columns or tables[facts["like"]].columns
        facts.pop("like", None)
        facts |= {"splits": tuple(facts["splits"]), "columns": columns}
        tables[name] = Table(name=name, **facts)
    return tables


TABLES: Final[dict[str, Table]] = _read_tables()


def shard_name(table: str, split: str, index: int = 0, count: int = 1) -> str:
    """Name a shard inside an archive directory, as the Hub lays it out."""
    return f"data/{table}/{split}-{index:05d}-of-{count:05d}.parquet"
