"""Read and check submissions: who forecast what, by which model. All of it is strangers' text.

A submission is a folder ``submissions/<slug>/`` with ``submission.toml`` (a :class:`Submission`),
``forecasts.jsonl.zst`` (the lines as they were sent) and ``score.json`` (the score they give).
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import tomli_w
from msgspec import Meta

from kernel_archive.board.texts import visible
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.scoring import Split
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.untrusted import UntrustedFileError, misfit, read_whole

SUBMISSION_FILE: Final = "submission.toml"
FORECASTS_FILE: Final = "forecasts.jsonl.zst"
SCORE_FILE: Final = "score.json"
_FILES: Final = frozenset({SUBMISSION_FILE, FORECASTS_FILE, SCORE_FILE})
#: A folder's name is cut after this many characters.
MAX_SLUG: Final = 60
#: A longer record is refused unread.
_MAX_RECORD_BYTES: Final = 64 * 1024
#: Whether a model was trained on the archive; ``held-out``: also on rows that are forecast.
Seen = Literal["yes", "no", "held-out", "unknown"]
_Short = Annotated[str, Meta(max_length=40)]
_Line = Annotated[str, Meta(max_length=300)]
_Name = Annotated[str, Meta(max_length=80, pattern=r"^\S(.*\S)?\Z")]  # no blanks around it
_Address = Annotated[str, Meta(max_length=300, pattern=r"^(https?://[\w.-]+(:\d+)?([/?#]\S*)?)?\Z")]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a record: an unknown field is a fault."""


class Identity(_Strict, frozen=True):
    """The rows that are forecast; only submissions of the same rows are ranked together."""

    name: str
    version: str
    digest: str
    split: str
    split_digest: str

    @classmethod
    def of(cls, split: Split) -> Identity:
        """Name the rows of a loaded split."""
        identity = split.identity
        return cls(
            name=identity.archive_name,
            version=identity.archive_version,
            digest=identity.archive_digest,
            split=split.spec.name,
            split_digest=identity.split_digest,
        )

    @property
    def rows_key(self) -> tuple[str, str]:
        """Split and digest of its rows: what is ranked together. The rest may differ."""
        return self.split, self.split_digest


class ModelFacts(_Strict, frozen=True, omit_defaults=True):
    """Facts of a model, each as far as its submitter knows it."""

    prompt: _Line = ""  # name and digest of the prompt; read from the forecasts
    open_weights: bool | None = None  # whether anybody can have the weights
    saw_archive: Seen = "unknown"


class ModelRunFacts(_Strict, frozen=True, omit_defaults=True):
    """What was asked of which model, as the run that made the forecasts recorded it."""

    served_model: _Line = ""  # as the server names it; several with commas between
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    max_tokens: int | None = None
    reasoning_effort: _Short = ""
    seed: int | None = None
    answer: _Short = ""  # form of the answer
    date: _Short = ""
    package: _Short = ""  # version that asked
    input_tokens: int = 0
    output_tokens: int = 0


class Submission(_Strict, frozen=True):
    """What ``submission.toml`` says."""

    name: _Name  # of the entry on the board
    forecasts_sha256: str  # of the forecast lines, without compression, 64 hex digits
    archive: Identity
    url: _Address = ""  # page of the submitter or the method
    model: _Line = ""  # as its submitter names it
    notes: Annotated[str, Meta(max_length=2000)] = ""
    bound: _Line = ""  # what it knows that no forecaster may: it is shown, and not ranked
    model_facts: ModelFacts | None = None
    model_run: ModelRunFacts | None = None


def slug_of(name: str) -> str:
    """Make a folder's name: lower case ASCII letters and digits with hyphens between.

    >>> slug_of("GPT-oss 120B (untrained)"), slug_of("../../etc"), slug_of("日本")
    ('gpt-oss-120b-untrained', 'etc', '')
    """
    ascii_form = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_form).strip("-")[:MAX_SLUG].strip("-")


def parse_submission(values: dict[str, Any], file: str | None = None) -> Submission:
    """Make a record of what somebody stated.

    Raises:
        DataError: a field is missing, unknown, of another type or too long, or its text holds what
        nobody can see; bidirectional marks can make a name read as another one.
    """
    try:
        submission = msgspec.convert(values, type=Submission)
    except msgspec.ValidationError as error:
        message, field = misfit(error)
        raise DataError.of(
            code="bad-record", message=printable(message, 300), file=file, field=field
        ) from None
    if submission.archive.split not in FORECAST_SPLITS:
        message = f"split must be one of: {', '.join(FORECAST_SPLITS)}"
        raise DataError.of(code="bad-record", message=message, file=file, field="archive.split")
    message = "holds a control, format or other invisible character"
    fault = partial(Finding, code="bad-character", message=message, file=file)
    faults = [
        fault(field=field, value=printable(visible(text)))
        for part in filter(None, (submission, submission.model_facts, submission.model_run))
        for field, text in msgspec.structs.asdict(part).items()
        if isinstance(text, str) and visible(text) != text
    ]
    if faults:
        raise DataError.from_findings(faults)
    return submission


def to_toml(submission: Submission) -> str:
    """Write the record as TOML; what is not stated is left out."""
    values = msgspec.to_builtins(submission)
    return tomli_w.dumps({key: value for key, value in values.items() if value})


def submission_folders(store: Path) -> list[Path]:
    """List what is in a store, sorted; hidden folders are work in progress and not seen."""
    return sorted(path for path in store.iterdir() if not path.name.startswith("."))


def _folder_faults(folder: Path) -> Iterator[Finding]:
    """Find what is not a plain folder of three regular files."""
    fix = "Only folders made by kernel-archive leaderboard add belong here"
    if folder.is_symlink() or not folder.is_dir() or folder.name != slug_of(folder.name):
        file, message = printable(folder, 300), "not a submission's folder"
        yield Finding(code="bad-folder", message=message, file=file, fix=fix)
        return
    names = {path.name for path in folder.iterdir()}
    for name in sorted(names | _FILES):
        path, file = folder / name, printable(folder / name, 300)
        if name not in _FILES:
            yield Finding(code="extra-file", message="does not belong to a submission", file=file)
        elif name not in names:
            yield Finding(code="missing-file", message="missing", file=file, fix=fix)
        elif path.is_symlink() or not path.is_file():
            yield Finding(code="not-a-file", message="not a regular file", file=file)


def load_submission(folder: Path) -> Submission:
    """Load and check the record of a submission's folder; DataError names every fault."""
    if faults := list(_folder_faults(folder)):
        message = None if len(faults) == 1 else f"{len(faults)} faults in {folder}"
        raise DataError.from_findings(faults, message)
    path = folder / SUBMISSION_FILE
    try:
        values = tomllib.loads(read_whole(path, max_bytes=_MAX_RECORD_BYTES).decode("utf-8"))
    except (ValueError, RecursionError, UntrustedFileError) as error:
        message = printable(error, 300)
        raise DataError.of(code="bad-record", message=message, file=str(path)) from None
    return parse_submission(values, str(path))
