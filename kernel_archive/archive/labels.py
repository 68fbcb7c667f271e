"""Why a measurement does not count for a label, and what is doubtful about a label.

A reason takes a measurement out of every table but ``evaluations``. A flag never drops a row; a
split definition may. ``labels.sql`` decides which rows have them.
"""

from __future__ import annotations

from string import Template
from typing import Final

import msgspec

from kernel_archive.toml_files import toml_beside

# Reasons in ``evaluations.excluded``.
#: A training measurement whose program is held out.
WITHHELD: Final = "withheld from train: the program or a near duplicate of it is in test"
#: A measurement whose kernel a newer builder judged again, even if its verdict is a failure.
SUPERSEDED: Final = "superseded: measured again by a builder that supersedes this one"
#: A success that another measurement contradicts (``unanimous`` recipes).
CONTESTED: Final = (
    "contested: another measurement of this program by the same builder failed or is excluded"
)
#: Reasons of successes that found their program and do not count for its label.
OVERRULED: Final = frozenset({SUPERSEDED, CONTESTED})

#: Flag a reference time that is off the median of its case by more than this factor, either way.
DRIFT_RATIO: Final = 1.25
#: Flag a kernel whose largest measurement is more than this factor above its smallest.
UNSTABLE_RATIO: Final = 1.10
#: Flag a larger speedup.
IMPLAUSIBLE_SPEEDUP: Final = 100.0
#: Names after $ in ``labels.sql`` and ``crosschecks.toml``.
SQL_NAMES: Final = {
    "withheld": WITHHELD,
    "superseded": SUPERSEDED,
    "contested": CONTESTED,
    "drift": DRIFT_RATIO,
    "unstable": UNSTABLE_RATIO,
    "implausible": IMPLAUSIBLE_SPEEDUP,
}


class Flag(msgspec.Struct, frozen=True):
    """One audit flag (``flags.toml``)."""

    name: str  # as in kernels.flags, and the column of the table kernel that marks it
    rule: str  # when a kernel has it
    why: str  # why it matters
    worst: str  # SQL order in which the audit lists examples


#: The thresholds as a rule of ``flags.toml`` shows them.
_SHOWN: Final = {
    "drift": f"{DRIFT_RATIO:g}",
    "unstable": f"{UNSTABLE_RATIO - 1:.0%}",
    "implausible": f"{IMPLAUSIBLE_SPEEDUP:g}",
}
FLAGS: Final = tuple(
    Flag(**{**flag, "rule": Template(flag["rule"]).substitute(_SHOWN)})
    for flag in toml_beside(__file__, "flags.toml")["flag"]
)
