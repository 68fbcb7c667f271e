"""Selective state space recurrence."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,  y_t = C_t h_t + D u_t, for every channel; h starts at zero."""
    u, dt, A, B, C, D = data
    step = dt.float()
    decay = torch.exp(step[..., None] * A)
    drive = (step * u.float())[..., None] * B.float()[:, :, None]
    h = torch.zeros(u.shape[0], u.shape[2], A.shape[1], device=u.device)
    y = torch.empty(u.shape, device=u.device)
    for t in range(u.shape[1]):
        h = decay[:, t] * h + drive[:, t]
        y[:, t] = (h * C[:, t, None].float()).sum(-1)
    return (y + D * u.float()).to(u.dtype)
'''
OUTPUTS = ("y",)
CORRECTNESS_CASES = ({"batch": 2, "time": 40, "channels": 64},)
SMALL_CASE = {"batch": 1, "time": 12, "channels": 16}


def make_input(case: Case, draw: Draw) -> Data:
    """``(u, dt bf16 [batch, time, channels], A f32 [channels, 16], B, C bf16 [batch, time, 16], D f32 [channels])``; dt > 0 > A.

    Structured: channels that forget at once beside ones that hardly do, inputs that fade.
    """
    b, t, d = case["batch"], case["time"], case["channels"]
    u = draw.randn(b, t, d)
    dt = draw.torch.nn.functional.softplus(draw.randn(b, t, d) - 2)
    rates = -draw.arange(1.0, 17.0).repeat(d, 1)
    into, out_of = (draw.randn(b, t, 16) for _ in range(2))
    skip = draw.randn(d)
    if draw.variant == "structured":
        rates *= draw.logspace(-3, 1, d)[:, None]
        u *= draw.linspace(1.0, 0.05, t)[:, None]
    return u.bfloat16(), dt.bfloat16(), rates, (into / 4).bfloat16(), (out_of / 4).bfloat16(), skip


def work(case: Case) -> Work:
    b, t, d = case["batch"], case["time"], case["channels"]
    return Work(bytes_read=4 * b * t * (d + 16), bytes_written=2 * b * t * d, flops=6 * b * t * d * 16)
