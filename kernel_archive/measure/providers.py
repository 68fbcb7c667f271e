"""Where programs come from: the small interface of mutation providers, and the ones that need no language model."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from kernel_archive.errors import UsageError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection
    from pathlib import Path


class Parent(msgspec.Struct, frozen=True):
    """What a provider is told of the program that it starts from: the measured speedup, x, and feedback, and its own ``spec``."""

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


_KNOB = re.compile(r"^([A-Z][A-Z0-9_]*) = (.+?)  # knob: (.+)$", re.MULTILINE)


class Templates:
    """Programs with knobs: the Python files of one folder, each a whole program.

    A line ``NAME = value  # knob: value, value, ...`` is a knob with the values that it may take; one that stands twice is
    drawn twice as often. A spec is ``{"algo": file without .py, "knobs": {name: value}}`` and may have a ``"fault"``.

    Raises:
        UsageError: it holds no program, or a knob that is none.
    """

    def __init__(self, folder: Path) -> None:
        self._texts = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
        if not self._texts:
            text = "no programs (*.py) there; a plan names its folder of templates relative to itself"
            raise UsageError(f"{folder}: {text}")
        #: Program -> knob -> values.
        self.algorithms: dict[str, dict[str, list[Any]]] = {}
        for name, text in self._texts.items():
            try:
                knobs = {knob: list(ast.literal_eval(f"[{values}]")) for knob, _, values in _KNOB.findall(text)}
            except (ValueError, SyntaxError) as error:
                reason = f"the values of a knob are no Python constants: {error}"
                raise UsageError(f"{folder / name}.py: {reason}") from error
            self.algorithms[name] = knobs

    def seed(self) -> dict[str, Any]:
        """The spec that searches start from: the least name, as it is written."""
        name, text = next(iter(self._texts.items()))
        return {"algo": name, "knobs": {knob: ast.literal_eval(value) for knob, value, _ in _KNOB.findall(text)}}

    def draw(self, name: str, rng: random.Random) -> dict[str, Any]:
        """A spec of that program with random knobs."""
        return {"algo": name, "knobs": {knob: rng.choice(v) for knob, v in sorted(self.algorithms[name].items())}}

    def render(self, spec: Any) -> str:
        """The program of a spec."""
        code = _KNOB.sub(lambda line: f"{line[1]} = {spec['knobs'][line[1]]!r}", self._texts[spec["algo"]])
        return FAULTS[spec["fault"]](code) if spec.get("fault") else code


def _nothing(code: str) -> str:
    """The last return is missing."""
    at = code.rindex("return ")
    return f"{code[:at]}pass  # {code[at:]}"


#: Deliberate mistakes, so that a search also records failures: name -> what is done to a program.
FAULTS: Final[dict[str, Callable[[str], str]]] = {
    "syntax": lambda code: code.replace("def custom_kernel(data):", "def custom_kernel(data)", 1),
    "name": lambda code: code.replace("    return ", "    return undefined or ", 1),
    "nothing": _nothing,
}


class TemplateProvider:
    """Programs rendered from templates: with probability ``switch`` another one, with ``fault`` one that has a deliberate mistake."""

    def __init__(self, templates: Templates, *, switch: float = 0.2, fault: float = 0.02) -> None:
        self._templates, self._switch, self._fault = templates, switch, fault

    def seed(self) -> Proposal:
        """The starting program."""
        spec = self._templates.seed()
        return Proposal(self._templates.render(spec), spec)

    def propose(self, parent: Parent, rng: random.Random, seen: Collection[str]) -> Proposal | None:
        """One or two knobs changed, or another program; after many repetitions anything new."""
        algorithms = self._templates.algorithms
        for attempt in range(80):
            spec = parent.spec
            known = isinstance(spec, dict) and spec.get("algo") in algorithms
            if not known or rng.random() < self._switch or attempt > 50:
                new = self._templates.draw(rng.choice(sorted(algorithms)), rng)
            else:
                choices = algorithms[spec["algo"]]
                new = {"algo": spec["algo"], "knobs": dict(spec["knobs"])}
                for knob in rng.sample(sorted(choices), min(1 if rng.random() < 0.6 else 2, len(choices))):
                    others = [v for v in choices[knob] if v != new["knobs"].get(knob)]
                    if others:
                        new["knobs"][knob] = rng.choice(others)
            if rng.random() < self._fault:
                new["fault"] = rng.choice(sorted(FAULTS))
            code = self._templates.render(new)
            if code not in seen:
                return Proposal(code, new)
        return None
