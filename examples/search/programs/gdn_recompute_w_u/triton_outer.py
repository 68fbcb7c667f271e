"""Without the matrix unit: rank-one updates over the steps of a chunk."""

import torch
import triton
import triton.language as tl

ROWS = 16  # knob: 4, 8, 16, 32, 64
WARPS = 4  # knob: 1, 2, 4, 8
EVICT = ""  # knob: "", "evict_first"
CAUSAL = True  # knob: True, False


@triton.jit
def outer(
    k_ptr,
    v_ptr,
    beta_ptr,
    a_ptr,
    g_ptr,
    w_ptr,
    u_ptr,
    T,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVICT: tl.constexpr,
):
    start = (tl.program_id(1) // H) * T + tl.program_id(0) * C
    h = tl.program_id(1) % H
    part = tl.program_id(2)
    row = (start + part * ROWS + tl.arange(0, ROWS)) * H + h
    kc = tl.arange(0, K)
    vc = tl.arange(0, V)
    w = tl.zeros((ROWS, K), tl.float32)
    u = tl.zeros((ROWS, V), tl.float32)
    end = part * ROWS + ROWS if CAUSAL else C
    for j in range(end):
        source = (start + j) * H + h
        a = tl.load(a_ptr + row * C + j, eviction_policy=EVICT) * tl.load(beta_ptr + source)
        u += a[:, None] * tl.load(v_ptr + source * V + vc)[None, :]
        a = a * tl.exp(tl.load(g_ptr + source))
        w += a[:, None] * tl.load(k_ptr + source * K + kc)[None, :]
    tl.store(w_ptr + row[:, None] * K + kc[None, :], w)
    tl.store(u_ptr + row[:, None] * V + vc[None, :], u)


def custom_kernel(data):
    k, v, beta, A, g = data
    B, T, H, K = k.shape
    C, V = A.shape[-1], v.shape[-1]
    w, u = torch.empty_like(k), torch.empty_like(v)
    outer[(T // C, B * H, C // ROWS)](
        k,
        v,
        beta,
        A,
        g,
        w,
        u,
        T,
        H,
        K=K,
        V=V,
        C=C,
        ROWS=ROWS,
        CAUSAL=CAUSAL,
        EVICT=EVICT,
        num_warps=WARPS,
    )
    return w, u
