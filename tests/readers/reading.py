"""Reading runs in tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernel_archive.errors import Finding
from kernel_archive.ids import program_id
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.records import Evaluation, PublishedRow, SearchFacts

if TYPE_CHECKING:
    from pathlib import Path

#: The formats of logs; tables of others are read by queries of their own.
LOG_FORMATS = [name for name, spec in READERS.items() if not spec.has_foreign_problems]

#: Format -> a file of the samples that it reads, and the name that the file has in a run.
SAMPLE_FILES = {
    "puct-events": "puct_v3/trimul__sim0101/run_00/events.jsonl",
    "bin-filler": "eval_dataset_builder/fp8_quant__sim0801/HIGH_SPEEDUP/events.jsonl",
    "theory-builder": "puct_v2/trimul__sim0001/run_00/events.jsonl",
    "puct-checkpoint": "puct_v1/trimul__sim0301/checkpoint.json",
    "greedy-checkpoint": "greedy_search/kernelbench_l1__sim0401/checkpoint.json",
    "hill-climbing-checkpoint": "hill_climbing/trimul__sim0201/checkpoint_as_json.json",
    "ttt-rollouts": "ttt_discover_v2/trimul__sim0501/tinker_log/seed_00/rollouts.jsonl",
    "agentic-run": "agentic_gemini_cli/trimul__sim0601/run_01/trajectory.jsonl",
    "eval-set-jsonl": "eval_dataset_builder/fp8_quant__sim0801/eval_dataset.jsonl",
}


@dataclass
class Read:
    """What a reader yielded, sorted by kind."""

    evaluations: list[Evaluation] = field(default_factory=list)
    published: list[PublishedRow] = field(default_factory=list)
    all_facts: list[SearchFacts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def facts(self) -> SearchFacts:
        """The facts of the one search."""
        (facts,) = self.all_facts
        return facts

    @property
    def codes(self) -> list[str]:
        """The codes of the findings."""
        return [f.code for f in self.findings]

    @property
    def successes(self) -> list[Evaluation]:
        """The evaluations that passed."""
        return [e for e in self.evaluations if e.outcome == "success"]

    @property
    def outcomes(self) -> dict[str, int]:
        """Count per outcome."""
        return dict(Counter(e.outcome for e in self.evaluations))

    @property
    def by_node(self) -> dict[str, Evaluation]:
        """Node id -> evaluation; fails when a node stands twice."""
        out = {e.node_id: e for e in self.evaluations}
        assert len(out) == len(self.evaluations)
        return out

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Parent-child pairs in which both ran."""
        passed = {e.node_id for e in self.successes}
        return [(e.parent_node_id, e.node_id) for e in self.successes if e.parent_node_id in passed]

    @property
    def unique(self) -> int:
        """Distinct programs that passed."""
        return len({program_id(e.code) for e in self.successes})


def read(name: str, path: Path, base: Path | None = None, query: str | None = None) -> Read:
    """Read a run with the reader of a format."""
    spec = READERS[name]
    out = Read()
    for record in spec.read(RunFiles(path, base or path.parent, spec, query)):
        if isinstance(record, Evaluation):
            out.evaluations.append(record)
        elif isinstance(record, SearchFacts):
            out.all_facts.append(record)
        elif isinstance(record, PublishedRow):
            out.published.append(record)
        else:
            assert isinstance(record, Finding)
            out.findings.append(record)
    return out
