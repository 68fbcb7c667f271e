"""A small Hugging Face Hub on loopback: git-like dataset repositories over HTTP, tokens, and faults
on demand.

It keeps commits in memory and speaks the part of the Hub's protocol that ``huggingface_hub`` and
``datasets`` use for data sets: create, preupload, LFS upload, commit, tag, refs, tree, downloads.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

#: Look like real ones, so that a leak is found by searching any output for them.
WRITE_TOKEN = "hf_WriteLoopbackTokenThatMustNeverBePrinted"
READ_TOKEN = "hf_ReadLoopbackTokenThatMustNeverBePrinted"
#: Stands in every signed upload address; as secret as a token while it lasts.
SIGNATURE = "X-Amz-Signature=loopback-signature-that-must-never-be-printed"


@dataclass
class File:
    """One file of a commit."""

    data: bytes
    lfs: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        version, size = "https://git-lfs.github.com/spec/v1", len(self.data)
        return f"version {version}\noid sha256:{self.sha256}\nsize {size}\n".encode()

    @property
    def blob_id(self) -> str:
        """The id that git gives its content, or the pointer to it."""
        stored = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.blob_id

    def entry(self, path: str) -> dict[str, Any]:
        size = len(self.data)
        out = {"type": "file", "oid": self.blob_id, "size": size, "path": path}
        pointer = {"oid": self.sha256, "size": size, "pointerSize": len(self.pointer)}
        return out | ({"lfs": pointer} if self.lfs else {})


@dataclass
class Commit:
    """One commit."""

    oid: str
    files: dict[str, File]


@dataclass
class Repo:
    """One dataset repository with one branch."""

    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    main: str = ""
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, File]) -> Commit:
        """Add a commit to main."""
        digest = hashlib.sha1(f"{self.main}\0{len(self.commits)}".encode())
        for path in sorted(files):
            digest.update(f"{path}\0{files[path].blob_id}".encode())
        made = Commit(digest.hexdigest(), files)
        self.commits[made.oid] = made
        self.main = made.oid
        return made

    def resolve(self, revision: str) -> Commit | None:
        """The commit of a branch, tag or commit id."""
        branch = revision in ("main", "refs/heads/main")
        return self.commits.get(self.main if branch else self.tags.get(revision, revision))

    @property
    def files(self) -> dict[str, File]:
        """The files of main."""
        return self.commits[self.main].files


@dataclass
class Fault:
    """What goes wrong with the next requests that match."""

    method: str  # or ``*``
    path: str  # regular expression searched in the request's path
    status: int | None = None  # answer this status instead
    message: str = "made to fail"  # with this error text
    body: bytes | None = None  # answer with this body instead, as JSON
    drop: bool = False  # do nothing and hang up without an answer
    after: bool = False  # do what was asked, then hang up without an answer
    #: Send that many bytes of the answer's body, with the full length announced, and hang up.
    truncate: int | None = None
    flip: bool = False  # change one byte of the answer's body
    times: int = 1000  # for so many requests


@dataclass
class Request:
    """One request that reached the server."""

    method: str
    path: str
    body_bytes: int


class FakeHub(ThreadingHTTPServer):
    """The server (see :func:`support.servers.running`)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Repo] = {}  # by id
        self.store: dict[str, bytes] = {}  # LFS objects by sha256
        self.requests: list[Request] = []  # everything asked, in order
        self.tokens = {WRITE_TOKEN: "write", READ_TOKEN: "read"}
        self.faults: list[Fault] = []
        self.lock = threading.RLock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what these tests make; nothing is printed for them."""

    def environment(self, home: Path) -> dict[str, str]:
        """Environment of a client process: this endpoint, its own cache, no other Hub settings."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        disabled = ("XET", "TELEMETRY", "PROGRESS_BARS")
        kept |= {f"HF_HUB_DISABLE_{name}": "1" for name in disabled}
        return kept | {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": WRITE_TOKEN}

    def fail(self, method: str, path: str, **kwargs: Any) -> None:
        """Make the next matching requests fail (see :class:`Fault`)."""
        self.faults.append(Fault(method, path, **kwargs))

    def create(self, repo_id: str, *, private: bool = False) -> Repo:
        """A new repository, with the first commit that the Hub makes by itself."""
        repo = self.repos[repo_id] = Repo(private=private)
        repo.commit({".gitattributes": File(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")})
        return repo

    def add(self, repo_id: str, files: dict[str, bytes]) -> Commit:
        """A commit that adds or changes these files, as if somebody had pushed them."""
        repo = self.repos.get(repo_id) or self.create(repo_id)
        made = dict(repo.files)
        for path, data in files.items():
            made[path] = File(data, lfs=path.endswith(".parquet"))
            self.store[made[path].sha256] = data
        return repo.commit(made)

    def clear(self) -> None:
        """Forget everything but the address."""
        with self.lock:
            self.repos.clear()
            self.store.clear()
            self.requests.clear()
            self.faults.clear()

    def count(self, method: str, path: str) -> int:
        """How many requests matched."""
        return sum(1 for r in self.requests if r.method == method and re.search(path, r.path))

    @property
    def uploaded_bytes(self) -> int:
        """Bytes of all LFS uploads so far."""
        return sum(r.body_bytes for r in self.requests if r.method == "PUT")


class _Answer(Exception):
    def __init__(
        self, status: int, body: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


def _error(status: int, message: str, code: str | None = None) -> _Answer:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return _Answer(status, {"error": message}, headers)


_REPO = r"(?P<repo>[^/]+/[^/]+)"
_ROUTES: list[tuple[str, str, str]] = [
    ("POST", r"^/api/repos/create$", "create_repo"),
    ("POST", r"^/api/validate-yaml$", "validate_yaml"),
    ("POST", rf"^/api/datasets/{_REPO}/preupload/(?P<rev>[^/]+)$", "preupload"),
    ("POST", rf"^/api/datasets/{_REPO}/commit/(?P<rev>[^/]+)$", "commit"),
    ("POST", rf"^/api/datasets/{_REPO}/tag/(?P<rev>[^/]+)$", "tag"),
    ("GET", rf"^/api/datasets/{_REPO}$", "info"),
    ("GET", rf"^/api/datasets/{_REPO}/revision/(?P<rev>[^/]+)$", "info"),
    ("GET", rf"^/api/datasets/{_REPO}/tree/(?P<rev>[^/]+)(?:/(?P<path>.*))?$", "tree"),
    ("GET", rf"^/api/datasets/{_REPO}/refs$", "refs"),
    ("*", rf"^/datasets/{_REPO}/resolve/(?P<rev>[^/]+)/(?P<path>.+)$", "resolve"),
    ("POST", rf"^/datasets/{_REPO}\.git/info/lfs/objects/batch$", "lfs_batch"),
    ("PUT", r"^/lfs-store/(?P<oid>[0-9a-f]{64})$", "lfs_put"),
]


class _Handler(BaseHTTPRequestHandler):
    """Answers requests; ``query``, ``body`` and ``token`` are those of the present one."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        pass

    @property
    def hub(self) -> FakeHub:
        assert isinstance(self.server, FakeHub)
        return self.server

    # -- one request ----------------

    def do_any(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self._fault(self.command, parts.path)
        with self.hub.lock:
            self.hub.requests.append(Request(self.command, self.path, len(self.body)))
        if fault and fault.drop:
            self._hang_up()
            return
        if fault and fault.status is not None:
            said = fault.message.encode("latin-1", "replace").decode("latin-1")
            answer = _Answer(fault.status, {"error": fault.message}, {"X-Error-Message": said})
        else:
            try:
                with self.hub.lock:
                    answer = self._route(parts.path)
            except _Answer as made:
                answer = made
        if fault and fault.body is not None:
            answer.body, answer.headers["Content-Type"] = fault.body, "application/json"
        if fault and fault.after:
            self._hang_up()
            return
        self._send(answer, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_any

    def _fault(self, method: str, path: str) -> Fault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                if fault.method in ("*", method) and re.search(fault.path, path) and fault.times:
                    fault.times -= 1
                    return fault
        return None

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, answer: _Answer, fault: Fault | None) -> None:
        data, kind = answer.body or b"", "application/octet-stream"
        if not isinstance(answer.body, (bytes, type(None))):
            data, kind = json.dumps(answer.body).encode(), "application/json; charset=utf-8"
        self.send_response(answer.status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "X-Request-Id": "Root=loopback",
            **answer.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            if fault and fault.flip and data:
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            if fault and fault.truncate is not None:
                self.wfile.write(data[: fault.truncate])
                self.wfile.flush()
                self._hang_up()
                return
            self.wfile.write(data)
        self.wfile.flush()

    def _route(self, path: str) -> _Answer:
        for method, pattern, name in _ROUTES:
            match = re.match(pattern, path)
            if match and method in ("*", self.command):
                groups = {k: unquote(v) for k, v in match.groupdict().items() if v is not None}
                answer = getattr(self, f"_{name}")(**groups)
                assert isinstance(answer, _Answer)
                return answer
        return _error(404, f"no such address: {self.command} {path}")

    # -- who may do what ----------------

    def _role(self) -> str | None:
        if self.token is None:
            return None
        if self.token not in self.hub.tokens:
            raise _error(401, "Invalid credentials in Authorization header")
        return self.hub.tokens[self.token]

    def _may_write(self) -> None:
        role = self._role()
        if role is None:
            raise _error(401, "Unauthorized")
        if role != "write":
            raise _error(403, "Forbidden: you don't have write rights here")

    def _readable(self, repo: str) -> Repo:
        role = self._role()
        found = self.hub.repos.get(repo)
        if found is None or (found.private and role is None):
            raise _error(404 if role else 401, "Repository not found", "RepoNotFound")
        return found

    def _writable(self, repo: str) -> Repo:
        found = self._readable(repo)
        self._may_write()
        return found

    def _at(self, repo: Repo, revision: str) -> Commit:
        commit = repo.resolve(revision)
        if commit is None:
            raise _error(404, f"Revision not found: {revision}", "RevisionNotFound")
        return commit

    # -- the API ----------------

    def _create_repo(self) -> _Answer:
        asked = json.loads(self.body)
        repo_id = f"{asked['organization']}/{asked['name']}"
        self._may_write()
        if repo_id in self.hub.repos:
            raise _error(409, "You already created this dataset repo")
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.create(repo_id, private=private)
        url = f"{self.hub.url}/datasets/{repo_id}"
        return _Answer(200, {"url": url, "name": repo_id, "id": repo_id})

    def _validate_yaml(self) -> _Answer:
        return _Answer(200, {"errors": [], "warnings": []})

    def _preupload(self, repo: str, rev: str) -> _Answer:
        commit = self._at(self._writable(repo), rev)
        files = []
        for asked in json.loads(self.body)["files"]:
            path, known = asked["path"], commit.files.get(asked["path"])
            lfs = path.endswith(".parquet") or asked["size"] > 10_000_000
            mode = {"uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            files.append({"path": path, **mode, "oid": known.etag if known else None})
        return _Answer(200, {"files": files})

    def _lfs_batch(self, repo: str) -> _Answer:
        self._writable(repo)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            upload = {"href": f"{self.hub.url}/lfs-store/{asked['oid']}?{SIGNATURE}"}
            actions = {} if asked["oid"] in self.hub.store else {"actions": {"upload": upload}}
            objects.append({"oid": asked["oid"], "size": asked["size"], **actions})
        kind = {"Content-Type": "application/vnd.git-lfs+json"}
        return _Answer(200, {"transfer": "basic", "objects": objects}, kind)

    def _lfs_put(self, oid: str) -> _Answer:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _error(400, "the object is not what its name says")
        self.hub.store[oid] = self.body
        return _Answer(200, b"")

    def _commit(self, repo: str, rev: str) -> _Answer:
        target = self._writable(repo)
        if rev != "main":
            raise _error(404, f"Revision not found: {rev}", "RevisionNotFound")
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        header = lines[0]["value"]
        parent = header.get("parentCommit")
        if parent and parent != target.main:
            raise _error(412, "A commit has happened since. Please refresh and try again.")
        files = dict(target.files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.store:
                    raise _error(400, f"LFS object {value['oid']} does not exist")
                files[value["path"]] = File(self.hub.store[value["oid"]], lfs=True)
            else:
                assert line["key"] == "deletedFile", line
                del files[value["path"]]
        made = target.commit(files)
        url = f"{self.hub.url}/datasets/{repo}/commit/{made.oid}"
        return _Answer(
            200, {"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""}
        )

    def _tag(self, repo: str, rev: str) -> _Answer:
        target = self._writable(repo)
        asked = json.loads(self.body)
        if asked["tag"] in target.tags:
            raise _error(409, "Tag reference exists already")
        target.tags[asked["tag"]] = self._at(target, rev).oid
        return _Answer(201, {})

    def _info(self, repo: str, rev: str = "main") -> _Answer:
        target = self._readable(repo)
        commit = self._at(target, rev)
        readme = commit.files.get("README.md")
        match = re.match(rb"^---\n(.*?)\n---\n", readme.data, re.DOTALL) if readme else None
        card = yaml.safe_load(match[1]) if match else {}
        facts = {"author": repo.split("/", maxsplit=1)[0], "private": target.private}
        facts |= {"gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        facts |= dict.fromkeys(("lastModified", "createdAt"), "2026-01-01T00:00:00.000Z")
        return _Answer(
            200,
            {
                "_id": hashlib.sha1(repo.encode()).hexdigest()[:24],
                "id": repo,
                "sha": commit.oid,
                "cardData": json.loads(json.dumps(card, default=str)),
                "siblings": [{"rfilename": path} for path in sorted(commit.files)],
                **facts,
            },
        )

    def _folders(self, commit: Commit) -> set[str]:
        return {
            "/".join(path.split("/")[:i])
            for path in commit.files
            for i in range(1, path.count("/") + 1)
        }

    def _entry(self, commit: Commit, path: str) -> dict[str, Any]:
        if path in commit.files:
            return commit.files[path].entry(path)
        oid = hashlib.sha1(path.encode()).hexdigest()
        return {"type": "directory", "oid": oid, "size": 0, "path": path}

    def _tree(self, repo: str, rev: str, path: str = "") -> _Answer:
        commit = self._at(self._readable(repo), rev)
        path = path.strip("/")
        folders = self._folders(commit)
        if path and path not in folders:
            raise _error(404, f"{path} does not exist", "EntryNotFound")
        prefix = f"{path}/" if path else ""
        deep = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        names = [
            n
            for n in sorted({*commit.files, *folders})
            if n.startswith(prefix) and (deep or "/" not in n[len(prefix) :])
        ]
        return _Answer(200, [self._entry(commit, n) for n in names])

    def _refs(self, repo: str) -> _Answer:
        target = self._readable(repo)
        branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": target.main}]
        tags = [
            {"name": n, "ref": f"refs/tags/{n}", "targetCommit": oid}
            for n, oid in target.tags.items()
        ]
        return _Answer(200, {"branches": branches, "tags": tags, "converts": []})

    def _resolve(self, repo: str, rev: str, path: str) -> _Answer:
        commit = self._at(self._readable(repo), rev)
        file = commit.files.get(path)
        if file is None:
            raise _error(404, f"{path} does not exist", "EntryNotFound")
        headers = {"ETag": f'"{file.etag}"', "X-Repo-Commit": commit.oid}
        return _Answer(200, file.data, headers)
