"""What the rows of a split come from."""

import json

import pyarrow as pa
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring import score
from kernel_archive.scoring.load import read_clusters
from kernel_archive.scoring.record import Drawn
from kernel_archive.splits import SPLITS


class Searches:
    """An archive of three natural searches, of which two name an author, and a generated one."""

    class manifest:
        """One recipe of natural programs."""

        tables = ("searches",)
        builders = ({"name": "lm", "natural": True}, {"name": "templates"})

    def arrow(self, table, columns):
        """Its searches."""
        assert table == "searches"
        rows = [
            ("s1", "lm", json.dumps({"author": "a1"})),
            ("s2", "lm", json.dumps({"author": "a1"})),
            ("s3", "lm", None),
            ("s4", "templates", json.dumps({"author": "nobody"})),
        ]
        return pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize(
    ("split", "searches", "expected"),
    [
        ("eval", ["s1", "s2", "s3", "s4"], ("authors", ("lm a1", "lm a1", "s3", "r3"))),
        ("eval", ["s3", "s3", "s4", ""], ("chains", ("s3", "s3", "r2", "r3"))),
        ("eval", ["s4"] * 4, None),
        ("eval", ["s1"] * 4, None),
        ("eval_problems", ["s1"] * 4, ("problems", ("p", "p", "q", "q"))),
    ],
)
def test_clusters_are_authors_chains_or_problems(split, searches, expected):
    """Two chains of one author are one cluster; a row of a generated search is its own."""
    rows = {"search_id": searches, "row_id": ["r0", "r1", "r2", "r3"], "task": list("ppqq")}
    found = read_clusters(Searches(), SPLITS[split], rows)
    assert (found and (found.unit, found.names)) == expected


def test_a_score_says_what_was_drawn(rng):
    """Rows, where the data name no clusters; few clusters are called few."""
    target = make_target(rng)
    record = score(target, make_forecasts(rng, target), draws=10)
    assert record.drawn == Drawn(unit="rows", n=28)
    assert record.drawn.said == "28 rows"
    assert "few" in Drawn(unit="authors", n=6).said
    assert "few" not in Drawn(unit="authors", n=24).said
