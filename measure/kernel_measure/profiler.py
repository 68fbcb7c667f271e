"""What torch's profiler says of the kernels that a program launches on the GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Spilled bytes of a thread, by name and registers of a kernel.
Spills = dict[tuple[str, int], int]


def record_spills() -> Spills:
    """Let Triton say how much each kernel spills from now on: a mapping that fills."""
    spills: Spills = {}
    try:
        from triton.compiler.compiler import CompiledKernel
    except ImportError:
        return spills
    load = CompiledKernel._init_handles  # noqa: SLF001 - Triton has no public place for it

    def load_and_record(kernel: Any) -> Any:
        result = load(kernel)
        spills[(kernel.name, kernel.n_regs)] = kernel.n_spills
        return result

    CompiledKernel._init_handles = load_and_record  # noqa: SLF001
    return spills


def profile_call(
    program: Callable[[Any], Any], data: Any, scratch: Path, spills: Spills
) -> list[dict[str, Any]]:
    """Call a program twice, the second time under the profiler; the kernels of that call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    program(data)  # compiles, and tries configurations where the program tunes itself
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        program(data)
        torch.cuda.synchronize()
    trace = scratch / "trace.json"
    profiled.export_chrome_trace(str(trace))
    return kernel_calls(trace, spills)


def kernel_calls(trace: Path, spills: Spills) -> list[dict[str, Any]]:
    """Read the kernels of a profiler's trace, in order.

    Args:
        trace: file in Chrome's format, as ``torch.profiler`` exports it.
        spills: as ``record_spills`` gives them.
    """
    calls: list[dict[str, Any]] = []
    for event in json.loads(trace.read_bytes())["traceEvents"]:
        if event.get("cat") != "kernel":
            continue
        facts, name = event["args"], event["name"][:300]
        registers = facts["registers per thread"]
        call = dict(zip(("grid_x", "grid_y", "grid_z"), facts["grid"], strict=True))
        calls.append(
            {
                "kind": "kernel",
                "name": name,
                **call,
                "threads": math.prod(facts["block"]),
                "registers": registers,
                "shared_memory": facts["shared memory"],
                "spilled": spills.get((name, registers)),
            }
        )
    return calls
