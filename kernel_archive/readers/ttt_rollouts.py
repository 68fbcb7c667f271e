"""``ttt-rollouts``: the answers of a model that is trained on one problem while it searches, with what their programs measured.

A row is one answer (a rollout of test-time training). Its reward is a ratio of microseconds, 0 for any failure, and not a
speedup: it is not read. A rollout whose answer held no program was never run. The trainer logs step 0 throughout; such steps are
no time axis and are left out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kernel_archive.readers.beside import load_object
from kernel_archive.readers.events import Feedback  # noqa: TC001 - msgspec resolves it at run time
from kernel_archive.readers.reading import Reading, log_format
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import natural, not_negative, object_of, step_number, text_of

_EXPERIMENT, _DONE = "../../experiment.json", "DONE"
_NO_PROGRAM: Final = "parse_failure"


class Rollout(msgspec.Struct):
    """One row."""

    candidate_id: str
    outcome: Feedback
    parsed_code: str | None = None
    parent_id: str | None = None
    step: int | None = None
    group_index: int | None = None
    rollout_index: int | None = None
    timestamp_utc: str | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    eval_time_s: float | None = None


class _Rollouts(Reading):
    """A training run."""

    kind = RowKind(Rollout)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._places: set[tuple[int | None, int | None, int | None]] = set()
        self.facts.n_mutations_failed = self.facts.input_tokens = self.facts.output_tokens = 0

    def take(self, line: int, row: Rollout) -> None:
        """Take in one rollout."""
        facts = self.facts
        self.count("rollouts")
        self._places.add((row.step, row.group_index, row.rollout_index))
        sent, answered = natural(row.prompt_tokens), natural(row.response_tokens)
        facts.input_tokens = (facts.input_tokens or 0) + (sent or 0)
        facts.output_tokens = (facts.output_tokens or 0) + (answered or 0)
        if row.outcome.kind == _NO_PROGRAM or row.parsed_code is None:
            facts.n_mutations_failed = (facts.n_mutations_failed or 0) + 1
            return
        record = self.evaluation(
            row.outcome,
            line=line,
            field="outcome.kind",
            node_id=row.candidate_id,
            code=row.parsed_code,
            parent_node_id=row.parent_id,
            step=step_number(row.step),
            completed_at=row.timestamp_utc,
            gpu_seconds=not_negative(row.eval_time_s),
            input_tokens=sent,
            output_tokens=answered,
        )
        if record is not None:
            self.keep_last(record, "the candidate is logged again")

    def finish(self) -> None:
        """Whether the steps are steps, and the facts of the run."""
        facts, n = self.facts, self.facts.counts["rollouts"]
        if len(self._places) < n and len({step for step, _, _ in self._places}) == 1:
            facts.counts["constant_steps"] = n
            for record in self.found.values():
                record.step = None
        facts.problem = self.problem()
        done = self.run.find(_DONE) is not None
        experiment = load_object(self, _EXPERIMENT)
        settings = object_of(object_of(experiment).get("discover"))
        facts.hyperparameters, facts.model = settings or None, text_of(settings.get("model_name"))
        facts.finished = True if done else None if experiment is None else False


TTT_ROLLOUTS: Final = log_format(
    _Rollouts,
    name="ttt-rollouts",
    title="Rollouts of test-time training (ttt_discover v2); their reward is no speedup",
    expects="seed directories with rollouts.jsonl (<run>/tinker_log/seed_NN), or the log files",
    log=("rollouts.jsonl",),
    beside=(_EXPERIMENT, _DONE),
    version=2,
)
