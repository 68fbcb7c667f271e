"""Tables made from logs whose right content is known by construction."""

from __future__ import annotations

import pytest
from support.archives import validate_archive
from support.builds import build_archive
from support.programs import program
from support.puct import REFERENCE, RunLog, recipe

from kernel_archive.archive.labels import CONTESTED, SUPERSEDED, WITHHELD
from kernel_archive.archive.open import open_archive
from kernel_archive.gpus import GpuFacts, gpu_facts
from kernel_archive.ids import kernel_id, program_id

REASONS = "SELECT speedup, excluded FROM evaluations WHERE excluded IS NOT NULL ORDER BY 1"
FAILURES = "SELECT kernel_id, outcome FROM failures"


def built(tmp_path, *recipes):
    """The valid archive that is built from recipes."""
    build_archive([str(path) for path in recipes], out=tmp_path / "out", jobs=1)
    assert validate_archive(tmp_path / "out") == []
    return open_archive(tmp_path / "out")


@pytest.fixture
def made(tmp_path):
    """Two held-out runs and one training run that share programs; builds and opens them."""
    a = RunLog(serial=1000)
    root = a.root(program("seed"), 1.0)
    twice = a.child(root, program("twice"), 3.0)
    a.child(twice, program("child"), 4.5)
    broken = a.child(twice, program("broken"), outcome="compile_failed")
    a.child(broken, program("mended"), 2.0)
    a.child(root, program("twice"), 3.4)  # measured again in the same run
    a.write(tmp_path / "src/logs/held/run_a")
    b = RunLog(serial=2000, reference_ns=(1e5, 2.6e5))  # the second case's reference is 1.3x slow
    again = b.root(program("seed"), 1.2)
    b.child(again, program("drifted"), 150.0)
    b.write(tmp_path / "src/logs/held/run_b")
    c = RunLog(serial=3000)
    start = c.root(program("own_seed"), 1.0)
    c.child(start, program("twice") + "# a comment\n", 3.1)  # near duplicate of a held-out program
    c.child(start, program("trained"), 0.3)
    c.child(start, program("never"), outcome="incorrect")
    c.child(start, program("never"), outcome="infrastructure_failure")
    c.write(tmp_path / "src/logs/train/run_c")
    path = recipe(tmp_path / "src", ("logs/held/*", "held_out"), ("logs/train/*", "training"))
    return built(tmp_path, path)


def rows(archive, query):
    """Rows of a query as dictionaries."""
    return archive.sql(query).to_pylist()


def kernels(archive):
    """Rows of kernels by id."""
    return {row["kernel_id"]: row for row in rows(archive, "SELECT * FROM kernels")}


def kid(code, gpu="H200", reference=REFERENCE):
    """Kernel id by the documented formula."""
    return kernel_id(
        problem="cross_entropy",
        reference_program_id=program_id(reference),
        gpu=gpu,
        program=program_id(code),
    )


def test_one_row_per_program_with_the_median_of_its_measurements(made):
    """`twice` was measured at 3.0 and 3.4 in a held-out run."""
    row = kernels(made)[kid(program("twice"))]
    names = ("speedup", "n_measurements", "speedup_min", "speedup_max", "split", "bin", "search_id")
    assert [row[name] for name in names] == [3.0, 2, 3.0, 3.4, "test", 7, "made/held/run_a"]
    assert [c["reference_runtime_us"] for c in row["cases"]] == [100.0, 200.0]
    assert row["flags"] == ["near_duplicate", "unstable"]
    seed = kernels(made)[kid(program("seed"))]
    assert (seed["speedup"], seed["n_measurements"]) == (1.0, 2)
    assert "edge" in seed["flags"]  # 1.0 is bin 4, 1.2 is bin 5


def test_what_two_logs_share_is_one_measurement(tmp_path):
    """Both lines stay and count once in the median; equal times in one log are two measurements."""
    for name in ("run_a", "run_b"):
        log = RunLog()
        root = log.root(program("seed"))
        log.child(root, program("shared"), 3.0)
        if name == "run_b":
            log.child(root, program("shared"), 2.0)
            for _ in range(2):
                log.child(root, program("twins"), 1.5)
                log.serial += 3600 - 3  # the same second of the next hour
        log.write(tmp_path / "src/logs" / name)
    archive = built(tmp_path, recipe(tmp_path / "src", ("logs/*", "held_out")))
    counts = {k: (row["n_measurements"], row["speedup"]) for k, row in kernels(archive).items()}
    assert counts[kid(program("shared"))] == (2, 2.0)
    assert counts[kid(program("twins"))] == (2, 1.5)
    assert len(rows(archive, "SELECT 1 FROM evaluations WHERE speedup = 3.0")) == 2
    taken = {k: len(speedups) for k, speedups in archive.measurements.items()}
    assert taken == {k: n for k, (n, _) in counts.items()}


