"""Facts that stand in files beside a log: ``run.json``, ``experiment.json``, ``config.json``, ``summary.json`` and more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.readers.timing import INVOCATION_FILES, TIMING_FILE, apply_invocations, apply_timing, drop_downtime
from kernel_archive.readers.values import finite, not_negative, object_of, seconds_between, text_of

if TYPE_CHECKING:
    from kernel_archive.readers.reading import Reading

_RUN: Final = "run.json"
#: Files around an upstream run directory (``<out>/run_NN``).
UPSTREAM_FILES: Final = ("summary.json", "../experiment.json", "../config.json")
#: Everything that :func:`add_facts` reads.
FILES_BESIDE: Final = (_RUN, TIMING_FILE, *UPSTREAM_FILES, *INVOCATION_FILES)


def add_facts(reading: Reading, *, keeps_failures: bool = True) -> None:
    """Add what the files beside a log say: facts of the search, GPU seconds and tokens of its evaluations.

    Args:
        reading: the log as read; its own facts count where they differ.
        keeps_failures: the log holds failed programs, too.
    """
    _read_run_json(reading)
    read_upstream(reading)
    drop_downtime(reading)
    apply_invocations(reading)
    apply_timing(reading, keeps_failures=keeps_failures)


def load_object(reading: Reading, name: str) -> dict[str, Any] | None:
    """The JSON object in a file of the run; ``None`` where there is none, with a warning where it can't be read."""
    run, report = reading.run, reading.report
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


def _read_run_json(reading: Reading) -> None:
    """Fill in what ``run.json`` (our own runs) says."""
    data, facts = load_object(reading, _RUN), reading.facts
    if data is None:
        return
    _fill(reading, _RUN, "problem", text_of(data.get("task")))
    smi, device = object_of(data.get("nvidia_smi")), object_of(data.get("device_properties"))
    _fill(reading, _RUN, "gpu", text_of(smi.get("name")) or text_of(device.get("name")))
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


def read_upstream(reading: Reading) -> None:
    """Fill in what the files around an upstream run say."""
    facts = reading.facts
    summary, experiment, config = (load_object(reading, name) for name in UPSTREAM_FILES)
    if config is not None:
        use_config(config, reading)
    if experiment is not None:
        use_experiment(experiment, reading)
    elif config is not None:
        facts.hyperparameters = facts.hyperparameters or config
    if summary is not None:
        facts.wall_seconds = facts.wall_seconds or not_negative(summary.get("wall_clock_seconds"))
        facts.model = facts.model or text_of(summary.get("model_slug"))
    if facts.finished is None and (summary is not None or experiment is not None):
        facts.finished = summary is not None  # written last: its presence says that the run came to its end


def use_config(config: dict[str, Any], reading: Reading) -> None:
    """Fill in what a ``config.json`` says."""
    facts = reading.facts
    _fill(reading, "config.json", "problem", text_of(config.get("pack")))
    _fill(reading, "config.json", "gpu", text_of(object_of(config.get("hardware")).get("gpu")))
    facts.model = facts.model or text_of(config.get("mutator_model_slug"))


def use_experiment(experiment: dict[str, Any], reading: Reading) -> None:
    """Fill in what an ``experiment.json`` says: v2 nests it under ``run``, v3 does not."""
    facts = reading.facts
    part = object_of(experiment.get("run")) or experiment
    provider = object_of(part.get("provider"))
    mutator, evaluation = object_of(part.get("mutator")), object_of(part.get("evaluation"))
    _fill(reading, "experiment.json", "gpu", text_of(provider.get("gpu")) or text_of(evaluation.get("gpu")))
    facts.model = text_of(provider.get("model_slug")) or text_of(mutator.get("model_slug")) or facts.model
    parts = {k: v for k, v in part.items() if k not in ("hardware", "num_runs")}
    facts.hyperparameters = facts.hyperparameters or parts or None
    hardware = object_of(part.get("hardware"))
    if hardware and facts.software is None:
        facts.software = {"hardware": hardware}


def _fill(reading: Reading, file: str, field: str, value: str | None) -> None:
    """Set a fact, or report that two files disagree."""
    if value is None:
        return
    before: str | None = getattr(reading.facts, field)
    if before is None:
        setattr(reading.facts, field, value)
        return
    same = normalise_problem if field == "problem" else canonical_gpu
    if same(before) != same(value):
        message = f"the log says {field} {before!r}, {file} says {value!r}; the log counts"
        reading.report.error("facts-disagree", message, file=file, field=field)
