"""Inputs of tasks about rows: normalising, activating, quantising, sorting them."""

from kernel_measure.tasks.base import Case, Data, InputMaker, Tolerances


def batched_transpose_add(case: Case, draw: InputMaker) -> Data:
    """Transpose of every matrix of a batch, added to another."""
    # Structured: matrices and rows of their own magnitude.
    n, r, c = case["batch"], case["rows"], case["cols"]
    a = draw.randn(n, r, c, dtype=draw.torch.bfloat16)
    b = draw.randn(n, c, r, dtype=draw.torch.bfloat16)
    if draw.variant == "structured":
        a *= (draw.arange(n) % 6 - 3.0).exp2()[:, None, None].bfloat16()
        a[:, ::5] = 0
        b *= draw.linspace(0.1, 3.0, c)[:, None].bfloat16()
    return a, b


def cross_entropy(case: Case, draw: InputMaker) -> Data:
    """Cross entropy with its gradient over a large vocabulary; logits in bfloat16."""
    # Structured: each row has its own slope over the vocabulary, odd and even columns and the two
    # halves differ, and a few columns dominate; no logit leaves [-30, 30], so that a sum of
    # exponentials stays finite in float32. Stress: magnitudes of up to several hundred, where
    # only a sum that is shifted by the row's maximum stays finite.
    rows, v = case.get("rows", 4096), case["vocab_size"]
    logits = draw.randn(rows, v, dtype=draw.torch.bfloat16)
    targets = draw.randint(0, v, (rows,))
    grad_output = draw.randn(rows)
    if draw.variant == "stress":
        logits = (logits.float() * 40 + draw.linspace(-300.0, 300.0, rows)[:, None]).bfloat16()
    if draw.variant == "structured":
        at = draw.arange(v)
        slope = draw.linspace(-3.0, 3.0, rows)[:, None]
        shape = slope * (at / v - 0.5) + 1.5 * (at % 2) + draw.torch.where(at >= v // 2, 0.75, 0.0)
        logits = (logits.float() + shape).bfloat16()
        peaks = draw.randint(0, v, (rows, 3))
        logits.scatter_(1, peaks, draw.torch.full_like(peaks, 14, dtype=draw.torch.bfloat16))
        targets = draw.torch.where(draw.arange(rows) % 3 == 0, peaks[:, 0], targets)
    return logits, targets, grad_output


def cross_entropy_tolerances(data: Data) -> Tolerances:
    """Of the gradient, relative to itself.

    2 % covers the rounding of logits and result to bfloat16 (0.4 % each) and of probabilities in
    half precision.
    """
    logits, _, grad_output = data
    return (1e-2, 1e-3), (2e-2, 1e-3 * grad_output.abs() / logits.shape[1])


def cumulative_sum(case: Case, draw: InputMaker) -> Data:
    """Inclusive prefix sum of every row."""
    # Structured: rows of their own offset, blocks that cancel, a few large values.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        x += draw.linspace(-0.5, 0.5, rows)[:, None]
        x *= draw.torch.where(draw.arange(cols) // 1000 % 2 == 0, 1.0, -0.25)
        x[:, :: max(1, cols // 7)] *= 100
    return (x,)


def cumulative_sum_tolerances(data: Data) -> Tolerances:
    """Scale atol with the root of the summed squares: errors of either sign grow so."""
    (x,) = data
    return ((1e-4, 1e-3 * x.square().sum(dim=-1).sqrt()),)


def fp8_quant(case: Case, draw: InputMaker) -> Data:
    """Group-wise quantisation into the FP8 E4M3 range, results kept in float32."""
    # Structured: every group has its own magnitude over five decades, a few groups are zero, and
    # the largest magnitude of a group stands at another place (also the last) with either sign.
    n, d, size = case["num_tokens"], case["hidden_dim"], case["group_size"]
    x = draw.randn(n, d)
    groups = d // size
    if draw.variant == "structured":
        xg = x.view(n, groups, size)
        decade = draw.randint(-2, 3, (n, groups, 1))
        xg *= draw.torch.pow(10.0, decade.float())
        place = draw.arange(n * groups).view(n, groups, 1) % size
        sign = draw.torch.where(draw.rand(n, groups, 1) < 0.5, -6.0, 6.0)
        xg.scatter_(2, size - 1 - place, sign * draw.torch.pow(10.0, decade.float()))
        xg[draw.rand(n, groups) < 0.02] = 0.0
    return (
        x,
        draw.torch.full_like(x, float("nan")),
        draw.torch.full((n, groups), float("nan"), device=draw.device),
    )


def group_norm_silu(case: Case, draw: InputMaker) -> Data:
    """Group normalisation with SiLU."""
    # Structured: channels of their own offset and magnitude, images of their own contrast.
    b, c, h, w = case["batch"], case["channels"], case["height"], case["width"]
    x = draw.randn(b, c, h, w)
    weight = 1 + 0.2 * draw.randn(c)
    bias = 0.2 * draw.randn(c)
    if draw.variant == "structured":
        x = (
            x * draw.linspace(0.2, 3.0, c)[:, None, None]
            + draw.linspace(-3.0, 3.0, c)[:, None, None]
        )
        x *= (draw.arange(b) % 5 - 2.0).exp2()[:, None, None, None]
    x = x.bfloat16()
    if case["layout"] == "last":
        x = x.to(memory_format=draw.torch.channels_last)
    return x, weight, bias, {"groups": case["groups"]}


def hadamard_rows(case: Case, draw: InputMaker) -> Data:
    """Walsh-Hadamard transform of every row."""
    # Structured: rows over several octaves, sparse rows, constant rows.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        x[::3, : cols // 2] = 0
        x[1::7] = 1
        x *= (draw.arange(rows) % 5 - 3.0).exp2()[:, None]
    return (x.bfloat16(),)


def layernorm_backward(case: Case, draw: InputMaker) -> Data:
    """Gradients of a layer normalisation."""
    # Structured: rows of ``dy`` over nine octaves, columns that carry most of it, rows of zeros.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols) * 2 + 0.5
    dy = draw.randn(rows, cols)
    if draw.variant == "structured":
        scale = (draw.arange(rows) % 9 - 6.0).exp2()
        scale[draw.arange(rows) % 19 == 5] = 0.0
        dy = dy * scale[:, None]
        dy[:, :: max(1, cols // 8)] *= 16
    x, dy = x.bfloat16(), dy.bfloat16()
    weight = 1 + 0.2 * draw.randn(cols)
    wide = x.float()
    rstd = (wide.var(dim=-1, unbiased=False) + 1e-5).rsqrt()
    return x, dy, weight, wide.mean(dim=-1), rstd


def layernorm_backward_tolerances(data: Data) -> Tolerances:
    """Sums over thousands of rows cancel."""
    x, dy, _, mean, rstd = data
    g = dy.float()
    size = (g * ((x.float() - mean[:, None]) * rstd[:, None])).square().sum(dim=0).sqrt()
    return (2e-2, 1e-2), (1e-3, 1e-3 * size), (1e-3, 1e-3 * g.square().sum(dim=0).sqrt())


def quantize_int8_rows(case: Case, draw: InputMaker) -> Data:
    """Rows quantised to 8-bit integers by their largest magnitude."""
    # Structured: rows over twenty octaves, rows of zeros, the largest value at any place.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        at = (draw.arange(rows) * 7919 % cols)[:, None]
        x.scatter_(1, at, -8.0)
        scale = (draw.arange(rows) % 20 - 10.0).exp2()
        scale[draw.arange(rows) % 23 == 7] = 0.0
        x *= scale[:, None]
    return (x.bfloat16(),)


def quantize_int8_rows_tolerances(data: Data) -> Tolerances:
    """A quotient next to a half may round either way."""
    del data
    return (0.0, 1.0), (1e-5, 0.0)


def rehearsal(case: Case, draw: InputMaker) -> Data:
    """``(x f64 [rows, cols],)``.

    Stress: magnitudes at which an exponential overflows unless the row's maximum is taken off
    first.
    """
    import numpy as np

    x = draw.numpy.standard_normal((case["rows"], case["cols"]))
    if draw.variant == "structured":
        x += np.linspace(-3, 3, case["rows"])[:, None] * np.linspace(-0.5, 0.5, case["cols"])
        x[:, ::2] += 1.5
    if draw.variant == "stress":
        x *= 500
    return (x,)


def rmsnorm_residual(case: Case, draw: InputMaker) -> Data:
    """RMS normalisation of a residual sum, both results kept."""
    # Structured: rows of magnitudes over twelve octaves, some of them zero, and a few columns 50
    # times the rest.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    residual = draw.randn(rows, cols)
    weight = 1 + 0.2 * draw.randn(cols)
    if draw.variant == "structured":
        scale = (draw.arange(rows) % 13 - 6.0).exp2()
        scale[draw.arange(rows) % 17 == 3] = 0.0
        x, residual = x * scale[:, None], residual * scale[:, None]
        x[:, :: max(1, cols // 8)] *= 50
    return tuple(t.bfloat16() for t in (x, residual, weight))


def swiglu(case: Case, draw: InputMaker) -> Data:
    """SwiGLU activation."""
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


def topk_rows(case: Case, draw: InputMaker) -> Data:
    """The largest 64 values of every row, in order."""
    # Structured: many equal values, rows that fall or rise, negative rows.
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        slope = draw.linspace(-4.0, 4.0, rows)[:, None] * draw.linspace(-1.0, 1.0, cols)
        x = ((x + slope) * 4).round() / 4
        x[rows // 2 :] -= 100
    return (x,)
