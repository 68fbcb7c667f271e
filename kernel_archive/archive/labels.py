"""What becomes of every evaluation: exclusions, labels, flags and held-out rows, decided in SQL.

A reason takes a measurement out of every table but ``evaluations``. A flag never drops a row; a
split definition may. The decisions are the queries of ``labels.sql``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from kernel_archive.archive.readings import refuse_unknown
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

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


class Flag(msgspec.Struct, frozen=True):
    """One audit flag (``flags.toml``)."""

    name: str  # as in kernels.flags, and the column of the table kernel that says who has it
    rule: str  # when a kernel has it
    why: str  # why it matters
    worst: str  # SQL order in which the audit lists examples


def _beside(name: str) -> Template:
    return Template(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _load_flags() -> tuple[Flag, ...]:
    thresholds = {
        "drift": f"{DRIFT_RATIO:g}",
        "unstable": f"{UNSTABLE_RATIO - 1:.0%}",
        "implausible": f"{IMPLAUSIBLE_SPEEDUP:g}",
    }
    text = _beside("flags.toml").safe_substitute(thresholds)
    return msgspec.convert(tomllib.loads(text)["flag"], tuple[Flag, ...])


FLAGS: Final[tuple[Flag, ...]] = _load_flags()

#: Names after $ in ``labels.sql``.
_NAMES: Final = {
    "superseded": SUPERSEDED,
    "contested": CONTESTED,
    "withheld": WITHHELD,
    "drift": DRIFT_RATIO,
    "unstable": UNSTABLE_RATIO,
    "implausible": IMPLAUSIBLE_SPEEDUP,
    "flags": ", ".join(f"CASE WHEN {flag.name} THEN '{flag.name}' END" for flag in FLAGS),
    # A measurement that counts for the label.
    "good": "(outcome = 'success' AND excluded IS NULL)",
    # One that found its program, also where it was superseded or contested.
    "found": "(outcome = 'success' AND (excluded IS NULL "
    f"OR excluded IN ('{SUPERSEDED}', '{CONTESTED}')))",
    # A verdict on the program, good or bad; a success that its recipe excludes is a bad one.
    "judged": "(outcome <> 'infrastructure_failure')",
    # Which evaluation of a program comes first.
    "order": "role_rank, search_id, seq",
}
#: Counts for the manifest: what is counted of which table.
_REPORT: Final = {
    "contested_evaluations": f"evaluation WHERE excluded = '{CONTESTED}'",
    "excluded_evaluations": f"evaluation WHERE excluded NOT IN ('{SUPERSEDED}', '{CONTESTED}')",
    "superseded_evaluations": "superseded",
    "remeasured_kernels": "kernel WHERE n_measurements > 1",
    "withheld_from_train": "kernel WHERE NOT kept",
    **{flag.name: f"kernel WHERE {flag.name} AND kept" for flag in FLAGS},
}


class LabelRules(msgspec.Struct, frozen=True):
    """What the recipes say of each other, and the bin scheme of the labels."""

    scheme: Scheme
    supersedes: list[tuple[str, str]]  # builders (new, old): the new one's verdicts count
    unanimous: list[str]  # builders: one failed measurement of a kernel takes its label
    readings: pa.Table  # what readers found in programs


def supersession(recipes: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """List all pairs (new, old) of builders, also over several steps, by their recipes' facts."""
    pairs = {(str(recipe["name"]), str(old)) for recipe in recipes for old in recipe["supersedes"]}
    for _ in range(len(pairs)):
        pairs |= {(new, older) for new, old in pairs for newer, older in pairs if old == newer}
    if circle := sorted(new for new, old in pairs if new == old):
        raise RecipeError.of(
            code="bad-recipe",
            message="a builder supersedes itself",
            field="supersedes",
            value=circle[0],
            fix="Take it out",
        )
    return sorted(pairs)


def decide(connection: duckdb.DuckDBPyConnection, rules: LabelRules) -> None:
    """Decide what becomes of every row of ``fragment``: makes views of the large tables."""
    from duckdb.sqltypes import DOUBLE, TINYINT

    pairs = sorted(rules.supersedes)
    columns = {
        "succession": {"newer": [new for new, _ in pairs], "older": [old for _, old in pairs]},
        "unanimous": {"builder": sorted(rules.unanimous)},
    }
    for name, values in columns.items():
        schema = pa.schema([(column, pa.string()) for column in values])
        connection.register(name, pa.table(values, schema))
    connection.register("reading", rules.readings)

    def bin_of(speedups: pa.Array) -> pa.Array:
        return pa.array(assign_bins(speedups.to_numpy(zero_copy_only=False), rules.scheme))

    udf: Any = connection.create_function  # its stubs have no type "arrow"
    udf("bin_of", bin_of, [DOUBLE], TINYINT, type="arrow")
    connection.execute(_beside("labels.sql").substitute(_NAMES))
    refuse_unknown(connection)


def count_rows(connection: duckdb.DuckDBPyConnection) -> tuple[dict[str, int], list[str]]:
    """Count rows for the manifest, and list the GPUs of all evaluations."""
    counts = ", ".join(f"(SELECT count(*) FROM {rows})" for rows in _REPORT.values())
    numbers = connection.sql(f"SELECT {counts}").fetchall()[0]
    gpus = connection.sql("SELECT DISTINCT gpu FROM evaluation ORDER BY 1").fetchall()
    return dict(zip(_REPORT, numbers, strict=True)), [name for (name,) in gpus]
