"""An S3-compatible store on loopback that throttles and answers too little, when told to."""

import contextlib
import threading
import urllib.request

from support.servers import running
from werkzeug.serving import make_server


class Faults:
    """Stands before the store: throttles, breaks off or shortens the first answers about objects
    whose name has a word.

    Attributes:
        plan: word -> faults still to come, each ``throttle``, ``break`` (fewer bytes than
            announced) or ``short`` (fewer bytes, and announced as such).
        done: the faults that came.
        reads: objects that were read, one entry per answer.
    """

    def __init__(self, app):
        self.app, self.plan, self.done, self.reads = app, {}, [], []
        self._lock = threading.Lock()

    def __call__(self, environ, start_response):
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        is_object = path.count("/") > 1 and not path.endswith("/")
        fault = None
        with self._lock:
            if method == "GET" and is_object:
                self.reads.append(path)
            for word, faults in self.plan.items():
                wanted = faults and word in path and is_object
                if wanted and (faults[0] == "throttle" or method == "GET"):
                    fault = faults.pop(0)
                    self.done.append((fault, method, path))
        if fault == "throttle":
            body = (
                b"<Error><Code>SlowDown</Code><Message>Please reduce your request "
                b"rate.</Message></Error>"
            )
            start_response(
                "503 Slow Down",
                [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))],
            )
            return [body]
        if fault is None:
            return self.app(environ, start_response)
        told = []
        body = b"".join(
            self.app(environ, lambda status, headers, *_: told.append((status, headers)))
        )
        half = body[: len(body) // 2]
        status, headers = told[0]
        announced = len(body) if fault == "break" else len(half)
        kept = [
            (k, v)
            for k, v in headers
            if k.lower() != "content-length" and "checksum" not in k.lower()
        ]
        start_response(status, [*kept, ("Content-Length", str(announced)), ("Connection", "close")])
        return [half]


@contextlib.contextmanager
def s3(monkeypatch):
    """A store with the bucket ``bucket``, for s3fs by default; what stands before it."""
    import fsspec
    import s3fs
    from moto.server import DomainDispatcherApplication, create_backend_app

    faults = Faults(DomainDispatcherApplication(create_backend_app))
    with running(make_server("127.0.0.1", 0, faults, threaded=True)) as server:
        address = f"http://127.0.0.1:{server.port}"
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
        }.items():
            monkeypatch.setenv(name, value)
        urllib.request.urlopen(f"{address}/moto-api/reset", data=b"").close()
        s3fs.S3FileSystem.clear_instance_cache()
        fsspec.filesystem("s3").mkdir("bucket")
        try:
            yield faults
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
