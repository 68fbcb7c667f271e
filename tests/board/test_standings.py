"""Standings: who is ranked, how, and what the files say."""

import csv
import io
import json

import numpy as np
import pytest
from msgspec.structs import replace
from support.boards import DRAWS, informed

from kernel_archive.board import add_submission
from kernel_archive.board.entries import Scoring, load_entries, read_foreign
from kernel_archive.board.standings import make_standings, standings_csv, standings_json
from kernel_archive.scoring import HEADLINE, Forecasts, load_target
from kernel_archive.scoring.compare import COMPARED, compare
from kernel_archive.scoring.controls import controls_of
from kernel_archive.scoring.metrics import RANKINGS
from kernel_archive.scoring.reader import read_forecasts
from kernel_archive.scoring.replay import Figure


@pytest.fixture
def standings(board, target, archive):
    """Standings of the evaluation split, with one entry of other rows beside them."""
    folders = sorted(p for p in (board / "submissions").iterdir() if not p.name.endswith("-discovery"))
    entries, _ = load_entries(
        folders, Scoring(archive.path, "eval", None, None, tuple(COMPARED["eval"]), DRAWS, 0), jobs=1
    )
    return make_standings(target, entries, [read_foreign(board / "submissions/good-discovery")], draws=DRAWS)


def test_the_best_is_first_and_the_partial_one_last(standings):
    """Ordered by CRPS; coverage under 95 % is listed with its reason and has no rank."""
    assert standings.entries[0].submission.name == "good"
    last = standings.entries[-1]
    assert (last.submission.name, last.ranked, last.ranks) == ("half", False, {})
    assert "under 95 %" in last.reason
    assert standings.n_ranked == 4
    values = [line.record.metrics["crps"].mean for line in standings.entries[:4]]
    assert values == sorted(values)


def test_every_metric_that_ranks_is_ranked(standings):
    """The reader may choose any of them; the best figure has rank 1 in each. The paper's three are compared, not ranked."""
    assert set(standings.pairs) == set(COMPARED["eval"])
    assert all(set(line.ranks) == set(RANKINGS["eval"]) for line in standings.entries[:4])
    assert not set(RANKINGS["eval"]) & set(HEADLINE["eval"])
    for name in RANKINGS["eval"]:
        ranks = [line.ranks[name] for line in standings.entries[:4]]
        assert min(r.rank for r in ranks) == 1
        assert all(r.best <= r.rank <= r.worst for r in ranks)


def test_controls_and_bounds_stand_beside_and_have_no_rank(standings):
    """Best first by CRPS, the bounds before all; the CSV and the JSON have them, and no entry is one."""
    values = [control.metrics["crps"] for control in standings.controls]
    assert values == sorted(values)
    assert [c.name for c in standings.controls[:2]] == ["oracle_bins", "oracle_speedups"]
    board = standings_json([standings])["boards"][0]
    assert [c["name"] for c in board["controls"]] == [c.name for c in standings.controls]
    assert board["best_controls"]["crps"] == standings.controls[2].name
    rows = list(csv.DictReader(io.StringIO(standings_csv([standings]))))[5:]
    assert {row["rank"] for row in rows} == {None} or {row["rank"] for row in rows} == {""}
    assert board["entries"][0]["beats_control"]["crps"]


def test_differences_are_those_of_the_comparison_command(standings, board, target):
    """A pair's difference and interval are what kernel-archive compare says of the two."""
    names = [line.slug for line in standings.entries]
    a, b = (read_forecasts(board / "submissions" / n / "forecasts.jsonl.zst", target) for n in names[:2])
    reference = compare(target, a, b, draws=DRAWS, metrics=["crps", "ece"])
    for metric, d in reference.differences.items():
        pairs = standings.pairs[metric]
        own, other = (line.record.metrics[metric].mean for line in standings.entries[:2])
        assert (own - other, pairs.low[0, 1], pairs.high[0, 1]) == pytest.approx((d.difference, d.low, d.high))


def test_cost_repeats_and_coverage_are_those_of_the_file(standings):
    """Tokens and seconds where they were stated, a dash where not."""
    fair = next(line for line in standings.entries if line.submission.name == "fair")
    facts = fair.record.forecasts
    assert (facts.n_repeats, facts.tokens_per_forecast, facts.latency_s) == (3, 120.0, 1.5)
    good = next(line for line in standings.entries if line.submission.name == "good")
    facts = good.record.forecasts
    assert (facts.tokens_per_forecast, facts.latency_s, facts.coverage) == (900.0, None, 1.0)
    assert fair.record.metrics["crps"].std > 0


