"""Inputs of tasks about attention."""

from kernel_measure.tasks.base import Case, Data, InputMaker


def causal_attention(case: Case, draw: InputMaker) -> Data:
    """Causal attention, forward."""
    # Structured: heads of their own sharpness, values that grow with time.
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (draw.randn(b, h, t, d) for _ in range(3))
    if draw.variant == "structured":
        q *= draw.linspace(0.25, 3.0, h)[:, None, None]
        v *= draw.linspace(0.25, 2.0, t)[:, None]
        k[..., : d // 2] *= 0.5
    return tuple(x.bfloat16() for x in (q, k, v))


def linear_attention(case: Case, draw: InputMaker) -> Data:
    """Linear attention with a decay for every head."""
    # Structured: heads from 0.5 to 0.9999, values that grow with time.
    b, h, t = case["batch"], case["heads"], case["time"]
    q, k, v = (draw.randn(b, h, t, 64) / 4 for _ in range(3))
    decay = draw.linspace(0.9, 0.999, h)
    if draw.variant == "structured":
        decay = 1 - draw.logspace(-0.301, -4, h)
        v *= draw.linspace(0.1, 2.0, t)[:, None]
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), decay


def masked_softmax(case: Case, draw: InputMaker) -> Data:
    """Softmax over keys up to each batch entry's length."""
    # Structured: lengths of zero, one and all, and one key in every row far above the rest.
    b, h, q, k = case["batch"], case["heads"], case["queries"], case["keys"]
    scores = draw.randn(b, h, q, k) * 2
    lengths = draw.randint(k // 4, k + 1, (b,)).int()
    if draw.variant == "structured":
        lengths = draw.torch.where(draw.arange(b) % 3 == 0, lengths, lengths * 0 + k).int()
        lengths[0], lengths[-1] = 0, 1
        at = draw.randint(0, k, (b, h, q, 1))
        scores.scatter_(-1, at, 40.0)
        scores *= draw.linspace(0.1, 2.0, q)[:, None]
    return scores, lengths


def paged_decode_attention(case: Case, draw: InputMaker) -> Data:
    """Attention of one new query per sequence over a paged cache."""
    # Structured: lengths of 1, of a page, of a page and one, and of the most; one loud key in
    # every sequence.
    names = ("batch", "max_context", "heads", "kv_heads", "dim")
    b, most, h, kv, d = (case[name] for name in names)
    each = most // 16
    q = draw.randn(b, h, d)
    shape = (b * each, 16, kv, d)
    k = draw.randn(shape, dtype=draw.torch.bfloat16)
    v = draw.randn(shape, dtype=draw.torch.bfloat16)
    table = draw.rand(b * each).argsort().reshape(b, each).int()
    lengths = draw.randint(most // 8, most + 1, (b,)).int()
    if draw.variant == "structured":
        special = draw.torch.tensor([1, 16, 17, most], dtype=draw.torch.int32, device=draw.device)
        lengths[: min(4, b)] = special[: min(4, b)]
        k[:, 0] *= 3
        q *= draw.linspace(0.25, 2.0, h)[:, None]
    return q.bfloat16(), k, v, table, lengths


def rope_qk(case: Case, draw: InputMaker) -> Data:
    """Rotary embedding of queries and keys."""
    # Structured: positions that begin at 100,000, heads of their own magnitude.
    b, t, h, kv, d = case["batch"], case["time"], case["heads"], case["kv_heads"], case["dim"]
    q = draw.randn(b, t, h, d)
    k = draw.randn(b, t, kv, d)
    first = 0.0
    if draw.variant == "structured":
        first = 100_000.0
        q *= draw.linspace(0.1, 4.0, h)[:, None]
        k *= draw.linspace(4.0, 0.1, d)
    inverse = 10_000.0 ** (-draw.arange(0, d, 2) / d)
    angle = (draw.arange(t) + first)[:, None] * inverse
    return q.bfloat16(), k.bfloat16(), angle.cos(), angle.sin(), {"layout": case["layout"]}


def sliding_window_attention(case: Case, draw: InputMaker) -> Data:
    """Causal attention over a window and a few first keys."""
    # Structured: heads of their own sharpness, loud first keys.
    b, h, t, d = case["batch"], case["heads"], case["time"], case["dim"]
    q, k, v = (draw.randn(b, h, t, d) for _ in range(3))
    if draw.variant == "structured":
        q *= draw.linspace(0.25, 3.0, h)[:, None, None]
        k[:, :, : case["sinks"]] *= 2
        v *= draw.linspace(0.25, 2.0, t)[:, None]
    cfg = {"window": case["window"], "sinks": case["sinks"]}
    return *(x.bfloat16() for x in (q, k, v)), cfg
