"""A mutator without a language model: answers the questions of a search from templates with knobs.

    python examples/search/mutate.py RUNS        # answers every open question under RUNS, once

A line ``NAME = value  # knob: value, value, ...`` of a template is a knob with the values that it may
take. Every answer is a random program of the task's folder with random knobs.
"""  # noqa: E501

from __future__ import annotations

import ast
import json
import random
import re
import sys
from pathlib import Path

KNOB = re.compile(r"^([A-Z][A-Z0-9_]*) = (.+?)  # knob: (.+)$", re.MULTILINE)
PROGRAMS = Path(__file__).with_name("programs")


def draw(task: str, rng: random.Random) -> str:
    """Draw a program of a task."""
    path = rng.choice(sorted((PROGRAMS / task).glob("*.py")))

    def choose(line: re.Match[str]) -> str:
        return f"{line[1]} = {rng.choice(ast.literal_eval(f'[{line[3]}]'))!r}"

    return KNOB.sub(choose, path.read_text("utf-8"))


def main(runs: Path) -> int:
    """Answer every open question; the number of answers."""
    count = 0
    for path in sorted(runs.rglob("questions/*.json")):
        folder = path.parents[1] / "proposals"
        folder.mkdir(exist_ok=True)
        if not any(folder.glob(f"{path.stem}.*")):
            task = json.loads(path.read_text("utf-8"))["problem"]["name"]
            whole = folder / f".{path.stem}"
            whole.write_text(draw(task, random.Random(path.stem)), "utf-8")  # noqa: S311
            whole.rename(folder / f"{path.stem}.py")
            count += 1
    return count


if __name__ == "__main__":
    print(main(Path(sys.argv[1])), "answered")
