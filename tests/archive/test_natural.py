"""Tests of the audit of natural programs: words that tell, patterns that only lose time, lengths that go with speed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.archive.natural import natural_faults, rank_correlation
from kernel_archive.archive.open import open_archive
from kernel_archive.pipeline import build

RECIPE = """name = "chains"
licence = "CC0-1.0"
description = "d"
natural = {natural}
[[source]]
path = "logs/*"
format = "attempts"
role = "held_out"
generation_method = "agentic"
gpu = "H200"
"""


def code(number, *, body="", padding=0):
    """A Triton program of a given length; no two share more than their frame."""
    lines = "\n".join(f"    step_{number}_{i} = x" for i in range(40 + padding))
    return f"import triton.language as tl\n\n\ndef custom_kernel(x):\n{lines}\n{body}    return x + {number}\n"


@pytest.fixture
def archive(tmp_path):
    """Builds an archive of one chain from ``(code, speedup)`` pairs; a speedup of ``None`` is a failure."""

    def made(programs, *, natural="true"):
        folder = tmp_path / "src" / "logs" / "trimul__h_a01"
        folder.mkdir(parents=True)
        rows = []
        for n, (text, speedup) in enumerate(programs):
            feedback = {"kind": "incorrect", "error_message": "off"}
            if speedup is not None:
                case = {
                    "speedup": speedup,
                    "runtime_ns": 1e6 / speedup,
                    "ref_runtime_ns": 1e6,
                    "seqlen": 64,
                    "hiddendim": 16,
                }
                feedback = {"kind": "success", "aggregated_speedup": speedup, "per_case_speedups": [case]}
            rows.append({
                "attempt": n, "parent_attempt": n - 1 if n else None, "code": text,
                "evaluation": {"observation": {"feedback": feedback}},
            })  # fmt: skip
        (folder / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run = {"task": "trimul", "gpu": "H200", "reference_source": "def reference(x):\n    return x\n"}
        (folder / "run.json").write_text(json.dumps(run))
        recipe = tmp_path / "src" / "builder.toml"
        recipe.write_text(RECIPE.format(natural=natural))
        build([str(recipe)], out=tmp_path / "out", jobs=1)
        return open_archive(tmp_path / "out")

    return made


def test_telling_words_are_named_in_successes_and_failures(archive):
    """The kernel, the word and the table; a technical name is none."""
    programs = [
        (code(0), 1.0),
        (code(1, body="    # the slow way\n"), 0.5),
        (code(2, body="    baseline_x = x\n"), None),
        (code(3, body="    y = fast_expf(x)\n"), 1.0),
    ]
    found = list(natural_faults(archive(programs)))
    assert [(f.code, f.field, f.value, f.severity) for f in found] == [
        ("telling-word", "kernels.code", "slow", "error"),
        ("telling-word", "failures.code", "baseline_x", "error"),
    ]


def test_builders_that_promise_nothing_are_not_audited(archive):
    assert list(natural_faults(archive([(code(1, body="    # the slow way\n"), 0.5)], natural="false"))) == []


@pytest.mark.parametrize(("order", "expected"), [("with", "+1.00"), ("against", "-1.00"), ("mixed", None)])
def test_length_that_goes_with_speed_is_a_warning(archive, order, expected):
    """Fifty programs, spread over the bins, that grow with the speedup, against it, or neither."""
    speedups = [float(s) for s in np.geomspace(0.15, 6.0, 50)]
    padding = {"with": range(50), "against": range(50, 0, -1), "mixed": [(i * 29) % 50 for i in range(50)]}[order]
    programs = [(code(i, padding=p), s) for i, (p, s) in enumerate(zip(padding, speedups, strict=True))]
    found = [f for f in natural_faults(archive(programs)) if f.code == "telling-length"]
    assert {f.severity for f in found} <= {"warning"}
    assert {f.value for f in found} == ({expected} if expected else set())
    assert {f.message.split(" go ")[0] for f in found} == ({"characters", "lines"} if expected else set())


def test_few_rows_say_nothing(archive):
    """Below forty rows of a task chance alone gives such correlations."""
    programs = [(code(i, padding=i), 0.15 * 1.2**i) for i in range(20)]
    assert list(natural_faults(archive(programs))) == []


def test_rank_correlation_of_ties_and_constants():
    """Against the definition by hand: ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4."""
    assert rank_correlation(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4])) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert rank_correlation(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) == 0.0


@settings(deadline=None)  # the first call imports
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=30))
def test_rank_correlation_is_that_of_scipy(pairs):
    """An independent library as oracle; where one side is constant it gives no number and we give 0."""
    stats = pytest.importorskip("scipy.stats")
    a, b = (np.array(values, float) for values in zip(*pairs, strict=True))
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert rank_correlation(a, b) == 0.0
