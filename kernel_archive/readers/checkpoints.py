"""``puct-checkpoint``, ``hill-climbing-checkpoint`` and ``greedy-checkpoint``: the saved state of a search, read where there is no log of it.

The first two hold the programs that the search kept to go on from, as nodes with their parents, in JSON or as a Python pickle;
programs that failed are not in them. A greedy search's is one JSON object with every candidate and its result.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.beside import FILES_BESIDE, UPSTREAM_FILES, add_facts, read_upstream
from kernel_archive.readers.events import Feedback, Node
from kernel_archive.readers.pickles import PICKLE_MAGIC, plain_pickle
from kernel_archive.readers.reading import EVALUATION_FAILED, Reading, feedback_of, log_format
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.values import BAD_JSON, any_json, build, natural, object_of, storable, text_of
from kernel_archive.untrusted import has_few_values

if TYPE_CHECKING:
    from pathlib import Path

_JSON, _PICKLE = "checkpoint.json", "checkpoint.pkl"
_ARCHIVE_KEY: Final = '"archive"'
#: Packages of which a checkpoint's own objects are.
_KNOWN_ROOTS: Final = ("gpu_forecasters", "ulid", "datetime", "collections", "copyreg", "builtins", "__main__")


def build_node(kind: type[Any], value: Any, where: str, reading: Reading) -> Any:
    """A struct from one node of a checkpoint; ``None``, reported, where it is none."""
    odd: list[tuple[str, Any]] = []
    try:
        node = build(kind, object_of(value), odd)
    except (ValueError, RecursionError) as error:
        reading.error("bad-node", f"a node without {error}; skipped", field=where)
        return None
    for field, given in odd:
        reading.warning("odd-field", "a value of the wrong type is left out", field=f"{where}.{field}", value=given)
    return node


class _Checkpoint(Reading):
    """The nodes of the last archive of a search.

    Attributes:
        others_key: a checkpoint with this key is of the other format.
        may_be_pickled: whether the format has pickles.
    """

    others_key: ClassVar[str]
    may_be_pickled: ClassVar[bool] = False

    def read(self, path: Path) -> bool:
        """Take in a checkpoint; of a pickle that is of no use, all is said already."""
        data = self.run.whole(path)
        if isinstance(data, Finding):
            self.report.add(data)
            return False
        pickled = self.may_be_pickled and data.startswith(PICKLE_MAGIC)
        value = (_from_pickle if pickled else _from_json)(data, self) if data else None
        if value is None or self.others_key in value:
            return value is None and pickled
        self.take_nodes(value["archive"], value.get("seed_ids"))
        step = natural(value.get("current_step"))
        if step is not None:
            self.count("steps_completed", step)
        self.facts.problem = self.problem()
        return True

    def finish(self) -> None:
        add_facts(self, keeps_failures=False)

    def take_nodes(self, archive: list[Any], seed_ids: Any) -> None:
        """Take in the archive's nodes; parents are the nearest ancestors stated."""
        seeds = {s for s in seed_ids if isinstance(s, str)} if isinstance(seed_ids, list) else set()
        for i, value in enumerate(archive):
            where = f"archive[{i}]"
            node: Node | None = build_node(Node, value, where, self)
            if node is None:
                continue
            if node.evaluation is not None and node.evaluation.observation.kind == "forecast":
                self.count("compound_forecasts")
                continue
            record = self.evaluation(
                feedback_of(node.evaluation),
                field=f"{where}.evaluation",
                node_id=node.ulid,
                code=node.program_code,
                parent_node_id=node.ancestors[0] if node.ancestors else None,
                ancestor_node_ids=tuple(node.ancestors[1:]),
                is_root=node.is_seed or node.ulid in seeds or not node.ancestors,
            )
            self.keep_last(record, "a node stands twice", "duplicate-node", field=where)


def _from_json(data: bytes, reading: Reading) -> dict[str, Any] | None:
    """A checkpoint; of one that a crash cut off, the whole nodes before the cut."""
    try:
        value = any_json(data)
    except BAD_JSON as error:
        nodes = _whole_nodes(data) if has_few_values(data) else []
        message = f"not valid JSON ({printable(str(error), 100)})"
        if not nodes:
            reading.error("bad-json", f"{message}; nothing of it can be used")
            return None
        reading.error("truncated-checkpoint", f"{message}; the {len(nodes)} whole nodes before the damage are kept")
        return {"archive": nodes}
    return value if isinstance(object_of(value).get("archive"), list) else None


def _whole_nodes(data: bytes) -> list[Any]:
    """The nodes at the beginning of a broken archive list."""
    text = data.decode("utf-8", "replace")
    start = text.find("[", text.find(_ARCHIVE_KEY)) if _ARCHIVE_KEY in text else -1
    decoder, at = json.JSONDecoder(), start + 1
    nodes: list[Any] = []
    while start >= 0:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            node, at = decoder.raw_decode(text, at)
            nodes.append(storable(node))
        except (ValueError, RecursionError):
            break
    return nodes


def _from_pickle(data: bytes, reading: Reading) -> dict[str, Any] | None:
    """A pickled checkpoint; ``None``, reported, where it is none."""
    try:
        value, names = plain_pickle(data)
    except ValueError as error:
        reading.error("bad-pickle", f"the pickle can't be read: {printable(str(error))}")
        return None
    foreign = sorted(f"{module}.{name}" for module, name in names if module.split(".")[0] not in _KNOWN_ROOTS)
    if foreign:
        message = "the pickle names objects that a checkpoint has no use for; nothing of it was imported or run"
        reading.warning("pickle-global", message, value=", ".join(foreign[:5]))
    if not isinstance(object_of(value).get("archive"), list):
        reading.error("wrong-format", "a pickle, but not of a hill-climbing checkpoint")
        return None
    return dict(value)


