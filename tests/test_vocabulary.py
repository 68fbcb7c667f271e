"""GPUs, problems, the schema and errors."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive import errors, gpus, ids, problems, schema


@pytest.mark.parametrize(
    ("given_", "canonical"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("a100-80gb", "A100-80GB"),
        ("H100!", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        (" MI300X ", "MI300X"),
    ],
)
def test_gpu_aliases(given_, canonical):
    """Names of devices and clouds become the canonical name; an unknown one is kept."""
    assert gpus.canonical_gpu(given_) == canonical


def test_gpu_aliases_are_unambiguous_and_facts_have_sources():
    """No alias names two GPUs; every figure says where it comes from."""
    for gpu in gpus.GPUS.values():
        assert {gpus.canonical_gpu(name) for name in (gpu.name, *gpu.aliases)} == {gpu.name}
        assert gpu.source
    assert {"A100-80GB", "L40S", "H100", "H200"} <= gpus.GPUS.keys()
    assert gpus.gpu_facts("NVIDIA H200").multiprocessors == 132
    assert gpus.gpu_facts("Quantum 9").source is None


@pytest.mark.parametrize("name", [*problems.GPU_MODE_TASKS, *problems.OWN_PROBLEMS])
def test_a_problem_is_complete(name):
    """Inputs, cases with their work, tolerance, and a reference that is known by its id."""
    problem = problems.get_problem(name)
    assert problem.inputs.startswith("`(")
    assert None not in (problem.rtol, problem.atol)
    assert ids.program_id(problem.reference) in problem.references
    compile(problem.reference, name, "exec")
    for case in problem.cases:
        assert tuple(case.shape) == problem.shape_fields
        assert min(case.least_work.bytes_read, case.least_work.bytes_written) > 0


def test_words_of_the_problems_never_change():
    """A digest over all that is asked about; with new words raise the version of the prompts."""
    asked = [
        (p.name, p.title, p.inputs, p.cases, p.rtol, p.atol) for p in problems.PROBLEMS.values()
    ]
    assert ids.sha256_hex(ids.canonical_json(asked))[:16] == "0c0e3b422cf7b5cb"


@pytest.mark.parametrize(
    ("given_", "canonical", "family"),
    [
        ("gated_deltanet_chunk_fwd_h", "gdn_chunk_fwd_h", "gpu_mode"),
        ("level3/48_Mamba2ReturnY", "kernelbench_l3_p48", "kernelbench"),
        ("KernelBench/level2/problem_9", "kernelbench_l2_p9", "kernelbench"),
        ("my_problem", "my_problem", "other"),
    ],
)
def test_problem_names(given_, canonical, family):
    """KernelBench problems by level and number however they are written; others are kept."""
    assert problems.normalise_problem(given_) == canonical
    assert problems.family_of(given_) == family


def test_every_table_is_complete():
    """Every table has its key, a canary, docs on every column, and programs last."""
    for table in schema.TABLES.values():
        names = [c.name for c in table.columns]
        assert table.key in names
        assert "canary" in names
        assert len(names) == len(set(names))
        assert all(c.doc for c in table.columns)
        programs = [c for c in names if c.endswith("code")]
        assert names[len(names) - len(programs) :] == programs
        assert isinstance(table.schema, pa.Schema)
    assert schema.TABLES["kernels"].splits == ("train", "test")
    assert schema.shard_name("eval", "test") == "data/eval/test-00000-of-00001.parquet"


@given(st.text())
def test_printable_sends_nothing_to_a_terminal(text):
    """No control, escape or bidirectional character survives, and the length is bounded."""
    import unicodedata

    shown = errors.printable(text)
    assert all(c == " " or unicodedata.category(c)[0] not in "CZ" for c in shown)
    assert errors.printable("\x1b[31mred\u202e") == "\\x1b[31mred\\u202e"
    assert len(errors.printable("a" * 1000)) == 121
    assert errors.printable(Path("a\n")) == errors.printable(ValueError("a\n")) == "a\\n"
    assert errors.printable(["a"]) == "['a']"


def test_an_error_of_one_finding_is_made_from_its_fields():
    """File, line, field, message, value and way out are one line; a summary replaces it."""
    place = {"file": "f.jsonl", "line": 3, "field": "speedup", "value": "\x1b", "fix": "Mend it"}
    error = errors.RecipeError.of(code="x", message="must be above 0", **place)
    assert str(error) == "f.jsonl:3: speedup: must be above 0 (got \\x1b). Mend it"
    assert error.findings == (errors.Finding(code="x", message="must be above 0", **place),)
    assert str(errors.DataError.from_findings(error.findings * 2, "two faults")) == "two faults"
    assert errors.Finding(code="x", message="bad").render() == "bad"


def test_errors_carry_findings_through_a_process_pool():
    """Pickling keeps message and findings: workers raise them."""
    import pickle

    finding = errors.Finding(code="x", message="m")
    error = pickle.loads(pickle.dumps(errors.LogError("many", findings=[finding])))
    assert error.findings == (finding,)
    assert str(error) == "many"
    assert errors.UsageError("x").exit_status == 2
    assert errors.DataError("x").exit_status == 1
