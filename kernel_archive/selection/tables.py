"""What selection reads of an archive.

Narrow columns whole, program texts only where rows need them, block by block.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.errors import ArchiveMismatchError
from kernel_archive.ids import program_id, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.similarity import Grams, Neighbours, TokenSet, token_sets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive

#: Hand on this many rows with their texts at a time.
PART_ROWS: Final = 1000
#: Keep about this many bytes of texts in memory; row groups that were not asked for lately are read
#: again.
TEXT_BYTES: Final = 96 * 1024 * 1024
#: Columns of ``kernels`` that say everything but texts and cases.
KERNEL_COLUMNS: Final = (
    "kernel_id",
    "program_id",
    "token_id",
    "problem",
    "family",
    "gpu",
    "reference_id",
    "search_id",
    "speedup",
    "language",
    "n_measurements",
    "speedup_min",
    "speedup_max",
    "flags",
)
_SEARCH_COLUMNS: Final = (
    "search_id",
    "builder",
    "role",
    "problem",
    "generation_method",
    "finished",
    "source_digest",
)
_REFERENCE_COLUMNS: Final = ("reference_id", "problem", "benchmark_cases", "rtol", "atol", "code")
_PAIR_COLUMNS: Final = ("row_id", "problem", "pair_type", "anchor_code", "candidate_code")


class ArchiveTexts:
    """Texts of the kernels and references of an archive by program id, read by row group.

    Attributes:
        block_rows: how many ids to ask for at a time, so that few row groups are read again and
            memory stays bounded.
    """

    def __init__(self, archive: Archive) -> None:
        """List where every text stands.

        Raises:
            ArchiveMismatchError: a file is damaged.
        """
        self._groups: list[tuple[Path, int]] = []
        keys: list[pl.DataFrame] = []
        size = 0
        for table, key in (("kernels", "program_id"), ("references", "reference_id")):
            for path in archive.files(table):
                try:
                    with pq.ParquetFile(path) as file:
                        for i in range(file.num_row_groups):
                            names = file.read_row_group(i, columns=[key])[key].to_pylist()
                            place = pl.DataFrame({"key": names}, schema={"key": pl.String})
                            keys.append(
                                place.with_row_index("row").with_columns(
                                    group=pl.lit(len(self._groups), pl.UInt32)
                                )
                            )
                            self._groups.append((path, i))
                            size += file.metadata.row_group(i).total_byte_size
                except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
                    raise ArchiveMismatchError(
                        f"{path} is damaged: {error}. Build or pull the archive again"
                    ) from error
        empty = pl.DataFrame(schema={"row": pl.UInt32, "key": pl.String, "group": pl.UInt32})
        self._places = pl.concat([empty, *keys]).unique("key", keep="last")
        rows = sum(map(len, keys))
        self.block_rows = int(
            np.clip(TEXT_BYTES / 4 / max(size / max(rows, 1), 1.0), PART_ROWS, 100 * PART_ROWS)
        )
        groups = TEXT_BYTES // max(size // max(len(self._groups), 1), 1)
        self._read = lru_cache(maxsize=max(int(groups), 1))(self._read_group)

    def _read_group(self, group: int) -> pa.Array:
        path, i = self._groups[group]
        with pq.ParquetFile(path) as file:
            column = file.read_row_group(i, columns=["code"])["code"]
        return column.cast(pa.large_string()).combine_chunks()

    def fetch(self, keys: Sequence[str]) -> pa.Array:
        """Return the texts of these programs in their order.

        An empty one for the empty id, of an unknown reference.

        Raises:
            KeyError: the archive has no such program.
        """
        wanted = pl.DataFrame({"key": keys}, schema={"key": pl.String}).with_row_index("at")
        places = wanted.join(self._places, on="key", how="left", maintain_order="left")
        missing = places.filter(pl.col("group").is_null() & (pl.col("key") != ""))
        if len(missing):
            raise KeyError(missing["key"][0])
        ordered = places.with_columns(pl.col("group").fill_null(len(self._groups))).sort(
            "group", "row", "at"
        )
        texts = [pa.array([], pa.large_string())]
        for (group,), rows in ordered.group_by("group", maintain_order=True):
            if group == len(self._groups):
                texts.append(pa.array([""] * len(rows), pa.large_string()))
            else:
                texts.append(self._read(group).take(rows["row"].to_arrow()))
        back = np.argsort(ordered["at"].to_numpy())
        return pa.concat_arrays(texts).take(pa.array(back))


class ArchiveTables:
    """Columns of an archive's tables as Polars data frames; the small tables are read once."""

    def __init__(self, archive: Archive) -> None:
        """Read an opened archive."""
        self.archive = archive

    def read(self, table: str, columns: Sequence[str], split: str | None = None) -> pl.DataFrame:
        """Read columns of a table (of one split); no rows where the archive has no such split."""
        if split is not None and split not in self.archive.manifest.tables[table].splits:
            return cast("pl.DataFrame", pl.from_arrow(TABLES[table].schema.empty_table())).select(
                columns
            )
        return self.archive.polars(table, split, columns=columns)

    def kernels(self, split: str | None = None) -> pl.DataFrame:
        """Read the kernels (of one split) without texts and cases.

        Of equal ids the last row counts.
        """
        rows = self.read("kernels", KERNEL_COLUMNS, split)
        return rows.unique("kernel_id", keep="last", maintain_order=True)

    @cached_property
    def grams(self) -> dict[str, Grams]:
        """5-grams of programs by program id, shared by the splits and the check of leaks."""
        return {}

    @cached_property
    def searches(self) -> pl.DataFrame:
        """The searches."""
        return self.read("searches", _SEARCH_COLUMNS)

    @cached_property
    def references(self) -> pl.DataFrame:
        """The reference programs with their texts, and their token ids as ``token_id``."""
        rows = self.read("references", _REFERENCE_COLUMNS)
        tokens = [token_id(code) for code in rows["code"]]
        return rows.with_columns(pl.Series("token_id", tokens, pl.String))

    @cached_property
    def natural(self) -> frozenset[str]:
        """Builders whose recipe says that every program was written whole, one by one."""
        builders = self.archive.manifest.builders
        return frozenset(str(b["name"]) for b in builders if b.get("natural") is True)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """What the archive itself says of its evaluation split."""
        return self.archive.manifest.evaluation

    def searches_with(
        self, *roles: str, natural: bool = False, builders: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Select the searches of these roles (any role if none).

        Of these builders (any builder if none).

        With ``natural``, only searches of builders whose recipe says so.
        """
        rows = self.searches
        if roles:
            rows = rows.filter(pl.col("role").is_in(roles))
        if builders:
            rows = rows.filter(pl.col("builder").is_in(builders))
        return rows.filter(pl.col("builder").is_in(sorted(self.natural))) if natural else rows

    @cached_property
    def neighbours(self) -> Neighbours:
        """How near programs are to the training programs of their problem."""
        return Neighbours(self.training_programs)

    def training_programs(self, problem: str) -> Iterator[TokenSet]:
        """Read what a trainer sees of a problem, one program of each near-duplicate class."""
        train = (
            self.training_ids.filter(pl.col("problem") == problem)
            .sort("kernel_id", "token_id", "program_id")
            .unique("token_id", keep="first", maintain_order=True)
        )
        block = min(self.texts.block_rows, PART_ROWS)
        for rows in train.iter_slices(block):
            codes = self.texts.fetch(rows["program_id"].to_list()).to_pylist()
            named = [(name, problem, c) for name, c in zip(rows["kernel_id"], codes, strict=True)]
            yield from token_sets(named, self.grams)
        seen = set(train["token_id"])
        for name, token, code in self._only_paired.get(problem, ()):
            if token not in seen:
                seen.add(token)
                yield from token_sets([(name, problem, code)])

    @cached_property
    def training_ids(self) -> pl.DataFrame:
        """Problem and ids of the rows of ``kernels/train``."""
        names = ["problem", "kernel_id", "program_id", "token_id", "search_id"]
        return self.read("kernels", names, "train")

    @cached_property
    def _only_paired(self) -> dict[str, list[tuple[str, str, str]]]:
        """Row id, token id and text, by problem."""
        trained = set(self.training_ids["program_id"])
        extra: dict[str, list[tuple[str, str, str]]] = {}
        for part in self.stored("train_pairs", _PAIR_COLUMNS):
            texts = pl.concat([part["anchor_code"], part["candidate_code"]]).unique()
            untrained = {code for code in texts if program_id(code) not in trained}
            for row_id, problem, kind, anchor, candidate in part.iter_rows():
                # The anchor of a seed pair is the reference, which every row of an evaluation
                # shows.
                for code in (candidate,) if kind == "seed" else (candidate, anchor):
                    if code in untrained:
                        extra.setdefault(problem, []).append((row_id, token_id(code), code))
        return extra

    @cached_property
    def tokens(self) -> dict[str, str]:
        """Token id of every program that the archive knows, by program id."""
        ids = ("program_id", "token_id")
        return dict(pl.concat([self.read(t, ids) for t in ("kernels", "failures")]).iter_rows())

    @cached_property
    def texts(self) -> ArchiveTexts:
        """Texts of kernels and references by program id."""
        return ArchiveTexts(self.archive)

    def stored(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Read columns of a split's table, where the archive has one, a few rows at a time."""
        for path in self.archive.files(table) if table in self.archive.manifest.tables else ():
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=PART_ROWS, columns=list(columns)):
                    yield cast("pl.DataFrame", pl.from_arrow(batch)).select(columns)
