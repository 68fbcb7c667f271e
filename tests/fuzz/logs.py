"""Mutated logs of every format: no internal error, no label that was never measured, less than a gigabyte.

    PYTHONPATH=tests python tests/fuzz/logs.py [SEED] [COUNT]

Each case takes the log of a small search that is known, changes it in a few ways that know its structure (lines, values,
cells, opcodes, the bytes of its compression), reads it, and every so often stages it like a build. Then:

- nothing but a finding or an error of this package comes of it;
- a success is a pair of program and speedup that the log held before, unless the change was one to that very program or
  number. A flipped byte of a plain file is such a change and can't be seen by any reader, so there only the first rule holds;
- the process never takes more than a gigabyte.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.archive.stage import stage_run
from kernel_archive.archive.store import Store
from kernel_archive.errors import KernelArchiveError
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.records import Evaluation, PublishedRow

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_MEMORY = 1 << 30
#: One case in so many is staged as a build does it, and one in so many is a bomb.
STAGED, BOMBS = 10, 400
LONG = "x" * 100_000
#: Values that no writer of a log had in mind.
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", " ", "\ud800",
    "\udfff\ud800", "\0", "\x1b[31m", "\u202e", "../../etc", "NaN", "1e999", LONG, [], {}, [[]], [None], {"": {}},
    {"\ud800": "\ud800"}, {"kind": "success"}, "9" * 5000, json.loads("[" * 200 + "]" * 200), ["a"] * 1000,
)  # fmt: skip
JUNK = (
    b"", b"{", b"}", b"null", b"[]", b"\xff\xfe", b'{"kind":', b'{"kind": "success"}', b"9" * 5000, b"[" * 5000,
    b'"\\ud800"', b"\0" * 20, '{"kind":"step_started"}'.encode("utf-16"),
)  # fmt: skip


def _feedback(rng: random.Random, speedup: float) -> dict[str, Any]:
    arms: list[dict[str, Any]] = [
        {"kind": "compile_failed", "compilation_error": "no"},
        {"kind": "runtime_error", "runtime_error_name": "E", "runtime_error": "no", "traceback": ""},
        {"kind": "incorrect", "error_message": "off"},
        {"kind": "infrastructure_failure", "reason": "lost"},
    ]
    if rng.random() < 0.3:
        return rng.choice(arms)
    cases = [{"speedup": speedup, "runtime_ns": 1e6, "ref_runtime_ns": 1e6 * speedup, "vocab_size": n} for n in (1, 2)]
    return {
        "kind": "success",
        "aggregated_speedup": speedup,
        "aggregation_method": "geomean",
        "per_case_speedups": cases,
    }


def _programs(rng: random.Random) -> list[tuple[str, dict[str, Any], float]]:
    """Programs of a search with feedback and speedup; all speedups differ, and so do all programs."""
    out = []
    for n in range(rng.randint(2, 8)):
        speedup = round(rng.uniform(0.1, 9.0), 6) + n * 1e-9
        code = f'import torch\n\n\ndef kernel_{n}(x, y):\n    z = f(x, 2.5, "{n}")\n    return x, {speedup}\n'
        out.append((code, _feedback(rng, speedup), speedup))
    return out


def _logged(feedback: dict[str, Any]) -> dict[str, Any]:
    return {"observation": {"feedback": feedback, "per_case_results": []}, "reward": 0.5}


def _time(n: int) -> str:
    return f"2026-05-01T00:{n // 60:02d}:{n % 60:02d}.000000Z"


def _id(n: int) -> str:
    return f"01{n:024d}"


def _events(programs: list[Any]) -> list[dict[str, Any]]:
    root = {"program_code": programs[0][0], "ancestors": [], "evaluation": _logged(programs[0][1]), "ulid": _id(0)}
    rows: list[dict[str, Any]] = [
        {"kind": "search_initialized", "root": {**root, "is_seed": True}},
        {"kind": "step_started", "step": 0, "parent_ulids": [_id(0)]},
    ]
    for n, (code, feedback, _) in enumerate(programs[1:], 1):
        rows += [
            {"kind": "mutation_requested", "request_id": f"m{n}", "parent_ulid": _id(0), "started_at": _time(n)},
            {"kind": "mutation_completed", "request_id": f"m{n}", "code": code, "completed_at": _time(n)},
            {"kind": "evaluation_requested", "request_id": f"r{n}", "child_ulid": _id(n), "parent_ulid": _id(0), "code": code,
             "from_mutation_request_id": f"m{n}", "started_at": _time(n)},
            {"kind": "evaluation_completed", "request_id": f"r{n}", "evaluation": _logged(feedback), "completed_at": _time(n)},
        ]  # fmt: skip
    return [*rows, {"kind": "step_completed", "step": 0}]


def _nodes(programs: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "program_code": c,
            "ancestors": [_id(0)] if n else [],
            "evaluation": _logged(f),
            "ulid": _id(n),
            "is_seed": not n,
        }
        for n, (c, f, _) in enumerate(programs)
    ]


def _rollouts(programs: list[Any]) -> list[dict[str, Any]]:
    return [
        {"step": 0, "group_index": 0, "rollout_index": n, "candidate_id": f"c{n}", "parsed_code": c, "outcome": f, "reward": 0.1,
         "prompt_tokens": 1, "response_tokens": 2, "eval_time_s": 1.5, "timestamp_utc": _time(n)}
        for n, (c, f, _) in enumerate(programs)
    ]  # fmt: skip


def _calls(programs: list[Any]) -> list[dict[str, Any]]:
    return [
        {"timestamp_utc": _time(n), "path": "k.py", "kernel_source": c, "feedback": f}
        for n, (c, f, _) in enumerate(programs)
    ]


def _attempts(programs: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "attempt": n,
            "parent_attempt": n - 1 if n else None,
            "code": c,
            "evaluation": _logged(f),
            "started_at": _time(n),
        }
        for n, (c, f, _) in enumerate(programs)
    ]


def _eval_rows(programs: list[Any]) -> list[dict[str, Any]]:
    return [
        {"reference_code": "r", "candidate_code": c, "hardware": {"device_name": "NVIDIA L40S"}, "aggregated_speedup": s,
         "source_id": f"t/{n}"}
        for n, (c, _, s) in enumerate(programs)
    ]  # fmt: skip


def _greedy(programs: list[Any]) -> dict[str, Any]:
    candidates = {
        _id(n): {"ulid": _id(n), "code": c, "parent_ulid": _id(0) if n else None,
                 "evaluation": {"kind": "valid", "speedup": f["aggregated_speedup"]} if f["kind"] == "success" else None}
        for n, (c, f, _) in enumerate(programs)
    }  # fmt: skip
    return {"cursor": {}, "candidates": {"candidates": candidates}, "trace": {"rounds": [{"mutation_attempts": []}]}}


def _hub_events(programs: list[Any]) -> list[dict[str, Any]]:
    return [
        {"event_index": i, "event_kind": e["kind"], "payload": e if i % 2 else json.dumps(e), "source_search": "s"}
        for i, e in enumerate(_events(programs))
    ]


def _published(names: tuple[str, ...]) -> Callable[[list[Any]], list[dict[str, Any]]]:
    def rows(programs: list[Any]) -> list[dict[str, Any]]:
        return [
            dict(zip(names, (f"c{n}", "trimul", "anchor", c, s, 4), strict=True))
            | {"hardware": "NVIDIA L40S", "pair_type": "pair", "source_search": "s"}
            for n, (c, _, s) in enumerate(programs)
        ]

    return rows


def _measured(programs: list[Any]) -> list[dict[str, Any]]:
    return [{"n": f"n{n}", "code": c, "score": s, "task": "trimul"} for n, (c, _, s) in enumerate(programs)]


_EVAL = ("comparison_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "true_bin")
_PAIRS = ("pair_id", "problem_id", "parent_code", "child_code", "g_speedup", "true_bin")
_POOL = ("row_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "relative_bin")
#: Format -> name of its log, its content, and the forms in which it can be written.
FORMATS: dict[str, tuple[str, Callable[[list[Any]], Any], tuple[str, ...]]] = {
    "puct-events": ("events.jsonl", _events, ("jsonl",)),
    "bin-filler": ("events.jsonl", _events, ("jsonl",)),
    "theory-builder": ("inner_events.jsonl", _events, ("jsonl",)),
    "puct-checkpoint": (
        "checkpoint.json", lambda p: {"archive": _nodes(p), "visit_counts": {}, "current_step": 3}, ("json",),
    ),
    "hill-climbing-checkpoint": (
        "checkpoint.json", lambda p: {"archive": _nodes(p), "visited": [], "current_step": 3}, ("json", "pickle"),
    ),
    "greedy-checkpoint": ("checkpoint.json", _greedy, ("json",)),
    "ttt-rollouts": ("rollouts.jsonl", _rollouts, ("jsonl",)),
    "agentic-run": ("trajectory.jsonl", _calls, ("jsonl",)),
    "eval-set-jsonl": ("eval_dataset.jsonl", _eval_rows, ("jsonl",)),
    "attempts": ("attempts.jsonl", _attempts, ("jsonl",)),
    "hub-events": ("t.jsonl", _hub_events, ("jsonl", "json", "parquet")),
    "hub-eval-set": ("t.jsonl", _published(_EVAL), ("jsonl", "json", "csv", "parquet")),
    "hub-discovery-pairs": ("t.jsonl", _published(_PAIRS), ("jsonl", "json", "csv", "parquet")),
    "hub-training-pool": ("t.jsonl", _published(_POOL), ("jsonl", "json", "csv", "parquet")),
    "measurements": ("t.jsonl", _measured, ("jsonl", "json", "csv", "parquet")),
}  # fmt: skip
COLUMNS = {"code": "code", "speedup": "score", "problem": "task", "node_id": "n"}


# -- mutations of values


def _somewhere(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """A container inside a value, and a key or index of it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            value = inner
        else:
            return value, key


