"""The shipped archive, from the embedded logs to what a user loads."""

import json
import re
import shutil
import subprocess
import sys
import tomllib

import duckdb
import msgspec
import polars as pl
import pytest
from support.archives import replant

import kernel_archive
from kernel_archive import pipeline
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.board import verify_board
from kernel_archive.schema import TABLES
from kernel_archive.selection import check
from kernel_archive.selection.freeze import frozen_folder, is_release, read_frozen
from kernel_archive.splits import SPLITS
from kernel_archive.storage import content_path

#: Words of comments and names that say how fast a program is or is meant to be.
TELLING = re.compile(
    r"(?i)\b(naive\w*|slow\w*|fast\w*|optimi[sz]\w*|optimal\w*|efficien\w*|inefficien\w*|baseline\w*"
    r"|better|worse|quick\w*|bottleneck\w*|performan\w*|speed\w*|unoptimi\w*|latency|throughput"
    r"|deliberate\w*|intentional\w*|wasteful\w*|expensive\w*|cheap\w*|costly)\b"
)
#: Names of functions and compiler options that contain such a word and say nothing.
TECHNICAL = re.compile(
    r"(?i)fast_?math|libdevice\.fast_\w+|__fast\w*|fast_\w+f\b|fast_dividef"
    r"|(?:use|enable|allow)_fast\w*"
)


@pytest.fixture(scope="module")
def archive(shipped):
    """The shipped archive, opened."""
    return open_archive(shipped / "gpu-forecasters/kernels")


def test_the_reference_drift_flag_finds_the_slow_references(archive):
    """Measurements that an independent rule finds are flagged, in fp8 and GDN tasks only."""
    problems = archive.sql(
        "SELECT k.problem FROM kernels k JOIN searches USING (search_id) "
        "WHERE list_contains(flags, 'reference_drift') "
        "AND builder IN ('h200-2026-11', 'h200-2026-11-v2')"
    )["problem"].to_pylist()
    slow = {"fp8_quant", "gdn_chunk_fwd_h", "gdn_chunk_fwd_o", "gdn_recompute_w_u"}
    assert set(problems) <= slow
    assert len(problems) >= 80


