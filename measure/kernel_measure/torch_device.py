"""A CUDA device through torch, or torch's CPU for tests."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from kernel_archive.errors import MissingExtraError, UsageError
from kernel_measure.device import Device, Sample, StandIn, difference_text

if TYPE_CHECKING:
    from collections.abc import Callable

_clock = time.perf_counter_ns


class TorchDevice(Device):
    """A CUDA device (or torch's CPU, for tests)."""

    def __init__(self, name: str = "cuda") -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError(
                "measuring needs torch. Install it with: pip install 'kernel-measure[gpu]'"
            ) from error
        if name == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "no CUDA device is available here. "
                "Rehearse with --device standin and the task rehearsal"
            )
        super().__init__(name, torch.Tensor, torch.Tensor.clone)
        self.cuda = name == "cuda"
        self.timer_is_host = not self.cuda
        self._torch = torch
        self._isclose, self._equal = torch.isclose, torch.equal
        self._zero = torch.Tensor.zero_
        self._full, self._randint = torch.full, torch.randint
        self._sync = torch.cuda.synchronize
        self._flags = (False, False)
        if self.cuda:
            self._event = torch.cuda.Event
            self._record, self._elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
            self._event_sync = torch.cuda.Event.synchronize
            properties = torch.cuda.get_device_properties(0)
            # Twice the L2, so that none of it survives.
            self._scratch = torch.empty(
                max(1, 2 * properties.L2_cache_size), dtype=torch.int8, device="cuda"
            )

    def seed(self, seed: int) -> None:
        """Seed every generator that a program may use."""
        import random

        import numpy as np

        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what a program would use
        self._torch.manual_seed(seed)

    def prepare(self, expected: tuple[Any, ...], *, flush: bool) -> None:
        """Before a call: freed memory of the outputs' sizes is full of NaN."""
        poison = [
            self._full(e.shape, self._poison(e.dtype), dtype=e.dtype, device=e.device)
            for e in expected
        ]
        del poison
        if flush and self.cuda:
            self._zero(self._scratch)

    def _poison(self, dtype: Any) -> float | int | bool:
        """A value that no result has: NaN, or the least integer."""
        if dtype.is_floating_point:
            return math.nan
        return True if dtype is self._torch.bool else int(self._torch.iinfo(dtype).min)

    def call(self, function: Callable[[Any], Any], data: Any) -> Sample:
        """One timed call, from an idle device to an idle device."""
        if not self.cuda:
            return super().call(function, data)
        first, last = self._event(enable_timing=True), self._event(enable_timing=True)
        self._sync()
        start = _clock()
        self._record(first)
        output = function(data)
        self._record(last)
        self._event_sync(last)
        middle = _clock()
        self._sync()
        end = _clock()
        return Sample(
            time_ns=self._elapsed(first, last) * 1e6,
            host_ns=float(end - start),
            tail_ns=float(end - middle),
            output=output,
        )

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            self._sync()

    def signature(self, value: Any) -> tuple[str, tuple[int, ...], str]:
        """Device type, shape and dtype, as text."""
        return value.device.type, tuple(value.shape), str(value.dtype)

    def storage(self, value: Any) -> int:
        """The address of the memory that it lies in."""
        return int(value.untyped_storage().data_ptr())

    def equal(self, a: Any, b: Any) -> bool:
        """Bitwise equality, NaN equal to NaN."""
        if a.element_size() == 1 and a.dtype.is_floating_point:  # 8-bit floats have no comparisons
            return bool(self._equal(a.view(self._torch.uint8), b.view(self._torch.uint8)))
        if self._equal(a, b):
            return True
        return bool(self._isclose(a, b, rtol=0, atol=0, equal_nan=True).all())

    def _near(self, got: Any, expected: Any, rtol: float, atol: Any) -> Any:
        """Element by element, whether ``|got - expected| <= atol + rtol |expected|``.

        Short floats are widened first: in bfloat16 the bound itself would be rounded.
        """
        if (
            not expected.dtype.is_floating_point
            and not rtol
            and isinstance(atol, int | float)
            and not atol
        ):
            return got == expected
        g, e = got.float(), expected.float()
        if isinstance(atol, int | float):
            return self._isclose(g, e, rtol=rtol, atol=atol)
        return (g == e) | ((g - e).abs() <= atol + rtol * e.abs())

    def difference(self, got: Any, expected: Any, rtol: float, atol: Any) -> str | None:
        """What is outside the tolerance, in words; ``None`` when nothing is."""
        bad, worst, nan = 0, 0.0, 0
        step = max(1, (1 << 28) // max(1, expected[0].numel()))
        for i in range(0, expected.shape[0], step):
            g, e = got[i : i + step], expected[i : i + step]
            by_row = (
                atol
                if isinstance(atol, int | float)
                else atol[i : i + step].view(-1, *[1] * (e.dim() - 1))
            )
            near = self._near(g, e, rtol, by_row)
            if bool(near.all()):
                continue
            bad += int((~near).sum())
            nan += int(g.isnan().sum())
            worst = max(
                worst, float((g.float() - e.float()).abs().nan_to_num(nan=0.0, posinf=3e38).max())
            )
        return difference_text(bad, expected.numel(), rtol, atol, worst, nan) if bad else None

    def sample_wrong(self, got: Any, expected: Any, rtol: float, atol: Any, seed: int) -> Any:
        """Whether a sample of elements is outside the tolerance."""
        gen = self._torch.Generator(device=expected.device).manual_seed(seed)
        at = self._randint(0, expected.numel(), (2048,), generator=gen, device=expected.device)
        if not isinstance(atol, int | float):
            atol = atol[at // (expected.numel() // expected.shape[0])]
        near = self._near(got.reshape(-1)[at], expected.reshape(-1)[at], rtol, atol)
        return ~near.all()

    def _write_flags(self, flags: tuple[bool, bool]) -> None:
        backends = self._torch.backends
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = flags

    def enter_candidate(self) -> None:
        """Give the program the precision switches that it set itself."""
        self._write_flags(self._flags)

    def leave_candidate(self) -> None:
        """Remember the program's switches and set ours."""
        backends = self._torch.backends
        self._flags = bool(backends.cuda.matmul.allow_tf32), bool(backends.cudnn.allow_tf32)
        self._write_flags((False, False))

    def reset(self) -> None:
        """Forget a program's switches."""
        self._flags = (False, False)
        self._write_flags(self._flags)

    def watched(self) -> dict[str, Any]:
        """Torch, its tensors, timers and streams, and Python's clocks."""
        torch = self._torch
        return {
            "torch": torch,
            "torch.Tensor": torch.Tensor,
            "torch.nn.functional": torch.nn.functional,
            "torch.cuda": torch.cuda,
            "torch.cuda.Event": torch.cuda.Event,
            "torch.cuda.Stream": torch.cuda.Stream,
            "time": time,
        }

    def facts(self) -> dict[str, Any]:
        """What is recorded of device and software."""
        import os
        import platform

        torch = self._torch
        facts: dict[str, Any] = {
            "device_properties": {"name": "cpu", "compute_capability": None},
            "software": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "torch_cuda": torch.version.cuda and str(torch.version.cuda),
                "cpu_count": os.cpu_count(),
            },
        }
        try:
            import triton

            facts["software"]["triton"] = triton.__version__
        except ImportError:
            facts["software"]["triton"] = None
        if self.cuda:
            p = torch.cuda.get_device_properties(0)
            hidden = {"uuid", "pci_bus_id", "pci_device_id", "pci_domain_id"}
            stated = {n: getattr(p, n) for n in dir(p) if not n.startswith("_") and n not in hidden}
            plain = {k: v for k, v in stated.items() if isinstance(v, int | float | str | bool)}
            facts["device_properties"] = {**plain, "compute_capability": f"{p.major}.{p.minor}"}
            facts["software"]["cudnn"] = torch.backends.cudnn.version()
        return facts


#: What the protocol measures on.
AnyDevice = StandIn | TorchDevice
