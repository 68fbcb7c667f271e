"""One program's evaluation, inside the worker: load, check on unseen inputs, time beside the reference, check again."""

from __future__ import annotations

import gc
import re
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.measure import guards, stats
from kernel_archive.measure.programs import import_code
from kernel_archive.measure.tasks.base import VARIANTS, case_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.measure.device import Device, Sample
    from kernel_archive.measure.settings import Settings
    from kernel_archive.measure.tasks.base import Task

_MAX_TEXT = 4000
_MAX_NAME = 200
_clock = time.perf_counter_ns
_sleep = time.sleep
#: Pause before a case is timed again because the host lagged, s.
_LAG_S = 0.5


class CaseResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one case gave.

    Attributes:
        shape: the case.
        failure_kind: ``none``, ``compile_failed``, ``runtime_error`` or ``incorrect``.
        error: message, empty when it passed.
        error_name: name of the exception or guard.
        traceback: of the program's own frames.
        candidate: distribution of the candidate's times.
        reference: distribution of the reference's times beside it.
        stop: why timing stopped.
        over_limit: candidate time over the physical limit, where it is known.
    """

    shape: dict[str, Any]
    failure_kind: str = "none"
    error: str = ""
    error_name: str = ""
    traceback: str = ""
    candidate: stats.Distribution | None = None
    reference: stats.Distribution | None = None
    stop: str = ""
    over_limit: float | None = None


class Result(msgspec.Struct, kw_only=True):
    """One evaluation as the worker reports it: cases in order up to the first failure.

    ``narrow_domain`` says what went wrong on ``stress`` inputs after a success; it is empty when nothing did.
    """

    cases: list[CaseResult]
    phases: dict[str, float] = {}
    salt: str = ""
    narrow_domain: str = ""


class Bench(msgspec.Struct):
    """Inputs of one case, with the reference's outputs and how near to them a program must come."""

    shape: dict[str, Any]
    variant: str
    data: list[Any]
    expected: list[tuple[Any, ...]]
    bounds: list[tuple[tuple[float, Any], ...]]


class CandidateFailure(Exception):  # noqa: N818 - carries a verdict
    """Raised inside an evaluation when the program failed a case."""

    def __init__(self, kind: str, name: str, error: str, trace: str = "") -> None:
        super().__init__(error)
        self.kind, self.name, self.error, self.trace = kind, name, error, trace

    @classmethod
    def by(cls, error: BaseException, *, at_import: bool = False) -> CandidateFailure:
        """What the program raised, as a verdict; its own classes and messages are not trusted to behave."""
        name, said = _text(type(error).__name__)[:_MAX_NAME], _text(error)
        if at_import:
            return cls("compile_failed", name, f"{name}: {_FOLDERS.sub('', said)}")
        if name in _COMPILE_ERRORS:
            return cls("compile_failed", name, _FOLDERS.sub("", said), _own_frames(error))
        return cls("runtime_error", name, said, _own_frames(error))


