"""Add submissions to a board: whole or not at all, one at a time."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from kernel_archive.board.entries import read_stored
from kernel_archive.board.submissions import (
    FORECASTS_FILE,
    MAX_SLUG,
    RECORD_FILE,
    SCORE_FILE,
    Identity,
    ModelFacts,
    RunFacts,
    Submission,
    check_texts,
    load_submission,
    slug_of,
    submission_folders,
    to_toml,
)
from kernel_archive.errors import (
    DataError,
    Finding,
    KernelArchiveError,
    TargetExistsError,
    printable,
)
from kernel_archive.scoring import read_forecasts, score
from kernel_archive.storage import locked, sync, write_atomically
from kernel_archive.untrusted import UntrustedFileError, is_parquet, read_whole

if TYPE_CHECKING:
    from typing import Unpack

    from kernel_archive.scoring import Score, Split

#: Where commands look when they are given no board: the reviewed folder of a checkout.
DEFAULT_BOARD: Final = Path("leaderboard")
#: A forecast file that is longer without its compression is refused: 50 times what 500 rows x 3
#: repeats with rationales take.
MAX_LINES_BYTES: Final = 256 * 1024**2
_WORK: Final = ".adding-"
#: Held by each process that adds to a board or writes its files.
LOCK: Final = ".lock"


class Statement(TypedDict, total=False):
    """State an entry; all but the name may be left out. Fields as in :class:`Submission`."""

    url: str
    model: str
    notes: str
    facts: ModelFacts | None
    slug: str | None  # name of the entry's folder; made from the entry's name when not given
    draws: int
    seed: int


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """Name what was stored: the folder, its record, its score."""

    slug: str
    folder: Path
    submission: Submission
    record: Score


def store_of(board: str | Path | None) -> Path:
    """Return the folder of submissions of a board."""
    return (DEFAULT_BOARD if board is None else Path(board)) / "submissions"


def _lines(path: Path) -> bytes:
    """Read the forecast lines of a checked file."""
    name = printable(str(path), 300)
    if is_parquet(path):
        fix = "Write its rows as JSON lines: polars.read_parquet(FILE).write_ndjson('f.jsonl')"
        message = "a board takes JSON lines, and this is a Parquet table"
        raise DataError.of(code="bad-form", message=message, file=name, fix=fix)
    try:
        return read_whole(path, max_bytes=MAX_LINES_BYTES)
    except UntrustedFileError as error:
        finding = error.finding(name)
        if finding.code == "file-too-large":
            message = f"longer than {MAX_LINES_BYTES // 1024**2} MB without compression"
            finding = Finding(
                code="too-long", message=message, file=name, fix="Shorten the rationales"
            )
        raise DataError.from_findings([finding]) from None


def _prompt_of(prompts: tuple[str, ...], name: str) -> str:
    """Return the one prompt that forecasts answer; empty where they name none."""
    if len(prompts) > 1:
        raise DataError.of(
            code="several-prompts",
            message="the forecasts answer several prompts",
            file=name,
            field="prompt",
            value=", ".join(printable(prompt or "none") for prompt in prompts[:5]),
            fix="A changed prompt is another entry: give each a file of its own",
        )
    return prompts[0]


def run_facts(file: str | Path, split: str) -> RunFacts | None:
    """Take what was asked of which model from ``FILE.run.json``; ``None`` where there is none.

    Only the fields of :class:`RunFacts` are taken: no key can come along.

    Raises:
        DataError: that run was of another split.
    """
    from kernel_archive.llm.run import read_run, run_path

    run = read_run(file)
    if run is None:
        return None
    if run.split != split:
        raise DataError.of(
            code="other-run",
            message=f"the run was of the split {printable(run.split)}, not of {split}",
            file=printable(str(run_path(file)), 300),
            field="split",
            fix=f"Give --split {printable(run.split)}, or move the file away",
        )
    run_record = run.settings | msgspec.structs.asdict(run)
    served = ", ".join(run.served_models) or run.model
    run_record |= {"served_model": served, "host": run.host or ""}
    fields = RunFacts.__struct_fields__
    taken = {name: run_record[name] for name in fields if run_record.get(name) is not None}
    try:
        return msgspec.convert(taken, type=RunFacts)
    except msgspec.ValidationError as error:
        path, reason = printable(str(run_path(file)), 300), printable(str(error), 200)
        raise DataError.of(code="bad-record", message=reason, file=path) from None


def _refuse_twins(store: Path, digest: str) -> None:
    """Refuse forecasts that are on the board already."""
    for folder in submission_folders(store)[0]:
        with contextlib.suppress(DataError):  # build and verify report the faults of others
            if load_submission(folder).forecasts_sha256 == digest:
                raise TargetExistsError(
                    f"these very forecasts are on the board already, as {folder}"
                )


def add_submission(
    file: str | Path,
    target: Split,
    *,
    name: str,
    board: str | Path | None = None,
    **statement: Unpack[Statement],
) -> Added:
    """Check and score a forecast file and store it as a new submission of a board.

    The prompt of a model is read from the forecasts, what was asked from ``FILE.run.json``.

    Raises:
        ForecastError: the file has a fault, or is of other rows.
        DataError: a text is at fault, or the board is.
        TargetExistsError: the name or the very same forecasts are on the board.
    """
    facts, slug = statement.get("facts"), statement.get("slug")
    submission = Submission(
        name=name,
        url=statement.get("url", ""),
        model=statement.get("model", ""),
        notes=statement.get("notes", ""),
        model_facts=facts,
        model_run=run_facts(file, target.spec.name),
        forecasts_sha256="",
        archive=Identity.of(target),
    )
    check_texts(submission)
    slug = _default_slug(name, target) if slug is None else slug
    _check_slug(slug, "name" if statement.get("slug") is None else "slug", name)
    if not target.facts.canonical:
        raise DataError(
            f"the {target.spec.name} split of this archive is the variant "
            f"{target.facts.split_name!r}: the board takes forecasts of the canonical split only"
        )
    # All faults, by the name that the user gave the file.
    prompts = read_forecasts(file, target, name=name).prompts
    lines = _lines(Path(file))
    prompt = _prompt_of(prompts, printable(str(file), 300))
    if prompt:
        facts = msgspec.structs.replace(facts or ModelFacts(), prompt=prompt)
    digest = hashlib.sha256(lines).hexdigest()
    submission = msgspec.structs.replace(submission, model_facts=facts, forecasts_sha256=digest)
    terms = {"draws": statement.get("draws", 10_000), "seed": statement.get("seed", 0)}
    store = store_of(board)
    _check_board(store)
    store.mkdir(parents=True, exist_ok=True)
    with locked(store.parent / LOCK):
        for left in store.glob(_WORK + "*"):  # of an add that was killed: nobody else works here
            shutil.rmtree(left, ignore_errors=True)
        folder = store / slug
        if folder.exists() or folder.is_symlink():
            raise TargetExistsError(
                f"{folder} is there already. Choose another --name, or remove the folder"
            )
        _refuse_twins(store, digest)
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=store))
        try:
            record = _fill(work, lines, submission, target, terms)
            work.chmod(0o755)
            work.rename(folder)
            sync(store)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Added(slug=slug, folder=folder, submission=submission, record=record)


def _default_slug(name: str, target: Split) -> str:
    slug = slug_of(name)
    ending = "" if target.spec.name == "eval" else f"-{target.spec.name.replace('_', '-')}"
    return slug[: MAX_SLUG - len(ending)].strip("-") + ending if slug else ""


def _check_slug(slug: str, field: str, name: str) -> None:
    if slug == slug_of(slug) and slug:
        return
    raise DataError.of(
        code="bad-slug",
        message=f"not a folder name of lower case letters, digits and single hyphens, at most "
        f"{MAX_SLUG}",
        field=field,
        value=printable(slug if field == "slug" else name),
        fix="Give one with --slug",
    )


def _fill(
    work: Path, lines: bytes, submission: Submission, target: Split, terms: dict[str, int]
) -> Score:
    """Write the three files of a submission."""
    import pyarrow as pa

    packed = pa.Codec("zstd", compression_level=15).compress(lines, asbytes=True)
    write_atomically(work / FORECASTS_FILE, packed)
    forecasts = read_stored(work, submission, target)
    record = score(target, forecasts, draws=terms["draws"], seed=terms["seed"])
    if target.withheld:
        record = record.in_sums()
    write_atomically(work / SCORE_FILE, record.to_json())
    write_atomically(work / RECORD_FILE, to_toml(submission).encode())
    return record


def _check_board(store: Path) -> None:
    """A board is made in a new folder, or in one that is a board."""
    board = store.parent
    if store.is_symlink() or (board.exists() and not board.is_dir()):
        raise KernelArchiveError(f"{board} and its submissions must be folders, not links or files")
    if board.is_dir() and not store.is_dir() and any(board.iterdir()):
        raise TargetExistsError(
            f"{board} holds something that is not a board (no submissions folder). "
            "Choose another --board"
        )
