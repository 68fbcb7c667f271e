"""The standings of a board: every entry with its figures, ranks and what can be said of them; as JSON and CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.board.ranks import MIN_COVERAGE, WHOLE, Pairs, Rank, pairs_of, place_of, ranks_of
from kernel_archive.scoring import METRICS
from kernel_archive.scoring.metrics import COMPARED, RANKED_BY
from kernel_archive.scoring.scorer import best_controls, control_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.board.entries import Entry, Foreign
    from kernel_archive.board.submissions import Submission
    from kernel_archive.scoring import Metric, Target
    from kernel_archive.scoring.record import ControlFigures, ScoreRecord
    from kernel_archive.scoring.replay import Figure

#: What is stated of an entry's forecasts.
_FACTS: Final = ("coverage", "parse_rate", "deferral_rate", "tokens_per_forecast", "latency_s")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the standings.

    Attributes:
        slug: its folder's name.
        submission: what its authors state of it.
        record: its score.
        ranks: metric -> place, for ranked entries.
        replay: how soon a search finds the fast programs that measures what the forecasts like best: the area between random (0)
            and oracle (100) when the recorded searches of the rows are replayed; ``None`` where there are none.
    """

    slug: str
    submission: Submission
    record: ScoreRecord
    ranks: dict[str, Rank]
    replay: Figure | None = None

    @property
    def ranked(self) -> bool:
        """Whether it takes part in the ranking."""
        return self.record.forecasts.coverage >= MIN_COVERAGE

    @property
    def reason(self) -> str:
        """Why it does not; empty when it does."""
        covered = f"covers {100 * self.record.forecasts.coverage:.1f} % of the rows, under {100 * MIN_COVERAGE:.0f} %"
        return "" if self.ranked else covered


class Standings(msgspec.Struct, frozen=True, kw_only=True):
    """The standings of one split.

    Attributes:
        target: the board's rows.
        lines: entries of these rows, best first by CRPS; those that are not ranked come last.
        order: positions in ``entries`` of the lines.
        n_ranked: number of ranked lines.
        whole: so many lines are shown with everything; ties with the others are counted only (``worst - best``).
        pairs: metric -> differences of the ranked lines (the first ones), in the order of the lines.
        foreign: entries of other rows, sorted by archive and name.
        uniform: metric -> figure of the uniform forecast, for scale.
        controls: controls and bounds on the same rows, best first by CRPS; they take no rank.
        best_controls: metric -> the control with the best figure.
        seed: of the bootstrap.
        draws: of the bootstrap.
    """

    target: Target
    lines: list[Line]
    order: list[int]
    n_ranked: int
    whole: int
    pairs: dict[str, Pairs]
    foreign: list[Foreign]
    uniform: dict[str, float | None]
    controls: tuple[ControlFigures, ...]
    best_controls: dict[str, str]
    seed: int
    draws: int


def make_standings(
    target: Target,
    entries: Sequence[Entry],
    foreign: Sequence[Foreign] = (),
    *,
    seed: int = 0,
    draws: int = 10_000,
    whole: int = WHOLE,
) -> Standings:
    """Rank entries by every metric that ranks, and compare them by every one that compares.

    Args:
        target: the board's rows.
        entries: scored submissions of these rows.
        foreign: submissions of other rows.
        seed: of the bootstrap that the entries' draws come from.
        draws: of it.
        whole: so many lines are kept with everything (:data:`~kernel_archive.board.ranks.WHOLE`).
    """
    lines = [Line(slug=e.slug, submission=e.submission, record=e.record, ranks={}, replay=e.replay) for e in entries]
    order = sorted(range(len(lines)), key=lambda i: place_of(lines[i].slug, lines[i].record))
    ranked = [i for i in order if lines[i].ranked]
    ranks: list[dict[str, Rank]] = [{} for _ in lines]
    pairs: dict[str, Pairs] = {}
    for name in COMPARED[target.kind]:
        better = METRICS[name].better
        if better == "neither" or not all(name in lines[i].record.metrics for i in ranked):
            continue
        values = [lines[i].record.metrics[name].mean for i in ranked]
        pairs[name] = pairs_of(values, [entries[i].draws.get(name) for i in ranked], whole=whole)
        if not METRICS[name].ranks:
            continue
        for i, rank in zip(ranked, ranks_of(pairs[name], better), strict=True):
            if rank is not None:
                ranks[i][name] = rank
    controls = target.once(control_figures)
    return Standings(
        target=target,
        lines=[msgspec.structs.replace(lines[i], ranks=ranks[i]) for i in order],
        order=order,
        n_ranked=len(ranked),
        whole=whole,
        pairs=pairs,
        foreign=sorted(foreign, key=lambda f: (f.submission.archive.version, f.submission.archive.digest, f.slug)),
        uniform=entries[0].record.uniform if entries else {},
        controls=tuple(sorted(controls, key=lambda c: (c.metrics[RANKED_BY] or 0.0, c.name))),
        best_controls=best_controls(controls),
        seed=seed,
        draws=draws,
    )


