"""Static features of kernel programs: what an engineer reads off the text before running it.

A program becomes a fixed vector of numbers (counts, presence, base-2 logarithms of constants). A
pair becomes the candidate's vector, its difference to the anchor's, how much text they share, and
the GPU's facts.

Programs are untrusted text in two languages at once and often do not parse, so they are taken
apart lexically and nothing runs them. All patterns are linear in the text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.gpus import gpu_facts
from kernel_archive.ids import without_cpp_comments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kernel_archive.baselines.pairs import ProgramPairs
    from kernel_archive.gpus import Gpu

#: Longer programs are cut here: no kernel that a search has written is near it.
MAX_CHARACTERS: Final = 200_000

_QUOTES: Final = re.compile("(\"\"\"|''')")
_CPP_MARKS: Final = ("#include", "__global__", "__device__")
_PYTHON_COMMENT: Final = re.compile(r"#[^\n]*")
_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\s\w]")
_DOT_CALLS: Final = (
    r"@(?!triton|torch|functools|staticmethod)"
    r"|\b(?:matmul|bmm|mm|einsum|linear|addmm|baddbmm|addbmm)\s*\("
)
_LIBRARY: Final = (
    r"\b(?:layer_norm|native_layer_norm|rms_norm|log_softmax|softmax|cross_entropy|nll_loss|cumsum|"
    r"logsumexp|amax|vector_norm|scaled_dot_product_attention|conv[123]d|triangular_solve|"
    r"solve_triangular|inv|scatter\w*|gather|index_\w+)\s*\("
)
_ELEMENTWISE: Final = (
    r"\.?\b(?:exp|log|sqrt|rsqrt|sigmoid|tanh|abs|clamp\w*|add|sub|mul|div|pow|neg|where|"
    r"maximum|minimum|relu|silu|gelu|"
    r"masked_fill|tril|triu|addcmul|addcdiv|lerp)_?\s*\("
)
_ALLOCATION: Final = (
    r"\b(?:empty|zeros|ones|full|empty_like|zeros_like|ones_like|full_like|empty_strided|"
    r"new_empty|new_zeros|arange|eye)\s*\("
)
_LAYOUT: Final = (
    r"\.(?:permute|transpose|movedim|mT|t\(\)|view|reshape|unflatten|flatten|expand|"
    r"unsqueeze|squeeze)\b"
)

#: Patterns counted in the host part. The count enters as log2(1 + n).
_HOST: Final[dict[str, str]] = {
    "host_matmul": _DOT_CALLS,
    "host_library": _LIBRARY,
    "host_elementwise": _ELEMENTWISE,
    "host_operators": r"(?<=[\w)\]])\s+[-+*/]\s+(?=[\w(])",
    "host_torch": r"\b(?:torch|F)\.\w",
    "host_allocation": _ALLOCATION,
    "host_copy": r"\.(?:contiguous|clone|copy_)\s*\(",
    "host_layout": _LAYOUT,
    "host_cast": r"\.(?:to|type)\s*\(|\.(?:float|half|bfloat16|double|int|long)\s*\(\s*\)",
    "host_double": r"\bfloat64\b|\.double\s*\(",
    "host_fp32": r"\bfloat32\b|\.float\s*\(",
    "host_half": r"\bfloat16\b|\bbfloat16\b|\.half\s*\(|\.bfloat16\s*\(",
    "host_fp8": r"\bfloat8",
    "host_tf32": r"allow_tf32\s*=\s*True|float32_matmul_precision\(\s*[\"'](?:high|medium)",
    "host_inplace": r"\.\w+_\s*\(|\bout\s*=",
    "host_loops": r"\bfor\b[^\n:]{1,200}?\bin\b|\bwhile\b",
    "host_sync": r"\.(?:item|cpu|tolist|numpy)\s*\(|synchronize\s*\(",
    "host_graph": r"CUDAGraph|cuda\.graph|torch\.compile|make_graphed",
    "host_streams": r"cuda\.Stream|wait_stream",
    "host_functions": r"\bdef\s",
    "host_cache": r"lru_cache|\bcache\b|_CACHE|\bglobal\b",
}
#: Counted in both: Triton kernels are launched from Python, CUDA kernels from C++.
_BOTH: Final[dict[str, str]] = {
    "launches": r"\b\w{1,80}\s{0,8}\[[^\]\n]{0,200}\]\s{0,8}\(|<<<|\.launch\w{0,40}\s{0,8}\("
}
#: Patterns counted in the Triton and CUDA parts.
_DEVICE: Final[dict[str, str]] = {
    "kernels": r"@triton\.jit\b|\b__global__\b",
    "autotuned": r"autotune|triton\.Config",
    "loads": r"\btl\.load\s*\(|\b__ldg\s*\(|\bld\.global",
    "stores": r"\btl\.store\s*\(",
    "masks": r"\bmask\s*=",
    "dots": r"\btl\.dot\w*\s*\(|\bmma_sync\s*\(|\bwgmma\b|\bmma\.sync\b",
    "dot_ieee": r"input_precision\s*=\s*[\"']ieee|allow_tf32\s*=\s*False",
    "dot_tf32": r"input_precision\s*=\s*[\"']tf32[\"']|allow_tf32\s*=\s*True",
    "dot_tf32x3": r"tf32x3",
    "reductions": r"\btl\.(?:sum|max|min|reduce|argmax)\s*\(|__shfl|\bwarp_?reduce|BlockReduce",
    "transcendental": r"\b(?:tl\.|tl\.math\.|__)?"
    r"(?:exp2?f?|expf|logf?|log2|sigmoid|tanhf?|sqrtf?|rsqrtf?|div_rn)\s*\(",
    "atomics": r"\batomic\w*",
    "loops": r"\bfor\b|\bwhile\b",
    "static_loops": r"static_range|#\s*pragma unroll",
    "unroll_one": r"pragma unroll 1\b",
    "scalar_branches": r"\bif\b",
    "casts": r"\.to\s*\(|__float2|__half2|__bfloat162|static_cast",
    "half": r"float16|bfloat16|__half\b|__nv_bfloat16",
    "double": r"float64|\bdouble\b",
    "int64": r"int64",
    "shared": r"__shared__",
    "barriers": r"__syncthreads|debug_barrier",
    "vector_types": r"\b(?:float|int|uint|double|half|bfloat16)[248]\b|\buint4\b|\bint4\b|alignas",
    "restrict": r"__restrict__",
    "fast_math": r"fast_math|__expf|__logf|__fdividef|ex2\.approx",
    "cp_async": r"cp\.async|cuda::memcpy_async|tma_|make_tensor_descriptor|make_block_ptr",
    "cache_hints": r"eviction_policy|cache_modifier|__stcs|__ldcs|__ldcg",
    "trans": r"\btl\.trans\s*\(",
    "where": r"\btl\.where\s*\(|\?",
    "divisions": r"(?<!/)/(?!/)",
    "integer_divisions": r"//|%",
    "program_axes": r"program_id\s*\(|blockIdx\.",
    "scans": r"cumsum|associative_scan",
    "zeros": r"\btl\.zeros\s*\(",
    "expand_dims": r"\[:,\s*None\]|\[None,\s*:\]",
}
_MARKS: Final = tuple(
    (name, place, re.compile(pattern))
    for place, patterns in (("host", _HOST), ("both", _BOTH), ("device", _DEVICE))
    for name, pattern in patterns.items()
)

_LAUNCH_SETTING: Final = re.compile(r"\b(num_warps|num_stages|num_ctas)\s*=\s*(\d{1,6})")
_CONSTANT: Final = re.compile(r"\b([A-Z][A-Z0-9_]*)\s*(?::[^=\n,()]{0,40})?=\s*(\d{1,9})\b")
_STEP: Final = re.compile(
    r"\bfor\b[^\n:]{0,200}\bin\s+(?:tl\.)?(?:static_)?range\s*\(([^\n]{0,200}?)\)\s*:"
)
_CDIV: Final = re.compile(r"\bcdiv\s*\([^,\n()]{1,80},\s*(\d{1,6})\s*\)")
_THREADS: Final = re.compile(
    r"<<<[^,\n]{1,120},\s*(\d{1,5})|\bTHREADS\s*=\s*(\d{1,5})|__launch_bounds__\s*\(\s*(\d{1,5})"
)
_NUMBER: Final = re.compile(r"\b\d{1,9}\b")
_TILE_NAME: Final = re.compile(r"BLOCK|TILE|^B[A-Z]?[MNKVDCHR]?\d?$|SIZE|CHUNK")

_NUMERIC: Final = (
    "num_warps",
    "num_stages",
    "n_constants",
    "constant_max",
    "constant_min",
    "constant_product",
    "tile_max",
    "tile_min",
    "tile_product",
    "knob_max",
    "knob_min",
    "cdiv_max",
    "threads",
    "vector_width",
    "step_min",
    "host_step_min",
    "host_loop_depth",
    "calls_in_host_loops",
    "powers_of_two_max",
    "host_lines",
    "device_lines",
    "characters",
    "tokens",
    "distinct_tokens",
    "is_triton",
    "is_cuda",
    "is_torch_only",
)
#: Names of the features of one program, in the order of :func:`program_features`.
PROGRAM_FEATURES: Final[tuple[str, ...]] = tuple(name for name, _, _ in _MARKS) + _NUMERIC

_GPU_FIELDS: Final = (
    "memory_bandwidth_gb_s",
    "fp32_tflops",
    "bf16_tflops",
    "multiprocessors",
    "l2_cache_mb",
    "clock_ghz",
    "memory_gb",
)
#: Names of the features of a GPU.
GPU_FEATURES: Final[tuple[str, ...]] = (*_GPU_FIELDS, "compute_capability", "flops_per_byte")


@dataclass(frozen=True)
class ProgramParts:
    """The parts of one program."""

    host: str  # Python that runs on the host, without docstrings and comments
    triton: str  # bodies of functions under a ``triton.jit`` or ``autotune`` decorator
    cuda: str  # CUDA C++ source, from triple-quoted strings or the whole file

    @classmethod
    def of(cls, code: str) -> ProgramParts:
        r"""Take a program apart.

        >>> code = "import torch\n@triton.jit\ndef k(x):\n    tl.load(x)\ny = k[(1,)](x)\n"
        >>> p = ProgramParts.of(code)
        >>> p.triton.split(), p.host.split()[-3:]
        (['@triton.jit', 'def', 'k(x):', 'tl.load(x)'], ['y', '=', 'k[(1,)](x)'])
        """
        text = code[:MAX_CHARACTERS]
        if "import" not in text and any(mark in text for mark in _CPP_MARKS):
            return cls(host="", triton="", cuda=without_cpp_comments(text))
        python: list[str] = []
        cuda: list[str] = []
        inside: str | None = None
        for part in _QUOTES.split(text):
            if part in ('"""', "'''") and inside in (None, part):
                inside = part if inside is None else None
            elif inside is None:
                python.append(part)
            elif any(mark in part for mark in _CPP_MARKS):
                cuda.append(without_cpp_comments(part))
        host, triton = _split_triton(_PYTHON_COMMENT.sub("", "".join(python)))
        return cls(host=host, triton=triton, cuda="\n".join(cuda))

    @property
    def device(self) -> str:
        """All that runs on the GPU."""
        return f"{self.triton}\n{self.cuda}"

    @cached_property
    def tokens(self) -> list[str]:
        """Names, numbers and marks, in order."""
        return _TOKEN.findall(f"{self.host}\n{self.triton}\n{self.cuda}")


