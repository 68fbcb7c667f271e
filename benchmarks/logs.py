"""Realistic event logs of any size.

Distinct kernels of 3 to 8 KB, every arm of the outcome, seeded.

The numbers in them are made up. They are for timing the build and for tests of its limits, never
data.

    python benchmarks/logs.py OUT [--kernels 12388] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

TASKS: dict[str, list[dict]] = {
    "trimul": [
        {
            "seqlen": n,
            "bs": b,
            "dim": 128,
            "hiddendim": 128,
            "nomask": True,
            "distribution": "normal",
        }
        for n, b in ((256, 2), (768, 1), (256, 2), (512, 1), (1024, 1), (768, 1), (1024, 1))
    ],
    "cross_entropy": [{"vocab_size": v} for v in (32000, 50264, 128256)],
    "fp8_quant": [
        {"num_tokens": n, "hidden_dim": h, "group_size": 128}
        for n, h in ((256, 4096), (256, 8192), (4096, 7168))
    ],
    "gdn_chunk_fwd_h": [
        {"B": b, "T": t, "H": h, "K": 64, "V": 64}
        for b, t, h in ((1, 64, 1), (2, 512, 3), (2, 1024, 3))
    ],
    "gdn_chunk_fwd_o": [
        {"B": b, "T": t, "H": h, "K": 64, "V": 64}
        for b, t, h in ((1, 64, 1), (2, 512, 3), (2, 1024, 3))
    ],
    "gdn_recompute_w_u": [
        {"B": b, "T": t, "H": h, "K": 64, "V": 64}
        for b, t, h in ((1, 64, 1), (2, 512, 3), (2, 1024, 3))
    ],
}
#: Share of evaluations that end so.
ARMS = (
    ("success", 0.66),
    ("compile_failed", 0.12),
    ("incorrect", 0.1),
    ("runtime_error", 0.1),
    ("infrastructure_failure", 0.02),
)
KERNELS_PER_RUN = 200
LINES = (
    (
        "    {a} = tl.load({b}_ptr + offs_m[:, None] * stride_{c} + offs_k[None, :] * {n}, "
        "mask=mask_{d}, other=0.0)"
    ),
    (
        '    acc_{a} += tl.dot({b}.to(tl.float16), {c}, input_precision="tf32")  # keep {d} in '
        "registers"
    ),
    "    offs_{a} = pid_{b} * BLOCK_{n} + tl.arange(0, {n})",
    "    {a} = tl.exp({b} - tl.max({c}, axis=1)[:, None]) * {n}.0",
    "    tl.store({a}_ptr + offs_{b} * stride_{c}, {d}.to(tl.bfloat16), mask=offs_{b} < {n})",
    "    for k_{a} in range(0, tl.cdiv(K, BLOCK_{n})):",
    "        {a}_ptrs += BLOCK_{n} * stride_{b}",
    "    # {a}: walk the {b} dimension in tiles of {n} so that {c} stays resident",
    "    {a} = tl.where(mask_{b}, {c} / (1.0 + tl.exp(-{d})), 0.0)",
)
HEAD = (
    "import torch\nimport triton\nimport triton.language as tl\n\n\n@triton.jit\ndef "
    "kernel_{0}(x_ptr, y_ptr, M, N, K):\n"
)
TAIL = (
    "\n\ndef custom_kernel(data):\n    x, y = data\n    kernel_{0}[(triton.cdiv(x.shape[0], "
    "64),)](x, y, *x.shape, num_warps=4)\n    return y\n"
)
NAMES = (
    "left",
    "right",
    "gate",
    "norm",
    "row",
    "col",
    "head",
    "state",
    "decay",
    "beta",
    "mean",
    "rstd",
    "scale",
    "tile",
)


def ulid(n: int) -> str:
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    out = ""
    for _ in range(26):
        out = digits[n & 31] + out
        n >>= 5
    return out


def program(rng: random.Random, serial: int) -> str:
    size = rng.randint(3000, 8000)
    lines, length = [], 0
    while length < size:
        line = rng.choice(LINES).format(
            a=rng.choice(NAMES),
            b=rng.choice(NAMES),
            c=rng.choice(NAMES),
            d=rng.choice(NAMES),
            n=rng.choice((16, 32, 64, 128, 256)),
        )
        lines.append(line)
        length += len(line) + 1
    return HEAD.format(serial) + "\n".join(lines) + TAIL.format(serial)


def evaluation(rng: random.Random, cases: list[dict], root: bool) -> dict:
    arm = "success" if root else rng.choices([a for a, _ in ARMS], [w for _, w in ARMS])[0]
    results = []
    if arm == "success":
        level = 1.0 if root else 2 ** rng.gauss(0.2, 1.6)
        per_case = []
        for case in cases:
            reference = (
                1e5
                * (1 + rng.random())
                * sum(v for v in case.values() if isinstance(v, int)) ** 0.5
            )
            speedup = level * rng.uniform(0.8, 1.25)
            per_case.append(
                {
                    "speedup": speedup,
                    "runtime_ns": reference / speedup,
                    "ref_runtime_ns": reference,
                    **case,
                }
            )
            results.append(exec_result(True, reference / speedup, reference, "none"))
        mean = 1.0
        for case in per_case:
            mean *= case["speedup"]
        mean **= 1 / len(per_case)
        feedback = {
            "kind": arm,
            "aggregated_speedup": mean,
            "aggregation_method": "geomean",
            "per_case_speedups": per_case,
        }
        return {"observation": {"feedback": feedback, "per_case_results": results}, "reward": mean}
    feedback = {
        "compile_failed": {
            "kind": arm,
            "compilation_error": "CompilationError: at 14:8: " + "unsupported operand " * 20,
        },
        "runtime_error": {
            "kind": arm,
            "runtime_error_name": "RuntimeError",
            "runtime_error": "CUDA error",
            "traceback": "Traceback\n" * 20,
        },
        "incorrect": {
            "kind": arm,
            "error_message": "mismatch found! custom implementation doesn't match reference",
        },
        "infrastructure_failure": {"kind": arm, "reason": "TimeoutError()"},
    }[arm]
    return {
        "observation": {
            "feedback": feedback,
            "per_case_results": [exec_result(False, 0.0, 0.0, arm)],
        },
        "reward": None,
    }


def exec_result(correct: bool, runtime: float, reference: float, kind: str) -> dict:
    return {
        "correct": correct,
        "runtime_ns": runtime,
        "ref_runtime_ns": reference,
        "error_message": "",
        "runtime_error_name": "",
        "runtime_error": "",
        "traceback": "",
        "compilation_error": "",
        "failure_kind": kind,
    }


def write_run(folder: Path, task: str, kernels: int, serial: int, rng: random.Random) -> int:
    """One PUCT v2 run with so many successes; returns the next serial number."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = TASKS[task]
    nodes = [ulid(serial)]
    clock = 1_750_000_000 + serial

    def stamp() -> str:
        nonlocal clock
        clock += 1
        from datetime import UTC, datetime

        return datetime.fromtimestamp(clock, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    done, step = 1, 0
    with (folder / "events.jsonl").open("w") as log:

        def emit(event: dict) -> None:
            log.write(json.dumps(event) + "\n")

        root = {
            "program_code": program(rng, serial),
            "ancestors": [],
            "evaluation": evaluation(rng, cases, True),
            "ulid": nodes[0],
            "is_seed": True,
        }
        emit({"kind": "search_initialized", "root": root})
        while done < kernels:
            parents = rng.sample(nodes, min(2, len(nodes)))
            emit({"kind": "step_started", "step": step, "parent_ulids": parents})
            for parent in parents:
                for _ in range(4):
                    serial += 1
                    request, child, code = (
                        ulid(serial * 3),
                        ulid(serial * 3 + 1),
                        program(rng, serial),
                    )
                    emit(
                        {
                            "kind": "mutation_requested",
                            "request_id": request,
                            "parent_ulid": parent,
                            "started_at": stamp(),
                        }
                    )
                    emit(
                        {
                            "kind": "mutation_completed",
                            "request_id": request,
                            "code": code,
                            "completed_at": stamp(),
                        }
                    )
                    again = ulid(serial * 3 + 2)
                    emit(
                        {
                            "kind": "evaluation_requested",
                            "request_id": again,
                            "child_ulid": child,
                            "parent_ulid": parent,
                            "code": code,
                            "from_mutation_request_id": request,
                            "started_at": stamp(),
                        }
                    )
                    result = evaluation(rng, cases, False)
                    emit(
                        {
                            "kind": "evaluation_completed",
                            "request_id": again,
                            "evaluation": result,
                            "completed_at": stamp(),
                        }
                    )
                    if result["reward"] is not None:
                        nodes.append(child)
                        done += 1
            emit({"kind": "step_completed", "step": step})
            step += 1
    return serial + 1


def generate(out: Path, kernels: int, seed: int = 0) -> Path:
    """Write runs and a recipe for them; returns the recipe."""
    rng = random.Random(seed)
    serial, made, run = 1, 0, 0
    tasks = list(TASKS)
    while made < kernels:
        count = min(KERNELS_PER_RUN, kernels - made)
        task = tasks[run % len(tasks)]
        role = "held_out" if run % 3 else "training"
        serial = write_run(out / "logs" / role / f"{task}__{run:05d}", task, count, serial, rng)
        made += count
        run += 1
    sources = "\n".join(
        f'[[source]]\npath = "logs/{role}/*"\nformat = "puct-events"\nrole = '
        f'"{role}"\ngeneration_method = "tree_search"\n'
        f'gpu = "A100-80GB"\nproblem = "{{name}}"\nreference = "references/{{problem}}.py"\n'
        for role in sorted(folder.name for folder in (out / "logs").iterdir())
    )
    recipe = out / "builder.toml"
    recipe.write_text(
        'name = "generated"\nlicence = "CC0-1.0"\ndescription = "Made-up logs for '
        f'timing."\n\n{sources}'
    )
    (out / "references").mkdir(exist_ok=True)
    for task in tasks:
        (out / "references" / f"{task}.py").write_text(
            f"def reference(data):\n    return data  # {task}\n"
        )
    return recipe


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, default=12388)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(generate(given.out, given.kernels, given.seed))
