"""Datasets and benchmarks of measured GPU kernels: build archives from search logs, cut splits, score forecasts.

The main entry points::

    kernel_archive.build()                       # the embedded logs -> gpu-forecasters/kernels
    archive = kernel_archive.open_archive()      # its tables as Arrow, Polars or SQL
    kernel_archive.score("forecasts.jsonl")      # every metric with its interval
    kernel_archive.load("user/dataset", "v1.0.0")   # a published version, verified
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kernel_archive._version import DATA_VERSION, __version__

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive, open_archive
    from kernel_archive.bins import assign_bins, bin_of
    from kernel_archive.errors import Finding, KernelArchiveError
    from kernel_archive.pipeline import build, validate
    from kernel_archive.publishing.pull import load
    from kernel_archive.scoring import metrics, rewards
    from kernel_archive.scoring.compare import compare_files as compare
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.load import load_target
    from kernel_archive.scoring.reader import check_forecasts, read_forecasts
    from kernel_archive.scoring.record import ScoreRecord
    from kernel_archive.scoring.scorer import score_file as score
    from kernel_archive.scoring.target import Target

#: Public name -> module that defines it and the name there ("" for the module itself). Loaded on first use.
_PUBLIC: Final[dict[str, tuple[str, str]]] = {
    "Archive": ("kernel_archive.archive.open", "Archive"),
    "Finding": ("kernel_archive.errors", "Finding"),
    "Forecasts": ("kernel_archive.scoring.forecasts", "Forecasts"),
    "KernelArchiveError": ("kernel_archive.errors", "KernelArchiveError"),
    "ScoreRecord": ("kernel_archive.scoring.record", "ScoreRecord"),
    "Target": ("kernel_archive.scoring.target", "Target"),
    "assign_bins": ("kernel_archive.bins", "assign_bins"),
    "bin_of": ("kernel_archive.bins", "bin_of"),
    "build": ("kernel_archive.pipeline", "build"),
    "check_forecasts": ("kernel_archive.scoring.reader", "check_forecasts"),
    "compare": ("kernel_archive.scoring.compare", "compare_files"),
    "load": ("kernel_archive.publishing.pull", "load"),
    "load_target": ("kernel_archive.scoring.load", "load_target"),
    "metrics": ("kernel_archive.scoring.metrics", ""),
    "open_archive": ("kernel_archive.archive.open", "open_archive"),
    "read_forecasts": ("kernel_archive.scoring.reader", "read_forecasts"),
    "rewards": ("kernel_archive.scoring.rewards", ""),
    "score": ("kernel_archive.scoring.scorer", "score_file"),
    "validate": ("kernel_archive.pipeline", "validate"),
}

__all__ = [
    "DATA_VERSION",
    "Archive",
    "Finding",
    "Forecasts",
    "KernelArchiveError",
    "ScoreRecord",
    "Target",
    "__version__",
    "assign_bins",
    "bin_of",
    "build",
    "check_forecasts",
    "compare",
    "load",
    "load_target",
    "metrics",
    "open_archive",
    "read_forecasts",
    "rewards",
    "score",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kernel_archive' has no attribute {name!r}")
    module, inner = _PUBLIC[name]
    loaded = importlib.import_module(module)
    value = getattr(loaded, inner) if inner else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
