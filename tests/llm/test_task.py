"""The Inspect task and ``forecast --model``, against a service on loopback."""

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from support.llm_server import forecast_of, language_model
from support.small_archive import write_archive

from kernel_archive.cli import main
from kernel_archive.llm.prompts import load_questions
from kernel_archive.llm.run import from_logs, log_files, log_folder
from kernel_archive.scoring import load_target, read_forecasts, score

pytestmark = pytest.mark.filterwarnings("ignore")  # of Inspect and what it imports
_NUMBER = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _inspect():
    """Inspect is imported where these tests run, not in each process that collects them: it takes three seconds."""
    global inspect_ai, tasks  # noqa: PLW0603 - as an import at the top would
    inspect_ai = pytest.importorskip("inspect_ai")
    from kernel_archive.llm import task as tasks


@pytest.fixture(autouse=True)
def _streams_left_open():
    """What Inspect leaves open is collected here, not in the middle of another test."""
    yield
    gc.collect()


@pytest.fixture
def service(monkeypatch):
    """Starts services; each is a provider of its own, so that no client of another is used again."""
    running = []

    def start(behaviour=None, delay=0.0):
        context = language_model(behaviour, delay)
        server = context.__enter__()
        running.append(context)
        name = f"local{os.getpid()}x{next(_NUMBER)}"
        monkeypatch.setenv(f"{name.upper()}_BASE_URL", server.url)
        monkeypatch.setenv(f"{name.upper()}_API_KEY", "none")
        return f"openai-api/{name}/m", server

    yield start
    for context in running:
        context.__exit__(None, None, None)


@pytest.fixture
def run(archive, capsys):
    """Runs ``forecast``; status, stdout, stderr."""

    def call(*arguments):
        status = main(["forecast", *map(str, arguments), "--archive", str(archive.path)])
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """An archive whose every row may be asked about, and twice, without a test taking long: 10 rows of eval."""
    return write_archive(tmp_path_factory.mktemp("few"), per_search=5)


def lines(path):
    """The lines of a forecast file, without the seconds, which no two runs share."""
    return [{k: v for k, v in json.loads(line).items() if k != "latency_s"} for line in path.read_text().splitlines()]


def evaluate(task, model, logs, **more):
    """A run of Inspect as its own command would make it."""
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(logs), fail_on_error=False, **more)
    assert log.status == "success", log.error
    return log


@pytest.mark.parametrize(
    ("name", "answer"),
    [("forecast", "tool"), ("forecast", "json"), ("forecast", "text"), ("discovery", "tool"), ("defer", "json")],
)
def test_every_task_in_every_form(few, service, tmp_path, name, answer):
    """Samples are rows, epochs are repeats, and the metrics are those of ``score`` on the file that comes of the log."""
    model, server = service()
    task = getattr(tasks, name)(archive=str(few.path), answer=answer)
    log = evaluate(task, model, tmp_path, epochs=2)
    split = "discovery" if name == "discovery" else "eval"
    target = load_target(few, split)
    assert {sample.id for sample in log.samples} == set(target.row_ids)
    assert len(server.requests) == 2 * len(target)
    assert ("tools" in server.requests[0]) == (answer == "tool")
    assert ("response_format" in server.requests[0]) == (answer == "json")
    data, tally = from_logs([log.location], few).finish()
    assert tally.forecasts == tally.asked == 2 * len(target)
    assert not tally.unanswered
    record = score(target, read_forecasts([json.loads(line) for line in data.splitlines()], target), draws=0)
    shown = {key: value.value for key, value in log.results.scores[0].metrics.items()}
    assert shown["coverage"] == shown["parse_rate"] == 1
    for metric, figure in record.metrics.items():
        if figure.mean is not None:
            assert shown[metric] == pytest.approx(figure.mean), metric


