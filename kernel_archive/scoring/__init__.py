"""Score forecasts: files in, metrics with their uncertainty out.

>>> from kernel_archive.scoring import Forecasts, Split, score
>>> split = Split.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
>>> forecasts = Forecasts.from_arrays(split, [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
>>> score(split, forecasts, draws=0).metrics["accuracy"].mean
1.0
"""

from __future__ import annotations

from kernel_archive.scoring import metrics, rewards
from kernel_archive.scoring.compare import Comparison, MetricDifference, compare
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.load import load_split
from kernel_archive.scoring.metrics import HEADLINE, METRICS, MetricInfo
from kernel_archive.scoring.reader import CheckReport, check_forecasts, read_forecasts
from kernel_archive.scoring.record import METRIC_VERSION, Metric, Score, read_record
from kernel_archive.scoring.scorer import score, score_file
from kernel_archive.scoring.split import Split, SplitIdentity

__all__ = [
    "HEADLINE",
    "METRICS",
    "METRIC_VERSION",
    "CheckReport",
    "Comparison",
    "Forecasts",
    "Metric",
    "MetricDifference",
    "MetricInfo",
    "Score",
    "Split",
    "SplitIdentity",
    "check_forecasts",
    "compare",
    "load_split",
    "metrics",
    "read_forecasts",
    "read_record",
    "rewards",
    "score",
    "score_file",
]
