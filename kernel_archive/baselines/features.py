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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from kernel_archive.gpus import Gpu, gpu_facts
from kernel_archive.ids import by_digest, without_cpp_comments
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.asked import ProgramPairs
from kernel_archive.toml_files import toml_beside

#: Longer programs are cut here: no kernel that a search has written is near it.
MAX_CHARACTERS: Final = 200_000

_QUOTES: Final = re.compile("(\"\"\"|''')")
_CPP_MARKS: Final = ("#include", "__global__", "__device__")
#: Where a top-level statement begins; closing brackets end the one before.
_BLOCK: Final = re.compile(r"(?m)^(?=[^ \t\n)\]])")
_PYTHON_COMMENT: Final = re.compile(r"#[^\n]*")
_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\s\w]")
#: Where it is counted (host, both, device) -> name of the feature -> pattern.
_PATTERNS: Final = toml_beside(__file__)
_MARKS: Final = tuple(
    (name, place, re.compile(pattern))
    for place in ("host", "both", "device")
    for name, pattern in _PATTERNS[place].items()
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

_GPU_FIELDS: Final = (
    *("memory_bandwidth_gb_s", "fp32_tflops", "bf16_tflops", "multiprocessors"),
    *("l2_cache_mb", "clock_ghz", "memory_gb"),
)


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
    """Separate host code from Triton functions with their decorators."""
    host: list[str] = []
    device: list[str] = []
    decorators: list[str] = []  # and what stands between them and their function
    for block in _BLOCK.split(python):
        if decorators and block.startswith(("def ", "async def ", "class ")):
            side = device if "jit" in "".join(decorators) else host
            side.extend([*decorators, block])
            decorators = []
        elif decorators or block.startswith("@"):
            decorators.append(block)
        else:
            host.append(block)
    return "".join(host + decorators), "".join(device)


def _log_count(value: float) -> float:
    """Take the base-2 logarithm of a count and 1."""
    return math.log2(1.0 + value)


def _log_positive(values: Iterable[int]) -> list[float]:
    """Take base-2 logarithms of the positive values; NaN alone without one."""
    return [math.log2(value) for value in values if value > 0] or [math.nan]


def _host_loops(host: str) -> tuple[int, int]:
    """Count the deepest nesting of host loops, and the calls on lines inside one."""
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
    arguments = [match[1].split(",") for match in _STEP.finditer(text)]
    steps = [each[-1].strip() if len(each) > 2 else "1" for each in arguments]
    return min(_log_positive(int(step) for step in steps if step.isascii() and step.isdigit()))


@by_digest
def named_features(code: str) -> dict[str, float]:
    """Compute the features of one program by name; NaN where the text says nothing.

    >>> f = named_features("y = torch.exp(x) @ w")
    >>> f["host_matmul"], f["is_torch_only"], f["kernels"]
    (1.0, 1.0, 0.0)
    """
    program = ProgramParts.of(code)
    host, device = program.host, program.device
    whole = f"{host}\n{device}"
    texts = {"host": host, "device": device, "both": whole}
    counts = {name: _log_count(len(mark.findall(texts[place]))) for name, place, mark in _MARKS}
    settings = {name: int(value) for name, value in _LAUNCH_SETTING.findall(whole)}
    constants = [(name, int(value)) for name, value in _CONSTANT.findall(whole)]
    values = _log_positive(value for _, value in constants)
    tiles = _log_positive(value for name, value in constants if _TILE_NAME.search(name))
    knobs = _log_positive(value for name, value in constants if not _TILE_NAME.search(name))
    threads = [int(next(g for g in match if g)) for match in _THREADS.findall(whole)]
    numbers = [int(text) for text in _NUMBER.findall(whole)]
    depth, calls = _host_loops(host)
    triton, cuda = bool(program.triton.strip()), "__global__" in program.cuda
    return counts | {
        "num_warps": _log_positive([settings.get("num_warps", 0)])[0],
        "num_stages": float(settings.get("num_stages", math.nan)),
        "n_constants": _log_count(len(constants)),
        "constant_max": max(values),
        "constant_min": min(values),
        "constant_product": sum(values),
        "tile_max": max(tiles),
        "tile_min": min(tiles),
        "tile_product": sum(tiles),
        "knob_max": max(knobs),
        "knob_min": min(knobs),
        "cdiv_max": max(_log_positive(map(int, _CDIV.findall(whole)))),
        "threads": max(_log_positive(threads)),
        "vector_width": max(_log_positive(v for name, v in constants if name.startswith("VEC"))),
        "step_min": _least_step(device),
        "host_step_min": _least_step(host),
        "host_loop_depth": float(depth),
        "calls_in_host_loops": _log_count(calls),
        "powers_of_two_max": max(_log_positive(n for n in numbers if n > 1 and n & (n - 1) == 0)),
        "host_lines": _log_count(sum(bool(line.strip()) for line in host.split("\n"))),
        "device_lines": _log_count(sum(bool(line.strip()) for line in device.split("\n"))),
        "characters": _log_count(len("".join(whole.split()))),
        "tokens": _log_count(len(program.tokens)),
        "distinct_tokens": _log_count(len(set(program.tokens))),
        "is_triton": float(triton),
        "is_cuda": float(cuda),
        "is_torch_only": float(not triton and not cuda),
    }


#: Names of the features of one program, in the order of :func:`program_features`.
PROGRAM_FEATURES: Final = tuple(named_features(""))


def program_features(codes: Sequence[str]) -> Floats:
    """Compute the features of n programs: shape (n, ``len(PROGRAM_FEATURES)``)."""
    return np.array([[*named_features(code).values()] for code in codes])


def gpu_features(gpu: str, stated: Mapping[str, Gpu] | None = None) -> Floats:
    """Return facts of a GPU, its compute capability and operations per byte: (9,), else NaN."""
    facts = gpu_facts(gpu, stated)
    values = [_log_positive([getattr(facts, name) or 0])[0] for name in _GPU_FIELDS]
    number = re.fullmatch(r"(\d+(?:\.\d+)?)a?", facts.compute_capability or "")
    capability = math.nan if number is None else float(number[1])
    return np.asarray([*values, capability, values[1] - values[0]])


def _shared(anchor: Counter[str], candidate: Counter[str]) -> tuple[float, float, float]:
    """Return the weighted Jaccard index of tokens, and logarithms of each one's own tokens."""
    common = (anchor & candidate).total()
    more, less = candidate.total() - common, anchor.total() - common
    union = common + more + less
    return common / union if union else 1.0, _log_count(more), _log_count(less)


def pair_features(pairs: ProgramPairs) -> Floats:
    """Compute the features of n pairs: shape (n, m).

    In this order: candidate's features, candidate's minus anchor's, three of shared text, GPU
    facts.
    """
    anchors, candidates = program_features(pairs.anchors), program_features(pairs.candidates)
    codes = {*pairs.anchors, *pairs.candidates}
    bags = {code: Counter(ProgramParts.of(code).tokens) for code in codes}
    texts = zip(pairs.anchors, pairs.candidates, strict=True)
    shared = [_shared(bags[anchor], bags[candidate]) for anchor, candidate in texts]
    facts = {gpu: gpu_features(gpu, pairs.stated_gpus) for gpu in set(pairs.gpus)}
    return np.hstack([candidates, candidates - anchors, shared, [facts[gpu] for gpu in pairs.gpus]])