def mutate_value(rng: random.Random, value: Any) -> None:
    """Change one thing somewhere in decoded JSON: another value, a key gone, a key of another name, a value moved."""
    container, key = _somewhere(rng, value)
    what = rng.random()
    if what < 0.6:
        container[key] = rng.choice(HOSTILE)
    elif what < 0.75:
        del container[key]
    elif isinstance(container, dict) and what < 0.85:
        container[rng.choice(("kind", "code", "", "\ud800", LONG[:1000]))] = container.pop(key)
    elif isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), container[key])
    else:
        other, there = _somewhere(rng, value)
        container[key] = other[there]


# -- mutations of bytes


def mutate_lines(rng: random.Random, data: bytes) -> bytes:
    """Lines lost, doubled, moved, cut, glued together, or junk between them: nothing of it changes what a line says."""
    lines = data.split(b"\n")[:-1]
    for _ in range(rng.randint(1, 3)):
        if not lines:
            break
        i, what = rng.randrange(len(lines)), rng.randrange(7)
        if what == 0:
            del lines[i]
        elif what == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[i])
        elif what == 2:
            lines.append(lines.pop(i))
        elif what == 3:
            lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)]
        elif what == 4 and i + 1 < len(lines):
            lines[i : i + 2] = [lines[i][: rng.randrange(len(lines[i]) + 1)] + lines[i + 1]]
        elif what == 5:
            lines.insert(i, rng.choice(JUNK).replace(b"\n", b""))
        else:
            lines.insert(i, rng.choice((b"", b"  ", b"\r")))
    end = rng.choice((b"\n", b"\r\n", b"\n\n"))
    return b"\xef\xbb\xbf" * (rng.random() < 0.1) + end.join(lines) + end * (rng.random() < 0.8)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """A bit flipped, bytes cut off, taken out, put in or doubled."""
    if not data:
        return data
    at, what = rng.randrange(len(data)), rng.randrange(5)
    if what == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if what == 1:
        return data[:at]
    until = min(len(data), at + rng.randint(1, 40))
    middle = (b"", rng.randbytes(until - at), data[at:until] * 2)[what - 2]
    return data[:at] + middle + data[until:]


