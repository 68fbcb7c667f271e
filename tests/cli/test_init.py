"""``init`` as a user types it."""

import pytest

PROGRAM = '"def k():\n    return 1\n"'


@pytest.mark.parametrize(
    ("table", "more", "status", "said"),
    [
        (f"op,code,speedup\na,{PROGRAM},2\n", (), 0, ""),
        (f"label,code,speedup\na,{PROGRAM},2\n", (), 1, "no row says its problem. Type --problem"),
        (f"label,code,speedup\na,{PROGRAM},2\n", ("--problem", "gemm"), 0, ""),
        (f"op,code,speedup\na,{PROGRAM},fast\n", (), 1, "no row is a program with a speedup"),
        ("op,speedup\na,2\n", (), 1, "correct the query"),
        (f"op,code,speedup,gpu\na,{PROGRAM},2,A100-80GB\n", (), 1, "--gpu contradicts the files"),
        (
            f"op,code,speedup\na,{PROGRAM},2\n",
            ("--reference", "ref/{problem}.py"),
            1,
            "--reference",
        ),
    ],
)
def test_a_recipe_that_builds_nothing_ends_with_1(
    run, tmp_path, monkeypatch, table, more, status, said
):
    """The error says what to do; otherwise the last line is a command that works."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my results.csv").write_text(table)
    recipe = ("-o", "my recipe.toml", "--gpu", "H100")
    ended, out, err = run("init", "my results.csv", *recipe, *more)
    assert ended == status
    assert said in err
    assert "kernel-archive build 'my recipe.toml'" in out
    assert run("build", "my recipe.toml", "--jobs", 1)[0] == status


@pytest.fixture
def held_out(tmp_path, monkeypatch):
    """What ``init`` is given for held-out programs of a problem with a space in its name."""
    monkeypatch.chdir(tmp_path)
    programs = "".join(f'soft max,"def k():\n    return {n}\n",{2.0**n}\n' for n in range(-3, 4))
    (tmp_path / "t.csv").write_text(f"op,code,speedup\n{programs}")
    (tmp_path / "ref.py").write_text("def k():\n    return 0\n")
    return "t.csv", "--gpu", "H100"


def test_a_reference_for_all_problems_takes_any_name(run, held_out):
    """A problem needs the name of a file only where the reference is named after it."""
    assert run("init", *held_out, "--reference", "{problem}.py")[0] == 1
    assert run("init", *held_out, "--reference", "ref.py", "--force")[0] == 0
    assert run("build", "builder.toml", "--jobs", 1)[0] == 0


def test_wrong_names_are_refused_before_anything_is_written(run, tmp_path, monkeypatch):
    """Only OWNER/DATASET names an archive; for a recipe that is there another name is asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(f"op,code,speedup\na,{PROGRAM},2\n")
    status, _, err = run("init", "t.csv", "--name", "my kernels")
    assert status != 0
    assert "--name is OWNER/DATASET" in err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    assert run("init", "t.csv", "--gpu", "H100")[0] == 0
    assert "builder.toml exists already. Name another with -o" in run("init", "t.csv")[2]


def test_every_note_has_a_line(run, tmp_path):
    """Two sentences with commas in them are no list."""
    (tmp_path / "t.csv").write_text(f"code,time,status\n{PROGRAM},2,odd\n")
    out = run("init", tmp_path / "t.csv", "-o", tmp_path / "builder.toml")[1]
    assert "notes:\n  the unit of time is not in its name: ms is a guess\n  what odd of " in out
