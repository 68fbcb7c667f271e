"""What selection reads of an archive: narrow columns whole, texts where rows need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import polars as pl
import pyarrow as pa

from kernel_archive.archive.open import Archive
from kernel_archive.ids import sha256_hex, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.similarity import Grams, token_grams

#: Columns of ``kernels`` that say everything but texts, cases and labels.
KERNEL_COLUMNS: Final = [
    name
    for name in TABLES["kernels"].schema.names
    if name not in {"code", "cases", "canary", "bin", "bin_scheme"}
]

#: Table with texts -> its column of their program ids.
_TEXTS: Final = {
    "kernels": "program_id",
    "failures": "program_id",
    "references": "reference_id",
}


class ArchiveTables:
    """Columns of an archive's tables as Polars data frames; the small tables are read once."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._grams: dict[str, Grams] = {}  # by program id
        self._text_grams: dict[str, Grams] = {}  # the same arrays by the sha256 of their text

    def read(
        self,
        table: str,
        columns: Sequence[str],
        part: str | None = None,
        *,
        where: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Read columns of a table (or of one part); no rows where the archive has no such part.

        With ``where``, rows are filtered as they are read: a table may have millions. It is asked
        of some thousand rows at a time, so it may not hold a long list.
        """
        if part is not None and part not in self.archive.manifest.tables[table].splits:
            return pl.DataFrame(TABLES[table].schema.empty_table()).select(columns)
        is_wanted = pl.lit(value=True) if where is None else where.cast(pl.Boolean)
        parts = [TABLES[table].schema.empty_table().select(columns)]
        for batch in self.archive.batches(table, part, columns):
            # Filtered by Arrow, which copies: Polars keeps the texts of all rows.
            wanted = pl.DataFrame(batch).with_columns(is_wanted.alias("wanted"))["wanted"]
            parts.append(batch.filter(wanted.to_arrow()).select(columns))
        rows = pl.DataFrame(pa.concat_tables(parts))
        pa.default_memory_pool().release_unused()  # what Polars has made a copy of
        return rows

    def kernels(
        self, part: str | None = None, columns: Sequence[str] = KERNEL_COLUMNS
    ) -> pl.DataFrame:
        """Read columns of the kernels (of one part), each id once; ``kernel_id`` is one of them.

        What is read is not kept: an archive may have a million kernels.
        """
        parts = TABLES["kernels"].splits if part is None else [part]
        rows = pl.concat(self.read("kernels", columns, name) for name in parts)
        return rows.unique("kernel_id", keep="last", maintain_order=True)

    def successes(self, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns of the evaluations that count for labels."""
        counts = (pl.col("outcome") == "success") & pl.col("excluded").is_null()
        rows = self.read("evaluations", [*columns, "outcome", "excluded"], where=counts)
        return rows.select(columns)

    @cached_property
    def held_out(self) -> pl.DataFrame:
        """The held-out kernels without texts and cases, of which several splits are made."""
        return self.kernels("test")

    @cached_property
    def searches(self) -> pl.DataFrame:
        """The searches."""
        return self.archive.polars("searches")

    @cached_property
    def references(self) -> pl.DataFrame:
        """The reference programs with their texts, and their token ids as ``token_id``."""
        rows = self.archive.polars("references")
        rows = rows.unique(["reference_id", "problem"], keep="last", maintain_order=True)
        tokens = [token_id(code) for code in rows["code"]]
        return rows.with_columns(pl.Series("token_id", tokens, pl.String))

    @cached_property
    def training(self) -> pl.DataFrame:
        """Problem and ids of the rows of ``kernels/train``."""
        names = ["problem", "kernel_id", "program_id", "token_id", "search_id"]
        return self.read("kernels", names, "train")

    def of_searches(self, *which: pl.Expr) -> pl.Expr:
        """Tell whether a row's search is one of these."""
        return pl.col("search_id").is_in(self.searches.filter(*which)["search_id"].implode())

    @cached_property
    def _text_places(self) -> dict[str, pl.DataFrame]:
        """Find the row group of each program's text: ``program_id`` and ``number`` by table."""
        places = {}
        for table, key in _TEXTS.items():
            parts = [
                pl.DataFrame(rows).select(program_id=key, number=pl.lit(number, pl.Int32))
                for number, rows in self.archive.row_groups(table, [key])
            ]
            if parts:
                places[table] = pl.concat(parts).unique("program_id", keep="any")
        return places

    def texts(self, programs: pl.Series) -> pl.DataFrame:
        """Read the texts of programs and references: ``program_id`` and ``code``, each once.

        Only the row groups that hold one are read. An id that the archive does not know has no row.
        """
        wanted = programs.unique().implode()
        parts = [
            pa.table({"program_id": pa.array([], pa.string()), "code": pa.array([], pa.string())})
        ]
        for table, places in self._text_places.items():
            key = _TEXTS[table]
            numbers = {*places.filter(pl.col("program_id").is_in(wanted))["number"]}
            for _, rows in self.archive.row_groups(table, [key, "code"], numbers):
                # Filtered by Arrow, which copies: Polars keeps all texts of the group.
                is_wanted = pl.Series(rows[key]).is_in(wanted).to_arrow()
                parts.append(rows.filter(is_wanted).rename_columns(["program_id", "code"]))
        texts = pl.DataFrame(pa.concat_tables(parts, promote_options="permissive"))
        return texts.unique("program_id", keep="last")

    def grams(self, programs: pl.Series) -> dict[str, Grams]:
        """Make the 5-grams of programs, by program id."""
        names = programs.to_list()
        if missing := [name for name in names if name not in self._grams]:
            rows = self.texts(pl.Series(missing, dtype=pl.String))
            grams = self.text_grams(rows["code"])
            self._grams |= dict(zip(rows["program_id"], grams, strict=True))
        return {name: self._grams[name] for name in names}

    def text_grams(self, codes: Iterable[str]) -> list[Grams]:
        """Make the 5-grams of texts, of each text once."""
        keyed = [(sha256_hex(code.encode()), code) for code in codes]
        new = {key: code for key, code in keyed if key not in self._text_grams}
        self._text_grams |= dict(zip(new, token_grams(new.values()), strict=True))
        return [self._text_grams[key] for key, _ in keyed]

    def training_grams(self, problem: str) -> dict[str, Grams]:
        """Make the 5-grams of a problem's training programs, by kernel id.

        One program of each class of near duplicates stands for all.
        """
        rows = self.training.filter(pl.col("problem") == problem)
        rows = rows.sort("kernel_id", "program_id").unique("token_id", maintain_order=True)
        grams = self.grams(rows["program_id"])
        return dict(zip(rows["kernel_id"], map(grams.get, rows["program_id"]), strict=True))


def has_flag(flags: Sequence[str], column: str = "flags") -> pl.Expr:
    """Tell whether a list of audit flags holds one of these."""
    named = pl.col(column).list.eval(pl.element().is_in(list(flags)))
    return named.list.any().fill_null(value=False)


def is_listed(column: str, names: Sequence[str]) -> pl.Expr:
    """Tell whether a column holds one of these names; always where there are none."""
    return pl.col(column).is_in(names) if names else pl.lit(value=True)


def pair_key(first: str, second: str) -> pl.Expr:
    """Write the ids of two columns as one text, whichever comes first."""
    ids = (first, second)
    return pl.concat_str(pl.min_horizontal(ids), pl.max_horizontal(ids), separator=" ")


def with_reason(rows: pl.DataFrame, reasons: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Add ``reason``, the first that holds for a row, or null."""
    first = pl.coalesce(pl.when(when).then(pl.lit(name)) for name, when in reasons.items())
    return rows.with_columns(reason=first)


def leave_out(
    rows: pl.DataFrame, reasons: Mapping[str, pl.Expr], dropped: Counter[str]
) -> pl.DataFrame:
    """Leave out the rows that a reason holds for, and count them by the first one."""
    rows = with_reason(rows, reasons)
    dropped.update(rows["reason"].drop_nulls().to_list())
    return rows.filter(pl.col("reason").is_null()).drop("reason")
