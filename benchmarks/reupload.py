"""What a version with 1 % more rows uploads.

Counted by the Hub's own client, chunk by chunk, against a local store.

    python benchmarks/reupload.py [--kernels 12388]

Archives are built from generated logs (benchmarks/logs.py): a first version, one with a new search,
one whose searches were resumed (a few new rows in each of many). ``hf_xet`` cuts the files into its
content-defined chunks and stores those that are new in a folder; the share that it stores is what a
push would send. The same rows written in the usual way (no content-defined chunking, row groups of
a fixed size) are counted beside.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

import hf_xet
import pyarrow.parquet as pq
from logs import TASKS, generate, write_run

from kernel_archive import pipeline
from kernel_archive.archive.open import Archive, open_archive


def tables(archive: Archive) -> dict[str, list[Path]]:
    return {name: archive.files(name) for name in archive.tables}


def usual(archive: Archive, folder: Path) -> dict[str, list[Path]]:
    """The same rows in fixed row groups without content-defined chunking."""
    out = {}
    for name, paths in tables(archive).items():
        out[name] = []
        for path in paths:
            target = folder / name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(
                pq.read_table(path, partitioning=None),
                target,
                compression="zstd",
                row_group_size=500,
            )
            out[name].append(target)
    return out


def upload(session: hf_xet.XetSession, store: Path, files: list[Path]) -> tuple[int, int]:
    """Bytes of the files, and bytes of their chunks that the store did not have."""
    commit = session.new_upload_commit(endpoint=f"local://{store}")
    for path in files:
        commit.start_upload_file(str(path))
    counted = commit.wait_to_finish().dedup_metrics
    return counted.total_bytes, counted.new_bytes


def compare(
    before: dict[str, list[Path]], after: dict[str, list[Path]]
) -> dict[str, tuple[int, int]]:
    """Table -> bytes of the new version, and those of its chunks that the old one did not have."""
    with tempfile.TemporaryDirectory() as store:
        session = hf_xet.XetSession()
        for paths in before.values():
            upload(session, Path(store), paths)
        return {name: upload(session, Path(store), paths) for name, paths in after.items()}


def show(title: str, counted: dict[str, tuple[int, int]]) -> None:
    total, new = (sum(values) for values in zip(*counted.values(), strict=True))
    parts = ", ".join(
        f"{name} {100 * n / size:.0f} % of {size / 1e6:.1f} MB"
        for name, (size, n) in sorted(counted.items(), key=lambda item: -item[1][1])[:4]
    )
    print(
        f"{title:<44} {new / 1e6:8.2f} MB of {total / 1e6:8.2f} MB = {100 * new / total:5.1f} %  "
        f" ({parts})"
    )


def next_version(root: Path, name: str) -> Path:
    """A copy of the first version with its staged fragments, to be built upon."""
    shutil.copytree(root / "first", root / name)
    shutil.copytree(root / ".first.stage", root / f".{name}.stage")
    return root / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=12388)
    given = parser.parse_args()
    more = max(1, given.kernels // 100)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        logs = root / "logs"
        recipe = generate(logs, given.kernels)
        first = root / "first"
        pipeline.build([str(recipe)], out=first)
        runs = sorted((logs / "logs").glob("*/*"))

        versions: list[tuple[str, Path]] = []
        for role in ("training", "held_out"):
            version = next_version(root, f"new_{role}")
            made = logs / "logs" / role / f"{next(iter(TASKS))}__00031_added"
            write_run(made, next(iter(TASKS)), more, 50_000_000, random.Random(1))
            pipeline.build([str(recipe)], out=version)
            shutil.rmtree(made)
            versions.append((f"a new {role.replace('_', '-')} search", version))

        resumed = next_version(root, "resumed")
        chosen = runs[:: max(1, len(runs) // 10)][:10]
        for i, run in enumerate(chosen):
            extra = root / "extra"
            write_run(
                extra,
                run.name.split("__", maxsplit=1)[0],
                max(2, more // len(chosen)),
                60_000_000 + 100_000 * i,
                random.Random(i),
            )
            events = (extra / "events.jsonl").read_text().splitlines(keepends=True)
            with (run / "events.jsonl").open("a") as log:
                log.writelines(line for line in events if '"search_initialized"' not in line)
            shutil.rmtree(extra)
        pipeline.build([str(recipe)], out=resumed)
        versions.append((f"{len(chosen)} searches resumed", resumed))

        base = open_archive(first)
        rows = {name: sum(facts.rows.values()) for name, facts in base.manifest.tables.items()}
        print(f"{rows['kernels']:,} kernels, {rows['evaluations']:,} evaluations; 1 % more rows:")
        for title, path in versions:
            other = open_archive(path)
            held = {name: sum(facts.rows.values()) for name, facts in other.manifest.tables.items()}
            print(
                f"{title}: {held['kernels'] - rows['kernels']:+} kernels, "
                f"{held['evaluations'] - rows['evaluations']:+} evaluations"
            )
            show("  as published", compare(tables(base), tables(other)))
            one, two = usual(base, root / "usual-a"), usual(other, root / f"usual-{path.name}")
            show("  fixed row groups, no chunking", compare(one, two))


if __name__ == "__main__":
    main()
