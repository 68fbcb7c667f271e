"""Audit flags: each a rule with its threshold, in one place. A flag never drops a row; a split definition may."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "DRIFT_RATIO",
    "FLAGS",
    "IMPLAUSIBLE_SPEEDUP",
    "UNSTABLE_RATIO",
    "Flag",
]

#: The reference's time for a case may be off its median by this factor, either way.
DRIFT_RATIO: Final = 1.25
#: Largest over smallest repeat measurement of one kernel.
UNSTABLE_RATIO: Final = 1.10
#: A speedup above this is not believed without a look.
IMPLAUSIBLE_SPEEDUP: Final = 100.0


class Flag(msgspec.Struct, frozen=True):
    """One audit flag: name, rule, and why it matters."""

    name: str
    rule: str
    why: str


FLAGS: Final[tuple[Flag, ...]] = (
    Flag(
        "contested",
        "another measurement of the same program on the same GPU failed (a wrong result, an error, a time limit) or is a "
        "success that its recipe excludes; what a builder has superseded, and what the driver failed at, aside",
        "its outputs lie at the tolerance, or it works now and then: the label is of the measurements that passed",
    ),
    Flag(
        "edge",
        "repeat measurements of the kernel fall into different bins (under the archive's scheme)",
        "the label may change when it is measured again",
    ),
    Flag(
        "implausible_speedup",
        f"speedup above {IMPLAUSIBLE_SPEEDUP:g}x",
        "such factors come from broken references, skipped work or cached output more often than from good kernels",
    ),
    Flag(
        "near_duplicate",
        "another program of the same problem, reference and GPU has the same tokens (comments and white space aside)",
        "counting both counts one idea twice",
    ),
    Flag(
        "reference_drift",
        f"in a measurement of this kernel the reference's own time for a case was off the median of that problem, GPU and "
        f"case by more than {DRIFT_RATIO:g}x",
        "the speedup is a ratio: a slow moment of the reference makes a kernel look fast",
    ),
    Flag(
        "survivor_source",
        "the source kept no failures and nothing below 1x",
        "such a source says nothing about how often an idea fails",
    ),
    Flag(
        "unstable",
        f"repeat measurements differ by more than {UNSTABLE_RATIO - 1:.0%} (largest over smallest)",
        "the label is uncertain",
    ),
)