def _pack(rng: random.Random, data: bytes, ending: str) -> bytes:
    return gzip.compress(data, rng.randint(0, 9)) if ending == ".gz" else pa.Codec("zstd").compress(data, asbytes=True)


# -- writing


def _write(content: Any, form: str) -> bytes:
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    if form == "json":
        return json.dumps(content).encode()
    if form == "pickle":
        return pickle.dumps(content, protocol=random.Random(len(content)).randint(2, 5))
    if form == "csv":
        text = io.StringIO(newline="")
        names = list(dict.fromkeys(name for row in content if isinstance(row, dict) for name in row))
        writer = csv.DictWriter(text, [str(n) for n in names], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row for row in content if isinstance(row, dict))
        return text.getvalue().encode("utf-8", "replace")
    if "[" * 50 in json.dumps(content):
        raise ValueError("Arrow's writer crashes on it")
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(content), sink, compression="snappy", write_page_checksum=True)
    return sink.getvalue()


def _labels(records: list[Any]) -> list[tuple[str, float]]:
    """Every pair of program and speedup that a reader calls measured."""
    out = [(r.code, r.speedup) for r in records if isinstance(r, Evaluation) and r.outcome == "success"]
    return out + [(r.candidate_code, r.speedup) for r in records if isinstance(r, PublishedRow)]


