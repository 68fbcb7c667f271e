"""``theory-builder``: hypotheses about a kernel, each tried in an inner search with a log.

The outer log repeats every trial and is not read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kernel_archive.readers.log_reader import log_format
from kernel_archive.readers.puct import EventLog

if TYPE_CHECKING:
    from pathlib import Path

_INNER: Final = "inner_events.jsonl"
_STEP: Final = re.compile(r"step_(\d{1,9})$")


class _TheoryBuilder(EventLog):
    """The evaluations of all inner logs, each in the step that its folder names."""

    def read(self, path: Path) -> bool:
        """Read every inner log in order; return whether there was an event in one."""
        logs: list[tuple[int, str, Path]] = []
        for log in self.run.files:
            if log == path or log.name.startswith(_INNER):
                match = _STEP.search(log.parent.name)
                logs.append((int(match[1]) if match else -1, log.as_posix(), log))
        any_read = False
        for step, _, log in sorted(logs):
            self.outer_step, self.file = None if step < 0 else step, self.run.name(log)
            any_read |= super().read(log)
        self.facts.counts["inner_logs"] += len(logs)
        return any_read


THEORY_BUILDER: Final = log_format("theory-builder", _TheoryBuilder)
