"""Standings: who is ranked, how, and what the file says."""

import dataclasses

import msgspec
import pytest
from support.boards import DRAWS, with_figure

from kernel_archive.board.build import build_board
from kernel_archive.board.page import render_entry, render_page
from kernel_archive.board.standings import make_standings, standings_json
from kernel_archive.board.submissions import to_toml
from kernel_archive.scoring import HEADLINE
from kernel_archive.scoring.compare import COMPARED, compare
from kernel_archive.scoring.controls import controls_of
from kernel_archive.scoring.metrics import rankings_of
from kernel_archive.scoring.reader import read_forecasts


@pytest.fixture
def standings(board, archive):
    """Standings of the evaluation split."""
    return build_board(archive, board, draws=DRAWS, jobs=1).boards[0]


def test_the_best_is_first_and_the_partial_one_last(standings):
    """Ordered by CRPS; coverage under 95 % is listed with its reason and has no rank."""
    assert standings.entries[0].submission.name == "good"
    last = standings.entries[-1]
    assert (last.submission.name, last.ranked, last.ranks) == ("half", False, {})
    assert "under 95 %" in last.remark
    assert standings.n_ranked == 4
    values = [line.score.metrics["crps"].mean for line in standings.entries[:4]]
    assert values == sorted(values)


def test_a_bound_stands_apart(board, archive):
    """An entry that says what it knows is shown with that, and not ranked."""
    path = board / "submissions/good/submission.toml"
    path.write_text('bound = "it knew the goals"\n' + path.read_text())
    entries = build_board(archive, board, draws=DRAWS, jobs=1).boards[0].entries
    good = next(entry for entry in entries if entry.slug == "good")
    assert (good.ranked, good.remark) == (False, "a bound: it knew the goals")
    assert to_toml(good.submission).count("bound") == 1


def test_every_metric_that_ranks_is_ranked(standings):
    """The reader may choose any of them; the best figure has rank 1 in each.

    The paper's three are compared, not ranked.
    """
    assert set(standings.pairs) == set(COMPARED["eval"])
    rankings = rankings_of(standings.split.spec)
    assert all(set(line.ranks) == set(rankings) for line in standings.entries[:4])
    assert not set(rankings) & set(HEADLINE["eval"])
    for name in rankings:
        ranks = [line.ranks[name] for line in standings.entries[:4]]
        assert min(r.rank for r in ranks) == 1
        assert all(r.best <= r.rank <= r.worst for r in ranks)


def test_a_split_names_the_figure_that_ranks(archive, standings, split):
    """Order, ranks and the sentence above the table go by it; no rank where no entry has it."""
    spec = msgspec.structs.replace(split.spec, lead="pair_accuracy")
    entries = []
    for entry in standings.entries:  # the better by CRPS, the worse by pairs
        turned = 1.0 - entry.score.metrics["crps_skill"].mean
        score = with_figure(entry.score, "pair_accuracy", mean=turned)
        entries.append(msgspec.structs.replace(entry, score=score))
    board = make_standings(dataclasses.replace(split, spec=spec), entries)
    slugs = [entry.slug for entry in standings.entries]
    assert [entry.slug for entry in board.entries] == [*slugs[3::-1], slugs[4]]
    assert [entry.ranks["pair_accuracy"].rank for entry in board.entries[:4]] == [1, 2, 3, 4]
    assert board.rankings[0] == standings_json([board])["boards"][0]["ranked_by"] == spec.lead
    text = render_page(archive, [board])
    figure = board.entries[0].score.metrics["pair_accuracy"].mean
    assert f"</b> leads. Pair accuracy {figure:.3f}" in text
    assert "Pair accuracy, not CRPS skill, ranks on this split; higher is better." in text
    known = {c.name: c.metrics["pair_accuracy"] for c in board.controls}
    oracles = f"{known['oracle_bins']:.3f} / {known['oracle_speedups']:.3f}"
    assert oracles in render_entry(board, board.entries[0])
    for number, entry in enumerate(entries):
        score = with_figure(entry.score, "pair_accuracy", mean=None)
        entries[number] = msgspec.structs.replace(entry, score=score)
    board = make_standings(dataclasses.replace(split, spec=spec), entries)
    assert not [entry for entry in board.entries if spec.lead in entry.ranks]
    assert "No entry of this split is ranked yet" in render_page(archive, [board])


def test_controls_and_bounds_stand_apart_each_once(standings, split):
    """Best first by CRPS, no rank; those with the same forecasts are one, under the first name."""
    values = [control.metrics["crps"] for control in standings.controls]
    assert values == sorted(values)
    names = [control.name for control in standings.controls]
    assert set(names[:2]) == {"oracle_bins", "oracle_speedups"}
    distinct = {
        (c.forecasts.probabilities.round(9).tobytes(), c.forecasts.expected_speedups.tobytes())
        for c in controls_of(split)
    }
    assert len(names) == len(distinct) < len(controls_of(split))
    merged = [c for c in standings.controls if "the same forecasts" in c.title]
    assert merged
    board = standings_json([standings])["boards"][0]
    assert [control["name"] for control in board["controls"]] == names
    assert board["best_controls"]["crps"] == names[2]
    assert board["entries"][0]["beats_control"]["crps"]


def test_differences_are_those_of_the_comparison_command(standings, board, split):
    """A pair's difference and interval are what kernel-archive compare says of the two."""
    names = [line.slug for line in standings.entries]
    a, b = (
        read_forecasts(board / "submissions" / n / "forecasts.jsonl.zst", split) for n in names[:2]
    )
    reference = compare(a, b, split, draws=DRAWS)
    for metric in ("crps", "ece"):
        d = reference.differences[metric]
        pairs = standings.pairs[metric]
        own, other = (line.score.metrics[metric].mean for line in standings.entries[:2])
        assert (own - other, pairs.low[0, 1], pairs.high[0, 1]) == pytest.approx(
            (d.difference, d.low, d.high)
        )


def test_json_says_everything(standings):
    """Identity, entries with figures, cost, repeats, ranks and ties by name."""
    board = standings_json([standings])["boards"][0]
    assert board["archive"]["archive_digest"] == standings.split.identity.archive_digest
    assert (board["scheme"], board["ranked_by"], board["draws"]) == ("paper", "crps_skill", DRAWS)
    entries = {entry["slug"]: entry for entry in board["entries"]}
    good, fair = entries["good"], entries["fair"]
    assert good["metrics"]["crps"]["low"] < good["metrics"]["crps"]["mean"]
    assert set(good["groups"]) == {"alpha", "beta"}
    assert set(good["ranks"]["crps"]["tied_with"]) <= {"fair", "prior", "uniform"}
    assert (fair["repeats"], fair["tokens_per_forecast"], fair["latency_s"]) == (3, 120.0, 1.5)
    assert (good["tokens_per_forecast"], good["latency_s"], good["coverage"]) == (900.0, None, 1.0)
    assert fair["metrics"]["crps"]["std"] > 0
