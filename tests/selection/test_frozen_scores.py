"""Frozen rows of an earlier version stay scorable, and give the scores of that time."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from kernel_archive.scoring.scorer import score_file
from kernel_archive.scoring.split import Split
from kernel_archive.selection.freeze import frozen_folder, read_frozen
from kernel_archive.splits import SPLITS

#: What version 2026.11.3 scored the forecasts of :func:`old_file` with, printed by the package of
#: that time.
OLD_SCORES = {
    "eval": {
        "speedup_recovered": 64.56674252398675,
        "ece": 0.1363582176698492,
        "forecast_error": 1.8678183844536045,
        "recovery_area": 89.61469162323108,
        "accuracy": 0.09375,
        "within_one": 0.33958333333333335,
        "brier": 0.46555071534826237,
        "crps": 0.19858138199792055,
        "nll": 2.439558279217174,
        "confidence_monotonicity": 0.4029816633635337,
        "aurc": 1.813379330672241,
    },
    "discovery": {
        "ece": 0.11046490912126189,
        "forecast_error": 1.9730935243264767,
        "accuracy": 0.11868256672345258,
        "within_one": 0.3679727427597956,
        "brier": 0.4606148052227121,
        "crps": 0.15070959591941271,
        "nll": 2.382352232919738,
        "confidence_monotonicity": 0.09019853197572386,
        "aurc": 1.992424931144889,
        "average_precision_1.25": 0.16087374683202707,
        "average_precision_1.5": 0.1339644891097813,
        "average_precision_2": 0.1024599314302511,
    },
}


def old_file(path, row_ids):
    """A forecast file of that time: eight weights from the digest of a row's id."""
    with path.open("wb") as file:
        for row_id in row_ids:
            weights = [byte + 1 for byte in hashlib.sha256(row_id.encode()).digest()[:8]]
            line = {"row_id": row_id, "probabilities": [w / sum(weights) for w in weights]}
            file.write(msgspec.json.encode(line) + b"\n")
    return path


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_old_forecast_files_give_the_old_scores(split, tmp_path):
    """Scored against the frozen rows alone, to rounding."""
    frozen = read_frozen(frozen_folder("2026.11.3") / f"{SPLITS[split].table}.json")
    ids, tasks, bins, speedups = zip(*frozen.rows, strict=True)
    facts = frozen.facts.facts
    columns = {"row_ids": ids, "tasks": tasks, "speedups": speedups, "bins": bins}
    rows = Split.from_arrays(**columns, split=split, ends=(facts["m_1"], facts["m_8"]))
    record = score_file(old_file(tmp_path / "old.jsonl", ids), rows, split, draws=0)
    means = {name: record.metrics[name].mean for name in OLD_SCORES[split]}
    assert means == pytest.approx(OLD_SCORES[split], rel=1e-9)
