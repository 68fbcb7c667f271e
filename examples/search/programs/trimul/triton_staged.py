"""Projections and gates in one Triton kernel, the contraction as a batched product, norm and output in another kernel."""

import torch
import triton
import triton.language as tl

ROWS = 64  # knob: 32, 64, 128
DEPTH = 32  # knob: 32, 64, 128
WARPS = 4  # knob: 4, 8
LAST_ROWS = 32  # knob: 16, 32, 64, 128
PRECISION = "tf32"  # knob: "ieee", "tf32", "tf32x3"
PRODUCT = "float32"  # knob: "float32", "float16", "bfloat16"


@triton.jit
def project(
    x_ptr,
    mask_ptr,
    norm_w_ptr,
    norm_b_ptr,
    w_ptr,
    a_ptr,
    b_ptr,
    gate_ptr,
    M,
    NN,
    D: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Part 0 and 1 of the second grid axis: the gated operands, channel first; part 2: the output's gate."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    ok = rows < M
    hh = tl.arange(0, H)
    kk = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for d in range(0, D, DEPTH):
        x = tl.load(
            x_ptr + rows[:, None].to(tl.int64) * D + d + kk[None, :], mask=ok[:, None], other=0.0
        )
        total += tl.sum(x, axis=1)
    mean = total / D
    for d in range(0, D, DEPTH):
        x = tl.load(
            x_ptr + rows[:, None].to(tl.int64) * D + d + kk[None, :], mask=ok[:, None], other=0.0
        )
        squares += tl.sum((x - mean[:, None]) * (x - mean[:, None]), axis=1)
    scale = 1.0 / tl.sqrt(squares / D + 1e-5)
    value = tl.zeros((ROWS, H), tl.float32)
    gate = tl.zeros((ROWS, H), tl.float32)
    for d in range(0, D, DEPTH):
        x = tl.load(
            x_ptr + rows[:, None].to(tl.int64) * D + d + kk[None, :], mask=ok[:, None], other=0.0
        )
        z = (x - mean[:, None]) * scale[:, None] * tl.load(norm_w_ptr + d + kk)[None, :]
        z += tl.load(norm_b_ptr + d + kk)[None, :]
        w = tl.load(w_ptr + (part * 2 * H + hh)[None, :] * D + d + kk[:, None])
        value = tl.dot(z, w, value, input_precision=PRECISION)
        if part < 2:
            w = tl.load(w_ptr + (part * 2 * H + H + hh)[None, :] * D + d + kk[:, None])
            gate = tl.dot(z, w, gate, input_precision=PRECISION)
    if part == 2:
        tl.store(
            gate_ptr + rows[:, None].to(tl.int64) * H + hh[None, :],
            tl.sigmoid(value),
            mask=ok[:, None],
        )
    else:
        value = value * tl.sigmoid(gate) * tl.load(mask_ptr + rows, mask=ok, other=0.0)[:, None]
        offs = ((rows // NN)[:, None].to(tl.int64) * H + hh[None, :]) * NN + (rows % NN)[:, None]
        if part == 0:
            tl.store(a_ptr + offs, value.to(a_ptr.dtype.element_ty), mask=ok[:, None])
        else:
            tl.store(b_ptr + offs, value.to(b_ptr.dtype.element_ty), mask=ok[:, None])


@triton.jit
def finish(
    t_ptr,
    gate_ptr,
    norm_w_ptr,
    norm_b_ptr,
    w_ptr,
    o_ptr,
    M,
    NN,
    D: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = rows < M
    hh = tl.arange(0, H)
    offs = ((rows // NN)[:, None].to(tl.int64) * H + hh[None, :]) * NN + (rows % NN)[:, None]
    t = tl.load(t_ptr + offs, mask=ok[:, None], other=0.0).to(tl.float32)
    t = t - (tl.sum(t, axis=1) / H)[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(t * t, axis=1) / H + 1e-5)
    z = t * scale[:, None] * tl.load(norm_w_ptr + hh)[None, :] + tl.load(norm_b_ptr + hh)[None, :]
    z *= tl.load(
        gate_ptr + rows[:, None].to(tl.int64) * H + hh[None, :], mask=ok[:, None], other=0.0
    )
    for d in range(0, D, COLS):
        cols = d + tl.arange(0, COLS)
        out = tl.dot(z, tl.load(w_ptr + cols[None, :] * H + hh[:, None]), input_precision=PRECISION)
        tl.store(o_ptr + rows[:, None].to(tl.int64) * D + cols[None, :], out, mask=ok[:, None])


def custom_kernel(data):
    x, mask, p, config = data
    B, N, _, D = x.shape
    H = config["hidden_dim"]
    M = B * N * N
    names = ("left_proj", "left_gate", "right_proj", "right_gate", "out_gate")
    weights = torch.cat([p[name + ".weight"] for name in names])
    a = torch.empty(B, H, N, N, dtype=getattr(torch, PRODUCT), device=x.device)
    b = torch.empty_like(a)
    gate = torch.empty(B, N, N, H, device=x.device)
    project[(triton.cdiv(M, ROWS), 3)](
        x,
        mask,
        p["norm.weight"],
        p["norm.bias"],
        weights,
        a,
        b,
        gate,
        M,
        N * N,
        D=D,
        H=H,
        ROWS=ROWS,
        DEPTH=DEPTH,
        PRECISION=PRECISION,
        num_warps=WARPS,
    )
    t = a @ b.transpose(-1, -2)
    out = torch.empty_like(x)
    finish[(triton.cdiv(M, LAST_ROWS),)](
        t,
        gate,
        p["to_out_norm.weight"],
        p["to_out_norm.bias"],
        p["to_out.weight"],
        out,
        M,
        N * N,
        D=D,
        H=H,
        ROWS=LAST_ROWS,
        COLS=32,
        PRECISION=PRECISION,
        num_warps=WARPS,
    )
    return out