def _split_triton(python: str) -> tuple[str, str]:
    """Host lines and the lines of Triton functions with their decorators."""
    host: list[str] = []
    device: list[str] = []
    decorators: list[str] = []
    state = "host"  # host | decorated (after a decorator) | body (inside a Triton function)
    for line in python.split("\n"):
        top = line[:1] not in ("", " ", "\t", ")", "]")
        if state == "body" and not top:
            device.append(line)
            continue
        if state == "decorated" and not (top and line.startswith(("def ", "async def ", "class "))):
            decorators.append(line)
            continue
        if state == "decorated":
            jit = "jit" in "".join(decorators)
            (device if jit else host).extend([*decorators, line])
            decorators, state = [], "body" if jit else "host"
            continue
        if top and line.startswith("@"):
            decorators, state = [line], "decorated"
            continue
        host.append(line)
        state = "host"
    host.extend(decorators)
    return "\n".join(host), "\n".join(device)


def _log(value: float) -> float:
    return math.log2(1.0 + value)


def _spread(values: Sequence[int]) -> tuple[float, float, float]:
    """Largest, least and sum of the base-2 logarithms; NaN where there are none."""
    logs = [math.log2(v) for v in values if v > 0]
    return (max(logs), min(logs), sum(logs)) if logs else (math.nan, math.nan, math.nan)


