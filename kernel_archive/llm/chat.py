"""Turn a question into a chat request, and a response into an answer."""

from __future__ import annotations

from typing import Any

import msgspec

from kernel_archive.errors import printable
from kernel_archive.llm.answers import ModelAnswer, stop_reason
from kernel_archive.llm.prompts import TOOL_NAME, Prompt, answer_schema


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model is told beside the prompt; the service decides what is not given.

    ``max_tokens`` counts an answer's tokens, reasoning included.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None


def request_body(text: str, prompt: Prompt, model: str, settings: ModelSettings) -> dict[str, Any]:
    """Make the chat request of one question."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    schema, named = answer_schema(prompt.ask), {"name": TOOL_NAME, "strict": True}
    if prompt.answer == "tool":
        function = {**named, "description": "Give the forecast.", "parameters": schema}
        body["tools"] = [{"type": "function", "function": function}]
        body["tool_choice"] = {"type": "function", "function": {"name": TOOL_NAME}}
    elif prompt.answer == "json":
        body["response_format"] = {"type": "json_schema", "json_schema": named | {"schema": schema}}
    options: dict[str, Any] = msgspec.to_builtins(settings)
    if "max_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_tokens")
    return body | options


def read_answer(line: dict[str, Any], row_id: str, repeat: int) -> ModelAnswer | str:
    """Read a plain answer line or a service's output line; a text says why there is no answer."""
    model: object = None
    if "answer" in line:
        content, stop = line["answer"], line.get("stop_reason")
        counts = line.get("input_tokens"), line.get("output_tokens")
    else:
        body = _response_body(line)
        if isinstance(body, str):
            return body
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            return "the response holds no message"
        content = {key: message.get(key) for key in ("content", "tool_calls")}
        stop = "refusal" if message.get("refusal") else choice.get("finish_reason")
        usage = body["usage"] if isinstance(body.get("usage"), dict) else {}
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        model = body.get("model")
    seconds: Any = line.get("latency_s")
    in_range = isinstance(seconds, int | float) and 0 <= seconds < 1e9
    return ModelAnswer(
        row_id=row_id,
        repeat=repeat,
        content=content,
        stop_reason=stop_reason(stop),
        model=printable(model, 200) if isinstance(model, str) else None,
        input_tokens=_count(counts[0]),
        output_tokens=_count(counts[1]),
        latency_s=float(seconds) if in_range else None,
    )


def _response_body(line: dict[str, Any]) -> dict[str, Any] | str:
    """Return the body of a service's response; a text says why there is none."""
    response = line.get("response")
    if not isinstance(response, dict) or line.get("error"):
        return _failure(line.get("error"), "failed")
    body, status = response.get("body"), response.get("status_code", 200)
    if not isinstance(body, dict) or status != 200:
        inner = body.get("error", body) if isinstance(body, dict) else None
        return _failure(inner, f"status {status}" if isinstance(status, int) else "failed")
    return body


def _failure(error: object, status: str) -> str:
    """Say why a request has no answer: the status, and what the service says of it."""
    message = error if isinstance(error, str) else ""
    if isinstance(error, dict):
        words = [error.get(key) for key in ("code", "type", "message")]
        message = next((word for word in words if isinstance(word, str) and word), "")
    return f"{status}: {printable(message, 200)}" if message else status


def _count(value: Any) -> int | None:
    """Return a count of tokens, ``None`` for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return int(value) if is_count else None
