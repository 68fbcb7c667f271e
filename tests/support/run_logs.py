"""Reading runs in tests, and writing small logs of every format with everything in them known."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernel_archive.errors import Finding
from kernel_archive.ids import program_id
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.records import Evaluation, PublishedRow, SearchFacts

if TYPE_CHECKING:
    from pathlib import Path

#: The formats of logs; tables of others are read by queries of their own.
LOG_FORMATS = [name for name, spec in READERS.items() if not spec.foreign]


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


def read(name: str, path: Path, base: Path | None = None, **settings: Any) -> Read:
    """Read a run with the reader of a format."""
    spec = READERS[name]
    out = Read()
    for record in spec.read(RunFiles(path, base or path.parent, spec, settings)):
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


def ulid(n: int) -> str:
    """A ULID-shaped id."""
    return f"01{n:024d}"


def write_lines(path: Path, rows: list[Any]) -> Path:
    """JSON lines; texts and bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        for row in rows:
            data = (
                row
                if isinstance(row, bytes)
                else row.encode()
                if isinstance(row, str)
                else json.dumps(row).encode()
            )
            stream.write(data + b"\n")
    return path


def gpu_mode(
    speedup: float | None = None,
    *,
    kind: str = "success",
    shapes: list[dict[str, Any]] | None = None,
) -> Any:
    """An ``evaluation`` with a GPU-mode observation."""
    arms: dict[str, dict[str, Any]] = {
        "success": {
            "aggregated_speedup": speedup,
            "aggregation_method": "geomean",
            "per_case_speedups": [
                {
                    "speedup": speedup,
                    "runtime_ns": 1e6,
                    "ref_runtime_ns": 1e6 * (speedup or 1.0),
                    **shape,
                }
                for shape in (shapes or [{"vocab_size": 32000}])
            ],
        },
        "compile_failed": {"compilation_error": "no such name"},
        "runtime_error": {
            "runtime_error_name": "ValueError",
            "runtime_error": "bad shape",
            "traceback": "line 1",
        },
        "incorrect": {"error_message": "mismatch"},
        "infrastructure_failure": {"reason": "container lost"},
    }
    return {
        "observation": {"feedback": {"kind": kind, **arms[kind]}, "per_case_results": []},
        "reward": speedup if kind == "success" else None,
    }


def kernelbench(
    speedup: float | None = None, *, kind: str = "success", runtime_ms: float = 2.0
) -> Any:
    """An ``evaluation`` with a KernelBench observation: its ``runtime_us`` holds milliseconds."""
    arms: dict[str, dict[str, Any]] = {
        "success": {
            "runtime_us": runtime_ms,
            "ref_runtime_us": runtime_ms * (speedup or 1.0),
            "speedup": speedup,
        },
        "compile_failed": {
            "compilation_error_name": "CpuCompileError",
            "compilation_error": "nvcc fatal",
        },
        "runtime_error": {
            "runtime_error_name": "RuntimeError",
            "runtime_error": "illegal access",
            "runtime_error_traceback": "line 3",
        },
        "incorrect": {
            "correctness_issue": "Output mismatch",
            "max_difference": ["0.2"],
            "avg_difference": ["0.1"],
        },
        "infrastructure_failure": {"reason": "eval returned None"},
    }
    return {"observation": {"feedback": {"kind": kind, **arms[kind]}}, "reward": speedup}


def forecast(expected: float) -> Any:
    """An ``evaluation`` of a compound search that is a forecast, not a measurement."""
    estimate = {
        "predicted_bin": 8,
        "bin_probabilities": {"8": 1.0},
        "reasoning": "",
        "raw_probability_sum": 1.0,
    }
    return {
        "observation": {"kind": "forecast", "estimate": estimate, "expected_speedup": expected},
        "reward": expected,
    }


def real(inner: Any, reason: str | None = None) -> Any:
    """An ``evaluation`` of a compound search that ran."""
    return {
        "observation": {"kind": "real", "inner": inner["observation"], "deferral_reason": reason},
        "reward": inner["reward"],
    }


class V2:
    """A v2 event log being written; the events are in ``rows``."""

    def __init__(self, evaluation: Any = None, *, code: str = "root = 1\n", root: int = 0) -> None:
        node = {
            "program_code": code,
            "ancestors": [],
            "evaluation": evaluation if evaluation is not None else gpu_mode(1.0),
            "ulid": ulid(root),
            "is_seed": True,
        }
        self.rows: list[Any] = [{"kind": "search_initialized", "root": node}]
        self.clock = 0

    def time(self) -> str:
        """The next second."""
        self.clock += 1
        hours, minutes = self.clock // 3600, self.clock // 60 % 60
        return f"2026-05-01T{hours:02d}:{minutes:02d}:{self.clock % 60:02d}.000000Z"

    def step(self, n: int, parent: int = 0) -> V2:
        """Open a step."""
        self.rows.append({"kind": "step_started", "step": n, "parent_ulids": [ulid(parent)]})
        return self

    def end(self, n: int) -> V2:
        """Close a step."""
        self.rows.append({"kind": "step_completed", "step": n})
        return self

    def ask(self, n: int, parent: int = 0, code: str | None = None) -> V2:
        """A proposal and the request to evaluate it, as node ``n``."""
        text = code if code is not None else f"child = {n}\n"
        mutation, request = f"m{n}", f"r{n}"
        self.rows += [
            {
                "kind": "mutation_requested",
                "request_id": mutation,
                "parent_ulid": ulid(parent),
                "started_at": self.time(),
            },
            {
                "kind": "mutation_completed",
                "request_id": mutation,
                "code": text,
                "completed_at": self.time(),
            },
            {
                "kind": "evaluation_requested",
                "request_id": request,
                "child_ulid": ulid(n),
                "parent_ulid": ulid(parent),
                "code": text,
                "from_mutation_request_id": mutation,
                "started_at": self.time(),
            },
        ]
        return self

    def answer(self, n: int, evaluation: Any) -> V2:
        """The result of node ``n``."""
        self.rows.append(
            {
                "kind": "evaluation_completed",
                "request_id": f"r{n}",
                "evaluation": evaluation,
                "completed_at": self.time(),
            }
        )
        return self

    def fail(self, n: int, reason: str = "timeout after 900.0s") -> V2:
        """The driver gave node ``n`` up."""
        self.rows.append(
            {
                "kind": "evaluation_failed",
                "request_id": f"r{n}",
                "reason": reason,
                "completed_at": self.time(),
            }
        )
        return self

    def child(self, n: int, evaluation: Any, parent: int = 0, code: str | None = None) -> V2:
        """A whole evaluation."""
        return self.ask(n, parent, code).answer(n, evaluation)

    def write(self, folder: Path, name: str = "events.jsonl") -> Path:
        """Write the log; returns the run directory."""
        write_lines(folder / name, self.rows)
        return folder
