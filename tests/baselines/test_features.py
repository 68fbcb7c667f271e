"""Static features of programs and pairs."""

import math

import numpy as np
import pytest

from kernel_archive.baselines.features import (
    GPU_FEATURES,
    MAX_CHARACTERS,
    PROGRAM_FEATURES,
    ProgramParts,
    gpu_features,
    pair_features,
    program_features,
)
from kernel_archive.baselines.pairs import NOTHING, ProgramPairs

TRITON = """import torch
import triton
import triton.language as tl

@triton.jit
def k(x, BLOCK: tl.constexpr):
    for i in range(0, 1024, 64):
        a = tl.load(x + i, mask=i < 4, other=0.0).to(tl.float32)
        b = tl.dot(a, a, input_precision="tf32x3")
        tl.store(x, b)

def custom_kernel(data):
    for i in range(0, 100, 4):
        for j in range(3):
            data = torch.exp(data) @ data
    k[(triton.cdiv(100, 32),)](data, BLOCK=128, num_warps=8, num_stages=3)
    return data.double()
"""


def named(code):
    """Features by name."""
    return dict(zip(PROGRAM_FEATURES, program_features(code).tolist(), strict=True))


def test_what_an_engineer_reads_off_a_triton_program():
    """Launch settings, tiles, precision, loads, loops and casts are found, each where it stands."""
    f = named(TRITON)
    one = math.log2(2)
    assert (f["num_warps"], f["num_stages"], f["tile_max"], f["cdiv_max"]) == (3.0, 3.0, 7.0, 5.0)
    assert (f["loads"], f["stores"], f["dots"], f["dot_tf32x3"], f["masks"], f["kernels"]) == (
        one,
    ) * 6
    assert f["launches"] == one
    assert (f["step_min"], f["host_step_min"], f["host_loop_depth"]) == (6.0, 0.0, 2.0)
    assert f["host_double"] == one
    assert f["host_matmul"] == one
    assert (f["is_triton"], f["is_cuda"], f["is_torch_only"]) == (1.0, 0.0, 0.0)


def test_what_it_reads_off_cuda():
    """Kernels, launches, threads, vector types and shared memory of CUDA."""
    f = named(
        'import torch\nS = r"""#include <a>\n'
        "__global__ void __launch_bounds__(256) k(const float4* x)"
        " { __shared__ float s[32]; __syncthreads(); }\n"
        'void l() { k<<<64, 256>>>(0); }"""\nVEC = 4\n'
    )
    assert f["threads"] == 8.0
    assert f["vector_width"] == 2.0
    assert all(
        f[name] == 1.0
        for name in ("kernels", "launches", "shared", "barriers", "vector_types", "is_cuda")
    )


def test_comments_and_docstrings_change_no_feature():
    """Text that says nothing to the machine says nothing to the model, its length included."""
    assert named('"""num_warps=16, tl.load(x)"""\n' + TRITON) == pytest.approx(
        named(TRITON), nan_ok=True
    )
    assert named(TRITON + "# BLOCK = 4096\n")["constant_max"] == named(TRITON)["constant_max"]


def test_gpu_features_are_facts_or_missing():
    """Facts as base-2 logarithms; an unknown GPU has none, and no invented figure."""
    assert dict(zip(GPU_FEATURES, gpu_features("H200"), strict=True))[
        "memory_bandwidth_gb_s"
    ] == math.log2(4800)
    assert np.isnan(gpu_features("MI300X")).all()


def test_pair_features_have_one_row_per_pair():
    """Shape, and zero differences for a program against itself."""
    x = pair_features(
        ProgramPairs(
            anchors=(TRITON, "import a"),
            candidates=(TRITON,) * 2,
            gpus=("H200",) * 2,
            problems=("p", "q"),
        )
    )
    n = len(PROGRAM_FEATURES)
    assert x.shape == (2, 2 * n + 3 + len(GPU_FEATURES))
    assert np.nansum(np.abs(x[0, n : 2 * n])) == 0
    assert x[0, 2 * n] == 1.0
    assert pair_features(NOTHING).shape == (0, x.shape[1])


@pytest.mark.parametrize(
    "piece",
    [
        "a[b](c, ",
        "for x ",
        "cdiv(a,",
        "<<<1,",
        "X" * 50 + " ",
        "range(",
        " + ",
        "\t",
        "@triton.jit\n",
    ],
)
def test_hostile_text_gives_features(piece):
    """Two megabytes of a pattern's beginning give finite work."""
    features = program_features("import torch\n" + piece * (2_000_000 // len(piece)))
    assert features.shape == (len(PROGRAM_FEATURES),)


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
    """A CUDA source in a triple-quoted string is device code; its comments and the docstring are
    nowhere.
    """
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
    """Functions under an autotune and jit decorator are device code, other decorated functions host
    code.
    """
    code = (
        "import functools\n@triton.autotune(configs=[\n    triton.Config({}),\n], key=['n'])\n"
        "@triton.jit\ndef k(x,\n      y):\n    tl.store(x, 1)\n\n"
        "@functools.lru_cache\ndef f():\n    return 2\nz = 3\n"
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
    assert ProgramParts.of("import a\nx=1e-5*b_2").tokens == [
        "import",
        "a",
        "x",
        "=",
        "1e-5",
        "*",
        "b_2",
    ]


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
def test_hostile_text_is_taken_apart(text):
    """A megabyte made to trip a regular expression is cut and read."""
    p = ProgramParts.of("import x\n" + text)
    q = ProgramParts.of("__global__" + text)
    assert len(p.host) + len(p.device) <= MAX_CHARACTERS + 2
    assert len(q.tokens) >= 1
