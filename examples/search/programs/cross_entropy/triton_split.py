"""Rows split over several Triton programs: partial sums, then the gradient in tiles."""

import torch
import triton
import triton.language as tl

SPLIT = 4  # knob: 1, 2, 4, 8, 16, 32
BLOCK = 1024  # knob: 256, 512, 1024, 2048, 4096
TILE = 2048  # knob: 256, 1024, 2048, 4096, 8192
WARPS = 4  # knob: 1, 2, 4, 8


@triton.jit
def partial_sums(x_ptr, m_ptr, z_ptr, cols, per, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    last = tl.minimum(cols, part * per + per)
    m = -1e30
    z = 0.0
    for c in range(part * per, last, BLOCK):
        offs = c + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + offs, mask=offs < last, other=float("-inf")).to(tl.float32)
        new = tl.maximum(m, tl.max(x, axis=0))
        z = z * tl.exp(m - new) + tl.sum(tl.exp(x - new), axis=0)
        m = new
    tl.store(m_ptr + row * SPLIT + part, m)
    tl.store(z_ptr + row * SPLIT + part, z)


@triton.jit
def gradient(x_ptr, t_ptr, go_ptr, lse_ptr, grad_ptr, cols, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=float("-inf")).to(tl.float32)
    p = tl.exp(x - tl.load(lse_ptr + row))
    p = tl.where(offs == tl.load(t_ptr + row), p - 1.0, p) * tl.load(go_ptr + row)
    tl.store(grad_ptr + row * cols + offs, p.to(tl.bfloat16), mask=offs < cols)


def custom_kernel(data):
    logits, targets, grad_output = data
    rows, cols = logits.shape
    m = torch.empty(rows, SPLIT, dtype=torch.float32, device=logits.device)
    z = torch.empty_like(m)
    grad = torch.empty_like(logits)
    per = triton.cdiv(triton.cdiv(cols, SPLIT), BLOCK) * BLOCK
    partial_sums[(rows, SPLIT)](logits, m, z, cols, per, SPLIT=SPLIT, BLOCK=BLOCK, num_warps=WARPS)
    lse = torch.logsumexp(m + z.log(), dim=1)
    gradient[(rows, triton.cdiv(cols, TILE))](
        logits, targets, grad_output, lse, grad, cols, TILE=TILE, num_warps=WARPS
    )
    return lse - logits.gather(1, targets[:, None]).squeeze(1).float(), grad
