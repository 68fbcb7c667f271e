"""Damaged, foreign and hostile files: every reader reports, none crashes, none invents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers.reading import LOG_FORMATS, SAMPLE_FILES, Read, read

if TYPE_CHECKING:
    from pathlib import Path

#: These need more than one damaged byte to be looked at whole, or are slow to read: fewer examples.
EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JUNK: dict[str, bytes] = {
    "empty": b"",
    "blank": b"\n \n\t\n",
    "binary": bytes(range(256)) * 40,
    "nul": b"\0" * 5000,
    "text": b"Traceback (most recent call last):\n  no such file\n" * 30,
    "deep list": b"[" * 200_000,
    "deep object": b'{"kind":' * 100_000,
    "deep value": b'{"archive":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "numbers": b"1\n2\n3\n",
    "nulls": b"null\n" * 5,
    "not utf-8": b'{"kind":"search_initialized","root":"\xff\xfe"}\n',
    "utf-16": '{"kind":"step_started","step":0}\n'.encode("utf-16"),
    "huge number": b'{"kind":"step_started","step":' + b"9" * 5000 + b"}\n",
    "pickle start": b"\x80\x04\x95",
    "parquet start": b"PAR1" + b"\0" * 100,
    "zstd": b"\x28\xb5\x2f\xfd" + b"\1" * 50,
    "html": b"<html><body>404</body></html>",
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", LOG_FORMATS)
def test_junk_is_one_clear_finding(tmp_path: Path, name: str, junk: str) -> None:
    """A file with nothing of the format gives an error that names the file, few findings, and no
    record.
    """
    path = tmp_path / "log.jsonl"
    path.write_bytes(JUNK[junk])
    result = read(name, path, tmp_path)
    assert not result.evaluations
    assert not result.published
    errors = [f for f in result.findings if f.severity == "error"]
    assert errors
    assert len(result.findings) <= 52
    assert {f.file for f in result.findings} == {"log.jsonl"}
    for finding in result.findings:
        assert finding.message
        assert not {"\n", "\x1b"} & {*finding.render()}


@pytest.mark.parametrize("junk", JUNK)
def test_damaged_files_beside_a_log_cost_only_their_facts(
    h200: Path, tmp_path: Path, junk: str
) -> None:
    """Whatever stands in the files around a log, the log's evaluations are all there."""
    source = h200 / "puct/cross_entropy__cuda_s31"
    run = tmp_path / "run_00"
    (run / "invocations").mkdir(parents=True)
    (run / "events.jsonl").write_bytes((source / "events.jsonl").read_bytes())
    beside = ("run.json", "timing.jsonl", "summary.json", "../config.json", "../experiment.json")
    for name in (*beside, "invocations/a.json"):
        (run / name).write_bytes(JUNK[junk])
    result = read("puct-events", run, tmp_path)
    assert len(result.successes) == 29
    assert result.facts.gpu is None
    assert {f.severity for f in result.findings} <= {"warning"}


def _sound(damaged: Read, where: str, whole: dict[str, Any]) -> None:
    """Nodes are unique and those of the whole log, and only successes have a speedup."""
    for name, record in damaged.by_node.items():
        assert (record.speedup is not None) == (record.outcome == "success"), where
        assert record.speedup is None or 0 < record.speedup < float("inf"), where
        same = whole[name]
        assert (record.code, record.speedup) == (same.code, same.speedup), where


@pytest.mark.parametrize("name", SAMPLE_FILES)
def test_cut_at_any_byte(simulated: Path, tmp_path: Path, name: str) -> None:
    """Any beginning of a log gives a part of its evaluations, and a finding."""
    source = simulated / SAMPLE_FILES[name]
    data = source.read_bytes()
    whole = {e.node_id: e for e in read(name, source, simulated).evaluations}
    path = tmp_path / source.name

    @EXAMPLES
    @given(st.integers(0, len(data) - 1))
    def check(at: int) -> None:
        path.write_bytes(data[:at])
        result = read(name, path, tmp_path)
        _sound(result, f"cut at {at}", whole)
        if data[at - 1 : at] != b"\n" and data[at : at + 1] not in (b"\n", b""):
            assert result.findings or len(result.evaluations) == len(whole), f"cut at {at}"

    check()


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b'{"kind":"search_initialized","ro', ["truncated-line", "no-records"]),
        (b'{"kind":"step', ["truncated-line", "no-records"]),
        (b"row_id,speedup\n1,2.0\n", ["wrong-format"]),
    ],
)
def test_a_torn_log_is_damage_and_no_log_of_another_format(
    tmp_path: Path, data: bytes, codes: list[str]
) -> None:
    """A run that was killed in its first line does not blame the recipe."""
    (tmp_path / "events.jsonl").write_bytes(data)
    assert read("puct-events", tmp_path).codes == codes
