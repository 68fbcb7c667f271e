"""The builder of the published tables, on a small copy of their layout."""

from __future__ import annotations

import json

import pytest
from support.folders import contents
from support.published_layout import REPEATS

from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.pipeline import build, validate
from kernel_archive.publishing.reproduce import EVAL_SET, reproduce
from kernel_archive.scoring import HEADLINE, load_split, read_forecasts, score

BUILDER = "gpu-forecasters-2026"


@pytest.fixture(scope="module")
def archive(published, tmp_path_factory) -> Archive:
    """The archive that the shipped builder makes of it."""
    out = tmp_path_factory.mktemp("built") / "archive"
    build([BUILDER], out=out, source=published.root)
    return open_archive(out)


def test_published_archive_is_valid(archive):
    """The archive of the published tables passes every layer, splits and card included."""
    report = validate(archive.path)
    assert report.ok, [f.render() for f in report.findings]


def test_splits_keep_ids_and_labels(published, archive):
    """The three published splits keep ids and labels, and say that they were published."""
    for table, rows, key, label in (
        ("eval", published.eval_set, "comparison_id", "true_bin"),
        ("discovery_pairs", published.discovery_pairs, "pair_id", "true_bin"),
        ("train_pairs", published.training_pool, "row_id", "relative_bin"),
    ):
        stored = archive.arrow(table, columns=["row_id", "bin", "bin_scheme"]).to_pylist()
        labels = {r["row_id"]: r["bin"] for r in stored}
        assert len(labels) == len(stored)
        assert labels == {r[key]: r[label] for r in rows}, table
        assert {r["bin_scheme"] for r in stored} == {"released"}
        assert archive.manifest.splits[table].origin == "published"


def test_scoring_the_archive_gives_the_reproduced_figures(published, archive, tmp_path):
    """Published predictions scored against the built archive give what reproduce gives."""
    readings = {
        r.metric: r.figures
        for r in reproduce(published.root).readings
        if r.labels == "released" and r.choice in ("macro", "argmax")
    }
    target = load_split(archive)
    for surrogate, rows in published.predictions.items():
        path = tmp_path / f"{surrogate}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        forecasts = read_forecasts(path, target)
        assert forecasts.n_repeats == REPEATS
        record = score(target, forecasts, draws=0)
        for metric in HEADLINE["eval"]:
            value, figure = record.metrics[metric], readings[metric][surrogate]
            assert (value.mean, value.std) == pytest.approx(figure, abs=1e-12)


def test_source_without_the_tables_is_refused(client, tmp_path):
    """A local copy without a table, or a missing network, is an error that says so."""
    done = client.cli("build", BUILDER, "--out", "out", "--source", str(tmp_path))
    assert done.status == 1
    assert EVAL_SET in done.err
    assert not (client.cwd / "out").exists()
    done = client.cli("build", BUILDER, "--out", "out")
    assert done.status == 1
    assert "--source" in done.err
    assert not (client.cwd / "out").exists()


def test_build_from_the_hub(client, hub, published, archive):
    """The Hub gives the same archive; a second build fetches no file again."""
    for folder in published.root.iterdir():
        hub.add(f"codezakh/{folder.name}", contents(folder))
    done = client.cli("build", BUILDER, "--out", "out", "--json")
    assert done.status == 0, done.err
    built = open_archive(client.cwd / "out")
    assert built.manifest.logical_digest == archive.manifest.logical_digest
    for name, facts in archive.manifest.splits.items():
        assert built.manifest.splits[name].logical_digest == facts.logical_digest, name
    fetched = hub.count("GET", r"/resolve/.*\.parquet")
    done = client.cli("build", BUILDER, "--out", "out", "--json")
    assert json.loads(done.out)["unchanged"]
    assert hub.count("GET", r"/resolve/.*\.parquet") == fetched
