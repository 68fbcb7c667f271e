"""A service in the OpenAI protocol on loopback, on good days and on bad ones."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kernel_archive.scoring.formats import TOOL_FIELDS

#: Where a service has gone that answers with status 308.
MOVED_TO = "http://127.0.0.1:9/v2/chat/completions"
#: Bodies that are no JSON object.
NO_JSON = {"no-json": b"<html>", "cut-json": b'{"choices": [{"mess'}


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
    if how in ("empty", "no-tool"):
        return {"role": "assistant", "content": "" if how == "empty" else "It is fast."}, "stop"
    if how == "half":
        text = text[:60]
    finish = "length" if how == "half" else "stop"
    if not tool:
        return {"role": "assistant", "content": text}, finish
    function = {"name": "forecast", "arguments": text}
    calls = [{"id": "c", "type": "function", "function": function}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return message, "tool_calls" if finish == "stop" else finish


class LanguageModelServer:
    """Answers chat completions; ``behaviour`` says how the n-th request about a prompt fails.

    Attributes:
        url: its address, for a client of the protocol.
        requests: the bodies that arrived.
        seen: prompt -> how often it was asked.
    """

    def __init__(self, behaviour=None, delay=0.0):
        self.behaviour = behaviour or (lambda prompt, n: "fine")
        self.delay = delay
        self.retry_after = "0"
        self.requests = []
        self.seen = Counter()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][-1]["content"]
                prompt = prompt if isinstance(prompt, str) else prompt[0]["text"]
                with outer.lock:
                    outer.requests.append(body)
                    outer.seen[prompt] += 1
                    n = outer.seen[prompt]
                time.sleep(outer.delay)
                self.answer(outer.behaviour(prompt, n), body, prompt)

            def answer(self, how, body, prompt):
                if how.isdigit():
                    text = "not now" if how in ("429", "500") else f"refused with {how}"
                    error = {"error": {"message": text, "type": "error", "code": "busy"}}
                    self.send(error, int(how))
                elif how == "hang":
                    time.sleep(3)
                elif how in ("close", "half-body"):
                    self.close_connection = True
                    if how == "half-body":
                        self.send_response(200)
                        self.send_header("Content-Length", "1000")
                        self.end_headers()
                        self.wfile.write(b'{"choices": [')
                elif how in NO_JSON:
                    self.send(NO_JSON[how])
                else:
                    message, finish = message_of(how, prompt, tool=bool(body.get("tools")))
                    tokens = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 60}
                    usage = tokens | {"total_tokens": sum(tokens.values())}
                    self.send(
                        {
                            "id": "x",
                            "object": "chat.completion",
                            "created": 0,
                            "model": "other" if how == "other-model" else body["model"],
                            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                            **({} if how == "no-usage" else {"usage": usage}),
                        }
                    )

            def send(self, value, status=200):
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if status != 200:
                    self.send_header("Retry-After", outer.retry_after)
                    self.send_header("Location", MOVED_TO)
                self.end_headers()
                self.wfile.write(data)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextmanager
def language_model(behaviour=None, delay=0.0):
    """The service, while the block runs."""
    model = LanguageModelServer(behaviour, delay)
    thread = threading.Thread(target=model.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield model
    finally:
        model.server.shutdown()
        model.server.server_close()
        thread.join()
