"""GPUs: canonical names, aliases, and hardware facts with their sources."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NVIDIA_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-nvidia-us-2188504-web.pdf"
_NVIDIA_L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_NVIDIA_H100 = "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306"
_NVIDIA_H200 = (
    "https://resources.nvidia.com/en-us-data-center-overview-mc/en-us-data-center-overview/hpc-datasheet-sc23-h200"
)
_CUDA_CC = "https://developer.nvidia.com/cuda-gpus"


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of one GPU model; ``None`` where no source states it.

    Attributes:
        compute_capability: for example ``9.0``.
        memory_gb: device memory in GB as sold.
        multiprocessors: streaming multiprocessors.
        max_threads_per_multiprocessor: resident threads.
        clock_ghz: boost clock in GHz.
        memory_clock_ghz: memory clock in GHz.
        memory_bus_bits: memory bus width in bits.
        memory_bandwidth_gb_s: peak memory bandwidth in GB/s.
        l2_cache_mb: L2 cache in MB.
        fp32_tflops: dense fp32 peak in TFLOP/s, no tensor cores.
        bf16_tflops: dense bf16 tensor-core peak in TFLOP/s.
        source: where the figures come from.
    """

    compute_capability: str | None = None
    memory_gb: float | None = None
    multiprocessors: int | None = None
    max_threads_per_multiprocessor: int | None = None
    clock_ghz: float | None = None
    memory_clock_ghz: float | None = None
    memory_bus_bits: int | None = None
    memory_bandwidth_gb_s: float | None = None
    l2_cache_mb: float | None = None
    fp32_tflops: float | None = None
    bf16_tflops: float | None = None
    source: str | None = None


class Gpu(GpuFacts, frozen=True, kw_only=True):
    """A GPU model.

    Attributes:
        name: canonical name.
        aliases: other names seen in logs (device names, cloud names).
    """

    name: str
    aliases: tuple[str, ...] = ()


