"""What counts for a label and what is remarked on it: reasons of exclusion, and audit flags with their thresholds.

A reason takes a measurement out of every table but ``evaluations``. A flag never drops a row; a split definition may.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Reason in ``evaluations.excluded`` of training measurements whose program is held out.
WITHHELD: Final = "withheld from train: the program or a near duplicate of it is in test"
#: Reason in ``evaluations.excluded`` of measurements whose kernel a newer builder judged again, even if its verdict is a failure.
SUPERSEDED: Final = "superseded: measured again by a builder that supersedes this one"
#: Reason in ``evaluations.excluded`` of successes that another measurement contradicts (``unanimous`` recipes).
CONTESTED: Final = "contested: another measurement of this program by the same builder failed or is excluded"
#: Successes that found their program and do not count for its label.
OVERRULED: Final = frozenset({SUPERSEDED, CONTESTED})

#: The reference's time for a case may be off its median by this factor, either way.
DRIFT_RATIO: Final = 1.25
#: Largest over smallest repeat measurement of one kernel.
UNSTABLE_RATIO: Final = 1.10
#: A speedup above this is not believed without a look.
IMPLAUSIBLE_SPEEDUP: Final = 100.0


class Flag(msgspec.Struct, frozen=True):
    """One audit flag.

    Attributes:
        name: as ``kernels.flags`` has it, and the column of the merge that says whether a kernel has it.
        rule: when a kernel has it.
        why: why it matters.
        worst: SQL order in which the audit lists examples.
    """

    name: str
    rule: str
    why: str
    worst: str


FLAGS: Final[tuple[Flag, ...]] = (
    Flag(
        "artificial",
        "the program has a pattern that only loses time: 64-bit floats where the reference has none, waiting, sorting where "
        "nothing is ordered, single numbers fetched in a loop, the same work repeated, results that are never used",
        "nobody who wants a result writes so: such a program is slow by intent, and a forecast learns the pattern",
        "speedup",
    ),
    Flag(
        "contested",
        "another measurement of the same program on the same GPU failed (a wrong result, an error, a time limit) or is a "
        "success that its recipe excludes; what a builder has superseded, and what the driver failed at, aside",
        "its outputs lie at the tolerance, or it works now and then: the label is of the measurements that passed",
        "speedup DESC",
    ),
    Flag(
        "edge",
        "repeat measurements of the kernel fall into different bins (under the archive's scheme)",
        "the label may change when it is measured again",
        "speedup_max / speedup_min DESC",
    ),
    Flag(
        "implausible_speedup",
        f"speedup above {IMPLAUSIBLE_SPEEDUP:g}x",
        "such factors come from broken references, skipped work or cached output more often than from good kernels",
        "speedup DESC",
    ),
    Flag(
        "narrow_domain",
        "the program passes and is wrong on inputs beyond the timed ones (large magnitudes, say), where its task tries that",
        "it may be faster than a program that is right everywhere",
        "speedup DESC",
    ),
    Flag(
        "near_duplicate",
        "another program of the same problem, reference and GPU has the same tokens (comments and white space aside)",
        "counting both counts one idea twice",
        "token_id",
    ),
    Flag(
        "reference_drift",
        f"in a measurement of this kernel the reference's own time for a case was off the median of that problem, GPU and "
        f"case by more than {DRIFT_RATIO:g}x",
        "the speedup is a ratio: a slow moment of the reference makes a kernel look fast",
        "speedup DESC",
    ),
    Flag(
        "survivor_source",
        "the source kept no failures and nothing below 1x",
        "such a source says nothing about how often an idea fails",
        "speedup DESC",
    ),
    Flag(
        "unstable",
        f"repeat measurements differ by more than {UNSTABLE_RATIO - 1:.0%} (largest over smallest)",
        "the label is uncertain",
        "speedup_max / speedup_min DESC",
    ),
)
