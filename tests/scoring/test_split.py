"""Splits from arrays and from archives, and what their rows come from."""

import json
import shutil

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.archives import with_column
from support.made_forecasts import make_forecasts, make_split

from kernel_archive.archive.manifest import read_manifest, write_manifest
from kernel_archive.errors import ArchiveMismatchError, ArchiveNotFoundError, DataError, UsageError
from kernel_archive.scoring import Split, load_split, score
from kernel_archive.scoring.load import read_clusters
from kernel_archive.scoring.record import DrawnUnits
from kernel_archive.splits import SPLITS


def of(**changes):
    """A split of three rows with something changed."""
    given = {"row_ids": ["a", "b", "c"], "tasks": ["t", "t", "u"], "speedups": [0.1, 1.5, 9.0]}
    return Split.from_arrays(**given | changes)


def test_labels_and_representatives_follow_from_the_speedups():
    """Bins 1, 6 and 8; the ends are empirical means, the middle the geometric centre."""
    split = of()
    assert split.bins.tolist() == [1, 6, 8]
    assert split.representatives[0] == 0.1
    assert split.representatives[7] == 9.0
    assert split.representatives[5] == pytest.approx(1.681793, abs=5e-7)


def test_frozen_representatives_are_kept():
    """m_1 and m_8 of the split when it was frozen, not of the rows at hand."""
    split = of(ends=(0.2, 6.0))
    assert split.representatives[[0, 7]].tolist() == [0.2, 6.0]
    assert split.take(np.array([1])).representatives[7] == 6.0


def test_published_labels_are_kept():
    """Labels that came with the rows are not computed anew, until another scheme is asked for."""
    split = of(bins=[2, 5, 8], scheme="released")
    assert split.bins.tolist() == [2, 5, 8]
    assert split.under("released") is split
    other = split.under("paper")
    assert other.bins.tolist() == [1, 6, 8]
    assert other.relabelled


def test_what_is_made_of_the_rows_is_made_once_for_them():
    """The same thing at every call; other rows, or the same under another scheme."""
    asked = []
    split = of()
    other, part = split.under("released"), split.take(np.array([1]))
    for rows in (split, other, part, part, other, split):
        rows.cached(asked.append)
    assert asked == [split, other, part]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speedups": [0.1, float("nan"), 1]}, "finite and above 0"),
        ({"speedups": [0.1, 0.0, 1]}, "finite and above 0"),
        ({"speedups": [0.1, 1]}, "don't belong together"),
        ({"tasks": ["t"]}, "don't belong together"),
        ({"row_ids": ["a", "a", "b"]}, "twice"),
        ({"bins": [0, 1, 2]}, "1 to 8"),
        ({"row_ids": [], "tasks": [], "speedups": []}, "without rows"),
    ],
)
def test_what_is_no_split_is_refused(changes, message):
    """With the row named where one is at fault."""
    with pytest.raises(DataError, match=message):
        of(**changes)


def test_an_archive_s_split_is_loaded_with_its_identity(archive):
    """Rows, labels and the facts that name archive and split."""
    split = load_split(archive.path)
    table = archive.arrow("eval")
    manifest = archive.manifest
    assert split.row_ids == tuple(table["row_id"].to_pylist())
    np.testing.assert_array_equal(split.speedups, table["speedup"].to_numpy())
    np.testing.assert_array_equal(split.bins, table["bin"].to_numpy())
    identity = split.identity
    assert (identity.archive_name, identity.archive_version) == (manifest.name, manifest.version)
    assert identity.archive_digest == manifest.logical_digest
    assert identity.split_digest == manifest.splits["eval"].logical_digest
    assert identity.gpus == ("H200",)
    assert split.representatives[0] == manifest.splits["eval"].facts["m_1"]
    assert split.representatives[7] == manifest.splits["eval"].facts["m_8"]


def test_discovery_pairs_are_loaded_with_g_as_the_speedup(archive):
    """Tasks are the problems, groups the families; labels anew under another scheme."""
    split = load_split(archive, "discovery", scheme="released")
    table = archive.arrow("discovery_pairs")
    np.testing.assert_array_equal(split.speedups, table["g"].to_numpy())
    assert split.tasks == tuple(table["problem"].to_pylist())
    assert split.groups == tuple(table["family"].to_pylist())
    assert (split.scheme, split.relabelled) == ("released", True)
    with pytest.raises(UsageError, match="unknown bin scheme"):
        load_split(archive, scheme="other")


