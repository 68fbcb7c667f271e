"""``replay``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kernel_archive.cli import common
from kernel_archive.splits import FORECAST_SPLITS, REPLAY

if TYPE_CHECKING:
    from kernel_archive.scoring.replay import Figure, Replay

#: As in ``scoring.replay``, which is imported when the command runs.
_POLICIES = ("random", "all", "expected", "beat", "defer", "oracle")


def _shown(f: Figure) -> str:
    if not math.isfinite(f.mean):
        return "-"  # random and oracle find the same
    return f"{f.mean:.1f} ({f.low:.1f} to {f.high:.1f})"


def _rows(done: Replay) -> list[list[str]]:
    return [
        [done.name or "(none needed)", p.policy, _shown(p.rescaled), _shown(p.area), _shown(p.to_near), f"{p.curve[10]:.0f}", f"{p.curve[25]:.0f}"]
        + [f"{value:.0f}" for value in p.hidden.values()]
        for p in done.policies
    ]  # fmt: skip


@click.command()
@click.argument("files", type=click.Path(), nargs=-1)
@common.option("--forecaster", "names", multiple=True, metavar="NAME", help="A baseline, or a cue such as code_length.")
@common.option("--policy", "policies", multiple=True, type=common.Choice(_POLICIES), help="Only these.  [default: all]")
@common.option(
    "--split",
    type=common.Choice([REPLAY.name, *FORECAST_SPLITS]),
    default=REPLAY.name,
    help="replay: every recorded program; else only the rows of a split.",
)
@common.option(
    "--searches",
    "made",
    type=common.Choice(["natural", "generated"]),
    default="natural",
    help="Chains of programs written one by one, or searches over templates.",
)
@common.option(
    "--share",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.25,
    help="Share of the children that a step measures.",
)
@common.option("--parents", type=common.FROM_1, default=4, help="Parents per step.")
@common.option("--repeats", type=common.FROM_1, default=8, help="Runs with other ties and draws.")
@common.option("--hide/--no-hide", default=True, help="Replay with 25 and 50 % of the tree hidden, too.")
@common.option("--seed", type=common.FROM_0, default=0, help="Seed of everything random.")
@common.option("--draws", type=click.IntRange(min=1, max=100_000), default=2000, help="Bootstrap draws.")
@common.archive_option
@common.json_option
def replay(
    files: tuple[str, ...],
    names: tuple[str, ...],
    policies: tuple[str, ...],
    split: str,
    made: Literal["natural", "generated"],
    hide: bool,
    seed: int,
    archive_path: str | None,
    **how: Any,
) -> None:
    """Search the recorded held-out searches again, with forecasts that choose what is measured.

    FILES are forecast files (kernel-archive template --split replay -o FILE); --forecaster makes the forecasts of a baseline or of a
    cue. Without any, the policies that need none are shown. Figures are percentages: the area under the best speedup so far (0 is
    random, 100 is an oracle), the same unscaled, the share of the measurements until 95 % of the best, and the best so far after
    10 and 25 % of the measurements.
    """
    from kernel_archive.archive.open import open_archive
    from kernel_archive.forecasters.baselines import forecasts_by_name
    from kernel_archive.scoring.reader import name_of, read_forecasts
    from kernel_archive.scoring.replay import POLICIES
    from kernel_archive.scoring.replay import replay as run
    from kernel_archive.scoring.worlds import load_worlds

    archive = open_archive(archive_path)
    worlds = load_worlds(archive, split=split, made=made)
    target = worlds.target()
    # A submission's file is always called the same: its folder has the name.
    named = [Path(file).parent.name if name_of(file) == "forecasts" else None for file in files]
    cast = [read_forecasts(file, target, name=name or None) for file, name in zip(files, named, strict=True)]
    cast += [forecasts_by_name(name, archive, worlds, seed=seed) for name in names]
    wanted = [p for p in POLICIES if not policies or p in policies]
    hidden = (0.25, 0.5) if hide else ()
    done = []
    with common.progress("Replaying") as advance:
        for number, forecasts in enumerate([*cast] or [None], 1):
            done.append(run(worlds, forecasts, policies=wanted, hide=hidden, seed=seed, **how))
            advance(number, max(1, len(cast)), forecasts.name if forecasts is not None else "")

    def text() -> None:
        first = done[0]
        columns = ["forecasts", "policy", "area, random to oracle", "area", "measured until 95 %", "at 10 %", "at 25 %"]
        columns += [f"{float(part):.0%} hidden" for part in (first.policies[0].hidden if first.policies else {})]
        note = (
            f"{first.n_worlds} worlds with {first.n_edges:,} recorded children; {first.parents} parents a step, of whose children "
            f"{first.share:.0%} are measured; 95 % intervals over worlds."
        )
        notes = [note] + [
            f"{d.name} says something of {d.coverage:.0%} of the rows; the others count as uniform."
            for d in done
            if d.name and d.coverage < 1
        ]
        common.print_table(columns, [row for d in done for row in _rows(d)], left=2, notes=notes)

    common.emit(done, text)
