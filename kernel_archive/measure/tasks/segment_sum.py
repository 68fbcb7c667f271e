"""Sums over consecutive segments of rows."""

from kernel_archive.measure.tasks.base import Bounds, Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Sum of rows offsets[i] to offsets[i + 1] for every segment i."""
    values, offsets = data
    lengths = offsets.diff()
    segment = torch.repeat_interleave(torch.arange(lengths.numel(), device=values.device), lengths)
    out = torch.zeros(lengths.numel(), values.shape[1], device=values.device, dtype=values.dtype)
    return out.index_add_(0, segment, values)
'''
OUTPUTS = ("sums",)
CORRECTNESS_CASES = ({"rows": 3000, "segments": 77},)
SMALL_CASE = {"rows": 400, "segments": 13}


def make_input(case: Case, draw: Draw) -> Data:
    """``(values f32 [rows, 64], offsets int64 [segments + 1])``; segment lengths follow a power law, some are empty.

    Structured: one segment holds a third of all rows, every other one is empty.
    """
    rows, segments = case["rows"], case["segments"]
    values = draw.randn(rows, 64)
    weight = draw.rand(segments).clamp(min=1e-4) ** -0.7
    if draw.variant == "structured":
        weight[1::2] = 0
        weight[segments // 2] = weight.sum() / 2
        values *= draw.linspace(0.1, 3.0, 64)
    ends = (weight.double().cumsum(0) / weight.double().sum() * rows).floor().long().clamp(max=rows)
    ends[-1] = rows
    return values, draw.torch.cat((draw.torch.zeros(1, dtype=draw.torch.int64, device=draw.device), ends))


def work(case: Case) -> Work:
    rows, segments = case["rows"], case["segments"]
    return Work(bytes_read=256 * rows + 8 * segments, bytes_written=256 * segments, flops=64 * rows)


TOLERANCE_NOTE = "rtol 1e-4 + 1e-4 (1 + largest value of the segment times the root of its length)"


def tolerances(data: Data) -> Bounds:
    """The error of a sum goes with the root of its length."""
    values, offsets = data
    return ((1e-4, 1e-4 * (1 + float(values.abs().max()) * offsets.diff().float().sqrt())),)
