"""The Hub's benchmark file, eval.yaml."""

from __future__ import annotations

import yaml
from support.archives import make_archive, six_tasks

from kernel_archive.archive.open import open_archive
from kernel_archive.publishing.card import render_card
from kernel_archive.schema import TABLES
from kernel_archive.scoring import HEADLINE
from kernel_archive.selection.make import make_splits


def test_eval_yaml_names_a_task_per_headline_metric(archive_path):
    """Tasks name configurations and splits that exist, each id once; the framework is ours."""
    content = yaml.safe_load((archive_path / "eval.yaml").read_text())
    assert set(content) == {"name", "description", "evaluation_framework", "tasks"}
    assert content["evaluation_framework"] == "kernel-archive"
    for task in content["tasks"]:
        assert task["split"] in TABLES[task["config"]].splits
    wanted = [m.replace(".", "_") for kind in ("eval", "discovery") for m in HEADLINE[kind]]
    assert [task["id"] for task in content["tasks"]] == wanted
    assert len(set(wanted)) == len(wanted)


def test_eval_yaml_has_no_task_for_a_split_that_is_not_there(tmp_path):
    """Without discovery pairs there are only the tasks of the evaluation split."""
    path = make_archive(tmp_path / "a" / "b", *six_tasks())
    make_splits(path, names=["eval", "train_pairs"])
    content = yaml.safe_load(render_card(open_archive(path))["eval.yaml"])
    assert {task["config"] for task in content["tasks"]} == {"eval"}
