"""A search as a fold over its own log: ``events.jsonl`` (``puct-events``, v2) is the only state.

Every decision is written before it takes effect, and the state is made from the written events alone, live and on
resume. So a killed search goes on where its log ends: a request that has no answer keeps its id and is answered once; a
proposal that was not evaluated is requested once; nothing is requested or answered twice.
"""

from __future__ import annotations

import math
import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.bins import SCHEMES
from kernel_archive.errors import DataError, UsageError
from kernel_archive.ids import program_id
from kernel_archive.measure.logs import JsonLines, new_ulid, now, read_lines, unresumable
from kernel_archive.measure.providers import Parent
from kernel_archive.measure.runs import Tally, feedback_of
from kernel_archive.measure.strategies import SearchNode, State
from kernel_archive.measure.surrogate import Forecast
from kernel_archive.measure.verdict import evaluation
from kernel_archive.readers import events as ev

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_archive.measure.providers import Proposal, Provider
    from kernel_archive.measure.strategies import HillClimbing, Puct
    from kernel_archive.measure.surrogate import Surrogate
    from kernel_archive.measure.verdict import Measurement


class Objective(msgspec.Struct, frozen=True):
    """What a search rewards: the speedup itself, or where a bin is aimed at, minus the log distance to its representative."""

    target_bin: int | None = None

    def target(self) -> float:
        """The speedup aimed at, x (the open ends take the scheme's stated representatives)."""
        rule = SCHEMES["paper"]
        low, high = rule.interval(self.target_bin or 1)
        if low == 0.0:
            return rule.fallback_ends[0]
        return rule.fallback_ends[1] if math.isinf(high) else math.sqrt(low * high)

    def reward(self, speedup: float) -> float:
        """The reward of a measured speedup.

        >>> Objective().reward(3.0), Objective(7).reward(8**0.5)
        (3.0, -0.0)
        """
        return speedup if self.target_bin is None else -abs(math.log(speedup) - math.log(self.target()))

    def describe(self) -> dict[str, Any]:
        """For ``run.json``."""
        if self.target_bin is None:
            return {"reward": "speedup"}
        return {
            "target_bin": self.target_bin,
            "target_bin_range": SCHEMES["paper"].describe(self.target_bin),
            "target_speedup": self.target(),
            "reward": "-abs(log(speedup) - log(target_speedup))",
        }


def search_numbers(strategy: Puct | HillClimbing, objective: Objective, steps: int, seed: int) -> dict[str, Any]:
    """What ``run.json`` says of a search before it begins."""
    return {
        "total_budget_steps": steps,
        **msgspec.structs.asdict(strategy),
        **objective.describe(),
        "aggregation": "geomean",
        "rng_seed": seed,
    }


class Job(msgspec.Struct, frozen=True):
    """One program that waits for its measurement: its request in the log, ``root`` for the starting program."""

    request_id: str
    code: str


class _Spec(msgspec.Struct):
    """A line of ``specs.jsonl``: what the provider said of a program when it proposed it."""

    program: str
    spec: Any


class _Mutation(msgspec.Struct):
    """A program that was asked for: from whom, what came, how it was forecast, and whether it was sent to be measured.

    ``chosen`` is what was decided by the forecasts; ``failed`` says that there is no program, or no forecast of it.
    """

    parent: str
    code: str | None = None
    failed: bool = False
    requested: bool = False
    forecast: Forecast | None = None
    chosen: bool | None = None


class _Request(msgspec.Struct):
    """A program that was sent to be measured, and what came back."""

    child: str
    parent: str
    code: str
    result: ev.LoggedEvaluation | None = None


