"""Make the standings of a board: every entry with its figures, its ranks and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.board import ranks
from kernel_archive.board.entries import Entry
from kernel_archive.board.ranks import Pairs, Rank, compare_pairs, ranks_of
from kernel_archive.errors import Finding
from kernel_archive.scoring import METRIC_VERSION, METRICS, Split
from kernel_archive.scoring.controls import controls_of, zero_of
from kernel_archive.scoring.metrics import COMPARED, rankings_of
from kernel_archive.scoring.record import ControlFigures, Terms
from kernel_archive.scoring.scorer import best_controls, control_figures

#: What is stated of an entry's forecasts.
_FACTS: Final = ("coverage", "parse_rate", "deferral_rate", "tokens_per_forecast", "latency_s")


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that is at fault and takes no part, and why."""

    slug: str
    findings: tuple[Finding, ...]


class Standings(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The standings of one split."""

    split: Split
    entries: list[Entry]  # best first by what ranks; those that are not ranked come last
    n_ranked: int  # number of ranked ones
    #: Metric -> differences of the first :data:`~ranks.MAX_COMPARED` ranked entries.
    pairs: dict[str, Pairs]
    #: Controls and bounds on the same rows, best first by what ranks; each forecast once.
    controls: tuple[ControlFigures, ...]
    best_controls: dict[str, str]  # metric -> the control with the best figure

    @property
    def lead(self) -> str:
        """Name of the metric that entries are ranked by."""
        return self.split.spec.lead

    @property
    def shown(self) -> list[Entry]:
        """The entries that the page shows with everything; the others stand there in brief."""
        return self.entries[: ranks.MAX_COMPARED]

    @property
    def rankings(self) -> list[str]:
        """What entries may be ordered by, the default first."""
        return [name for name in rankings_of(self.split.spec) if name in self.pairs]

    @property
    def shown_controls(self) -> list[ControlFigures]:
        """The controls that no entry is."""
        taken = {entry.control for entry in self.entries}
        return [control for control in self.controls if control.name not in taken]

    @property
    def terms(self) -> Terms:
        """Terms of scoring, the same for all entries: those of the first."""
        return self.entries[0].score

    @property
    def zero(self) -> tuple[str, str]:
        """The name of the forecast that a skill of 0 stands for, and what it is."""
        name, _ = self.split.cached(zero_of)
        if self.split.zero is not None:
            name = self.split.zero.name
            counted = "launches and of the text" if name == "dry-run" else "the programs"
            return name, f"the best cheap forecast: no language model, statistics of {counted}"
        if self.split.spec.asks_outcome:
            return "the base rate", "the share of programs that pass, for every row"
        return name.replace("_", " "), "the best cue on the surface of the programs"


def _distinct_controls(split: Split) -> list[ControlFigures]:
    """List controls and bounds, those with the same forecasts once, under the first name."""
    groups: dict[tuple[bytes, bytes], list[ControlFigures]] = {}
    for control, figures in zip(
        split.cached(controls_of), split.cached(control_figures), strict=True
    ):
        forecasts = control.forecasts  # a cue of no strength gives frequencies but for rounding
        same = (forecasts.probabilities.round(9).tobytes(), forecasts.expected_speedups.tobytes())
        groups.setdefault(same, []).append(figures)
    distinct = []
    for first, *twins in groups.values():
        names = ", ".join(twin.name for twin in twins).replace("_", " ")
        title = f"{first.title}; the same forecasts: {names}" if names else first.title
        distinct.append(msgspec.structs.replace(first, title=title))
    return distinct


def make_standings(split: Split, entries: Sequence[Entry]) -> Standings:
    """Rank entries by each metric that ranks, and compare them by each that compares.

    Pairs are compared among the first entries; behind them entries are ranked by value alone. All
    were scored on the same terms.
    """
    lead = split.spec.lead
    sort_key = METRICS[lead].sort_key
    ordered = [
        msgspec.structs.replace(entry, ranks={})
        for entry in sorted(
            entries, key=lambda e: (not e.ranked, sort_key(e.score.metrics[lead].mean), e.slug)
        )
    ]
    ranked = [entry for entry in ordered if entry.ranked]
    first = ranked[: ranks.MAX_COMPARED]
    pairs: dict[str, Pairs] = {}
    for name in COMPARED[split.kind]:
        better = METRICS[name].better
        if better == "neither" or not all(name in entry.score.metrics for entry in first):
            continue
        values = [entry.score.metrics[name].mean for entry in first]
        pairs[name] = compare_pairs(values, [entry.draws[name] for entry in first])
        for entry, rank in zip(first, ranks_of(pairs[name], better), strict=True):
            if rank is not None and METRICS[name].ranks:
                entry.ranks[name] = rank
    for number, entry in enumerate(ranked[len(first) :], len(first) + 1):
        entry.ranks[lead] = Rank(rank=number)
    controls = _distinct_controls(split)
    return Standings(
        split=split,
        entries=ordered,
        n_ranked=len(ranked),
        pairs=pairs,
        controls=tuple(sorted(controls, key=lambda c: (sort_key(c.metrics[lead]), c.name))),
        best_controls=best_controls(controls),
    )


def _entry(entry: Entry, slugs: Sequence[str]) -> dict[str, Any]:
    """List what ``standings.json`` says of an entry; ``slugs`` name those it is tied with."""
    score = entry.score
    texts = ("name", "url", "model", "notes", "model_facts", "model_run")
    ranks_by_name = {}
    for name, rank in entry.ranks.items():
        ties = [slugs[j] for j in rank.tied_with]
        ranks_by_name[name] = msgspec.structs.asdict(rank) | {"tied_with": ties}
    return {
        "slug": entry.slug,
        **{name: getattr(entry.submission, name) for name in texts},
        "ranked": entry.ranked,
        "remark": entry.remark,
        "repeats": score.forecasts.n_repeats,
        **{name: getattr(score.forecasts, name) for name in _FACTS},
        "beats_control": score.beats_control,
        "metrics": score.metrics,
        "groups": score.groups,
        "ranks": ranks_by_name,
    }


def standings_json(all_standings: Sequence[Standings]) -> dict[str, Any]:
    """Return what ``standings.json`` publishes, in plain JSON types: one board per split.

    ``best`` and ``worst`` of a rank are ``null`` for an entry that is ranked by value alone.
    """
    published = []
    for standings in all_standings:
        slugs = [entry.slug for entry in standings.entries]
        facts: dict[str, Any] = {
            "archive": standings.split.identity,
            "split": standings.split.spec.name,
            "scheme": standings.split.scheme,
            "metric_version": METRIC_VERSION,
            "package": __version__,
            "seed": standings.terms.seed,
            "draws": standings.terms.draws,
            "drawn": standings.terms.drawn,
            "ranked_by": standings.lead,
            "compared": min(standings.n_ranked, ranks.MAX_COMPARED),
            "entries": [_entry(entry, slugs) for entry in standings.entries],
            "controls": standings.controls,
            "best_controls": standings.best_controls,
        }
        published.append(facts)
    return {"format": 1, "boards": msgspec.to_builtins(published)}
