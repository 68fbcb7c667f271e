"""The command ``forecast``."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from kernel_archive.cli import common
from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.storage import check_new, write_new

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive
    from kernel_archive.llm.answers import Answers
    from kernel_archive.llm.ask import Limits
    from kernel_archive.llm.chat import ModelSettings
    from kernel_archive.llm.questions import Questions
    from kernel_archive.llm.run import Run

_question_options: Final = common.options(
    common.split_option,
    common.bins_option,
    common.option("--defer", is_flag=True, help="Let the model leave candidates to a measurement."),
    common.option(
        "--answer",
        type=common.Choice(["json", "tool", "text"]),
        default="json",
        help="Form of the answer.",
    ),
    common.option(
        "--limit", type=common.FROM_1, help="Rows to ask about, chosen by a hash of their ids."
    ),
    common.option(
        "--repeats", type=click.IntRange(1, 100), default=1, help="How often each row is asked."
    ),
)
_model_options: Final = common.options(
    common.option("--model", help="The model, as its service calls it."),
    common.option("--temperature", type=click.FloatRange(min=0), help="Of the sampling."),
    common.option("--max-tokens", type=common.FROM_1, help="Of an answer, reasoning included."),
    common.option("--reasoning-effort", help="Of models that have one: low, medium, high."),
    common.option("--seed", type=int, help="Of the sampling, where the service has one."),
)
_asking_options: Final = common.options(
    common.option("--url", help="Address of the service.  [default: $OPENAI_BASE_URL]"),
    common.option(
        "--key-env", default="OPENAI_API_KEY", help="Variable that holds the service's key."
    ),
    common.option("--connections", type=common.FROM_1, default=8, help="Requests at one time."),
    common.option(
        "--max-retries", type=common.FROM_0, default=3, help="Further attempts per question."
    ),
    common.option("--timeout", type=common.FROM_1, default=600, help="Seconds of one attempt."),
    common.option(
        "--price", type=(float, float), metavar="IN OUT", help="Price of a million tokens."
    ),
    common.option("--max-tokens-total", type=common.FROM_1, help="Tokens to spend at most."),
    common.option("--max-cost", type=click.FloatRange(min=0), help="Money to spend at most."),
    common.option("--dry-run", is_flag=True, help="Show what it would cost, and ask nothing."),
    common.option("--no-trial", is_flag=True, help="Ask on where the first answer is unusable."),
    common.option("--name-host", is_flag=True, help="Record the service's host name."),
)
_file_options: Final = common.options(
    common.option("--export", "export_path", type=common.FILE, help="Batch file to write."),
    common.option(
        "--import",
        "import_paths",
        type=click.Path(),
        multiple=True,
        help="Answers to read; with --export: answers to leave out.",
    ),
    common.option("--from-log", "log_path", help="Log of the Inspect task to convert."),
    common.option("-o", "--output", type=common.FILE, help="Forecast file to write."),
)


@click.command()
@_question_options
@_model_options
@_asking_options
@_file_options
@common.force_option
@common.archive_option
@common.json_option
def forecast(archive_path: str | None, **options: Any) -> None:
    """Ask a language model for forecasts, or convert its answers.

    --url URL --model MODEL -o FORECASTS asks a service that speaks the OpenAI protocol. The first
    question is a trial. A run that was stopped, or asks for more rows or repeats, goes on with the
    same command; answers are paid for once.

    --model MODEL --export QUESTIONS writes a batch file, and --import ANSWERS -o FORECASTS reads
    what came back, or plain lines {"custom_id": ..., "answer": "..."}.

    --from-log LOG -o FORECASTS converts a log of 'inspect eval kernel_archive/forecast', which
    knows many more providers.
    """
    from kernel_archive.archive.open import open_archive

    export, log = options["export_path"], options["log_path"]
    answers_given = bool(options["import_paths"] or log)
    if (export and log) or not (options["model"] or export or answers_given):
        raise UsageError(
            "give one of --model MODEL (with --url), --export FILE (with --model), --import FILE "
            "and --from-log LOG"
        )
    archive = open_archive(archive_path)
    if export:
        _export(archive, **options)
        return
    if options["output"] is None:
        raise UsageError("name the forecast file to write: -o FILE")
    answers = _read(archive, **options) if answers_given else _ask(archive, **options)
    if answers is not None:
        # Where answers stand beside the forecasts, the file is remade from them every time.
        _write(answers, **options | {"force": options["force"] or not answers_given})


def _read(archive: Archive, **options: Any) -> Answers:
    """Read the answers of a batch, or of a log of Inspect."""
    from kernel_archive.llm.batch import import_answers
    from kernel_archive.llm.inspect_logs import from_log

    check_new(options["output"], force=options["force"])
    if options["log_path"]:
        return from_log(options["log_path"], archive, options["split"])
    return import_answers(
        options["import_paths"], archive, options["split"], limit=options["limit"]
    )


def _write(answers: Answers, **options: Any) -> None:
    """Write the forecast file, and say what is in it."""
    data, counts = answers.forecast_file()
    if not counts.answered:
        reasons = ", ".join(f"{printable(why, 200)} {n:,}" for why, n in counts.unanswered.items())
        raise KernelArchiveError(
            f"not one of {counts.asked:,} questions was answered ({reasons}): no file is written"
        )
    write_new(options["output"], data, force=options["force"])
    split = answers.questions.asked.split.name
    cost = None
    if options["price"] is not None:
        cost = _limits(options).cost(counts.input_tokens, counts.output_tokens)
    named = {"answered": counts.answered, **msgspec.structs.asdict(counts)}
    facts = {"file": printable(options["output"], 5000), "split": split, "cost": cost}
    facts["next"] = f"kernel-archive check {facts['file']} --split {split}"
    shown = {
        "file": facts["file"],
        "split": split,
        "prompt": counts.prompt,
        "questions": counts.asked,
        "answered": counts.answered,
        "forecasts": counts.forecasts,
        "without_a_forecast": counts.unparsed,
        "stopped_early": counts.stopped,
        "unanswered": counts.unanswered,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "answers_without_token_counts": counts.without_usage or None,
        "cost": cost,
        "next": facts["next"],
    }
    common.emit(facts | {"counts": named}, lambda: common.print_facts(shown))


def _questions(archive: Archive, options: dict[str, Any]) -> Questions:
    from kernel_archive.llm.questions import load_questions

    named = {name: options[name] for name in ("answer", "bins", "defer", "limit")}
    return load_questions(archive, options["split"], **named)


def _settings(options: dict[str, Any]) -> ModelSettings:
    from kernel_archive.llm.chat import ModelSettings

    return ModelSettings(**{name: options[name] for name in ModelSettings.__struct_fields__})


def _limits(options: dict[str, Any]) -> Limits:
    from kernel_archive.llm.ask import Limits

    named = {name: options[name] for name in ("connections", "max_tokens_total", "max_cost")}
    return Limits(**named, price=options["price"] or (0.0, 0.0))


def _run(archive: Archive, options: dict[str, Any]) -> Run:
    """Prepare a run against the service that was named."""
    from kernel_archive.llm.run import Run
    from kernel_archive.llm.service import Service, check_url

    url = options["url"] or os.environ.get("OPENAI_BASE_URL")
    if not url:
        raise UsageError(
            "name the service: --url http://HOST/v1 (or OPENAI_BASE_URL). Providers of Inspect "
            "are asked with: inspect eval kernel_archive/forecast --model PROVIDER/NAME"
        )
    if options["max_cost"] is not None and options["price"] is None:
        raise UsageError("--max-cost needs the price of tokens: --price IN OUT, per million")
    service = Service(
        url=check_url(url),
        model=options["model"],
        key=os.environ.get(options["key_env"]) or None,
        timeout=options["timeout"],
        max_retries=options["max_retries"],
    )
    return Run(
        archive,
        _questions(archive, options),
        service,
        options["output"],
        settings=_settings(options),
        repeats=options["repeats"],
        name_host=options["name_host"],
    )


def _ask(archive: Archive, **options: Any) -> Answers | None:
    """Ask the model; ``None`` after a dry run."""
    from kernel_archive.llm.ask import ask
    from kernel_archive.llm.run import answers_path

    run, limits = _run(archive, options), _limits(options)
    if not answers_path(run.output).exists():
        check_new(run.output, force=options["force"])
    with run.locked():
        run.load()
        estimate = run.estimate()
        cost = limits.cost(estimate["input_tokens"], estimate["output_tokens"])
        facts: dict[str, Any] = {"prompt": run.record.prompt, "at_most": estimate}
        facts["cost"] = cost if options["price"] else None
        if options["dry_run"]:
            shown = {
                "prompt": run.record.prompt,
                "questions": estimate["questions"],
                "answered_already": estimate["reused"],
                "input_tokens_about": estimate["input_tokens"],
                "output_tokens_at_most": estimate["output_tokens"],
                "cost_at_most": facts["cost"],
                "next": "the same command without --dry-run",
            }
            common.emit(facts, lambda: common.print_facts(shown))
            return None
        common.say(
            f"{estimate['questions']:,} questions to ask, about {estimate['input_tokens']:,} "
            f"tokens to read and at most {estimate['output_tokens']:,} to write"
            f"{f', at most {cost:,.2f}' if options['price'] else ''}; {run.reused:,} answers are "
            f"there already; prompt {run.record.prompt}"
        )
        started = time.monotonic()
        with common.progress("Answers") as advance:

            def watch() -> None:
                answered, total = len(run.answers.given), len(run.answers.cells())
                advance(answered, total, _details(run, total, time.monotonic() - started))

            try:
                ask(run, limits, trial=not options["no_trial"], watch=watch)
            except KeyboardInterrupt:
                common.say("What was answered is kept: the same command goes on")
                raise
    _say_what_failed(run)
    return run.answers


def _say_what_failed(run: Run) -> None:
    """Say what failed, per kind with a count and an example, and what was sent again."""
    for kind, n in run.failures.most_common():
        example = printable(run.examples[kind], 300)
        common.say(f"failed: {kind}, {n:,} questions; for example: {example}")
    if run.retries:
        common.say(f"{run.retries:,} requests were sent again")
    if run.stopped_by:
        common.say(
            f"Stopped by {run.stopped_by} after {len(run.answers.given):,} answers; the same "
            "command with a higher bound goes on"
        )


def _details(run: Run, total: int, seconds: float) -> str:
    """Say what a run has cost so far, and how long it may still take."""
    rate = (len(run.answers.given) - run.reused) / seconds
    left = (total - len(run.answers.given)) / rate if rate else 0.0
    return (
        f"{run.failures.total():,} failed, {run.input_tokens:,} tokens read, "
        f"{run.output_tokens:,} written, {60 * rate:,.1f} a minute, {left / 60:,.0f} minutes left"
    )


def _export(archive: Archive, **options: Any) -> None:
    """Write the questions without an answer as a batch file, and say what they come to."""
    from kernel_archive.llm.batch import export_lines, import_answers
    from kernel_archive.llm.questions import estimated_tokens

    split, repeats, model = options["split"], options["repeats"], options["model"]
    if model is None:
        raise UsageError("every request of a batch file names its model: --model NAME")
    questions = _questions(archive, options)
    answered: set[tuple[str, int]] = set()
    if options["import_paths"]:
        before = import_answers(options["import_paths"], archive, split)
        if before.questions.prompt != questions.prompt:
            raise UsageError(
                f"--import holds answers to {before.questions.prompt.name}, and this asks "
                f"{questions.prompt.name}"
            )
        answered = set(before.given)
    how = {"model": model, "repeats": repeats, "settings": _settings(options)}
    lines = list(export_lines(questions, **how, answered=answered))
    write_new(options["export_path"], b"".join(lines), force=options["force"])
    facts: dict[str, Any] = {
        "file": printable(options["export_path"], 5000),
        "prompt": questions.prompt.name,
        "split": split,
        "questions": len(lines),
        "rows": len(questions),
        "estimated_input_tokens": sum(
            estimated_tokens(question.text)
            for question in questions
            for repeat in range(repeats)
            if (question.row_id, repeat) not in answered
        ),
    }
    limit = f" --limit {options['limit']}" if options["limit"] else ""
    facts["next"] = f"kernel-archive forecast --import ANSWERS --split {split}{limit} -o FORECASTS"
    common.emit(facts)
