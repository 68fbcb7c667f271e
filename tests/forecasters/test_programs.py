"""Programs taken apart lexically."""

import time

import pytest

from kernel_archive.forecasters.programs import MAX_CHARACTERS, ProgramParts

CUDA = '''"""Doc."""
import torch
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cuda_runtime.h>
// a comment with tl.load
/* and __shared__ another */
__global__ void k(float* x) { x[0] = 1.f; }
"""
ext = load_inline(cuda_sources=SRC)
'''


def test_cuda_in_a_string_is_device_code_without_its_comments():
    """A CUDA source in a triple-quoted string is device code; its comments and the docstring are nowhere."""
    p = ProgramParts.of(CUDA)
    assert "__global__ void k" in p.cuda
    assert "tl.load" not in p.cuda
    assert "__shared__" not in p.cuda
    assert "load_inline" in p.host
    assert "Doc" not in p.host + p.device


def test_a_whole_cuda_file_is_device_code():
    """A file of pure CUDA has no host part."""
    p = ProgramParts.of("#include <x>\n__global__ void k() {} // end\n")
    assert p.host == ""
    assert p.cuda.split() == ["#include", "<x>", "__global__", "void", "k()", "{}"]


def test_decorators_decide_what_is_triton():
    """Functions under an autotune and jit decorator are device code, other decorated functions host code."""
    code = (
        "import functools\n@triton.autotune(configs=[\n    triton.Config({}),\n], key=['n'])\n@triton.jit\n"
        "def k(x,\n      y):\n    tl.store(x, 1)\n\n@functools.lru_cache\ndef f():\n    return 2\nz = 3\n"
    )
    p = ProgramParts.of(code)
    assert "tl.store" in p.triton
    assert "triton.Config" in p.triton
    assert "tl.store" not in p.host
    assert "return 2" in p.host
    assert "z = 3" in p.host


def test_comment_marks_inside_python_host_code_go():
    """A Python comment counts for nothing."""
    assert "launch" not in ProgramParts.of("import torch\nx = 1  # launch\n").host


def test_tokens_are_names_numbers_and_marks():
    """Numbers with exponents stay whole, every mark is one token."""
    assert ProgramParts.of("import a\nx=1e-5*b_2").tokens == ["import", "a", "x", "=", "1e-5", "*", "b_2"]


@pytest.mark.parametrize(
    "text",
    [
        "/*" * 500_000,
        '"""' * 300_001,
        "@" * 10**6,
        "a[" * 500_000,
        "for " * 250_000,
        "\ud800\u202e\x1b[2J" * 1000,
        "",
        "(",
    ],
    ids=["comments", "quotes", "at", "brackets", "for", "surrogates", "empty", "bracket"],
)
def test_hostile_text_is_taken_apart_in_linear_time(text):
    """A megabyte made to trip a regular expression is cut and read in well under a second."""
    start = time.perf_counter()
    p = ProgramParts.of("import x\n" + text)
    q = ProgramParts.of("__global__" + text)
    assert len(p.host) + len(p.device) <= MAX_CHARACTERS + 2
    assert len(q.tokens) >= 1
    assert time.perf_counter() - start < 3