class Search(ExitStack):
    """One run directory being searched.

    ``seen`` are programs that need no proposing again, shared between the searches of a task; it grows with this one. Without
    a ``surrogate`` all proposals are measured.

    Raises:
        DataError: the log in the directory is damaged or was made by another search.
        BusyError: another process records into the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        strategy: Puct | HillClimbing,
        provider: Provider,
        objective: Objective,
        steps: int,
        seed: int,
        seen: set[str] | None = None,
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__()
        self._strategy, self._provider, self._objective = strategy, provider, objective
        self._steps, self._seed, self._surrogate = steps, seed, surrogate
        self._seen: set[str] = set() if seen is None else seen
        self.tally = Tally()
        #: Proposals that the forecaster had no forecast of: they are not measured.
        self.without_forecast = 0
        self._started = False
        self._root: SearchNode | None = None
        self._lineage: dict[str, list[str]] = {}
        self._state = State()
        self._next_step = 0
        self._parents: list[str] | None = None
        self._mutations: dict[str, _Mutation] = {}
        self._requests: dict[str, _Request] = {}
        with ExitStack() as stack:
            self._log, self._timing, self._spec_log = (
                stack.enter_context(JsonLines(directory / f"{name}.jsonl")) for name in ("events", "timing", "specs")
            )
            self._specs = {row.program: row.spec for row in read_lines(directory / "specs.jsonl", _Spec)}
            for number, event in enumerate(read_lines(directory / "events.jsonl", ev.Event), 1):
                try:
                    self._apply(event)
                except (ValueError, LookupError) as error:
                    text = f"does not follow from the lines before it: {error}"
                    raise unresumable(directory / "events.jsonl", number, text) from error
            if self._root is not None and self._root.code != provider.seed().code:
                raise DataError.of(
                    code="another-search", file=str(directory / "events.jsonl"), line=1,
                    message="the directory holds a search from another starting program",
                    fix="Record into another directory, or move this one away",
                )  # fmt: skip
            self.push(stack.pop_all())

    @property
    def finished(self) -> bool:
        """Whether the search came to its own end."""
        if self._started and self._root is None:
            return True
        return self._parents is None and self._next_step >= self._steps

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """For ``run.json``."""
        return search_numbers(self._strategy, self._objective, self._steps, self._seed) | (
            {"surrogate_saw": self._surrogate.saw, "without_forecast": self.without_forecast} if self._surrogate else {}
        )

    def _emit(self, event: Any) -> None:
        self._log.append(event)
        self._apply(event)

    def _apply(self, event: Any) -> None:
        match event:
            case ev.SearchInitialized(root=root):
                self._started = True
                self._seen.add(root.program_code)
                self._lineage[root.ulid] = []
                self.tally.add(feedback_of(root.evaluation))
                self._root = _node(root.ulid, root.program_code, [], root.evaluation, is_seed=True)
                self._state.archive = [self._root] if self._root else []
            case ev.StepStarted(parent_ulids=parents):
                self._parents = list(parents or [])
                self._mutations, self._requests = {}, {}
            case ev.MutationRequested(request_id=key, parent_ulid=parent):
                self._mutations[key] = _Mutation(parent=str(parent))
            case ev.MutationCompleted(request_id=key, code=code):
                self._mutations[key].code = code
                self._seen.add(str(code))
            case ev.MutationFailed(request_id=key):
                self._mutations[key].failed = True
            case ev.ForecastCompleted(request_id=key, forecast=forecast):
                self._mutations[key].forecast = msgspec.convert(forecast, Forecast)
            case ev.ForecastFailed(request_id=key):
                self._mutations[key].failed = True
                self.without_forecast += 1
            case ev.CandidateSelected(request_id=key):
                self._mutations[key].chosen = True
            case ev.CandidateDeferred(request_id=key):
                self._mutations[key].chosen = False
                self._seen.discard(str(self._mutations[key].code))  # another parent may lead to it again
            case ev.EvaluationRequested(request_id=key, code=code, child_ulid=child, parent_ulid=parent):
                self._mutations[str(event.from_mutation_request_id)].requested = True
                self._requests[key] = _Request(child=str(child), parent=str(parent), code=code)
            case ev.EvaluationCompleted(request_id=key, evaluation=logged):
                self._requests[key].result = logged
                self.tally.add(feedback_of(logged))
            case ev.StepCompleted(step=step):
                self._settle()
                self._parents, self._next_step = None, int(step or 0) + 1

    def _settle(self) -> None:
        children: dict[str, list[SearchNode]] = {parent: [] for parent in self._parents or []}
        for request in self._requests.values():
            ancestors = [request.parent, *self._lineage[request.parent]]
            self._lineage[request.child] = ancestors
            node = _node(request.child, request.code, ancestors, request.result)
            if node is not None and not self._is_fault(request.code):
                children[request.parent].append(node)
        self._strategy.settle(self._state, children, self._lineage)

    def _is_fault(self, code: str) -> bool:
        """A deliberate mistake that passed all the same is measured, but no parent."""
        spec = self._specs.get(program_id(code))
        return isinstance(spec, dict) and bool(spec.get("fault"))

    def jobs(self) -> list[Job]:
        """What waits for measurement now; empty exactly when the search has finished.

        Goes on by itself as far as it can: selects parents, asks the provider, writes the requests.
        """
        if not self._started:
            return [Job("root", self._provider.seed().code)]
        while not self.finished:
            if self._parents is None:
                self._start_step()
            self._request_mutations()
            self._complete_mutations()
            self._decide()
            self._request_evaluations()
            waiting = [Job(key, r.code) for key, r in self._requests.items() if r.result is None]
            if waiting:
                return waiting
            self._emit(ev.StepCompleted(step=self._next_step))
        return []

    def _start_step(self) -> None:
        scores = {node.ulid: score for score, node in self._strategy.scores(self._state)}
        parents = [node.ulid for node in self._strategy.select(self._state)]
        self._emit(
            ev.StepStarted(
                step=self._next_step, parent_ulids=parents, selected_parent_scores=[scores[p] for p in parents],
                selected_parent_visits=[self._state.visits.get(p, 0) for p in parents],
            )
        )  # fmt: skip

    def _request_mutations(self) -> None:
        wanted = self._surrogate.plan.proposals if self._surrogate else self._strategy.samples_per_parent
        for parent in self._parents or []:
            have = sum(m.parent == parent for m in self._mutations.values())
            for _ in range(have, wanted):
                self._emit(ev.MutationRequested(request_id=new_ulid(), parent_ulid=parent, started_at=now()))

    def _complete_mutations(self) -> None:
        for position, (key, mutation) in enumerate(self._mutations.items()):
            if mutation.code is not None or mutation.failed:
                continue
            node, proposal, reason = (
                self._state.node(mutation.parent),
                None,
                "parent evicted from archive before recovery",
            )
            if node is not None:
                parent = Parent(node.code, node.speedup, self._specs.get(program_id(node.code)), node.feedback)
                rng = random.Random(f"{self._seed}/{self._next_step}/{position}")  # noqa: S311 - a search, no secret
                proposal, reason = self._provider.propose(parent, rng, self._seen), "no unseen variant found"
            if proposal is None:
                self._emit(ev.MutationFailed(request_id=key, reason=reason, completed_at=now()))
                continue
            self._remember(proposal)
            self._emit(ev.MutationCompleted(request_id=key, code=proposal.code, completed_at=now()))

    def _remember(self, proposal: Proposal) -> None:
        program = program_id(proposal.code)
        if proposal.spec is not None and program not in self._specs:
            self._specs[program] = proposal.spec
            self._spec_log.append(_Spec(program=program, spec=proposal.spec))

    def _decide(self) -> None:
        """Forecast the step's proposals and write which are measured: all that are chosen, then all that are deferred."""
        if self._surrogate is None:
            return
        proposed = {key: m for key, m in self._mutations.items() if m.code is not None and not m.failed}
        unknown = [key for key, m in proposed.items() if m.forecast is None]
        made = self._surrogate.forecast([str(proposed[key].code) for key in unknown])
        for key, forecast in zip(unknown, made, strict=True):
            if forecast is None:
                self._emit(ev.ForecastFailed(request_id=key, reason="the forecaster has none of this program"))
            else:
                self._emit(
                    ev.ForecastCompleted(request_id=key, forecast=msgspec.to_builtins(forecast), completed_at=now())
                )
        cast = {key: m.forecast for key, m in proposed.items() if m.forecast is not None}
        best = max((node.speedup for node in self._state.archive if node.speedup is not None), default=None)
        scores, chosen = self._surrogate.choose(list(cast.values()), best)
        for kind, wanted in ((ev.CandidateSelected, True), (ev.CandidateDeferred, False)):
            for i, key in enumerate(cast):
                if (i in chosen) == wanted and self._mutations[key].chosen is None:
                    self._emit(kind(request_id=key, selection_score=scores[i]))

    def _request_evaluations(self) -> None:
        for key, mutation in self._mutations.items():
            measured = mutation.chosen if self._surrogate else not mutation.failed
            if mutation.code is not None and measured and not mutation.requested:
                self._emit(
                    ev.EvaluationRequested(
                        request_id=new_ulid(), child_ulid=new_ulid(), parent_ulid=mutation.parent, code=mutation.code,
                        from_mutation_request_id=key, started_at=now(),
                    )
                )  # fmt: skip

    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of a job.

        Raises:
            UsageError: the job is not waiting (it was reported before).
        """
        logged = evaluation(measured)
        if isinstance(logged.reward, float):
            logged.reward = self._objective.reward(logged.reward)
        if job.request_id == "root":
            if self._started:
                raise UsageError("the starting program was reported before")
            self._remember(self._provider.seed())
            root = ev.Node(program_code=job.code, ulid=new_ulid(), evaluation=logged, is_seed=True)
            event: ev.SearchInitialized | ev.EvaluationCompleted = ev.SearchInitialized(root=root)
        else:
            request = self._requests.get(job.request_id)
            if request is None or request.result is not None:
                raise UsageError(
                    f"the evaluation {job.request_id} is not waiting: reported before, or of another search"
                )
            event = ev.EvaluationCompleted(request_id=job.request_id, evaluation=logged, completed_at=now())
        program = program_id(job.code)
        self._timing.append({
            "request_id": job.request_id, "program": program, "spec": self._specs.get(program),
            "started_at": started_at, "completed_at": now(), **measured.timing(),
        })  # fmt: skip
        self._emit(event)


def _node(
    ulid: str, code: str, ancestors: list[str], logged: ev.LoggedEvaluation | None, *, is_seed: bool = False
) -> SearchNode | None:
    """An evaluated program as a node; ``None`` when it has no reward."""
    if logged is None or not isinstance(logged.reward, float):
        return None
    feedback = feedback_of(logged)
    return SearchNode(
        ulid=ulid, code=code, ancestors=ancestors, reward=logged.reward, is_seed=is_seed,
        speedup=feedback.aggregated_speedup, feedback=feedback,
    )  # fmt: skip
