"""Transfer between GPUs: what is shown, what is asked, and that neither tells the other."""

from __future__ import annotations

import pytest
from support.archives import Run, Search, make_archive
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import UsageError
from kernel_archive.scoring import load_split
from kernel_archive.scoring.controls import controls_of
from kernel_archive.selection.check import check_splits
from kernel_archive.selection.make import make_splits

GPUS = ("A100-80GB", "H100", "L40S")


def archive(path, gpus=GPUS):
    """Ten programs on each GPU, one of them with a near duplicate; a training search beside."""
    searches = [Search(gpu, gpu=gpu) for gpu in gpus] + [Search("t", role="training")]
    codes = [program(i) for i in range(10)]
    codes.append(f"# again\n{codes[0]}")
    runs = [
        Run(gpu, code, 1.0 + 0.3 * i + 0.01 * j)
        for j, gpu in enumerate(gpus)
        for i, code in enumerate(codes)
    ]
    place = make_archive(path, searches, [*runs, Run("t", program("trained"), 2.0)])
    make_splits(place)
    return open_archive(place)


def test_no_label_is_shown(tmp_path):
    """One GPU is shown of a program and its near duplicates, never one that is asked about."""
    opened = archive(tmp_path / "a")
    rows = opened.polars("eval_transfer")
    assert len(rows) > 0
    assert not {*rows["kernel_id"]} & {*rows["known_kernel_id"]}
    assert not {*rows["known_kernel_id"]} & {*opened.polars("eval")["kernel_id"]}
    shown = rows.with_columns(rows["candidate_code"].str.replace("# again\n", ""))
    assert shown.group_by("candidate_code").agg(n=rows["known_gpu"].n_unique()).height == 10
    assert shown.select("candidate_code", "known_gpu").unique().height == 10
    assert not {*rows["search_id"]} & {"t"}
    assert {*rows["gpus"]} == {f"{a} to {b}" for a, b in rows.select("known_gpu", "gpu").rows()}
    inputs = opened.polars("eval_transfer_inputs")
    assert inputs["row_id"].to_list() == rows["row_id"].to_list()
    assert not {"speedup", "bin", "speedup_min", "speedup_max", "kernel_id"} & {*inputs.columns}
    assert [f for f in check_splits(opened) if f.severity == "error"] == []


def test_a_control_goes_by_the_speedup_that_is_shown(tmp_path):
    """The control is there on this split, and only there."""
    opened = archive(tmp_path / "a")
    names = {
        s: {c.name for c in controls_of(load_split(opened, s))} for s in ("eval", "eval_transfer")
    }
    assert "same" in names["eval_transfer"]
    assert "same" not in names["eval"]


def test_one_gpu_gives_no_table(tmp_path):
    """The manifest says why."""
    opened = archive(tmp_path / "a", GPUS[:1])
    assert "eval_transfer" not in opened.manifest.tables
    assert "two GPUs" in opened.manifest.reports["splits_not_made"]["eval_transfer"]
    assert check_splits(opened) == []
    with pytest.raises(UsageError, match="has no eval_transfer split: no held-out program was"):
        load_split(opened, "eval_transfer")
