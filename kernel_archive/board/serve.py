"""Showing a built board on loopback: its own files, read-only, to this machine alone."""

from __future__ import annotations

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from kernel_archive.board.store import DEFAULT_BOARD
from kernel_archive.errors import UsageError

#: Path -> file of the board and its media type; there is nothing else to ask for.
SERVED: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/index.html": ("index.html", "text/html; charset=utf-8"),
    "/standings.json": ("standings.json", "application/json"),
    "/standings.csv": ("standings.csv", "text/csv; charset=utf-8"),
}
#: The pages of entries, their score records and forecasts: by names that can only be those of entries.
_OF_ENTRY: Final = re.compile(r"/(entries/[a-z0-9-]+\.(?:html|json)|submissions/[a-z0-9-]+/forecasts\.jsonl\.zst)")
_TYPES: Final = {".html": "text/html; charset=utf-8", ".json": "application/json", ".zst": "application/zstd"}
#: A connection that sends nothing for so long is closed: idle ones hold a thread each.
IDLE_SECONDS: Final = 10.0
_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


def _file_of(path: str) -> tuple[str, str] | None:
    """The file that a path asks for, inside the board's folder, and its media type; ``None`` where it is nobody's."""
    found = _OF_ENTRY.fullmatch(path)
    return SERVED.get(path) if found is None else (found[1], _TYPES[Path(found[1]).suffix])


def board_server(board: str | Path | None = None, *, port: int = 0) -> ThreadingHTTPServer:
    """A server for a built board, bound to loopback; ``serve_forever`` runs it.

    Args:
        board: folder with the built page; ``leaderboard`` here when not given.
        port: 0 for any free one.

    Raises:
        UsageError: the board is not built, or the port is taken.
    """
    folder = DEFAULT_BOARD if board is None else Path(board)
    if not (folder / "index.html").is_file():
        raise UsageError(f"no page in {folder}. Build it with: kernel-archive leaderboard build --board {folder}")

    class Handler(BaseHTTPRequestHandler):
        server_version = "kernel-archive"
        timeout = IDLE_SECONDS
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            # Another site's name that resolves to this machine must not reach the page.
            host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            found = _file_of(self.path.partition("?")[0]) if host in _HOSTS else None
            path = None if found is None else folder / found[0]
            if found is None or path is None or not path.is_file():
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            data = path.read_bytes()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", found[1])
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            del format, args

    class Server(ThreadingHTTPServer):
        # Of more connections at once than the default of 5, the others would wait for seconds until they are tried again.
        request_queue_size = 128

    try:
        return Server(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"port {port} can't be used: {error.strerror or error}. Choose another --port") from None