def test_train_keeps_nothing_of_test(made):
    """The near duplicate of a held-out program is withheld from train, visibly."""
    train = {name for name, row in kernels(made).items() if row["split"] == "train"}
    assert train == {kid(program("own_seed")), kid(program("trained"))}
    withheld = kid(program("twice") + "# a comment")
    query = f"SELECT excluded FROM evaluations WHERE kernel_id = '{withheld}'"
    assert rows(made, query) == [{"excluded": WITHHELD}]
    assert made.manifest.reports["withheld_from_train"] == 1


def test_lineage_goes_through_failed_parents(made):
    """The child of a failed program names it; the failed one names its own parent."""
    mended = kernels(made)[kid(program("mended"))]
    assert (mended["parent_kernel_id"], mended["parent_distance"]) == (kid(program("broken")), 1)
    (broken,) = rows(made, "SELECT parent_kernel_id FROM failures WHERE outcome = 'compile_failed'")
    assert broken["parent_kernel_id"] == kid(program("twice"))


def test_flags_find_what_they_are_for(made):
    """Drift of the reference, an implausible factor; what is not null is not invented."""
    flags = kernels(made)[kid(program("drifted"))]["flags"]
    assert flags == ["implausible_speedup", "reference_drift"]
    search = rows(made, "SELECT * FROM searches ORDER BY search_id")[0]
    assert search["input_tokens"] is None
    assert (search["n_evaluations"], search["n_successes"], search["n_compile_failed"]) == (6, 5, 1)
    assert search["best_speedup"] == 4.5
    assert made.manifest.reports["flags"]["survivor_source"] == 0


def test_one_program_on_two_gpus_and_two_references(tmp_path):
    """Another GPU or reference makes another kernel of the same program."""
    other = REFERENCE.replace("data", "inputs")
    settings = (("H200", REFERENCE), ("L40S", REFERENCE), ("H200", other))
    for i, (gpu, reference) in enumerate(settings):
        log = RunLog(serial=1000 * (i + 1), gpu=f"NVIDIA {gpu}", reference=reference)
        log.root(program("seed"), 1.0 + i)
        log.write(tmp_path / f"src/logs/run_{i}")
    archive = built(tmp_path, recipe(tmp_path / "src", ("logs/*", "held_out")))
    made = kernels(archive)
    assert made.keys() == {kid(program("seed"), *setting) for setting in settings}
    assert len({row["program_id"] for row in made.values()}) == 1
    assert {r["gpu"] for r in rows(archive, "SELECT gpu FROM gpus")} == {"H200", "L40S"}
    assert len(rows(archive, 'SELECT * FROM "references"')) == 2


def test_a_recipe_states_facts_of_gpus():
    """However it spells them; they count before what this package knows."""
    stated = {"NVIDIA Quantum 9": GpuFacts(multiprocessors=7), "H200": GpuFacts(multiprocessors=1)}
    assert gpu_facts("quantum9", stated).multiprocessors == 7
    assert gpu_facts("H200", stated).multiprocessors == 1
    for others in ({}, {"H200": GpuFacts()}, {"H200": GpuFacts(memory_gb=1.0)}):
        assert gpu_facts("H200", others).multiprocessors == 132


def test_an_excluded_row_stays_in_evaluations_only(tmp_path):
    """[[exclude]] keeps the measurement with its reason and lets it enter nothing else."""
    log = RunLog()
    root = log.root(program("seed"), 1.0)
    cheat = log.child(root, program("cheat"), 90.0)
    log.write(tmp_path / "src/logs/run")
    extra = f'\n[[exclude]]\nsearch = "run"\nnode = "{cheat}"\nreason = "half of the work"\n'
    archive = built(tmp_path, recipe(tmp_path / "src", ("logs/*", "held_out"), extra=extra))
    assert kernels(archive).keys() == {kid(program("seed"))}
    assert rows(archive, FAILURES) == []
    assert rows(archive, REASONS) == [{"speedup": 90.0, "excluded": "half of the work"}]


