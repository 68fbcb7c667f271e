"""One Triton program carries a slice of the state through all chunks."""

import torch
import triton
import triton.language as tl

COLS = 16  # knob: 16, 32, 64
WARPS = 4  # knob: 1, 2, 4, 8
STAGES = 2  # knob: 1, 2, 3
FADE_KEYS = False  # knob: False, True
PRECISION = "ieee"  # knob: "ieee", "ieee", "tf32x3", "tf32"


@triton.jit
def scan(
    k_ptr,
    w_ptr,
    u_ptr,
    g_ptr,
    s_ptr,
    f_ptr,
    T,
    H,
    NT,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    COLS: tl.constexpr,
    STAGES: tl.constexpr,
    FADE_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    s = tl.zeros((K, COLS), tl.float32)
    for n in tl.range(0, NT, num_stages=STAGES):
        tl.store(s_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + cols[None, :], s)
        row = (b * T + n * C + tl.arange(0, C)) * H + h
        w = tl.load(w_ptr + row[:, None] * K + kk[None, :])
        vn = tl.load(u_ptr + row[:, None] * V + cols[None, :]) - tl.dot(
            w, s, input_precision=PRECISION
        )
        tl.store(f_ptr + row[:, None] * V + cols[None, :], vn)
        last = tl.load(g_ptr + (b * T + n * C + C - 1) * H + h)
        fade = tl.exp(last - tl.load(g_ptr + row))
        kt = tl.load(k_ptr + row[None, :] * K + kk[:, None])
        if FADE_KEYS:
            kt = kt * fade[None, :]
        else:
            vn = vn * fade[:, None]
        s = s * tl.exp(last) + tl.dot(kt, vn, input_precision=PRECISION)


def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    states = torch.empty(B, T // 64, H, K, V, dtype=k.dtype, device=k.device)
    fixed = torch.empty_like(u)
    scan[(V // COLS, B * H)](
        k,
        w,
        u,
        g,
        states,
        fixed,
        T,
        H,
        T // 64,
        K=K,
        V=V,
        C=64,
        COLS=COLS,
        STAGES=STAGES,
        FADE_KEYS=FADE_KEYS,
        PRECISION=PRECISION,
        num_warps=WARPS,
    )
    return states, fixed
