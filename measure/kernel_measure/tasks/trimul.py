"""Outgoing triangle multiplicative update in float32."""

import math

from kernel_measure.tasks.base import Case, Data, Draw


def _case(n: int, b: int, d: int, *, nomask: bool, distribution: str, hidden: int = 128) -> Case:
    return {
        "seqlen": n,
        "bs": b,
        "dim": d,
        "hiddendim": hidden,
        "nomask": nomask,
        "distribution": distribution,
    }


OUTPUTS = ("out",)
CORRECTNESS_CASES = (
    _case(32, 1, 128, nomask=False, distribution="normal"),
    _case(64, 2, 256, nomask=True, distribution="cauchy"),
)
SMALL_CASE = _case(16, 1, 128, nomask=False, distribution="normal")


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: every pair of nodes has its own scale (0.25 to 4) and offset, and the mask thins
    # out along both axes.
    b, n, d, h = case["bs"], case["seqlen"], case["dim"], case["hiddendim"]
    if case["distribution"] == "cauchy":
        u = draw.rand(b, n, n, d)
        x = u.sub_(0.5).mul_(math.pi).tan_().mul_(2.0)
    else:
        x = draw.randn(b, n, n, d)
    mask = draw.torch.ones((b, n, n), device=draw.device)
    if not case["nomask"]:
        mask = draw.randint(0, 2, (b, n, n)).float()
    if draw.variant == "structured":
        node = draw.linspace(-1.0, 1.0, n)
        scale = draw.torch.pow(2.0, node[:, None] + node[None, :])
        offset = node[:, None] - 0.5 * node[None, :] + 0.5 * (draw.arange(n) % 2)[None, :]
        x = x * scale[None, :, :, None] + offset[None, :, :, None]
        if not case["nomask"]:
            keep = draw.rand(b, n, n)
            mask = (keep < 0.9 - 0.3 * draw.linspace(0, 1, n)[None, :, None]).float()
    shapes = {
        "norm.weight": (d,),
        "norm.bias": (d,),
        "left_proj.weight": (h, d),
        "right_proj.weight": (h, d),
        "left_gate.weight": (h, d),
        "right_gate.weight": (h, d),
        "out_gate.weight": (h, d),
        "to_out_norm.weight": (h,),
        "to_out_norm.bias": (h,),
        "to_out.weight": (d, h),
    }
    weights = {}
    for name, shape in shapes.items():
        w = draw.randn(shape)
        if name == "to_out.weight":
            w /= math.sqrt(d)
        elif "norm" not in name:
            w /= math.sqrt(h)
        weights[name] = w
    return x, mask, weights, {"hidden_dim": h, "dim": d}
