"""build-eval, build-discovery, build-train and diff as a user types them."""

import json
import shutil

import pytest
from support.archives import Run, Search, make_archive, reference
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive import build as archive_build
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.publishing.card import write_card
from kernel_archive.selection.make import make_splits

SEARCHES = [
    Search("held/a", "trimul"),
    Search("held/b", "fp8_quant", method="bin_filling"),
    Search("train", "trimul", role="training"),
]
RUNS = [
    Run(
        s.search_id,
        program(f"{s.search_id}{i}"),
        0.2 * 1.3**i,
        parent=None if i == 0 else f"n{(i - 1) // 2}",
    )
    for s in SEARCHES
    for i in range(14)
]
COMMANDS = ["build-eval", "build-discovery", "build-train"]


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A hand-made archive with splits and card."""
    place = make_archive(tmp_path_factory.mktemp("made") / "kernels", SEARCHES, RUNS)
    make_splits(place)
    write_card(place)
    return place


@pytest.fixture
def archive(master, tmp_path, monkeypatch):
    """A copy of it in the default place."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(master, tmp_path / "gpu-forecasters/kernels")


def test_tables_of_the_splits(archive, run):
    """The task x bin table has sums and marks short cells; kinds and cutoffs are counted."""
    status, out, _ = run("build-eval", "--cap", "2")
    assert status == 0
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    facts = open_archive(archive).manifest.splits["eval"].facts
    wanted = [f"{n}*" if n < 2 else str(n) for n in facts["cells"]["trimul"]]
    assert lines["trimul"] == [*wanted, str(sum(facts["cells"]["trimul"]))]
    assert lines["gdn_chunk_fwd_h"] == ["0*"] * 8 + ["0"]
    short = sum(n < 2 for counts in facts["cells"].values() for n in counts)
    assert f"{short} of 48 cells have fewer than 2 kernels" in out
    assert f"The two bin schemes label {facts['label_differences']}" in out
    assert "eval (eval-" in out
    _, out, _ = run("build-discovery")
    counts = open_archive(archive).manifest.splits["discovery_pairs"].facts["cutoffs"]["all"]
    assert f"1.5 {counts['1.5']}" in out
    _, out, _ = run("build-train")
    assert "parent_edit 13, seed 14" in out
    assert "train_pairs (canonical)" in out


def test_no_split_of_an_archive_that_was_not_named_is_made(archive, run):
    """Where several archives are here, commands that write name them and ask for one."""
    mine = shutil.copytree(archive, "me/mine")
    before = archive.joinpath("manifest.json").read_bytes()
    for command in COMMANDS:
        status, out, err = run(command, "--bins", "released")
        assert (status, out) == (2, "")
        assert "here: me/mine, gpu-forecasters/kernels" in err
        assert "with --archive me/mine" in err
        assert run(command, "--archive", mine)[0] == 0
    assert archive.joinpath("manifest.json").read_bytes() == before


def test_withholding_says_what_it_takes(archive, run):
    """The labels' folder, and that nothing else that these searches ran is left."""
    before = open_archive(archive).manifest.splits["discovery_pairs"].rows
    err = " ".join(run("build-eval", "--withhold", "labels")[2].split())
    assert (before > 0, open_archive(archive).manifest.splits["discovery_pairs"].rows) == (True, 0)
    after = open_archive(archive).manifest
    emptied = after.reports["withheld"]["emptied"]
    assert "discovery_pairs" in emptied
    assert not any(after.splits[name].rows for name in emptied)
    assert f"What else their searches ran is gone, which empties {', '.join(emptied)}. To" in err
    for more in ([], ["--labels", "labels"]):
        _, _, err = run("score", "f.jsonl", "--split", "discovery", *more)
        assert "discovery was emptied when labels were withheld" in " ".join(err.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_all_there_is_on_stdout(archive, command, run):
    """--json prints one object with the facts that the manifest keeps, and nothing else."""
    status, out, _ = run(command, "--json", "--bins", "released")
    assert status == 0
    facts = json.loads(out)
    assert facts["split"]["scheme"] == "released"
    assert facts["split"]["name"] != "canonical"
    opened = open_archive(archive)
    assert facts["split"]["logical_digest"] == opened.manifest.splits[facts["table"]].logical_digest
    assert set(opened.arrow(facts["table"])["bin_scheme"].to_pylist()) == {"released"}


def test_builds_the_embedded_archive_first(tmp_path, monkeypatch, run):
    """In an empty directory the command says that it builds, and builds."""
    monkeypatch.chdir(tmp_path)
    log = RunLog(reference=reference("trimul"))
    log.root(program("a"), 1.5)
    log.write(tmp_path / "src/run")
    loaded = load_recipe(recipe(tmp_path / "src", ("run", "held_out")))
    monkeypatch.setattr(archive_build, "load_recipes", lambda builders: [loaded])
    (tmp_path / "builder.toml").touch()  # of one's own: it is that archive that is meant
    status, _, err = run("build-eval")
    assert (status, "kernel-archive build builder.toml" in err) == (2, True)
    (tmp_path / "builder.toml").unlink()
    status, out, err = run("build-eval", "--cap", "10")
    assert status == 0
    assert "No archive in gpu-forecasters/kernels: the embedded one is built first" in err
    facts = open_archive("gpu-forecasters/kernels").manifest.splits["eval"]
    assert f"eval (canonical), {facts.rows} rows, {facts.logical_digest}" in out


def test_a_folder_of_something_else_is_left_alone(tmp_path, monkeypatch, run):
    """A directory of other files is neither built into nor changed; a misspelt one is not made."""
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        for named in ("typo/dir", "gpu-forecasters/kernels"):
            status, _, err = run(command, "--archive", named)
            assert status == 1
            assert f"kernel-archive build --out {named}" in err
    assert list(tmp_path.iterdir()) == []
    for folder, more, message in (
        ("mine", ["--archive", "mine"], "no archive in"),
        ("gpu-forecasters/kernels", [], "not an archive"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "thesis.tex").write_text("x")
        status, _, err = run("build-eval", *more)
        assert status == 1
        assert message in err
        assert [p.name for p in (tmp_path / folder).iterdir()] == ["thesis.tex"]


def test_diff_of_two_versions(archive, tmp_path, run):
    """Counts per table; JSON names every row."""
    runs = [*RUNS, Run("held/a", program("new"), 0.9, parent="n0")]
    runs[3] = Run("held/a", RUNS[3].code, 3.9, parent="n1")
    other = make_archive(tmp_path / "new", SEARCHES, runs, version="next")
    make_splits(other)
    status, out, _ = run("diff", archive, other)
    assert status == 0
    assert "hand-made -> next" in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["kernels"])
    assert row[1:] == ["42", "43", "1", "0", "1", "1", "yes"]
    assert "The two differ" in out
    assert run("diff", archive, archive)[1].rstrip().endswith("Nothing changed.")
