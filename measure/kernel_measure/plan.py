"""Plans: which searches to record, as TOML.

```toml
name = "h200-search-2026-12"
gpu = "H200"

[settings]                     # any number of the protocol (kernel_measure.settings)
max_case_seconds = 0.35

[[search]]                     # asks for programs with files (questions.py)
method = "tree_search"
task = ["fp8_quant", "trimul"] # a list stands for one run each, as for seed and language
seed = [41, 42]
name = "s{seed}"               # run directory: <method>/<task>__<name>
steps = 40
proposals_per_parent = 16      # a forecaster chooses which of them to measure; default: all are
start = "start.py"             # first program, relative to the plan; default: the reference

[[search]]
method = "agentic"
chains = "chains/*/*"          # folders of programs that authors wrote one by one (chains.py)
```
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kernel_archive.errors import RecipeError, printable
from kernel_archive.toml_files import toml_beside
from kernel_archive.untrusted import misfit, read_toml
from kernel_measure.chains import read_chain
from kernel_measure.settings import Settings
from kernel_measure.strategies import Puct
from kernel_measure.tasks import get_task

Method = Literal["tree_search", "agentic"]
#: Methods before 1.0 -> what to write instead.
_MOVED: Final = toml_beside(__file__, "moved.toml")


class _Entry(Puct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[search]]`` as written, which is also the strategy of its searches."""

    method: Method
    task: str | list[str] = ""
    start: str = ""
    chains: str = ""
    name: str = "s{seed}"
    seed: int | list[int] = 0
    language: str | list[str] = "triton"
    steps: int = 40

    def __post_init__(self) -> None:
        """Refuse an agentic run without chains, and a search with them."""
        if (self.method == "agentic") != bool(self.chains):
            raise ValueError('an agentic run alone records chains: chains = "chains/*/*"')


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole file as written."""

    name: str
    gpu: str
    search: list[_Entry]
    description: str = ""
    settings: Settings = Settings()


class PlannedRun(msgspec.Struct, kw_only=True):
    """One run of a plan: ``key`` is ``<method>/<task>__<name>``, also its directory.

    ``folder`` is where the chain of an ``agentic`` run lies.
    """

    key: str
    task: str
    language: str
    entry: _Entry
    seed: int = 0
    folder: Path | None = None

    @property
    def expected_evaluations(self) -> int:
        """Estimate how many evaluations a whole run takes."""
        if self.folder is not None:
            return self.entry.steps
        return 1 + self.entry.steps * self.entry.batch_size * self.entry.samples_per_parent


class SearchPlan(msgspec.Struct, kw_only=True):
    """A plan, read and expanded; its paths are relative to ``base``."""

    name: str
    gpu: str
    settings: Settings
    runs: list[PlannedRun]
    base: Path


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _chain_runs(entry: _Entry, base: Path) -> Iterator[PlannedRun]:
    """Plan one run for every folder of a chain."""
    for folder in sorted(base.glob(entry.chains)):
        if any(folder.glob("*.py")):
            chain = read_chain(folder)
            task, author = get_task(chain.problem).name, chain.author
            role = "h" if author.role == "held_out" else "t"
            yield PlannedRun(
                key=f"agentic/{task}__{role}_{author.author}",
                task=task,
                language=author.language,
                entry=msgspec.structs.replace(entry, steps=len(chain.attempts)),
                folder=folder,
            )


def _search_runs(entry: _Entry) -> Iterator[PlannedRun]:
    """Plan one run for every task, language and seed of a search."""
    grid = itertools.product(_list(entry.task), _list(entry.language), _list(entry.seed))
    for stated, language, seed in grid:
        task = get_task(stated).name
        name = entry.name.format(seed=seed, language=language, task=task)
        key = f"{entry.method}/{task}__{name}"
        yield PlannedRun(key=key, task=task, language=language, seed=seed, entry=entry)


def read_plan(path: Path) -> SearchPlan:
    """Read a plan and expand its entries.

    Raises:
        RecipeError: with file and field.
        UsageError: an unknown task.
    """
    fail = partial(RecipeError.of, code="bad-plan", file=str(path))
    data = read_toml(path, fail, "there is no such plan", "Name a plan.toml")
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        message, field = misfit(error)
        fix = next((fix for name, fix in _MOVED.items() if f"'{name}'" in message), None)
        raise fail(message=printable(message, 300), field=field, fix=fix) from None
    base = path.resolve().parent
    runs: list[PlannedRun] = []
    for entry in file.search:
        runs += _chain_runs(entry, base) if entry.chains else _search_runs(entry)
    twice = [key for key, count in Counter(r.key for r in runs).items() if count > 1]
    if twice:
        raise fail(
            code="same-run",
            message=f"more than one search records into {', '.join(sorted(twice)[:5])}",
            field="search.name",
            fix="Put {seed} or {language} into the name",
        )
    return SearchPlan(name=file.name, gpu=file.gpu, settings=file.settings, runs=runs, base=base)
