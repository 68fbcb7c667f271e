"""Going on with recorded chains: puts their programs, forecasts and measurements back into files, and prints what an author sees.

    python tools/chains.py unpack builders/h200-lm-2026-11 WORK    # WORK/chains, WORK/logs, WORK/plan.toml; then: record
    python tools/chains.py problem trimul                          # the problem as an author is shown it
    python tools/chains.py check WORK/chains/a01/trimul ...        # the form of what an author wrote
    python tools/chains.py forecasts builders/h200-lm-2026-11 ARCHIVE eval > authors.jsonl    # what the authors expected

After ``unpack``, authors add programs to the chains (authors/GUIDE.md of the builder), and ``kernel-measure record
WORK/plan.toml --out WORK/logs`` measures what is new. ``results.md`` in every chain folder holds what its author may read.
"""  # noqa: E501

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import KernelArchiveError
from kernel_archive.ids import program_id
from kernel_archive.problems import get_problem
from kernel_archive.program_text import artificial_patterns
from kernel_measure.chains import read_chain
from kernel_measure.tasks import get_task

PLAN = """name = "{name}"
gpu = "H200"

[settings]
max_case_seconds = 0.35
timeout_s = 60
compile_timeout_s = 90
candidates_per_worker = 40
remeasure = 1

[[search]]
method = "agentic"
chains = "chains/*/*"
"""


#: Words of comments and names that say how fast a program is or is meant to be.
TELLING = re.compile(
    r"(?i)\b(naive\w*|slow\w*|fast\w*|optimi[sz]\w*|optimal\w*|efficien\w*|inefficien\w*|baseline\w*"
    r"|better|worse|quick\w*|bottleneck\w*|performan\w*|speed\w*|unoptimi\w*|latency|throughput"
    r"|deliberate\w*|intentional\w*|wasteful\w*|expensive\w*|cheap\w*|costly)\b"
)
#: Names of functions and compiler options that contain such a word and say nothing.
TECHNICAL = re.compile(
    r"(?i)fast_?math|libdevice\.fast_\w+|__fast\w*|fast_\w+f\b|fast_dividef|(?:use|enable|allow)_fast\w*"
)


def telling_words(code: str) -> list[str]:
    """List the words that say how fast a program is or is meant to be, each once."""
    return sorted({match[0] for match in TELLING.finditer(TECHNICAL.sub(" ", code))})


def _plain(path: Path) -> bytes:
    """A file's content, decompressed."""
    with pa.input_stream(
        str(path), compression="zstd" if path.suffix == ".zst" else None
    ) as stream:
        return bytes(stream.read())


def _result(number: int, row: dict[str, Any]) -> str:
    """One line of results.md: what an author learns of a program."""
    feedback = row["evaluation"]["observation"]["feedback"]
    head = f"- {number:02d}.py ({row['title']}): "
    if feedback["kind"] != "success":
        told = next(
            (
                feedback[k]
                for k in ("error_message", "runtime_error", "compilation_error", "reason")
                if feedback.get(k)
            ),
            "",
        )
        return f"{head}{feedback['kind']}: {told[-1200:]}"
    times = "; ".join(
        f"{ {k: v for k, v in case.items() if k not in ('speedup', 'runtime_ns', 'ref_runtime_ns')} }: "  # noqa: E501
        f"{case['runtime_ns'] / 1e3:.1f} us, reference {case['ref_runtime_ns'] / 1e3:.1f} us"
        for case in feedback["per_case_speedups"]
    )
    narrow = " Wrong on stress inputs." if feedback.get("narrow_domain") else ""
    expected = row["forecast"]["expected_speedup"]
    return f"{head}passed, speedup {feedback['aggregated_speedup']:.3f} (expected {expected}). {times}.{narrow}"  # noqa: E501


