"""A service in the OpenAI protocol on loopback, on good days and on bad ones."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.servers import running

from kernel_archive.scoring.formats import TOOL_FIELDS

FORECAST = dict(zip(TOOL_FIELDS, [0, 0, 0, 0, 0.1, 0.8, 0.1, 0], strict=True))
FORECAST |= {"predicted_bin": 6, "rationale": "fewer passes"}
ANSWER = json.dumps(FORECAST)
USAGE = {"prompt_tokens": 1200, "completion_tokens": 90}


def served(custom_id, content=ANSWER, *, usage=USAGE, finish="stop", **message):
    """An output line of a batch service."""
    message = {"role": "assistant", "content": content, **message}
    choices = [{"message": message, "finish_reason": finish}]
    body = {"model": "served-1", "choices": choices, "usage": usage}
    response = {"status_code": 200, "request_id": "y", "body": body}
    return {"id": "x", "custom_id": custom_id, "response": response, "error": None}


def forecast_of(prompt):
    """A forecast that follows from the text of the prompt alone."""
    digest = hashlib.sha256(prompt.encode()).digest()
    total = sum(digest[:8]) or 1
    masses = [byte / total for byte in digest[:8]]
    return {
        "rationale": "by its digest",
        **dict(zip(TOOL_FIELDS, masses, strict=True)),
        "predicted_bin": 1 + masses.index(max(masses)),
        "expected_speedup": 1.5,
    }


def message_of(how, prompt, *, tool):
    """What the model says, and why it stopped."""
    text = json.dumps(forecast_of(prompt))
    if how == "refusal":
        return {"role": "assistant", "content": None, "refusal": "I won't."}, "stop"
    if how == "empty":
        return {"role": "assistant", "content": ""}, "stop"
    if how == "half":
        text = text[:60]
    finish = "length" if how == "half" else "stop"
    if not tool:
        return {"role": "assistant", "content": text}, finish
    function = {"name": "forecast", "arguments": text}
    calls = [{"id": "c", "type": "function", "function": function}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return message, "tool_calls" if finish == "stop" else finish


class LanguageModelServer(ThreadingHTTPServer):
    """Answers chat completions; ``behaviour`` says how: in a word, or with a status.

    Attributes:
        url: its address, for a client of the protocol.
        requests: the bodies that arrived.
    """

    daemon_threads = True

    def __init__(self, behaviour):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour, self.requests = behaviour, []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        prompt = body["messages"][-1]["content"]
        prompt = prompt if isinstance(prompt, str) else prompt[0]["text"]
        how = self.server.behaviour(prompt)
        if how.isdigit():
            self.send({"error": {"message": f"refused with {how}", "code": "busy"}}, int(how))
            return
        message, finish = message_of(how, prompt, tool=bool(body.get("tools")))
        tokens = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 60}
        self.send(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": tokens | {"total_tokens": sum(tokens.values())},
            }
        )

    def send(self, value, status=200):
        """Send a value as JSON."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def language_model(behaviour=None):
    """The service, while the block runs."""
    return running(LanguageModelServer(behaviour or (lambda prompt: "fine")))
