"""Logs that were made to harm, or were harmed: what each attack on the readers did before, and must
not do again.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builds import build_archive
from support.programs import program
from support.puct import V2, RunLog, gpu_mode, recipe

from kernel_archive.archive.open import open_archive

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def test_lone_surrogates_in_every_field_are_storable(tmp_path: Path) -> None:
    """Problem, GPU, ids, case shapes, codes, settings and errors with half a character: the build
    goes through.
    """
    bad = "\ud800"
    log = V2(gpu_mode(1.0, shapes=[{f"n{bad}": 1, "t": bad}]), code=f"s = '{bad}'").step(0)
    log.rows[0] |= {
        "kernel_task": {"op_name": f"p{bad}"},
        "hardware": {"device_name": f"g{bad}"},
        "seed_reference_code": f"r{bad}",
    }
    log.child(1, gpu_mode(2.0), code=f"a = '{bad}'").child(2, gpu_mode(3.0), code="a = '\udfff'")
    log.rows[4]["child_ulid"] = f"x{bad}"
    log.ask(3).answer(3, gpu_mode(kind="incorrect"))
    log.rows[-1]["evaluation"]["observation"]["feedback"]["error_message"] = bad
    log.write(tmp_path / "src/logs/run")
    settings = {"search": {bad: [bad]}, "software": {"x": bad}}
    (tmp_path / "src/logs/run/run.json").write_text(json.dumps(settings))
    source = recipe(tmp_path / "src", ("logs/run", "archive"))
    build_archive([str(source)], out=tmp_path / "a", jobs=1)
    archive = open_archive(tmp_path / "a")
    problems = archive.sql("SELECT DISTINCT problem FROM evaluations")["problem"]
    assert problems.to_pylist() == ["p\\ud800"]
    programs = set(archive.sql("SELECT code FROM kernels")["code"].to_pylist())
    assert programs == {"s = '\\ud800'", "a = '\\ud800'", "a = '\\udfff'"}


def parquet_bomb(path: Path) -> None:
    """A text of nine megabytes that two thousand rows refer to."""
    code = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * 9_000_000])
    ids = [str(n) for n in range(2000)]
    table = pa.table({"comparison_id": ids, "anchor_code": code, "candidate_code": code})
    pq.write_table(table, path, compression="zstd")


def gz(head: bytes, part: bytes, times: int, level: int = 9) -> Callable[[Path], Any]:
    """Write a head and a part many times in one gzip file; level 1 is four times as quick."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb", level) as stream:
            stream.write(head)
            for _ in range(times // 1000):
                stream.write(part * 1000)

    return write


STEP = b'{"kind":"step_completed","step":0}\n'
NODES = b'{"archive":['
LONG = b'{"kind":"step_completed","x":"'
CASES = (
    b'{"attempt":1,"code":"x","evaluation":{"observation":{"feedback":{"kind":"success",'
    b'"aggregated_speedup":2,"per_case_speedups":[' + b"{}," * 5_000_000 + b"{}]}}}}\n"
)
#: What it is -> format, file, writer.
BOMBS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "parquet": ("hub-eval-set", "t.parquet", parquet_bomb),
    "checkpoint": ("puct-checkpoint", "c.json.gz", gz(NODES, b"[]," * 100, 300_000)),
    "broken checkpoint": (
        "puct-checkpoint",
        "c.json",
        lambda path: path.write_bytes(NODES + b"[]," * 10_000_000),
    ),
    "events": ("puct-events", "e.jsonl.gz", gz(b"", STEP, 3_000_000, 1)),
    "one line": ("puct-events", "e.jsonl.gz", gz(LONG, b"x" * 1000, 250_000, 1)),
    "empty lines": ("attempts", "a.jsonl.gz", gz(b"", b"\n" * 100, 900_000, 1)),
    "no rows": ("attempts", "a.jsonl.gz", gz(b"", b"{}\n", 3_000_000, 1)),
    "cases": ("attempts", "a.jsonl", lambda path: path.write_bytes(CASES * 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_cost_less_than_a_gigabyte(tmp_path: Path, bomb: str) -> None:
    """A few kilobytes that stand for gigabytes, or many small values: a finding, within memory and
    a minute of a processor.
    """
    name, file, make = BOMBS[bomb]
    make(tmp_path / file)
    script = (
        "import time\nfrom pathlib import Path\n"
        "from kernel_archive.readers import READERS\n"
        "from kernel_archive.readers.files import RunFiles\n"
        f"spec = READERS[{name!r}]\npath = Path({str(tmp_path / file)!r})\n"
        f"found = list(spec.read(RunFiles(path, path.parent, spec)))\n"
        "codes = {getattr(f, 'code', '') for f in found if type(f).__name__ == 'Finding'}\n"
        # Not `ru_maxrss`: a process begins with that of the one that started it.
        "status = Path('/proc/self/status').read_text().splitlines()\n"
        "peak = next(x for x in status if x.startswith('VmHWM'))\n"
        "print(int(peak.split()[1]) >> 10, int(time.process_time()), *sorted(codes))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    memory, seconds, *codes = done.stdout.split()
    assert int(memory) < 1000, done.stdout
    assert int(seconds) < 60, done.stdout
    assert {"file-too-large", "line-too-long", "bad-json", "wrong-format"} & set(codes), codes


def test_bad_run_fails_alone(tmp_path: Path) -> None:
    """A bomb beside a good run: the build has the good run, and a finding of the other."""
    log = RunLog()
    log.child(log.root(program("seed")), program("fine"), 2.0)
    log.write(tmp_path / "src/logs/good")
    (tmp_path / "src/logs/bomb").mkdir()
    row = {"kind": "evaluation_requested", "request_id": "r", "code": "x" * 5_000_000}
    data = (json.dumps(row) + "\n").encode() * 20
    (tmp_path / "src/logs/bomb/events.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "src/logs/torn").mkdir()
    torn = b"\x1f\x8b\x08\0\0\0\0\0\0\3\xff\xff\xff\xff\xff"
    (tmp_path / "src/logs/torn/events.jsonl.gz").write_bytes(torn)
    source = recipe(tmp_path / "src", ("logs/*", "archive"), extra="")
    role = 'role = "archive"'
    facts = f'{role}\nproblem = "cross_entropy"\ngpu = "H200"'
    source.write_text(source.read_text().replace(role, facts))
    result = build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert result.rows["kernels"] == 2
    assert {(f.file, f.code) for f in result.shown} >= {
        ("logs/bomb/events.jsonl.gz", "file-too-large"),
        ("logs/torn/events.jsonl.gz", "unreadable"),
    }
