"""Entries read and scored anew."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.boards import DRAWS

from kernel_archive.board import entries as module
from kernel_archive.board.entries import RATIONALE_CHARACTERS, Scoring, load_entries, read_foreign
from kernel_archive.board.store import add_submission
from kernel_archive.errors import DataError
from kernel_archive.scoring import read_record
from kernel_archive.scoring.scorer import score_with_draws

WANTED = ("speedup_recovered", "crps")


def how(archive, wanted):
    """How the entries are scored."""
    return Scoring(archive.path, "eval", None, None, wanted, DRAWS, 0)


def folders(board):
    """Folders of the evaluation split's entries."""
    return sorted(p for p in (board / "submissions").iterdir() if not p.name.endswith("-discovery"))


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_who_scores_makes_no_difference(board, archive, request, engine):
    """One process, two, or the workers of a Dask cluster: the same entries in the same order, scored as they were stored."""
    alone, _ = load_entries(folders(board), how(archive, WANTED), jobs=1)
    seen = []
    together, faults = load_entries(
        folders(board),
        how(archive, WANTED),
        jobs=2,
        engine=engine,
        scheduler=request.getfixturevalue("cluster") if engine == "dask" else None,
        advance=lambda done, total, what: seen.append((done, total, what)),
    )
    assert [e.slug for e in alone] == [e.slug for e in together] == ["fair", "good", "half", "prior", "uniform"]
    assert not faults
    assert [(done, total) for done, total, _ in seen] == [(i + 1, 5) for i in range(5)]
    assert {slug for *_, slug in seen} == {e.slug for e in alone}
    for a, b in zip(alone, together, strict=True):
        assert a.record == b.record == read_record(board / "submissions" / a.slug / "score.json")
        assert all((a.draws[name] == b.draws[name]).all() for name in WANTED)
        assert (a.shown.masses == b.shown.masses).all()


def test_draws_are_those_of_the_score(board, archive):
    """The interval of the record is the interval of the draws."""
    entry = load_entries(folders(board)[:1], how(archive, WANTED), jobs=1)[0][0]
    m = entry.record.metrics["crps"]
    assert np.quantile(entry.draws["crps"], (0.025, 0.975)) == pytest.approx((m.low, m.high))
    assert set(entry.draws) == set(WANTED)


def test_what_is_shown_is_what_was_forecast(board, target, archive):
    """Masses, states and rationales of a complete, a three-repeat and a partial entry."""
    (fair, good, half), _ = load_entries(folders(board)[:3], how(archive, WANTED), jobs=1)
    n = len(target)
    assert fair.shown.masses.shape == (3, n, 8)
    assert abs(fair.shown.masses.astype(int).sum(axis=-1) - 255).max() <= 4
    assert set(good.shown.rationales) == set(range(n))
    assert good.shown.rationales[0] == "it halves the loads"
    assert (half.shown.states > 0).sum() == 10
    assert ((half.shown.predicted == 0) == (half.shown.states == 0)).all()


def test_long_rationales_are_cut(tmp_path, target, files, archive):
    """Five megabytes of reasons don't reach the page."""
    path = tmp_path / "f.jsonl"
    path.write_text(files["good"].read_text().replace("it halves the loads", "x" * 100_000))
    add_submission(path, target, name="x", board=tmp_path / "b", draws=DRAWS)
    shown = load_entries(folders(tmp_path / "b"), how(archive, ()), jobs=1)[0][0].shown
    assert len(shown.rationales[0]) == RATIONALE_CHARACTERS + 1


def test_changed_forecasts_are_found(board, archive):
    """One byte of the forecasts changed: named, with its file, whether the lines still parse or not."""
    path = board / "submissions/good/forecasts.jsonl.zst"
    lines = pa.input_stream(str(path), compression="zstd").read()
    path.write_bytes(pa.Codec("zstd").compress(lines.replace(b"halves", b"HALVES", 1), asbytes=True))
    (board / "submissions/prior/forecasts.jsonl.zst").write_bytes(b"garbage")
    entries, faults = load_entries(folders(board), how(archive, WANTED), jobs=2)
    assert [e.slug for e in entries] == ["fair", "half", "uniform"]
    assert faults["good"][0].code == "changed-forecasts"
    assert {f.file.split("/")[-2] for found in faults.values() for f in found} == {"good", "prior"}


def test_a_table_in_the_place_of_lines_is_refused(board, archive):
    """A submission's forecasts are the lines that add stored, in no other form."""
    path = board / "submissions/good/forecasts.jsonl.zst"
    pq.write_table(pa.table({"row_id": ["a"]}), path)
    _, faults = load_entries(folders(board)[:2], how(archive, WANTED), jobs=1)
    assert faults["good"][0].code == "bad-form"


def test_an_error_of_ours_costs_one_entry(board, archive, monkeypatch):
    """A fault that reading one submission brings to light does not take the others with it."""
    real = module.score_with_draws

    def failing(target, forecasts, **options):
        if forecasts.name == "fair":
            raise ZeroDivisionError("nobody thought of that")
        return real(target, forecasts, **options)

    monkeypatch.setattr(module, "score_with_draws", failing)
    entries, faults = load_entries(folders(board), how(archive, WANTED), jobs=1)
    assert "fair" not in [e.slug for e in entries]
    assert "ZeroDivisionError: nobody thought of that" in faults["fair"][0].message


def test_a_foreign_entry_keeps_its_score(board):
    """An entry of other rows is read with the score that came with it."""
    foreign = read_foreign(board / "submissions/good")
    assert foreign.record == read_record(board / "submissions/good/score.json")


def test_a_foreign_score_of_other_rows_is_refused(board):
    """A score copied from elsewhere does not pass."""
    (board / "submissions/good/score.json").write_bytes((board / "submissions/good-discovery/score.json").read_bytes())
    with pytest.raises(DataError, match="other rows"):
        read_foreign(board / "submissions/good")


def test_a_score_and_its_draws_are_those_of_score(target):
    """Handing over the draws changes nothing of the score."""
    from kernel_archive.scoring import Forecasts, score

    forecasts = Forecasts.from_arrays(target, np.full((len(target), 8), 0.125))
    record, draws = score_with_draws(target, forecasts, draws=50)
    assert record == score(target, forecasts, draws=50)
    assert draws.overall["crps"].shape == (50,)
    assert score_with_draws(target, forecasts, draws=0)[1] is None
