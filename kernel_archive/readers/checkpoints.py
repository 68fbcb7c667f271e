"""``puct-checkpoint`` and ``hill-climbing-checkpoint``: the saved state of a search, read where there is no log of it.

The state holds the programs that the search kept to go on from, as nodes with their parents, in JSON or as a Python pickle. Programs
that failed are not in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.beside import FILES_BESIDE, add_facts
from kernel_archive.readers.events import Node
from kernel_archive.readers.pickles import PICKLE_MAGIC, plain_pickle
from kernel_archive.readers.reading import Reading, feedback_of, log_format
from kernel_archive.readers.values import BAD_JSON, any_json, build, natural, object_of, storable
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
        """The facts of the files beside."""
        add_facts(self.run, self.evaluations(), self.facts, self.report, keeps_failures=False)

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
            if record is not None:
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
