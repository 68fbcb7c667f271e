"""Datasets and benchmarks of measured GPU kernels.

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
    from kernel_archive.scoring.compare import compare
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.load import load_split
    from kernel_archive.scoring.reader import check_forecasts, read_forecasts
    from kernel_archive.scoring.record import Score
    from kernel_archive.scoring.scorer import score_file as score
    from kernel_archive.scoring.split import Split

#: Public name -> the module that has it; loaded on first use.
_PUBLIC: Final = {
    **dict.fromkeys(("Archive", "open_archive"), "archive.open"),
    **dict.fromkeys(("assign_bins", "bin_of"), "bins"),
    **dict.fromkeys(("Finding", "KernelArchiveError"), "errors"),
    **dict.fromkeys(("build", "validate"), "pipeline"),
    "load": "publishing.pull",
    **dict.fromkeys(("Forecasts", "Score", "Split", "compare", "load_split"), "scoring"),
    **dict.fromkeys(("check_forecasts", "metrics", "read_forecasts"), "scoring"),
    **dict.fromkeys(("rewards", "score"), "scoring"),
}
#: Public name -> its name in its module, where that differs.
_INNER: Final = {"score": "score_file"}

__all__ = [
    "DATA_VERSION",
    "Archive",
    "Finding",
    "Forecasts",
    "KernelArchiveError",
    "Score",
    "Split",
    "__version__",
    "assign_bins",
    "bin_of",
    "build",
    "check_forecasts",
    "compare",
    "load",
    "load_split",
    "metrics",
    "open_archive",
    "read_forecasts",
    "rewards",
    "score",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        from pathlib import Path

        from kernel_archive.toml_files import toml_beside

        cli = Path(__file__).with_name("cli") / "__init__.py"
        replacement = toml_beside(str(cli), "commands.toml")["moved"].get(f"kernel_archive.{name}")
        if replacement is not None:
            raise AttributeError(f"'kernel_archive.{name}' is gone since 1.0. Type: {replacement}")
        raise AttributeError(f"module 'kernel_archive' has no attribute {name!r}")
    module = importlib.import_module(f"kernel_archive.{_PUBLIC[name]}")
    value = globals()[name] = getattr(module, _INNER.get(name, name))
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
