"""``forecast --url``: asking a service on loopback that fails in every way."""

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from support.llm_server import forecast_of

from kernel_archive.cli import common, main
from kernel_archive.llm.questions import load_questions
from kernel_archive.llm.service import retry_after


@pytest.fixture
def run(archive, capsys, tmp_path, monkeypatch):
    """Runs ``forecast`` with a file of its own; status and what was printed."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    def call(server, *arguments):
        url, file = getattr(server, "url", server), str(tmp_path / "f.jsonl")
        named = ["--url", url, "--model", "m", "-o", file, "--archive", str(archive.path)]
        status = main(["forecast", *(named if server else named[2:]), *map(str, arguments)])
        return status, "".join(capsys.readouterr())

    return call


@pytest.fixture
def rows(tmp_path):
    """Reads the lines of the forecast file."""
    return lambda: list(map(json.loads, (tmp_path / "f.jsonl").read_text().splitlines()))


@pytest.fixture
def record(tmp_path):
    """Reads what stands in the record of the run."""
    return lambda: json.loads((tmp_path / "f.jsonl.run.json").read_text())


@pytest.mark.parametrize("answer", ["json", "tool", "text"])
def test_answers_become_forecasts(archive, service, run, rows, record, answer):
    """Every row asked is a forecast, with what was asked and what it cost beside it."""
    server = service()
    status, printed = run(
        server, "--limit", 7, "--repeats", 2, "--answer", answer, "--price", 10, 100
    )
    assert status == 0, printed
    assert "14 questions to ask" in printed
    assert "answered: 14\n" in printed
    assert "forecasts: 14\n" in printed
    assert ("tools" in server.requests[0]) == (answer == "tool")
    assert ("response_format" in server.requests[0]) == (answer == "json")
    forecasts = rows()
    texts = {q.row_id: q for q in load_questions(archive, limit=7, answer=answer)}
    assert [row["row_id"] for row in forecasts[::2]] == list(texts)
    for row in forecasts:
        question = texts[row["row_id"]]
        assert row["question"] == question.digest
        assert row["predicted_bin"] == forecast_of(question.text)["predicted_bin"]
    tokens = sum(row["input_tokens"] for row in forecasts)
    assert f"cost: {(10 * tokens + 100 * 14 * 60) / 1e6:.4g}" in printed
    facts = {"model": "m", "answer": answer, "answers": 14, "input_tokens": tokens, "host": None}
    assert record() == record() | facts | {"output_tokens": 14 * 60}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("401", 'answers with status 401 and says: "refused with 401". Give the service\'s key'),
        ("403", "status 403"),
        ("404", "Correct --model m or --url"),
        ("400", "--answer text"),
        ("no-tool", "the first answer of m holds no forecast"),
        ("empty", "holds no forecast (empty)"),
        ("half", "Raise --max-tokens (now 2,000)"),
        ("no-json", "the response is no JSON object"),
        ("308", "look at http://127.0.0.1:9/v2/chat/completions"),
        ("500", 'status 500 and says: "not now", 3 times. Run the same command again'),
        ("cut-json", "cut response"),
        ("429", "again later, or with fewer --connections"),
    ],
)
def test_the_first_question_fails_alone(service, run, tmp_path, kind, message):
    """One question is asked; one error says where, what the server said and the way out."""
    server = service(lambda prompt, n: kind)
    status, printed = run(server, "--answer", "tool", "--max-retries", 2)
    assert status == 1
    assert message in printed
    assert len(server.requests) == (3 if kind in {"429", "500", "cut-json"} else 1)
    assert not (tmp_path / "f.jsonl").exists()


def test_a_server_that_is_away(run):
    """A refused connection is one line, and is not tried again."""
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        status, printed = run(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
    assert status == 1
    assert "no connection" in printed
    assert "Start the server, or correct --url" in printed


def test_a_key_is_sent_and_never_written(service, run, record, tmp_path, monkeypatch):
    """The key goes to the address that was named, into no file and no message."""
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    server = service()
    status, printed = run(server, "--limit", 2, "--key-env", "MY_KEY", "--name-host")
    assert status == 0, printed
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"sk-secret-1" not in written
    assert "sk-secret-1" not in printed
    assert record()["host"] == server.url.split("/")[2]


def test_what_passes_is_asked_again_and_counted(archive, service, run, rows):
    """A limit, an error, a hang, a cut body and a closed connection: one more request each."""
    kinds = ["fine", "429", "500", "hang", "half-body", "close"]
    place = {q.text: i for i, q in enumerate(load_questions(archive, limit=6))}
    server = service(lambda prompt, n: kinds[place[prompt]] if n == 1 else "fine")
    status, printed = run(server, "--limit", 6, "--timeout", 1, "--connections", 5)
    assert status == 0, printed
    assert [server.seen[text] for text in place] == [1, 2, 2, 2, 2, 2]
    assert "requests sent again: 5" in printed
    assert sum(row["output_tokens"] for row in rows()) == 6 * 60


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("404", ["--model", "n"]),
        ("half", ["--max-tokens", 4000]),
        ("empty", ["--answer", "text"]),
    ],
)
def test_a_failed_first_question_leaves_the_way_out_free(service, run, tmp_path, kind, more):
    """What the error says to type works with the same file; a paid answer is kept aside."""
    sick = [True]
    server = service(lambda prompt, n: kind if sick[0] else "fine")
    assert run(server, "--limit", 3)[0] == 1
    sick[0] = False
    status, printed = run(server, "--limit", 3, *more)
    assert status == 0, printed
    assert "forecasts: 3\n" in printed
    assert len(server.requests) == 4
    assert (tmp_path / "f.jsonl.answers.old.jsonl").read_bytes().count(b"\n") == 1
    assert run(server, "--limit", 3)[0] == 2


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_the_wait_that_a_server_asks_for_is_kept(service, run, form):
    """Retry-After counts, in seconds or as an HTTP date, and not our own pause of a second."""
    server = service(lambda prompt, n: "429" if n == 1 else "fine")
    # A date has whole seconds: one 3.99 s ahead is at least 2.99 s ahead.
    later = datetime.now(UTC) + timedelta(seconds=3.99)
    server.retry_after = "2" if form == "seconds" else format_datetime(later, usegmt=True)
    started = time.monotonic()
    status, printed = run(server, "--limit", 1)
    assert status == 0, printed
    assert 2 <= time.monotonic() - started < 10
    assert len(server.requests) == 2


@pytest.mark.parametrize("header", ["soon", "-1", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_an_odd_wait_is_bounded_or_our_own(header):
    """What is neither seconds nor a date is no wait, and none is longer than an hour."""
    assert retry_after(header) in {None, 3600.0}


def test_ten_failures_of_one_kind_end_the_run(service, run, record):
    """What was answered is kept, and the same command goes on when the server is well."""
    answered = itertools.count()
    sick = [True]
    server = service(lambda prompt, n: "500" if sick[0] and next(answered) >= 5 else "fine")
    status, printed = run(server, "--limit", 40, "--max-retries", 0, "--connections", 1)
    assert status == 1
    assert "10 questions in a row failed" in printed
    assert "status 500" in printed
    assert "Kept: 5 answers." in printed
    assert len(server.requests) == 15
    assert record()["failures"] == {"status 500": 10}
    sick[0] = False
    status, printed = run(server, "--limit", 40, "--max-retries", 0)
    assert status == 0, printed
    assert "answers there already: 5;" in printed
    assert max(n for text, n in server.seen.items()) == 2
    assert len(server.requests) == 15 + 35


def test_a_run_that_stops_says_what_failed(service, run, record):
    """Failures are counted per kind with an example, and only the server's; so are retries."""
    answered = itertools.count()
    server = service(lambda prompt, n: "500" if next(answered) >= 5 else "fine")
    status, printed = run(server, "--limit", 40, "--max-retries", 1, "--connections", 4)
    assert status == 1
    failures, retries = record()["failures"], record()["retries"]
    assert list(failures) == ["status 500"]
    n = failures["status 500"]
    assert 10 <= n <= 13
    assert f"failed {n}x: status 500, for example: not now\n" in printed
    assert n <= retries <= n + 3
    assert f"requests sent again: {retries}\n" in printed
    in_flight = 4  # one a connection, when the run stops
    assert len(server.requests) <= 5 + n + retries + in_flight


