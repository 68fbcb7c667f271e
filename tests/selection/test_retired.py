"""What a split was in an earlier version of the data.

Made by its own definition, old forecast files score as they did.
"""

from __future__ import annotations

import hashlib
import shutil

import msgspec
import pytest

from kernel_archive.archive.open import open_archive
from kernel_archive.scoring.scorer import score_file
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.definitions import load_definition, retired_definitions, variant_name
from kernel_archive.selection.freeze import frozen_folder, read_frozen
from kernel_archive.selection.make import SplitRules, remake_splits
from kernel_archive.splits import SPLITS
from kernel_archive.storage import content_path

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


@pytest.fixture(scope="module")
def archive(shipped, tmp_path_factory):
    """Everything that ships, with the retired splits in the place of the present ones."""
    place = tmp_path_factory.mktemp("retired") / "kernels"
    shutil.copytree(shipped / "gpu-forecasters/kernels", place)
    tables = {
        SPLITS[split].table: load_definition(split, f"{split}-2026-11-3")
        for split in ("eval", "discovery")
    }
    remake_splits(place, list(tables), rules=SplitRules(definitions=tables))
    return open_archive(place)


def old_file(path, row_ids):
    """A forecast file of that time: eight weights from the digest of a row's id."""
    with path.open("wb") as file:
        for row_id in row_ids:
            weights = [byte + 1 for byte in hashlib.sha256(row_id.encode()).digest()[:8]]
            line = {"row_id": row_id, "probabilities": [w / sum(weights) for w in weights]}
            file.write(msgspec.json.encode(line) + b"\n")
    return path


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_rows_are_the_frozen_ones(archive, split):
    """Ids, labels, speedups and representatives are those that were frozen, whatever
    builders came since.
    """
    table = SPLITS[split].table
    frozen = read_frozen(frozen_folder("2026.11.3") / f"{table}.json")
    rows = archive.arrow(table, columns=list(frozen.columns))
    found = zip(*(rows[n].to_pylist() for n in frozen.columns), strict=True)
    assert sorted(found) == sorted(frozen.rows)
    facts = archive.manifest.splits[table]
    assert facts.name == f"{split}-2026-11-3"
    assert [facts.facts[n] for n in ("m_1", "m_8")] == [
        frozen.facts.facts[n] for n in ("m_1", "m_8")
    ]


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_old_forecast_files_give_the_old_scores(archive, split, tmp_path):
    """To rounding: sums add up in another order of rows."""
    frozen = read_frozen(frozen_folder("2026.11.3") / f"{SPLITS[split].table}.json")
    path = old_file(tmp_path / "old.jsonl", [row[0] for row in frozen.rows])
    record = score_file(path, archive, split, draws=0)
    means = {name: record.metrics[name].mean for name in OLD_SCORES[split]}
    assert means == pytest.approx(OLD_SCORES[split], rel=1e-9)


def test_the_archive_passes_every_check(archive):
    """Variants of an archive are recomputed from what their facts record.

    The language of a program tells its speed there: all CUDA programs came of one search.
    """
    findings = [f for f in check_splits(archive) if f.code != "ordered-labels"]
    assert [f.render() for f in findings] == []


def test_retired_definitions_are_named_after_their_files():
    """Each is found by its name, and what it selects is called so."""
    for split in SPLITS.values():
        for name, path in retired_definitions(split).items():
            assert path.parent == content_path("splits") / "retired"
            rule, standard = load_definition(split.name, name), load_definition(split.name)
            assert rule.version < standard.version
            assert variant_name(split, rule, standard) == name
            changed = msgspec.structs.replace(rule, exclude_flags=["edge"])
            assert variant_name(split, changed, standard) not in (name, "canonical")
    assert list(retired_definitions(SPLITS["eval"])) == ["eval-2026-11-3"]
