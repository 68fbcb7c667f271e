"""Inputs of tasks about matrix products."""

import math

from kernel_measure.tasks.base import Case, Data, InputMaker


def conv2d_3x3(case: Case, draw: InputMaker) -> Data:
    """3 x 3 convolution in bfloat16."""
    # Structured: channels of their own magnitude, bright borders.
    b, c, o, h, w = case["batch"], case["in"], case["out"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    weight = draw.randn(o, c, 3, 3) / (9 * c) ** 0.5
    if draw.variant == "structured":
        x *= draw.linspace(0.1, 2.0, c)[:, None, None]
        x[..., 0, :] *= 3
        x[..., -1] *= 3
        weight *= draw.linspace(0.5, 1.5, 9).reshape(3, 3)
    return x.bfloat16(), weight.bfloat16()


def geglu_linear(case: Case, draw: InputMaker) -> Data:
    """Linear layer with a GEGLU epilogue."""
    # Structured: rows and output columns of their own magnitude.
    m, k, n = case["rows"], case["inner"], case["cols"]
    x = draw.randn(m, k)
    weight = draw.randn(2 * n, k) / k**0.5
    if draw.variant == "structured":
        x *= (draw.arange(m) % 5 - 3.0).exp2()[:, None]
        weight *= draw.linspace(0.25, 1.0, 2 * n)[:, None]
        x[:, : k // 2] *= 0.5
    return x.bfloat16(), weight.bfloat16()


def matmul_bf16(case: Case, draw: InputMaker) -> Data:
    """Matrix product in bfloat16."""
    # Structured: rows of a and columns of b over several octaves, the inner halves unlike.
    m, n, k = case["m"], case["n"], case["k"]
    a = draw.randn(m, k)
    b = draw.randn(k, n) / k**0.5
    if draw.variant == "structured":
        a *= (draw.arange(m) % 4 - 3.0).exp2()[:, None]
        b *= draw.linspace(0.125, 1.0, n)
        b[: k // 2] *= 0.25
    return a.bfloat16(), b.bfloat16()


def matmul_fp8_block(case: Case, draw: InputMaker) -> Data:
    """Matrix product of 8-bit floats with block scales."""
    # Structured: scales over eight octaves.
    m, n, k = case["m"], case["n"], case["k"]
    a = draw.randn(m, k).to(draw.torch.float8_e4m3fn)
    b = draw.randn(n, k).to(draw.torch.float8_e4m3fn)
    a_scale = 0.5 + draw.rand(m, k // 128)
    b_scale = (0.5 + draw.rand(n // 128, k // 128)) / k**0.5
    if draw.variant == "structured":
        a_scale *= (draw.arange(m) % 8 - 6.0).exp2()[:, None]
        b_scale *= draw.linspace(0.1, 1.0, k // 128)
    return a, a_scale, b, b_scale


def trimul(case: Case, draw: InputMaker) -> Data:
    """Outgoing triangle multiplicative update in float32."""
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
    projections = ("left_proj", "right_proj", "left_gate", "right_gate", "out_gate")
    shapes = {
        **dict.fromkeys(("norm.weight", "norm.bias"), (d,)),
        **{f"{name}.weight": (h, d) for name in projections},
        **dict.fromkeys(("to_out_norm.weight", "to_out_norm.bias"), (h,)),
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