def test_no_entry_at_all_is_an_empty_table(target):
    """A board with nothing on it is no crash."""
    empty = make_standings(target, [])
    assert empty.entries == []
    rows = list(csv.DictReader(io.StringIO(standings_csv([empty]))))
    assert {row["kind"] for row in rows} == {"control", "bound"}


def test_json_says_everything(standings):
    """Identity, entries with figures, ranks and ties by name, and other archives apart."""
    board = standings_json([standings])["boards"][0]
    assert board["archive"]["archive_digest"] == standings.target.facts.archive_digest
    assert (board["scheme"], board["ranked_by"], board["draws"]) == ("paper", "crps", DRAWS)
    first = board["entries"][0]
    assert first["metrics"]["crps"]["low"] < first["metrics"]["crps"]["mean"]
    assert set(first["groups"]) == {"alpha", "beta"}
    assert set(first["ranks"]["crps"]["tied_with"]) <= {"good", "fair", "prior", "uniform"}
    assert [o["slug"] for o in board["other_archives"]] == ["good-discovery"]


def test_csv_has_one_line_per_entry_and_no_formula(standings):
    """Readable by any spreadsheet, and none takes a name for a formula."""
    stated = replace(standings.entries[0].submission, name="=cmd|' /C calc'!A0")
    entries = [replace(standings.entries[0], submission=stated), *standings.entries[1:]]
    rows = list(csv.DictReader(io.StringIO(standings_csv([replace(standings, entries=entries)]))))
    assert [row["kind"] for row in rows[:5]] == ["entry"] * 5
    assert {row["kind"] for row in rows[5:]} == {"control", "bound"}
    assert rows[0]["name"] == "'=cmd|' /C calc'!A0"
    assert float(rows[0]["crps_low"]) < float(rows[0]["crps"])
    assert (rows[0]["rank"], rows[4]["rank"], rows[4]["ranked"]) == ("1", "", "False")


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_the_oracle_leads_and_nobody_ranks_above_a_forecaster_that_knows_more(archive, tmp_path, split):
    """Oracle, a reader, a poorer one; behind them the template, a constant and every control, by every ranking of the board."""
    target = load_target(archive, split)
    controls = {c.name: c.forecasts for c in controls_of(target)}
    told = {"oracle": controls["oracle_speedups"]}
    for name, sharpness in (("reader", 9.0), ("skimmer", 3.0)):
        told[name] = Forecasts.from_arrays(target, informed(target, sharpness))
    # Cues that are the same everywhere give the same forecasts as no cue: each once.
    distinct = {cast.digest: name for name, cast in reversed(controls.items()) if not name.startswith("oracle")}
    entries = []
    for name, cast in {**told, **{name: controls[name] for name in distinct.values()}}.items():
        lines = [
            {"row_id": row, "probabilities": p.tolist(), **({} if np.isnan(s) else {"expected_speedup": float(s)})}
            for row, p, s in zip(target.row_ids, cast.probabilities[0], cast.expected_speedups[0], strict=True)
        ]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        slug = name.replace("_", "-")
        entries.append(add_submission(path, target, name=name, slug=slug, board=tmp_path / "b", draws=0))
    made, faults = load_entries(
        [e.folder for e in entries],
        Scoring(archive.path, split, None, None, tuple(COMPARED[target.kind]), DRAWS, 0),
        jobs=1,
    )
    assert not faults
    standings = make_standings(target, made, draws=DRAWS)
    assert [line.submission.name for line in standings.entries[:3]] == ["oracle", "reader", "skimmer"]
    for line in standings.entries:
        for name, rank in line.ranks.items():
            if line.submission.name == "oracle":
                assert (rank.rank, rank.best) == (1, 1), name
            elif line.submission.name not in told:
                above = [other.ranks[name].rank for other in standings.entries if other.submission.name in told]
                assert rank.rank > max(above), (line.submission.name, name)


def test_a_replay_stands_beside_the_figures_and_ranks_nobody(board, target, archive):
    """In the line, as JSON and as columns of the CSV; an entry without one has none."""
    folders = [board / "submissions" / name for name in ("good", "half")]
    entries, _ = load_entries(folders, Scoring(archive.path, "eval", None, None, (), 0, 0), jobs=1)
    replayed = {"good": Figure(80.0, 60.0, 90.0)}
    standings = make_standings(target, [replace(e, replay=replayed.get(e.slug)) for e in entries], draws=0)
    good, half = standings_json([standings])["boards"][0]["entries"]
    assert (good["replay"], half["replay"]) == ({"mean": 80.0, "low": 60.0, "high": 90.0}, None)
    assert "replay" not in good["ranks"]
    row = next(csv.DictReader(io.StringIO(standings_csv([standings]))))
    assert (row["replay"], row["replay_low"], row["replay_high"]) == ("80.0", "60.0", "90.0")
