"""Baselines: from constants to models that learn from the archive's training pairs."""

from __future__ import annotations

from kernel_archive.baselines.registry import (
    BASELINES,
    Baseline,
    BaselineForecasts,
    forecast_lines,
    make_baseline,
)

__all__ = ["BASELINES", "Baseline", "BaselineForecasts", "forecast_lines", "make_baseline"]
