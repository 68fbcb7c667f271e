"""What one block of a kernel does, read off its syntax tree."""

import pytest

from kernel_archive.baselines.blocks import MAX_STEPS, BlockWork, kernel_work

LOOP = """
@triton.jit
def helper(p):
    return tl.load(p)

@triton.jit
def k(x, y, n, STRIDE: tl.constexpr, B: tl.constexpr):
    r = tl.arange(0, 16)[:, None] * STRIDE + tl.arange(0, B)[None, :]
    for i in range(0, 8, 2):
        a = helper(x + r + i)
        tl.atomic_add(y + i, tl.sum(tl.exp(a)))
    for i in range(n):
        tl.load(x)
    tl.dot(a, a)

k[(4,)](x, y, n, 99, B=32, num_warps=1)
"""


def test_a_kernel_by_hand():
    """Four trips over 16 rows of 32 neighbours, a helper followed, and a loop of unknown trips."""
    works = kernel_work(LOOP)["k"]
    trips = (1, 4, 16, 64, 256)
    assert [w.elements for w in works] == [4 * 512 + 4 + n for n in trips]
    assert [w.sectors for w in works] == [4 * 16 * 128 + 32 * 4 + 32 * n for n in trips]
    assert [w.waits for w in works] == [4 + 4 + n + 0.5 for n in trips]
    assert [w.scalars for w in works] == [4 + n for n in trips]
    first = works[0]
    assert first.atomics == 4
    assert first.transcendentals == 4 * 512
    assert first.reduced == 4 * 512
    assert first.flops == pytest.approx(2 * (512 * 512) ** 0.75)


HOSTILE = {
    "nested": "@triton.jit\ndef k(x):\n    y = " + "(" * 5000 + "x" + ")" * 5000,
    "minus": "@triton.jit\ndef k(x):\n    y = " + "-" * 50_000 + "x",
    "sum": "@triton.jit\ndef k(x):\n    y = " + "x + " * 40_000 + "x",
    "digits": "@triton.jit\ndef k(x):\n    y = " + "9" * 100_000,
    "null": "@triton.jit\ndef k(x):\n    y = '\0'",
    "no Python": "__global__ void k() {}",
    "cut": "def k(" * 1_000_000,
    "surrogate": "@triton.jit\ndef k(x):\n    y = '\ud800'",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_are_unknown(name):
    """Deep nesting, long sums, endless numbers: no error, and no kernel or an idle one."""
    assert kernel_work(HOSTILE[name]).get("k", (BlockWork(),))[0] == BlockWork()


def test_functions_in_functions_do_not_explode():
    """Twenty calls of the next one in each: the walk stops at its limit. Recursion ends."""
    calls = [f"@triton.jit\ndef f{i}(x):\n" + f"    f{i + 1}(x)\n" * 20 for i in range(6)]
    found = kernel_work("\n".join(calls) + "\n@triton.jit\ndef f6(x):\n    tl.load(x)\n")
    assert "f0" not in found
    assert found["f6"][0].elements == 1
    assert found["f5"][0].elements == 20
    assert MAX_STEPS < 20**4
    (work, *_) = kernel_work("@triton.jit\ndef k(x):\n    tl.load(x)\n    k(x)\n")["k"]
    assert work.elements == 1


def test_a_program_has_a_budget():
    """Of many kernels that call one long helper, those beyond the budget are not looked at."""
    helper = "@triton.jit\ndef h(x):\n" + "    tl.load(x + 1)\n" * 3_000
    callers = "".join(f"@triton.jit\ndef k{i}(x):\n    h(x)\n" for i in range(100))
    found = kernel_work(helper + callers)
    assert "k0" in found
    assert "k99" not in found


def test_huge_numbers_and_no_steps_are_not_counted():
    """Sizes and trips stay finite; a step of zero is an unknown one."""
    code = "@triton.jit\ndef k(x):\n    for i in range(0, 9, 0):\n"
    code += "        tl.load(x + tl.arange(0, 10**99))\n"
    assert [w.elements for w in kernel_work(code)["k"]] == [64.0 * n for n in (1, 4, 16, 64, 256)]


def test_sizes_of_a_signature_and_steps_that_go_down():
    """A default counts where no call states the size; ``range(8, 0, -2)`` has four trips."""
    code = "@triton.jit\ndef k(x, n, B: tl.constexpr = 32):\n    for i in range(8, 0, -2):\n"
    code += "        with tl.scope('a'):\n            tl.load(x + tl.arange(0, B))\n"
    assert kernel_work(code)["k"][0].elements == 4 * 32
    assert kernel_work(code + "\nk[(1,)](x, n, 16)\n")["k"][0].elements == 4 * 16
    other = "@triton.jit\ndef j(x, *, B=16):\n    tl.load(x + tl.arange(0, B))\n"
    sizes = {name: works[0].elements for name, works in kernel_work(code + other).items()}
    assert sizes == {"k": 4 * 32, "j": 16}  # each kernel has its own
    assert kernel_work("torch.softmax(x, B=-1)\n" + code)["k"][0].elements == 4 * 32
