"""Sums over consecutive segments of rows."""

from kernel_measure.tasks.base import Bounds, Case, Data, Draw

OUTPUTS = ("sums",)
CORRECTNESS_CASES = ({"rows": 3000, "segments": 77},)
SMALL_CASE = {"rows": 400, "segments": 13}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: one segment holds a third of all rows, every other one is empty.
    rows, segments = case["rows"], case["segments"]
    values = draw.randn(rows, 64)
    weight = draw.rand(segments).clamp(min=1e-4) ** -0.7
    if draw.variant == "structured":
        weight[1::2] = 0
        weight[segments // 2] = weight.sum() / 2
        values *= draw.linspace(0.1, 3.0, 64)
    ends = (weight.double().cumsum(0) / weight.double().sum() * rows).floor().long().clamp(max=rows)
    ends[-1] = rows
    return values, draw.torch.cat(
        (draw.torch.zeros(1, dtype=draw.torch.int64, device=draw.device), ends)
    )


def tolerances(data: Data) -> Bounds:
    """The error of a sum goes with the root of its length."""
    values, offsets = data
    return ((1e-4, 1e-4 * (1 + float(values.abs().max()) * offsets.diff().float().sqrt())),)
