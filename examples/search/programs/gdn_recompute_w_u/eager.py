"""Batched products with PyTorch, heads in slices."""

import torch

HEADS = 0  # knob: 0, 0, 1, 2
FOLD = False  # knob: False, True
FLOAT64 = False  # knob: False, True


def block(k, v, beta, A, g):
    if FLOAT64:
        k, v, beta, A, g = (t.double() for t in (k, v, beta, A, g))
    B, T, H, _ = k.shape
    C = A.shape[-1]

    def chunks(t):
        return t.reshape(B, T // C, C, H, t.shape[-1]).transpose(2, 3)

    Ac, b, e = chunks(A), chunks(beta[..., None]), torch.exp(chunks(g[..., None]))
    if FOLD:
        Ac = Ac * b.transpose(-1, -2)
        w, u = (Ac * e.transpose(-1, -2)) @ chunks(k), Ac @ chunks(v)
    else:
        w, u = Ac @ (chunks(k) * (b * e)), Ac @ (chunks(v) * b)
    return w.transpose(2, 3).reshape(k.shape), u.transpose(2, 3).reshape(v.shape)


def custom_kernel(data):
    k, v, beta, A, g = data
    w, u = torch.empty_like(k), torch.empty_like(v)
    step = HEADS or k.shape[2]
    for h in range(0, k.shape[2], step):
        s = slice(h, h + step)
        w[:, :, s], u[:, :, s] = block(
            k[:, :, s], v[:, :, s], beta[:, :, s], A[:, :, s], g[:, :, s]
        )
    return w, u