def unpack(builder: Path, work: Path) -> None:
    """Write the chains, logs and plan of a builder into a working folder."""
    for path in sorted((builder / "logs" / "agentic").glob("*/*")):
        plain = work / "logs" / "agentic" / path.parent.name / path.name.removesuffix(".zst")
        plain.parent.mkdir(parents=True, exist_ok=True)
        plain.write_bytes(_plain(path))
    for log in sorted((work / "logs" / "agentic").glob("*/attempts.jsonl")):
        search = json.loads((log.parent / "run.json").read_text())
        problem, facts = search["task"], search["search"]
        folder = work / "chains" / facts["author"] / problem
        folder.mkdir(parents=True, exist_ok=True)
        told = folder.parent / "author.json"
        author = (
            json.loads(told.read_text())
            if told.exists()
            else {"chains": {}, "language": search["language"]}
        )
        author.update(
            {name: facts[name] for name in ("author", "role", "model", "experience", "style")}
        )
        author["chains"][problem] = facts["brief"]
        told.write_text(json.dumps(author, indent=1))
        lines = [f"# Measured so far: {problem}, author {facts['author']}", ""]
        for number, row in enumerate(map(json.loads, log.read_text().splitlines()), 1):
            parent = row.get("parent_attempt")
            said = {
                "parent": None if parent is None else parent + 1,
                "title": row["title"],
                "intent": row["note"],
                **row["forecast"],
            }
            (folder / f"{number:02d}.py").write_text(row["code"])
            (folder / f"{number:02d}.json").write_text(json.dumps(said, indent=1))
            lines.append(_result(number, row))
        (folder / "results.md").write_text("\n".join(lines) + "\n")
        read_chain(folder)
    (work / "plan.toml").write_text(PLAN.format(name=builder.name))


def problem(name: str) -> str:
    """What an author is told of a problem."""
    task = get_task(name)
    out = io.StringIO()
    print(
        f"# {name}\n\n```python\n{task.reference}```\n\ndata = {get_problem(name).inputs}\n",
        file=out,
    )
    print(
        f"Returns {', '.join(task.outputs)}{' (a tuple)' if len(task.outputs) > 1 else ' (bare)'}.\n\nTimed:",  # noqa: E501
        file=out,
    )
    for case in task.benchmark_cases:
        print(f"- {case}", file=out)
    print(f"\nChecked besides: {', '.join(map(str, task.correctness_cases))}.", file=out)
    checks = task.describe_checks()
    print(
        f"Distributions: {', '.join(checks['distributions'])}. Tolerance: {checks['tolerance']}",
        file=out,
    )
    print(f"(rtol {task.rtol:g}, atol {task.atol:g} where it names none).", file=out)
    return out.getvalue()


def check(folders: list[Path]) -> int:
    """The form of chains: files, forecasts, telling words, patterns that only lose time. Returns how many remarks there are."""  # noqa: E501
    remarks = 0
    for folder in folders:
        try:
            attempts = read_chain(folder).attempts
        except KernelArchiveError as error:
            print(error)
            remarks += 1
            continue
        reference = get_task(folder.name).reference
        for number, attempt in enumerate(attempts, 1):
            for found in (
                telling_words(attempt.code),
                artificial_patterns(attempt.code, reference),
            ):
                if found:
                    print(f"{folder / f'{number:02d}.py'}: {', '.join(found)}")
                    remarks += 1
    return remarks


def forecasts(builder: Path, archive: Path, split: str) -> list[dict[str, Any]]:
    """The authors' own forecasts, made before anything was measured, for the rows of a split: lines of a forecast file."""  # noqa: E501
    said = {}
    for path in sorted((builder / "logs" / "agentic").glob("*/attempts.jsonl*")):
        for row in map(json.loads, _plain(path).decode().splitlines()):
            if row.get("forecast"):
                said.setdefault(program_id(row["code"]), row["forecast"])
    rows = open_archive(archive).arrow(split).to_pylist()
    known = [(row["row_id"], said.get(program_id(row["candidate_code"]))) for row in rows]
    return [
        {"row_id": row_id, "repeat": 0, **forecast}
        for row_id, forecast in known
        if forecast is not None
    ]


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or ["help"]
    if verb == "unpack" and len(rest) == 2:
        unpack(Path(rest[0]), Path(rest[1]))
    elif verb == "problem" and len(rest) == 1:
        print(problem(rest[0]), end="")
    elif verb == "forecasts" and len(rest) == 3:
        for line in forecasts(Path(rest[0]), Path(rest[1]), rest[2]):
            print(json.dumps(line))
    elif verb == "check" and rest:
        sys.exit(check([Path(p) for p in rest]) > 0)
    else:
        sys.exit(__doc__)
