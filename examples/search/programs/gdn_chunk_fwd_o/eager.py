"""Batched products with PyTorch, heads in slices."""

import torch

HEADS = 0  # knob: 0, 0, 1, 2
JOIN = False  # knob: False, True
FLOAT64 = False  # knob: False, True
C = 64


def block(q, k, v, h, g):
    if FLOAT64:
        q, k, v, h, g = (t.double() for t in (q, k, v, h, g))
    B, T, H, K = q.shape

    def chunks(t):
        return t.reshape(B, T // C, C, H, t.shape[-1]).transpose(2, 3)

    qc, kc, vc, gc = chunks(q), chunks(k), chunks(v), chunks(g[..., None])
    keep = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    scores = (qc @ kc.mT) * torch.exp((gc - gc.mT).masked_fill(~keep, float("-inf")))
    carried = qc * torch.exp(gc)
    if JOIN:
        o = torch.cat([carried, scores], dim=-1) @ torch.cat([h, vc], dim=-2)
    else:
        o = carried @ h + scores @ vc
    return (o * K**-0.5).transpose(2, 3).reshape(v.shape)


def custom_kernel(data):
    q, k, v, h, g = data
    o = torch.empty_like(v)
    step = HEADS or q.shape[2]
    for i in range(0, q.shape[2], step):
        s = slice(i, i + step)
        o[:, :, s] = block(q[:, :, s], k[:, :, s], v[:, :, s], h[:, :, s], g[:, :, s])
    return o
