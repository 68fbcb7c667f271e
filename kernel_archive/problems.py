"""Problems: the six GPU Mode tasks with cases and tolerances, KernelBench by level and number, and open others."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final, Literal

import msgspec

Family = Literal["gpu_mode", "kernelbench", "kernel_archive", "other"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem that kernels are written for.

    Attributes:
        name: canonical id.
        family: the suite that it comes from.
        title: one line for people.
        shape_fields: names of the fields that describe a benchmark case.
        benchmark_cases: the timed cases, in order.
        rtol: relative tolerance of the correctness check.
        atol: absolute tolerance of the correctness check.
        source: where cases and tolerances are stated.
        held_out: wholly held out: no program of it may be trained on.
        references: ids of the programs that are its reference: a table of others that calls a problem like this one means it
            only where it has such a reference.
    """

    name: str
    family: Family
    title: str
    shape_fields: tuple[str, ...] = ()
    benchmark_cases: tuple[dict[str, Any], ...] = ()
    rtol: float | None = None
    atol: float | None = None
    source: str | None = None
    held_out: bool = False
    references: tuple[str, ...] = ()


def _problem(name: str, title: str, fields: str, *, cases: tuple[tuple[Any, ...], ...] = (), **facts: Any) -> Problem:
    """A problem whose fields of a case are named in one text, and whose cases have their values in that order."""
    names = tuple(fields.split())
    timed = tuple(dict(zip(names, case, strict=True)) for case in cases)
    return Problem(name=name, title=title, shape_fields=names, benchmark_cases=timed, **facts)


_of_paper: Final = partial(_problem, family="gpu_mode", source="GPU Forecasters, arXiv 2605.31464, appendix on tasks")
_GDN_CASES: Final = ((1, 64, 1, 64, 64), (2, 512, 3, 64, 64), (2, 1024, 3, 64, 64))

_GPU_MODE: Final = (
    _of_paper(
        "cross_entropy", "Cross entropy, forward and backward", "vocab_size", rtol=1e-2, atol=1e-3,
        cases=((32000,), (50264,), (128256,)), references=("2671114305eaaa94ee84053adfc7e6c7",),
    ),
    _of_paper(
        "fp8_quant", "Group-wise FP8 quantisation", "num_tokens hidden_dim group_size", rtol=1e-3, atol=1e-3,
        cases=((256, 4096, 128), (256, 8192, 128), (4096, 7168, 128)), references=("2b1af0c752268d9224f17190cbdf2226",),
    ),
    _of_paper(
        "gdn_chunk_fwd_h", "Gated DeltaNet, state recurrence over chunks", "B T H K V", rtol=1e-3, atol=1e-3,
        cases=_GDN_CASES, references=("a3d3857969636862d2360045155db063",),
    ),
    _of_paper(
        "gdn_chunk_fwd_o", "Gated DeltaNet, chunk output", "B T H K V", rtol=1e-3, atol=1e-3,
        cases=_GDN_CASES, references=("57a1f6d99c6cd3dfa6e27bbd5c22f7f0",),
    ),
    _of_paper(
        "gdn_recompute_w_u", "Gated DeltaNet, WY transform", "B T H K V", rtol=1e-3, atol=1e-3,
        cases=_GDN_CASES, references=("03667aacdaede8f5a46b1eb0c225efa9", "4dd16b245634c76d025b79ede6455e49"),
    ),
    _of_paper(
        "trimul", "Triangle multiplicative update", "seqlen bs dim hiddendim nomask distribution", rtol=2e-2, atol=2e-2,
        cases=(
            (256, 2, 128, 128, True, "normal"), (768, 1, 128, 128, True, "cauchy"), (256, 2, 384, 128, False, "normal"),
            (512, 1, 128, 128, True, "normal"), (1024, 1, 128, 128, True, "cauchy"), (768, 1, 384, 128, False, "normal"),
            (1024, 1, 384, 128, True, "normal"),
        ),
        references=("d6069c1e12e579293b24596280ae8162",),
    ),
)  # fmt: skip

