"""One program's evaluation, inside the worker.

Load, check on unseen inputs, time beside the reference, check again.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kernel_measure import guards
from kernel_measure.device import TimedCall
from kernel_measure.failures import MAX_TEXT, failure_by
from kernel_measure.settings import WorkerConfig
from kernel_measure.tasks.base import VARIANTS, Case, Data, Task, Tolerances, Variant, case_seed
from kernel_measure.timing import CaseResult, Result, describe, stop_reason
from kernel_measure.torch_device import AnyDevice

T = TypeVar("T")
_sleep = time.sleep  # taken before a program could replace it
#: Pause before a case is timed again because the host lagged, s.
_LAG_S = 0.5


class Input(msgspec.Struct):
    """One input, with the reference's outputs and how near to them a program must come."""

    data: Data
    expected: tuple[Any, ...]
    tolerances: Tolerances


class CaseInputs(msgspec.Struct):
    """Inputs of one case; calls take them in turn."""

    case: Case
    variant: Variant
    members: list[Input]

    def input(self, call: int) -> Input:
        """Return the input of that call."""
        return self.members[call % len(self.members)]


def import_code(code: str, folder: Path, name: str) -> Any:
    """Import a program's text as a module of that name, by way of a file that compilers read.

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

    def __init__(self, task: Task, device: AnyDevice, config: WorkerConfig) -> None:
        self.task, self.device, self.settings = task, device, config.settings
        self.salt, self.gpu, self._scratch = config.salt, config.gpu, Path(config.scratch)
        self._reference = task.load_reference()
        small = (task.small_case,) if self.settings.cases == "small" else None
        checks = small or task.correctness_cases
        self._checks = [self._inputs_of(c, v, 2) for c in checks for v in VARIANTS]
        self._stress = [self._inputs_of(c, "stress", 1) for c in checks] if task.stress else []
        ring = max(2, self.settings.ring)
        self._timed = [self._inputs_of(c, "standard", ring) for c in small or task.benchmark_cases]
        self._serial = 0

    def _inputs_of(self, case: Case, variant: Variant, count: int) -> CaseInputs:
        """Make ``count`` inputs of a case, with the reference's outputs."""
        inputs = CaseInputs(case, variant, [])
        parts = (self.task.name, sorted(case.items()), variant)
        for k in range(count):
            seed = case_seed(self.settings.seed, *parts, k, self.salt)
            data = self.task.input_of(case, seed, variant, self.device.name)
            outputs = self._reference(self.device.clone(data))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            tolerances = self.task.tolerances(data)
            inputs.members.append(Input(data, self.device.snapshot(outputs), tolerances))
        self.device.synchronize()
        return inputs

    def warm(self) -> None:
        """Run the reference on every timed case: the first program does not pay for set-up."""
        for inputs in self._timed:
            for given in inputs.members[:2]:
                self._timed_call(self._reference, given)

    def evaluate(self, code: str) -> Result:
        """Return the verdict of one program; raise nothing for what it does through Python."""
        result = Result(salt=self.salt)
        self.device.reset()
        integrity = guards.Integrity(self.device)
        self._serial += 1
        name = f"candidate_{self._serial}"
        case = self._timed[0].case
        try:
            function = self._load(code, name)
            integrity.check()
            rounds = [(inputs, len(inputs.members), False) for inputs in self._checks]
            rounds += [(inputs, self.settings.warm_calls, True) for inputs in self._timed]
            for inputs, calls, is_timed in rounds:
                case = inputs.case
                self._verify(function, inputs, calls)
                integrity.check()
                if is_timed:
                    result.cases.append(self._time_case(function, inputs))
                    integrity.check()
            result.narrow_domain = self._under_stress(function)
            integrity.check()
        except guards.CandidateFailure as failure:
            result.failure_kind, result.failed_case = failure.kind, case
            result.error, result.error_name = failure.error[:MAX_TEXT], failure.name
        finally:
            self.device.leave_candidate()
            self.device.reset()
            sys.modules.pop(name, None)
        return result

    def _under_stress(self, function: Callable[[Any], Any]) -> str:
        """Say what a program that passed does wrong on inputs beyond the timed ones; or nothing."""
        try:
            for inputs in self._stress:
                self._verify(function, inputs, len(inputs.members))
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
        return function  # type: ignore[no-any-return] # its result is checked

    def _run(self, call: Callable[..., T], *arguments: Any, at_import: bool = False) -> T:
        """Call the program with its switches set; what it raises becomes a verdict."""
        self.device.enter_candidate()
        try:
            return call(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise failure_by(error, at_import=at_import) from error
        finally:
            self.device.leave_candidate()

    def _verify(self, function: Callable[[Any], Any], inputs: CaseInputs, calls: int) -> None:
        """Check in full the outputs of ``calls`` calls on different inputs; the last stay held."""
        task, device = self.task, self.device

        def call_and_copy(data: Any) -> Any:
            """Call the program and queue copies of what it returned on the same stream."""
            result = function(data)
            outputs = (result,) if len(task.outputs) == 1 else result
            plain = isinstance(outputs, tuple | list) and all(device.is_plain(o) for o in outputs)
            return result, device.snapshot(tuple(outputs)) if plain else None

        last: tuple[Any, ...] = ()
        for i in range(calls):
            given = inputs.input(i)
            data = device.clone(given.data)
            device.seed(self.settings.seed + i)
            device.prepare(given.expected, flush=False)
            returned, queued = self._run(device.call, call_and_copy, data).output
            outputs = guards.check_form(task, device, returned, given.expected)
            guards.check_aliasing(task, device, data, outputs, [device.storage(o) for o in last])
            self._compare(outputs, inputs, given)
            late = "" if queued is None else self._difference(queued, given)
            if late:
                text = f"the output was not there yet for work queued behind the call; {late}"
                raise guards.Refusal("stream", text)
            guards.check_mutation(task, device, given.data, data)
            last = outputs

    def _compare(self, outputs: tuple[Any, ...], inputs: CaseInputs, given: Input) -> None:
        """Compare outputs in full with what is expected of one input."""
        difference = self._difference(outputs, given)
        if difference:
            text = f"case {inputs.case} ({inputs.variant} input): {difference}"
            raise guards.CandidateFailure("incorrect", "", text)

    def _difference(self, outputs: tuple[Any, ...], given: Input) -> str:
        """Say which outputs are outside their tolerances, and how far; empty when none is."""
        texts = []
        rows = zip(self.task.outputs, outputs, given.expected, given.tolerances, strict=True)
        for name, got, want, (rtol, atol) in rows:
            text = self.device.difference(got, want, rtol, atol)
            texts += [f"{name}: {text}"] if text else []
        return "; ".join(texts)

    def _timed_call(self, function: Callable[[Any], Any], given: Input) -> TimedCall:
        """Time one call of the reference or of a program, on a copy of an input."""
        data = self.device.clone(given.data)
        self.device.prepare(given.expected, flush=True)
        if function is self._reference:
            return self.device.call(function, data)
        return self._run(self.device.call, function, data)

    def _time_case(self, function: Callable[[Any], Any], inputs: CaseInputs) -> CaseResult:
        """Time a case; once more where the clocks don't agree, as a host that lags looks like that.

        Five of 180 measurements of sound programs were refused so on a machine with four GPUs,
        where more than half of the calls lagged by 1 to 3 ms. Who changes a clock does it again.
        """
        try:
            return self._time_case_once(function, inputs)
        except guards.Refusal as refusal:
            if refusal.name != "clock":
                raise
        # Outside of the handler: its traceback would keep the outputs of the first attempt in the
        # device's memory.
        _sleep(_LAG_S)
        return self._time_case_once(function, inputs)

    def _time_case_once(self, function: Callable[[Any], Any], inputs: CaseInputs) -> CaseResult:
        """Time a case beside the reference; check what the timed calls gave, and their times."""
        candidate: list[TimedCall] = []
        reference: list[TimedCall] = []
        wrong: list[Any] = []
        last: tuple[Any, ...] = ()
        reason: str | None = None
        gc.collect()
        gc.disable()
        try:
            while reason is None:
                index = len(reference)
                given = inputs.input(index)
                # The first of a pair changes, so that a drift takes both alike.
                for is_candidate in (True, False) if index % 2 == 0 else (False, True):
                    timed = self._timed_call(function if is_candidate else self._reference, given)
                    if is_candidate:
                        last = self._spot_check(timed.output, given, index, wrong)
                    timed.output = None
                    (candidate if is_candidate else reference).append(timed)
                times = [s.time_ns for s in candidate]
                reference_times = [s.time_ns for s in reference]
                reason = stop_reason(times, reference_times, self.settings)
        finally:
            gc.enable()
        if any(map(bool, wrong)):
            text = f"case {inputs.case}: wrong output in a timed call, right in the check before"
            raise guards.CandidateFailure("incorrect", "", text)
        self._compare(last, inputs, given)
        guards.check_clock(self.device, candidate, reference)
        distribution, over = describe(times), None
        if self.device.name == "cuda":
            work = self.task.least_work(inputs.case)
            over = guards.check_limit(work, self.gpu, distribution.median)
        return CaseResult(
            shape=inputs.case,
            candidate=distribution,
            reference=describe(reference_times),
            stop=reason,
            over_limit=over,
        )

    def _spot_check(self, returned: Any, given: Input, i: int, wrong: list[Any]) -> tuple[Any, ...]:
        """Check the form of a timed call's outputs, and return them.

        Adds to ``wrong`` a value on the device for each output: whether elements taken at random
        differ. It is read after all calls, since reading it waits for the device.
        """
        outputs = guards.check_form(self.task, self.device, returned, given.expected)
        # The word is part of the seed: another one would check other elements.
        seed = case_seed(self.settings.seed, "sample", self.salt, i)
        for got, want, (rtol, atol) in zip(outputs, given.expected, given.tolerances, strict=True):
            wrong.append(self.device.spot_check_fails(got, want, rtol, atol, seed))
        return outputs
