"""build, info, show, sql, audit and readers as a user types them."""

import json
import shutil

import pytest
from support.builds import build_archive
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.open import open_archive
from kernel_archive.readers import READERS


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Builds an archive in the default place, and gives the id of one of its kernels."""
    monkeypatch.chdir(tmp_path)
    search, train = RunLog(serial=1000), RunLog(serial=9000)
    root = search.root(program("seed"), 1.0)
    middle = search.child(root, program("middle"), 2.0)
    search.child(middle, program("last") + '\ny = "\x1b[31mred"\n', 3.0)
    search.child(middle, program("broken"), outcome="compile_failed")
    search.write(tmp_path / "src/logs/held/run")
    train.root(program("other"), 0.7)
    train.write(tmp_path / "src/logs/train/run")
    recipe(tmp_path / "src", ("logs/held/*", "held_out"), ("logs/train/*", "training"))
    build_archive([str(tmp_path / "src")], jobs=1)
    opened = open_archive()
    query = "SELECT kernel_id FROM kernels ORDER BY speedup DESC LIMIT 1"
    return opened.sql(query).to_pylist()[0]["kernel_id"]


@pytest.fixture
def output(run):
    """Runs a command that succeeds; its output, decoded with --json."""

    def call(*arguments):
        status, out, _ = run(*arguments)
        assert status == 0
        return json.loads(out) if "--json" in arguments else out

    return call


def test_info_counts(archive, output):
    """Counts add up to what was built, as text and as JSON; what no log says is left open."""
    facts = output("info", "--json")
    assert facts["counts"]["outcome"] == {"success": 4, "compile_failed": 1}
    assert facts["counts"]["bin"] == {"3": 1, "4": 1, "6": 1, "7": 1}
    assert facts["input_tokens"] is None
    text = output("info")
    assert "cross_entropy" in text
    assert "success 4" in text
    assert "input tokens" not in text
    assert "measurements begun, without a result in the log: 0" in text
    assert "pending" not in text
    tables = text[text.index("rows by table:") :].split("\n\n")[0]
    assert "\n  kernels: test 3, train 1\n" in tables
    assert " 0" not in tables


def test_another_archive_here_is_not_passed_over_in_silence(archive, tmp_path, run):
    """Commands without a name say which archive they take; without a shipped one they ask."""
    shutil.copytree("gpu-forecasters/kernels", "me/mine")
    line = "using gpu-forecasters/kernels; me/mine is here too: "
    for command, option, way_out in (
        (["info"], [], "name the one that is meant"),
        (["audit"], [], "name the one that is meant"),
        (["sql", "SELECT 1"], ["--archive"], "--archive me/mine"),
    ):
        status, out, err = run(*command, "--json")
        assert (status, err) == (0, f"{line}{way_out}\n")
        assert json.loads(out)
        status, _, err = run(*command, *option, "me/mine")
        assert (status, err) == (0, "")
    (tmp_path / "gpu-forecasters").rename(tmp_path / "other")
    status, _, err = run("info")
    assert status == 2
    assert "here: me/mine, other/kernels. Name one as DIR, or with --archive me/mine" in err


def test_gpu_time_is_the_same_every_time(tmp_path, monkeypatch, output):
    """Floats are added in one order, the least first: 1 + 1 + 2^53 is more than 2^53 + 1 + 1."""
    monkeypatch.chdir(tmp_path)
    for number, seconds in enumerate((2.0**53, 1.0, 1.0)):
        log = RunLog(serial=1000 * (number + 1))
        log.root(program(f"seed {number}"), 1.0)
        log.write(tmp_path / f"src/logs/run{number}")
        beside = tmp_path / f"src/logs/run{number}/run.json"
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {"gpu_seconds": seconds}))
    recipe(tmp_path / "src", ("logs/*", "held_out"))
    build_archive([str(tmp_path / "src")], jobs=1)
    facts = output("info", "--json")
    assert facts["gpu_seconds"] == 2.0**53 + 2
    assert [m["gpu_hours"] for m in facts["methods"]] == [(2.0**53 + 2) / 3600]


def test_show_traces_a_kernel_to_the_root(archive, output, run):
    """Lineage nearest first, each with its log line; a prefix is enough; escapes are shown."""
    out = output("show", archive[:10])
    assert "label from: logs/held/run/events.jsonl:" in out
    assert " in the folder of the builder " in out
    first, second = out[out.index("ancestors, nearest first:") :].splitlines()[1:3]
    assert first.startswith("  2x, ")
    assert second.startswith("  1x, ")
    assert all("logs/held/run/events.jsonl:" in line for line in (first, second))
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
    facts = output("show", archive, "--json")
    assert [a["speedup"] for a in facts["lineage"]] == [2.0, 1.0]
    assert facts["lineage"][-1]["is_root"] is True
    assert facts["kernel"]["code"].startswith("import triton")
    for wanted, message in (
        ("ab", "too short"),
        ("f" * 32, "no kernel"),
        ("%%%%%%%%", "no kernel"),
    ):
        status, _, err = run("show", wanted)
        assert status == 2
        assert message in err


def test_show_names_the_line_of_the_label(archive, output, monkeypatch, tmp_path):
    """The measurement that gives it, by a path from here where the log is found."""
    facts = output("show", archive, "--json")
    (measured,) = (m for m in facts["measurements"] if m["speedup"] == facts["kernel"]["speedup"])
    place = f"{measured['source_file']}:{measured['source_line']}"
    assert facts["label_from"].startswith(f"{place} in the folder of the builder ")
    where = tmp_path / "gpu-forecasters/kernels"
    monkeypatch.chdir(tmp_path / "src/logs")
    out = output("show", archive, "--archive", where, "--json")
    assert out["label_from"] == facts["label_from"]
    monkeypatch.chdir(tmp_path / "src")
    assert output("show", archive, "--archive", where, "--json")["label_from"] == place


def test_sql_reads_the_tables_and_nothing_else(archive, output, run, tmp_path):
    """Views of every table; no writing, no other file, no second statement."""
    assert output("sql", "SELECT count(*) AS n FROM kernels", "--json") == [{"n": 4}]
    assert output("sql", "SELECT 1 AS a, 2 AS a", "--json") == [{"a": 1, "a_1": 2}]
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{secret}')",
        "DROP VIEW kernels",
        "SELECT 1; SELECT 2",
        "SELECT nonsense FROM kernels",
        f"COPY kernels TO '{tmp_path}/out.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
    ):
        status, _, err = run("sql", query)
        assert status == 2, query
        assert "Traceback" not in err
    assert not (tmp_path / "out.csv").exists()


def test_sql_puts_wide_rows_below_each_other(archive, output):
    """A table where it fits; else a line a column, and a program whole, line by line."""
    assert output("sql", "SELECT 1 AS a, NULL AS b").split()[:2] == ["a", "b"]
    lines = output("sql", "SELECT 'x' AS a, code FROM kernels LIMIT 1").splitlines()
    assert lines[:3] == ["row 1", "  a: x", "  code:"]
    assert all(line.startswith("    ") for line in lines[3:] if line.strip())
    assert "row 1" in output("sql", f"SELECT '{'y' * 500}' AS a")
    assert output("sql", "SELECT 1 AS a, 2 AS b WHERE false") == "no rows, of a, b\n"


def test_audit_lists_every_flag_with_its_rule(archive, output):
    """All flags, also those that nothing has."""
    result = output("audit", "--json")
    assert {flag["flag"] for flag in result["flags"]} == {flag.name for flag in FLAGS}
    assert "Rule:" in output("audit")


def test_readers_lists_every_format(output):
    """Each format with what it expects, or the columns of a query."""
    assert [r["format"] for r in output("readers", "--json")] == list(READERS)
    assert "puct-events" in output("readers")
    assert "speedup" in output("readers", "--columns", "--json")
