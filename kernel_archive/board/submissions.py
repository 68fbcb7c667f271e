"""A submission: who forecast what, by which model, with which file. Everything in it is a stranger's text and is checked as such.

A submission is a folder ``submissions/<slug>/`` with ``submission.toml`` (this record), ``forecasts.jsonl.zst`` (the
lines as they were sent) and ``score.json`` (the score that those lines give).
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
from kernel_archive.untrusted import UntrustedFileError, read_whole, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.scoring import Target

RECORD_FILE: Final = "submission.toml"
FORECASTS_FILE: Final = "forecasts.jsonl.zst"
SCORE_FILE: Final = "score.json"
_FILES: Final = frozenset({RECORD_FILE, FORECASTS_FILE, SCORE_FILE})
MAX_SLUG: Final = 60
#: Longest texts, in characters: of a record, and of its model facts.
_LIMITS: Final = {"name": 80, "url": 300, "model": 120, "notes": 2000}
_FACT_LIMITS: Final = {"revision": 120, "provider": 80, "reasoning_effort": 40, "prompt": 120, "training_cutoff": 10}
#: A year, a month or a day.
_DATE: Final = re.compile(r"\d{4}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?")
_MAX_RECORD_BYTES: Final = 64 * 1024
#: What a model has seen of the archive that it forecasts; ``held-out``: rows that are there to be forecast, too.
Seen = Literal["yes", "no", "held-out", "unknown"]


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the forecasts are of: archive and split, with their logical digests. Only submissions of the same are ranked together."""

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

    @property
    def rows(self) -> tuple[str, str, str]:
        """The same for the same rows of the same content: a version's name may differ."""
        return self.digest, self.split, self.split_digest


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facts of a model, each as far as its submitter states it."""

    revision: str = ""  # version, date or commit
    provider: str = ""  # who served it
    temperature: float | None = None  # of the sampling
    reasoning_effort: str = ""  # as the service names it
    prompt: str = ""  # name and digest of the prompt that the forecasts answer; read from the forecasts
    open_weights: bool | None = None  # whether anybody can have the weights
    training_cutoff: str = ""  # end of what it was trained on: a year, a month or a day
    saw_archive: Seen = "unknown"  # whether it was trained on this archive, as its submitter declares


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``submission.toml`` holds."""

    name: str  # of the entry on the board
    forecasts_sha256: str  # of the forecast lines, without compression, 64 hex digits
    archive: Identity
    url: str = ""  # page of the submitter or the method
    model: str = ""  # the model behind it, as its submitter names it
    notes: str = ""
    model_facts: ModelFacts | None = None


def slug_of(name: str) -> str:
    """The folder of a name: lower case letters and digits of its ASCII form, with hyphens between.

    >>> slug_of("GPT-oss 120B (untrained)"), slug_of("../../etc"), slug_of("日本")
    ('gpt-oss-120b-untrained', 'etc', '')
    """
    ascii_form = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_form).strip("-")[:MAX_SLUG].strip("-")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in url
    except ValueError:
        return False


def _refuse(faults: list[Finding], where: str) -> None:
    if faults:
        raise DataError.from_findings(faults, None if len(faults) == 1 else f"{len(faults)} faults in {where}")


