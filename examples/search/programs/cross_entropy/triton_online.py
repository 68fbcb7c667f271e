"""One Triton program for a row: maximum and sum in one pass, the gradient in a second."""

import torch
import triton
import triton.language as tl

BLOCK = 2048  # knob: 256, 512, 1024, 2048, 4096, 8192
WARPS = 8  # knob: 1, 2, 4, 8, 16, 32
STAGES = 2  # knob: 1, 2, 3, 4
BY_LANE = False  # knob: False, True


@triton.jit
def cross_entropy(
    x_ptr,
    t_ptr,
    go_ptr,
    loss_ptr,
    grad_ptr,
    cols,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    BY_LANE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    grad_ptr += row * cols
    lane = tl.arange(0, BLOCK)
    m = tl.full((BLOCK,), -1e30, tl.float32)
    z = tl.zeros((BLOCK,), tl.float32)
    for c in tl.range(0, cols, BLOCK, num_stages=STAGES):
        x = tl.load(x_ptr + c + lane, mask=c + lane < cols, other=float("-inf")).to(tl.float32)
        if BY_LANE:
            new = tl.maximum(m, x)
        else:
            new = tl.maximum(m, tl.max(x, axis=0))
        z = z * tl.exp(m - new) + tl.exp(x - new)
        m = new
    top = tl.max(m, axis=0)
    lse = top + tl.log(tl.sum(z * tl.exp(m - top), axis=0))
    target = tl.load(t_ptr + row)
    go = tl.load(go_ptr + row)
    tl.store(loss_ptr + row, lse - tl.load(x_ptr + target).to(tl.float32))
    for c in tl.range(0, cols, BLOCK, num_stages=STAGES):
        offs = c + lane
        x = tl.load(x_ptr + offs, mask=offs < cols, other=float("-inf")).to(tl.float32)
        p = tl.exp(x - lse)
        p = tl.where(offs == target, p - 1.0, p) * go
        tl.store(grad_ptr + offs, p.to(tl.bfloat16), mask=offs < cols)


def custom_kernel(data):
    logits, targets, grad_output = data
    rows, cols = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    cross_entropy[(rows,)](
        logits,
        targets,
        grad_output,
        losses,
        grad,
        cols,
        BLOCK=BLOCK,
        STAGES=STAGES,
        BY_LANE=BY_LANE,
        num_warps=WARPS,
    )
    return losses, grad
