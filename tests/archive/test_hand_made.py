"""Hand-made archives of tests hold what a build makes of the same logs."""

from __future__ import annotations

from dataclasses import replace

from support.archives import Run, Search, make_archive
from support.builds import build_archive
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive.fragments import json_text
from kernel_archive.archive.open import open_archive
from kernel_archive.schema import TABLES

HELD, OTHER, TRAIN = "made/held/a", "made/held/b", "made/train/c"
SEARCHES = [
    Search(HELD, "cross_entropy", builder="made"),
    Search(OTHER, "cross_entropy", builder="made"),
    Search(TRAIN, "cross_entropy", "training", builder="made"),
]
RUNS = [
    Run(HELD, program("seed"), 1.0),
    Run(HELD, program("twice"), 3.0, parent="n0"),
    Run(HELD, program("broken"), None, parent="n1", outcome="compile_failed"),
    Run(HELD, program("mended"), 2.0, parent="n2"),
    Run(HELD, program("twice"), 3.4, parent="n0"),
    Run(HELD, program("cheat"), 9.0, parent="n0", excluded="half of the work"),
    Run(OTHER, program("seed"), 1.2),
    Run(OTHER, program("broken"), None, parent="n0", outcome="incorrect"),
    Run(TRAIN, program("own seed"), 1.0),
    Run(TRAIN, program("twice", comment="a near copy"), 3.1, parent="n0"),
    Run(TRAIN, program("mended"), 2.5, parent="n0"),
    Run(TRAIN, program("trained"), 0.3, parent="n0"),
]
#: What only a log says, or a build finds in it.
DIFFERENT = {"step", "goal_bin", "aim", "cases", "started_at", "completed_at", "gpu_seconds"}
DIFFERENT |= {"error_type", "error_text", "software", "n_mutations_failed", "flags"}
DIFFERENT |= {"source_path", "source_file", "source_line", "source_digest"}


def built(folder):
    """Write the runs as logs and build them; the archive, and the runs by the nodes in the logs."""
    runs, excluded = [], ""
    for number, search in enumerate(SEARCHES):
        name = search.search_id.removeprefix("made/")
        log = RunLog(serial=1000 * number, reference=search.reference_code, reference_ns=(1e5,))
        nodes = []
        for run in RUNS:
            if run.search != search.search_id:
                continue
            parent = nodes[int(run.parent[1:])] if run.parent else None
            if parent is None:
                nodes.append(log.root(run.code, run.speedup))
            else:
                outcome = "success" if run.speedup else run.outcome
                nodes.append(log.child(parent, run.code, run.speedup, outcome))
            runs.append(replace(run, node=nodes[-1], parent=parent))
            if run.excluded:
                excluded += f'\n[[exclude]]\nsearch = "{name}"\nnode = "{nodes[-1]}"\n'
                excluded += f'reason = "{run.excluded}"\n'
        log.write(folder / name)
    sources = ("held/*", "held_out"), ("train/*", "training")
    build_archive([str(recipe(folder, *sources, extra=excluded))], out=folder / "built", jobs=1)
    return open_archive(folder / "built"), runs


def comparable(archive, table, part):
    """Rows of one part of a table in an order of their own, without the columns that differ."""
    table = archive.arrow(table, part)
    rows = table.drop_columns(sorted(DIFFERENT.intersection(table.column_names))).to_pylist()
    for row in rows:
        if row.get("runtime_us"):
            row["runtime_us"] = round(row["runtime_us"], 4)  # a log has nanoseconds
    return sorted(rows, key=json_text)


def test_make_archive_merges_as_a_build_does(tmp_path):
    """Medians, exclusions, lineage, failures and what is withheld from train, in every table."""
    real, runs = built(tmp_path)
    made = open_archive(make_archive(tmp_path / "made", SEARCHES, runs))
    for table in ("kernels", "failures", "evaluations", "searches", "references"):
        for part in TABLES[table].splits:
            expected = comparable(real, table, part)
            assert expected
            assert comparable(made, table, part) == expected
