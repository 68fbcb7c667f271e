"""``forecast``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernel_archive.cli.common import (
    archive_option,
    bins_option,
    emit,
    force_option,
    json_option,
    say,
    split_option,
    tell,
)
from kernel_archive.errors import UsageError, printable

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive
    from kernel_archive.llm.answers import Forecasted, Tally
    from kernel_archive.llm.batch import Settings
    from kernel_archive.llm.prompts import AnswerForm

__all__ = ["forecast"]


@click.command(short_help="Ask a language model for forecasts.")
@click.option("--model", default=None, help="Name of the model, as its service wants it.")
@split_option
@bins_option
@click.option("--defer", is_flag=True, help="Predict or defer: the model may leave a candidate to a measurement.")
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=1, show_default=True, help="How often each row is asked about."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=None, help="Ask about so many rows, chosen by a hash of their ids."
)
@click.option(
    "--answer", type=click.Choice(["tool", "json", "text"]), default=None, help="Form of the answer.  [default: json]"
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=None, help="Of the sampling.  [default: the service's]"
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=None, help="Of an answer, reasoning included.")
@click.option("--reasoning-effort", default=None, help="Of models that have one: low, medium, high.")
@click.option(
    "--context", type=click.IntRange(min=1), default=None, help="Leave rows with more estimated tokens unanswered."
)
@click.option(
    "--export",
    "export_path",
    type=click.Path(dir_okay=False),
    default=None,
    help="Write the questions as a batch file.",
)
@click.option(
    "--import", "import_paths", type=click.Path(), multiple=True, help="Read answers; may be given several times."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), default=None, help="Forecast file to write.")
@force_option
@archive_option
@json_option
def forecast(
    model: str | None,
    split: str,
    bins: str | None,
    defer: bool,
    repeats: int,
    limit: int | None,
    answer: AnswerForm | None,
    temperature: float | None,
    max_tokens: int | None,
    reasoning_effort: str | None,
    context: int | None,
    export_path: str | None,
    import_paths: tuple[str, ...],
    output: str | None,
    force: bool,
    archive_path: str | None,
    as_json: bool,
) -> None:
    """Forecasts of a language model: questions out as a batch file, answers in as a forecast file.

    --export FILE writes one request per row and repeat in the batch form of OpenAI-compatible services, in an order that
    tells nothing. --import FILE -o FORECASTS reads what the service answered, or plain lines
    {"custom_id": ..., "answer": "..."}, and writes a forecast file.
    """
    from kernel_archive.archive.open import open_archive
    from kernel_archive.llm.batch import Settings, import_answers
    from kernel_archive.storage import check_new

    if bool(export_path) == bool(import_paths):
        raise UsageError("give either --export FILE or --import FILE")
    archive = open_archive(archive_path)
    if export_path:
        settings = Settings(temperature=temperature, max_tokens=max_tokens, reasoning_effort=reasoning_effort)
        _export(
            archive, split, export_path, model=model, bins=bins, defer=defer, repeats=repeats, limit=limit,
            answer=answer or "json", settings=settings, context=context, force=force, as_json=as_json,
        )  # fmt: skip
        return
    if output is None:
        raise UsageError("name the forecast file to write: -o FILE")
    check_new(output, force=force)
    made = import_answers(import_paths, archive, split, limit=limit)
    _write(made, output, force=force, as_json=as_json, split=split)


def _export(
    archive: Archive, split: str, path: str, *, model: str | None, bins: str | None, defer: bool, repeats: int, limit: int | None,
    answer: AnswerForm, settings: Settings, context: int | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the questions, and say what they come to."""
    from kernel_archive.llm.batch import export_lines
    from kernel_archive.llm.questions import load_questions
    from kernel_archive.storage import write_new

    if model is None:
        raise UsageError("every request of a batch file names its model: --model NAME")
    questions = load_questions(archive, split, answer=answer, bins=bins, defer=defer, limit=limit)
    kept, too_long = questions.fitting(context)
    data = b"".join(export_lines(kept, model=model, repeats=repeats, settings=settings))
    write_new(path, data, force=force)
    shown = printable(path, 5000)
    tokens = sum(question.tokens for question in kept) * repeats
    facts: dict[str, Any] = {
        "file": shown, "prompt": questions.prompt.name, "split": split, "rows": len(kept), "repeats": repeats,
        "rows_of_split": questions.n_rows, "estimated_input_tokens": tokens, "left_out": list(too_long),
    }  # fmt: skip
    emit(facts, as_json=as_json)
    if not as_json:
        for row_id in too_long:
            say(f"warning: {printable(row_id)} has more than {context:,} estimated tokens: it is left unanswered")
        tell(
            f"{shown}: {len(kept) * repeats:,} questions about {len(kept):,} of {questions.n_rows:,} rows, about {tokens:,} tokens; "
            f"prompt {questions.prompt.name}. Next: kernel-archive forecast --import ANSWERS --split {split} -o FORECASTS"
        )


def _write(made: Forecasted, output: str, *, force: bool, as_json: bool, split: str) -> None:
    """Write the forecast file, and say what became of every question."""
    from kernel_archive.storage import write_new

    data, tally = made.finish()
    write_new(output, data, force=force)
    shown = printable(output, 5000)
    emit({"file": shown, "tally": tally}, as_json=as_json, text="\n".join(_lines(shown, tally, split)))


def _lines(shown: str, tally: Tally, split: str) -> list[str]:
    out = [
        f"{shown}: {tally.answered:,} answers to {tally.asked:,} questions, {tally.forecasts:,} forecasts; prompt {tally.prompt}"
    ]
    if tally.deferred:
        out.append(f"{tally.deferred:,} deferred")
    for title, counts in (
        ("unparsed", tally.unparsed),
        ("stopped early", tally.stopped),
        ("unanswered", tally.unanswered),
    ):
        if counts:
            out.append(f"{title}: " + ", ".join(f"{printable(why)} {n:,}" for why, n in counts.items()))
    if tally.input_tokens or tally.output_tokens:
        lacking = f" ({tally.without_usage:,} answers don't say)" if tally.without_usage else ""
        out.append(f"{tally.input_tokens:,} tokens read, {tally.output_tokens:,} written{lacking}")
    out.append(f"Next: kernel-archive check {shown} --split {split}")
    return out