def test_command_and_inspect_give_the_same_file(archive, service, run, tmp_path):
    """The same rows, asked by ``forecast --model`` and by Inspect; the batch form gives the same forecasts, too."""
    model, server = service()
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    status, out, err = run("--model", model, "--limit", 7, "--repeats", 2, "-o", one, "--price", 10, 100)
    assert status == 0, err
    assert "14 questions, about" in err
    assert "14 answers to 14 questions, 14 forecasts" in out
    tokens = sum(line["input_tokens"] for line in lines(one))
    assert f"cost {(10 * tokens + 100 * 14 * 60) / 1e6:,.4f}" in out
    log = evaluate(tasks.forecast(archive=str(archive.path)), model, tmp_path / "logs", limit=7, epochs=2)
    assert run("--from-log", log.location, "-o", other)[0] == 0
    assert lines(one) == lines(other)
    for more, said in ((("--split", "eval"), None), (("--split", "discovery"), "is of split eval, not of discovery")):
        status, _, err = run("--from-log", log.location, *more, "-o", tmp_path / f"{more[1]}.jsonl")
        assert status == (0 if said is None else 2)
        assert said is None or said in err
    assert not (tmp_path / "discovery.jsonl").exists()
    assert len(server.requests) == 28
    texts = {question.row_id: question.text for question in load_questions(archive, limit=7, answer="tool")}
    assert [line["row_id"] for line in lines(one)[::2]] == list(texts)
    for line in lines(one):
        said = forecast_of(texts[line["row_id"]])
        assert (line["predicted_bin"], line["expected_speedup"]) == (said["predicted_bin"], 1.5)
        assert line["probabilities"] == [value for key, value in said.items() if key.startswith("p_")]


@pytest.mark.slow
def test_what_passes_is_asked_again_and_counted_once(archive, service, run, tmp_path):
    """Each row fails in its own way at first: a limit of requests, an error, a hang, a closed connection."""
    kinds = ["429", "500", "hang", "close", "fine"]
    place = {q.text: i for i, q in enumerate(load_questions(archive, limit=5, answer="tool"))}
    model, server = service(lambda prompt, n: kinds[place[prompt]] if n == 1 else "fine")
    path = tmp_path / "f.jsonl"
    status, out, err = run("--model", model, "--limit", 5, "-o", path, "--timeout", 1, "--connections", 5)
    assert status == 0, err
    assert "5 answers to 5 questions, 5 forecasts" in out
    assert [server.seen[text] for text in place] == [2, 2, 2, 2, 1]
    assert sum(line["output_tokens"] for line in lines(path)) == 5 * 60


@pytest.mark.slow
def test_what_stays_is_said_once_and_asked_again_later(archive, service, run, tmp_path):
    """Half an answer, none, a refusal, no usage, a prompt that does not fit, a service that is down: each in its place."""
    kinds = ["half", "empty", "refusal", "no-usage", "400", "500", "fine"]
    place = {q.text: i for i, q in enumerate(load_questions(archive, limit=7, answer="tool"))}
    good = []
    model, server = service(lambda prompt, n: "fine" if good else kinds[place[prompt]])
    path = tmp_path / "f.jsonl"
    status, out, err = run("--model", model, "--limit", 7, "-o", path, "--max-retries", 0, "--json")
    assert status == 0, err
    tally = json.loads(out)["tally"]
    assert tally["forecasts"] == 2
    assert tally["unparsed"] == {"cut": 1, "empty": 1, "refused": 1}
    assert tally["stopped"] == {"max_tokens": 1, "refused": 1}
    assert tally["without_usage"] == 1
    unanswered = tally["unanswered"]
    assert unanswered.pop("the prompt does not fit the model's context") == 1
    assert list(unanswered.values()) == [1]
    assert next(iter(unanswered)).startswith("failed: ")
    assert len(lines(path)) == 5
    # Only what has no answer is asked again, and what was answered stays as it was.
    before = {line["row_id"]: line for line in lines(path)}
    asked = len(server.requests)
    good.append(True)
    assert run("--model", model, "--limit", 7, "-o", path)[0] == 1  # the file is there
    status, out, err = run("--model", model, "--limit", 7, "-o", path, "--force", "--json")
    assert status == 0, err
    after = {line["row_id"]: line for line in lines(path)}
    assert after | before == after
    assert len(server.requests) - asked == 1
    assert json.loads(out)["tally"]["unanswered"] == {"the prompt does not fit the model's context": 1}


