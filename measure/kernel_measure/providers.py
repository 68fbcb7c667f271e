"""The interface of mutators: what a search tells them, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Collection


class Parent(msgspec.Struct, frozen=True):
    """What a provider is told of the program that it starts from."""

    code: str
    speedup: float | None = None
    spec: Any = None
    feedback: Any = None


class Proposal(msgspec.Struct, frozen=True):
    """One program, with what the provider wants to know of it later (plain JSON data)."""

    code: str
    spec: Any = None


class NoProposal(msgspec.Struct, frozen=True):
    """There is no program to measure for a question, and why."""

    reason: str


class Provider(Protocol):
    """Makes programs."""

    def seed(self) -> Proposal:
        """The search's starting program."""
        ...

    def forecast(self, question: str, code: str) -> dict[str, Any] | None:
        """Forecast a proposal; ``None`` when there is no forecast yet.

        ``expected_speedup`` of the answer is a positive number.
        """
        ...

    def propose(
        self, question: str, parent: Parent, rng: random.Random, seen: Collection[str]
    ) -> Proposal | NoProposal | None:
        """A program made from the parent that is not among ``seen``.

        ``question`` is the id of the request, the same when it is asked again.
        """
        ...
