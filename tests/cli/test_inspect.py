"""build, info, show, sql, audit and validate as a user types them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.puct import RunLog, program, recipe

from kernel_archive.cli import cli, main


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A built archive in the current directory's default place, and the id of one of its kernels."""
    monkeypatch.chdir(tmp_path)
    held, train = RunLog(serial=1000), RunLog(serial=9000)
    root = held.root(program("seed"), 1.0)
    middle = held.child(root, program("middle"), 2.0)
    held.child(middle, program("last", 'y = "\x1b[31mred"'), 3.0)
    held.child(middle, program("broken"), outcome="compile_failed")
    held.write(tmp_path / "src/logs/held/run")
    train.root(program("other"), 0.7)
    train.write(tmp_path / "src/logs/train/run")
    recipe(tmp_path / "src", ("logs/held/*", "held_out"), ("logs/train/*", "training"))
    from kernel_archive.archive.build import build_archive
    from kernel_archive.archive.open import open_archive

    build_archive([str(tmp_path / "src")], jobs=1)
    opened = open_archive()
    return opened.sql("SELECT kernel_id FROM kernels ORDER BY speedup DESC LIMIT 1").to_pylist()[0]["kernel_id"]


def invoke(*arguments):
    """Status, stdout, stderr."""
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_info_counts(archive):
    """Counts add up to what was built, as text and as JSON; what no log says is said to be so."""
    status, out, _ = invoke("info", "--json")
    facts = json.loads(out)
    assert status == 0
    assert (
        facts["counts"]["outcome"] == {"success": 4, "compile_failed": 1} or facts["counts"]["outcome"]["success"] == 4
    )
    assert facts["counts"]["bin"] == {"3": 1, "4": 1, "6": 1, "7": 1}
    assert facts["input_tokens"] is None
    status, out, _ = invoke("info")
    assert status == 0
    assert "cross_entropy" in out
    assert "not logged" in out


def test_gpu_time_is_the_same_every_time(tmp_path, monkeypatch):
    """Floats are added in one order, the least first, whichever search comes first: 1 + 1 + 2^53 is more than 2^53 + 1 + 1."""
    from kernel_archive.archive.build import build_archive

    monkeypatch.chdir(tmp_path)
    for number, seconds in enumerate((2.0**53, 1.0, 1.0)):
        log = RunLog(serial=1000 * (number + 1))
        log.root(program(f"seed {number}"), 1.0)
        log.write(tmp_path / f"src/logs/run{number}")
        beside = tmp_path / f"src/logs/run{number}/run.json"
        beside.write_text(json.dumps(json.loads(beside.read_text()) | {"gpu_seconds": seconds}))
    recipe(tmp_path / "src", ("logs/*", "held_out"))
    build_archive([str(tmp_path / "src")], jobs=1)
    facts = json.loads(invoke("info", "--json")[1])
    assert facts["gpu_seconds"] == 2.0**53 + 2
    assert [m["gpu_hours"] for m in facts["methods"]] == [(2.0**53 + 2) / 3600]


def test_show_traces_a_kernel_to_the_root(archive):
    """Lineage nearest first, each with its log line; a prefix is enough; escapes in code are shown, not sent."""
    status, out, _ = invoke("show", archive[:10])
    assert status == 0
    assert "logs/held/run/events.jsonl:" in out
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
    found = json.loads(invoke("show", archive, "--json")[1])
    assert [a["speedup"] for a in found["lineage"]] == [2.0, 1.0]
    assert found["lineage"][-1]["is_root"] is True
    assert found["kernel"]["code"].startswith("import torch")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("ab", "too short"), ("f" * 32, "no kernel"), ("../../etc", "no kernel"), ("%%%%%%%%", "no kernel")],
)
def test_show_refuses_what_it_does_not_know(archive, capsys, wanted, message):
    """Wrong usage, one line."""
    assert main(["show", wanted]) == 2
    assert message in capsys.readouterr().err


def test_sql_reads_the_tables_and_nothing_else(archive, capsys, tmp_path):
    """Views of every table; no writing, no other file, no second statement."""
    assert json.loads(invoke("sql", "SELECT count(*) AS n FROM kernels", "--json")[1]) == [{"n": 4}]
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{secret}')", "DROP VIEW kernels", "SELECT 1; SELECT 2", "SELECT nonsense FROM kernels",
        f"COPY kernels TO '{tmp_path}/out.csv'", "INSTALL httpfs", "SET enable_external_access = true",
    ):  # fmt: skip
        assert main(["sql", query]) == 2, query
        assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_audit_lists_every_flag_with_its_rule(archive):
    """All flags, also those that nothing has."""
    result = json.loads(invoke("audit", "--json")[1])
    assert [f["flag"] for f in result["flags"]] == [
        "artificial", "contested", "edge", "implausible_speedup", "narrow_domain", "near_duplicate", "reference_drift",
        "survivor_source", "unfit", "unstable",
    ]  # fmt: skip
    assert result["labels_that_differ_between_schemes"] == 1  # 0.7x; 1, 2 and 3x don't
    assert "Rule:" in invoke("audit")[1]


def test_readers_lists_every_format():
    """Each format with what it expects."""
    formats = {r["format"] for r in json.loads(invoke("readers", "--json")[1])}
    assert {
        "puct-events",
        "puct-checkpoint",
        "hill-climbing-checkpoint",
        "attempts",
        "measurements",
        "hub-events",
    } <= formats
