"""What programs launch, from the file of a dry run that a recipe names.

``kernel-measure dry-run`` follows the host code of programs on tensors without values and writes
one JSON line per launch or torch operator. A builder ships the file beside its logs; the lines of
programs that the archive holds become the table ``launches``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa

from kernel_archive.archive.open import Archive
from kernel_archive.archive.readings import lines_beside
from kernel_archive.archive.shards import write_table
from kernel_archive.ids import CANARY, ID_LENGTH, sha256_hex
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kernel_archive.archive.manifest import Manifest
    from kernel_archive.archive.recipe import LoadedRecipe

TABLE: Final = "launches"
_FIX: Final = "Make the file with: kernel-measure dry-run"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class LaunchLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file: calls of one case of a program that are alike (see schema.toml)."""

    program_id: Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{ID_LENGTH}}}$")]
    problem: Annotated[str, msgspec.Meta(max_length=300)]
    case: _Small
    kind: Literal["launch", "operator", "not_followed"]
    name: Annotated[str, msgspec.Meta(max_length=300)]
    n: _Small = 1
    bytes: _Count = 0
    flops: _Count | None = None
    grid_x: _Count | None = None
    grid_y: _Count | None = None
    grid_z: _Count | None = None
    warps: _Small | None = None
    stages: _Small | None = None
    configurations: _Small | None = None
    largest_tile: _Small | None = None
    trips: Annotated[float, msgspec.Meta(ge=0, lt=1e18)] | None = None
    loads: _Small | None = None
    stores: _Small | None = None
    dots: _Small | None = None
    reductions: _Small | None = None
    transcendentals: _Small | None = None
    atomics: _Small | None = None
    loops: _Small | None = None


def write_launches(
    directory: Path, manifest: Manifest, recipes: Sequence[LoadedRecipe]
) -> Manifest:
    """Write the table of an archive's directory; none where no recipe names a dry run.

    Lines of programs that the archive lacks are left out; what the first recipe says of a program
    counts.
    """
    followed: dict[tuple[str, str], list[LaunchLine]] = {}  # by program and problem
    for loaded in recipes:
        own: dict[tuple[str, str], list[LaunchLine]] = {}
        for _, line in lines_beside(loaded, TABLE, LaunchLine, "bad-launch", _FIX):
            own.setdefault((line.program_id, line.problem), []).append(line)
        followed = own | followed
    if not followed:
        return manifest
    archive = Archive(directory, manifest)
    programs: set[tuple[str, str]] = set()
    for table in ("kernels", "failures"):
        ids = archive.arrow(table, columns=["program_id", "problem"])
        programs |= set(zip(*(column.to_pylist() for column in ids.columns), strict=True))
    rows = [
        row for key, lines in followed.items() if key in programs for row in _launch_rows(lines)
    ]
    table = pa.Table.from_pylist(rows, schema=TABLES[TABLE].schema).sort_by("launch_id")
    tables = {**manifest.tables, TABLE: write_table(directory, TABLE, {"train": table})}
    counts = {
        "programs": len(programs & followed.keys()),
        "not_followed": sum(row["kind"] == "not_followed" for row in rows),
        "without": len(programs - followed.keys()),
    }
    return msgspec.structs.replace(
        manifest,
        tables={name: tables[name] for name in TABLES if name in tables},
        reports={**manifest.reports, "dry_runs": counts},
    )


def _launch_rows(lines: Sequence[LaunchLine]) -> Iterator[dict[str, Any]]:
    """Give the lines of one program ids: by its case, and by their order in it."""
    ordinals: Counter[int] = Counter()
    for line in lines:
        key = (line.program_id, line.problem, line.case, ordinals[line.case])
        ordinals[line.case] += 1
        yield {
            "launch_id": sha256_hex("\0".join(map(str, key)).encode())[:ID_LENGTH],
            **msgspec.structs.asdict(line),
            "canary": CANARY,
        }
