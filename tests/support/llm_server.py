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


class LanguageModelServer:
    """Answers chat completions; ``behaviour`` says what goes wrong with the n-th request about a prompt.

    Attributes:
        url: its address, for a client of the protocol.
        requests: the bodies that arrived.
        seen: prompt -> how often it was asked.
    """

    def __init__(self, behaviour=None, delay=0.0):
        self.behaviour = behaviour or (lambda prompt, n: "fine")
        self.delay = delay
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
                if how in ("429", "500", "400"):
                    code = {"400": "context_length_exceeded"}.get(how, "busy")
                    text = "This model's maximum context length is 10 tokens" if how == "400" else "not now"
                    return self.send(
                        {"error": {"message": text, "type": "error", "code": code}}, int(how), [("Retry-After", "0")]
                    )
                if how == "hang":
                    time.sleep(3)
                    return None
                if how == "close":
                    self.close_connection = True
                    return self.connection.close()
                message = {"role": "assistant", "content": json.dumps(forecast_of(prompt))}
                finish = "stop"
                if body.get("tools"):
                    call = {"name": "forecast", "arguments": message["content"]}
                    message = {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c", "type": "function", "function": call}],
                    }
                    finish = "tool_calls"
                if how == "half":
                    finish = "length"
                    if body.get("tools"):
                        call["arguments"] = call["arguments"][:60]
                    else:
                        message["content"] = message["content"][:60]
                if how == "empty":
                    message = {"role": "assistant", "content": ""}
                if how == "refusal":
                    message, finish = {"role": "assistant", "content": None, "refusal": "I won't."}, "stop"
                out = {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                    "usage": {
                        "prompt_tokens": len(prompt) // 4,
                        "completion_tokens": 60,
                        "total_tokens": len(prompt) // 4 + 60,
                    },
                }
                if how == "no-usage":
                    del out["usage"]
                return self.send(out, 200, [])

            def send(self, value, status, headers):
                data = json.dumps(value).encode()
                self.send_response(status)
                for name, text in [("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers]:
                    self.send_header(name, text)
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
    made = LanguageModelServer(behaviour, delay)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
