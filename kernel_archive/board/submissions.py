"""Read and check submissions: who forecast what, by which model. All of it is strangers' text.

A submission is a folder ``submissions/<slug>/`` with ``submission.toml`` (a :class:`Submission`),
``forecasts.jsonl.zst`` (the lines as they were sent) and ``score.json`` (the score they give).
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec
import tomli_w

from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.splits import FORECAST_SPLITS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.scoring import Split

RECORD_FILE: Final = "submission.toml"
FORECASTS_FILE: Final = "forecasts.jsonl.zst"
SCORE_FILE: Final = "score.json"
_FILES: Final = frozenset({RECORD_FILE, FORECASTS_FILE, SCORE_FILE})
#: A folder's name is cut after this many characters.
MAX_SLUG: Final = 60
#: Longest texts, in characters, of a record, its model's facts and its run; longer ones are faults.
_LIMITS: Final = {
    "name": 80,
    "url": 300,
    "model": 120,
    "notes": 2000,
    "bound": 200,
    "prompt": 120,
    "date": 10,
} | {"reasoning_effort": 40, "served_model": 200, "answer": 40, "package": 40, "host": 255}
#: A longer record is refused unread.
_MAX_RECORD_BYTES: Final = 64 * 1024
#: Whether a model was trained on the archive; ``held-out``: also on rows that are forecast.
Seen = Literal["yes", "no", "held-out", "unknown"]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a record: an unknown field is a fault."""


class Identity(_Strict, frozen=True):
    """Name the rows that are forecast; only submissions of the same rows are ranked together."""

    name: str
    version: str
    digest: str
    split: str
    split_digest: str

    @classmethod
    def of(cls, target: Split) -> Identity:
        """Name the rows of a loaded split."""
        facts = target.facts
        return cls(
            name=facts.archive_name,
            version=facts.archive_version,
            digest=facts.archive_digest,
            split=target.spec.name,
            split_digest=facts.split_digest,
        )

    @property
    def rows(self) -> tuple[str, str]:
        """The rows by their content; the rest of the archive may differ."""
        return self.split, self.split_digest


class ModelFacts(_Strict, frozen=True, omit_defaults=True):
    """State facts of a model, each as far as its submitter knows it."""

    prompt: str = ""  # name and digest of the prompt; read from the forecasts
    open_weights: bool | None = None  # whether anybody can have the weights
    saw_archive: Seen = "unknown"


class RunFacts(_Strict, frozen=True, omit_defaults=True):
    """State what was asked of which model, as the run that made the forecasts recorded it."""

    served_model: str = ""  # as the server names it; several with commas between
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str = ""
    seed: int | None = None
    answer: str = ""  # form of the answer
    prompt: str = ""  # name and digest
    date: str = ""
    package: str = ""  # version that asked
    input_tokens: int = 0
    output_tokens: int = 0
    host: str = ""  # only where the user asked to name it


class Submission(_Strict, frozen=True):
    """Hold what ``submission.toml`` says."""

    name: str  # of the entry on the board
    forecasts_sha256: str  # of the forecast lines, without compression, 64 hex digits
    archive: Identity
    url: str = ""  # page of the submitter or the method
    model: str = ""  # as its submitter names it
    notes: str = ""
    bound: str = ""  # what it knows that no forecaster may: it is shown, and not ranked
    model_facts: ModelFacts | None = None
    model_run: RunFacts | None = None


def slug_of(name: str) -> str:
    """Make a folder's name: lower case ASCII letters and digits with hyphens between.

    >>> slug_of("GPT-oss 120B (untrained)"), slug_of("../../etc"), slug_of("日本")
    ('gpt-oss-120b-untrained', 'etc', '')
    """
    ascii_form = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_form).strip("-")[:MAX_SLUG].strip("-")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in url


def _refuse(faults: list[Finding], where: str) -> None:
    if faults:
        message = None if len(faults) == 1 else f"{len(faults)} faults in {where}"
        raise DataError.from_findings(faults, message)


