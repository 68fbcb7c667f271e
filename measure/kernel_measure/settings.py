"""How a measurement is made: the numbers of the protocol, and what a worker is started for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from kernel_archive.errors import UsageError
from kernel_archive.toml_files import toml_beside

#: Raised when a change of the protocol makes older measurements not comparable.
PROTOCOL_VERSION = 2
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Above0 = Annotated[float, msgspec.Meta(gt=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The protocol's numbers."""

    seed: int = 42  # from which all inputs are made, with the salt of a measurement
    min_runs: _Count = 3  # least timed pairs (candidate and reference) per case
    max_runs: _Count = 100  # most timed pairs per case
    #: Stop when the standard error of both means is under this share of the mean.
    stop_relative_error: float = 0.001
    #: Stop when candidate and reference together have run this long on one case, s.
    max_case_seconds: _Above0 = 10.0
    ring: _Count = 3  # distinct inputs per case; every timed call gets a fresh copy of the next one
    warm_calls: _Count = 2  # calls before timing, all checked in full (the first may compile)
    #: A case whose reference is off its usual time by more than this factor is measured again.
    reference_band: Annotated[float, msgspec.Meta(gt=1)] = 1.10
    remeasure: int = 2  # how often a case outside the band is measured again before it is marked
    timeout_s: _Above0 = 180.0  # limit of one evaluation, s; the worker is killed then
    compile_timeout_s: _Above0 = 90.0  # limit of compiling one program ahead, s
    host_memory_gb: _Above0 = 32.0  # resident memory of a worker at which it is killed, GB
    gpu_memory_fraction: float = 0.9  # share of the device's memory that a worker may take
    output_mb: _Count = 64  # largest file that a program may write, and largest standard output, MB
    #: Evaluations after which a worker is replaced; 1 isolates every program from the next.
    candidates_per_worker: _Count = 1
    #: ``benchmark``, or ``small`` for rehearsals and tests, never archived.
    cases: Literal["benchmark", "small"] = "benchmark"

    def __post_init__(self) -> None:
        """Refuse numbers that make no protocol."""
        if self.min_runs > self.max_runs:
            raise ValueError(f"max_runs is under min_runs ({self.max_runs} and {self.min_runs})")

    def describe(self) -> dict[str, Any]:
        """Return the numbers and what they mean, for ``run.json``."""
        return {
            "protocol": PROTOCOL_VERSION,
            **msgspec.structs.asdict(self),
            **toml_beside(__file__, "protocol.toml"),
        }


class WorkerConfig(msgspec.Struct, kw_only=True):
    """What a worker is started for."""

    mode: Literal["time", "compile", "dry", "profile"]
    task: str  # the task; for ``compile`` any task of the framework, else none
    device: str
    settings: Settings
    gpu: str = ""  # canonical name, for the physical limit and compiling ahead
    multiprocessors: int = 132  # of the GPU that dry runs believe in; an H100 or H200 has these
    cpus: list[int] = []  # processors while it answers; empty for any
    #: The worker's directory; this and the salt are filled in by the process that starts it.
    scratch: str = ""
    salt: str = ""  # makes the inputs unknown to programs
    trusted: bool = False  # whether programs run without any isolation


def settings_from(pairs: Sequence[str], **defaults: Any) -> Settings:
    """Make settings of ``name=value`` texts over defaults.

    Raises:
        UsageError: an unknown name or a wrong value.

    >>> settings_from(["max_runs=10"]).max_runs
    10
    """
    names = Settings.__struct_fields__
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or name not in names:
            raise UsageError(
                f"--set takes NAME=VALUE with one of: {', '.join(names)} (got {pair!r})"
            )
        defaults[name] = text
    try:
        return msgspec.convert(defaults, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}") from error