# -- bombs


def _bomb(rng: random.Random) -> tuple[str, str, bytes]:
    """A small file that would come to a great deal: format, name, bytes."""
    kind = rng.randrange(6)
    if kind == 0:
        sink = io.BytesIO()
        code = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * 9_000_000])
        table = pa.table(
            {"n": [str(i) for i in range(2000)], "code": code, "score": [1.5] * 2000, "task": ["t"] * 2000}
        )
        pq.write_table(table, sink, compression="zstd")
        return "measurements", "t.parquet", sink.getvalue()
    if kind == 1:
        return "puct-checkpoint", "checkpoint.json.gz", gzip.compress(b'{"archive":[' + b"[]," * 30_000_000 + b"[]]}")
    if kind == 2:
        return "measurements", "list.json.gz", gzip.compress(b"[" + b'{"a":{}},' * 8_000_000 + b"{}]")
    if kind == 3:
        row = {"kind": "evaluation_requested", "request_id": "r", "code": "x" * 500_000, "child_ulid": "y" * 50_000}
        return "puct-events", "events.jsonl.gz", gzip.compress((json.dumps(row) + "\n").encode() * 300)
    if kind == 4:
        value: Any = "x" * 100_000
        for _ in range(40):
            value = [value, value]
        return "hill-climbing-checkpoint", "checkpoint.pkl", pickle.dumps({"archive": value})
    return "attempts", "attempts.jsonl.zst", pa.Codec("zstd").compress(b"{}\n" * 12_000_000, asbytes=True)


# -- one case


class Failed(AssertionError):
    """Raised when a case breaks a rule."""


def _bomb_case(rng: random.Random, folder: Path, counts: Counter[str]) -> None:
    name, file, data = _bomb(rng)
    path = folder / file
    path.write_bytes(data)
    if _labels(_read(name, path, folder)) and file.endswith(".gz"):
        raise Failed("labels of a bomb")
    path.unlink()
    counts["bombs"] += 1


def _settings(name: str) -> dict[str, Any]:
    return {"columns": COLUMNS} if name == "measurements" else {}