class Evaluator:
    """Evaluates programs of one task on one device.

    Inputs and the reference's outputs are made ahead, from the seed and a salt that no program can know.
    """

    def __init__(self, task: Task, device: Device, settings: Settings, *, salt: str, gpu: str, scratch: Path) -> None:
        self.task, self.device, self.settings, self.salt, self.gpu = task, device, settings, salt, gpu
        self._scratch = scratch
        self._reference = task.load_reference()
        small = settings.cases == "small"
        self.benchmark = (task.small_case,) if small else task.benchmark_cases
        checks = (task.small_case,) if small else task.correctness_cases
        self._checks = [self._bench(c, v, 2) for c in checks for v in VARIANTS]
        self._stress = [self._bench(c, "stress", 1) for c in checks] if task.stress else []
        self._timed = [self._bench(c, "standard", max(2, settings.ring)) for c in self.benchmark]
        self._serial = 0

    def _bench(self, case: dict[str, Any], variant: Any, count: int) -> Bench:
        data, expected, bounds = [], [], []
        for k in range(count):
            seed = case_seed(self.settings.seed, self.task.name, sorted(case.items()), variant, k, self.salt)
            made = self.task.input_of(case, seed, variant, self.device.name)
            data.append(made)
            outputs = self._reference(self.device.clone(made))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            expected.append(self.device.snapshot(outputs))
            bounds.append(self.task.bounds(made))
        self.device.synchronize()
        return Bench(case, variant, data, expected, bounds)

    def warm(self) -> None:
        """Run the reference once on every timed case, so that the first program does not pay for lazy set-up."""
        for bench in self._timed:
            self._time_one(self._reference, bench, 0)
            self._time_one(self._reference, bench, 1)

    # ---------------------------------------------------------------- one program
    def evaluate(self, code: str) -> Result:
        """The verdict of one program. Never raises for anything that the program does through Python."""
        result = Result(cases=[], salt=self.salt)
        clock = _Phases(result.phases)
        self.device.reset()
        integrity = guards.Integrity(self.device)
        self._serial += 1
        name = f"candidate_{self._serial}"
        shape: dict[str, Any] = dict(self.benchmark[0])
        try:
            with clock("import_s"):
                function = self._load(code, name)
                integrity.check()
            for bench in self._checks:
                shape = bench.shape
                with clock("check_s"):
                    self._verify(function, bench, len(bench.data))
                    integrity.check()
            for bench in self._timed:
                shape = bench.shape
                with clock("check_s"):
                    self._verify(function, bench, self.settings.warm_calls)
                    integrity.check()
                result.cases.append(self._time(function, bench, clock))
                integrity.check()
            with clock("stress_s"):
                result.narrow_domain = self._under_stress(function)
                integrity.check()
        except CandidateFailure as failure:
            result.cases.append(
                CaseResult(
                    shape=shape,
                    failure_kind=failure.kind,
                    error=failure.error[:_MAX_TEXT],
                    error_name=failure.name,
                    traceback=failure.trace[-_MAX_TEXT:],
                )
            )
        except guards.Refusal as refusal:
            result.cases.append(
                CaseResult(
                    shape=shape, failure_kind="incorrect", error=str(refusal)[:_MAX_TEXT], error_name=refusal.guard
                )
            )
        finally:
            self.device.leave_candidate()
            self.device.reset()
            sys.modules.pop(name, None)
        return result

    def _under_stress(self, function: Callable[[Any], Any]) -> str:
        """What a program that passed does wrong on inputs beyond the timed ones; empty when nothing."""
        try:
            for bench in self._stress:
                self._verify(function, bench, len(bench.data))
        except CandidateFailure as failure:
            return failure.error[:_MAX_TEXT] or failure.name
        return ""

    def _load(self, code: str, name: str) -> Callable[[Any], Any]:
        """The program's function; whatever the program raises before it is there becomes a verdict."""
        self.device.enter_candidate()
        try:
            function = getattr(import_code(code, self._scratch, name), "custom_kernel", None)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise CandidateFailure.by(error, at_import=True) from error
        finally:
            self.device.leave_candidate()
        if not callable(function):
            raise CandidateFailure(
                "compile_failed", "NoEntryPoint", "the program defines no function custom_kernel(data)"
            )
        return function  # type: ignore[no-any-return] # whatever it is, it is callable; its result is checked

    def _call(self, function: Callable[[Any], Any], data: Any) -> Sample:
        """One call of the candidate; whatever it raises becomes a verdict."""
        self.device.enter_candidate()
        try:
            sample = self.device.call(function, data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise CandidateFailure.by(error) from error
        finally:
            self.device.leave_candidate()
        return sample

    def _verify(self, function: Callable[[Any], Any], bench: Bench, calls: int) -> None:
        """Full checks on ``calls`` calls with different inputs, the earlier outputs still held."""
        held: tuple[Any, ...] = ()
        for i in range(calls):
            member = i % len(bench.data)
            data, expected = self.device.clone(bench.data[member]), bench.expected[member]
            self.device.seed(self.settings.seed + i)
            self.device.prepare(expected, flush=False)
            sample = self._call(_with_snapshot(function, self.task, self.device), data)
            returned, queued = sample.output
            outputs = guards.check_form(self.task, self.device, returned, expected)
            guards.check_aliasing(self.task, self.device, data, outputs, [self.device.storage(o) for o in held])
            self._compare(outputs, bench, member)
            if queued is not None:
                self._compare(queued, bench, member, guard="stream")
            guards.unmutated(self.task, self.device, bench.data[member], data)
            held = outputs

    def _compare(self, outputs: tuple[Any, ...], bench: Bench, member: int, guard: str = "") -> None:
        """Full comparison with what is expected of one input; a difference is the program's failure, or the guard's."""
        texts = []
        expected, bounds = bench.expected[member], bench.bounds[member]
        for name, got, want, (rtol, atol) in zip(self.task.outputs, outputs, expected, bounds, strict=True):
            text = self.device.difference(got, want, rtol, atol)
            if text:
                texts.append(f"{name}: {text}")
        if texts and guard:
            raise guards.Refusal(
                guard, "the output was not there yet for work queued behind the call; " + "; ".join(texts)
            )
        if texts:
            raise CandidateFailure("incorrect", "", f"case {bench.shape} ({bench.variant} input): " + "; ".join(texts))

    def _time_one(self, function: Callable[[Any], Any], bench: Bench, index: int, *, candidate: bool = False) -> Sample:
        """One timed call on the next input."""
        member = index % len(bench.data)
        data = self.device.clone(bench.data[member])
        self.device.prepare(bench.expected[member], flush=True)
        return self._call(function, data) if candidate else self.device.call(function, data)

    def _time(self, function: Callable[[Any], Any], bench: Bench, clock: _Phases) -> CaseResult:
        """Time a case; once more where the clocks don't agree, since a host that lags looks like a timer that lies.

        Five of 180 measurements of sound programs were refused so on a machine with four GPUs, where more than half of
        the calls lagged by 1 to 3 ms. Who changes a clock does it again. The log tells by the phase ``time_again_s``.
        """
        with clock("time_s"):
            try:
                return self._time_once(function, bench)
            except guards.Refusal as refusal:
                if refusal.guard != "clock":
                    raise
        # Outside of the handler: its traceback would keep the outputs of the first attempt in the device's memory.
        with clock("time_again_s"):
            _sleep(_LAG_S)
            return self._time_once(function, bench)

    def _time_once(self, function: Callable[[Any], Any], bench: Bench) -> CaseResult:
        """Time a case beside the reference, check what the timed calls gave, and what their times say."""
        mine: list[Sample] = []
        theirs: list[Sample] = []
        wrong: list[Any] = []
        last: tuple[Any, ...] = ()
        reason: str | None = None
        gc.collect()
        gc.disable()
        try:
            while reason is None:
                index = len(theirs)
                for candidate in (True, False) if stats.candidate_first(index) else (False, True):
                    sample = self._time_one(
                        function if candidate else self._reference, bench, index, candidate=candidate
                    )
                    if candidate:
                        last = self._sample(sample.output, bench, index, wrong)
                    sample.output = None
                    (mine if candidate else theirs).append(sample)
                own, ref = ([s.time_ns for s in samples] for samples in (mine, theirs))
                reason = stats.stop_reason(own, ref, self.settings)
        finally:
            gc.enable()
        if self.device.any_true(wrong):
            text = f"case {bench.shape}: wrong output in a timed call, right in the check before"
            raise CandidateFailure("incorrect", "", text)
        self._compare(last, bench, (len(mine) - 1) % len(bench.data))
        guards.check_clock(self.device, mine, theirs)
        candidate_times, reference_times = stats.describe(own), stats.describe(ref)
        over = None
        if self.device.name == "cuda":
            over = guards.check_limit(self.task.work(bench.shape), self.gpu, candidate_times.median)
        return CaseResult(
            shape=bench.shape, candidate=candidate_times, reference=reference_times, stop=reason, over_limit=over
        )

    def _sample(self, returned: Any, bench: Bench, index: int, wrong: list[Any]) -> tuple[Any, ...]:
        """The outputs of a timed call; whether a sample of their elements is wrong is added to ``wrong``, unread."""
        member = index % len(bench.data)
        expected, bounds = bench.expected[member], bench.bounds[member]
        outputs = guards.check_form(self.task, self.device, returned, expected)
        seed = case_seed(self.settings.seed, "sample", self.salt, index)
        for got, want, (rtol, atol) in zip(outputs, expected, bounds, strict=True):
            wrong.append(self.device.sample_wrong(got, want, rtol, atol, seed))
        return outputs


#: Exceptions of the compilers that programs use at their first call.
_COMPILE_ERRORS = frozenset(
    {"CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError"}
)

#: The folders of an absolute path: a compiler's command names those of the machine, which say nothing about the program.
_FOLDERS = re.compile(r"(?<![\w.+/-])/(?:[\w.+-]+/)+(?=[\w.+-])")


def _with_snapshot(function: Callable[[Any], Any], task: Task, device: Device) -> Callable[[Any], Any]:
    """The program, followed on the same stream by copies of what it returned."""

    def wrapped(data: Any) -> Any:
        result = function(data)
        outputs = (result,) if len(task.outputs) == 1 else result
        plain = isinstance(outputs, tuple | list) and all(device.is_plain(o) for o in outputs)
        return result, device.snapshot(tuple(outputs)) if plain else None

    return wrapped


def _own_frames(error: BaseException) -> str:
    """The traceback without the harness's frames: they say nothing about the program."""
    here = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(here)]
    lines = traceback.format_list(
        [traceback.FrameSummary(Path(f.filename).name, f.lineno, f.name, line=f.line) for f in frames]
    )
    return _text("".join([*lines, f"{type(error).__name__[:_MAX_NAME]}: {_text(error)[:_MAX_TEXT]}"]))


def _text(value: object) -> str:
    """Something as text that can be written anywhere."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - whatever the program made of it
        return "(a message that can't be read)"


class _Phases:
    """Adds up seconds by name."""

    def __init__(self, into: dict[str, float]) -> None:
        self._into = into
        self._name = ""
        self._start = 0

    def __call__(self, name: str) -> _Phases:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._start = _clock()

    def __exit__(self, *_: object) -> None:
        self._into[self._name] = self._into.get(self._name, 0.0) + (_clock() - self._start) / 1e9
