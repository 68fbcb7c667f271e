"""Adding to the store of submissions: whole or not at all, one at a time, whatever is killed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.board.entries import read_stored
from kernel_archive.board.submissions import (
    FORECASTS_FILE,
    MAX_SLUG,
    RECORD_FILE,
    SCORE_FILE,
    Identity,
    ModelFacts,
    Submission,
    check_texts,
    load_submission,
    slug_of,
    submission_folders,
    to_toml,
)
from kernel_archive.errors import DataError, Finding, KernelArchiveError, TargetExistsError, printable
from kernel_archive.scoring import read_forecasts, score
from kernel_archive.scoring.formats import READ, decode_line
from kernel_archive.storage import locked, sync, write_atomically
from kernel_archive.untrusted import UntrustedFileError, is_parquet, read_whole
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from kernel_archive.scoring import ScoreRecord, Target

#: Where commands look when they are given no board: the reviewed folder of a checkout.
DEFAULT_BOARD: Final = Path("leaderboard")
#: A forecast file may be this long without its compression: 50 times what 500 rows x 3 repeats with rationales take.
MAX_LINES_BYTES: Final = 256 * 1024**2
_WORK: Final = ".adding-"
#: Held by whoever adds to a board or writes its files.
LOCK: Final = ".lock"


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored: the folder, its record, its score."""

    slug: str
    folder: Path
    submission: Submission
    record: ScoreRecord


def store_of(board: str | Path | None) -> Path:
    """The folder of submissions of a board."""
    return (DEFAULT_BOARD if board is None else Path(board)) / "submissions"


def _lines(path: Path) -> bytes:
    """The forecast lines of a checked file without compression; those of a Parquet file as JSON lines.

    Raises:
        DataError: they are longer than :data:`MAX_LINES_BYTES`.
    """
    name = printable(str(path), 300)
    try:
        return _json_lines(path, name) if is_parquet(path) else read_whole(path, max_bytes=MAX_LINES_BYTES)
    except UntrustedFileError as error:
        found = error.finding(name)
        if found.code == "file-too-large":
            message = f"longer than {MAX_LINES_BYTES // 1024**2} MB without compression"
            found = Finding(code="too-long", message=message, file=name, fix="Shorten the rationales")
        raise DataError.from_findings([found]) from None


def _json_lines(path: Path, name: str) -> bytes:
    """The rows of a Parquet file, with the fields that are read, as JSON lines."""
    out = bytearray()
    wanted = READ | {"surrogate_label"}
    for item in parquet_rows(path, name=name, wanted=wanted, max_rows=MAX_LINES_BYTES, max_bytes=MAX_LINES_BYTES):
        if isinstance(item, Finding):
            raise DataError.from_findings([item])
        row = {key: _as_object(value) for key, value in item[1].items() if value is not None}
        out += msgspec.json.encode(row) + b"\n"
        if len(out) > MAX_LINES_BYTES:
            raise UntrustedFileError("file-too-large", "too many lines")
    return bytes(out)


def _as_object(value: Any) -> Any:
    """A map, which Arrow gives as a list of pairs, as the JSON object that it is in a line."""
    is_map = isinstance(value, list) and value and all(isinstance(item, tuple) for item in value)
    return dict(value) if is_map else value


def prompt_of(lines: bytes, name: str) -> str:
    """The prompt that checked forecast lines (of the file of that name) answer; empty where they name none.

    Raises:
        DataError: they answer several.
    """
    decoded = (decode_line(line, file=name, line=n) for n, line in enumerate(lines.splitlines(), 1) if line.strip())
    counts = Counter(line.get("prompt") for line in decoded if isinstance(line, dict))
    named = [prompt for prompt in counts if prompt]
    if len(named) > 1 or (named and len(counts) > 1):
        shown = ", ".join(f"{printable(prompt or 'none')} {n:,}" for prompt, n in counts.most_common(5))
        raise DataError.of(
            code="several-prompts", message="the forecasts answer several prompts", file=name, field="prompt", value=shown,
            fix="A changed prompt is another entry: give each a file of its own",
        )  # fmt: skip
    return named[0] if named else ""


def _key(name: str) -> str:
    """What two names that read alike share."""
    return unicodedata.normalize("NFKC", name).casefold()


