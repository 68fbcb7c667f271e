"""SwiGLU activation."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"rows": 37, "cols": 2816},)
SMALL_CASE = {"rows": 8, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: rows over eight octaves, either sign dominating by halves.
    rows, cols = case["rows"], case["cols"]
    gate = draw.randn(rows, cols, dtype=draw.torch.bfloat16)
    up = draw.randn(rows, cols, dtype=draw.torch.bfloat16)
    if draw.variant == "structured":
        scale = (draw.arange(rows) % 8 - 4.0).exp2()[:, None]
        half = draw.torch.where(draw.arange(cols) < cols // 2, 3.0, -3.0)
        gate = (gate * scale + half).bfloat16()
        up = (up * scale.flip(0)).bfloat16()
    return gate, up
