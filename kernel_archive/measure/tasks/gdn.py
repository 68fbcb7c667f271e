"""What the three Gated DeltaNet tasks share: cases, references and seeded inputs (chunks of 64 steps, float32)."""

import math
from typing import Any

from kernel_archive.measure.tasks.base import Case, Data, Draw, reference_function

CHUNK = 64

REFERENCE_WU = '''import torch


def reference(data):
    """Apply each chunk's WY matrix to the scaled keys and values.

    u = A (beta * v),  w = A (beta * exp(g) * k), chunk by chunk and head by head.
    A [B, T, H, 64] holds one lower triangular 64 x 64 matrix a chunk and head:
    what lies above its diagonal is zero.
    """
    k, v, beta, A, g = data
    B, T, H, K = k.shape
    C = A.shape[-1]
    N = T // C

    def chunks(t):
        return t.reshape(B, N, C, H, t.shape[-1]).transpose(2, 3)

    bc = chunks(beta[..., None])
    gc = chunks(g[..., None])
    Ac = chunks(A)
    u = Ac @ (chunks(v) * bc)
    w = Ac @ (chunks(k) * (bc * torch.exp(gc)))
    w = w.transpose(2, 3).reshape(B, T, H, K)
    u = u.transpose(2, 3).reshape(B, T, H, v.shape[-1])
    return w, u
'''

REFERENCE_H = '''import torch


def reference(data):
    """Carry the K x V state across chunks.

    For every chunk: store the state, correct the values with it, decay it by
    the chunk's total gate and add the gated outer products.
    """
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    C = 64
    N = T // C
    kc = k.reshape(B, N, C, H, K).transpose(2, 3)
    wc = w.reshape(B, N, C, H, K).transpose(2, 3)
    uc = u.reshape(B, N, C, H, V).transpose(2, 3)
    gc = g.reshape(B, N, C, H).transpose(2, 3)
    states = torch.empty(B, N, H, K, V, dtype=k.dtype, device=k.device)
    fixed = torch.empty(B, N, H, C, V, dtype=u.dtype, device=u.device)
    s = torch.zeros(B, H, K, V, dtype=torch.float32, device=k.device)
    for n in range(N):
        states[:, n] = s
        vn = uc[:, n] - wc[:, n] @ s
        fixed[:, n] = vn
        last = gc[:, n, :, -1:]
        vg = vn * torch.exp(last - gc[:, n]).unsqueeze(-1)
        s = s * torch.exp(last).unsqueeze(-1) + kc[:, n].transpose(-1, -2) @ vg
    return states, fixed.transpose(2, 3).reshape(B, T, H, V)
'''

REFERENCE_O = '''import torch


def reference(data):
    """Chunk outputs: the carried state's part plus the causal part inside the chunk."""
    q, k, v, h, g = data
    B, T, H, K = q.shape
    V = v.shape[-1]
    C = 64
    N = T // C
    qc = q.reshape(B, N, C, H, K).transpose(2, 3)
    kc = k.reshape(B, N, C, H, K).transpose(2, 3)
    vc = v.reshape(B, N, C, H, V).transpose(2, 3)
    gc = g.reshape(B, N, C, H).transpose(2, 3)
    carried = (qc @ h) * torch.exp(gc).unsqueeze(-1)
    keep = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    decay = gc.unsqueeze(-1) - gc.unsqueeze(-2)
    decay = torch.exp(decay.masked_fill(~keep, float("-inf")))
    inner = (qc @ kc.transpose(-1, -2) * decay) @ vc
    o = (carried + inner) * K ** -0.5
    return o.transpose(2, 3).reshape(B, T, H, V)
'''


def _case(b: int, t: int, h: int, k: int, v: int) -> Case:
    return {"B": b, "T": t, "H": h, "K": k, "V": v}


CORRECTNESS_CASES = (_case(1, 64, 2, 64, 64), _case(1, 256, 4, 64, 128))
SMALL_CASE = _case(1, 128, 2, 64, 64)


def run(source: str, data: Data) -> Data:
    """One of the references applied; its outputs are contiguous."""
    return tuple(t.contiguous() for t in reference_function(source)(data))


def chunk_inputs(case: Case, draw: Draw) -> Data:
    """``(q, k, v, beta, A, g)``: A inverts I + the strictly lower gated Gram matrix of every chunk.

    The gate is a cumulative sum inside each chunk of steps that are negative, so exp(g) lies in (0, 1]. Structured:
    heads decay at their own pace and values and keys change their magnitude (at most to the standard one) with time,
    head and column.
    """
    b, t, h, k_dim, v_dim = (case[name] for name in ("B", "T", "H", "K", "V"))
    q, k, v = draw.randn(b, t, h, k_dim), draw.randn(b, t, h, k_dim) / math.sqrt(k_dim), draw.randn(b, t, h, v_dim)
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
    # Cumulated over the sequence, then again inside each chunk: gates fall fast, as in the archive's earlier records.
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