def _refuse_twins(store: Path, submission: Submission) -> None:
    """Refuse a name that is on the board for the same split, and forecasts that are."""
    for folder in submission_folders(store)[0]:
        try:
            other = load_submission(folder)
        except DataError:
            continue  # somebody else's fault, which verify and build report; it is no reason to refuse this one
        if other.archive.split == submission.archive.split and _key(other.name) == _key(submission.name):
            raise TargetExistsError(f"{folder} has this name already. Choose another --name")
        if (other.archive.rows, other.forecasts_sha256) == (submission.archive.rows, submission.forecasts_sha256):
            raise TargetExistsError(f"these very forecasts are on the board already, as {folder}")


def add_submission(
    file: str | Path,
    target: Target,
    *,
    name: str,
    url: str = "",
    model: str = "",
    notes: str = "",
    facts: ModelFacts | None = None,
    slug: str | None = None,
    board: str | Path | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> Added:
    """Check and score a forecast file and store it as a new submission.

    What is stated of the entry is what :class:`Submission` holds; of the model's facts the prompt is read from the forecasts.
    The folder is named ``slug``, or after the name; the board is ``leaderboard`` here when not given.

    Raises:
        ForecastError: the file has a fault, or is of other rows.
        DataError: a text is at fault, or the board is.
        TargetExistsError: there is a submission of that name, or with the very same forecasts.
    """
    submission = Submission(
        name=name,
        url=url,
        model=model,
        notes=notes,
        model_facts=facts,
        forecasts_sha256="",
        archive=Identity.of(target),
    )
    check_texts(submission)
    chosen = slug if slug is not None else _default_slug(name, target)
    if chosen != slug_of(chosen) or not chosen:
        raise DataError.of(
            code="bad-slug",
            message=f"not a folder name of lower case letters, digits and single hyphens, at most {MAX_SLUG}",
            field="slug" if slug is not None else "name",
            value=printable(chosen if slug is not None else name),
            fix="Give one with --slug",
        )
    if not target.facts.canonical:
        raise DataError(
            f"the {target.split.name} split of this archive is the variant {target.facts.split_name!r}: the board takes forecasts of "
            "the canonical split only"
        )
    read_forecasts(file, target, name=name)  # every fault of the file, by the name that its user gave it
    lines = _lines(Path(file))
    prompt = prompt_of(lines, printable(str(file), 300))
    if prompt:
        facts = msgspec.structs.replace(facts or ModelFacts(), prompt=prompt)
    digest = hashlib.sha256(lines).hexdigest()
    submission = msgspec.structs.replace(submission, model_facts=facts, forecasts_sha256=digest)
    store = store_of(board)
    _check_board(store)
    store.mkdir(parents=True, exist_ok=True)
    with locked(store.parent / LOCK):
        # Nobody else holds the store: what a killed add left behind is nobody's any more.
        for left in store.glob(_WORK + "*"):
            shutil.rmtree(left, ignore_errors=True)
        folder = store / chosen
        if folder.exists() or folder.is_symlink():
            raise TargetExistsError(
                f"{folder} is there already: a submission of that name has been added. Choose another --name, or remove the folder"
            )
        _refuse_twins(store, submission)
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=store))
        try:
            record = _fill(work, lines, submission, target, draws=draws, seed=seed)
            work.chmod(0o755)
            work.rename(folder)
            sync(store)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Added(slug=chosen, folder=folder, submission=submission, record=record)


def _default_slug(name: str, target: Target) -> str:
    slug = slug_of(name)
    ending = "" if target.split.name == "eval" else f"-{target.split.name.replace('_', '-')}"
    return slug[: MAX_SLUG - len(ending)].strip("-") + ending if slug else ""


def _fill(work: Path, lines: bytes, submission: Submission, target: Target, *, draws: int, seed: int) -> ScoreRecord:
    import pyarrow as pa

    write_atomically(work / FORECASTS_FILE, pa.Codec("zstd", compression_level=15).compress(lines, asbytes=True))
    record = score(target, read_stored(work, submission, target), draws=draws, seed=seed)
    if target.withheld:
        record = record.in_sums()
    write_atomically(work / SCORE_FILE, record.to_json())
    write_atomically(work / RECORD_FILE, to_toml(submission).encode())
    return record


def _check_board(store: Path) -> None:
    """A board is made in a new folder, or in one that is a board."""
    board = store.parent
    if board.exists() and not board.is_dir():
        raise KernelArchiveError(f"{board} is not a folder. Choose another --board")
    if board.is_dir() and not store.is_dir() and any(board.iterdir()):
        raise TargetExistsError(
            f"{board} holds something that is not a board (no submissions folder). Choose another --board"
        )
    if store.is_symlink():
        raise KernelArchiveError(f"{store} is a link. A board keeps its submissions in a folder of its own")
