"""The whole campaign: ``python tests/fuzz --minutes M --seed S`` (``make fuzz``). Ends with status
1 at the first broken promise.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

#: Module -> cases a portion; every module gets an equal share of the time.
PORTIONS = {"logs": 200, "forecasts": 200, "builds": 5, "programs": 20}


def main() -> int:
    """Run portion after portion until the time is used up; every portion has a seed of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(PORTIONS), action="append")
    options = parser.parse_args()
    tests = Path(__file__).parents[1]
    measure = tests.parent / "measure"
    sys.path[:0] = [str(path) for path in (tests, measure, measure / "tests")]
    names = options.only or list(PORTIONS)
    for name in names:
        module = "support.fuzz_programs" if name == "programs" else f"fuzz.{name}"
        run = import_module(module).run
        until = time.monotonic() + 60 * options.minutes / len(names)
        portion = 0
        while portion == 0 or time.monotonic() < until:
            seed = options.seed + 1_000_000 * portion
            try:
                seen = run(seed, count=PORTIONS[name])
            except Exception as error:  # noqa: BLE001 - whatever it is, the campaign has found it
                print(f"FAILED {name}, seed {seed}: {type(error).__name__}: {error}")
                return 1
            portion += 1
        print(
            f"{name}: {portion} portions of {PORTIONS[name]} cases held; the last: "
            f"{dict(seen or {})}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
