"""Search logs made by hand, with everything in them known by construction.

:class:`V2` writes single events, :class:`RunLog` whole runs with the files around them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REFERENCE = "import torch\n\n\ndef reference(data):\n    return data\n"


def ulid(n: int) -> str:
    """A ULID-shaped id."""
    return f"01{n:024d}"


def write_lines(path: Path, rows: list[Any]) -> Path:
    """JSON lines; texts and bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        for row in rows:
            data = row if isinstance(row, str | bytes) else json.dumps(row)
            stream.write((data if isinstance(data, bytes) else data.encode()) + b"\n")
    return path


def gpu_mode(
    speedup: float | None = None,
    *,
    kind: str = "success",
    shapes: list[dict[str, Any]] | None = None,
    reference_ns: tuple[float, ...] = (1e6,),
) -> Any:
    """An ``evaluation`` with a GPU-mode observation; each case has the same speedup."""
    named = shapes or [{"vocab_size": 1000 * (i + 1)} for i in range(len(reference_ns))]
    cases = [
        {"speedup": speedup, "runtime_ns": time / (speedup or 1.0), "ref_runtime_ns": time, **shape}
        for shape, time in zip(named, [*reference_ns, *[1e6] * len(named)], strict=False)
    ]
    arms: dict[str, dict[str, Any]] = {
        "success": {"aggregated_speedup": speedup, "per_case_speedups": cases},
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
    times = {"runtime_us": runtime_ms, "ref_runtime_us": runtime_ms * (speedup or 1.0)}
    arms: dict[str, dict[str, Any]] = {
        "success": {**times, "speedup": speedup},
        "compile_failed": {
            "compilation_error_name": "CpuCompileError",
            "compilation_error": "nvcc fatal",
        },
        "runtime_error": {
            "runtime_error_name": "RuntimeError",
            "runtime_error": "illegal access",
            "runtime_error_traceback": "line 3",
        },
        "incorrect": {"correctness_issue": "Output mismatch", "max_difference": ["0.2"]},
        "infrastructure_failure": {"reason": "eval returned None"},
    }
    return {"observation": {"feedback": {"kind": kind, **arms[kind]}}, "reward": speedup}


def forecast(expected: float) -> Any:
    """An ``evaluation`` of a compound search that is a forecast, not a measurement."""
    estimate = {"predicted_bin": 8, "bin_probabilities": {"8": 1.0}, "reasoning": ""}
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


def initialized(node: str, code: str, evaluation: Any) -> dict[str, Any]:
    """The event with the root."""
    root = {"program_code": code, "ancestors": [], "ulid": node, "is_seed": True}
    return {"kind": "search_initialized", "root": {**root, "evaluation": evaluation}}


def asked(
    child: str, parent: str, code: str, ids: tuple[str, str], times: tuple[str, str, str]
) -> list[dict[str, Any]]:
    """The events of a proposal, and of the request to evaluate it, with the ids of both."""
    mutation, request = ids
    return [
        {"kind": "mutation_requested", "request_id": mutation, "parent_ulid": parent}
        | {"started_at": times[0]},
        {"kind": "mutation_completed", "request_id": mutation, "code": code}
        | {"completed_at": times[1]},
        {"kind": "evaluation_requested", "request_id": request, "child_ulid": child}
        | {"parent_ulid": parent, "code": code, "from_mutation_request_id": mutation}
        | {"started_at": times[2]},
    ]


class V2:
    """A v2 event log being written; the events are in ``rows``."""

    def __init__(self, evaluation: Any = None, *, code: str = "root = 1\n", root: int = 0) -> None:
        result = evaluation if evaluation is not None else gpu_mode(1.0)
        self.rows: list[Any] = [initialized(ulid(root), code, result)]
        self.clock = 0

    def time(self) -> str:
        """The next second."""
        self.clock += 1
        hours, minutes = self.clock // 3600, self.clock // 60 % 60
        return f"2026-05-01T{hours:02d}:{minutes:02d}:{self.clock % 60:02d}.000000Z"

    def step(self, n: int) -> V2:
        """Open a step."""
        self.rows.append({"kind": "step_started", "step": n, "parent_ulids": [ulid(0)]})
        return self

    def end(self, n: int) -> V2:
        """Close a step."""
        self.rows.append({"kind": "step_completed", "step": n})
        return self

    def ask(self, n: int, parent: int = 0, code: str | None = None) -> V2:
        """A proposal and the request to evaluate it, as node ``n``."""
        text = code if code is not None else f"child = {n}\n"
        times = self.time(), self.time(), self.time()
        self.rows += asked(ulid(n), ulid(parent), text, (f"m{n}", f"r{n}"), times)
        return self

    def answer(self, n: int, evaluation: Any) -> V2:
        """The result of node ``n``."""
        row = {"kind": "evaluation_completed", "request_id": f"r{n}", "evaluation": evaluation}
        self.rows.append({**row, "completed_at": self.time()})
        return self

    def fail(self, n: int, reason: str = "timeout after 900.0s") -> V2:
        """The driver gave node ``n`` up."""
        row = {"kind": "evaluation_failed", "request_id": f"r{n}", "reason": reason}
        self.rows.append({**row, "completed_at": self.time()})
        return self

    def child(self, n: int, evaluation: Any, parent: int = 0, code: str | None = None) -> V2:
        """A whole evaluation."""
        return self.ask(n, parent, code).answer(n, evaluation)

    def write(self, folder: Path, name: str = "events.jsonl") -> Path:
        """Write the log; returns the run directory."""
        write_lines(folder / name, self.rows)
        return folder


@dataclass
class RunLog:
    """One run: ``root`` and ``child`` add evaluations, ``write`` writes the run directory."""

    task: str = "cross_entropy"
    gpu: str = "NVIDIA H200"
    serial: int = 1
    reference: str | None = REFERENCE
    reference_ns: tuple[float, ...] = (1e5, 2e5)
    events: list[dict[str, Any]] = field(default_factory=list)

    def root(self, code: str, speedup: float | None = 1.0) -> str:
        """The search's root; its node id."""
        node = ulid(self.serial)
        result = gpu_mode(speedup, reference_ns=self.reference_ns)
        step = {"kind": "step_started", "step": 0, "parent_ulids": [node]}
        self.events += [initialized(node, code, result), step]
        return node

    def child(
        self, parent: str, code: str, speedup: float | None = None, outcome: str = "success"
    ) -> str:
        """A child's four events; its node id."""
        self.serial += 3
        mutation, request, node = (ulid(self.serial + i) for i in range(3))
        time = f"2026-01-01T00:{self.serial // 60 % 60:02d}:{self.serial % 60:02d}.000000Z"
        result = gpu_mode(speedup, kind=outcome, reference_ns=self.reference_ns)
        row = {"kind": "evaluation_completed", "request_id": request, "evaluation": result}
        self.events += asked(node, parent, code, (mutation, request), (time, time, time))
        self.events.append({**row, "completed_at": time})
        return node

    def write(self, folder: Path) -> Path:
        """``events.jsonl`` and ``run.json``."""
        end = {"kind": "step_completed", "step": 0}
        write_lines(folder / "events.jsonl", [*self.events, end])
        smi = {"nvidia_smi": {"name": self.gpu}, "device_properties": {"name": self.gpu}}
        facts = {"method": "puct", "task": self.task, "finished": True, **smi}
        if self.reference is not None:
            facts["reference_source"] = self.reference
        (folder / "run.json").write_text(json.dumps(facts))
        return folder


def recipe(folder: Path, *sources: tuple[str, str], name: str = "made", extra: str = "") -> Path:
    """A ``builder.toml`` with sources (glob, role)."""
    text = (
        f'name = "{name}"\nlicence = "CC0-1.0"\ndescription = "Made for a test."\nnatural = true\n'
    )
    for glob, role in sources:
        text += (
            f'\n[[source]]\npath = "{glob}"\nformat = "puct-events"\nrole = '
            f'"{role}"\ngeneration_method = "tree_search"\n'
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "builder.toml"
    path.write_text(text + extra)
    return path
