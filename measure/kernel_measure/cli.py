"""The command line: ``kernel-measure`` with its commands."""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from kernel_archive.cli import common, run_command
from kernel_archive.toml_files import toml_beside

if TYPE_CHECKING:
    from kernel_measure.verdict import Measurement

#: What went with 1.0 -> what to type instead.
MOVED: Final = toml_beside(__file__, "moved.toml")
_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, path_type=Path)
_device_option = common.option(
    "--device",
    type=common.Choice(["cuda", "cpu", "standin"]),
    default="cuda",
    help="Where to run; standin needs neither GPU nor torch (task rehearsal), cpu is for tests.",
)
_gpu_option = common.option(
    "--gpu", help="Name of the GPU, for the physical limit.  [default: ask it]"
)
_seconds_option = common.option(
    "--seconds", type=float, default=math.inf, help="Start no measurement after this time."
)
_set_option = common.option(
    "--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A number of the protocol."
)
_trusted_option = common.option(
    "--trusted",
    is_flag=True,
    help="Run programs WITHOUT ANY ISOLATION: only for programs that you would run yourself.",
)


def _refuse(ctx: click.Context, option: click.Parameter, value: object) -> None:
    name = option.opts[0]
    if value:
        raise click.UsageError(f"{name!r} is gone since 1.0. Type: {MOVED[name]}", ctx)


#: An option that went with 1.0, with or without a value.
_moved_option = partial(
    click.option,
    is_flag=False,
    flag_value="typed",
    hidden=True,
    expose_value=False,
    callback=_refuse,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="kernel-measure")
def cli() -> None:
    """Time kernels on a GPU and record searches.

    Programs run in bubblewrap, or nowhere; with --trusted without any isolation.

    Exit status: 0 done, 1 a program or file is at fault, 2 the command line is wrong.
    """


def _warn_if_trusted(trusted: bool) -> None:
    from kernel_measure.station import TRUSTED_WARNING

    if trusted:
        common.print_remark(f"Warning: {TRUSTED_WARNING}")


def _station_options(device: str, trusted: bool, **places: Any) -> Any:
    from kernel_measure.station import StationOptions

    _warn_if_trusted(trusted)
    return StationOptions(device=device, trusted=trusted, **places)


def _row(name: str, m: Measurement) -> list[object]:
    from kernel_archive.bins import bin_of

    times = " ".join(f"{case.candidate.median / 1e3:.1f}" for case in m.cases) or "-"
    reference = " ".join(f"{case.reference.median / 1e3:.1f}" for case in m.cases) or "-"
    verdict = m.outcome if not m.error else f"{m.outcome}: {m.error}"
    speed, bin_ = ("-", "-") if m.speedup is None else (f"{m.speedup:.3f}x", bin_of(m.speedup))
    return [name, verdict, speed, bin_, times, reference]


@cli.command()
@click.argument("task")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@common.options(_device_option, _gpu_option, _set_option, _trusted_option, common.json_option)
def measure(task: str, files: tuple[Path, ...], gpu: str | None, **how: Any) -> None:
    """Check kernel files of TASK on inputs they have not seen.

    A file is a Python module with custom_kernel(data). Each runs in a worker process of its own.
    Exit status 1 when one of them does not pass.
    """
    from kernel_measure.settings import settings_from
    from kernel_measure.station import measure_files

    settings = settings_from(how["pairs"])
    options = _station_options(how["device"], how["trusted"])
    with common.progress("Measuring") as advance:
        done = measure_files(
            task, files, options=options, gpu=gpu, settings=settings, advance=advance
        )

    def print_result() -> None:
        columns = ["file", "verdict", "speedup", "bin"]
        columns += ["time, us per case", "reference, us per case"]
        rows = [_row(r.file, r.measurement) for r in done.results]
        common.print_table(columns, rows, left=2, notes=done.notes)

    common.emit(done, print_result)
    if any(r.measurement.outcome != "success" for r in done.results):
        raise click.exceptions.Exit(1)


