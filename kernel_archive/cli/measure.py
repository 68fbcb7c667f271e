"""Commands measure, record and remeasure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kernel_archive.cli import common

if TYPE_CHECKING:
    from kernel_archive.measure.verdict import Measurement

_FOLDER = click.Path(file_okay=False, path_type=Path)
_device_option = common.option(
    "--device",
    type=common.Choice(["cuda", "cpu", "standin"]),
    default="cuda",
    help="Where to run; standin needs neither GPU nor torch (task rehearsal), cpu is for tests of small cases.",
)
_gpu_option = common.option("--gpu", help="Name of the GPU, for the physical limit.  [default: ask it]")


def _complete_task(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Tasks that can be measured."""
    from kernel_archive.measure.tasks import TASK_NAMES

    return [CompletionItem(name) for name in TASK_NAMES if name.startswith(begun)]


def _row(name: str, m: Measurement) -> list[object]:
    from kernel_archive.bins import bin_of

    times = [(c.candidate.median, c.reference.median) for c in m.cases if c.candidate and c.reference]
    mine, theirs = (" ".join(f"{pair[i] / 1e3:.1f}" for pair in times) or "-" for i in (0, 1))
    verdict = m.outcome if not m.error else f"{m.outcome}: {m.error}"
    speed, bin_ = ("-", "-") if m.speedup is None else (f"{m.speedup:.3f}x", bin_of(m.speedup))
    return [name, verdict, speed, bin_, mine, theirs]


@click.command()
@click.argument("task", shell_complete=_complete_task)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_device_option
@_gpu_option
@common.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A number of the protocol; may be repeated.")
@common.json_option
def measure(task: str, files: tuple[Path, ...], device: str, gpu: str | None, pairs: tuple[str, ...]) -> None:
    """Measure kernel files of TASK: check them on inputs they have not seen, time them beside the reference.

    A file is a Python module with custom_kernel(data). Each runs in a worker process of its own, without network. Exit
    status 1 when one of them does not pass.
    """
    from kernel_archive.measure.settings import settings_from
    from kernel_archive.measure.station import measure_files

    with common.progress("Measuring") as advance:
        found = measure_files(task, files, device=device, gpu=gpu, settings=settings_from(pairs), advance=advance)

    def text() -> None:
        columns = ["file", "verdict", "speedup", "bin", "time, us per case", "reference, us per case"]
        common.print_table(columns, [_row(r.file, r.measurement) for r in found.results], left=2, notes=found.notes)

    common.emit(found, text)
    if any(r.measurement.outcome != "success" for r in found.results):
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@common.option("--out", required=True, type=_FOLDER, help="Directory of the runs.")
@_device_option
@common.option("--only", multiple=True, metavar="PATTERN", help="Runs to record, as METHOD/TASK__NAME with wildcards.")
@common.option("--seconds", type=float, help="Start no measurement after so many seconds.")
@common.option("--share", default="1/1", metavar="I/N", help="Use the I-th of N parts of the processors.")
@common.option("--compilers", type=common.FROM_0, help="Processes that compile ahead.")
@common.option("--cache", type=_FOLDER, help="Keep compiled programs here.")
@common.option(
    "--compile-only", is_flag=True, help="Fill --cache and measure nothing; then time with --compilers 0, undisturbed."
)
@common.json_option
def record(plan: Path, only: tuple[str, ...], seconds: float | None, share: str, **how: Any) -> None:
    """Run the searches of PLAN (TOML) and write their logs; called again, go on where the logs end."""
    from kernel_archive.measure.plan import read_plan
    from kernel_archive.measure.record import record as record_plan
    from kernel_archive.measure.station import parse_share

    part, parts = parse_share(share)
    with common.progress("Recording") as advance:
        done = record_plan(
            read_plan(plan), only=list(only) or None, seconds=seconds or float("inf"), part=part, parts=parts, say=common.say, advance=advance, **how
        )  # fmt: skip

    def text() -> None:
        rows = []
        for key, run in done.runs.items():
            measured, passed = sum(run["counts"].values()), run["counts"].get("success", 0)
            best = "-" if run["best"] is None else f"{run['best']:.3f}x"
            rows.append([key, measured, passed, measured - passed, best, "yes" if run["finished"] else "no"])
        per_minute = 60 * done.evaluations / done.seconds if done.seconds else 0.0
        note = f"{done.evaluations} measured in {done.seconds:.0f} s ({per_minute:.0f} a minute), {done.restarts} workers replaced"
        common.print_table(["run", "measured", "passed", "failed", "best", "finished"], rows, notes=[note])

    common.emit(done, text)


@click.command()
@common.archive_argument
@common.option("--select", "where", default="edge", help="eval, edge, flagged, all, or a SQL condition on kernels.")
@common.option("--edge", type=float, default=0.05, help="For edge: share around a bin edge.")
@common.option("--repeat", type=common.FROM_1, default=3, help="Measurements, each in its own worker.")
@common.option("--limit", type=common.FROM_1, help="At most so many kernels.")
@common.option("--out", required=True, type=_FOLDER, help="Directory of the runs.")
@_device_option
@_gpu_option
@common.option("--seconds", type=float, help="Start no measurement after so many seconds.")
@common.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A number of the protocol; may be repeated.")
@common.json_option
def remeasure(
    archive_path: str | None, where: str, edge: float, limit: int | None, seconds: float | None, pairs: tuple[str, ...], **how: Any
) -> None:  # fmt: skip
    """Measure kernels of the archive DIR again and write the measurements as logs that a build takes in."""
    from kernel_archive.archive.open import open_archive
    from kernel_archive.measure.remeasure import choose, remeasure_programs
    from kernel_archive.measure.settings import settings_from

    chosen = choose(open_archive(archive_path), where, edge=edge, limit=limit, gpu=how["gpu"])
    common.say(f"{len(chosen)} kernels to measure {how['repeat']} times")
    with common.progress("Measuring") as advance:
        done = remeasure_programs(
            chosen, settings=settings_from(pairs, candidates_per_worker=50), seconds=seconds or float("inf"), advance=advance, **how
        )  # fmt: skip

    def text() -> None:
        rows = [
            [t, s.programs, s.measured, f"{100 * s.spread_median:.2f}%", f"{100 * s.spread_p90:.2f}%", s.moved]
            for t, s in done.tasks.items()
        ]
        columns = ["task", "kernels", "measured", "spread p50", "spread p90", "in another bin"]
        common.print_table(columns, rows, notes=done.notes)

    common.emit(done, text)