def _text_fault(field: str, text: str) -> tuple[str, str, str] | None:
    """Say what is wrong with a text: code, message, value."""
    if len(text) > _LIMITS[field]:
        return "too-long", f"longer than {_LIMITS[field]} characters", f"{len(text)} characters"
    allowed = "\n " if field == "notes" else " "
    # Bidirectional marks (Cf) can make a name read as another one.
    hidden = [c for c in text if c not in allowed and unicodedata.category(c)[0] in "CZ"]
    if hidden:
        value = f"U+{ord(hidden[0]):04X} in {printable(text)}"
        return "bad-character", "holds a control, format or other invisible character", value
    if field == "name" and (not text.strip() or text != text.strip()):
        return "bad-name", "a name is needed, without blanks around it", printable(text)
    if field == "url" and text and not _is_address(text):
        return "bad-url", "not a web address: start it with https://", printable(text)
    return None


def check_texts(record: Submission, file: str | None = None) -> None:
    """Check what a submitter wrote; DataError carries every fault."""
    faults = []
    for part in (record, record.model_facts, record.model_run):
        fields = msgspec.structs.asdict(part) if part is not None else {}
        for field, value in fields.items():
            fault = _text_fault(field, value) if field in _LIMITS else None
            if field == "temperature" and value is not None and not 0 <= value <= 100:
                fault = "out-of-range", "must be a number from 0 to 100", repr(value)
            if fault is not None:
                code, message, shown = fault
                faults.append(
                    Finding(code=code, message=message, file=file, field=field, value=shown)
                )
    _refuse(faults, "what was submitted")


def to_toml(submission: Submission) -> str:
    """Write the record as TOML, keys in a fixed order."""
    values = msgspec.to_builtins(submission)
    keys = ["name", "url", "model", "notes", *(["bound"] if submission.bound else [])]
    keys.append("forecasts_sha256")
    tables = {key: values[key] for key in ("archive", "model_facts", "model_run") if values[key]}
    return tomli_w.dumps({key: values[key] for key in keys} | tables)


def submission_folders(store: Path) -> tuple[list[Path], dict[str, tuple[Finding, ...]]]:
    """List a store's submissions, sorted, and what else is in it: name -> what is wrong.

    Hidden folders are work in progress and not seen.
    """
    folders: list[Path] = []
    strays: dict[str, tuple[Finding, ...]] = {}
    for path in sorted(store.iterdir()) if store.is_dir() else ():
        if path.name.startswith("."):
            continue
        if path.is_symlink() or not path.is_dir():
            message = "this is not a folder"
        elif path.name != slug_of(path.name):
            message = "not a submission's folder name"
        else:
            folders.append(path)
            continue
        fix = "Only folders made by kernel-archive leaderboard add belong here"
        shown = printable(str(path), 300)
        finding = Finding(code="bad-folder", message=message, file=shown, fix=fix)
        strays[printable(path.name)] = (finding,)
    return folders, strays


def _folder_faults(folder: Path) -> Iterator[Finding]:
    names = {path.name for path in folder.iterdir()}
    for name in sorted(names - _FILES):
        path = printable(str(folder / name), 300)
        yield Finding(code="extra-file", message="does not belong to a submission", file=path)
    for name in sorted(_FILES - names):
        fix = "Make the folder with: kernel-archive leaderboard add"
        yield Finding(code="missing-file", message="missing", file=str(folder / name), fix=fix)
    for name in sorted(names & _FILES):
        if (folder / name).is_symlink() or not (folder / name).is_file():
            yield Finding(code="not-a-file", message="not a regular file", file=str(folder / name))


def load_submission(folder: Path) -> Submission:
    """Load and check the record of a submission's folder; DataError names every fault."""
    _refuse(list(_folder_faults(folder)), str(folder))
    path = folder / RECORD_FILE
    with path.open("rb") as stream:
        data = stream.read(_MAX_RECORD_BYTES + 1)
    record, reason = None, f"longer than {_MAX_RECORD_BYTES:,} bytes"
    if len(data) <= _MAX_RECORD_BYTES:
        try:
            record = msgspec.convert(tomllib.loads(data.decode("utf-8")), type=Submission)
        except (ValueError, msgspec.ValidationError, RecursionError) as error:
            reason = printable(str(error), 300)
    if record is not None and record.archive.split not in FORECAST_SPLITS:
        record, reason = None, f"split must be one of: {', '.join(FORECAST_SPLITS)}"
    if record is None:
        raise DataError.of(code="bad-record", message=reason, file=str(path))
    check_texts(record, str(path))
    return record