@cli.command()
@click.argument("plan", type=_FILE)
@common.option("--out", required=True, type=_FOLDER, help="Directory of the runs.")
@_device_option
@_trusted_option
@common.option("--only", multiple=True, metavar="PATTERN", help="Runs, as METHOD/TASK__NAME.")
@_seconds_option
@common.option("--compilers", type=common.FROM_0, help="Processes that compile ahead.")
@common.option("--cache", type=_FOLDER, help="Keep compiled programs here.")
@common.option("--wait/--no-wait", default=True, help="Wait for proposals as files, or end then.")
@_moved_option("--share")
@_moved_option("--compile-only")
@common.json_option
def record(plan: Path, out: Path, **how: Any) -> None:
    """Run the searches of PLAN (TOML) and write their logs; called again, go on where they end.

    By rounds: all that can be measured is compiled before anything is timed. Searches wait for
    proposals: see questions/ in the runs.
    """
    from kernel_measure.plan import read_plan
    from kernel_measure.record import record as record_plan

    places = {name: how.pop(name) for name in ("device", "trusted", "compilers", "cache")}
    with common.progress("Recording") as advance:
        done = record_plan(read_plan(plan), out, _station_options(**places), advance=advance, **how)
    common.emit(done)


@cli.command()
@common.archive_argument
@common.option(
    "--select",
    "where",
    default="edge",
    help="eval, edge, flagged, all, or a SQL condition on kernels.",
)
@common.option(
    "--repeat", type=common.FROM_1, default=3, help="Measurements, each repetition in new workers."
)
@common.option("--limit", type=common.FROM_1, help="Measure at most this many kernels.")
@common.option("--out", required=True, type=_FOLDER, help="Directory of the runs.")
@common.options(_device_option, _gpu_option, _seconds_option, _set_option, _trusted_option)
@_moved_option("--archive")
@_moved_option("--edge")
def remeasure(archive_path: str | None, where: str, out: Path, **how: Any) -> None:
    """Measure kernels of the archive DIR again and write the measurements as logs."""
    from kernel_archive.archive.open import open_archive
    from kernel_measure.remeasure import RemeasureOptions, choose, remeasure_programs
    from kernel_measure.settings import settings_from

    options = RemeasureOptions(
        repeat=how["repeat"],
        station_options=_station_options(how["device"], how["trusted"]),
        settings=settings_from(how["pairs"], candidates_per_worker=50),
        gpu=how["gpu"],
        deadline=time.monotonic() + how["seconds"],
    )
    archive = open_archive(archive_path)
    chosen = choose(archive, where, limit=how["limit"], gpu=how["gpu"])
    common.print_remark(f"{len(chosen)} kernels to measure {how['repeat']} times")
    with common.progress("Measuring") as advance:
        done = remeasure_programs(chosen, out, options, advance=advance)
    common.emit(done)


_following_options = common.options(
    common.option(
        "-o", "--output", required=True, type=_OUTPUT, help="File to write; .zst is compressed."
    ),
    common.archive_option,
    _trusted_option,
    common.force_option,
    common.json_option,
)


def _follow(
    mode: Literal["dry", "profile"], archive_path: str | None, output: Path, force: bool, **how: Any
) -> None:
    from kernel_archive.archive.open import open_archive
    from kernel_measure.dry_run import FollowOptions, follow_programs

    _warn_if_trusted(how["trusted"])
    archive = open_archive(archive_path)
    with common.progress("Following") as advance:
        done = follow_programs(
            archive, output, FollowOptions(mode=mode, **how), force=force, advance=advance
        )
    common.emit(done)


@cli.command()
@_following_options
def dry_run(**how: Any) -> None:
    """Follow the host code of an archive's programs on tensors without values.

    No GPU is needed, only torch: Triton is replaced by a stand-in, nothing is compiled or computed.
    The file says, for each case of each Triton, Gluon or PyTorch program, which kernels it
    launches, how wide, with how many warps, and which torch operators it calls. Programs in the
    form of KernelBench are followed on the inputs that their reference makes. A recipe names the
    file with launches = "..."; a program that can't be followed is in it with the reason. A call
    that was killed leaves its answers in FILE.unfinished-..., and the next goes on from them.
    """
    _follow("dry", **how)


@cli.command()
@_following_options
@common.option(
    "--workers", type=common.FROM_1, default=8, help="Processes that compile and share the GPU."
)
@_seconds_option
def profile(**how: Any) -> None:
    """Call an archive's programs on the GPU, and write every kernel that they launch.

    The file says, for each case of each program, what torch's profiler sees: grid, threads,
    registers and shared memory of each kernel, those of CUDA C++ and of torch included, and what
    Triton's spill. Nothing is timed. A recipe names the file in launches = [...]. A call that was
    killed, or ended by --seconds, leaves its answers in FILE.unfinished-..., and the next goes on
    from them (with --force, where FILE is there).
    """
    _follow("profile", **how)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 when done, 1 when data is at fault, 2 for wrong usage."""
    return run_command(cli, sys.argv[1:] if argv is None else argv, "kernel-measure")
