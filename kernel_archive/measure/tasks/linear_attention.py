"""Linear attention with a decay for every head."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """o_t = q_t S_t with S_t = decay S_{t-1} + k_t^T v_t, in chunks of 128 steps and float32."""
    q, k, v, decay = data
    b, h, t, d = q.shape
    chunk = 128
    i = torch.arange(chunk, device=q.device)
    log = torch.log(decay)[:, None]
    inner = torch.exp(log[..., None] * (i[:, None] - i[None, :]).clamp(min=0)) * (i[:, None] >= i[None, :])
    into, out_of = torch.exp(log * (i + 1)), torch.exp(log * (chunk - 1 - i))
    state = torch.zeros(b, h, d, d, device=q.device)
    outputs = []
    for start in range(0, t, chunk):
        qc, kc, vc = (x[:, :, start : start + chunk].float() for x in (q, k, v))
        own = (qc @ kc.transpose(-1, -2) * inner) @ vc
        outputs.append(own + (qc @ state) * into[..., None])
        state = state * torch.exp(log * chunk)[..., None] + (kc * out_of[..., None]).transpose(-1, -2) @ vc
    return torch.cat(outputs, dim=2).to(q.dtype)
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 1, "heads": 3, "time": 256},)
SMALL_CASE = {"batch": 1, "heads": 2, "time": 128}


def make_input(case: Case, draw: Draw) -> Data:
    """``(q, k, v bf16 [batch, heads, time, 64], decay f32 [heads])`` with decay in (0.9, 1).

    Structured: heads from 0.5 to 0.9999, values that grow with time.
    """
    b, h, t = case["batch"], case["heads"], case["time"]
    q, k, v = (draw.randn(b, h, t, 64) / 4 for _ in range(3))
    decay = draw.linspace(0.9, 0.999, h)
    if draw.variant == "structured":
        decay = 1 - draw.logspace(-0.301, -4, h)
        v *= draw.linspace(0.1, 2.0, t)[:, None]
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), decay


def work(case: Case) -> Work:
    b, h, t = case["batch"], case["heads"], case["time"]
    n = b * h * t * 64
    return Work(bytes_read=6 * n, bytes_written=2 * n, flops=4 * n * 64)
