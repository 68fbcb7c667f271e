"""Plans: which searches to record, as TOML. Lists of tasks, seeds and target bins stand for one run each.

```toml
name = "h200-2026-11-v2"
gpu = "H200"

compare = false                # true: runs of a task are compared; each proposes as if it were alone, and a program
                               # that another one had measured is not measured again (every run still counts it)

[settings]                     # any number of the protocol (kernel_archive.measure.settings)
max_case_seconds = 0.35

[[search]]
method = "tree_search"         # tree_search, bin_filling, local_search or agentic
task = ["fp8_quant", "trimul"]
seed = [41, 42]
name = "s{seed}"               # run directory: <method>/<task>__<name>
steps = 40
templates = "programs"         # folder with a folder of templates for every task (providers.py), relative to the plan
language = "triton"

[search.surrogate]             # optional: forecasts say which proposals are measured (surrogate.py)
forecaster = "boosted"
archive = "gpu-forecasters/kernels"
proposals = 8                  # per parent and step, in place of samples_per_parent
share = 0.25

[[search]]
method = "agentic"
chains = "chains/*/*"          # folders of programs that authors wrote one by one (agent.py); a run for each
```
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kernel_archive.errors import RecipeError, printable
from kernel_archive.measure.agent import AgentRun, TuningAgent, read_chain
from kernel_archive.measure.providers import TemplateProvider, Templates
from kernel_archive.measure.search import Objective, Search, search_numbers
from kernel_archive.measure.settings import Settings
from kernel_archive.measure.strategies import HillClimbing, Puct
from kernel_archive.measure.surrogate import Surrogate, SurrogatePlan
from kernel_archive.measure.tasks import get_task
from kernel_archive.untrusted import misfit, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

Method = Literal["tree_search", "bin_filling", "local_search", "agentic"]


class _Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One ``[[search]]`` as written."""

    method: Method
    task: str | list[str] = []
    templates: str = ""
    chains: str = ""
    name: str = "s{seed}"
    seed: int | list[int] = 0
    target_bin: int | list[int] = 0
    language: str | list[str] = "triton"
    steps: int = 40
    batch_size: int = 2
    samples_per_parent: int = 4
    k_per_parent: int = 2
    archive_capacity: int = 1000
    c_puct: float = 1.0
    switch: float = 0.2
    fault: float = 0.02
    surrogate: SurrogatePlan | None = None


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole file as written."""

    name: str
    gpu: str
    search: list[_Entry]
    description: str = ""
    compare: bool = False
    settings: Settings = Settings()


class Run(msgspec.Struct, kw_only=True):
    """One run of a plan: ``key`` is ``<method>/<task>__<name>``, also its directory; ``folder`` where its chain lies."""

    key: str
    method: Method
    task: str
    language: str
    seed: int
    entry: _Entry
    objective: Objective = Objective()
    folder: Path | None = None

    @property
    def mutator(self) -> str:
        """What makes its programs, for ``run.json``."""
        if self.method != "agentic":
            return "template"
        return "rule-based agent" if self.folder is None else "language model"

    @property
    def strategy(self) -> Puct | HillClimbing:
        """Selection and admission, of a search."""
        kind: type[Puct | HillClimbing] = HillClimbing if self.method == "local_search" else Puct
        return msgspec.convert(self.entry, kind, from_attributes=True)

    @property
    def numbers(self) -> dict[str, Any]:
        """What a run that goes on must have been begun with, as ``run.json`` has it of a search; an agent's log says it itself."""
        if self.method == "agentic":
            return {}
        return {"search": search_numbers(self.strategy, self.objective, self.entry.steps, self.seed)}

    def open(self, directory: Path, plan: Plan, seen: set[str]) -> Search | AgentRun:
        """The run in its directory, gone on with where its log ends; ``seen`` are programs that need no proposing again.

        Raises:
            DataError: the log is damaged or another run's, or a file of a chain is at fault.
            UsageError: there are no templates, or there is no such surrogate.
            BusyError: another process records into the directory.
        """
        e = self.entry
        if self.folder is not None:
            return AgentRun(directory, read_chain(self.folder))
        templates = Templates(plan.base / e.templates / self.task)
        if self.method == "agentic":
            return AgentRun(directory, TuningAgent(templates, seed=self.seed, budget=e.steps))
        surrogate = None
        if e.surrogate is not None:
            reference = get_task(self.task).reference
            surrogate = Surrogate(e.surrogate, plan.base, task=self.task, gpu=plan.gpu, reference=reference)
        return Search(
            directory, strategy=self.strategy, objective=self.objective, steps=e.steps, seed=self.seed, seen=seen,
            provider=TemplateProvider(templates, switch=e.switch, fault=e.fault), surrogate=surrogate,
        )  # fmt: skip


class Plan(msgspec.Struct, kw_only=True):
    """A plan, read and expanded; its paths are relative to ``base``."""

    name: str
    gpu: str
    settings: Settings
    runs: list[Run]
    base: Path
    compare: bool = False


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _chains(entry: _Entry, base: Path) -> Iterator[Run]:
    """One run for every folder of a chain that holds programs: ``agentic/<problem>__<h or t>_<author>``."""
    for folder in sorted(p for p in base.glob(entry.chains) if any(p.glob("*.py"))):
        chain = read_chain(folder)
        task = get_task(chain.problem).name
        key = f"agentic/{task}__{'h' if chain.author.role == 'held_out' else 't'}_{chain.author.author}"
        whole = msgspec.structs.replace(entry, steps=len(chain.attempts))
        language = chain.author.language
        yield Run(key=key, method="agentic", task=task, language=language, seed=0, entry=whole, folder=folder)


def _runs(entry: _Entry) -> Iterator[Run]:
    """One run for every task, language, seed and bin: ``<method>/<task>__<name>``."""
    grid = itertools.product(_list(entry.task), _list(entry.language), _list(entry.seed), _list(entry.target_bin))
    for task, language, seed, target in grid:
        canonical = get_task(task).name
        if (entry.method == "bin_filling") != (1 <= target <= 8):
            text = f"target_bin is for bin_filling, and from 1 to 8 (got {target})"
            raise RecipeError(f"{entry.method} of {task}: {text}")
        if entry.surrogate is not None and entry.method not in ("tree_search", "local_search"):
            raise RecipeError(
                f"{entry.method} of {task}: a surrogate is for searches that want speed, not for this one"
            )
        key = (
            f"{entry.method}/{canonical}__{entry.name.format(seed=seed, bin=target, language=language, task=canonical)}"
        )
        objective = Objective(target if entry.method == "bin_filling" else None)
        yield Run(
            key=key, method=entry.method, task=canonical, language=language, seed=seed, entry=entry, objective=objective
        )


def read_plan(path: Path) -> Plan:
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
        raise fail(message=printable(message, 300), field=field) from None
    base = path.resolve().parent
    runs = [run for e in file.search for run in (_chains(e, base) if e.chains else _runs(e))]
    twice = [key for key, count in Counter(r.key for r in runs).items() if count > 1]
    if twice:
        raise RecipeError.of(
            code="same-run", message=f"more than one search records into {', '.join(sorted(twice)[:5])}", file=str(path),
            field="search.name", fix="Put {seed}, {bin} or {language} into the name",
        )  # fmt: skip
    return Plan(name=file.name, gpu=file.gpu, settings=file.settings, runs=runs, base=base, compare=file.compare)
