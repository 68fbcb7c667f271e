"""Work as calls, for whoever makes them: calls in, results as they end.

A :class:`Team` offers :meth:`Team.do` alone; which kinds there are stands in :mod:`kernel_archive.archive.team`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Result = TypeVar("Result")


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One piece of work: a name for messages, and a function without arguments that pickle can take elsewhere.

    It may be made twice, on two machines: what it writes is whole or not there, and the same both times.
    """

    name: str
    function: Callable[[], Result]


class Team(Protocol):
    """Whoever makes calls."""

    @property
    def link(self) -> str | None:
        """Where the work can be watched, if anywhere."""

    def do(self, calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
        """Make all calls; position and result of each as it ends.

        Put the longest first: whoever is free takes the next. After an error, or when nobody wants further results (the
        iterator is closed), no further call begins. Of several errors that of the first call in the list is raised, with
        the name of the call.

        Raises:
            KernelArchiveError: a call's own; or a process was ended from outside, and the message names the call.
        """


def results(workers: Team, calls: Sequence[Call[Result]]) -> list[Result]:
    """The results of calls, in their order."""
    found = dict(workers.do(calls))
    return [found[i] for i in range(len(calls))]
