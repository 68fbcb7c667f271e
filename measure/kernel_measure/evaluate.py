"""One program's evaluation, inside the worker.

Load, check on unseen inputs, time beside the reference, check again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kernel_measure import guards
from kernel_measure.failures import MAX_TEXT, failure_by
from kernel_measure.tasks.base import VARIANTS, Bounds, Case, Data, Variant, case_seed
from kernel_measure.timing import CaseResult, Result, candidate_first, describe, stop_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kernel_measure.device import Sample
    from kernel_measure.settings import Settings
    from kernel_measure.tasks.base import Task
    from kernel_measure.torch_device import AnyDevice

T = TypeVar("T")
_clock = time.perf_counter_ns
_sleep = time.sleep
#: Pause before a case is timed again because the host lagged, s.
_LAG_S = 0.5


class Input(msgspec.Struct):
    """One input, with the reference's outputs and how near to them a program must come."""

    data: Data
    expected: tuple[Any, ...]
    bounds: Bounds


class Bench(msgspec.Struct):
    """Inputs of one case; calls take them in turn."""

    shape: Case
    variant: Variant
    inputs: list[Input]

    def input(self, call: int) -> Input:
        """The input of that call."""
        return self.inputs[call % len(self.inputs)]


def import_code(code: str, folder: Path, name: str) -> Any:
    """A program's text as a module of that name, by way of a file in ``folder``.

    Compilers read what they compile.

    The one way in which code under test is imported. It is in ``sys.modules`` while it runs and
    afterwards. Whatever the program raises is passed on.
    """
    path = folder / f"{name}.py"
    path.write_text(code, encoding="utf-8", errors="surrogatepass")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101 - a path that ends in .py always has one
    assert spec.loader is not None  # noqa: S101 - likewise
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Evaluator:
    """Evaluates programs of one task on one device.

    Inputs and the reference's outputs are made ahead, from the seed and a salt that no program can
    know.
    """

    def __init__(
        self,
        task: Task,
        device: AnyDevice,
        settings: Settings,
        *,
        salt: str,
        gpu: str,
        scratch: Path,
    ) -> None:
        self.task, self.device, self.settings, self.salt, self.gpu = (
            task,
            device,
            settings,
            salt,
            gpu,
        )
        self._scratch = scratch
        self._reference = task.load_reference()
        small = settings.cases == "small"
        self.benchmark = (task.small_case,) if small else task.benchmark_cases
        checks = (task.small_case,) if small else task.correctness_cases
        self._checks = [self._bench(c, v, 2) for c in checks for v in VARIANTS]
        self._stress = [self._bench(c, "stress", 1) for c in checks] if task.stress else []
        self._timed = [self._bench(c, "standard", max(2, settings.ring)) for c in self.benchmark]
        self._serial = 0

    def _bench(self, case: Case, variant: Variant, count: int) -> Bench:
        bench = Bench(case, variant, [])
        for k in range(count):
            seed = case_seed(
                self.settings.seed, self.task.name, sorted(case.items()), variant, k, self.salt
            )
            data = self.task.input_of(case, seed, variant, self.device.name)
            outputs = self._reference(self.device.clone(data))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            bench.inputs.append(Input(data, self.device.snapshot(outputs), self.task.bounds(data)))
        self.device.synchronize()
        return bench

    def warm(self) -> None:
        """Run the reference once on every timed case.

        So that the first program does not pay for lazy set-up.
        """
        for bench in self._timed:
            for given in bench.inputs[:2]:
                self._time_one(self._reference, given)

    def evaluate(self, code: str) -> Result:
        """The verdict of one program.

        Never raises for anything that the program does through Python.
        """
        result = Result(cases=[], salt=self.salt)
        clock = partial(_clocked, result.phases)
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
                    self._verify(function, bench, len(bench.inputs))
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
        except guards.CandidateFailure as failure:
            error, trace = failure.error[:MAX_TEXT], failure.trace[-MAX_TEXT:]
            failed = CaseResult(
                shape=shape,
                failure_kind=failure.kind,
                error=error,
                error_name=failure.name,
                traceback=trace,
            )
            result.cases.append(failed)
        finally:
            self.device.leave_candidate()
            self.device.reset()
            sys.modules.pop(name, None)
        return result

    def _under_stress(self, function: Callable[[Any], Any]) -> str:
        """What a program that passed does wrong on inputs beyond the timed ones.

        Empty when nothing.
        """
        try:
            for bench in self._stress:
                self._verify(function, bench, len(bench.inputs))
        except guards.Refusal:
            raise
        except guards.CandidateFailure as failure:
            return failure.error[:MAX_TEXT] or failure.name
        return ""

    def _load(self, code: str, name: str) -> Callable[[Any], Any]:
        """Load the program's function; whatever it raises before that becomes a verdict."""

        def load() -> Any:
            return getattr(import_code(code, self._scratch, name), "custom_kernel", None)

        function = self._run(load, at_import=True)
        if not callable(function):
            text = "the program defines no function custom_kernel(data)"
            raise guards.CandidateFailure("compile_failed", "NoEntryPoint", text)
        return function  # type: ignore[no-any-return] # whatever it is, it is callable; its result is checked

    def _run(self, call: Callable[..., T], *arguments: Any, at_import: bool = False) -> T:
        """A call in which the program runs, with its switches.

        Whatever it raises becomes a verdict.
        """
        self.device.enter_candidate()
        try:
            return call(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise failure_by(error, at_import=at_import) from error
        finally:
            self.device.leave_candidate()

    def _verify(self, function: Callable[[Any], Any], bench: Bench, calls: int) -> None:
        """Full checks on ``calls`` calls with different inputs, the earlier outputs still held."""
        held: tuple[Any, ...] = ()
        for i in range(calls):
            given = bench.input(i)
            data = self.device.clone(given.data)
            self.device.seed(self.settings.seed + i)
            self.device.prepare(given.expected, flush=False)
            sample = self._run(
                self.device.call, _with_snapshot(function, self.task, self.device), data
            )
            returned, queued = sample.output
            outputs = guards.check_form(self.task, self.device, returned, given.expected)
            guards.check_aliasing(
                self.task, self.device, data, outputs, [self.device.storage(o) for o in held]
            )
            self._compare(outputs, bench, given)
            late = "" if queued is None else self._difference(queued, given)
            if late:
                raise guards.Refusal(
                    "stream",
                    f"the output was not there yet for work queued behind the call; {late}",
                )
            guards.unmutated(self.task, self.device, given.data, data)
            held = outputs

    def _compare(self, outputs: tuple[Any, ...], bench: Bench, given: Input) -> None:
        """Full comparison with what is expected of one input.

        A difference is the program's failure.
        """
        text = self._difference(outputs, given)
        if text:
            raise guards.CandidateFailure(
                "incorrect", "", f"case {bench.shape} ({bench.variant} input): {text}"
            )

    def _difference(self, outputs: tuple[Any, ...], given: Input) -> str:
        """Which outputs are outside their tolerances, and how far; empty when none is."""
        rows = zip(self.task.outputs, outputs, given.expected, given.bounds, strict=True)
        found = {
            name: self.device.difference(got, want, rtol, atol)
            for name, got, want, (rtol, atol) in rows
        }
        return "; ".join(f"{name}: {text}" for name, text in found.items() if text)

    def _time_one(
        self, function: Callable[[Any], Any], given: Input, *, candidate: bool = False
    ) -> Sample:
        """One timed call on a copy of an input."""
        data = self.device.clone(given.data)
        self.device.prepare(given.expected, flush=True)
        return (
            self._run(self.device.call, function, data)
            if candidate
            else self.device.call(function, data)
        )

    def _time(
        self,
        function: Callable[[Any], Any],
        bench: Bench,
        clock: Callable[[str], AbstractContextManager[None]],
    ) -> CaseResult:
        """Time a case; once more where the clocks don't agree.

        Since a host that lags looks like a timer that lies.

        Five of 180 measurements of sound programs were refused so on a machine with four GPUs,
        where more than half of the calls lagged by 1 to 3 ms. Who changes a clock does it again.
        The log tells by the phase ``time_again_s``.
        """
        with clock("time_s"):
            try:
                return self._time_once(function, bench)
            except guards.Refusal as refusal:
                if refusal.name != "clock":
                    raise
        # Outside of the handler: its traceback would keep the outputs of the first attempt in the
        # device's memory.
        with clock("time_again_s"):
            _sleep(_LAG_S)
            return self._time_once(function, bench)

    def _time_once(self, function: Callable[[Any], Any], bench: Bench) -> CaseResult:
        """Time a case beside the reference, check what the timed calls gave.

        What their times say.
        """
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
                given = bench.input(index)
                for candidate in (True, False) if candidate_first(index) else (False, True):
                    sample = self._time_one(
                        function if candidate else self._reference, given, candidate=candidate
                    )
                    if candidate:
                        last = self._sample(sample.output, given, index, wrong)
                    sample.output = None
                    (mine if candidate else theirs).append(sample)
                own, ref = ([s.time_ns for s in samples] for samples in (mine, theirs))
                reason = stop_reason(own, ref, self.settings)
        finally:
            gc.enable()
        if any(map(bool, wrong)):
            text = f"case {bench.shape}: wrong output in a timed call, right in the check before"
            raise guards.CandidateFailure("incorrect", "", text)
        self._compare(last, bench, given)
        guards.check_clock(self.device, mine, theirs)
        candidate_times, reference_times = describe(own), describe(ref)
        over = None
        if self.device.name == "cuda":
            over = guards.check_limit(
                self.task.least_work(bench.shape), self.gpu, candidate_times.median
            )
        return CaseResult(
            shape=bench.shape,
            candidate=candidate_times,
            reference=reference_times,
            stop=reason,
            over_limit=over,
        )

    def _sample(self, returned: Any, given: Input, index: int, wrong: list[Any]) -> tuple[Any, ...]:
        """The outputs of a timed call.

        Whether a sample of their elements is wrong is added to ``wrong``, unread.
        """
        outputs = guards.check_form(self.task, self.device, returned, given.expected)
        seed = case_seed(self.settings.seed, "sample", self.salt, index)
        for got, want, (rtol, atol) in zip(outputs, given.expected, given.bounds, strict=True):
            wrong.append(self.device.sample_wrong(got, want, rtol, atol, seed))
        return outputs


def _with_snapshot(
    function: Callable[[Any], Any], task: Task, device: AnyDevice
) -> Callable[[Any], Any]:
    """The program, followed on the same stream by copies of what it returned."""

    def wrapped(data: Any) -> Any:
        result = function(data)
        outputs = (result,) if len(task.outputs) == 1 else result
        plain = isinstance(outputs, tuple | list) and all(device.is_plain(o) for o in outputs)
        return result, device.snapshot(tuple(outputs)) if plain else None

    return wrapped


@contextlib.contextmanager
def _clocked(phases: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds that this takes to those of the phase."""
    start = _clock()
    try:
        yield
    finally:
        phases[name] = phases.get(name, 0.0) + (_clock() - start) / 1e9
