"""The formulas of all metrics as functions on arrays, and the tables of what is made from them.

No files, no validation, no randomness. Arguments are keyword-only, since many have the same shape;
n is the number of rows, and ``...`` stands for any leading axes. Exact definitions, to the last
edge case: docs/metrics.md; their source is the GPU Forecasters paper (arXiv 2605.31464), sections
3.1, 4.1, 4.3 and 4.5. Figures that are equal in exact arithmetic count as equal here, too: ranks
and confidence buckets allow for the rounding of the renormalisation.

>>> import numpy as np
>>> p = np.array([[0, 0, 0, 0.1, 0.2, 0.7, 0, 0]])
>>> predicted_bins(probabilities=p).tolist()
[6]
>>> brier(probabilities=p, bins=np.array([6])).round(6).tolist()
[0.07]
"""

from __future__ import annotations

from kernel_archive.scoring.calibration import (
    N_BUCKETS,
    adaptive_ece,
    aurc,
    bucket_of,
    confidence_monotonicity,
    ece,
    selective_risk,
)
from kernel_archive.scoring.forecasts import (
    brier,
    confidence,
    confusion,
    correct,
    crps,
    entropy,
    expected_speedup,
    forecast_errors,
    nll,
    normalise,
    predicted_bins,
    within_one,
)
from kernel_archive.scoring.metric_table import (
    COMPARED,
    HEADLINE,
    LEAD,
    METRICS,
    RANKED_BY,
    RANKINGS,
    MetricInfo,
    budget_name,
    cutoff_name,
    metrics_of,
)
from kernel_archive.scoring.order import (
    CUTOFFS,
    average_precision,
    exceedance,
    order_keys,
    pair_accuracy,
    precision_recall,
)
from kernel_archive.scoring.recovery import (
    BUDGETS,
    budget_ranks,
    recovered_at,
    recovered_at_random,
    recovery_area,
)

__all__ = [
    "BUDGETS",
    "COMPARED",
    "CUTOFFS",
    "HEADLINE",
    "LEAD",
    "METRICS",
    "N_BUCKETS",
    "RANKED_BY",
    "RANKINGS",
    "MetricInfo",
    "adaptive_ece",
    "aurc",
    "average_precision",
    "brier",
    "bucket_of",
    "budget_name",
    "budget_ranks",
    "confidence",
    "confidence_monotonicity",
    "confusion",
    "correct",
    "crps",
    "cutoff_name",
    "ece",
    "entropy",
    "exceedance",
    "expected_speedup",
    "forecast_errors",
    "metrics_of",
    "nll",
    "normalise",
    "order_keys",
    "pair_accuracy",
    "precision_recall",
    "predicted_bins",
    "recovered_at",
    "recovered_at_random",
    "recovery_area",
    "selective_risk",
    "within_one",
]