class _PuctV1(_Checkpoint):
    """Max-reward PUCT, v1."""

    others_key = "visited"


class _HillClimbing(_Checkpoint):
    """A hill climb."""

    others_key = "visit_counts"
    may_be_pickled = True


PUCT_V1: Final = log_format(
    _PuctV1,
    name="puct-checkpoint",
    title="Checkpoint of a max-reward PUCT search, v1: the nodes of its archive",
    expects="run directories with checkpoint.json, or the checkpoint files",
    log=(_JSON,),
    beside=FILES_BESIDE,
    version=2,
)
HILL_CLIMBING: Final = log_format(
    _HillClimbing,
    name="hill-climbing-checkpoint",
    title="Checkpoint of a hill climb, JSON or Python pickle (read without executing it): the programs that passed",
    expects="run directories with checkpoint.json or checkpoint.pkl (run.json and timing.jsonl beside), or the files",
    log=(_JSON, _PICKLE),
    beside=FILES_BESIDE,
    version=2,
)


class Scored(msgspec.Struct):
    """A candidate's result."""

    kind: str
    speedup: float | None = None
    reason: str | None = None
    execution_feedback: Feedback | None = None


class Candidate(msgspec.Struct):
    """One candidate; without a result its scoring raised, or never came to an end."""

    ulid: str
    code: str
    parent_ulid: str | None = None
    evaluation: Scored | None = None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


class _Greedy(Reading):
    """The candidates, and what the rounds say of them."""

    _steps: dict[str, int]
    _raised: dict[str, str | None]

    def read(self, path: Path) -> bool:
        value = self.run.json(path)
        if isinstance(value, Finding):
            self.report.add(value)
        candidates = object_of(object_of(value).get("candidates")).get("candidates")
        if not isinstance(candidates, dict):
            return False
        self.take_rounds(object_of(value.get("trace")).get("rounds") or value.get("rounds"))
        for name, candidate in candidates.items():
            self.take_candidate(name, candidate)
        self.facts.problem = self.problem()
        return True

    def finish(self) -> None:
        read_upstream(self)

    def take_rounds(self, rounds: Any) -> None:
        """Take in the step of each candidate, the scorings that raised and the proposals that failed."""
        self._steps, self._raised = {}, {}
        failed = 0
        rounds = rounds if isinstance(rounds, list) else []
        for index, entry in enumerate(rounds):
            for attempt in _dicts(object_of(entry).get("mutation_attempts")):
                failed += attempt.get("kind") == "failure"
                if isinstance(attempt.get("candidate_ulid"), str) and attempt.get("kind") != "failure":
                    self._steps[attempt["candidate_ulid"]] = index
            for attempt in _dicts(object_of(entry).get("scoring_attempts")):
                if attempt.get("kind") == "failure" and isinstance(attempt.get("candidate_ulid"), str):
                    error = object_of(attempt.get("error"))
                    text = text_of(error.get("exception_repr")) or text_of(error.get("message"))
                    self._raised[attempt["candidate_ulid"]] = text
        self.facts.n_mutations_failed = failed
        self.count("steps_completed", len(rounds))

    def take_candidate(self, name: str, value: Any) -> None:
        where = f"candidates.candidates.{name}"
        candidate: Candidate | None = build_node(Candidate, value, where, self)
        if candidate is None:
            return
        identity: dict[str, Any] = {
            "node_id": candidate.ulid,
            "code": candidate.code,
            "parent_node_id": candidate.parent_ulid,
            "step": self._steps.get(candidate.ulid),
            "is_root": candidate.parent_ulid is None,
        }
        record: Evaluation | None = None
        if candidate.evaluation is not None:
            record = self._scored(candidate.evaluation, where, identity)
        elif candidate.ulid in self._raised:
            self.count("evaluation_failed")
            identity |= {"error_type": EVALUATION_FAILED, "error_text": self._raised[candidate.ulid]}
            record = Evaluation(source_file=self.file, outcome="infrastructure_failure", **identity)
        else:
            self.facts.n_pending += 1
        self.keep_last(record, "a candidate stands twice", "duplicate-node", field=where)

    def _scored(self, scored: Scored, where: str, identity: dict[str, Any]) -> Evaluation | None:
        """The harness's verdict, unless the search called the candidate invalid for its time."""
        feedback = scored.execution_feedback
        if feedback is None:
            valid = scored.kind == "valid"
            feedback = Feedback("success" if valid else scored.reason or "", speedup=scored.speedup if valid else None)
        elif feedback.kind == "success" and scored.kind != "valid":
            text = "the search called the timed result invalid"
            identity |= {"outcome": "incorrect", "error_type": scored.reason, "error_text": text}
            return Evaluation(source_file=self.file, **identity)
        return self.evaluation(feedback, field=where, **identity)


GREEDY: Final = log_format(
    _Greedy,
    name="greedy-checkpoint",
    title="Checkpoint of a greedy search: every candidate with its result",
    expects="directories with checkpoint.json, or the checkpoint files",
    log=("checkpoint.json",),
    beside=UPSTREAM_FILES,
    version=2,
)
