"""Inputs of tasks about sequences, images, grids and particles."""

from kernel_measure.tasks.base import Case, Data, InputMaker, Tolerances


def causal_conv1d_silu(case: Case, draw: InputMaker) -> Data:
    """Causal depthwise convolution of width 4 with SiLU."""
    # Structured: channels of their own magnitude, a jump in the middle of the time.
    b, d, t = case["batch"], case["channels"], case["time"]
    x = draw.randn(b, d, t)
    weight = draw.randn(d, 4) * 0.5
    bias = draw.randn(d)
    if draw.variant == "structured":
        x *= (draw.arange(d) % 7 - 3.0).exp2()[:, None]
        x[..., t // 2 :] += 2
    return x.bfloat16(), weight.bfloat16(), bias.bfloat16()


def heat_steps(case: Case, draw: InputMaker) -> Data:
    """Eight explicit steps of the heat equation."""
    # Structured: a hot corner, stripes, a cold border.
    h, w = case["height"], case["width"]
    x = draw.randn(h, w)
    if draw.variant == "structured":
        x += draw.torch.where(draw.arange(w) // 3 % 2 == 0, 2.0, -2.0)
        x[: h // 4, : w // 4] += 20
        x[0], x[-1], x[:, 0], x[:, -1] = -5.0, -5.0, -5.0, -5.0
    return x, {"steps": case["steps"], "rate": 0.2}


def histogram(case: Case, draw: InputMaker) -> Data:
    """Counts of byte values."""
    # Structured: long runs of one value, values that never occur.
    n = case["n"]
    u = draw.rand(n)
    if case["skew"]:
        u = u**6
    if draw.variant == "structured":
        u = draw.torch.where(draw.arange(n) // 4096 % 3 == 0, 0.3, u * 0.8)
    return ((u * 256).clamp(max=255).to(draw.torch.uint8),)


def max_pool_backward(case: Case, draw: InputMaker) -> Data:
    """Gradient of a 3 x 3 max pooling with stride 2."""
    # Structured: few distinct values, so that windows have ties; channels of their own magnitude.
    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    dy = draw.randn(b, c, h // 2, w // 2)
    if draw.variant == "structured":
        x = (x * 2).round() / 2
        dy *= draw.linspace(0.1, 4.0, c)[:, None, None]
    return x, dy


def nbody_forces(case: Case, draw: InputMaker) -> Data:
    """Softened gravity of many bodies."""
    # Structured: two clusters, one of them heavy, and far bodies.
    n = case["n"]
    position = draw.randn(n, 3)
    mass = (0.5 + draw.rand(n)) / n
    if draw.variant == "structured":
        position[: n // 2] = position[: n // 2] * 0.5 + 2
        mass[: n // 2] *= 2
        position[::97] *= 10
    return position, mass


def segment_sum(case: Case, draw: InputMaker) -> Data:
    """Sums over consecutive segments of rows."""
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


def segment_sum_tolerances(data: Data) -> Tolerances:
    """The error of a sum goes with the root of its length."""
    values, offsets = data
    return ((1e-4, 1e-4 * (1 + float(values.abs().max()) * offsets.diff().float().sqrt())),)


def selective_scan(case: Case, draw: InputMaker) -> Data:
    """Selective state space recurrence."""
    # Structured: channels that forget at once beside ones that hardly do, inputs that fade.
    b, t, d = case["batch"], case["time"], case["channels"]
    u = draw.randn(b, t, d)
    dt = draw.torch.nn.functional.softplus(draw.randn(b, t, d) - 2)
    rates = -draw.arange(1.0, 17.0).repeat(d, 1)
    into, out_of = (draw.randn(b, t, 16) for _ in range(2))
    skip = draw.randn(d)
    if draw.variant == "structured":
        rates *= draw.logspace(-3, 1, d)[:, None]
        u *= draw.linspace(1.0, 0.05, t)[:, None]
    return u.bfloat16(), dt.bfloat16(), rates, (into / 4).bfloat16(), (out_of / 4).bfloat16(), skip
