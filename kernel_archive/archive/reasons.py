"""Why an evaluation counts in no other table, as ``evaluations.excluded`` states it, beside the reasons that recipes give."""

from __future__ import annotations

from typing import Final

__all__ = ["CONTESTED", "OVERRULED", "SUPERSEDED", "WITHHELD"]

#: Reason in ``evaluations.excluded`` of training measurements whose program is held out.
WITHHELD: Final = "withheld from train: the program or a near duplicate of it is in test"
#: Reason in ``evaluations.excluded`` of measurements that a better one took the place of, also where it is no success.
SUPERSEDED: Final = "superseded: measured again by a builder that supersedes this one"
#: Reason in ``evaluations.excluded`` of successes that another measurement contradicts (``unanimous`` recipes).
CONTESTED: Final = "contested: another measurement of this program by the same builder failed or is excluded"
#: Successes that found their program and do not count for its label.
OVERRULED: Final = frozenset({SUPERSEDED, CONTESTED})