def test_ten_answers_without_a_forecast_end_the_run(service, run, rows):
    """A model that stops to answer in the form is not paid for on and on, unless asked to."""
    answered = itertools.count()
    server = service(lambda prompt, n: "fine" if next(answered) < 5 else "no-tool")
    how = ["--answer", "tool", "--limit", 30, "--connections", 1]
    status, printed = run(server, *how)
    assert status == 1
    assert '10 answers in a row of m hold no forecast (no-json): "It is fast."' in printed
    assert "Kept: 15 answers. With --no-trial the same command goes on" in printed
    assert len(server.requests) == 15
    status, printed = run(server, *how, "--no-trial")
    assert status == 0, printed
    assert len(server.requests) == len(rows()) == 30


def test_another_name_of_the_model_is_said(service, run, record):
    """What the service calls the model is printed where it is not what was asked for."""
    status, printed = run(service(lambda prompt, n: "other-model"), "--limit", 2)
    assert status == 0
    assert "asked for m; the service names other\n" in printed
    assert record()["served_models"] == ["other"]


def test_more_rows_and_repeats_use_every_answer(service, run):
    """10 rows, then 30, then all; one repeat, then three: no question is asked twice."""
    server = service()
    for more in (["--limit", 10], ["--limit", 30], [], ["--repeats", 3]):
        status, printed = run(server, *more)
        assert status == 0, printed
    assert len(server.requests) == 3 * 48
    assert set(server.seen.values()) == {3}
    status, printed = run(server, "--limit", 10)
    assert status == 0
    assert len(server.requests) == 3 * 48


