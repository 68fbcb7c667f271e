"""A CUDA device through torch, or torch's CPU for tests."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import platform
import random
import time
from collections.abc import Callable
from typing import Any

from kernel_archive.errors import MissingExtraError, UsageError
from kernel_measure.device import Device, StandIn, TimedCall

_clock = time.perf_counter_ns


class TorchDevice(Device):
    """A CUDA device (or torch's CPU, for tests)."""

    def __init__(self, name: str = "cuda") -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError(
                "measuring needs torch. In a checkout type: pip install './measure[gpu]'"
            ) from error
        if name == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "no CUDA device is available here. "
                "Rehearse with --device standin and the task rehearsal"
            )
        super().__init__(name, torch.Tensor, torch.Tensor.clone, torch)
        self.cuda = name == "cuda"
        self.timer_is_host = not self.cuda
        self._torch, self._equal, self._zero = torch, torch.equal, torch.Tensor.zero_
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
        import numpy as np

        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what a program would use
        self._torch.manual_seed(seed)

    def prepare(self, expected: tuple[Any, ...], *, flush: bool) -> None:
        """Fill freed memory of the outputs' sizes with NaN and, with ``flush``, empty the L2."""
        poison = [
            self._full(e.shape, self._poison(e.dtype), dtype=e.dtype, device=e.device)
            for e in expected
        ]
        del poison
        if flush and self.cuda:
            self._zero(self._scratch)

    def _poison(self, dtype: Any) -> float | int | bool:
        """Return a value that no result has: NaN, or the least integer."""
        if dtype.is_floating_point:
            return math.nan
        return True if dtype is self._torch.bool else int(self._torch.iinfo(dtype).min)

    def call(self, function: Callable[[Any], Any], data: Any) -> TimedCall:
        """Time one call, from an idle device to an idle device."""
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
        return TimedCall(
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
        """Return device type, shape and dtype."""
        return value.device.type, tuple(value.shape), str(value.dtype)

    def storage(self, value: Any) -> int:
        """Return the address of the memory that it lies in."""
        return int(value.untyped_storage().data_ptr())

    def equal(self, a: Any, b: Any) -> bool:
        """Tell whether two tensors are equal in all values; NaN equals NaN."""
        if a.element_size() == 1 and a.dtype.is_floating_point:  # 8-bit floats have no comparisons
            return bool(self._equal(a.view(self._torch.uint8), b.view(self._torch.uint8)))
        if self._equal(a, b):
            return True
        return bool(self._isclose(a, b, rtol=0, atol=0, equal_nan=True).all())

    def _near(self, got: Any, expected: Any, rtol: float, atol: Any) -> Any:
        """Tell, element by element, whether ``|got - expected| <= atol + rtol |expected|``.

        Short floats are widened first: in bfloat16 the tolerance itself would be rounded.
        """
        plain = isinstance(atol, int | float)
        if not expected.dtype.is_floating_point and plain and not rtol and not atol:
            return got == expected
        g, e = got.float(), expected.float()
        if plain:
            return self._isclose(g, e, rtol=rtol, atol=atol)
        return (g == e) | ((g - e).abs() <= atol + rtol * e.abs())

    def _largest(self, got: Any, expected: Any) -> float:
        difference = (got.float() - expected.float()).abs()
        return float(difference.nan_to_num(nan=0.0, posinf=3e38).max())

    def _places(self, size: int, seed: int, like: Any) -> Any:
        gen = self._torch.Generator(device=like.device).manual_seed(seed)
        return self._randint(0, size, (2048,), generator=gen, device=like.device)

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
        """Return whose functions a program must leave alone: torch, its parts, Python's clocks."""
        torch = self._torch
        names = ("Tensor", "nn.functional", "cuda", "cuda.Event", "cuda.Stream")
        parts = {f"torch.{name}": operator.attrgetter(name)(torch) for name in names}
        return {"torch": torch, **parts, "time": time}

    def facts(self) -> dict[str, Any]:
        """Return what is recorded of device and software."""
        torch = self._torch
        properties: dict[str, Any] = {"name": "cpu", "compute_capability": None}
        software = {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "torch_cuda": torch.version.cuda and str(torch.version.cuda),
            "cpu_count": os.cpu_count(),
            "triton": None,
        }
        with contextlib.suppress(ImportError):
            import triton

            software["triton"] = triton.__version__
        if self.cuda:
            p = torch.cuda.get_device_properties(0)
            hidden = {"uuid", "pci_bus_id", "pci_device_id", "pci_domain_id"}
            stated = {n: getattr(p, n) for n in dir(p) if not n.startswith("_") and n not in hidden}
            plain = {k: v for k, v in stated.items() if isinstance(v, int | float | str | bool)}
            properties = {**plain, "compute_capability": f"{p.major}.{p.minor}"}
            software["cudnn"] = torch.backends.cudnn.version()
        return {"device_properties": properties, "software": software}


#: What the protocol measures on.
AnyDevice = StandIn | TorchDevice