def _host_loops(host: str) -> tuple[int, int]:
    """Deepest nesting of host loops, and calls on lines inside one."""
    depth = calls = 0
    open_loops: list[int] = []
    for line in host.split("\n"):
        body = line.lstrip()
        if not body:
            continue
        indent = len(line) - len(body)
        while open_loops and indent <= open_loops[-1]:
            open_loops.pop()
        if open_loops:
            calls += body.count("(") + body.count("@")
        if body.startswith(("for ", "while ")):
            open_loops.append(indent)
            depth = max(depth, len(open_loops))
    return depth, calls


def _least_step(text: str) -> float:
    """Return the base-2 logarithm of the least literal step of a ``range``; a missing one is 1."""
    steps = []
    for match in _STEP.finditer(text):
        arguments = match[1].split(",")
        last = arguments[-1].strip()
        steps.append(
            1
            if len(arguments) < 3
            else int(last)
            if last.isascii() and last.isdigit() and int(last)
            else 0
        )
    known = [s for s in steps if s]
    return math.log2(min(known)) if known else math.nan


@lru_cache(maxsize=20_000)
def _program_features(code: str) -> tuple[float, ...]:
    program = ProgramParts.of(code)
    host, device = program.host, program.device
    whole = f"{host}\n{device}"
    texts = {"host": host, "device": device, "both": whole}
    counts = [_log(sum(1 for _ in pattern.finditer(texts[place]))) for _, place, pattern in _MARKS]
    settings = {name: int(value) for name, value in _LAUNCH_SETTING.findall(whole)}
    constants = [(name, int(value)) for name, value in _CONSTANT.findall(whole)]
    tiles = [v for name, v in constants if _TILE_NAME.search(name)]
    knobs = [v for name, v in constants if not _TILE_NAME.search(name)]
    threads = [int(next(g for g in match if g)) for match in _THREADS.findall(whole)]
    powers = [n for n in (int(x) for x in _NUMBER.findall(whole)) if n > 1 and n & (n - 1) == 0]
    vectors = [v for name, v in constants if name.startswith("VEC")]
    depth, calls = _host_loops(host)
    triton, cuda = bool(program.triton.strip()), "__global__" in program.cuda
    tokens = program.tokens
    numeric = (
        math.log2(settings["num_warps"]) if settings.get("num_warps") else math.nan,
        float(settings.get("num_stages", math.nan)),
        _log(len(constants)),
        *_spread([v for _, v in constants]),
        *_spread(tiles),
        *_spread(knobs)[:2],
        _spread([int(v) for v in _CDIV.findall(whole)])[0],
        _spread(threads)[0],
        _spread(vectors)[0],
        _least_step(device),
        _least_step(host),
        float(depth),
        _log(calls),
        _spread(powers)[0],
        _log(sum(1 for line in host.split("\n") if line.strip())),
        _log(sum(1 for line in device.split("\n") if line.strip())),
        _log(len("".join(whole.split()))),
        _log(len(tokens)),
        _log(len(set(tokens))),
        float(triton),
        float(cuda),
        float(not triton and not cuda),
    )
    return (*counts, *numeric)


