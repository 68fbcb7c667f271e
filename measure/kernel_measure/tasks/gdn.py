"""Inputs of the three Gated DeltaNet tasks, each of which goes on from the one before."""

import math
from typing import Any

from kernel_measure.tasks import get_task
from kernel_measure.tasks.base import Case, Data, InputMaker

CHUNK = 64


def _run(task: str, data: Data) -> Data:
    """Apply the reference of a task; the outputs are contiguous."""
    return tuple(t.contiguous() for t in get_task(task).load_reference()(data))


def _chunk_inputs(case: Case, draw: InputMaker) -> Data:
    """``(q, k, v, beta, A, g)``.

    The gate is a cumulative sum inside each chunk of steps that are negative, so exp(g) lies in (0,
    1]. Structured: heads decay at their own pace and values and keys change their magnitude (at
    most to the standard one) with time, head and column.
    """
    b, t, h, k_dim, v_dim = (case[name] for name in ("B", "T", "H", "K", "V"))
    q, k, v = (
        draw.randn(b, t, h, k_dim),
        draw.randn(b, t, h, k_dim) / math.sqrt(k_dim),
        draw.randn(b, t, h, v_dim),
    )
    beta, step = draw.randn(b, t, h).sigmoid(), -draw.randn(b, t, h).abs()
    if draw.variant == "structured":
        step = step * draw.logspace(-2, 0, h)
        time = draw.linspace(0.25, 1.0, t)[None, :, None, None]
        head = draw.linspace(1.0, 0.5, h)[None, None, :, None]
        v = v * time * draw.linspace(0.5, 1.0, v_dim)
        k = k * head * draw.linspace(1.0, 0.5, k_dim)
        q = q * time.flip(1)
        beta = beta * draw.torch.where(draw.arange(t) % 2 == 0, 1.0, 0.5)[None, :, None]
    n = t // CHUNK
    # Cumulated over the sequence, then again inside each chunk: gates fall fast, as in the
    # archive's earlier records.
    g = step.cumsum(1).reshape(b, n, CHUNK, h).cumsum(2).reshape(b, t, h)
    if draw.variant == "structured":
        g = step.reshape(b, n, CHUNK, h).cumsum(2).reshape(b, t, h)

    def chunks(x: Any) -> Any:
        return x.reshape(b, n, CHUNK, h, x.shape[-1]).transpose(2, 3)

    kc, bc, gc = chunks(k), chunks(beta[..., None]), chunks(g[..., None]).squeeze(-1)
    lower = draw.torch.ones(CHUNK, CHUNK, device=draw.device, dtype=draw.torch.bool).tril(-1)
    gates = (gc.unsqueeze(-1) - gc.unsqueeze(-2)).masked_fill(~lower, float("-inf"))
    gram = (kc @ kc.transpose(-1, -2)) * bc * draw.torch.exp(gates)
    eye = draw.torch.eye(CHUNK, device=draw.device)
    inverse = draw.torch.linalg.solve_triangular(eye + gram, eye.expand_as(gram), upper=False)
    a = inverse.transpose(2, 3).reshape(b, t, h, CHUNK).contiguous()
    return q, k.contiguous(), v.contiguous(), beta.contiguous(), a, g.contiguous()


def gdn_recompute_w_u(case: Case, draw: InputMaker) -> Data:
    """WY transform."""
    return _chunk_inputs(case, draw)[1:]


def gdn_chunk_fwd_h(case: Case, draw: InputMaker) -> Data:
    """State recurrence over chunks."""
    _, k, v, beta, a, g = _chunk_inputs(case, draw)
    w, u = _run("gdn_recompute_w_u", (k, v, beta, a, g))
    return k, w, u, g


def gdn_chunk_fwd_o(case: Case, draw: InputMaker) -> Data:
    """Chunk outputs: the carried state's part plus the causal part inside the chunk."""
    q, k, v, beta, a, g = _chunk_inputs(case, draw)
    w, u = _run("gdn_recompute_w_u", (k, v, beta, a, g))
    h, v_new = _run("gdn_chunk_fwd_h", (k, w, u, g))
    return q, k, v_new, h, g