#: A problem stated by this package; what ``measure/tasks/<name>.py`` says of tolerances goes before ``rtol`` and ``atol``.
_own: Final = partial(_problem, family="kernel_archive", source="kernel_archive.measure.tasks")
#: Problems beside the six: what users of GPUs write kernels for, at shapes that keep an H200 busy.
_OWN: Final = (
    _own(
        "rmsnorm_residual", "RMS normalisation of a residual sum, both results kept", "rows cols", rtol=0.02, atol=0.0001,
        cases=((8192, 4096), (4096, 8192), (16384, 2048)), references=("efc51c2cd972cf44bf67c28ec756ea90",),
    ),
    _own(
        "layernorm_backward", "Gradients of a layer normalisation", "rows cols", rtol=0.02, atol=0.01, held_out=True,
        cases=((8192, 4096), (16384, 1024)), references=("fbd47f63eca61fb896012341da950b9f",),
    ),
    _own(
        "masked_softmax", "Softmax over keys up to each batch entry's length", "batch heads queries keys", rtol=0.001, atol=1e-06,
        cases=((16, 16, 1024, 1024), (64, 8, 512, 512)), references=("5ec3acf2ba2b2424c3b9221f02fcae00",),
    ),
    _own(
        "swiglu", "SwiGLU activation", "rows cols", rtol=0.02, atol=0.001,
        cases=((16384, 14336), (65536, 2816)), references=("667c5801b29df497d92daa4e38ae5122",),
    ),
    _own(
        "geglu_linear", "Linear layer with a GEGLU epilogue", "rows inner cols", rtol=0.02, atol=0.02, held_out=True,
        cases=((4096, 4096, 11008), (1024, 8192, 11008)), references=("42faade1c8c9d9ae2943a985f36b66db",),
    ),
    _own(
        "rope_qk", "Rotary embedding of queries and keys", "batch time heads kv_heads dim layout", rtol=0.02, atol=0.01,
        cases=((4, 4096, 32, 8, 128, "half"), (4, 4096, 32, 8, 128, "interleaved")), references=("5f0df20f281d9fbe8ec751aa9a750e0e",),
    ),
    _own(
        "causal_attention", "Causal attention, forward", "batch heads time dim", rtol=0.02, atol=0.02,
        cases=((4, 16, 2048, 128), (1, 32, 8192, 64)), references=("c7a00ef9484f624dfcab4bc00589c511",),
    ),
    _own(
        "sliding_window_attention", "Causal attention over a window and a few first keys", "batch heads time dim window sinks", rtol=0.02, atol=0.02, held_out=True,
        cases=((4, 16, 2048, 128, 512, 4), (1, 16, 8192, 64, 512, 4)), references=("0be9625443836e533b1c6747c99e46ae",),
    ),
    _own(
        "paged_decode_attention", "Attention of one new query per sequence over a paged cache", "batch max_context heads kv_heads dim", rtol=0.02, atol=0.01, held_out=True,
        cases=((64, 4096, 32, 8, 128), (16, 8192, 32, 8, 128)), references=("e4321e77d818fb240d3d7f20d418d0d2",),
    ),
    _own(
        "matmul_bf16", "Matrix product in bfloat16", "m n k", rtol=0.02, atol=0.01,
        cases=((4096, 4096, 4096), (8192, 8192, 1024), (64, 8192, 8192)), references=("dc2d9b9916c1b0959ba88b985b75e198",),
    ),
    _own(
        "matmul_fp8_block", "Matrix product of 8-bit floats with block scales", "m n k", rtol=0.02, atol=0.02, held_out=True,
        cases=((4096, 7168, 2048), (256, 7168, 4096)), references=("8c39aa13fdb9ec517414f2b2c626059e",),
    ),
    _own(
        "topk_rows", "The largest 64 values of every row, in order", "rows cols", rtol=0.0, atol=0.0, held_out=True,
        cases=((4096, 32768), (64, 1048576)), references=("1a886bea245b593881bb2c629f4228dd",),
    ),
    _own(
        "cumulative_sum", "Inclusive prefix sum of every row", "rows cols", rtol=0.0001, atol=0.001,
        cases=((4096, 16384), (16, 4194304)), references=("9a1420aed2719d10531dbf57c5985446",),
    ),
    _own(
        "histogram", "Counts of byte values", "n skew", rtol=0.0, atol=0.0,
        cases=((268435456, False), (268435456, True)), references=("b48559031cf964294ddeb4f2c0ff00ec",),
    ),
    _own(
        "segment_sum", "Sums over consecutive segments of rows", "rows segments", rtol=0.0001, atol=0.0001, held_out=True,
        cases=((2097152, 100000), (2097152, 1000)), references=("f0c104d9264937627acc8cd4ad781903",),
    ),
    _own(
        "causal_conv1d_silu", "Causal depthwise convolution of width 4 with SiLU", "batch channels time", rtol=0.02, atol=0.02,
        cases=((8, 4096, 4096), (64, 2048, 1024)), references=("8aedb6134b5a1db1e8a46845b791a3b3",),
    ),
    _own(
        "conv2d_3x3", "3 x 3 convolution in bfloat16", "batch in out height width", rtol=0.02, atol=0.02,
        cases=((32, 64, 128, 128, 128), (64, 256, 256, 28, 28)), references=("97059b1d9fb363b391fa8245c3908f23",),
    ),
    _own(
        "group_norm_silu", "Group normalisation with SiLU", "batch channels height width groups layout", rtol=0.02, atol=0.01,
        cases=((16, 512, 64, 64, 32, "first"), (16, 512, 64, 64, 32, "last")), references=("d1dc99b5a876831bc25128e9b1be1181",),
    ),
    _own(
        "max_pool_backward", "Gradient of a 3 x 3 max pooling with stride 2", "batch channels height width", rtol=1e-05, atol=1e-05, held_out=True,
        cases=((64, 64, 112, 112), (16, 256, 56, 56)), references=("5549701ba14caea324b0f271b51cc1e3",),
    ),
    _own(
        "quantize_int8_rows", "Rows quantised to 8-bit integers by their largest magnitude", "rows cols", rtol=1e-05, atol=0.0,
        cases=((16384, 8192), (65536, 1024)), references=("45d7793a9461e3c62d879462dee66750",),
    ),
    _own(
        "selective_scan", "Selective state space recurrence", "batch time channels", rtol=0.02, atol=0.02, held_out=True,
        cases=((8, 256, 2048), (2, 512, 4096)), references=("f437fe7cad91874483b163077d72c7f0",),
    ),
    _own(
        "linear_attention", "Linear attention with a decay for every head", "batch heads time", rtol=0.02, atol=0.02,
        cases=((4, 16, 4096), (1, 32, 8192)), references=("adb1286d208f3ae809406c86f3eaf285",),
    ),
    _own(
        "heat_steps", "Eight explicit steps of the heat equation", "height width steps", rtol=0.0001, atol=0.0001, held_out=True,
        cases=((8192, 8192, 8), (4096, 4096, 8)), references=("568ae053c59981de3be04569209f90ea",),
    ),
    _own(
        "batched_transpose_add", "Transpose of every matrix of a batch, added to another", "batch rows cols", rtol=0.01, atol=0.001,
        cases=((64, 2048, 2048), (16, 8192, 1024)), references=("ab249368524ad70ca808f7a4f40b6e73",),
    ),
    _own(
        "hadamard_rows", "Walsh-Hadamard transform of every row", "rows cols", rtol=0.02, atol=0.01, held_out=True,
        cases=((32768, 4096), (131072, 512)), references=("7eec325c9fd44f26a52dae4c065da848",),
    ),
    _own(
        "nbody_forces", "Softened gravity of many bodies", "n", rtol=0.001, atol=0.0001, held_out=True,
        cases=((16384,), (8192,)), references=("0f0e3fbcc5dd90c55d023d66ef124354",),
    ),
)  # fmt: skip