def _figure(metric: Metric) -> dict[str, Any]:
    return {"mean": metric.mean, "std": metric.std, "low": metric.low, "high": metric.high, "repeats": metric.repeats}


def _identity(standings: Standings) -> dict[str, Any]:
    from kernel_archive._version import __version__
    from kernel_archive.scoring import METRIC_VERSION

    target = standings.target
    return {
        "archive": target.facts,
        "split": target.split.name,
        "scheme": target.scheme,
        "metric_version": METRIC_VERSION,
        "package": __version__,
        "seed": standings.seed,
        "draws": standings.draws,
        "ranked_by": RANKED_BY,
    }


def _entry(line: Line, slugs: Sequence[str]) -> dict[str, Any]:
    """A line; beyond those that are shown in whole without the names of ties and without groups."""
    whole = line.slug in slugs
    return {
        "slug": line.slug,
        **{name: getattr(line.submission, name) for name in ("name", "url", "model", "notes", "model_facts")},
        "ranked": line.ranked,
        "reason": line.reason,
        "repeats": line.record.forecasts.n_repeats,
        **{name: getattr(line.record.forecasts, name) for name in _FACTS},
        "depends_on_scheme": line.record.other_scheme.turned,
        "beats_control": line.record.beats_control,
        "replay": line.replay,
        "metrics": {name: _figure(m) for name, m in line.record.metrics.items()},
        "groups": {g: {name: _figure(m) for name, m in ms.items()} for g, ms in line.record.groups.items()} if whole else None,
        "ranks": {
            name: {"rank": r.rank, "best": r.best, "worst": r.worst, "tied_with": [slugs[j] for j in r.tied_with] if whole else None}
            for name, r in line.ranks.items()
        },
    }  # fmt: skip


def standings_bytes(boards: Sequence[Standings]) -> bytes:
    """The standings as they are published: JSON, indented; one board per split."""
    out = []
    for board in boards:
        slugs = [line.slug for line in board.lines[: board.whole]]  # those shown in whole
        out.append(
            {
                **_identity(board),
                "entries": [msgspec.Raw(msgspec.json.encode(_entry(line, slugs))) for line in board.lines],
                "controls": board.controls,
                "best_controls": board.best_controls,
                "other_archives": [
                    {
                        "slug": f.slug,
                        "name": f.submission.name,
                        "archive": f.submission.archive,
                        "scheme": f.record.scheme,
                        "metric_version": f.record.metric_version,
                        "metrics": {name: _figure(m) for name, m in f.record.metrics.items()},
                    }
                    for f in board.foreign
                ],
            }
        )
    return msgspec.json.format(msgspec.json.encode({"format": 1, "boards": out}), indent=1) + b"\n"


def standings_json(boards: Sequence[Standings]) -> dict[str, Any]:
    """The standings as plain JSON types: one board per split.

    Where a board has more entries than are shown in whole (:data:`~kernel_archive.board.ranks.WHOLE`), ``tied_with`` of
    those names the ties among them alone, out of ``worst - best``; of the others it is ``None``, as are ``groups``,
    which an entry's record has.
    """
    builtin: dict[str, Any] = msgspec.json.decode(standings_bytes(boards))
    return builtin


def _cell(value: object) -> object:
    """A cell that a spreadsheet takes for text, not for a formula."""
    return "'" + value if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value


def standings_csv(boards: Sequence[Standings]) -> str:
    """One line per entry and board: identity, place by CRPS, all figures with their intervals; then controls and bounds."""
    rows: list[dict[str, object]] = []
    for board in boards:
        facts = board.target.facts
        for line in board.lines:
            rank = line.ranks.get(RANKED_BY)
            row: dict[str, object] = {
                "kind": "entry", "split": board.target.split.name, "archive_version": facts.archive_version, "archive_digest": facts.archive_digest,
                "scheme": board.target.scheme, "slug": line.slug, "name": line.submission.name, "model": line.submission.model, "url": line.submission.url,
                "ranked": line.ranked, "rank": rank and rank.rank, "best_rank": rank and rank.best, "worst_rank": rank and rank.worst,
                "repeats": line.record.forecasts.n_repeats, **{name: getattr(line.record.forecasts, name) for name in _FACTS},
            }  # fmt: skip
            for name, m in line.record.metrics.items():
                row |= {name: m.mean, f"{name}_std": m.std, f"{name}_low": m.low, f"{name}_high": m.high}
            if line.replay is not None:
                row |= {"replay": line.replay.mean, "replay_low": line.replay.low, "replay_high": line.replay.high}
            rows.append({key: _cell(value) for key, value in row.items()})
        rows += [
            {
                "kind": "bound" if c.bound else "control", "split": board.target.split.name, "archive_version": facts.archive_version,
                "archive_digest": facts.archive_digest, "scheme": board.target.scheme, "slug": c.name, "name": c.title,
                "ranked": False, **c.metrics,
            }
            for c in board.controls
        ]  # fmt: skip
    fields = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
