"""Tests of reading what torch's profiler says; running it needs a GPU."""

from __future__ import annotations

import json

from kernel_measure.dry_run import launch_lines
from kernel_measure.profiler import kernel_calls
from kernel_measure.worker import calls_by_case


def _event(name, grid, block, registers, shared):
    sizes = {"grid": grid, "block": block}
    uses = {"registers per thread": registers, "shared memory": shared}
    return {"cat": "kernel", "name": name, "args": {**sizes, **uses}}


def test_kernels_of_a_trace_equal_ones_counted(tmp_path):
    """Copies and host events are no kernels; what spills is looked up by name and registers."""
    trace = tmp_path / "trace.json"
    twice = _event("tile", [7, 2, 1], [32, 4, 1], 255, 16384)
    other = _event("tile", [7, 2, 1], [32, 4, 1], 64, 0)
    copy = {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "args": {"bytes": 4}}
    trace.write_text(json.dumps({"traceEvents": [twice, copy, other, twice, {"ph": "M"}]}))
    answer = calls_by_case(iter([kernel_calls(trace, {("tile", 255): 12}), []]))
    shape = {"kind": "kernel", "name": "tile", "grid_x": 7, "grid_y": 2, "grid_z": 1}
    assert answer["cases"][0] == [
        {**shape, "threads": 128, "registers": 255, "shared_memory": 16384, "spilled": 12, "n": 2},
        {**shape, "threads": 128, "registers": 64, "shared_memory": 0, "spilled": None, "n": 1},
    ]
    lines = launch_lines({"program_id": "0" * 32, "problem": "trimul"}, answer)
    assert [(line.kind, line.n, line.spilled) for line in lines] == [
        ("kernel", 2, 12),
        ("kernel", 1, None),
    ]