#: Canonical ids of the six evaluation tasks, in the order of every table.
GPU_MODE_TASKS: Final[tuple[str, ...]] = tuple(p.name for p in _GPU_MODE)
#: Canonical ids of the problems that this package states itself.
OWN_PROBLEMS: Final[tuple[str, ...]] = tuple(p.name for p in _OWN)
PROBLEMS: Final[dict[str, Problem]] = {
    **{p.name: p for p in (*_GPU_MODE, *_OWN)},
    "causal_conv1d": _problem("causal_conv1d", "Causal 1-D convolution (legacy)", "B D S W", family="gpu_mode"),
}
#: Problem -> ids of its reference programs, where they are known.
REFERENCE_IDS: Final[dict[str, frozenset[str]]] = {
    name: frozenset(problem.references) for name, problem in PROBLEMS.items() if problem.references
}
#: Problems that are wholly held out.
HELD_OUT_PROBLEMS: Final[tuple[str, ...]] = tuple(name for name, problem in PROBLEMS.items() if problem.held_out)

_KERNELBENCH = re.compile(
    r"(?:kernelbench[_/-]?)?(?:level|l)[_-]?(\d+)[_/-]+(?:problem|p|task)?[_-]?(\d+)(?:[_-].*)?", re.IGNORECASE
)
_ALIASES: Final = {
    "gated_deltanet_chunk_fwd_h": "gdn_chunk_fwd_h",
    "gated_deltanet_chunk_fwd_o": "gdn_chunk_fwd_o",
    "gated_deltanet_recompute_w_u": "gdn_recompute_w_u",
}


def kernelbench_id(level: int, number: int) -> str:
    """Canonical id of a KernelBench problem: ``kernelbench_l3_p48`` is level 3, problem 48."""
    return f"kernelbench_l{level}_p{number}"


def normalise_problem(name: str) -> str:
    """The canonical id of a problem; an unknown name is kept, white space trimmed.

    >>> normalise_problem("level3/48_Mamba2ReturnY"), normalise_problem("trimul")
    ('kernelbench_l3_p48', 'trimul')
    """
    text = name.strip()
    if text in PROBLEMS:
        return text
    if text in _ALIASES:
        return _ALIASES[text]
    match = _KERNELBENCH.fullmatch(text)
    return kernelbench_id(int(match[1]), int(match[2])) if match else text


def family_of(name: str) -> Family:
    """The suite of a problem id."""
    canonical = normalise_problem(name)
    if canonical in PROBLEMS:
        return PROBLEMS[canonical].family
    return "kernelbench" if canonical.startswith("kernelbench_") else "other"


def problem_facts(name: str) -> Problem:
    """Facts of a problem by id; only id and family for one that is not in :data:`PROBLEMS`."""
    canonical = normalise_problem(name)
    return PROBLEMS.get(canonical) or Problem(name=canonical, family=family_of(canonical), title=canonical)
