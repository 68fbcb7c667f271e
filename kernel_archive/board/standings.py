"""The standings of a board: every entry with its figures, ranks and what can be said of them; as JSON and CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive._version import __version__
from kernel_archive.board import ranks
from kernel_archive.board.ranks import Pairs, Rank, pairs_of, ranks_of
from kernel_archive.scoring import METRIC_VERSION, METRICS
from kernel_archive.scoring.metrics import COMPARED, RANKED_BY
from kernel_archive.scoring.scorer import best_controls, control_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_archive.board.entries import Entry
    from kernel_archive.scoring import Metric, Target
    from kernel_archive.scoring.record import ControlFigures

#: What is stated of an entry's forecasts.
_FACTS: Final = ("coverage", "parse_rate", "deferral_rate", "tokens_per_forecast", "latency_s")


class Standings(msgspec.Struct, frozen=True, kw_only=True):
    """The standings of one split."""

    target: Target
    entries: list[Entry]  # of these rows, best first by CRPS; those that are not ranked come last
    n_ranked: int
    whole: int  # so many are shown with everything; ties with the others are counted only (``worst - best``)
    pairs: dict[str, Pairs]  # metric -> differences of the ranked entries, in their order
    foreign: list[Entry]  # of other rows, sorted by archive and name
    controls: tuple[ControlFigures, ...]  # and bounds, on the same rows, best first by CRPS; they take no rank
    best_controls: dict[str, str]  # metric -> the control with the best figure
    seed: int  # of the bootstrap
    draws: int

    def best_control(self, metric: str) -> ControlFigures | None:
        """The control with the best figure by a metric; ``None`` where none has one."""
        return next((c for c in self.controls if c.name == self.best_controls.get(metric)), None)


def make_standings(
    target: Target,
    entries: Sequence[Entry],
    foreign: Sequence[Entry] = (),
    *,
    seed: int = 0,
    draws: int = 10_000,
) -> Standings:
    """Rank entries by every metric that ranks, and compare them by every one that compares; ``foreign`` ones stand beside them.

    Seed and number of draws are those of the bootstrap that the entries' draws come from.
    """
    entries = sorted(entries, key=lambda entry: entry.place)
    ranked = [entry for entry in entries if entry.ranked]  # the first ones
    places: list[dict[str, Rank]] = [{} for _ in entries]
    pairs: dict[str, Pairs] = {}
    for name in COMPARED[target.kind]:
        better = METRICS[name].better
        if better == "neither" or not all(name in entry.record.metrics for entry in ranked):
            continue
        values = [entry.record.metrics[name].mean for entry in ranked]
        pairs[name] = pairs_of(values, [entry.draws.get(name) for entry in ranked], whole=ranks.WHOLE)
        if METRICS[name].ranks:
            for own, rank in zip(places, ranks_of(pairs[name], better), strict=False):
                if rank is not None:
                    own[name] = rank
    controls = target.once(control_figures)
    return Standings(
        target=target,
        entries=[msgspec.structs.replace(entry, ranks=own) for entry, own in zip(entries, places, strict=True)],
        n_ranked=len(ranked),
        whole=ranks.WHOLE,
        pairs=pairs,
        foreign=sorted(foreign, key=lambda f: (f.submission.archive.version, f.submission.archive.digest, f.slug)),
        controls=tuple(sorted(controls, key=lambda c: (c.metrics[RANKED_BY] or 0.0, c.name))),
        best_controls=best_controls(controls),
        seed=seed,
        draws=draws,
    )


def _figures(metrics: dict[str, Metric]) -> dict[str, Any]:
    return {
        name: {"mean": m.mean, "std": m.std, "low": m.low, "high": m.high, "repeats": m.repeats}
        for name, m in metrics.items()
    }


def _entry(entry: Entry, slugs: Sequence[str]) -> dict[str, Any]:
    """An entry; beyond those that are shown in whole without the names of ties and without groups."""
    whole, record = entry.slug in slugs, entry.record
    return {
        "slug": entry.slug,
        **{name: getattr(entry.submission, name) for name in ("name", "url", "model", "notes", "model_facts")},
        "ranked": entry.ranked,
        "reason": entry.reason,
        "repeats": record.forecasts.n_repeats,
        **{name: getattr(record.forecasts, name) for name in _FACTS},
        "depends_on_scheme": record.other_scheme.turned,
        "beats_control": record.beats_control,
        "replay": entry.replay,
        "metrics": _figures(record.metrics),
        "groups": {group: _figures(metrics) for group, metrics in record.groups.items()} if whole else None,
        "ranks": {
            name: {"rank": r.rank, "best": r.best, "worst": r.worst, "tied_with": [slugs[j] for j in r.tied_with] if whole else None}
            for name, r in entry.ranks.items()
        },
    }  # fmt: skip


def _foreign(entry: Entry) -> dict[str, Any]:
    return {
        "slug": entry.slug,
        "name": entry.submission.name,
        "archive": entry.submission.archive,
        "scheme": entry.record.scheme,
        "metric_version": entry.record.metric_version,
        "metrics": _figures(entry.record.metrics),
    }


def standings_bytes(boards: Sequence[Standings]) -> bytes:
    """The standings as they are published: JSON, indented; one board per split.

    Where a board has more entries than are shown in whole (:data:`~kernel_archive.board.ranks.WHOLE`), ``tied_with`` of
    those names the ties among them alone, out of ``worst - best``; of the others it is ``None``, as are ``groups``,
    which an entry's record has.
    """
    out = []
    for board in boards:
        slugs = [entry.slug for entry in board.entries[: board.whole]]
        out.append(
            {
                "archive": board.target.facts,
                "split": board.target.split.name,
                "scheme": board.target.scheme,
                "metric_version": METRIC_VERSION,
                "package": __version__,
                "seed": board.seed,
                "draws": board.draws,
                "ranked_by": RANKED_BY,
                "entries": [msgspec.Raw(msgspec.json.encode(_entry(entry, slugs))) for entry in board.entries],
                "controls": board.controls,
                "best_controls": board.best_controls,
                "other_archives": [_foreign(entry) for entry in board.foreign],
            }
        )
    return msgspec.json.format(msgspec.json.encode({"format": 1, "boards": out}), indent=1) + b"\n"


def standings_json(boards: Sequence[Standings]) -> dict[str, Any]:
    """What :func:`standings_bytes` publishes, as plain JSON types."""
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
        identity = {
            "split": board.target.split.name,
            "archive_version": facts.archive_version,
            "archive_digest": facts.archive_digest,
            "scheme": board.target.scheme,
        }
        for entry in board.entries:
            rank, stated, record = entry.ranks.get(RANKED_BY), entry.submission, entry.record
            row: dict[str, object] = {
                "kind": "entry", **identity, "slug": entry.slug, "name": stated.name, "model": stated.model, "url": stated.url,
                "ranked": entry.ranked, "rank": rank and rank.rank, "best_rank": rank and rank.best, "worst_rank": rank and rank.worst,
                "repeats": record.forecasts.n_repeats, **{name: getattr(record.forecasts, name) for name in _FACTS},
            }  # fmt: skip
            for name, m in record.metrics.items():
                row |= {name: m.mean, f"{name}_std": m.std, f"{name}_low": m.low, f"{name}_high": m.high}
            if entry.replay is not None:
                row |= {"replay": entry.replay.mean, "replay_low": entry.replay.low, "replay_high": entry.replay.high}
            rows.append({key: _cell(value) for key, value in row.items()})
        for c in board.controls:
            kind = "bound" if c.bound else "control"
            rows.append({"kind": kind, **identity, "slug": c.name, "name": c.title, "ranked": False, **c.metrics})
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
