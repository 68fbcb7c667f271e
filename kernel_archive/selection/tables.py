"""What selection reads of an archive: narrow columns, each read once, and program texts only where rows need them.

The rows of a split that are of one problem follow from the kernels and evaluations of that problem and from a few facts of
the whole archive. So a large archive is looked at in parts, a few problems at a time (:meth:`ArchiveTables.parts`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.team import Call, Team
from kernel_archive.ids import program_id, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.edges import EDGE_COLUMNS, Kernel, kernels_by_id
from kernel_archive.selection.selected import Side, counted
from kernel_archive.selection.similarity import Neighbours, Program
from kernel_archive.selection.texts import PART_ROWS, ArchiveTexts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive

Result = TypeVar("Result")

#: What is read of the problems of a part alone.
_OF_PROBLEMS: Final = ("train", "kernels", "evaluations", "tested", "neighbours")
#: An archive of more kernels and evaluations is looked at in parts of about so many; a problem with more is a part.
MOST_ROWS: Final = 250_000


def _part(path: Path, problems: frozenset[str] | None) -> ArchiveTables:
    return ArchiveTables(open_archive(path)).of(problems)


class ArchiveTables:
    """Narrow columns of an archive's tables, each read once.

    Attributes:
        archive: the archive.
        problems: the problems that kernels, failures and evaluations are read of; ``None`` for all.
    """

    problems: frozenset[str] | None = None

    def __init__(self, archive: Archive, workers: Team | None = None) -> None:
        """An opened archive, and who looks at parts of it: this process alone where nobody is named."""
        self.archive = archive
        self.workers = workers

    def __reduce__(self) -> Any:
        return _part, (self.archive.path, self.problems)

    def read(self, table: str, columns: Sequence[str], split: str | None = None) -> pa.Table:
        """Columns of a table (of one split); no rows where the archive has no such split."""
        if split is not None and split not in self.archive.manifest.tables[table].splits:
            schema = TABLES[table].schema
            return pa.schema([schema.field(name) for name in columns]).empty_table()
        problems = self.problems if "problem" in TABLES[table].schema.names and table != "searches" else None
        return self.archive.arrow(table, split, columns=columns, problems=problems)

    def of(self, problems: Collection[str] | None) -> ArchiveTables:
        """The same tables with the kernels, failures and evaluations of some problems, or of all."""
        part = object.__new__(type(self))
        part.__dict__.update((name, value) for name, value in self.__dict__.items() if name not in _OF_PROBLEMS)
        part.problems = None if problems is None else frozenset(problems)
        return part

    @cached_property
    def _cut(self) -> list[list[str]]:
        """Problems of each part: together go those that a search has both of, and small ones."""
        ran, held = self.read("evaluations", ["problem", "search_id"]), self.read("kernels", ["problem"])
        if ran.num_rows + held.num_rows <= MOST_ROWS:
            return []
        sizes = Counter({problem: rows for (problem,), rows in counted(held, "problem").items()})
        together = {problem: {problem} for problem in sizes}
        first: dict[str, str] = {}
        for (problem, search), rows in counted(ran, "problem", "search_id").items():
            sizes[problem] += rows
            group = together.setdefault(problem, {problem})
            other = together[first.setdefault(search, problem)]
            if other is not group:
                group |= other
                together.update(dict.fromkeys(other, group))
        cut: list[list[str]] = []
        room = 0
        for problems in sorted({min(group): sorted(group) for group in together.values()}.values()):
            rows = sum(sizes[problem] for problem in problems)
            if not cut or rows > room:
                cut.append([])
                room = MOST_ROWS
            cut[-1] += problems
            room -= rows
        return cut

    def parts(self, wanted: Collection[str] | None = None, *, whole: bool = False) -> list[ArchiveTables]:
        """The tables in parts, a small archive in one; a large one for the wanted problems alone, and ``whole`` for these at once."""
        if self.problems is not None or len(self._cut) <= 1:
            return [self]
        self.texts, self.roles, self.references  # noqa: B018 - read once for all
        cut = [[*itertools.chain(*self._cut)]] if whole else self._cut
        chosen = [[problem for problem in problems if wanted is None or problem in wanted] for problems in cut]
        return [self.of(problems) for problems in chosen if problems]

    def results(
        self, function: Callable[[ArchiveTables], Result], wanted: Collection[str] | None = None, *, whole: bool = False
    ) -> Iterator[Result]:
        """What a function finds in each of the parts (:meth:`parts`), in their order."""
        parts = self.parts(wanted, whole=whole)
        if self.workers is not None and len(parts) > 1:
            calls = [
                Call(f"the splits of {', '.join(sorted(p.problems or ()))[:200]}", partial(function, p)) for p in parts
            ]
            found = dict(self.workers.do(calls))
            yield from (found[i] for i in range(len(parts)))
            return
        while parts:
            yield function(parts.pop(0))  # and with the part goes what it has read

    def part_with(self, problem: str) -> ArchiveTables:
        """The tables of a problem at least."""
        return self if self.problems is not None or len(self._cut) <= 1 else self.of([problem])

    @cached_property
    def train(self) -> pa.Table:
        """Split ``train`` of ``kernels`` without texts and cases."""
        return self.read("kernels", Kernel.__struct_fields__, "train")

    @cached_property
    def tested(self) -> list[Kernel]:
        """The kernels of the split ``test``."""
        return list(kernels_by_id(self.read("kernels", Kernel.__struct_fields__, "test")).values())

    @cached_property
    def kernels(self) -> pa.Table:
        """Both splits of ``kernels``, with cases."""
        return self.read("kernels", [*Kernel.__struct_fields__, "cases"])

    @cached_property
    def evaluations(self) -> pa.Table:
        """Lineage and outcome of the evaluations."""
        return self.read("evaluations", EDGE_COLUMNS)

    @cached_property
    def searches(self) -> pa.Table:
        """The searches."""
        return self.read(
            "searches", ["search_id", "builder", "role", "problem", "generation_method", "finished", "source_digest"]
        )

    @cached_property
    def references(self) -> pa.Table:
        """The reference programs."""
        return self.read("references", ["reference_id", "problem", "benchmark_cases", "rtol", "atol", "code"])

    @cached_property
    def reference_sides(self) -> dict[tuple[str, str], Side]:
        """Reference id and problem -> the reference as the anchor of a row."""
        return {
            (row["reference_id"], row["problem"]): Side(row["reference_id"], token_id(row["code"]), None)
            for row in self.references.to_pylist()
        }

    @cached_property
    def natural(self) -> frozenset[str]:
        """Builders whose recipe says that every program was written whole, one by one."""
        return frozenset(str(b["name"]) for b in self.archive.manifest.builders if b.get("natural") is True)

    def searches_of(self, *, natural: bool, builders: Sequence[str]) -> frozenset[str]:
        """Searches of these builders, of every one where none is named; ``natural``: only of those whose recipe says so."""
        rows = zip(self.searches["search_id"].to_pylist(), self.searches["builder"].to_pylist(), strict=True)
        return frozenset(
            search
            for search, builder in rows
            if (not builders or builder in builders) and (not natural or builder in self.natural)
        )

    @cached_property
    def evaluation(self) -> dict[str, Any] | None:
        """What the archive says itself that its evaluation split asks about; ``None`` where the shipped definitions say it."""
        return self.archive.manifest.evaluation

    @cached_property
    def neighbours(self) -> Neighbours:
        """How near programs are to the training programs of their problem."""
        return Neighbours(self.training_programs)

    def training_programs(self, problem: str) -> Iterator[Program]:
        """What a trainer sees of a problem, one program of each near-duplicate class.

        That is ``kernels/train``, and what only training pairs hold that stand in the archive: those that others published,
        or that somebody has changed.
        """
        train = self.part_with(problem).train
        rows = train.select(["kernel_id", "token_id", "program_id"]).filter(pc.equal(train["problem"], problem))
        listed: dict[str, tuple[str, str]] = {}
        for name, token, program in sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True)):
            listed.setdefault(token, (name, program))
        wanted = sorted(listed.values())
        for start in range(0, len(wanted), self.texts.block_rows):
            block = wanted[start : start + self.texts.block_rows]
            for (name, _), code in zip(block, self.texts.fetch([p for _, p in block]).to_pylist(), strict=True):
                yield Program(name, problem, code)
        yield from self._paired(problem, set(listed))

    def _paired(self, problem: str, seen: set[str]) -> Iterator[Program]:
        """Candidates of stored training pairs of a problem that are no kernels of training, and their anchors."""
        known: set[str] | None = None
        for part in self.stored("train_pairs", ("row_id", "problem", "pair_type", "anchor_code", "candidate_code")):
            for row in part.filter(pc.equal(part["problem"], problem)).to_pylist():
                if known is None:
                    known = set(self.of(None).read("kernels", ["program_id"], "train")["program_id"].to_pylist())
                # The anchor of a seed pair is the reference, which every row of an evaluation shows.
                for code in (row["candidate_code"], row["anchor_code"])[: 1 if row["pair_type"] == "seed" else 2]:
                    if program_id(code) not in known and (token := token_id(code)) not in seen:
                        seen.add(token)
                        yield Program(row["row_id"], problem, code)

    @cached_property
    def roles(self) -> dict[str, str]:
        """Search id -> role of the search."""
        return dict(zip(self.searches["search_id"].to_pylist(), self.searches["role"].to_pylist(), strict=True))

    @cached_property
    def tokens(self) -> dict[str, str]:
        """Program id -> token id of every program that the archive knows."""
        tables = (self.read(name, ["program_id", "token_id"]) for name in ("kernels", "failures"))
        return dict(row for table in tables for row in zip(*(ids.to_pylist() for ids in table.columns), strict=True))

    @cached_property
    def texts(self) -> ArchiveTexts:
        """Texts of kernels and references by program id."""
        return ArchiveTexts(self.archive)

    def stored(self, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of a split's table where the archive has one, a few rows at a time."""
        for path in self.archive.files(table) if table in self.archive.manifest.tables else ():
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=PART_ROWS, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns))
