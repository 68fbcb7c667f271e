"""The Inspect tasks and their logs, against a service on loopback."""

import gc
import itertools
import json
import os
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.llm_server import language_model
from support.small_archive import write_archive

from kernel_archive.cli import main
from kernel_archive.llm.inspect_logs import from_log
from kernel_archive.llm.run import read_run
from kernel_archive.scoring import load_split, read_forecasts, score

pytestmark = pytest.mark.filterwarnings("ignore")  # of Inspect and what it imports
_NUMBER = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _inspect():
    """Import Inspect only where these tests run: it takes three seconds."""
    global inspect_ai, tasks  # noqa: PLW0603 - as an import at the top would
    inspect_ai = pytest.importorskip("inspect_ai")
    from kernel_archive.llm import task as tasks


@pytest.fixture(autouse=True)
def _streams_left_open():
    """What Inspect leaves open is collected here, not in the middle of another test."""
    yield
    gc.collect()


@pytest.fixture
def provider(monkeypatch):
    """Starts services; each is a provider of its own, so that no client is used again."""
    with ExitStack() as running:

        def start(behaviour=None):
            server = running.enter_context(language_model(behaviour))
            name = f"local{os.getpid()}x{next(_NUMBER)}"
            monkeypatch.setenv(f"{name.upper()}_BASE_URL", server.url)
            monkeypatch.setenv(f"{name.upper()}_API_KEY", "none")
            return f"openai-api/{name}/m", server

        yield start


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """An archive of 6 rows of eval."""
    return write_archive(tmp_path_factory.mktemp("few"), per_search=3)


def evaluate(task, model, logs, **more):
    """Run a task as Inspect's own command does."""
    (log,) = inspect_ai.eval(
        task, model=model, display="none", log_dir=str(logs), fail_on_error=False, **more
    )
    assert log.status == "success", log.error
    return log


def figures(log):
    """The figures that Inspect shows."""
    return {key: value.value for key, value in log.results.scores[0].metrics.items()}


def scored(data, rows):
    """The figures of ``score`` for a forecast file."""
    lines = [json.loads(line) for line in data.splitlines()]
    record = score(rows, read_forecasts(lines, rows), draws=0)
    return {name: f.mean for name, f in record.metrics.items() if f.mean is not None}


@pytest.mark.parametrize(
    ("split", "answer", "defer"),
    [
        ("eval", "tool", False),
        ("eval", "json", False),
        ("discovery", "text", False),
        ("eval", "json", True),
    ],
)
def test_every_form_of_the_task(few, provider, tmp_path, split, answer, defer):
    """Samples are rows, epochs are repeats, and the figures are those of ``score``."""
    model, server = provider()
    task = tasks.forecast(split, archive=str(few.path), answer=answer, defer=defer)
    log = evaluate(task, model, tmp_path, epochs=2)
    rows = load_split(few, split)
    assert {sample.id for sample in log.samples} == set(rows.row_ids)
    assert len(server.requests) == 2 * len(rows)
    assert ("tools" in server.requests[0]) == (answer == "tool")
    assert ("response_format" in server.requests[0]) == (answer == "json")
    data, counts = from_log(log.location, few, split).forecast_file()
    assert counts.forecasts == counts.asked == 2 * len(rows)
    assert not counts.unanswered
    shown = figures(log)
    assert shown["coverage"] == shown["parse_rate"] == 1
    for metric, mean in scored(data, rows).items():
        assert shown[metric] == pytest.approx(mean), metric


def test_figures_agree_where_rows_are_missing_or_malformed(few, provider, tmp_path):
    """With rows not asked, cut, empty, refused and failed, Inspect shows what ``score`` gives."""
    kinds = itertools.cycle(["fine", "empty", "half", "refusal", "400", "fine"])
    model, _ = provider(lambda prompt: next(kinds))
    task = tasks.forecast(archive=str(few.path))
    log = evaluate(task, model, tmp_path, limit=5, max_connections=1)
    rows = load_split(few, "eval")
    data, counts = from_log(log.location, few, "eval").forecast_file()
    assert counts.unanswered == {"ModelGenerateError": 1}
    shown = figures(log)
    assert shown["coverage"] < 1
    for metric, mean in scored(data, rows).items():
        assert shown[metric] == pytest.approx(mean), metric


def test_logs_become_a_forecast_file(few, provider, tmp_path, capsys):
    """``forecast --from-log`` converts a log, with what was asked; of another split it refuses."""
    model, _ = provider()
    task, stated = tasks.forecast(archive=str(few.path)), {"temperature": 0.5, "max_tokens": 900}
    log = evaluate(task, model, tmp_path / "a", limit=3, **stated)
    path = tmp_path / "f.jsonl"
    common = ["--archive", str(few.path), "-o", str(path), "--force"]
    for more, status, message in (
        (["--from-log", log.location], 0, "answered: 3"),
        (["--from-log", log.location, "--split", "discovery"], 2, "is of split eval"),
    ):
        assert main(["forecast", *more, *common]) == status
        assert message in "".join(capsys.readouterr())
    assert len(path.read_text().splitlines()) == 3
    run = read_run(path)
    assert (run.model, run.served_models, run.settings) == (model, ["m"], stated)
    assert run.date == str(log.eval.created)[:10]


def test_what_is_no_log_is_refused(few, tmp_path, capsys):
    """A file that is none, and a log of another task."""
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    common = ["--archive", str(few.path), "-o", str(tmp_path / "f.jsonl")]
    (tmp_path / "x.eval").write_bytes(b"PK nonsense")
    assert main(["forecast", "--from-log", str(tmp_path / "x.eval"), *common]) == 1
    assert "not a log of Inspect" in capsys.readouterr().err
    foreign = inspect_ai.Task(dataset=[Sample(input="?")], name="other")
    output = ModelOutput.from_content("mockllm/model", "!")
    output.usage = ModelUsage(input_tokens=1, output_tokens=1)  # else a tokenizer is downloaded
    model = get_model("mockllm/model", custom_outputs=[output])
    log = evaluate(foreign, model, tmp_path / "logs")
    assert main(["forecast", "--from-log", log.location, *common]) == 1
    assert "a log of other, not of this package's task" in capsys.readouterr().err


def test_inspect_finds_the_tasks_by_the_entry_point():
    """The package's metadata names the module that has them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["inspect_ai"] == {"kernel_archive": tasks.__name__}
    assert tasks.__all__ == ["forecast"]
