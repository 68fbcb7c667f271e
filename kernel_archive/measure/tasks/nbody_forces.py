"""Softened gravity of many bodies."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """a_i = sum_j m_j (x_j - x_i) / (|x_j - x_i|^2 + 0.01)^(3/2), rows in slices so that memory holds the pairs."""
    position, mass = data
    slices = []
    for part in position.split(2048):
        d = position[None, :, :] - part[:, None, :]
        inverse = torch.rsqrt(d.square().sum(-1) + 0.01)
        slices.append((d * (mass * inverse**3)[..., None]).sum(1))
    return torch.cat(slices)
'''
OUTPUTS = ("acceleration",)
CORRECTNESS_CASES = ({"n": 1000},)
SMALL_CASE = {"n": 64}


def make_input(case: Case, draw: Draw) -> Data:
    """``(position f32 [n, 3], mass f32 [n])``. Structured: two clusters, one of them heavy, and far bodies."""
    n = case["n"]
    position = draw.randn(n, 3)
    mass = (0.5 + draw.rand(n)) / n
    if draw.variant == "structured":
        position[: n // 2] = position[: n // 2] * 0.5 + 2
        mass[: n // 2] *= 2
        position[::97] *= 10
    return position, mass


def work(case: Case) -> Work:
    n = case["n"]
    return Work(bytes_read=16 * n, bytes_written=12 * n, flops=18 * n * n)
