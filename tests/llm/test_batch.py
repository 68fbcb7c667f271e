"""Batch files: questions out, answers in, nothing lost and nothing counted twice."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.llm_server import FORECAST, served
from support.small_archive import write_archive

from kernel_archive.errors import DataError, ForecastError, KernelArchiveError, UsageError
from kernel_archive.llm.answers import Answers, import_answers
from kernel_archive.llm.questions import ModelSettings, export_lines, load_questions, read_custom_id
from kernel_archive.scoring import check_forecasts, load_split
from kernel_archive.scoring.formats import TOOL_FIELDS


def exported(archive, split="eval", *, repeats=1, limit=None, **more):
    """The requests of a batch file."""
    questions = load_questions(archive, split, limit=limit, **more)
    keys = Answers(questions=questions, repeats=repeats).unanswered_keys()
    return [json.loads(line) for line in export_lines(questions, keys, "m", ModelSettings())]


def ids_of(archive, *args, **how):
    """The names of the questions."""
    return [line["custom_id"] for line in exported(archive, *args, **how)]


def write(path, lines):
    """Lines as a file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_request_is_what_services_take(archive):
    """A request names model, message and form of the answer, and nothing not given."""
    (line,) = exported(archive, limit=1)
    assert (line["method"], line["url"]) == ("POST", "/v1/chat/completions")
    assert set(line["body"]) == {"model", "messages", "response_format"}
    schema = line["body"]["response_format"]["json_schema"]["schema"]
    assert schema["properties"].keys() >= set(TOOL_FIELDS)
    assert len(line["custom_id"]) <= 64
    questions = load_questions(archive, limit=1, answer="tool")
    settings = ModelSettings(temperature=0.5, max_tokens=900, reasoning_effort="low")
    keys = [(questions.asked.row_ids[0], 0)]
    body = json.loads(next(export_lines(questions, keys, "m", settings)))["body"]
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 900)
    assert body["reasoning_effort"] == "low"
    assert body["tool_choice"]["function"]["name"] == body["tools"][0]["function"]["name"]
    assert set(exported(archive, limit=1, answer="text")[0]["body"]) == {"model", "messages"}


@pytest.mark.parametrize("split", ["eval", "discovery"])
def test_nothing_in_the_questions_tells_the_label(archive, split):
    """Questions are ordered by a hash; no bin, speedup or search stands in a request."""
    target = load_split(archive, split)
    ids = [read_custom_id(name)[0] for name in ids_of(archive, split)]
    assert sorted(ids) == sorted(target.row_ids)
    bins = [int(target.bins[target.index[i]]) for i in ids]
    assert sum(a != b for a, b in itertools.pairwise(bins)) > len(set(bins)) * 3
    some = exported(archive, split, limit=7)
    assert [read_custom_id(line["custom_id"])[0] for line in some] == ids[:7]
    rows = {r["row_id"]: r for r in archive.arrow(target.spec.table).to_pylist()}
    for line in some:
        row, text = rows[read_custom_id(line["custom_id"])[0]], json.dumps(line["body"])
        assert row["search_id"] not in text
        assert repr(row[target.spec.value]) not in text
        assert json.dumps(row[target.spec.candidate])[1:-1].removesuffix("\\n") in text


def test_every_bad_day_of_a_service_is_counted_by_reason(archive, tmp_path):
    """Refusals, cut answers, errors and missing usage; plain lines, with what they cost or not."""
    ids = ids_of(archive, limit=12)
    costs = {"input_tokens": 5, "output_tokens": 7, "latency_s": 1.5}
    error = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    lines = [
        served(ids[0]),
        served(ids[1], "I can't help with that.", finish="content_filter"),
        served(ids[2], refusal="No."),
        served(ids[3], json.dumps(FORECAST)[:-20], finish="length"),
        served(ids[4], "", usage=None),
        {"custom_id": ids[5], "response": {"status_code": 400, "body": error}, "error": None},
        {"custom_id": ids[6], "response": None, "error": {"code": "batch_expired"}},
        {"custom_id": ids[7], "response": {"status_code": 500, "body": None}},
        {"custom_id": ids[8], "response": {"status_code": 200, "body": {"choices": []}}},
        {"custom_id": ids[9], "answer": f"Hm.\n```json\n{json.dumps(FORECAST)}\n```"},
        {"custom_id": ids[10], "answer": FORECAST, **costs},
    ]
    path = write(tmp_path / "a.jsonl", lines)
    data, counts = import_answers([path], archive).forecast_file()
    assert counts.forecasts == 4  # a refusal beside a whole forecast does not undo it
    assert counts.unparsed == {"cut": 1, "empty": 1, "refused": 1}
    assert counts.unanswered == {
        "status 400: context_length_exceeded": 1,
        "failed: batch_expired": 1,
        "status 500": 1,
        "the response holds no message": 1,
        "no answer": counts.asked - 11,
    }
    assert counts.answered + sum(counts.unanswered.values()) == counts.asked
    assert counts.asked == len(load_split(archive).row_ids)
    *rest, without, plain = map(json.loads, data.splitlines())
    stops = [None, "refused", "refused", "max_tokens", None]
    assert [line.get("stop_reason") for line in rest] == stops
    assert "input_tokens" not in without
    assert plain == plain | costs


