"""What a task is: a reference, seeded inputs, cases and a tolerance.

Cases, tolerance, reference and least work of a problem are data of the core
(``kernel_archive.problems``); ``tasks.toml`` adds outputs and further cases, and modules by family
the functions that make inputs.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from kernel_archive.problems import PROBLEMS, Work

#: Shape fields of a case, and the argument of ``custom_kernel`` that is made of them.
Case = dict[str, Any]
Data = tuple[Any, ...]
#: ``(rtol, atol)`` of every output.
Tolerances = tuple[tuple[float, Any], ...]
Variant = Literal["standard", "structured", "stress"]
#: ``standard`` is the distribution that kernels are timed on. ``structured`` makes every row,
#: column and half of an input different, so that a program which looks at part of it, or relies on
#: identical statistics, gives itself away. A third one, ``stress``, lies outside what the timed
#: inputs reach (large magnitudes, say): a program that fails it keeps its verdict and is marked
#: ``narrow_domain``. Only tasks that say so have it (``Task.stress``).
VARIANTS: tuple[Variant, ...] = ("standard", "structured")


class InputMaker:
    """Gives a task its variant and numbers: ``numpy``, or those of torch on its device.

    On the device ``meta`` there is no generator, since tensors have no values.
    """

    def __init__(self, framework: str, seed: int, variant: Variant, device: str) -> None:
        self.variant, self.device = variant, device
        if framework == "numpy":
            import numpy as np

            self.numpy = np.random.default_rng(seed)
            return
        import torch

        self.torch = torch
        generator = None if device == "meta" else torch.Generator(device=device).manual_seed(seed)
        self.randn, self.rand, self.randint = (
            partial(make, generator=generator, device=device)
            for make in (torch.randn, torch.rand, torch.randint)
        )
        self.arange, self.linspace, self.logspace = (
            partial(make, device=device) for make in (torch.arange, torch.linspace, torch.logspace)
        )


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task: the problem's data in the core, and what ``tasks.toml`` adds to it."""

    name: str  # problem id (``kernel_archive.problems``)
    #: Where the functions ``<name>(case, draw)``, which makes an input, and perhaps
    #: ``<name>_tolerances(data)`` stand.
    module: str
    reference: str  # source text with a function ``reference(data)``; it is part of every record
    #: Names of the outputs, in order; one name means that the program returns it bare.
    outputs: tuple[str, ...]
    benchmark_cases: tuple[Case, ...]  # the timed cases, in order; shape fields and nothing else
    #: Further cases that are checked before timing and never timed.
    correctness_cases: tuple[Case, ...]
    small_case: Case  # a case that a CPU handles in milliseconds, for tests and rehearsals
    rtol: float
    atol: float
    #: What the programs compute with; ``numpy`` only for the rehearsal task, which needs no GPU.
    framework: Literal["torch", "numpy"] = "torch"
    #: Positions in ``data`` of buffers that the program may write and return.
    written_inputs: tuple[int, ...] = ()
    tolerance_note: str = ""  # what ``<name>_tolerances`` does in words, for ``run.json``
    stress: bool = False  # whether the task's inputs have the variant ``stress``

    @property
    def _functions(self) -> dict[str, Any]:
        return vars(importlib.import_module(f"kernel_measure.tasks.{self.module}"))

    def input_of(self, case: Case, seed: int, variant: Variant, device: str) -> Data:
        """Make a case's input from a seed."""
        draw = InputMaker(self.framework, seed, variant, device)
        data: Data = self._functions[self.name](case, draw)
        return data

    def tolerances(self, data: Data) -> Tolerances:
        """Return ``(rtol, atol)`` of every output for one input.

        An atol is a number, or a number for each index of the output's first dimension.
        """
        own = self._functions.get(f"{self.name}_tolerances")
        return own(data) if own else ((self.rtol, self.atol),) * len(self.outputs)

    def least_work(self, case: Case) -> Work | None:
        """Return the least work of a timed case of the core's data; ``None`` for any other case."""
        cases = PROBLEMS[self.name].cases if self.name in PROBLEMS else ()
        return next((timed.least_work for timed in cases if timed.shape == case), None)

    def describe_checks(self) -> dict[str, Any]:
        """Say, for ``run.json``, how a program's outputs are checked: on which inputs, how near."""
        usual = "|got - expected| <= atol + rtol |expected|, every element of every output"
        return {
            "distributions": [*VARIANTS, *(["stress"] if self.stress else [])],
            "tolerance": self.tolerance_note or usual,
        }

    @property
    def reference_program(self) -> str:
        """Write the reference as a program under test."""
        return self.reference.replace("def reference(", "def custom_kernel(", 1)

    def load_reference(self) -> Callable[[Any], Any]:
        """Load the reference as a function."""
        namespace: dict[str, Any] = {}
        exec(compile(self.reference, "<reference>", "exec"), namespace)  # noqa: S102 - our own text
        function: Callable[[Any], Any] = namespace["reference"]
        return function


def case_seed(seed: int, *parts: object) -> int:
    """Make a 62-bit seed for one input."""
    text = "\0".join(str(p) for p in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
