"""Mutated logs of every format: no internal error, no invented label, less than a gigabyte.

Each case takes the log of a small known search, changes lines, values or bytes, reads it, and every
so often stages it like a build. Nothing but a finding or an error of this package comes of it.
Where lines or a gzip stream were changed, every label is one that the log held before.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.damage import mutate_bytes, zstd
from readers.conftest import unpack
from readers.reading import SAMPLE_FILES
from support.puct import gpu_mode

from kernel_archive.archive.fragment_store import Store
from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.archive.stage import stage_run
from kernel_archive.errors import KernelArchiveError
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.records import Evaluation, PublishedRow

MAX_MEMORY = 1 << 30
#: One case in so many is staged as a build does it.
STAGED = 10
LONG = "x" * 100_000
#: Values that no writer of a log had in mind.
# fmt: off
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -1e308, 5e-324, float("nan"),
    float("inf"), "", " ", "\ud800", "\udfff\ud800", "\0", "\x1b[31m", "\u202e", "../../etc", "NaN",
    "1e999", LONG, [], {}, [[]], [None], {"": {}}, {"\ud800": "\ud800"}, {"kind": "success"},
    "9" * 5000, json.loads("[" * 200 + "]" * 200), ["a"] * 1000,
)
JUNK = (
    b"", b"{", b"}", b"null", b"[]", b"\xff\xfe", b'{"kind":', b'{"kind": "success"}', b"9" * 5000,
    b"[" * 5000, b'"\\ud800"', b"\0" * 20, '{"kind":"step_started"}'.encode("utf-16"),
)
# fmt: on


def _published(names: str) -> Callable[[list[Any]], list[Any]]:
    """Rows of an evaluation set as a published table has them, under its names of columns."""

    def rows(samples: list[Any]) -> list[Any]:
        given = ("reference_code", "candidate_code", "aggregated_speedup")
        more = {"hardware": "NVIDIA L40S", "pair_type": "pair", "source_search": "s"}
        return [
            dict(zip(names.split(), (f"c{n}", "trimul", *(row[g] for g in given), 4), strict=True))
            | more
            for n, row in enumerate(samples)
        ]

    return rows


def _hub_events(events: list[Any]) -> list[Any]:
    return [
        {"event_index": i, "event_kind": event["kind"], "source_search": "s"}
        | {"payload": json.dumps(event)}
        for i, event in enumerate(events)
    ]


def _attempts(samples: list[Any]) -> list[Any]:
    return [
        {"attempt": n, "parent_attempt": n - 1 if n else None, "code": row["candidate_code"]}
        | {"evaluation": gpu_mode(row["aggregated_speedup"])}
        for n, row in enumerate(samples)
    ]


#: Format without a sample -> the format whose sample its rows are made of, and how.
DERIVED: dict[str, tuple[str, Callable[[list[Any]], list[Any]]]] = {
    "attempts": ("eval-set-jsonl", _attempts),
    "hub-events": ("bin-filler", _hub_events),
    "hub-eval-set": (
        "eval-set-jsonl",
        _published("comparison_id pack anchor_code candidate_code aggregated_speedup true_bin"),
    ),
    "hub-discovery-pairs": (
        "eval-set-jsonl",
        _published("pair_id problem_id parent_code child_code g_speedup true_bin"),
    ),
    "hub-training-pool": (
        "eval-set-jsonl",
        _published("row_id pack anchor_code candidate_code aggregated_speedup relative_bin"),
    ),
}
#: Lines of a sample that a case takes, at most.
MOST_LINES = 40


@cache
def _samples() -> Path:
    return unpack("simulated", Path(tempfile.mkdtemp(prefix="fuzz-logs-")))


@cache
def _sample(name: str) -> tuple[str, Any]:
    """A real log of a format: the name of its file, and its content decoded."""
    path = _samples() / SAMPLE_FILES[name]
    if path.suffix == ".json":
        return path.name, json.loads(path.read_text())
    return path.name, [json.loads(line) for line in path.read_text().splitlines()[:MOST_LINES]]


def _log(rng: random.Random, name: str) -> tuple[str, Any, str]:
    """File name, content and form of a log of a format."""
    source, make = DERIVED.get(name, (name, None))
    file, content = copy.deepcopy(_sample(source))
    if isinstance(content, dict):
        return file, content, "json"
    content = content[: rng.randint(2, MOST_LINES)]
    if make is None:
        return file, content, "jsonl"
    return "t.jsonl", make(content), "parquet" if name.startswith("hub-") else "jsonl"


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
    """Change, remove, rename or move one value somewhere in decoded JSON."""
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
    """Lose, double, move, cut or glue lines, or put junk between: no line says anything else."""
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


# -- writing


def _write(content: Any, form: str) -> bytes:
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    if form == "json":
        return json.dumps(content).encode()
    if "[" * 50 in json.dumps(content):
        raise ValueError("Arrow's writer crashes on it")
    sink, table = io.BytesIO(), pa.Table.from_pylist(content)
    pq.write_table(table, sink, compression="snappy", write_page_checksum=True)
    return sink.getvalue()


def _labels(records: list[Any]) -> list[tuple[str, float]]:
    """Every pair of program and speedup that a reader calls measured."""
    out = [
        (r.code, r.speedup) for r in records if isinstance(r, Evaluation) and r.outcome == "success"
    ]
    return out + [(r.candidate_code, r.speedup) for r in records if isinstance(r, PublishedRow)]


# -- one case


class Failed(AssertionError):
    """Raised when a case breaks a rule."""


def _mutated(rng: random.Random, data: bytes, how: str, form: str) -> tuple[bytes, str]:
    """The bytes of a file after a change, perhaps compressed, and the ending of its name."""
    if how == "lines" and form == "jsonl":
        data = mutate_lines(rng, data)
    elif how == "bytes":
        for _ in range(rng.randint(1, 3)):
            data = mutate_bytes(rng, data)
    ending = rng.choice((".gz", ".zst")) if how == "compression" or rng.random() < 0.2 else ""
    if ending:
        pack = gzip.compress if ending == ".gz" else zstd
        data = pack(data)
    return (mutate_bytes(rng, data) if how == "compression" else data), ending


def _case(rng: random.Random, folder: Path, counts: Counter[str]) -> None:
    name = rng.choice([*SAMPLE_FILES, *DERIVED])
    log, content, form = _log(rng, name)
    (folder / "run").mkdir(exist_ok=True)
    path = folder / "run" / ("t.parquet" if form == "parquet" else log)
    path.write_bytes(_write(content, form))
    truth = set(_labels(_read(name, path, folder)))
    path.unlink()
    how = rng.choice(("values", "lines", "bytes", "compression"))
    if how == "values" or (how == "lines" and form != "jsonl"):
        for _ in range(rng.randint(1, 4)):
            if content:
                mutate_value(rng, content)
                counts["values"] += 1
    try:
        data = _write(content, form)
    except (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError, UnicodeError):
        return  # what this form can't hold
    data, ending = _mutated(rng, data, how, form)
    path = path.with_name(path.name + ending)
    path.write_bytes(data)
    counts[f"{name} {form}"] += 1
    records = _read(name, path, folder)
    if (how == "lines" and form == "jsonl") or (how == "compression" and ending == ".gz"):
        wrong = set(_labels(records)) - truth
        if wrong:
            raise Failed(f"labels that were never measured: {wrong}")
    if rng.randrange(STAGED) == 0:
        _stage(name, path, folder)
    path.unlink()


def _read(name: str, path: Path, base: Path) -> list[Any]:
    spec = READERS[name]
    return list(spec.read(RunFiles(path, base, spec)))


def _stage(name: str, path: Path, folder: Path) -> None:
    """Read a file as a build does, up to the staged fragment."""
    text = (
        'name = "fuzz"\nlicence = "CC0-1.0"\ndescription = "Made up."\n\n[[source]]\n'
        f'path = "run/{path.name}"\nformat = "{name}"\nrole = "archive"\n'
        'generation_method = "agentic"\n'
        + ("" if name == "hub-eval-set" else 'problem = "trimul"\n')
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
        while (count is None or n < count) and (
            seconds is None or time.monotonic() - begin < seconds
        ):
            rng = random.Random(f"{seed}/{n}")
            try:
                _case(rng, Path(name), counts)
            except Exception as error:
                raise Failed(f"case {n} of seed {seed}: {type(error).__name__}: {error}") from error
            if _memory() > max(MAX_MEMORY, before):
                raise Failed(f"case {n} of seed {seed}: {_memory() >> 20} MiB of memory")
            n += 1
    counts["cases"] = n
    return counts
