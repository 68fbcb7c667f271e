"""Selective state space recurrence."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("y",)
CORRECTNESS_CASES = ({"batch": 2, "time": 40, "channels": 64},)
SMALL_CASE = {"batch": 1, "time": 12, "channels": 16}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: channels that forget at once beside ones that hardly do, inputs that fade.
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
