"""Show a built board on loopback: its own files, read-only, to this machine alone."""

from __future__ import annotations

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from kernel_archive.board.store import store_of
from kernel_archive.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

#: What can be asked for beside ``/``: the built files, by names that can only be theirs.
_SERVED: Final = re.compile(
    r"/(index\.html|standings\.json|entries/[a-z0-9-]+\.(?:html|json|jsonl\.zst))"
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".zst": "application/zstd",
}
#: A connection that sends nothing for this long is closed: idle ones hold a thread each.
IDLE_SECONDS: Final = 10.0
_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


def _file_of(folder: Path, request: str) -> Path | None:
    """Find the file of a request: a regular one in the folder, never one behind a link."""
    asked = request.partition("?")[0]
    match = _SERVED.fullmatch("/index.html" if asked == "/" else asked)
    if match is None:
        return None
    path = folder.resolve() / match[1]
    return path if path.is_file() and path.resolve() == path else None


def board_server(board: str | Path | None = None, *, port: int = 0) -> ThreadingHTTPServer:
    """Make a server for a built board, bound to loopback; ``serve_forever`` runs it.

    Raises:
        UsageError: the board is not built, or the port is taken.
    """
    folder = store_of(board).parent
    if not (folder / "index.html").is_file():
        raise UsageError(
            f"no page in {folder}. Build it with: kernel-archive leaderboard build --board {folder}"
        )

    class Handler(BaseHTTPRequestHandler):
        server_version = "kernel-archive"
        timeout = IDLE_SECONDS
        sys_version = ""

        def do_GET(self) -> None:
            # Another site's name that resolves to this machine must not reach the page.
            host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            path = _file_of(folder, self.path) if host in _HOSTS else None
            if path is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            data = path.read_bytes()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _TYPES[path.suffix])
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815 - the base class's name

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - likewise
            del format, args

    class Server(ThreadingHTTPServer):
        # With the default of 5, further connections would wait for seconds.
        request_queue_size = 128

    try:
        return Server(("127.0.0.1", port), Handler)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"port {port} can't be used: {reason}. Choose another --port") from None