def program_features(code: str) -> NDArray[np.float64]:
    """Compute the features of one program; NaN where the text says nothing.

    Returns:
        shape ``(len(PROGRAM_FEATURES),)``.

    >>> f = dict(zip(PROGRAM_FEATURES, program_features("y = torch.exp(x) @ w"), strict=True))
    >>> [float(f[name]) for name in ("host_matmul", "is_torch_only", "kernels")]
    [1.0, 1.0, 0.0]
    """
    return np.asarray(_program_features(code))


def gpu_features(gpu: str, stated: Mapping[str, Gpu] | None = None) -> NDArray[np.float64]:
    """Return the facts of a GPU: shape ``(len(GPU_FEATURES),)``; NaN where none is stated."""
    facts = gpu_facts(gpu, stated)
    values = [
        math.log2(value) if (value := getattr(facts, f) or 0) > 0 else math.nan for f in _GPU_FIELDS
    ]
    stated_as = re.fullmatch(r"(\d+(?:\.\d+)?)a?", facts.compute_capability or "")
    capability = math.nan if stated_as is None else float(stated_as[1])
    return np.asarray([*values, capability, values[1] - values[0]])


def _shared(anchor: Counter[str], candidate: Counter[str]) -> tuple[float, float, float]:
    """Return the weighted Jaccard index of tokens, and logarithms of each one's own tokens."""
    common = (anchor & candidate).total()
    union = anchor.total() + candidate.total() - common
    return (
        (common / union if union else 1.0),
        _log(candidate.total() - common),
        _log(anchor.total() - common),
    )


def pair_features(pairs: ProgramPairs) -> NDArray[np.float64]:
    """Compute the features of n pairs: shape (n, m).

    In this order: candidate's features, candidate's minus anchor's, three of shared text, GPU
    facts.
    """
    of = {
        code: program_features(code) for code in dict.fromkeys([*pairs.anchors, *pairs.candidates])
    }
    bags: dict[str, Counter[str]] = {code: Counter(ProgramParts.of(code).tokens) for code in of}
    both = list(zip(pairs.anchors, pairs.candidates, strict=True))
    shared = {
        (anchor, candidate): _shared(bags[anchor], bags[candidate])
        for anchor, candidate in dict.fromkeys(both)
    }
    facts = {gpu: gpu_features(gpu, pairs.stated_gpus) for gpu in dict.fromkeys(pairs.gpus)}
    rows = []
    for (anchor, candidate), gpu in zip(both, pairs.gpus, strict=True):
        mine, theirs = of[candidate], of[anchor]
        rows.append(np.concatenate([mine, mine - theirs, shared[anchor, candidate], facts[gpu]]))
    width = 2 * len(PROGRAM_FEATURES) + 3 + len(GPU_FEATURES)
    return np.asarray(rows).reshape(len(pairs), width)
