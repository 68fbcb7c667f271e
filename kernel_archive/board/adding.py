"""Add submissions to a board: whole or not at all, one at a time."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path, PureWindowsPath
from typing import Any, Final, TypedDict, Unpack

import msgspec
import pyarrow as pa

from kernel_archive.board import submissions
from kernel_archive.board.submissions import FORECASTS_FILE, ModelFacts, Submission, to_toml
from kernel_archive.errors import DataError, Finding, TargetExistsError, UsageError, printable
from kernel_archive.scoring import Score, Split, read_forecasts, score
from kernel_archive.storage import locked, sync, write_atomically
from kernel_archive.untrusted import UntrustedFileError, is_parquet, read_whole

#: Where commands look when they are given no board: the reviewed folder of a checkout.
DEFAULT_BOARD: Final = Path("leaderboard")
STANDINGS_FILE: Final = "standings.json"
#: A forecast file that is longer without its compression is refused: 50 times what 500 rows x 3
#: repeats with rationales take.
MAX_LINES_BYTES: Final = 256 * 1024**2
_WORK: Final = ".adding-"
#: Held by each process that adds to a board or writes its files.
LOCK: Final = ".lock"


class Statement(TypedDict, total=False):
    """What a submitter states of an entry, each if known. Fields as in :class:`Submission`."""

    url: str | None
    model: str | None
    notes: str | None
    facts: ModelFacts
    draws: int  # of the bootstrap, 10,000 when not given


class StoredSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored: the folder, what it says, its score."""

    slug: str
    folder: Path
    submission: Submission
    score: Score
    remarks: tuple[Finding, ...]  # warnings about the forecast file


def store_of(board: str | Path | None) -> Path:
    """Return the folder of submissions of a board."""
    return (DEFAULT_BOARD if board is None else Path(board)) / "submissions"


def check_board_folder(folder: Path, option: str) -> None:
    """Refuse a folder that holds something else than a board; ``option`` names it.

    Raises:
        TargetExistsError: it does, or it is no folder.
    """
    fix = f"Choose another {option}"
    if any((folder / name).is_symlink() for name in ("", "submissions")):
        raise TargetExistsError(f"{folder} and its submissions must not be links. {fix}")
    if folder.exists() and not folder.is_dir():
        raise TargetExistsError(f"{folder} is not a folder. {fix}")
    ours = any((folder / name).exists() for name in ("submissions", STANDINGS_FILE, LOCK))
    if folder.is_dir() and not ours and any(folder.iterdir()):
        raise TargetExistsError(f"{folder} holds something that is not a board. {fix}")


def _lines(path: Path) -> bytes:
    """Read the forecast lines of a checked file."""
    name = printable(path, 300)
    if is_parquet(path):
        fix = "Write its rows as JSON lines: polars.read_parquet(FILE).write_ndjson('f.jsonl')"
        message = "a board takes JSON lines, and this is a Parquet table"
        raise DataError.of(code="bad-form", message=message, file=name, fix=fix)
    try:
        return read_whole(path, max_bytes=MAX_LINES_BYTES)
    except UntrustedFileError as error:
        raise DataError.from_findings([error.finding(name)]) from None


def recorded_model_run(file: str | Path) -> dict[str, Any] | None:
    """Take what was asked of which model from ``FILE.run.json``; ``None`` without it.

    Only the fields of :class:`ModelRunFacts` are taken: no key can come along. Of a model that its
    service calls by a path on a disk, the file's name is.
    """
    from kernel_archive.llm.run import read_run

    run = read_run(file)
    if run is None:
        return None
    recorded = run.settings | msgspec.structs.asdict(run)
    # PureWindowsPath reads both kinds of path.
    served = (PureWindowsPath(n).name if PureWindowsPath(n).root else n for n in run.served_models)
    recorded["served_model"] = ", ".join(served) or run.model
    fields = submissions.ModelRunFacts.__struct_fields__
    return {name: recorded[name] for name in fields if recorded.get(name) is not None}


