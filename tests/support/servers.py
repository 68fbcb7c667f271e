"""Servers on loopback."""

import threading
from contextlib import contextmanager


@contextmanager
def running(server):
    """The server, which answers while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
