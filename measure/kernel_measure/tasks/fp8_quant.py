"""Group-wise quantisation into the FP8 E4M3 range, results kept in float32."""

from kernel_measure.tasks.base import Case, Data, Draw


def _case(tokens: int, hidden: int, group: int) -> Case:
    return {"num_tokens": tokens, "hidden_dim": hidden, "group_size": group}


OUTPUTS = ("x_q", "x_s")
CORRECTNESS_CASES = (_case(4, 512, 128), _case(16, 1024, 64))
SMALL_CASE = _case(4, 256, 64)
WRITTEN_INPUTS = (1, 2)


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: every group has its own magnitude over five decades, a few groups are zero, and
    # the largest magnitude of a group stands at another place (also the last) with either sign.
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
    return (
        x,
        draw.torch.full_like(x, float("nan")),
        draw.torch.full((n, groups), float("nan"), device=draw.device),
    )
