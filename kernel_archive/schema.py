"""The data contract: every table with its columns, types, units and meaning.

One table is one configuration on the Hub. The card, the validator, the writer and the SQL views are
all made from :data:`TABLES`; nothing else states a column.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

#: How an evaluation can end.
OUTCOMES: Final = (
    "success",
    "compile_failed",
    "runtime_error",
    "incorrect",
    "infrastructure_failure",
)
#: Use of a search: ``held_out`` may enter eval, ``training`` train_pairs, ``archive`` neither.
ROLES: Final = ("held_out", "training", "archive")

CASE: Final = pa.struct(
    [
        pa.field("shape", pa.string()),  # canonical JSON; null where the log has none
        pa.field("speedup", pa.float64()),
        pa.field("runtime_us", pa.float64()),
        pa.field("reference_runtime_us", pa.float64()),
    ]
)


class Column(msgspec.Struct, frozen=True):
    """One column: name, Arrow type, meaning with unit, and whether a value may be missing."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table.

    Attributes:
        name: name of the table and of its Hub configuration.
        title: one line for people.
        splits: split names, in order.
        key: the column that names a row.
        columns: all columns; long texts last, so that viewers can page.
        derived: made after the measured tables, and not from log lines.
    """

    name: str
    title: str
    splits: tuple[str, ...]
    key: str
    columns: tuple[Column, ...]
    derived: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Make the Arrow schema, without metadata."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])


_S, _F, _I32, _I64, _B = pa.string(), pa.float64(), pa.int32(), pa.int64(), pa.bool_()
_TIME = pa.timestamp("us", tz="UTC")

_PROBLEM = Column("problem", _S, "problem that the program was written for")
_FAMILY = Column("family", _S, "suite of the problem: gpu_mode, kernelbench or other")
_GPU = Column("gpu", _S, "canonical name of the GPU")
_LANGUAGE = Column(
    "language", _S, "triton, gluon, cuda, pytorch, or other: found in the program text"
)
_BIN = Column(
    "bin", pa.int8(), "speedup bin, 1 (severe slowdown) to 8 (extreme speedup), under bin_scheme"
)
_SCHEME = Column("bin_scheme", _S, "rule of the bin label: paper or released")
_CANARY = Column(
    "canary", _S, "constant text by which a corpus that swallowed the table can be recognised"
)
_REFERENCE_ID = Column(
    "reference_id", _S, "program id of the reference that was timed beside it; empty where unknown"
)
_SEARCH = Column(
    "search_id", _S, "the search whose log line is named in source_file and source_line"
)
_METHOD = Column(
    "generation_method",
    _S,
    "how the search made programs: tree_search, bin_filling, local_search, agentic, ...",
)
_MODEL = Column(
    "model", _S, "language model that wrote the program, where the logs say", nullable=True
)
_STEP = Column("step", _I32, "step of the search, from 0, where the log orders them", nullable=True)
_GOAL = Column(
    "goal_bin",
    pa.int8(),
    "bin that the author was told to land in, before the program existed; null where nobody was told",
    nullable=True,
)
_AIM = Column(
    "aim", _S, "what else the author was told to aim at, in the words of the brief", nullable=True
)
_PARENT = Column(
    "parent_kernel_id",
    _S,
    "kernel id of the nearest ancestor that the log still has (in kernels or failures; in evaluations alone when it is excluded or withheld)",
    nullable=True,
)
_DISTANCE = Column(
    "parent_distance",
    _I32,
    "1 when parent_kernel_id is the direct parent, more across evicted ones",
    nullable=True,
)
_FILE = Column("source_file", _S, "log file, relative to its builder")
_LINE = Column(
    "source_line",
    _I64,
    "line in that file from 1; null where the format has no lines",
    nullable=True,
)
_KERNEL_ID = Column(
    "kernel_id", _S, "id of problem, reference, GPU and program (first 32 hex digits of sha256)"
)
_PROGRAM_ID = Column("program_id", _S, "id of the program text (first 32 hex digits of sha256)")
_TOKEN_ID = Column(
    "token_id",
    _S,
    "id of the program text without comments and white space: equal for near duplicates",
)
_SPEEDUP = Column(
    "speedup",
    _F,
    "reference time / candidate time, x; the median measurement, of an even number the lower middle one",
)
_CASES = Column(
    "cases",
    pa.list_(CASE),
    "per benchmark case: shape (JSON), speedup (x), runtimes (us); empty where not logged",
)

_ROW_ID = Column("row_id", _S, "id of the row; forecasts name it")

#: What a forecaster may see of an evaluation row beside the two programs.
_SHOWN = (
    Column("task", _S, "problem id"),
    _GPU, _LANGUAGE,
    Column("benchmark_cases", _S, "shapes that were timed, JSON list; the speedup is over all of them", nullable=True),
    Column("rtol", _F, "relative tolerance of the correctness check", nullable=True),
    Column("atol", _F, "absolute tolerance of the correctness check", nullable=True),
)  # fmt: skip
_PROGRAMS = (
    Column("reference_code", _S, "the reference program"),
    Column("candidate_code", _S, "the program to forecast"),
)


_CLOSE_SHOWN = (
    _ROW_ID,
    Column("task", _S, "problem id"),
    _GPU,
    Column("first_kernel_id", _S, "kernel id of the first program"),
    Column("second_kernel_id", _S, "kernel id of the second program"),
)
_CLOSE_PROGRAMS = (
    Column("first_code", _S, "the first program"),
    Column("second_code", _S, "the second program"),
)


def _evaluation(name: str, title: str) -> Table:
    """Describe a table of evaluation rows: all have the same columns."""
    return Table(
        name=name, title=title, splits=("test",), key="row_id", derived=True,
        columns=(
            _ROW_ID, *_SHOWN,
            Column("speedup", _F, "measured reference time / candidate time, x; null where the labels are withheld", nullable=True),
            Column("bin", _BIN.type, f"{_BIN.doc}; null where the labels are withheld", nullable=True),
            _SCHEME,
            Column("n_measurements", _I32, "measurements of the candidate; null where others published the row", nullable=True),
            Column("speedup_min", _F, "least measured speedup, x", nullable=True),
            Column("speedup_max", _F, "largest measured speedup, x", nullable=True),
            _KERNEL_ID,
            Column("search_id", _S, "the search that found the candidate; empty where unknown or withheld"),
            _CANARY, *_PROGRAMS,
        ),
    )  # fmt: skip


_ALL: Final = (
    Table(
        name="kernels", key="kernel_id", splits=("train", "test"),
        title="One row per distinct program that passed correctness, per problem, reference and GPU",
        columns=(
            _KERNEL_ID, _PROGRAM_ID, _TOKEN_ID, _PROBLEM, _FAMILY, _LANGUAGE, _GPU, _SPEEDUP, _BIN, _SCHEME,
            Column("runtime_us", _F, "candidate time, us: geometric mean over cases of the measurement that gives speedup", nullable=True),
            Column("reference_runtime_us", _F, "reference time beside it, us, likewise", nullable=True),
            _CASES,
            Column("n_measurements", _I32, "successful measurements of this kernel"),
            Column("speedup_min", _F, "least measured speedup, x"),
            Column("speedup_max", _F, "largest measured speedup, x"),
            _METHOD, _MODEL, _SEARCH, _STEP, _GOAL, _AIM, _PARENT, _DISTANCE, _REFERENCE_ID,
            Column("flags", pa.list_(_S), "audit flags, sorted; a flag never drops a row"),
            _FILE, _LINE, _CANARY,
            Column("code", _S, "the program, canonical text"),
        ),
    ),
    Table(
        name="failures", key="kernel_id", splits=("train",),
        title="One row per distinct program that failed and has no success that counts, per problem, reference and GPU",
        columns=(
            _KERNEL_ID, _PROGRAM_ID, _TOKEN_ID, _PROBLEM, _FAMILY, _LANGUAGE, _GPU,
            Column("outcome", _S, "compile_failed, runtime_error, incorrect or infrastructure_failure: of the evaluation that refused the program, which may be another than the one that source_file and source_line name (see evaluations)"),
            Column("error_type", _S, "name of its error where the log has one", nullable=True),
            Column("n_evaluations", _I32, "failed evaluations of this program"),
            _METHOD, _MODEL, _SEARCH, _STEP, _PARENT, _DISTANCE, _REFERENCE_ID, _FILE, _LINE, _CANARY,
            Column("error_text", _S, "its error message, at most 4,000 characters", nullable=True),
            Column("code", _S, "the program, canonical text"),
        ),
    ),
    Table(
        name="evaluations", key="evaluation_id", splits=("train",),
        title="One row per evaluation, successful or not, with its log line",
        columns=(
            Column("evaluation_id", _S, "id of search and node"),
            _KERNEL_ID, _PROGRAM_ID, _PROBLEM, _GPU, _REFERENCE_ID, _SEARCH,
            Column("node_id", _S, "id that the log gives this evaluation"),
            Column("parent_node_id", _S, "id that the log gives the direct parent", nullable=True),
            _PARENT, _DISTANCE, _STEP, _GOAL, _AIM,
            Column("is_root", _B, "the search's own starting program"),
            Column("outcome", _S, "success, compile_failed, runtime_error, incorrect or infrastructure_failure"),
            Column("error_type", _S, "name of the error where the log has one", nullable=True),
            Column("speedup", _F, "reference time / candidate time of this evaluation, x", nullable=True),
            Column("runtime_us", _F, "candidate time, us, geometric mean over cases", nullable=True),
            Column("reference_runtime_us", _F, "reference time, us, geometric mean over cases", nullable=True),
            _CASES,
            Column("n_logged", _I32, "how often the log holds this evaluation (2: doubled by a resume)"),
            Column("started_at", _TIME, "when it was requested", nullable=True),
            Column("completed_at", _TIME, "when its result was logged", nullable=True),
            Column("gpu_seconds", _F, "upper bound of the GPU time that it took, s", nullable=True),
            Column("input_tokens", _I64, "tokens sent to the model for this program", nullable=True),
            Column("output_tokens", _I64, "tokens that the model answered", nullable=True),
            Column("excluded", _S, "why it is in no other table: an [[exclude]] entry's reason, superseded, contested, or withheld from train", nullable=True),
            Column("builder", _S, "recipe that brought it"),
            _FILE, _LINE,
            Column("source_digest", _S, "sha256 of that file as read"),
            _CANARY,
        ),
    ),
    Table(
        name="searches", key="search_id", splits=("train",),
        title="One row per search run",
        columns=(
            _SEARCH,
            Column("builder", _S, "recipe that brought it"),
            Column("format", _S, "reader that read it"),
            Column("role", _S, "held_out, training or archive"),
            _METHOD,
            Column("problem", _S, "problem of the search; null where its rows have several", nullable=True),
            Column("family", _S, "suite of the problem; null where its rows have several", nullable=True),
            Column("gpu", _S, "canonical name of the GPU; null where its rows have several", nullable=True),
            _MODEL,
            Column("reference_id", _S, "program id of the reference; null where unknown or several", nullable=True),
            Column("finished", _B, "whether the run came to its own end; null where the log can't say", nullable=True),
            Column("n_evaluations", _I32, "evaluations with a verdict, each once, the root included"),
            Column("n_successes", _I32, "of those, passed"),
            Column("n_kernels", _I32, "distinct programs that passed"),
            *(Column(f"n_{outcome}", _I32, "evaluations that ended so") for outcome in OUTCOMES[1:]),
            Column("n_duplicates", _I32, "results logged more than once and counted once"),
            Column("n_pending", _I32, "evaluations requested without a verdict"),
            Column("n_mutations_failed", _I32, "proposals that gave no program", nullable=True),
            Column("n_deferred", _I32, "programs proposed but never run", nullable=True),
            Column("n_forecasts", _I32, "forecasts logged; none is a measurement", nullable=True),
            Column("n_findings", _I32, "damaged lines and other faults reported for this log"),
            Column("best_speedup", _F, "best measured speedup, x", nullable=True),
            Column("input_tokens", _I64, "tokens sent, where the logs hold them", nullable=True),
            Column("output_tokens", _I64, "tokens answered", nullable=True),
            Column("gpu_seconds", _F, "GPU time, s: as the run states it, else the sum over evaluations", nullable=True),
            Column("wall_seconds", _F, "wall time of the run, s", nullable=True),
            Column("started_at", _TIME, "first time in the log", nullable=True),
            Column("completed_at", _TIME, "last time in the log", nullable=True),
            Column("source_path", _S, "directory or file of the run, relative to its builder"),
            Column("source_digest", _S, "sha256 over names and digests of the files read"),
            _CANARY,
            Column("hyperparameters", _S, "search settings, JSON", nullable=True),
            Column("measurement", _S, "measurement settings, JSON", nullable=True),
            Column("software", _S, "software and driver versions, device properties, JSON", nullable=True),
        ),
    ),
    Table(
        name="references", key="reference_id", splits=("train",),
        title="The reference programs that speedups are relative to",
        columns=(
            Column("reference_id", _S, "program id of the reference"),
            _PROBLEM, _FAMILY,
            Column("title", _S, "the problem in one line"),
            Column("rtol", _F, "relative tolerance of the correctness check", nullable=True),
            Column("atol", _F, "absolute tolerance of the correctness check", nullable=True),
            Column("benchmark_cases", _S, "timed cases, JSON list", nullable=True),
            Column("correctness_cases", _S, "further checked cases, JSON list", nullable=True),
            _CANARY,
            Column("code", _S, "the reference program, canonical text"),
        ),
    ),
    Table(
        name="gpus", key="gpu", splits=("train",),
        title="Hardware facts of the GPUs in the archive",
        columns=(
            _GPU,
            Column("known", _B, "whether the package knows this GPU"),
            Column("compute_capability", _S, "CUDA compute capability", nullable=True),
            Column("memory_gb", _F, "device memory, GB", nullable=True),
            Column("multiprocessors", _I32, "streaming multiprocessors", nullable=True),
            Column("max_threads_per_multiprocessor", _I32, "resident threads", nullable=True),
            Column("clock_ghz", _F, "boost clock, GHz", nullable=True),
            Column("memory_clock_ghz", _F, "memory clock, GHz", nullable=True),
            Column("memory_bus_bits", _I32, "memory bus width, bits", nullable=True),
            Column("memory_bandwidth_gb_s", _F, "peak memory bandwidth, GB/s", nullable=True),
            Column("l2_cache_mb", _F, "L2 cache, MB", nullable=True),
            Column("fp32_tflops", _F, "dense fp32 peak, TFLOP/s", nullable=True),
            Column("bf16_tflops", _F, "dense bf16 tensor-core peak, TFLOP/s", nullable=True),
            Column("source", _S, "where the figures come from", nullable=True),
            _CANARY,
        ),
    ),
    _evaluation("eval", "The evaluation split: forecast each row's speedup"),
    _evaluation("eval_problems", "Transfer: programs for problems that no training program was written for"),
    _evaluation("eval_cuda", "Transfer: programs for the evaluation tasks in CUDA C++"),
    # The rows of all evaluation splits without their labels, one split each.
    Table(
        name="eval_inputs", key="row_id", splits=("eval", "eval_problems", "eval_cuda"), derived=True,
        title="The rows of every evaluation split without labels, for those who only forecast",
        columns=(_ROW_ID, *_SHOWN, _SCHEME, _CANARY, *_PROGRAMS),
    ),
    Table(
        name="eval_close", key="row_id", splits=("test",), derived=True,
        title="Close pairs: which of two programs of like intent is faster, and by how much",
        columns=(
            *_CLOSE_SHOWN,
            Column("ratio", _F, "speedup(second) / speedup(first), x"),
            _BIN, _SCHEME,
            Column("noise", _F, "relative standard errors of both speedups, combined: root of the sum of squares"),
            _SEARCH, _CANARY, *_CLOSE_PROGRAMS,
        ),
    ),
    Table(
        name="eval_close_inputs", key="row_id", splits=("test",), derived=True,
        title="The close pairs without their labels, for those who only forecast",
        columns=(*_CLOSE_SHOWN, _CANARY, *_CLOSE_PROGRAMS),
    ),
    Table(
        name="discovery_pairs", key="row_id", splits=("test",), derived=True,
        title="Parent-child edges of search trees: forecast how much faster the child is",
        columns=(
            _ROW_ID, _PROBLEM, _FAMILY, _GPU,
            Column("g", _F, "speedup(child) / speedup(parent), x"),
            Column("g_cases", _F, "geometric mean over cases of parent time / child time, x", nullable=True),
            _BIN, _SCHEME,
            Column("parent_speedup", _F, "speedup of the parent over the reference, x; null where others published the row", nullable=True),
            Column("parent_language", _S, "language of the parent, found in its text"),
            Column("child_language", _S, "language of the child, found in its text"),
            Column("parent_kernel_id", _S, "kernel id of the parent"),
            Column("child_kernel_id", _S, "kernel id of the child"),
            _SEARCH, _CANARY,
            Column("parent_code", _S, "the parent program"),
            Column("child_code", _S, "the child program"),
        ),
    ),
    Table(
        name="launches", key="launch_id", splits=("train",), derived=True,
        title="What programs launch, by a dry run of their host code: no GPU, no values",
        columns=(
            Column("launch_id", _S, "id of the row"),
            Column("program_id", _S, "id of the program"),
            _PROBLEM,
            Column("case", _I32, "which of the problem's timed cases, from 0"),
            Column("kind", _S, "launch, operator (of torch), or not_followed"),
            Column("name", _S, "name of the kernel or operator; why the program was not followed"),
            Column("n", _I32, "calls that are alike in everything"),
            Column("bytes", _I64, "bytes of the tensors handed over, each time"),
            Column("flops", _I64, "floating-point operations of a matrix product of torch", nullable=True),
            *(Column(f"grid_{axis}", _I64, f"blocks along {axis}", nullable=True) for axis in "xyz"),
            Column("warps", _I32, "warps per block", nullable=True),
            Column("stages", _I32, "pipeline stages", nullable=True),
            Column("configurations", _I32, "configurations of autotuning; the first one is recorded", nullable=True),
            Column("largest_tile", _I32, "largest integer argument under 5,000", nullable=True),
            Column("trips", _F, "loop trips of a block: nested multiplied, side by side added", nullable=True),
            *(Column(name, _I32, f"{name} in the kernel's text", nullable=True)
              for name in ("loads", "stores", "dots", "reductions", "transcendentals", "atomics", "loops")),
            _CANARY,
        ),
    ),
    Table(
        name="train_pairs", key="row_id", splits=("train",), derived=True,
        title="Training pairs: anchor, candidate and their relative speedup",
        columns=(
            _ROW_ID, _PROBLEM, _FAMILY, _GPU,
            Column("pair_type", _S, "seed (reference to candidate), parent_edit or pair"),
            Column("speedup", _F, "anchor time / candidate time, x"),
            _BIN, _SCHEME,
            Column("anchor_program_id", _S, "program id of the anchor"),
            Column("candidate_kernel_id", _S, "kernel id of the candidate"),
            _SEARCH, _CANARY,
            Column("anchor_code", _S, "the anchor program"),
            Column("candidate_code", _S, "the candidate program"),
        ),
    ),
)  # fmt: skip

TABLES: Final[dict[str, Table]] = {table.name: table for table in _ALL}


def shard_name(table: str, split: str, index: int = 0, count: int = 1) -> str:
    """Name a shard inside an archive directory, as the Hub lays it out."""
    return f"data/{table}/{split}-{index:05d}-of-{count:05d}.parquet"