def check_texts(record: Submission, file: str | None = None) -> None:
    """Check what a submitter wrote.

    Raises:
        DataError: with every fault.
    """
    found: list[Finding] = []

    def fault(code: str, field: str, value: str, message: str, fix: str | None = None) -> None:
        found.append(Finding(code=code, message=message, file=file, field=field, value=value, fix=fix))

    facts = record.model_facts or ModelFacts()
    texts = msgspec.structs.asdict(record) | msgspec.structs.asdict(facts)
    for field, limit in (_LIMITS | _FACT_LIMITS).items():
        text = texts[field]
        if len(text) > limit:
            fault("too-long", field, f"{len(text)} characters", f"longer than {limit} characters")
        allowed = "\n " if field == "notes" else " "
        # Bidirectional marks (Cf) can make a name read as another one; letters, marks, numbers, signs and blanks can't.
        bad = next((c for c in text if c not in allowed and unicodedata.category(c)[0] in "CZ"), None)
        if bad is not None:
            message = "holds a control, format or other invisible character"
            value = f"U+{ord(bad):04X} in {printable(text)}"
            fault("bad-character", field, value, message, "Write it with visible characters and plain blanks")
    if facts.training_cutoff and not _DATE.fullmatch(facts.training_cutoff):
        date, fix = printable(facts.training_cutoff), "Write 2026, 2026-03 or 2026-03-31"
        fault("bad-date", "training_cutoff", date, "not a year, a month or a day", fix)
    if facts.temperature is not None and not 0 <= facts.temperature <= 100:
        fault("out-of-range", "temperature", repr(facts.temperature), "must be a number from 0 to 100")
    if not record.name.strip() or record.name != record.name.strip():
        fault("bad-name", "name", printable(record.name), "a name is needed, without blanks around it")
    if record.url and not _is_address(record.url):
        fault("bad-url", "url", printable(record.url), "not a web address", "Start it with https://")
    _refuse(found, "what was submitted")


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
        elif path.name != slug_of(path.name):
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
        path = printable(str(folder / name), 300)
        yield Finding(code="extra-file", message="does not belong to a submission", file=path)
    for name in sorted(_FILES - names):
        fix = "Make the folder with: kernel-archive leaderboard add"
        yield Finding(code="missing-file", message="missing", file=str(folder / name), fix=fix)
    for name in sorted(names & _FILES):
        if (folder / name).is_symlink() or not (folder / name).is_file():
            yield Finding(code="not-a-file", message="not a regular file", file=str(folder / name))


def load_submission(folder: Path) -> Submission:
    """The record of a submission's folder, checked.

    Raises:
        DataError: the folder or the record is at fault; every fault is named.
    """
    _refuse(list(_folder_faults(folder)), str(folder))
    path = folder / RECORD_FILE

    def refused(message: str) -> DataError:
        return DataError.of(code="bad-record", message=message, file=str(path))

    with path.open("rb") as stream:
        data = stream.read(_MAX_RECORD_BYTES + 1)
    if len(data) > _MAX_RECORD_BYTES:
        raise refused(f"longer than {_MAX_RECORD_BYTES:,} bytes")
    try:
        record = msgspec.convert(tomllib.loads(data.decode("utf-8")), type=Submission)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise refused(printable(str(error), 300)) from None
    if record.archive.split not in FORECAST_SPLITS:
        raise refused(f"split must be one of: {', '.join(FORECAST_SPLITS)}")
    check_texts(record, str(path))
    return record


def fact_rows(facts: ModelFacts | None) -> list[tuple[str, str]]:
    """The stated facts in words, for people; that nothing is declared of the archive is said, too."""
    if facts is None:
        return []
    weights = {True: "open", False: "closed", None: ""}[facts.open_weights]
    seen = {
        "yes": "yes",
        "no": "no, as declared",
        "held-out": "yes, and on held-out rows: its scores on them say nothing",
        "unknown": "not declared",
    }[facts.saw_archive]
    rows = [
        ("Revision", facts.revision),
        ("Provider", facts.provider),
        ("Temperature", "" if facts.temperature is None else f"{facts.temperature:g}"),
        ("Reasoning effort", facts.reasoning_effort),
        ("Prompt", facts.prompt),
        ("Weights", weights),
        ("Training cut-off", facts.training_cutoff),
        ("Trained on this archive", seen),
    ]
    return [(title, text) for title, text in rows if text]


def seen_of(path: str | Path) -> Seen:
    """What a model has seen, by the record that its training left (``Lessons.record``).

    Raises:
        DataError: the file is no such record.
    """
    shown = printable(str(path), 300)
    try:
        record = msgspec.json.decode(read_whole(regular_file(path), max_bytes=1 << 20))
    except UntrustedFileError as error:
        raise DataError.from_findings([error.finding(shown)]) from None
    except (ValueError, RecursionError) as error:
        raise DataError.of(code="bad-json", message=printable(str(error), 200), file=shown) from None
    held = record.get("held_out") if isinstance(record, dict) else None
    if not isinstance(held, bool):
        raise DataError.of(
            code="no-record", message="says not whether held-out rows were learnt from", file=shown, field="held_out",
            value=printable(held), fix="Give the record of the training: what Lessons.record() returns, as JSON",
        )  # fmt: skip
    return "held-out" if held else "yes"