def _case(rng: random.Random, folder: Path, counts: Counter[str]) -> None:
    name = rng.choice(list(FORMATS))
    log, make, forms = FORMATS[name]
    form = rng.choice(forms)
    programs = _programs(rng)
    content = make(programs)
    truth = {(code, f["aggregated_speedup"]) for code, f, _ in programs if f["kind"] == "success"}
    if "hub-" in name or name in ("measurements", "eval-set-jsonl"):
        truth |= {(code, speedup) for code, _, speedup in programs}
    how = rng.choice(("values", "lines", "bytes", "compression"))
    if how == "lines" and form not in ("jsonl", "csv"):
        how = "values"
    if how == "values":
        for _ in range(rng.randint(1, 4)):
            mutate_value(rng, content)
            counts["values"] += 1
            if not content:
                break
    try:
        data = _write(content, form)
    except (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError, UnicodeError):
        return  # what this form can't hold
    if how == "lines" and form == "jsonl":
        data = mutate_lines(rng, data)
    elif how == "lines":
        data = mutate_bytes(rng, data)  # of CSV: any one byte
    elif how == "bytes":
        for _ in range(rng.randint(1, 3)):
            data = mutate_bytes(rng, data)
    ending = rng.choice((".gz", ".zst")) if how == "compression" or rng.random() < 0.2 else ""
    if ending:
        data = _pack(rng, data, ending)
    if how == "compression":
        data = mutate_bytes(rng, data)
    run = folder / "run"
    run.mkdir(exist_ok=True)
    stem = {"pickle": "checkpoint.pkl", "csv": "t.csv", "parquet": "t.parquet"}.get(form, log)
    path = run / (stem + ending)
    path.write_bytes(data)
    counts[f"{name} {form}"] += 1
    records = _read(name, path, folder)
    strict = how == "lines" or (how == "compression" and ending == ".gz")
    for code, speedup in _labels(records) if strict else ():
        if (code, speedup) not in truth and not (form == "csv" and how == "lines" and _own(code, speedup, programs)):
            raise Failed(f"a label that was never measured: {speedup} for {code!r}")
    if rng.randrange(STAGED) == 0:
        _stage(name, path, folder)
    path.unlink()


def _own(code: str, speedup: float, programs: list[Any]) -> bool:
    """Whether a label differs from one that was measured in its program or in its number alone, as one byte changes them."""
    return any(code == c or (speedup == s and abs(len(code) - len(c)) <= 80) for c, _, s in programs)


def _read(name: str, path: Path, base: Path) -> list[Any]:
    spec = READERS[name]
    return list(spec.read(RunFiles(path, base, spec, _settings(name))))


def _stage(name: str, path: Path, folder: Path) -> None:
    """Read a file as a build does, up to the staged fragment."""
    columns = f"columns = {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in COLUMNS.items())} }}\n"
    text = (
        'name = "fuzz"\nlicence = "CC0-1.0"\ndescription = "Made up."\n\n[[source]]\n'
        f'path = "run/{path.name}"\nformat = "{name}"\nrole = "archive"\ngeneration_method = "agentic"\n'
        + (columns if name == "measurements" else "")
        + ("" if name in ("measurements", "hub-eval-set") else 'problem = "trimul"\n')
        + ("" if name in ("hub-eval-set", "eval-set-jsonl") else 'gpu = "H200"\n')
    )
    (folder / "builder.toml").write_text(text)
    stage = folder / "stage"
    stage.mkdir(exist_ok=True)
    try:
        for job in jobs_of([find_recipe(str(folder / "builder.toml"))]):
            stage_run(job, Store(str(stage)))
    except KernelArchiveError:
        pass
    for file in stage.iterdir():
        file.unlink()


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(seed: int, *, count: int | None = None, seconds: float | None = None) -> Counter[str]:
    """So many cases, or as many as fit into so many seconds; how many there were of each kind.

    Raises:
        Failed: a case broke a rule; the message names seed and number of the case.
    """
    counts: Counter[str] = Counter()
    before, begin = _memory(), time.monotonic()
    n = 0
    with tempfile.TemporaryDirectory() as name:
        while (count is None or n < count) and (seconds is None or time.monotonic() - begin < seconds):
            rng = random.Random(f"{seed}/{n}")
            try:
                if rng.randrange(BOMBS) == 0:
                    _bomb_case(rng, Path(name), counts)
                else:
                    _case(rng, Path(name), counts)
            except Exception as error:
                raise Failed(f"case {n} of seed {seed}: {type(error).__name__}: {error}") from error
            if _memory() > max(MAX_MEMORY, before):
                raise Failed(f"case {n} of seed {seed}: {_memory() >> 20} MiB of memory")
            n += 1
    counts["cases"] = n
    return counts


if __name__ == "__main__":
    seed, count = (int(a) for a in (*sys.argv[1:], *("1", "2000")[len(sys.argv) - 1 :]))
    print(*sorted(run(seed, count=count).items()), sep="\n")
