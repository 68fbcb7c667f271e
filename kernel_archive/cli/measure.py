"""Commands measure, record and remeasure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kernel_archive.cli import common

if TYPE_CHECKING:
    from kernel_archive.measure.verdict import Measurement

_device_option = click.option(
    "--device",
    type=click.Choice(["cuda", "cpu", "standin"]),
    default="cuda",
    show_default=True,
    help="Where to run; standin needs neither GPU nor torch (task rehearsal), cpu is for tests of small cases.",
)
_gpu_option = click.option("--gpu", default=None, help="Name of the GPU, for the physical limit.  [default: ask it]")


def _complete_task(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Tasks that can be measured."""
    from kernel_archive.measure.tasks import TASK_NAMES

    return [CompletionItem(name) for name in TASK_NAMES if name.startswith(begun)]


def _row(name: str, m: Measurement) -> list[object]:
    times = [c for c in m.cases if c.candidate is not None and c.reference is not None]
    mine = " ".join(f"{c.candidate.median / 1e3:.1f}" for c in times if c.candidate)
    theirs = " ".join(f"{c.reference.median / 1e3:.1f}" for c in times if c.reference)
    verdict = m.outcome if not m.error else f"{m.outcome}: {m.error}"
    from kernel_archive.bins import bin_of

    speed = "-" if m.speedup is None else f"{m.speedup:.3f}x"
    return [name, verdict, speed, "-" if m.speedup is None else bin_of(m.speedup), mine or "-", theirs or "-"]


@click.command(short_help="Measure kernel files on this machine's GPU.")
@click.argument("task", shell_complete=_complete_task)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_device_option
@_gpu_option
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A number of the protocol; may be repeated.")
@common.json_option
def measure(
    task: str, files: tuple[Path, ...], device: str, gpu: str | None, pairs: tuple[str, ...], as_json: bool
) -> None:
    """Measure kernel files of TASK: check them on inputs they have not seen, time them beside the reference.

    A file is a Python module with custom_kernel(data). Each runs in a worker process of its own, without network. Exit
    status 1 when one of them does not pass.
    """
    from kernel_archive.measure.settings import settings_from
    from kernel_archive.measure.station import measure_files

    with common.progress("Measuring", quiet=as_json) as advance:
        found = measure_files(task, files, device=device, gpu=gpu, settings=settings_from(pairs), advance=advance)

    def text() -> None:
        columns = ["file", "verdict", "speedup", "bin", "time, us per case", "reference, us per case"]
        common.print_table(columns, [_row(r.file, r.measurement) for r in found.results], left=2, notes=found.notes)

    common.emit(found, as_json=as_json, text=text)
    if any(r.measurement.outcome != "success" for r in found.results):
        raise click.exceptions.Exit(1)


@click.command(short_help="Run kernel searches and record their logs.")
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory of the runs.")
@_device_option
@click.option("--only", multiple=True, metavar="PATTERN", help="Runs to record, as METHOD/TASK__NAME with wildcards.")
@click.option("--seconds", type=float, default=None, help="Start no measurement after so many seconds.")
@click.option(
    "--share", default="1/1", show_default=True, metavar="I/N", help="Use the I-th of N parts of the processors."
)
@click.option("--compilers", type=click.IntRange(0), default=None, help="Processes that compile ahead.")
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), default=None, help="Keep compiled programs here."
)
@click.option(
    "--compile-only", is_flag=True, help="Fill --cache and measure nothing; then time with --compilers 0, undisturbed."
)
@common.json_option
def record(plan: Path, only: tuple[str, ...], seconds: float | None, share: str, as_json: bool, **how: Any) -> None:
    """Run the searches of PLAN (TOML) and write their logs; called again, go on where the logs end."""
    from kernel_archive.measure.plan import read_plan
    from kernel_archive.measure.record import record as record_plan
    from kernel_archive.measure.station import parse_share

    part, parts = parse_share(share)
    with common.progress("Recording", quiet=as_json) as advance:
        done = record_plan(
            read_plan(plan), only=list(only) or None, seconds=seconds or float("inf"), part=part, parts=parts, say=common.say, advance=advance, **how
        )  # fmt: skip

    def text() -> None:
        rows = []
        for key, run in done.runs.items():
            counts = run["counts"]
            failed = sum(v for k, v in counts.items() if k != "success")
            best = "-" if run["best"] is None else f"{run['best']:.3f}x"
            rows.append(
                [key, sum(counts.values()), counts.get("success", 0), failed, best, "yes" if run["finished"] else "no"]
            )
        per_minute = 60 * done.evaluations / done.seconds if done.seconds else 0.0
        note = f"{done.evaluations} measured in {done.seconds:.0f} s ({per_minute:.0f} a minute), {done.restarts} workers replaced"
        common.print_table(["run", "measured", "passed", "failed", "best", "finished"], rows, notes=[note])

    common.emit(done, as_json=as_json, text=text)


@click.command(short_help="Measure chosen kernels of an archive again.")
@common.archive_argument
@click.option(
    "--select",
    "where",
    default="edge",
    show_default=True,
    help="eval, edge, flagged, all, or a SQL condition on kernels.",
)
@click.option("--edge", type=float, default=0.05, show_default=True, help="For edge: share around a bin edge.")
@click.option(
    "--repeat", type=click.IntRange(1), default=3, show_default=True, help="Measurements, each in its own worker."
)
@click.option("--limit", type=click.IntRange(1), default=None, help="At most so many kernels.")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory of the runs.")
@_device_option
@_gpu_option
@click.option("--seconds", type=float, default=None, help="Start no measurement after so many seconds.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A number of the protocol; may be repeated.")
@common.json_option
def remeasure(
    archive_path: str | None,
    where: str,
    edge: float,
    limit: int | None,
    seconds: float | None,
    pairs: tuple[str, ...],
    as_json: bool,
    **how: Any,
) -> None:
    """Measure kernels of the archive DIR again and write the measurements as logs that a build takes in."""
    from kernel_archive.archive.open import open_archive
    from kernel_archive.measure.remeasure import choose, remeasure_programs
    from kernel_archive.measure.settings import settings_from

    chosen = choose(open_archive(archive_path), where, edge=edge, limit=limit, gpu=how["gpu"])
    common.say(f"{len(chosen)} kernels to measure {how['repeat']} times")
    with common.progress("Measuring", quiet=as_json) as advance:
        done = remeasure_programs(
            chosen, settings=settings_from(pairs, candidates_per_worker=50), seconds=seconds or float("inf"), advance=advance, **how
        )  # fmt: skip

    def text() -> None:
        rows = [
            [t, s.programs, s.measured, f"{100 * s.spread_median:.2f}%", f"{100 * s.spread_p90:.2f}%", s.moved]
            for t, s in done.tasks.items()
        ]
        common.print_table(
            ["task", "kernels", "measured", "spread p50", "spread p90", "in another bin"], rows, notes=done.notes
        )

    common.emit(done, as_json=as_json, text=text)
