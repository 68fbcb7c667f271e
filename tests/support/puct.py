"""Hand-made search logs in the event format, with everything about them known by construction."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = "import torch\n\n\ndef reference(data):\n    return data\n"


def node_id(n: int) -> str:
    """A ULID-shaped id."""
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    text = ""
    for _ in range(26):
        text = digits[n & 31] + text
        n >>= 5
    return text


def program(name: str, body: str = "y = x") -> str:
    """A distinct little program."""
    return f"import torch\n\n\ndef {name}(x):\n    {body}\n    return y\n"


def observation(
    outcome: str, speedup: float | None, reference_ns: tuple[float, ...]
) -> dict[str, Any]:
    """An evaluation object; each case has the same speedup."""
    if outcome == "success":
        assert speedup is not None
        cases = [
            {
                "speedup": speedup,
                "runtime_ns": r / speedup,
                "ref_runtime_ns": r,
                "vocab_size": 1000 * (i + 1),
            }
            for i, r in enumerate(reference_ns)
        ]
        feedback = {
            "kind": "success",
            "aggregated_speedup": speedup,
            "aggregation_method": "geomean",
            "per_case_speedups": cases,
        }
        return {"observation": {"feedback": feedback, "per_case_results": []}, "reward": speedup}
    feedback = {
        "compile_failed": {"kind": outcome, "compilation_error": "no"},
        "runtime_error": {
            "kind": outcome,
            "runtime_error_name": "ValueError",
            "runtime_error": "no",
            "traceback": "",
        },
        "incorrect": {"kind": outcome, "error_message": "mismatch"},
        "infrastructure_failure": {"kind": outcome, "reason": "lost"},
    }[outcome]
    return {"observation": {"feedback": feedback, "per_case_results": []}, "reward": None}


@dataclass
class RunLog:
    """One run: ``root`` and ``child`` add evaluations, ``write`` writes the run directory."""

    task: str = "cross_entropy"
    gpu: str = "NVIDIA H200"
    serial: int = 1
    reference: str | None = REFERENCE
    reference_ns: tuple[float, ...] = (1e5, 2e5)
    events: list[dict[str, Any]] = field(default_factory=list)

    def root(self, code: str, speedup: float | None = 1.0, outcome: str = "success") -> str:
        """The search's root; its node id."""
        ulid = node_id(self.serial)
        node = {
            "program_code": code,
            "ancestors": [],
            "evaluation": observation(outcome, speedup, self.reference_ns),
            "ulid": ulid,
            "is_seed": True,
        }
        self.events += [
            {"kind": "search_initialized", "root": node},
            {"kind": "step_started", "step": 0, "parent_ulids": [ulid]},
        ]
        return ulid

    def child(
        self,
        parent: str,
        code: str,
        speedup: float | None = None,
        outcome: str = "success",
        reference_ns: tuple[float, ...] | None = None,
    ) -> str:
        """A child's four events; its node id."""
        self.serial += 3
        mutation, request, ulid = (
            node_id(self.serial),
            node_id(self.serial + 1),
            node_id(self.serial + 2),
        )
        times = [f"2026-01-01T00:{self.serial // 60 % 60:02d}:{self.serial % 60:02d}.000000Z"] * 2
        self.events += [
            {
                "kind": "mutation_requested",
                "request_id": mutation,
                "parent_ulid": parent,
                "started_at": times[0],
            },
            {
                "kind": "mutation_completed",
                "request_id": mutation,
                "code": code,
                "completed_at": times[0],
            },
            {
                "kind": "evaluation_requested",
                "request_id": request,
                "child_ulid": ulid,
                "parent_ulid": parent,
                "code": code,
                "from_mutation_request_id": mutation,
                "started_at": times[0],
            },
            {
                "kind": "evaluation_completed",
                "request_id": request,
                "evaluation": observation(outcome, speedup, reference_ns or self.reference_ns),
                "completed_at": times[1],
            },
        ]
        return ulid

    def write(self, folder: Path) -> Path:
        """``events.jsonl`` and ``run.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [*self.events, {"kind": "step_completed", "step": 0}]
        (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
        facts = {
            "method": "puct",
            "task": self.task,
            "nvidia_smi": {"name": self.gpu},
            "device_properties": {"name": self.gpu},
            "finished": True,
        }
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
