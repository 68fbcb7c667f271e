"""Outgoing triangle multiplicative update in float32."""

from __future__ import annotations

import math
from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch
import torch.nn.functional as F


def reference(data):
    """Outgoing triangle multiplicative update in float32.

    x is layer-normalised, projected to gated left and right operands, the two
    are contracted over their shared third node, normalised again, gated and
    projected back to the input width.
    """
    x, mask, p, cfg = data
    dim, hid = cfg["dim"], cfg["hidden_dim"]
    z = F.layer_norm(x, (dim,), p["norm.weight"], p["norm.bias"])
    m = mask[..., None]
    a = F.linear(z, p["left_proj.weight"]) * m
    a = a * torch.sigmoid(F.linear(z, p["left_gate.weight"]))
    b = F.linear(z, p["right_proj.weight"]) * m
    b = b * torch.sigmoid(F.linear(z, p["right_gate.weight"]))
    gate = torch.sigmoid(F.linear(z, p["out_gate.weight"]))
    t = torch.einsum("bikd,bjkd->bijd", a, b)
    t = F.layer_norm(t, (hid,), p["to_out_norm.weight"], p["to_out_norm.bias"])
    return F.linear(t * gate, p["to_out.weight"])
'''


def _case(n: int, b: int, d: int, *, nomask: bool, distribution: str, hidden: int = 128) -> dict[str, Any]:
    return {"seqlen": n, "bs": b, "dim": d, "hiddendim": hidden, "nomask": nomask, "distribution": distribution}


OUTPUTS: Final = ("out",)
CORRECTNESS_CASES: Final = (
    _case(32, 1, 128, nomask=False, distribution="normal"),
    _case(64, 2, 256, nomask=True, distribution="cauchy"),
)
SMALL_CASE: Final = _case(16, 1, 128, nomask=False, distribution="normal")

_WEIGHTS: Final = (
    "norm.weight", "norm.bias", "left_proj.weight", "right_proj.weight", "left_gate.weight", "right_gate.weight",
    "out_gate.weight", "to_out_norm.weight", "to_out_norm.bias", "to_out.weight",
)  # fmt: skip


def _shape(name: str, dim: int, hidden: int) -> tuple[int, ...]:
    if name.startswith("norm."):
        return (dim,)
    if name.startswith("to_out_norm."):
        return (hidden,)
    return (dim, hidden) if name == "to_out.weight" else (hidden, dim)


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x f32 [B,N,N,dim], mask f32 [B,N,N], weights, {"hidden_dim", "dim"})``.

    Structured: every pair of nodes has its own scale (0.25 to 4) and offset, and the mask thins out along both axes.
    """
    import torch

    b, n, d, h = case["bs"], case["seqlen"], case["dim"], case["hiddendim"]
    if case["distribution"] == "cauchy":
        u = torch.rand((b, n, n, d), generator=gen, device=device)
        x = u.sub_(0.5).mul_(math.pi).tan_().mul_(2.0)
    else:
        x = torch.randn((b, n, n, d), generator=gen, device=device)
    mask = torch.ones((b, n, n), device=device)
    if not case["nomask"]:
        mask = torch.randint(0, 2, (b, n, n), generator=gen, device=device).float()
    if variant == "structured":
        node = torch.linspace(-1.0, 1.0, n, device=device)
        scale = torch.pow(2.0, node[:, None] + node[None, :])
        offset = node[:, None] - 0.5 * node[None, :] + 0.5 * (torch.arange(n, device=device) % 2)[None, :]
        x = x * scale[None, :, :, None] + offset[None, :, :, None]
        if not case["nomask"]:
            keep = torch.rand((b, n, n), generator=gen, device=device)
            mask = (keep < 0.9 - 0.3 * torch.linspace(0, 1, n, device=device)[None, :, None]).float()
    weights = {}
    for name in _WEIGHTS:
        w = torch.randn(_shape(name, d, h), generator=gen, device=device)
        if name == "to_out.weight":
            w /= math.sqrt(d)
        elif "norm" not in name:
            w /= math.sqrt(h)
        weights[name] = w
    return x, mask, weights, {"hidden_dim": h, "dim": d}


def work(case: dict[str, Any]) -> Work:
    """One read of x, one write; five projections, contraction, output projection. Intermediates may stay on chip."""
    b, n, d, h = case["bs"], case["seqlen"], case["dim"], case["hiddendim"]
    pairs = b * n * n
    return Work(
        bytes_read=4 * pairs * (d + (0 if case["nomask"] else 1)),
        bytes_written=4 * pairs * d,
        flops=2 * pairs * d * 5 * h + 2 * pairs * n * h + 2 * pairs * h * d,
    )