def test_every_configuration_loads_with_datasets_whole_and_streaming(shipped, archive):
    """load_dataset reads each table, offline, in a fresh interpreter."""
    code = """
import json
from datasets import get_dataset_config_names, load_dataset
from datasets.utils.logging import disable_progress_bar
disable_progress_bar()
name = "gpu-forecasters/kernels"
found = {}
for config in get_dataset_config_names(name):
    whole = load_dataset(name, config)
    streamed = load_dataset(name, config, streaming=True)
    marks = load_dataset(name, config, streaming=True, columns=["canary"]).with_format("arrow")
    found[config] = {
        split: [len(rows), sum(map(len, marks[split].iter(1000)))]
        for split, rows in whole.items()
        if next(iter(streamed[split])).keys() == set(rows.column_names)
    }
default = load_dataset(name)
print(json.dumps([found, {k: len(v) for k, v in default.items()}]))
"""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(shipped / "hf"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=shipped, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts, default = json.loads(done.stdout.splitlines()[-1])
    manifest = archive.manifest
    # A split without rows is left out, and a table without any is no configuration: load_dataset
    # would fail for it.
    rows = {name: facts.rows for name, facts in manifest.tables.items()}
    filled = {name: {s: [n, n] for s, n in of.items() if n} for name, of in rows.items()}
    assert counts == {name: splits for name, splits in filled.items() if splits}
    # No program of the shipped archive was measured on two GPUs.
    assert set(rows) == set(TABLES) - {"eval_transfer", "eval_transfer_inputs"}
    assert default == manifest.tables["kernels"].rows


def test_polars_and_duckdb_read_the_files(archive):
    """Plain Parquet readers see the same rows."""
    files = str(archive.path / "data/kernels/*.parquet")
    frame = pl.read_parquet(files)
    assert frame.height == sum(archive.manifest.tables["kernels"].rows.values())
    assert frame.columns == TABLES["kernels"].schema.names
    assert duckdb.sql(f"SELECT count(*) FROM '{files}'").fetchall() == [(frame.height,)]


@pytest.mark.slow
def test_validate_and_rebuild(archive, monkeypatch):
    """All layers pass, with splits and leaks computed again as for an archive that is no release,
    and building again, in one process, finds nothing to do.
    """
    monkeypatch.setattr(check, "is_release", lambda opened: False)
    report = pipeline.validate(archive.path)
    assert [f.render() for f in report.findings] == []
    assert report.ok
    assert pipeline.build(out=archive.path, jobs=1).unchanged
    assert archive.manifest.version == kernel_archive.DATA_VERSION


@pytest.mark.slow
def test_only_the_release_itself_is_not_selected_again(archive, tmp_path):
    """A text of a split that changed with its digests, or without, a fact or a recipe's word: the
    archive is no release, and its splits are selected again.
    """
    if not list(frozen_folder(kernel_archive.DATA_VERSION).glob("*.json")):
        pytest.skip("between two releases nothing is frozen")
    place = shutil.copytree(archive.path, tmp_path / "a")
    manifest = archive.manifest
    assert is_release(open_archive(place))
    stated = [{**builder, "natural": True} for builder in manifest.builders]
    renamed = msgspec.structs.replace(manifest.splits["eval"], name="other")
    for change in (
        {"builders": stated},
        {"eval_rules": {}},
        {"splits": {**manifest.splits, "eval": renamed}},
        {"version": "2026.11.0"},
        {"logical_digest": "sha256:" + "0" * 64},
    ):
        assert not is_release(Archive(place, msgspec.structs.replace(manifest, **change)))
    replant(place, "discovery_pairs", lambda rows: [{**rows[0], "child_code": "x"}, *rows[1:]])
    changed = open_archive(place)
    assert not is_release(changed)
    old = manifest.tables["discovery_pairs"].logical_digest
    files = msgspec.structs.replace(changed.manifest.tables["discovery_pairs"], logical_digest=old)
    tables = {**manifest.tables, "discovery_pairs": files}
    assert not is_release(Archive(place, msgspec.structs.replace(manifest, tables=tables)))


def test_natural_programs_do_not_tell_their_speed(archive):
    """No comment or name of a program that a recipe calls natural says how fast it is."""
    # Everybody in the searches wants the fastest program: a "fast" in a name tells nothing there.
    names = {b["name"] for b in archive.manifest.builders if b.get("natural")}
    builders = sorted(names - {"h200-search-2026-12"})
    assert builders
    for table in ("kernels", "failures"):
        query = f"SELECT code FROM {table} WHERE list_contains(?, split_part(search_id, '/', 1))"
        codes = archive.sql(query, [builders])["code"].to_pylist()
        assert codes
        assert [
            words for code in codes if (words := TELLING.findall(TECHNICAL.sub(" ", code)))
        ] == []


def test_natural_splits_ask_about_fit_programs(archive):
    """No row of them has a flag that its definition excludes; a search's rows are all that pass."""
    facts = archive.manifest.splits
    tables = [s.table for s in SPLITS.values() if s.kind == "eval" and s.table in facts]
    natural = [table for table in tables if facts[table].parameters.get("natural")]
    assert natural
    for table in natural:
        excluded = facts[table].parameters["exclude_flags"]
        assert "unfit" in excluded
        assert "artificial" in excluded or table == "eval_search"
        query = f"""SELECT row_id FROM {table} JOIN kernels USING (kernel_id)
                    WHERE list_has_any(flags, ?)"""
        assert archive.sql(query, [excluded])["row_id"].to_pylist() == []


def test_public_names_are_exactly_the_exports():
    """Every name of __all__ is there, loads, and has a docstring; nothing else is promised."""
    assert set(dir(kernel_archive)) == set(kernel_archive.__all__)
    for name in kernel_archive.__all__:
        value = getattr(kernel_archive, name)
        if not isinstance(value, str):
            assert value.__doc__, name
    with pytest.raises(AttributeError):
        _ = kernel_archive.nothing


def test_shipped_entries_are_what_they_say(archive, tmp_path):
    """The forecasts of entries of the rows that ship give the score that is stored beside them.

    Other entries are of the frozen rows of an earlier version.
    """
    board, digests = shutil.copytree(content_path("leaderboard"), tmp_path / "board"), {}
    for path in board.glob("submissions/*/submission.toml"):
        facts = tomllib.loads(path.read_text())["archive"]
        frozen = content_path("splits").glob(f"frozen/*/{SPLITS[facts['split']].table}.json")
        assert facts["split_digest"] in {read_frozen(p).facts.logical_digest for p in frozen}
        digests[path.parent.name] = facts["split_digest"]
    shipped = {facts.logical_digest for facts in archive.manifest.splits.values()}
    wanted = {
        slug: ("verified" if digest in shipped else "other_archive", ())
        for slug, digest in digests.items()
    }
    assert {v.slug: (v.status, v.findings) for v in verify_board(archive, board)} == wanted
