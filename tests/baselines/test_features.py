"""Static features of programs and pairs."""

import math

import numpy as np
import pytest

from kernel_archive.baselines.features import (
    MAX_CHARACTERS,
    PROGRAM_FEATURES,
    ProgramParts,
    gpu_features,
    named_features,
    pair_features,
    program_features,
)
from kernel_archive.scoring.asked import ProgramPairs

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
CUDA = '''"""Doc."""
import torch
SRC = r"""
#include <cuda_runtime.h>
// a comment with tl.load
/* and cp.async another */
__global__ void __launch_bounds__(256) k(const float4* x) { __shared__ int s; __syncthreads(); }
void l() { k<<<64, 256>>>(0); }
"""
VEC = 4
ext = load_inline(cuda_sources=SRC)  # launch
'''


def test_what_an_engineer_reads_off_a_triton_program():
    """Launch settings, tiles, precision, loads, loops and casts are found, each where it stands."""
    f = named_features(TRITON)
    wanted = {"num_warps": 3, "num_stages": 3, "tile_max": 7, "cdiv_max": 5, "step_min": 6}
    wanted |= {"host_step_min": 0, "host_loop_depth": 2, "is_triton": 1, "is_cuda": 0}
    once = "loads stores dots dot_tf32x3 masks kernels launches host_double host_matmul"
    wanted |= {"is_torch_only": 0} | dict.fromkeys(once.split(), 1)
    assert {name: f[name] for name in wanted} == wanted


def test_what_it_reads_off_cuda():
    """Kernels, launches, threads, vector types and shared memory; the source is device code."""
    f = named_features(CUDA)
    once = "kernels launches shared barriers vector_types is_cuda"
    wanted = {"threads": 8, "vector_width": 2, "loads": 0} | dict.fromkeys(once.split(), 1)
    assert {name: f[name] for name in wanted} == wanted
    p = ProgramParts.of(CUDA)
    assert "__global__ void" in p.cuda
    assert "load_inline" in p.host
    for comment in ("tl.load", "cp.async", "Doc", "launch\n"):
        assert comment not in p.host + p.device
    p = ProgramParts.of("#include <x>\n__global__ void k() {} // end\n")
    assert p.host == ""
    assert p.cuda.split() == ["#include", "<x>", "__global__", "void", "k()", "{}"]


def test_comments_and_docstrings_change_no_feature():
    """Text that says nothing to the machine says nothing to the model, its length included."""
    f, more = named_features(TRITON), named_features('"""num_warps=16, tl.load(x)"""\n' + TRITON)
    assert more == pytest.approx(f, nan_ok=True)
    assert named_features(TRITON + "# BLOCK = 4096\n")["constant_max"] == f["constant_max"]


def test_decorators_decide_what_is_triton():
    """Functions under an autotune and jit decorator are device code, other decorated ones not."""
    p = ProgramParts.of(
        "import functools\n@triton.autotune(configs=[\n    triton.Config({}),\n], key=['n'])\n"
        "@triton.jit\ndef k(x,\n      y):\n    tl.store(x, 1)\n\n"
        "@functools.lru_cache\ndef f():\n    return 2\nz = 1e-5*b_2\n"
    )
    assert "tl.store" in p.triton
    assert "triton.Config" in p.triton
    assert "tl.store" not in p.host
    assert "return 2" in p.host
    assert p.tokens[p.tokens.index("z") :][:5] == ["z", "=", "1e-5", "*", "b_2"]


def test_gpu_features_are_facts_or_missing():
    """Facts as base-2 logarithms; an unknown GPU has none, and no invented figure."""
    assert gpu_features("H200")[0] == math.log2(4800)  # GB/s
    assert np.isnan(gpu_features("Quantum 9")).all()


def test_pair_features_have_one_row_per_pair():
    """Shape, and zero differences for a program against itself."""
    pairs = ProgramPairs(
        anchors=(TRITON, "import a"),
        candidates=(TRITON,) * 2,
        gpus=("H200",) * 2,
        problems=("p", "q"),
    )
    x, n = pair_features(pairs), len(PROGRAM_FEATURES)
    assert x.shape == (2, 2 * n + 3 + 9)
    assert np.nansum(np.abs(x[0, n : 2 * n])) == 0
    assert x[0, 2 * n] == 1.0


PIECES = "a[b](c, |for x |cdiv(a,|<<<1,|range(| + |\t|@triton.jit\n|/*|'''|@|a[|\ud800\u202e\x1b[2J"


@pytest.mark.parametrize("piece", [*PIECES.split("|"), "X" * 50 + " "])
def test_hostile_text_gives_features(piece):
    """Two megabytes of a pattern's beginning are cut, and give finite work."""
    text = piece * (2_000_000 // len(piece))
    assert program_features(["import torch\n" + text]).shape == (1, len(PROGRAM_FEATURES))
    p = ProgramParts.of("import x\n" + text)
    assert len(p.host) + len(p.device) <= MAX_CHARACTERS + 2
    assert ProgramParts.of("__global__" + text).tokens