def test_another_question_is_another_run(service, run):
    """What may not change within a run is refused, with both values."""
    server = service()
    assert run(server, "--limit", 2)[0] == 0
    for more, message in (
        (["--temperature", 1], "settings {'max_tokens': 2000} instead of {'temperature': 1.0"),
        (["--answer", "text"], "prompt v1-forecast-json"),
        (["--split", "discovery"], "split eval instead of discovery"),
        (["--model", "n"], "model m instead of n"),
    ):
        status, printed = run(server, "--limit", 2, *more)
        assert status == 2
        assert message in printed
    assert len(server.requests) == 2


def test_a_dry_run_asks_nothing(service, run):
    """The estimate bounds input and output, as tokens and as money."""
    server = service()
    status, printed = run(server, "--dry-run", "--price", 1, 10, "--repeats", 2, "--json")
    assert status == 0
    facts = json.loads(printed)
    assert facts["at_most"]["questions"] == 96
    assert facts["at_most"]["output_tokens"] == 96 * 2000
    assert facts["cost"] > 96 * 2000 * 10 / 1e6
    assert not server.requests
    assert run(server, "--price", 1, 10, "--repeats", 2)[0] == 0
    spent = sum(len(r["messages"][0]["content"]) // 4 for r in server.requests)
    assert spent <= facts["at_most"]["input_tokens"]


@pytest.mark.parametrize(
    ("bounds", "reached"),
    [
        (["--max-tokens-total", 5000], "--max-tokens-total"),
        (["--max-cost", 0.005, "--max-tokens-total", 10**9], "--max-cost"),
    ],
)
def test_a_run_stops_within_its_bound(service, run, rows, bounds, reached):
    """The server's own count stays below the bound, which is named; what was answered is kept."""
    server = service()
    options = ["--max-tokens", 100, "--connections", 2, "--price", 1.0, 1.0]
    status, printed = run(server, *options, *bounds)
    assert status == 0, printed
    assert f"Stopped by {reached}" in printed
    spent = sum(len(r["messages"][0]["content"]) // 4 + 60 for r in server.requests)
    assert 2000 < spent <= 5000
    assert len(rows()) == len(server.requests) < 48
    run(server, *options, *bounds)  # the bound is that of the whole run
    spent = sum(len(r["messages"][0]["content"]) // 4 + 60 for r in server.requests)
    assert spent <= 5000
    status, printed = run(server, *options, "--max-cost", 0.4)
    assert status == 0, printed
    assert "Stopped" not in printed
    assert len(server.requests) == 48


def test_kill_at_any_moment_loses_nothing(archive, service, rows, tmp_path):
    """A killed run loses the question under way and nothing else, also in the middle of a line."""
    reached, released = threading.Event(), threading.Event()
    stop_at = 0

    def behaviour(prompt, n):
        if len(server.requests) == stop_at:
            reached.set()
            released.wait(60)
        return "fine"

    server = service(behaviour)
    path, answers = tmp_path / "f.jsonl", tmp_path / "f.jsonl.answers.jsonl"
    command = [sys.executable, "-m", "kernel_archive", "forecast", "--url", server.url]
    command += ["--model", "m", "--connections", "1", "-o", str(path)]
    command += ["--archive", str(archive.path)]
    for kills, stop_at in enumerate((1, 8, 30), 1):
        reached.clear()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert reached.wait(60)
            process.kill()
        assert answers.read_bytes().count(b"\n") == stop_at - kills
        with answers.open("ab") as file:
            file.write(b'{"custom_id": "cut o')
    released.set()
    stop_at = 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(rows()) == 48
    assert len(server.requests) == 48 + 3


def test_a_file_of_somebody_else_is_left_alone(service, run, tmp_path):
    """A forecast file without answers beside it is only overwritten when asked."""
    (tmp_path / "f.jsonl").write_text("mine")
    server = service()
    assert run(server, "--limit", 1)[0] == 1
    assert not server.requests
    assert run(server, "--limit", 1, "--force")[0] == 0


@pytest.mark.parametrize(
    ("url", "more", "message"),
    [
        ("", [], "name the service: --url http://HOST/v1"),
        ("ftp://x", [], "--url ftp://x is no address"),
        ("http://x/v1", ["--max-cost", 1], "--max-cost needs the price of tokens: --price IN OUT"),
    ],
)
def test_wrong_usage_says_what_to_type(run, url, more, message):
    """No address, a bad one, and a bound on money without a price."""
    status, printed = run(url, *more)
    assert status == 2
    assert message in printed


def test_progress_without_a_terminal(service, run, monkeypatch):
    """In a file or CI there is a line every so often."""
    monkeypatch.setattr(common, "PROGRESS_SECONDS", 0.0)
    status, printed = run(service(), "--limit", 5)
    assert status == 0
    assert "4 of 5, 0 failed" in printed
    assert "minutes left" in printed


def test_progress_while_no_answer_comes(service, run, monkeypatch):
    """A request that is sent again is shown also while the first answer is awaited, and why."""
    monkeypatch.setattr(common, "PROGRESS_SECONDS", 0.0)
    server = service(lambda prompt, n: "429" if n == 1 else "fine")
    server.retry_after = "1"
    status, printed = run(server, "--limit", 1)
    assert status == 0
    waited = "Answers: 0 of 1, 0 failed, 0 tokens read, 0 written, 0.0 a minute, unknown minutes"
    assert printed.count(f"{waited} left; 1 sent again, last for status 429\n") == 1
