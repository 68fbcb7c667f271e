"""A submission: who forecast what, with which file. Everything in it is a stranger's text and is checked as such.

A submission is a folder ``submissions/<slug>/`` with ``submission.toml`` (this record), ``forecasts.jsonl.zst`` (the
lines as they were sent) and ``score.json`` (the score that those lines give).
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import tomli_w

from kernel_archive.board.model_facts import FACT_LIMITS, ModelFacts, fact_faults
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.splits import FORECAST_SPLITS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.scoring import Target

RECORD_FILE: Final = "submission.toml"
FORECASTS_FILE: Final = "forecasts.jsonl.zst"
SCORE_FILE: Final = "score.json"
_FILES: Final = frozenset({RECORD_FILE, FORECASTS_FILE, SCORE_FILE})
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_SLUG: Final = 60
#: Longest texts, in characters.
_LIMITS: Final = {"name": 80, "url": 300, "model": 120, "notes": 2000, **FACT_LIMITS}
_MAX_RECORD_BYTES: Final = 64 * 1024


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the forecasts are of. Two submissions are ranked together only when this is the same.

    Attributes:
        name: dataset name.
        version: version of the archive.
        digest: logical digest of the archive.
        split: name of the split.
        split_digest: logical digest of the split's rows.
    """

    name: str
    version: str
    digest: str
    split: str
    split_digest: str

    @classmethod
    def of(cls, target: Target) -> Identity:
        """The identity of a loaded split."""
        facts = target.facts
        return cls(
            name=facts.archive_name,
            version=facts.archive_version,
            digest=facts.archive_digest,
            split=target.split.name,
            split_digest=facts.split_digest,
        )

    def same_rows(self, other: Identity) -> bool:
        """Whether both are of the same rows of the same content: a version's name may differ."""
        return (self.digest, self.split, self.split_digest) == (other.digest, other.split, other.split_digest)


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``submission.toml`` holds.

    Attributes:
        name: the entry's name on the board.
        forecasts_sha256: sha256 of the forecast lines, without compression, 64 hex digits.
        archive: what the forecasts are of.
        url: page of the submitter or the method; empty where there is none.
        model: the model behind it, as its submitter names it.
        notes: anything to know about it.
        model_facts: what is stated of that model; ``None`` where nothing is.
    """

    name: str
    forecasts_sha256: str
    archive: Identity
    url: str = ""
    model: str = ""
    notes: str = ""
    model_facts: ModelFacts | None = None


def slug_of(name: str) -> str:
    """The folder of a name: lower case letters and digits of its ASCII form, with hyphens between.

    >>> slug_of("GPT-oss 120B (untrained)"), slug_of("../../etc"), slug_of("日本")
    ('gpt-oss-120b-untrained', 'etc', '')
    """
    ascii_form = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_form).strip("-")[:MAX_SLUG].strip("-")


def _is_slug(text: str) -> bool:
    return len(text) <= MAX_SLUG and _SLUG.fullmatch(text) is not None


def _text_faults(field: str, value: str, file: str | None) -> Iterator[Finding]:
    limit = _LIMITS[field]
    if len(value) > limit:
        yield Finding(
            code="too-long",
            message=f"longer than {limit} characters",
            file=file,
            field=field,
            value=f"{len(value)} characters",
        )
    allowed = "\n" if field == "notes" else ""
    # Bidirectional marks (Cf) can make a name read as another one; letters, marks, numbers, signs and blanks can't.
    bad = next((c for c in value if c not in allowed and c != " " and unicodedata.category(c)[0] in "CZ"), None)
    if bad is not None:
        yield Finding(
            code="bad-character",
            message="holds a control, format or other invisible character",
            file=file,
            field=field,
            value=f"U+{ord(bad):04X} in {printable(value)}",
            fix="Write it with visible characters and plain blanks",
        )


def check_texts(
    name: str, url: str, model: str, notes: str, facts: ModelFacts | None = None, *, file: str | None = None
) -> None:
    """Check what a submitter wrote.

    Raises:
        DataError: with every fault.
    """
    found: list[Finding] = []
    for field, value in (("name", name), ("url", url), ("model", model), ("notes", notes)):
        found += _text_faults(field, value, file)
    if facts is not None:
        for field in FACT_LIMITS:
            found += _text_faults(field, getattr(facts, field), file)
        found += fact_faults(facts, file)
    if not name.strip() or name != name.strip():
        found.append(
            Finding(
                code="bad-name",
                message="a name is needed, without blanks around it",
                file=file,
                field="name",
                value=printable(name),
            )
        )
    if url:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in url
        except ValueError:
            good = False
        if not good:
            found.append(
                Finding(
                    code="bad-url",
                    message="not a web address",
                    file=file,
                    field="url",
                    value=printable(url),
                    fix="Start it with https://",
                )
            )
    if found:
        raise DataError.from_findings(found, None if len(found) == 1 else f"{len(found)} faults in what was submitted")


def to_toml(submission: Submission) -> str:
    """The record as TOML, keys in a fixed order."""
    values = {key: getattr(submission, key) for key in ("name", "url", "model", "notes", "forecasts_sha256")}
    facts = {} if submission.model_facts is None else {"model_facts": msgspec.to_builtins(submission.model_facts)}
    return tomli_w.dumps({**values, "archive": msgspec.structs.asdict(submission.archive), **facts})


def submission_folders(store: Path) -> tuple[list[Path], dict[str, tuple[Finding, ...]]]:
    """Folders of a store's submissions, sorted; hidden ones are work in progress and none.

    Returns:
        the folders, and for everything else in the store (a file, a link, a bad name) its name -> what is wrong.
    """
    found: list[Path] = []
    strays: dict[str, tuple[Finding, ...]] = {}
    for path in sorted(store.iterdir()) if store.is_dir() else ():
        if path.name.startswith("."):
            continue
        if path.is_symlink() or not path.is_dir():
            message, fix = "this is not a folder", "Only folders made by kernel-archive leaderboard add belong here"
        elif not _is_slug(path.name):
            message, fix = "not a submission's folder name", "Use lower case letters, digits and single hyphens"
        else:
            found.append(path)
            continue
        shown = printable(str(path), 300)
        strays[printable(path.name)] = (Finding(code="bad-folder", message=message, file=shown, fix=fix),)
    return found, strays


def _folder_faults(folder: Path) -> Iterator[Finding]:
    names = {path.name for path in folder.iterdir()}
    for name in sorted(names - _FILES):
        yield Finding(
            code="extra-file", message="does not belong to a submission", file=printable(str(folder / name), 300)
        )
    for name in sorted(_FILES - names):
        yield Finding(
            code="missing-file",
            message="missing",
            file=str(folder / name),
            fix="Make the folder with: kernel-archive leaderboard add",
        )
    for name in sorted(names & _FILES):
        if (folder / name).is_symlink() or not (folder / name).is_file():
            yield Finding(code="not-a-file", message="not a regular file", file=str(folder / name))


def load_submission(folder: Path) -> Submission:
    """The record of a submission's folder, checked.

    Raises:
        DataError: the folder or the record is at fault; every fault is named.
    """
    faults = list(_folder_faults(folder))
    if faults:
        raise DataError.from_findings(faults, None if len(faults) == 1 else f"{len(faults)} faults in {folder}")
    path = folder / RECORD_FILE

    def refused(message: str) -> DataError:
        return DataError.of(code="bad-record", message=message, file=str(path))

    with path.open("rb") as stream:
        data = stream.read(_MAX_RECORD_BYTES + 1)
    if len(data) > _MAX_RECORD_BYTES:
        raise refused(f"longer than {_MAX_RECORD_BYTES:,} bytes")
    try:
        values: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
        record = msgspec.convert(values, type=Submission)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise refused(printable(str(error), 300)) from None
    if record.archive.split not in FORECAST_SPLITS:
        raise refused(f"split must be one of: {', '.join(FORECAST_SPLITS)}")
    check_texts(record.name, record.url, record.model, record.notes, record.model_facts, file=str(path))
    return record
