"""Facts that stand in files beside a log: ``run.json``, ``experiment.json``, ``config.json``, ``summary.json`` and more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.readers.timing import INVOCATION_FILES, TIMING_FILE, apply_invocations, apply_timing
from kernel_archive.readers.values import finite, not_negative, object_of, positive, seconds_between, text_of

if TYPE_CHECKING:
    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation, SearchFacts
    from kernel_archive.readers.salvage import Report

_RUN: Final = "run.json"
#: Files around an upstream run directory (``<out>/run_NN``).
UPSTREAM_FILES: Final = ("summary.json", "../experiment.json", "../config.json")
#: Everything that :func:`add_facts` reads.
FILES_BESIDE: Final = (_RUN, TIMING_FILE, *UPSTREAM_FILES, *INVOCATION_FILES)
#: How long after its time limit a request may still be seen to end: polling and logging.
_TIMEOUT_SLACK_S: Final = 60.0


def add_facts(
    run: RunFiles, evaluations: list[Evaluation], facts: SearchFacts, report: Report, *, keeps_failures: bool = True
) -> None:
    """Add what the files beside a log say: facts of the search, GPU seconds and tokens of its evaluations.

    Args:
        run: the run.
        evaluations: those of the log.
        facts: the log's own facts, which count where they differ.
        report: takes the findings.
        keeps_failures: the log holds failed programs, too.
    """
    _read_run_json(run, facts, report)
    read_upstream(run, facts, report)
    _drop_downtime(evaluations, facts)
    apply_invocations(run, evaluations, facts, report)
    apply_timing(run, evaluations, facts, report, keeps_failures=keeps_failures)


def load_object(run: RunFiles, name: str, report: Report) -> dict[str, Any] | None:
    """The JSON object in a file of the run; ``None`` where there is none, with a warning where it can't be read."""
    path = run.find(name)
    if path is None:
        return None
    value = run.json(path)
    if isinstance(value, Finding):
        report.warning(value.code, f"{value.message}; its facts are missing", file=value.file)
        return None
    if not isinstance(value, dict):
        report.warning("bad-facts", "not a JSON object; its facts are missing", file=run.name(path))
        return None
    return value


def _read_run_json(run: RunFiles, facts: SearchFacts, report: Report) -> None:
    """Fill in what ``run.json`` (our own runs) says."""
    data = load_object(run, _RUN, report)
    if data is None:
        return
    _fill(facts, report, _RUN, "problem", text_of(data.get("task")))
    smi, device = object_of(data.get("nvidia_smi")), object_of(data.get("device_properties"))
    _fill(facts, report, _RUN, "gpu", text_of(smi.get("name")) or text_of(device.get("name")))
    facts.reference_code = facts.reference_code or text_of(data.get("reference_source"))
    tolerance = {k: v for k, v in object_of(data.get("tolerance")).items() if finite(v) is not None}
    facts.tolerance = tolerance or facts.tolerance
    for name in ("benchmark_cases", "correctness_cases"):
        cases = data.get(name)
        if isinstance(cases, list) and all(isinstance(c, dict) for c in cases):
            setattr(facts, name, cases)
    more = {k: data[k] for k in ("language", "mutator") if text_of(data.get(k))}
    search = object_of(data.get("search"))
    facts.hyperparameters = {**more, **search} or facts.hyperparameters
    facts.model = facts.model or text_of(search.get("model"))  # chains: the language model that wrote the programs
    facts.measurement = object_of(data.get("measurement")) or facts.measurement
    software = dict(object_of(data.get("software")))
    if device:
        software["device_properties"] = device
    if smi:
        software["nvidia_smi"] = smi
    facts.software = software or facts.software
    if isinstance(data.get("finished"), bool):
        facts.finished = data["finished"]
    facts.gpu_seconds = not_negative(data.get("gpu_seconds"))
    facts.wall_seconds = seconds_between(text_of(data.get("start")), text_of(data.get("end")))


def read_upstream(run: RunFiles, facts: SearchFacts, report: Report) -> None:
    """Fill in what the files around an upstream run say."""
    experiment = load_object(run, "../experiment.json", report)
    config = load_object(run, "../config.json", report)
    summary = load_object(run, "summary.json", report)
    if config is not None:
        use_config(config, facts, report)
    if experiment is not None:
        use_experiment(experiment, facts, report)
    elif config is not None:
        facts.hyperparameters = facts.hyperparameters or config
    if summary is not None:
        facts.wall_seconds = facts.wall_seconds or not_negative(summary.get("wall_clock_seconds"))
        facts.model = facts.model or text_of(summary.get("model_slug"))
    if facts.finished is None and (summary is not None or experiment is not None):
        facts.finished = summary is not None  # written last: its presence says that the run came to its end


def use_config(config: dict[str, Any], facts: SearchFacts, report: Report) -> None:
    """Fill in what a ``config.json`` says."""
    _fill(facts, report, "config.json", "problem", text_of(config.get("pack")))
    _fill(facts, report, "config.json", "gpu", text_of(object_of(config.get("hardware")).get("gpu")))
    facts.model = facts.model or text_of(config.get("mutator_model_slug"))


def use_experiment(experiment: dict[str, Any], facts: SearchFacts, report: Report) -> None:
    """Fill in what an ``experiment.json`` says: v2 nests it under ``run``, v3 does not."""
    part = object_of(experiment.get("run")) or experiment
    provider = object_of(part.get("provider"))
    mutator, evaluation = object_of(part.get("mutator")), object_of(part.get("evaluation"))
    _fill(facts, report, "experiment.json", "gpu", text_of(provider.get("gpu")) or text_of(evaluation.get("gpu")))
    facts.model = text_of(provider.get("model_slug")) or text_of(mutator.get("model_slug")) or facts.model
    parts = {k: v for k, v in part.items() if k not in ("hardware", "num_runs")}
    facts.hyperparameters = facts.hyperparameters or parts or None
    hardware = object_of(part.get("hardware"))
    if hardware and facts.software is None:
        facts.software = {"hardware": hardware}


def _fill(facts: SearchFacts, report: Report, file: str, field: str, value: str | None) -> None:
    """Set a fact, or report that two files disagree."""
    if value is None:
        return
    before: str | None = getattr(facts, field)
    if before is None:
        setattr(facts, field, value)
        return
    same = normalise_problem if field == "problem" else canonical_gpu
    if same(before) != same(value):
        message = f"the log says {field} {before!r}, {file} says {value!r}; the log counts"
        report.error("facts-disagree", message, file=file, field=field)


def _drop_downtime(evaluations: list[Evaluation], facts: SearchFacts) -> None:
    """A span longer than the search's own time limit holds a crash and the time until the resume: no GPU time."""
    settings = facts.hyperparameters or {}
    search = object_of(settings.get("search"))
    limit = positive(search.get("per_request_timeout_s", settings.get("per_request_timeout_s")))
    if limit is None:
        return
    for record in evaluations:
        if record.gpu_seconds is not None and record.gpu_seconds > limit + _TIMEOUT_SLACK_S:
            record.gpu_seconds = None
            facts.counts["durations_with_downtime"] = facts.counts.get("durations_with_downtime", 0) + 1
