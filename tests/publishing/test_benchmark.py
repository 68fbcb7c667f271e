"""The Hub's benchmark files: eval.yaml of the dataset, a score as .eval_results of a model."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from support.archives import make_archive, six_tasks

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import DataError
from kernel_archive.publishing.benchmark import FRAMEWORK, eval_results, task_id
from kernel_archive.publishing.card import render_card
from kernel_archive.schema import TABLES
from kernel_archive.scoring import HEADLINE, Forecasts, load_target, score
from kernel_archive.selection.make import make_splits


@pytest.fixture(scope="module")
def record(archive_path):
    """The score of seeded forecasts of two repeats."""
    target = load_target(open_archive(archive_path))
    p = np.random.default_rng(0).dirichlet(np.ones(8), size=(2, len(target)))
    return score(target, Forecasts.from_arrays(target, p), draws=0)


def test_eval_yaml_names_a_task_per_headline_metric(archive_path):
    """Tasks name configurations and splits that exist, each id once; the framework is ours."""
    made = yaml.safe_load((archive_path / "eval.yaml").read_text())
    assert set(made) == {"name", "description", "evaluation_framework", "tasks"}
    assert made["evaluation_framework"] == FRAMEWORK
    for task in made["tasks"]:
        assert task["split"] in TABLES[task["config"]].splits
    wanted = [task_id(metric) for kind in ("eval", "discovery") for metric in HEADLINE[kind]]
    assert [task["id"] for task in made["tasks"]] == wanted
    assert len(set(wanted)) == len(wanted)


def test_eval_yaml_has_no_task_for_a_split_that_is_not_there(tmp_path):
    """Without discovery pairs there are only the tasks of the evaluation split."""
    path = make_archive(tmp_path / "a" / "b", *six_tasks())
    make_splits(path, ["eval", "train_pairs"])
    made = render_card(open_archive(path))
    assert {task["config"] for task in yaml.safe_load(made["eval.yaml"])["tasks"]} == {"eval"}


def test_eval_results_are_what_the_hub_reads(record):
    """The file parses as the Hub's client parses it, with the mean of each headline metric under its task."""
    made = yaml.safe_load(eval_results(record, dataset="a/b", revision="v1.0.0", source_url="https://example.org/x"))
    entries = parse_eval_result_entries(made)
    assert {e.task_id: e.value for e in entries} == {
        task_id(name): round(figure.mean, 6) for name, figure in record.headline.items()
    }
    for entry in entries:
        assert (entry.dataset_id, entry.dataset_revision, entry.source_url) == (
            "a/b",
            "v1.0.0",
            "https://example.org/x",
        )
        assert "2 repeats" in entry.notes
        assert record.target.split_digest[:19] in entry.notes
        assert entry.date is None


def test_undefined_metrics_are_left_out(record):
    """A metric that is not defined is no entry; a score without any is refused."""
    import msgspec

    undefined = {name: msgspec.structs.replace(m, mean=None, std=None) for name, m in record.metrics.items()}
    some = {**record.metrics, "ece": undefined["ece"]}
    made = yaml.safe_load(eval_results(msgspec.structs.replace(record, metrics=some), dataset="a/b"))
    assert [e["dataset"]["task_id"] for e in made] == ["speedup_recovered", "forecast_error"]
    with pytest.raises(DataError, match="no headline metric"):
        eval_results(msgspec.structs.replace(record, metrics=undefined), dataset="a/b")