def test_a_better_measurement_takes_the_place_of_a_superseded_one(tmp_path):
    """The label is the new builder's alone; what that refused is a failure, unless it gave up."""
    old, new = RunLog(serial=1000), RunLog(serial=9000)
    root = old.root(program("seed"), 1.0)
    for name, speedup in {"both": 3.0, "only_old": 2.0, "refused": 4.0, "not_reached": 2.5}.items():
        old.child(root, program(name), speedup)
    again = new.root(program("both"), 3.5)
    new.child(again, program("refused"), None, outcome="incorrect")
    new.child(again, program("not_reached"), None, outcome="infrastructure_failure")
    old.write(tmp_path / "old/logs/run")
    new.write(tmp_path / "new/logs/again")
    first = recipe(tmp_path / "old", ("logs/*", "held_out"), name="old")
    second = recipe(tmp_path / "new", ("logs/*", "archive"), name="new")
    second.write_text(second.read_text().replace("licence", 'supersedes = ["old"]\nlicence'))
    archive = built(tmp_path, second, first)
    both = kernels(archive)[kid(program("both"))]
    assert (both["speedup"], both["n_measurements"]) == (3.5, 1)
    assert (both["split"], both["search_id"]) == ("test", "old/run")
    labels = {name: row["speedup"] for name, row in kernels(archive).items()}
    names = {"seed": 1.0, "both": 3.5, "only_old": 2.0, "not_reached": 2.5}
    assert labels == {kid(program(name)): speedup for name, speedup in names.items()}
    refused = {"kernel_id": kid(program("refused")), "outcome": "incorrect"}
    assert rows(archive, FAILURES) == [refused]
    reasons = [{"speedup": speedup, "excluded": SUPERSEDED} for speedup in (3.0, 4.0)]
    assert rows(archive, REASONS) == reasons
    assert archive.manifest.reports["superseded_evaluations"] == 2


def test_one_refusal_ends_a_label_where_the_recipe_wants_unanimity(tmp_path):
    """Passed twice, refused once: a label with the flag ``contested``, or none."""
    first, again, other = RunLog(serial=1000), RunLog(serial=5000), RunLog(serial=9000)
    root = first.root(program("seed"), 1.0)
    first.child(root, program("twice"), 3.0)
    first.child(root, program("elsewhere"), 2.0)
    crashed = first.child(root, program("not judged"), 4.0)
    twice = again.root(program("twice"), 3.5)
    again.child(twice, program("twice"), None, outcome="incorrect")
    again.child(twice, program("elsewhere"), None, outcome="incorrect")
    again.child(crashed, program("not judged"), None, outcome="infrastructure_failure")
    other.root(program("elsewhere"), 2.5)
    first.write(tmp_path / "mine/logs/run")
    again.write(tmp_path / "mine/logs/run2")
    other.write(tmp_path / "other/logs/run")
    mine = recipe(tmp_path / "mine", ("logs/*", "held_out"), name="mine")
    others = recipe(tmp_path / "other", ("logs/*", "training"), name="other")

    archive = built(tmp_path, mine, others)
    labels = {name: (row["speedup"], row["flags"]) for name, row in kernels(archive).items()}
    contested = {name: speedup for name, (speedup, flags) in labels.items() if "contested" in flags}
    assert contested == {kid(program("twice")): 3.0, kid(program("elsewhere")): 2.0}
    assert archive.manifest.reports["contested_evaluations"] == 0

    mine.write_text(mine.read_text().replace("licence", "unanimous = true\nlicence"))
    archive = built(tmp_path, mine, others)
    assert {name: (row["speedup"], row["flags"]) for name, row in kernels(archive).items()} == {
        kid(program("seed")): (1.0, []),
        kid(program("elsewhere")): (2.5, ["contested", "survivor_source"]),
        kid(program("not judged")): (4.0, []),
    }
    assert rows(archive, FAILURES) == [{"kernel_id": kid(program("twice")), "outcome": "incorrect"}]
    assert rows(archive, REASONS) == [
        {"speedup": speedup, "excluded": CONTESTED} for speedup in (2.0, 3.0, 3.5)
    ]
    assert archive.manifest.reports["contested_evaluations"] == 3
