"""A held-out and a training search of one task, each a parent with seven children."""

from support.archives import Run, Search
from support.programs import program

SEARCHES = [Search("held"), Search("train", role="training")]
RUNS = [
    Run(s.search_id, program(f"{s.search_id}{i}"), 0.2 * 1.5**i, parent=None if i == 0 else "n0")
    for s in SEARCHES
    for i in range(8)
]
