"""Language of a program, patterns that only lose time, telling words."""

import pytest

from kernel_archive.program_text import artificial_patterns, language_of


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("import triton\n@triton.jit\ndef k(): ...", "triton"),
        ("from triton.experimental import gluon\n@gluon.jit\ndef k(): ...", "gluon"),
        ("load_inline(cuda_sources='__global__ void k() {}')", "cuda"),
        ("import torch", "pytorch"),
        ("import numpy", "other"),
    ],
)
def test_language(code, language):
    """Gluon is a language of its own, also where Triton is imported beside it."""
    assert language_of(code) == language


@pytest.mark.parametrize(
    ("body", "patterns"),
    [
        ("    y = x.double()\n", ["double"]),
        ("    y = x.to(torch.float64)\n", ["double"]),
        ("    time.sleep(1)\n", ["sleep"]),
        ("    y = x.sort(dim=-1).values[..., -1]\n", ["sort"]),
        ("    for i in range(n):\n        s += x[i].item()\n", ["element_loop"]),
        ("    for _ in range(5):\n        y = f(x)\n", ["repeated_work"]),
        ("    probe = (x + 1).mean()\n    return x\n", ["dead_work"]),
        # What honest programs do.
        ("    for _ in range(5):\n        x = f(x)\n", []),
        ("    for _ in range(5):\n        y += f(x)\n", []),
        ("    for _ in range(5):\n        y.add_(x)\n", []),
        ("    for i in range(5):\n        y = f(x, i)\n", []),
        ("    for i in range(0, n, 16):\n        k[grid](x[i:i + 16])\n", []),
        ("    # in double precision this would be sorted\n    return x\n", []),
        ('    """Not x.double()."""\n    return x.mean()\n', []),
        ("    total = x.sum()\n    return total\n", []),
    ],
)
def test_artificial_patterns(body, patterns):
    """Each pattern is found where it is, and not in the loops and words of honest programs."""
    code = f"import torch\n\n\ndef custom_kernel(x, y, n, s):\n{body}    return y\n"
    assert artificial_patterns(code) == patterns


def test_pattern_of_the_reference_is_none():
    """Where the reference itself sorts or computes in 64 bits, a program may."""
    code = "def custom_kernel(x):\n    return x.double().sort(-1).values\n"
    assert artificial_patterns(code) == ["double", "sort"]
    reference = "def reference(x):\n    return torch.topk(x.double(), 4)\n"
    assert artificial_patterns(code, reference) == []
