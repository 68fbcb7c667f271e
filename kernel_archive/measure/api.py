"""What the commands call: files in, verdicts out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.errors import UsageError
from kernel_archive.gpus import canonical_gpu, gpu_facts
from kernel_archive.measure.device import check_device
from kernel_archive.measure.measurer import Measurer
from kernel_archive.measure.settings import Settings
from kernel_archive.measure.station import query
from kernel_archive.measure.tasks import get_task
from kernel_archive.measure.verdict import Measurement, evaluation
from kernel_archive.readers.events import LoggedEvaluation  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class FileResult(msgspec.Struct, kw_only=True):
    """The verdict of one file with its distributions, and the same as the logs hold it."""

    file: str
    measurement: Measurement
    evaluation: LoggedEvaluation


class Measured(msgspec.Struct, kw_only=True):
    """The verdicts of all files, and how they were made."""

    task: str
    gpu: str
    device: str
    measurement: dict[str, Any]
    environment: dict[str, Any]
    results: list[FileResult]
    notes: list[str] = []


def settings_from(pairs: Sequence[str], **defaults: Any) -> Settings:
    """Settings from ``name=value`` texts over defaults.

    Raises:
        UsageError: an unknown name or a wrong value.

    >>> settings_from(["max_runs=10"]).max_runs
    10
    """
    known = Settings.__struct_fields__
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or name not in known:
            raise UsageError(f"--set takes NAME=VALUE with one of: {', '.join(known)} (got {pair!r})")
        defaults[name] = text
    try:
        return msgspec.convert(defaults, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}") from error


def parse_share(text: str) -> tuple[int, int]:
    """``2/4`` as the part counted from 0 and the number of parts.

    Raises:
        UsageError: it is not of that form.

    >>> parse_share("2/4")
    (1, 4)
    """
    part, sign, parts = text.partition("/")
    if sign and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts):
        return int(part) - 1, int(parts)
    raise UsageError(f"--share takes I/N with 1 <= I <= N (got {text!r})")


def resolve_gpu(device: str, gpu: str | None) -> str:
    """The canonical name of the GPU: as given, as the driver says, or the stand-in's own name."""
    if gpu:
        return canonical_gpu(gpu)
    return canonical_gpu(query().get("name", "unknown")) if device == "cuda" else device


def measure_files(
    task: str,
    files: Sequence[Path],
    *,
    device: str = "cuda",
    gpu: str | None = None,
    settings: Settings | None = None,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Measured:
    """Measure kernel files, Python modules with ``custom_kernel(data)``, each in its own worker by default.

    The driver says which GPU it is where none is named. ``advance`` is called with files done, files in all, and the file.

    Raises:
        UsageError: unknown task, or a device that is not there.
        MeasurerError: no worker comes up.
    """
    facts = get_task(task)
    check_device(device, facts)  # before a process is started for it
    protocol = settings or Settings()
    name = resolve_gpu(device, gpu)
    results = []
    with Measurer(device, protocol, gpu=name) as measurer:
        for i, file in enumerate(files):
            advance(i, len(files), file.name)
            measured = measurer.measure(facts.name, file.read_text("utf-8", "replace"))
            results.append(FileResult(file=str(file), measurement=measured, evaluation=evaluation(measured)))
        advance(len(files), len(files), "")
        smi = query() if device == "cuda" else {}
        environment = {**measurer.facts, "nvidia_smi": smi, "sandbox": measurer.confined}
    notes = []
    if device != "cuda":
        notes.append(f"Times of the device {device}: for rehearsal, not comparable with any GPU's.")
    elif gpu_facts(name).memory_bandwidth_gb_s is None:
        notes.append(f"The peaks of {name} are not known: times were not checked against the physical limit.")
    if environment["sandbox"].get("network") == "python":
        notes.append("No kernel-level confinement here: only Python's own sockets were blocked.")
    return Measured(
        task=facts.name, gpu=name, device=device, measurement=protocol.describe(), environment=environment,
        results=results, notes=notes,
    )  # fmt: skip
