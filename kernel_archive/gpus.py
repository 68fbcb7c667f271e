"""GPUs: canonical names, aliases, and hardware facts with their sources (``gpus.toml``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from kernel_archive.toml_files import toml_beside


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of one GPU model (``archive/keys.toml``); ``None`` where no source states it."""

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
    """A GPU model."""

    name: str  # canonical
    aliases: tuple[str, ...] = ()  # other names seen in logs (device names, cloud names)


_TABLES: Final = toml_beside(__file__)
_MAKERS: Final = re.compile(r"^(nvidia|geforce|amd|radeon|instinct)+")
#: GPU by canonical name, from ``gpus.toml``.
GPUS: Final[dict[str, Gpu]] = {
    name: msgspec.convert({"name": name, **facts}, Gpu) for name, facts in _TABLES.items()
}


def _spelling_key(name: str) -> str:
    """Reduce a name to what its spellings share."""
    return re.sub(r"[\s_-]+", "", name).casefold()


_BY_ALIAS: Final = {
    _spelling_key(alias): gpu.name for gpu in GPUS.values() for alias in (gpu.name, *gpu.aliases)
}


def canonical_gpu(name: str) -> str:
    """Find the canonical name of a GPU; keep an unknown one without white space around it.

    >>> canonical_gpu("NVIDIA A100-SXM4-80GB"), canonical_gpu("h200"), canonical_gpu("MI300X")
    ('A100-80GB', 'H200', 'MI300X')
    """
    return _BY_ALIAS.get(_spelling_key(name), name.strip())


def is_known(name: str, stated: Iterable[str] = ()) -> bool:
    """Tell whether a name or alias is one of :data:`GPUS`, or means one of those ``stated``."""
    return _spelling_key(name) in _BY_ALIAS or any(same_gpu(name, other) for other in stated)


def same_gpu(one: str, other: str) -> bool:
    """Tell whether two names mean one GPU, however they are spelled, with its maker or without.

    >>> same_gpu("NVIDIA GeForce RTX 4090", "rtx4090"), same_gpu("H100", "H200")
    (True, False)
    """
    names = {_MAKERS.sub("", _spelling_key(canonical_gpu(name))) for name in (one, other)}
    return len(names) == 1


def gpu_facts(name: str, stated: Mapping[str, GpuFacts] | None = None) -> Gpu:
    """Return a GPU with the facts that recipes or an archive state, else those of ``gpus.toml``."""
    canonical = canonical_gpu(name)
    gpu = GPUS.get(canonical, Gpu(name=canonical))
    for other, facts in (stated or {}).items():
        if same_gpu(canonical, other):
            known = {field: getattr(facts, field) for field in GpuFacts.__struct_fields__}
            return msgspec.structs.replace(gpu, **{k: v for k, v in known.items() if v is not None})
    return gpu


def gpu_lines(gpu: Gpu) -> Iterator[str]:
    """Put the facts of a GPU into words."""
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
