"""Where programs come from: the small interface of mutation providers, and the ones that need no language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kernel_archive.errors import UsageError
from kernel_archive.measure.programs import import_file

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence
    from pathlib import Path

__all__ = ["Parent", "Proposal", "Provider", "TemplateProvider", "load_module"]


class Parent(msgspec.Struct, frozen=True):
    """What a provider is told of the program that it starts from.

    Attributes:
        code: the program.
        speedup: as measured, x; ``None`` where it has none.
        spec: what the provider itself said about the program when it proposed it.
        feedback: the observation's feedback, for providers that read it.
    """

    code: str
    speedup: float | None = None
    spec: Any = None
    feedback: Any = None


class Proposal(msgspec.Struct, frozen=True):
    """One program, with what the provider wants to know of it later (plain JSON data)."""

    code: str
    spec: Any = None


class Provider(Protocol):
    """Makes programs. Must depend on nothing but its arguments, so that a resumed search goes on as it would have."""

    def seed(self) -> Proposal:
        """The search's starting program."""
        ...

    def propose(self, parent: Parent, rng: random.Random, seen: Collection[str]) -> Proposal | None:
        """A program made from the parent that is not among ``seen``; ``None`` when there is none."""
        ...


def load_module(path: Path) -> Any:
    """A plan's own Python file as a module. It is code of whoever wrote the plan and runs unconfined.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file; a plan names its modules relative to itself")
    return import_file(path, f"kernel_archive_plan_{path.stem}")


class TemplateProvider:
    """Programs rendered from templates with knobs, by a module of the plan.

    The module has ``algorithms(task, language) -> {name: {knob: [values]}}``, ``render(task, language, spec) -> str``,
    where ``spec`` is ``{"algo": name, "knobs": {...}}`` and optionally ``"fault"``, ``seed(task, language) -> spec``, and
    ``FAULTS``, names of deliberate mistakes that ``render`` knows.

    Args:
        module: the module.
        task: problem id.
        language: ``triton`` or ``cuda``.
        root: the starting spec; the module's own when not given.
        switch: probability of another algorithm.
        fault: probability of a deliberate mistake.
        only: the algorithms to use; all when empty.
    """

    def __init__(
        self,
        module: Any,
        task: str,
        language: str,
        *,
        root: Any = None,
        switch: float = 0.2,
        fault: float = 0.02,
        only: Sequence[str] = (),
    ) -> None:
        self._module, self._task, self._language = module, task, language
        self._root, self._switch, self._fault = root, switch, fault
        known = module.algorithms(task, language)
        unknown = sorted(set(only) - set(known))
        if unknown or not known:
            raise UsageError(
                f"no algorithm {', '.join(unknown) or 'at all'} for {task} in {language}; known: {', '.join(known)}"
            )
        self._algorithms: dict[str, dict[str, list[Any]]] = {k: v for k, v in known.items() if not only or k in only}

    def _render(self, spec: Any) -> Proposal:
        return Proposal(self._module.render(self._task, self._language, spec), spec)

    def seed(self) -> Proposal:
        """The starting program."""
        return self._render(self._root or self._module.seed(self._task, self._language))

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        name = rng.choice(sorted(self._algorithms))
        return {"algo": name, "knobs": {k: rng.choice(v) for k, v in self._algorithms[name].items()}}

    def propose(self, parent: Parent, rng: random.Random, seen: Collection[str]) -> Proposal | None:
        """One or two knobs changed, or another algorithm; after many repetitions anything new."""
        for attempt in range(80):
            spec = parent.spec
            known = isinstance(spec, dict) and spec.get("algo") in self._algorithms
            if not known or rng.random() < self._switch or attempt > 50:
                new = self._draw(rng)
            else:
                choices = self._algorithms[spec["algo"]]
                new = {"algo": spec["algo"], "knobs": dict(spec["knobs"])}
                for knob in rng.sample(sorted(choices), min(1 if rng.random() < 0.6 else 2, len(choices))):
                    others = [v for v in choices[knob] if v != new["knobs"].get(knob)]
                    if others:
                        new["knobs"][knob] = rng.choice(others)
            if rng.random() < self._fault:
                new["fault"] = rng.choice(sorted(self._module.FAULTS))
            proposal = self._render(new)
            if proposal.code not in seen:
                return proposal
        return None