def test_missing_archive_and_missing_split_say_what_to_do(archive, tmp_path):
    """The command that makes them is in the message."""
    with pytest.raises(ArchiveNotFoundError, match="kernel-archive build"):
        load_split(tmp_path)
    with pytest.raises(UsageError, match="which nobody forecasts"):
        load_split(archive, "train")
    with pytest.raises(UsageError, match=r"unknown split 'evl'\. Did you mean 'eval'"):
        load_split(archive, "evl")
    by_table, by_name = (load_split(archive, name) for name in ("discovery_pairs", "discovery"))
    assert by_table.identity == by_name.identity
    copy = _copy(archive, tmp_path / "copy", lambda m: msgspec.structs.replace(m, splits={}))
    with pytest.raises(UsageError, match="kernel-archive build-eval --cap 10"):
        load_split(copy)
    with pytest.raises(UsageError, match="kernel-archive build-discovery"):
        load_split(copy, "discovery")


def test_an_edited_label_is_not_scored_under_the_old_digest(archive, tmp_path):
    """The split's file must have the bytes that the manifest names."""
    copy = _copy(archive, tmp_path / "copy", lambda m: m)
    file = next((copy / "data" / "eval").iterdir())
    table = pq.read_table(file)
    pq.write_table(with_column(table, "speedup", [9.0] * len(table)), file)
    with pytest.raises(ArchiveMismatchError, match="the manifest says"):
        load_split(copy)


def _copy(archive, directory, change):
    """A copy of an archive with a changed manifest."""
    shutil.copytree(archive.path, directory)
    manifest = change(read_manifest(archive.path))
    (directory / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return directory


class Searches:
    """An archive of three natural searches, of which two name an author, and a generated one."""

    class manifest:
        """One recipe of natural programs."""

        tables = ("searches",)
        natural_builders = ("lm",)

    def arrow(self, table, columns):
        """Its searches."""
        assert table == "searches"
        rows = [
            ("s1", "lm", json.dumps({"author": "a1"})),
            ("s2", "lm", json.dumps({"author": "a1"})),
            ("s3", "lm", None),
            ("s4", "templates", json.dumps({"author": "nobody"})),
        ]
        return pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize(
    ("split", "searches", "expected"),
    [
        ("eval", ["s1", "s2", "s3", "s4"], ("authors", ("lm a1", "lm a1", "s3", "r3"))),
        ("eval", ["s3", "s3", "s4", ""], ("chains", ("s3", "s3", "r2", "r3"))),
        ("eval", ["s4"] * 4, None),
        ("eval", ["s1"] * 4, None),
        ("eval_problems", ["s1"] * 4, ("problems", ("p", "p", "q", "q"))),
    ],
)
def test_clusters_are_authors_chains_or_problems(split, searches, expected):
    """Two chains of one author are one cluster; a row of a generated search is its own."""
    rows = {"search_id": searches, "row_id": ["r0", "r1", "r2", "r3"], "task": list("ppqq")}
    found = read_clusters(Searches(), SPLITS[split], rows)
    assert (found and (found.unit, found.names)) == expected


def test_a_score_says_what_was_drawn(rng):
    """Rows, where the data name no clusters; few clusters are called few."""
    split = make_split(rng)
    record = score(split, make_forecasts(rng, split), draws=10)
    assert record.drawn == DrawnUnits(unit="rows", n=28)
    assert record.drawn.text == "28 rows"
    assert "few" in DrawnUnits(unit="authors", n=6).text
    assert "few" not in DrawnUnits(unit="authors", n=24).text


def test_an_archive_of_eval_alone_has_rows_to_score(archive, tmp_path):
    """Without the other tables nothing is known of repeated measurements, goals or launches."""
    alone = shutil.copytree(archive.path, tmp_path / "alone")
    manifest = read_manifest(alone)
    kept = {"eval": manifest.tables["eval"]}
    write_manifest(alone, msgspec.structs.replace(manifest, tables=kept))
    split = load_split(alone)
    assert len(split) == len(load_split(archive))
    assert split.row_facts.measured is None


def test_options_that_are_not_there_are_refused():
    """A misspelt option does not score other facts than those that were meant."""
    with pytest.raises(TypeError, match="no option 'surface'"):
        of(surface=None)
