"""The page on loopback."""

import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from kernel_archive.board import serve
from kernel_archive.board.serve import board_server
from kernel_archive.errors import UsageError


@pytest.fixture
def address(tmp_path):
    """A running server on a folder with a page and things that are nobody's business."""
    (tmp_path / "index.html").write_text("<p>page</p>")
    (tmp_path / "standings.json").write_text("{}")
    (tmp_path / "secret").write_text("s")
    with board_server(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def status(url, **headers):
    """The status of a request."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=10
        ) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_it_shows_the_page_and_the_standings(address):
    """The page under / and its own name, with its type."""
    with urllib.request.urlopen(address + "/", timeout=10) as answer:
        assert answer.read() == b"<p>page</p>"
        assert answer.headers["Content-Type"].startswith("text/html")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert status(address + "/standings.json?x=1") == 200


@pytest.mark.parametrize(
    "path",
    ["/secret", "/../secret", "/%2e%2e/secret", "//secret", "/submissions/", "/standings.csv"],
)
def test_nothing_else_can_be_had(address, path):
    """Neither other files of the folder nor anything outside it, nor a file that is not built."""
    assert status(address + path) == 404


def test_links_of_a_strangers_board_are_not_followed(address, tmp_path):
    """A link under a served name, to a file or through a folder, is not found; a real file is."""
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries/real.json").write_text("{}")
    (tmp_path / "entries/shadow.json").symlink_to("/etc/passwd")
    (tmp_path / "entries/inside.json").symlink_to(tmp_path / "standings.json")
    assert status(address + "/entries/real.json") == 200
    assert status(address + "/entries/shadow.json") == 404
    assert status(address + "/entries/inside.json") == 404
    (tmp_path / "entries").rename(tmp_path / "moved")
    (tmp_path / "entries").symlink_to(tmp_path / "moved")
    assert status(address + "/entries/real.json") == 404


def test_another_name_for_this_machine_is_refused(address):
    """A foreign page can't read the board through a name that it points at loopback."""
    assert status(address + "/", Host="evil.example") == 404


def test_idle_connections_are_closed(tmp_path, monkeypatch):
    """Fifty connections that send nothing, and one that sends half a request, do not stay."""
    assert serve.IDLE_SECONDS <= 30
    monkeypatch.setattr(serve, "IDLE_SECONDS", 0.3)
    (tmp_path / "index.html").write_text("")
    with board_server(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        before = threading.active_count()
        idle = [socket.create_connection(server.server_address[:2], timeout=10) for _ in range(50)]
        idle[0].sendall(b"GET / HTTP/1.1\r\nHost:")
        assert [s.recv(1) for s in idle] == [b""] * 50
        for s in idle:
            s.close()
        deadline = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= before
        server.shutdown()
        thread.join()


def test_it_listens_on_loopback_only(tmp_path):
    """Nobody else can reach it."""
    (tmp_path / "index.html").write_text("")
    with board_server(tmp_path) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(UsageError, match="Choose another --port"):
            board_server(tmp_path, port=server.server_address[1])


def test_without_a_page_it_says_how_to_build_one(tmp_path):
    """The way out is in the message."""
    with pytest.raises(UsageError, match="leaderboard build"):
        board_server(tmp_path)