_ALL: Final = (
    Gpu(
        name="A100-80GB",
        aliases=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "A100-SXM-80GB", "A100_80GB"),
        compute_capability="8.0", memory_gb=80.0, multiprocessors=108, max_threads_per_multiprocessor=2048,
        clock_ghz=1.41, memory_clock_ghz=1.512, memory_bus_bits=5120, memory_bandwidth_gb_s=2039.0, l2_cache_mb=40.0,
        fp32_tflops=19.5, bf16_tflops=312.0, source=_NVIDIA_A100,
    ),
    Gpu(
        name="L40S",
        aliases=("NVIDIA L40S",),
        compute_capability="8.9", memory_gb=48.0, multiprocessors=142, max_threads_per_multiprocessor=1536,
        clock_ghz=2.52, memory_clock_ghz=9.0, memory_bus_bits=384, memory_bandwidth_gb_s=864.0, l2_cache_mb=96.0,
        fp32_tflops=91.6, bf16_tflops=362.05, source=_NVIDIA_L40S,
    ),
    Gpu(
        name="H100",
        aliases=("NVIDIA H100 80GB HBM3", "NVIDIA H100", "H100-80GB", "H100-SXM5-80GB", "H100!"),
        compute_capability="9.0", memory_gb=80.0, multiprocessors=132, max_threads_per_multiprocessor=2048,
        clock_ghz=1.98, memory_clock_ghz=2.619, memory_bus_bits=5120, memory_bandwidth_gb_s=3350.0, l2_cache_mb=50.0,
        fp32_tflops=67.0, bf16_tflops=989.5, source=_NVIDIA_H100,
    ),
    Gpu(
        name="H200",
        aliases=("NVIDIA H200", "H200-141GB", "H200-SXM"),
        compute_capability="9.0", memory_gb=141.0, multiprocessors=132, max_threads_per_multiprocessor=2048,
        clock_ghz=1.98, memory_clock_ghz=3.201, memory_bus_bits=6016, memory_bandwidth_gb_s=4800.0, l2_cache_mb=60.0,
        fp32_tflops=67.0, bf16_tflops=989.5, source=_NVIDIA_H200,
    ),
    Gpu(name="B200", aliases=("NVIDIA B200",), compute_capability="10.0", source=_CUDA_CC),
    Gpu(name="H20", aliases=("NVIDIA H20",), compute_capability="9.0", source=_CUDA_CC),
    Gpu(name="L40", aliases=("NVIDIA L40",), compute_capability="8.9", source=_CUDA_CC),
    Gpu(name="L4", aliases=("NVIDIA L4",), compute_capability="8.9", source=_CUDA_CC),
    Gpu(name="A10G", aliases=("NVIDIA A10G",), compute_capability="8.6", source=_CUDA_CC),
    Gpu(name="T4", aliases=("Tesla T4", "NVIDIA T4"), compute_capability="7.5", source=_CUDA_CC),
    Gpu(name="RTX3090", aliases=("3090", "RTX 3090", "NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        compute_capability="8.6", source=_CUDA_CC),
)  # fmt: skip

GPUS: Final[dict[str, Gpu]] = {gpu.name: gpu for gpu in _ALL}


#: Columns in which people name the GPU.
GPU_KEYS: Final = frozenset(
    {"gpu", "gpu_name", "gpu_type", "gpu_model", "hardware", "device", "device_name", "card", "accelerator"}
)


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


#: Models of which no facts are known here, as file names have them.
_MODEL: Final = re.compile(
    r"(?i:(?:(?:nvidia|geforce|amd)[\s_.-]*)*(?:(?:rtx|gtx)[\s_.-]*(?:pro[\s_.-]*)?a?\d{3,4}(?:[\s_.-]*(?:ti|super))?|"
    r"a(?:10|16|30|40|100|800|6000)|b300|h800|gb?[23]00|gh200|v100s?|p100|mi\d{3}[ax]?))"
)
_BY_ALIAS: Final = {_key(alias): gpu.name for gpu in _ALL for alias in (gpu.name, *gpu.aliases)}


def canonical_gpu(name: str) -> str:
    """The canonical name of a GPU; an unknown one is kept, white space trimmed.

    >>> canonical_gpu("NVIDIA A100-SXM4-80GB"), canonical_gpu("h200"), canonical_gpu("MI300X")
    ('A100-80GB', 'H200', 'MI300X')
    """
    return _BY_ALIAS.get(_key(name), name.strip())


def is_known(name: str) -> bool:
    """Whether the name or alias is one of :data:`GPUS`."""
    return _key(name) in _BY_ALIAS


def same_gpu(one: str, other: str) -> bool:
    """Whether two names mean one GPU, however their words are parted, and with or without its maker.

    >>> same_gpu("NVIDIA GeForce RTX 4090", "rtx4090"), same_gpu("H100", "H200")
    (True, False)
    """
    one, other = (re.sub(r"^(nvidia|geforce|amd|radeon|instinct)+", "", _key(canonical_gpu(n))) for n in (one, other))
    return one == other


def gpu_in(text: str) -> str | None:
    """The GPU that a file's name states, by a known name or alias or a common model's; ``None`` for none and for several.

    >>> gpu_in("results_H100"), gpu_in("bench-rtx_4090-v2"), gpu_in("h100_vs_l40s"), gpu_in("level_4_t4")
    ('H100', 'rtx_4090', None, None)
    """
    words = re.split(r"([\s_.-]+)", text)
    found: set[str] = set()
    start = 0  # words stand at even places, what separates them at odd ones
    while start < len(words):
        for end in range(min(start + 7, len(words)), start, -2):
            name = "".join(words[start:end])
            # Two characters in lower case ("t4", "l4") are more often something else.
            if (is_known(name) and not re.fullmatch(r"[a-z]\d", name)) or _MODEL.fullmatch(name):
                found.add(canonical_gpu(name))
                start = end - 1
                break
        start += 2
    return found.pop() if len(found) == 1 else None


def gpu_facts(name: str, stated: Mapping[str, Gpu] | None = None) -> Gpu:
    """Facts of a GPU by name or alias; those that an archive states of one that is not known here, else all ``None``."""
    canonical = canonical_gpu(name)
    return GPUS.get(canonical) or (stated or {}).get(canonical) or Gpu(name=canonical)


def gpu_lines(gpu: Gpu) -> Iterator[str]:
    """What is known of a GPU, in words."""
    for value, text in (
        (gpu.compute_capability, "compute capability {}"),
        (gpu.multiprocessors, "{} multiprocessors"),
        (gpu.max_threads_per_multiprocessor, "{} threads resident on each"),
        (gpu.clock_ghz, "boost clock {:g} GHz"),
        (gpu.memory_gb, "{:g} GB of memory"),
        (gpu.memory_bandwidth_gb_s, "{:,.0f} GB/s"),
        (gpu.l2_cache_mb, "L2 cache {:g} MB"),
        (gpu.fp32_tflops, "{:g} TFLOP/s in float32 without tensor cores"),
        (gpu.bf16_tflops, "{:g} TFLOP/s in bfloat16 on tensor cores, dense"),
    ):
        if value is not None:
            yield text.format(value)
