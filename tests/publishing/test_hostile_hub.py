"""A Hub that means harm or breaks down: every command ends, says what happened, and writes nothing
that it should not.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time

import pytest
from fuzz.hub import ESCAPE
from publishing.conftest import NAME
from publishing.test_pull import publish

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


def drip(connection, sent):
    """Send what is given at once, and then a byte ten times a second for ever."""
    with contextlib.suppress(OSError), connection:
        connection.sendall(sent)
        for byte in itertools.cycle(b"H"):
            connection.sendall(bytes([byte]))
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("sent", "said"),
    [(None, "broke"), (b"", "a second"), (b"HTTP/1.1 200 O", "a second"), (HEAD, "a second")],
)
def test_a_hub_that_never_comes_to_an_end_is_given_up(client, sent, said):
    """A Hub that is silent, or drips its answer, ends the pull in bounded time."""
    connections = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                if sent is not None:
                    threading.Thread(target=drip, args=(connections[-1], sent), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        code = (
            "from kernel_archive import connections as c; c.TIMEOUT = 0.5\n"
            "from kernel_archive.cli import main\n"
        )
        started = time.monotonic()
        done = client.fresh(
            "code",
            f"{code}raise SystemExit(main(['pull', '{NAME}']))",
            HF_ENDPOINT=f"http://127.0.0.1:{server.getsockname()[1]}",
        )
        for connection in connections:
            connection.close()
    assert done.status == 1
    assert said in done.err
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("place", "fault", "said"),
    [
        ("/revision/", {"body": b"[" * 100_000}, "gave up"),
        ("/revision/", {"body": b'{"sha": ' + b"9" * 5000 + b"}"}, "gave up"),
        ("/revision/", {"body": b'{"id": "a/b", "sha": null}'}, "names no commit"),
        (
            "/revision/",
            {"body": json.dumps({"id": "a/b", "sha": "../../evil"}).encode()},
            "names no commit",
        ),
        ("/resolve/", {"headers": {"ETag": "../../../../evil"}}, "No Hub does"),
        ("/resolve/", {"status": 429, "headers": {"Retry-After": "99999999999"}}, "429"),
        ("/resolve/.*manifest", {"body": b'{"a":' * 50_000}, "not a manifest"),
        ("/revision/", {"status": 400, "message": ESCAPE}, "400"),
    ],
)
def test_hostile_answers(client, hub, archive_path, tmp_path, place, fault, said):
    """Impossible JSON, headers that lead out, endless waits, escapes: nothing is written."""
    publish(hub, archive_path)
    hub.fail("*", place, times=1000, **fault)
    done = client.cli("pull", NAME)
    assert done.status == 1, done.text
    assert said in done.err
    assert "internal error" not in done.err
    assert not {"\x1b", "\x07"} & set(done.err)
    assert not (client.cwd / NAME).exists()
    assert not list(tmp_path.rglob("*evil*"))


def test_a_card_of_another_version_is_a_warning(client, hub, archive_path):
    """A card that another version of the package wrote gives a warning."""
    manifest = json.loads((archive_path / "manifest.json").read_text())
    publish(hub, archive_path)
    changed = json.dumps({**manifest, "package": "0.0.1"}).encode()
    hub.add(NAME, {"manifest.json": changed, "README.md": b"# Other prose\n"})
    done = client.cli("pull", NAME)
    assert done.status == 0, done.text
    assert "warning" in done.err
    assert "0.0.1" in done.err
    assert len(json.loads(client.cli("pull", NAME, "--json").out)["findings"]) >= 1