def _slug(name: str, split: Split) -> str:
    """Make the name of an entry's folder, with the split behind it when it is not ``eval``."""
    ending = "" if split.spec.name == "eval" else f"-{split.spec.name.replace('_', '-')}"
    slug = submissions.slug_of(name)[: submissions.MAX_SLUG - len(ending)].strip("-")
    if not slug:
        message = "no letter or digit of ASCII in it: it names the entry's folder"
        raise DataError.of(code="bad-slug", message=message, field="name", value=printable(name))
    return slug + ending


def add_submission(
    file: str | Path,
    split: Split,
    *,
    name: str,
    board: str | Path | None = None,
    **statement: Unpack[Statement],
) -> StoredSubmission:
    """Check and score a forecast file and store it as a new submission of a board.

    The prompt of a model is read from the forecasts, what was asked from ``FILE.run.json``.

    Raises:
        ForecastError: the file has a fault, or is of other rows.
        DataError: a text is at fault.
        TargetExistsError: the name is on the board, or the folder holds something else.
        UsageError: the split's labels are withheld.
    """
    if not split.identity.canonical:
        raise DataError(
            f"the {split.spec.name} split of this archive is the variant "
            f"{split.identity.split_name!r}, and a board takes the canonical one. Type: "
            f"kernel-archive {split.spec.command}"
        )
    if split.withheld:
        raise UsageError(
            f"the labels of {split.spec.name} are withheld, and a board shows them row by row. "
            "Type: kernel-archive score FILE --labels DIR"
        )
    slug = _slug(name, split)
    forecasts = read_forecasts(file, split, name=name)
    if len(forecasts.prompts) > 1:
        raise DataError.of(
            code="several-prompts",
            message="the forecasts answer several prompts",
            file=printable(file, 300),
            value=", ".join(printable(prompt or "none") for prompt in forecasts.prompts[:5]),
            fix="A changed prompt is another entry: give each a file of its own",
        )
    lines, facts = _lines(Path(file)), statement.get("facts") or ModelFacts()
    facts = msgspec.structs.replace(facts, prompt=forecasts.prompts[0] or facts.prompt)
    submission = submissions.parse_submission(
        {
            "name": name,
            **{field: statement.get(field) or "" for field in ("url", "model", "notes")},
            "forecasts_sha256": forecasts.digest.removeprefix("sha256:"),
            "archive": msgspec.to_builtins(submissions.Identity.of(split)),
            "model_facts": msgspec.to_builtins(facts) or None,
            "model_run": recorded_model_run(file),
        }
    )
    store = store_of(board)
    check_board_folder(store.parent, "--board")
    store.mkdir(parents=True, exist_ok=True)
    with locked(store.parent / LOCK):
        for leftover in store.glob(_WORK + "*"):  # of a killed add: nobody else works here
            shutil.rmtree(leftover, ignore_errors=True)
        folder = store / slug
        if folder.exists() or folder.is_symlink():
            raise TargetExistsError(
                f"{folder} is there already. Choose another --name, or remove the folder"
            )
        scored = score(
            split,
            dataclasses.replace(forecasts, source=FORECASTS_FILE),
            draws=statement.get("draws", 10_000),
        )
        _write_submission(folder, lines, submission, scored)
    return StoredSubmission(
        slug=slug, folder=folder, submission=submission, score=scored, remarks=forecasts.remarks
    )


def _write_submission(folder: Path, lines: bytes, submission: Submission, scored: Score) -> None:
    """Write the three files of a submission into a hidden folder, which then takes its name."""
    hidden = Path(tempfile.mkdtemp(prefix=_WORK, dir=folder.parent))
    try:
        packed = pa.Codec("zstd", compression_level=15).compress(lines, asbytes=True)
        write_atomically(hidden / FORECASTS_FILE, packed)
        write_atomically(hidden / submissions.SCORE_FILE, scored.to_json())
        write_atomically(hidden / submissions.SUBMISSION_FILE, to_toml(submission).encode())
        hidden.chmod(0o755)
        hidden.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
