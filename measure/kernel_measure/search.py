"""A search as a fold over its own log: ``events.jsonl`` (``puct-events``, v2) is the only state.

Every decision is written before it takes effect, and the state is made from the written events
alone, live and on resume. So a killed search goes on where its log ends: a request that has no
answer keeps its id and is answered once; a proposal that was not evaluated is requested once;
nothing is requested or answered twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kernel_archive.readers import events as ev
from kernel_measure.logs import new_ulid, now
from kernel_measure.questions import FileProvider
from kernel_measure.runs import Job, RunLog, feedback_of
from kernel_measure.strategies import Puct, SearchNode, State
from kernel_measure.verdict import Measurement, logged_evaluation


class _Mutation(msgspec.Struct):
    """A program that was asked for, in a step: what came, was expected and was measured."""

    parent: str
    code: str | None = None
    failed: bool = False
    expected_speedup: float | None = None
    chosen: bool | None = None
    child: str = ""  # its node, once it was sent to be measured
    result: ev.LoggedEvaluation | None = None


class Search(RunLog):
    """The log of a search, ``events.jsonl``, and the search that goes on from it.

    ``seen`` are programs that need no proposing again, shared between the searches of a task; it
    grows with this one. Programs come from outside the process: while one is missing, ``next_jobs``
    is empty though the search has not finished, and ``n_waiting`` counts the missing ones.

    Raises:
        DataError: the log in the directory is damaged or was made by another search.
    """

    def __init__(
        self,
        directory: Path,
        *,
        strategy: Puct,
        provider: FileProvider,
        steps: int,
        seen: set[str],
    ) -> None:
        self._strategy, self._provider, self._seen = strategy, provider, seen
        self._steps = steps
        self._root_code: str | None = None
        self._state = State()
        self._next_step = 0
        self._parents: list[str] | None = None
        self._mutations: dict[str, _Mutation] = {}
        self._requests: dict[str, _Mutation] = {}
        super().__init__(directory / "events.jsonl", ev.Event)
        if self._root_code not in (None, provider.start):
            self._refuse(1, "a search from another starting program")

    @property
    def finished(self) -> bool:
        """Tell whether the search came to its own end."""
        return self._parents is None and self._next_step >= self._steps

    def _apply(self, event: Any) -> None:
        """Take in an event that was written."""
        match event:
            case ev.SearchInitialized(root=root):
                self._root_code = root.program_code
                self._seen.add(root.program_code)
                self._count(root.evaluation)
                node = _node(root.ulid, root.program_code, [], root.evaluation)
                if node is None:  # a search from a program that fails is at its end
                    self._next_step = self._steps
                else:
                    self._state.archive = [node]
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
                self._mutations[key].expected_speedup = forecast["expected_speedup"]
            case ev.CandidateSelected(request_id=key) | ev.CandidateDeferred(request_id=key):
                self._mutations[key].chosen = isinstance(event, ev.CandidateSelected)
            case ev.EvaluationRequested(request_id=key, from_mutation_request_id=asked):
                self._requests[key] = self._mutations[str(asked)]
                self._requests[key].child = str(event.child_ulid)
            case ev.EvaluationCompleted(request_id=key, evaluation=logged):
                self._requests[key].result = logged
                self._count(logged)
            case ev.StepCompleted(step=step):
                self._settle()
                self._parents, self._next_step = None, int(step or 0) + 1

    def _settle(self) -> None:
        """Give the strategy the children of the step that ends."""
        children: dict[str, list[SearchNode]] = {parent: [] for parent in self._parents or []}
        for candidate in self._requests.values():
            ancestors = [candidate.parent, *self._state.node(candidate.parent).ancestors]
            node = _node(candidate.child, str(candidate.code), ancestors, candidate.result)
            if node is not None:
                children[candidate.parent].append(node)
        self._strategy.settle(self._state, children)

    def next_jobs(self) -> list[Job]:
        """Select parents, ask the provider and write the requests; return what to measure now.

        That is empty when the search has finished, or waits for proposals.
        """
        if self._root_code is None:
            return [Job("root", self._provider.start)]
        while not self.finished:
            if self._parents is None:
                self._start_step()
            self._request_mutations()
            self._complete_mutations()
            self._request_evaluations()
            waiting = [
                Job(key, str(c.code)) for key, c in self._requests.items() if c.result is None
            ]
            if waiting or self.n_waiting:
                return waiting
            self._write_and_apply(ev.StepCompleted(step=self._next_step))
        return []

    def _start_step(self) -> None:
        """Select the parents of the next step, and write them."""
        scores = {node.ulid: score for score, node in self._strategy.scores(self._state)}
        parents = [node.ulid for node in self._strategy.select(self._state)]
        self._write_and_apply(
            ev.StepStarted(
                step=self._next_step,
                parent_ulids=parents,
                selected_parent_scores=[scores[p] for p in parents],
                selected_parent_visits=[self._state.visits.get(p, 0) for p in parents],
            )
        )

    def _request_mutations(self) -> None:
        """Request programs until each parent of the step has its number of them."""
        strategy = self._strategy
        count = max(strategy.samples_per_parent, strategy.proposals_per_parent)
        for parent in self._parents or []:
            have = sum(m.parent == parent for m in self._mutations.values())
            for key in (new_ulid() for _ in range(have, count)):
                self._write_and_apply(
                    ev.MutationRequested(request_id=key, parent_ulid=parent, started_at=now())
                )

    def _complete_mutations(self) -> None:
        """Take the answers that are there, and count in ``n_waiting`` those that are not."""
        self.n_waiting = 0
        for key, mutation in self._mutations.items():
            if mutation.code is not None or mutation.failed:
                continue
            parent = self._state.node(mutation.parent)
            answer = self._provider.propose(key, parent, self._seen)
            if answer is None:
                self.n_waiting += 1
            elif answer.code is None:
                reason = answer.failed or "no program was proposed"
                self._answer(ev.MutationFailed, key, reason=reason)
            else:
                self._answer(ev.MutationCompleted, key, code=answer.code)

    def _answer(self, kind: type[Any], key: str, **more: Any) -> None:
        self._write_and_apply(kind(request_id=key, completed_at=now(), **more))

    def _request_evaluations(self) -> None:
        """Request all proposals of the step, or those of each parent expected to be fastest."""
        proposed = {key: m for key, m in self._mutations.items() if m.code is not None}
        if self._strategy.proposals_per_parent:
            self._choose(proposed)
            proposed = {key: m for key, m in proposed.items() if m.chosen}
        for key, mutation in proposed.items():
            if not mutation.child:
                self._write_and_apply(
                    ev.EvaluationRequested(
                        request_id=new_ulid(),
                        child_ulid=new_ulid(),
                        parent_ulid=mutation.parent,
                        code=str(mutation.code),
                        from_mutation_request_id=key,
                        started_at=now(),
                    )
                )

    def _choose(self, proposed: dict[str, _Mutation]) -> None:
        """Have a forecaster choose, when all proposals of the step are there and forecast.

        ``n_waiting`` counts what is missing until then.
        """
        if self.n_waiting:
            return
        for key, mutation in proposed.items():
            if mutation.expected_speedup is None:
                forecast = self._provider.forecast(key, str(mutation.code))
                if forecast is None:
                    self.n_waiting += 1
                else:
                    self._answer(ev.ForecastCompleted, key, forecast=forecast)
        for parent in [] if self.n_waiting else (self._parents or []):
            keys = [key for key, m in proposed.items() if m.parent == parent]
            keys.sort(key=lambda key: (-(proposed[key].expected_speedup or 0.0), key))
            for place, key in enumerate(keys):
                is_chosen = place < self._strategy.samples_per_parent
                choice = ev.CandidateSelected if is_chosen else ev.CandidateDeferred
                if proposed[key].chosen is None:
                    score = proposed[key].expected_speedup
                    self._write_and_apply(choice(request_id=key, selection_score=score))

    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of a job that waits."""
        logged = logged_evaluation(measured)
        event: ev.SearchInitialized | ev.EvaluationCompleted
        if job.request_id == "root":
            root = ev.Node(program_code=job.code, ulid=new_ulid(), evaluation=logged, is_seed=True)
            event = ev.SearchInitialized(root=root)
        else:
            event = ev.EvaluationCompleted(
                request_id=job.request_id, evaluation=logged, completed_at=now()
            )
        self._write_timing(job, measured, started_at)
        self._write_and_apply(event)


def _node(
    ulid: str, code: str, ancestors: list[str], logged: ev.LoggedEvaluation | None
) -> SearchNode | None:
    """Make a node of an evaluated program; ``None`` when it has no reward."""
    if logged is None or not isinstance(logged.reward, float):
        return None
    return SearchNode(
        ulid=ulid,
        code=code,
        ancestors=ancestors,
        reward=logged.reward,
        is_seed=not ancestors,
        feedback=feedback_of(logged),
    )