def test_a_second_file_answers_what_failed_in_the_first(archive, tmp_path):
    """In either order; a repeated answer counts once, two different ones are a fault."""
    ids = ids_of(archive, limit=2)
    failed = {"custom_id": ids[1], "response": {"status_code": 429, "body": None}}
    first = write(tmp_path / "1.jsonl", [served(ids[0]), failed])
    second = write(tmp_path / "2.jsonl", [served(ids[1]), served(ids[0])])
    orders = ([first, second], [second, first])
    a, b = (import_answers(order, archive).forecast_file() for order in orders)
    assert a == b
    assert (a[1].forecasts, a[1].unanswered.keys()) == (2, {"no answer"})
    other = write(tmp_path / "3.jsonl", [served(ids[0], "something else")])
    with pytest.raises(ForecastError, match="answers this question differently"):
        import_answers([first, other], archive)


def test_every_fault_of_a_file_is_named(archive, name, tmp_path):
    """Half a line, a line that is no object, bad names, unknown rows and prompts."""
    row, _, digest = read_custom_id(name)
    other = load_questions(archive, answer="tool", limit=1)
    path = tmp_path / "a.jsonl"
    lines = [
        served(name),
        [1],
        served("x"),
        served(None),
        served(f"{row}-0-{'0' * 16}"),
        served(f"{'f' * 32}-0-{digest}"),
        served(other.custom_id(row, 0)),
        {"custom_id": f"{row}-1-{digest}"},
    ]
    write(path, lines)
    path.write_text(path.read_text() + '{"custom_id": "')
    with pytest.raises(ForecastError) as caught:
        import_answers([path], archive)
    assert [(f.line, f.code) for f in caught.value.findings] == [
        (2, "bad-json"),
        (3, "bad-custom-id"),
        (4, "bad-custom-id"),
        (5, "unknown-prompt"),
        (6, "unknown-row"),
        (7, "several-prompts"),
        (8, "no-answer"),
        (9, "bad-json"),
    ]
    assert "Name the split with --split" in caught.value.findings[4].fix
    with pytest.raises(ForecastError, match="no such file"):
        import_answers([tmp_path / "none.jsonl"], archive)
    with pytest.raises(UsageError, match="no answer"):
        import_answers([write(tmp_path / "empty.jsonl", [])], archive)


def test_defer_and_the_other_scheme_are_found_by_their_digest(archive, tmp_path):
    """The import finds by the digest how the export asked."""
    ids = ids_of(archive, defer=True, answer="tool", scheme="released", limit=2)
    function = {"name": "forecast", "arguments": json.dumps({**FORECAST, "defer": True})}
    call = {"type": "function", "function": function}
    lines = [served(ids[0], "", tool_calls=[call]), served(ids[1], json.dumps({"defer": True}))]
    path = write(tmp_path / "a.jsonl", lines)
    data, counts = import_answers([path], archive).forecast_file()
    assert (counts.forecasts, counts.unparsed) == (2, {})
    written = [json.loads(line) for line in data.splitlines()]
    assert all(line["prompt"].startswith("v1-defer-tool-released@") for line in written)
    assert [line["defer"] for line in written] == [True, True]
    with pytest.raises(UsageError, match="without --defer"):
        load_questions(archive, "discovery", defer=True)


def test_a_split_without_rows_asks_nothing(tmp_path):
    """An empty batch file would look like work done."""
    bare = write_archive(tmp_path / "bare", per_search=1)
    with pytest.raises(DataError, match="has no rows to ask about"):
        load_questions(bare, "discovery")


@pytest.fixture(scope="module")
def name(archive):
    """The name of one question."""
    return ids_of(archive, limit=1)[0]


FIELDS = "message content choices body usage error code tool_calls function"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS.split()) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["response", "answer", "error", "stop_reason", "latency_s", "input_tokens"]),
    JSON,
    st.sampled_from([None, {"status_code": 200}, {"status_code": 500}]),
    JSON,
)
def test_whatever_a_service_sends_is_an_answer_or_a_reason(
    archive, name, tmp_path, field, value, response, body
):
    """No line crashes the import, and what comes of it can be checked."""
    sent = {"custom_id": name, field: value}
    if response is not None:
        sent["response"] = {**response, "body": body}
    path = write(tmp_path / "a.jsonl", [sent])
    try:
        data, counts = import_answers([path], archive).forecast_file()
    except KernelArchiveError as refused:
        unanswered = "no question was answered" in str(refused)
        assert unanswered or isinstance(refused, ForecastError)  # noqa: PT017 - either may come
        return
    assert (counts.answered, counts.unanswered.keys()) == (1, {"no answer"})
    (tmp_path / "f.jsonl").write_bytes(data)
    report = check_forecasts(tmp_path / "f.jsonl", load_split(archive))[1]
    assert report.counts.keys() <= {"no-forecasts"}  # where nothing of the answer could be read