@pytest.mark.slow
def test_a_killed_run_goes_on(archive, service, run, tmp_path):
    """Killed half-way, the same command asks the rest, and the file is that of a run that was left alone."""
    model, server = service(delay=0.3)
    path, whole = tmp_path / "f.jsonl", tmp_path / "whole.jsonl"
    arguments = ["--model", model, "--limit", "12", "--repeats", "2", "--connections", "2"]
    command = [
        sys.executable,
        "-m",
        "kernel_archive",
        "forecast",
        *arguments,
        "-o",
        str(path),
        "--archive",
        str(archive.path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(server.requests) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists()
    asked = len(server.requests)
    assert 10 <= asked < 24
    server.delay = 0
    status, out, err = run(*arguments, "-o", path)
    assert status == 0, err
    assert "Going on" in err
    assert "24 answers to 24 questions" in out
    assert len(server.requests) <= 24 + 4  # those on their way at the kill are asked again
    assert run(*arguments, "-o", whole)[0] == 0
    assert lines(path) == lines(whole)
    # Nothing is left to ask: the file is made from the logs alone.
    asked = len(server.requests)
    path.unlink()
    assert run(*arguments, "-o", path)[0] == 0
    assert lines(path) == lines(whole)
    assert len(server.requests) == asked
    partial = log_files(log_folder(path))[0]
    status, out, err = run("--from-log", partial, "-o", tmp_path / "part.jsonl")
    assert status == 0, err
    assert "unanswered: no answer" in out


def test_ctrl_c_before_the_first_answer_is_no_error(archive, service, tmp_path):
    """Stopped while the first question is on its way: it says that the same command goes on, and calls nothing a bug."""
    model, server = service(delay=5)
    command = [
        sys.executable, "-m", "kernel_archive", "forecast", "--model", model, "--limit", "3", "--connections", "1",
        "-o", str(tmp_path / "f.jsonl"), "--archive", str(archive.path),
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that a shell started in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread holds a lock here
    )
    deadline = time.monotonic() + 60
    while not server.requests:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "the same command goes on" in err
    assert "internal error" not in err


def test_logs_of_another_run_are_refused(archive, service, run, tmp_path):
    """Another model, other settings, other rows: each is named; also where logs are converted together."""
    model, _ = service()
    path = tmp_path / "f.jsonl"
    assert run("--model", model, "--limit", 2, "-o", path)[0] == 0
    for more, said in ((("--limit", 3), "rows 2 instead of 3"), (("--limit", 2, "--temperature", 1), "settings"),
                       (("--limit", 2, "--answer", "json"), "prompt"), (("--limit", 2, "--split", "discovery"), "split")):  # fmt: skip
        status, _, err = run("--model", model, *more, "-o", path, "--force")
        assert status == 2
        assert said in err
    other = evaluate(tasks.forecast(archive=str(archive.path), answer="text"), model, tmp_path / "logs", limit=2)
    status, _, err = run(
        "--from-log", log_files(log_folder(path))[0], "--from-log", other.location, "-o", tmp_path / "g.jsonl"
    )
    assert status == 2
    assert "another run" in err


def test_what_is_no_log_is_refused(archive, run, tmp_path):
    """A file that is none, and a log of another task."""
    (tmp_path / "x.eval").write_bytes(b"PK nonsense")
    status, _, err = run("--from-log", tmp_path / "x.eval", "-o", tmp_path / "f.jsonl")
    assert status == 1
    assert "not a log of Inspect" in err
    from inspect_ai.dataset import Sample

    foreign = inspect_ai.Task(dataset=[Sample(input="?")], name="other")
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    said = ModelOutput.from_content("mockllm/model", "!")
    said.usage = ModelUsage(input_tokens=1, output_tokens=1)
    log = evaluate(foreign, get_model("mockllm/model", custom_outputs=[said]), tmp_path / "logs")
    status, _, err = run("--from-log", log.location, "-o", tmp_path / "f.jsonl")
    assert status == 1
    assert "not a log of this package's task" in err


def test_an_unknown_model_and_a_service_that_is_away(archive, service, run, tmp_path):
    """One line each, and no file."""
    status, _, err = run("--model", "nobody/m", "--limit", 1, "-o", tmp_path / "f.jsonl")
    assert (status, "Inspect refuses" in err) == (2, True)
    model, _ = service(lambda prompt, n: "500")
    status, _, err = run("--model", model, "--limit", 2, "-o", tmp_path / "g.jsonl", "--max-retries", 0)
    assert status == 1
    assert "not one of 2 questions was answered" in err
    assert not (tmp_path / "g.jsonl").exists()


def test_without_inspect_the_way_to_it_is_said(run, tmp_path, monkeypatch):
    """The extra is optional; the batch form works without it."""
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    status, _, err = run("--model", "openai/m", "--limit", 1, "-o", tmp_path / "f.jsonl")
    assert status == 1
    assert "pip install 'kernel-archive[llm]'" in err


def test_inspect_finds_the_tasks_by_the_entry_point():
    """The package's metadata names the module that has them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["inspect_ai"] == {"kernel_archive": tasks.__name__}
    assert {"forecast", "discovery", "defer"} <= set(tasks.__all__)
