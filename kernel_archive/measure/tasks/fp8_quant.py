"""Group-wise quantisation into the FP8 E4M3 range, results kept in float32."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Group-wise absmax scaling into the FP8 E4M3 range, kept in float32."""
    x, x_q, x_s = data
    rows, cols = x.shape
    groups = x_s.shape[1]
    xg = x.float().reshape(rows, groups, cols // groups)
    top = xg.abs().amax(dim=-1).clamp(min=1e-10)
    scale = top / 448.0
    q = (xg / scale.unsqueeze(-1)).clamp(-448.0, 448.0)
    x_q.copy_(q.reshape(rows, cols))
    x_s.copy_(scale)
    return x_q, x_s
'''


def _case(tokens: int, hidden: int, group: int) -> Case:
    return {"num_tokens": tokens, "hidden_dim": hidden, "group_size": group}


OUTPUTS = ("x_q", "x_s")
CORRECTNESS_CASES = (_case(4, 512, 128), _case(16, 1024, 64))
SMALL_CASE = _case(4, 256, 64)
WRITTEN_INPUTS = (1, 2)


def make_input(case: Case, draw: Draw) -> Data:
    """``(x f32 [tokens, hidden], x_q buffer, x_s buffer [tokens, groups])``; both buffers are filled with NaN.

    Structured: every group has its own magnitude over five decades, a few groups are zero, and the largest magnitude
    of a group stands at another place (also the last) with either sign.
    """
    n, d, size = case["num_tokens"], case["hidden_dim"], case["group_size"]
    x = draw.randn(n, d)
    groups = d // size
    if draw.variant == "structured":
        xg = x.view(n, groups, size)
        decade = draw.randint(-2, 3, (n, groups, 1))
        xg *= draw.torch.pow(10.0, decade.float())
        place = draw.arange(n * groups).view(n, groups, 1) % size
        sign = draw.torch.where(draw.rand(n, groups, 1) < 0.5, -6.0, 6.0)
        xg.scatter_(2, size - 1 - place, sign * draw.torch.pow(10.0, decade.float()))
        xg[draw.rand(n, groups) < 0.02] = 0.0
    return x, draw.torch.full_like(x, float("nan")), draw.torch.full((n, groups), float("nan"), device=draw.device)


def work(case: Case) -> Work:
    """Each value in once and out once, one scale a group."""
    n, d, size = case["num_tokens"], case["hidden_dim"], case["group_size"]
    return Work(bytes_read=n * d * 4, bytes_written=n * d * 4 + n * d // size * 4, flops=3 * n * d)
