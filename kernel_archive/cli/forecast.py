"""``forecast``."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from kernel_archive.cli import common
from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.storage import check_new, write_new

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive
    from kernel_archive.llm.answers import Forecasted, Tally
    from kernel_archive.llm.batch import Settings
    from kernel_archive.llm.prompts import AnswerForm

_options: Final = common.options(
    common.option("--model", help="The model: provider/name of Inspect; with --export as its service calls it."),
    common.split_option,
    common.bins_option,
    common.option("--defer", is_flag=True, help="Predict or defer: the model may leave a candidate to a measurement."),
    common.option("--repeats", type=click.IntRange(1, 100), default=1, help="How often each row is asked about."),
    common.option("--limit", type=common.FROM_1, help="Ask about so many rows only, chosen by a hash of their ids."),
    common.option("--answer", type=common.Choice(["tool", "json", "text"]), help="Form of the answer.  [default: tool; json with --export]"),
    common.option("--temperature", type=click.FloatRange(min=0), help="Of the sampling.  [default: the service's]"),
    common.option("--max-tokens", type=common.FROM_1, help="Of an answer, reasoning included."),
    common.option("--reasoning-effort", help="Of models that have one: low, medium, high."),
    common.option("--seed", type=int, help="Of the sampling, where the service has one."),
    common.option("--connections", type=common.FROM_1, help="Requests at the same time.  [default: Inspect's]"),
    common.option("--max-retries", type=common.FROM_0, default=5, help="How often a failed request is sent again."),
    common.option("--timeout", type=common.FROM_1, default=600, help="Seconds of one attempt."),
    common.option("--price", type=(float, float), metavar="IN OUT", help="Price of a million tokens read and written."),
    common.option("--from-log", "log_paths", type=click.Path(), multiple=True, help="Convert logs of the Inspect task, also partial ones."),
    common.option("--export", "export_path", type=common.FILE, help="Write the questions as a batch file."),
    common.option("--context", type=common.FROM_1, help="With --export: leave out rows with more estimated tokens."),
    common.option("--import", "import_paths", type=click.Path(), multiple=True, help="Read answers; may be given several times."),
    common.option("-o", "--output", type=common.FILE, help="Forecast file to write."),
)  # fmt: skip


@click.command()
@_options
@common.force_option
@common.archive_option
@common.json_option
def forecast(
    model: str | None,
    split: str,
    answer: AnswerForm | None,
    price: tuple[float, float] | None,
    log_paths: tuple[str, ...],
    export_path: str | None,
    import_paths: tuple[str, ...],
    output: str | None,
    force: bool,
    archive_path: str | None,
    **stated: Any,
) -> None:
    """Forecasts of a language model, by one of four ways.

    --model MODEL -o FORECASTS asks it, with Inspect (pip install 'kernel-archive[llm]'): MODEL is provider/name. A run that
    was stopped goes on with the same command. --from-log LOG -o FORECASTS converts logs of
    inspect eval kernel_archive/forecast.

    --model MODEL --export QUESTIONS writes one request per row and repeat in the batch form of OpenAI-compatible services,
    in an order that tells nothing. --import ANSWERS -o FORECASTS reads what the service answered, or plain lines
    {"custom_id": ..., "answer": "..."}.
    """
    from kernel_archive.archive.open import open_archive
    from kernel_archive.llm.batch import Settings, import_answers

    ways = [bool(export_path), bool(import_paths), bool(log_paths)]
    if sum(ways) > 1 or not (any(ways) or model):
        raise UsageError("give one of --model MODEL, --from-log LOG, --export FILE (with --model) and --import FILE")
    archive = open_archive(archive_path)
    settings = Settings(**{name: stated[name] for name in Settings.__struct_fields__})
    asked = {name: stated[name] for name in ("bins", "defer", "limit")}
    if export_path:
        _export(
            archive, split, export_path, model=model, asked={**asked, "answer": answer or "json"}, repeats=stated["repeats"],
            settings=settings, context=stated["context"], force=force,
        )  # fmt: skip
        return
    if output is None:
        raise UsageError("name the forecast file to write: -o FILE")
    check_new(output, force=force)
    if import_paths:
        made = import_answers(import_paths, archive, split, limit=stated["limit"])
    elif log_paths:
        from kernel_archive.llm.run import from_logs

        # A log says itself which split it is of: one that is named must be that one.
        named = click.get_current_context().get_parameter_source("split") != ParameterSource.DEFAULT
        made = from_logs(log_paths, archive, split if named else None)
    else:
        made = _ask(
            archive, split, output, asked={**asked, "answer": answer or "tool"}, price=price, model=str(model),
            settings=settings, **{name: stated[name] for name in ("repeats", "connections", "max_retries", "timeout")},
        )  # fmt: skip
    data, tally = made.finish()
    if not tally.answered:
        why = ", ".join(f"{printable(reason, 200)} {n:,}" for reason, n in tally.unanswered.items())
        raise KernelArchiveError(f"not one of {tally.asked:,} questions was answered ({why}): no file is written")
    write_new(output, data, force=force)
    shown, split = printable(output, 5000), made.questions.asked.split.name
    cost = None if price is None else (price[0] * tally.input_tokens + price[1] * tally.output_tokens) / 1e6
    facts = {"file": shown, "split": split, "tally": tally, "cost": cost}
    common.emit(facts, "\n".join(_lines(shown, tally, split, cost)))


def _ask(
    archive: Archive, split: str, output: str, *, asked: dict[str, Any], repeats: int, price: tuple[float, float] | None, **how: Any
) -> Forecasted:  # fmt: skip
    """Ask the model, under a progress bar; what it will come to is said before."""
    from kernel_archive.llm.prompts import load_questions
    from kernel_archive.llm.run import ask_model, log_files, log_folder

    questions = load_questions(archive, split, **asked)
    logs = log_folder(output)
    total = len(questions) * repeats
    tokens = sum(question.tokens for question in questions) * repeats
    cost = "" if price is None else f", {price[0] * tokens / 1e6:,.2f} for reading them"
    common.say(
        f"{total:,} questions, about {tokens:,} tokens{cost}; prompt {questions.prompt.name}; logs in {printable(str(logs), 5000)}"
    )
    if log_files(logs):
        common.say("Going on where the logs end: what is answered in them is not asked again")
    done = count(1)
    with common.progress("answers") as advance:
        try:
            return ask_model(
                archive, split, logs=logs, repeats=repeats, advance=lambda: advance(next(done), total, ""), **asked, **how
            )  # fmt: skip
        except KeyboardInterrupt:
            common.say("What was answered is kept: the same command goes on")
            raise


def _export(
    archive: Archive, split: str, path: str, *, model: str | None, asked: dict[str, Any], repeats: int, settings: Settings,
    context: int | None, force: bool,
) -> None:  # fmt: skip
    """Write the questions, and say what they come to."""
    from kernel_archive.llm.batch import export_lines
    from kernel_archive.llm.prompts import load_questions

    if model is None:
        raise UsageError("every request of a batch file names its model: --model NAME")
    questions = load_questions(archive, split, **asked)
    kept, too_long = questions.fitting(context)
    write_new(path, b"".join(export_lines(kept, model=model, repeats=repeats, settings=settings)), force=force)
    shown = printable(path, 5000)
    tokens = sum(question.tokens for question in kept) * repeats
    facts = {
        "file": shown, "prompt": questions.prompt.name, "split": split, "rows": len(kept), "repeats": repeats,
        "rows_of_split": questions.n_rows, "estimated_input_tokens": tokens, "left_out": list(too_long),
    }  # fmt: skip

    def text() -> None:
        for row_id in too_long:
            common.say(
                f"warning: {printable(row_id)} has more than {context:,} estimated tokens: it is left unanswered"
            )
        limit = f" --limit {asked['limit']}" if asked["limit"] else ""
        common.tell(
            f"{shown}: {len(kept) * repeats:,} questions about {len(kept):,} of {questions.n_rows:,} rows, about {tokens:,} tokens; "
            f"prompt {questions.prompt.name}. Next: kernel-archive forecast --import ANSWERS --split {split}{limit} -o FORECASTS"
        )

    common.emit(facts, text)


def _lines(shown: str, tally: Tally, split: str, cost: float | None) -> list[str]:
    out = [
        f"{shown}: {tally.answered:,} answers to {tally.asked:,} questions, {tally.forecasts:,} forecasts; prompt {tally.prompt}"
    ]
    if tally.deferred:
        out.append(f"{tally.deferred:,} deferred")
    reasons = {"unparsed": tally.unparsed, "stopped early": tally.stopped, "unanswered": tally.unanswered}
    for title, counts in reasons.items():
        if counts:
            out.append(f"{title}: " + ", ".join(f"{printable(why)} {n:,}" for why, n in counts.items()))
    if tally.input_tokens or tally.output_tokens:
        lacking = f" ({tally.without_usage:,} answers don't say)" if tally.without_usage else ""
        priced = "" if cost is None else f", cost {cost:,.4f}"
        out.append(f"{tally.input_tokens:,} tokens read, {tally.output_tokens:,} written{lacking}{priced}")
    out.append(f"Next: kernel-archive check {shown} --split {split}")
    return out
