"""Scoring: forecast files in, metrics with their uncertainty out.

>>> from kernel_archive.scoring import Forecasts, Target, score
>>> target = Target.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
>>> forecasts = Forecasts.from_arrays(target, [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
>>> score(target, forecasts, draws=0).metrics["accuracy"].mean
1.0
"""

from __future__ import annotations

from kernel_archive.scoring import metrics, rewards
from kernel_archive.scoring.compare import Comparison, MetricDifference, compare, compare_files
from kernel_archive.scoring.faults import CheckReport
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.load import load_target
from kernel_archive.scoring.metrics import HEADLINE, METRICS, MetricInfo
from kernel_archive.scoring.reader import check_forecasts, read_forecasts
from kernel_archive.scoring.record import METRIC_VERSION, Metric, ScoreRecord, read_record
from kernel_archive.scoring.scorer import score, score_file
from kernel_archive.scoring.target import Target, TargetFacts

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
    "ScoreRecord",
    "Target",
    "TargetFacts",
    "check_forecasts",
    "compare",
    "compare_files",
    "load_target",
    "metrics",
    "read_forecasts",
    "read_record",
    "rewards",
    "score",
    "score_file",
]
