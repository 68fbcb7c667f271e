"""The command ``forecast``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

import kernel_archive
from kernel_archive.cli import common
from kernel_archive.errors import UsageError, counted, printable
from kernel_archive.storage import check_new, write_new

if TYPE_CHECKING:
    from kernel_archive import Archive
    from kernel_archive.llm.answers import Answers
    from kernel_archive.llm.questions import Questions


@click.command()
@common.split_option
@common.bins_option
@common.option("--defer", is_flag=True, help="Let the model leave candidates to a measurement.")
@common.option(
    "--answer",
    type=common.Choice(["json", "tool", "text"]),
    default="json",
    help="Form of the answer.",
)
@common.option(
    "--limit", type=common.FROM_1, help="Rows to ask about, chosen by a hash of their ids."
)
@common.option(
    "--repeats", type=click.IntRange(1, 100), default=1, help="How often each row is asked."
)
@common.option("--model", help="The model, as its service calls it.")
@common.option("--temperature", type=click.FloatRange(min=0), help="Of the sampling.")
@common.option("--max-tokens", type=common.FROM_1, help="Of an answer, reasoning included.")
@common.option("--reasoning-effort", help="Of models that have one: low, medium, high.")
@common.option("--seed", type=int, help="Of the sampling, where the service has one.")
@common.option(
    "--url",
    envvar="OPENAI_BASE_URL",
    help="Address of the service.  [default: $OPENAI_BASE_URL]",
)
@common.option("--key-env", default="OPENAI_API_KEY", help="Variable that holds the service's key.")
@common.option("--connections", type=common.FROM_1, default=8, help="Requests at one time.")
@common.option(
    "--max-retries", type=common.FROM_0, default=3, help="Further attempts per question."
)
@common.option("--timeout", type=common.FROM_1, default=600, help="Seconds of one attempt.")
@common.option("--price", type=(float, float), metavar="IN OUT", help="Price of a million tokens.")
@common.option("--max-tokens-total", type=common.FROM_1, help="Tokens to spend at most.")
@common.option("--max-cost", type=click.FloatRange(min=0), help="Money to spend at most.")
@common.option("--dry-run", is_flag=True, help="Show what it would cost, and ask nothing.")
@common.option("--no-trial", is_flag=True, help="Ask on where answers hold no forecast.")
@common.option("--name-host", is_flag=True, help="Record the service's host name.")
@common.option("--export", "export_path", type=common.FILE, help="Batch file to write.")
@common.option(
    "--import",
    "import_paths",
    type=click.Path(),
    multiple=True,
    help="Answers to read; with --export: answers to leave out.",
)
@common.option("--from-log", "log_path", help="Log of the Inspect task to convert.")
@common.option("-o", "--output", type=common.FILE, help="Forecast file to write.")
@common.force_option
@common.archive_option
@common.json_option
def forecast(**options: Any) -> None:
    """Ask a language model for forecasts, or convert its answers.

    --url URL --model MODEL -o FORECASTS asks a service that speaks the OpenAI protocol. The first
    question is a trial. A run that was stopped, or asks for more rows or repeats, goes on with the
    same command; answers are paid for once.

    --model MODEL --export QUESTIONS writes a batch file, and --import ANSWERS -o FORECASTS reads
    what came back, or plain lines {"custom_id": ..., "answer": "..."}.

    --from-log LOG -o FORECASTS converts a log of 'inspect eval kernel_archive/forecast', which
    knows many more providers.
    """
    model, export, log, paths, output = (
        options[n] for n in ("model", "export_path", "log_path", "import_paths", "output")
    )
    if (export and log) or not (model or export or paths or log):
        raise UsageError(
            "give one of --model MODEL (with --url), --export FILE (with --model), --import FILE "
            "and --from-log LOG"
        )
    archive = kernel_archive.open_archive(options["archive_path"])
    if export:
        _export(archive, options)
    elif output is None:
        raise UsageError("name the forecast file to write: -o FILE")
    elif paths or log:
        _convert(archive, options)
    else:
        _ask(archive, options)


def _questions(archive: Archive, options: dict[str, Any]) -> Questions:
    from kernel_archive.llm.questions import load_questions

    settings = {name: options[name] for name in ("answer", "bins", "defer", "limit")}
    return load_questions(archive, options["split"], **settings)


def _ask(archive: Archive, options: dict[str, Any]) -> None:
    """Ask the model, and write its forecasts."""
    from kernel_archive.llm.questions import ModelSettings
    from kernel_archive.llm.run import Limits, Run, answers_path
    from kernel_archive.llm.service import Service

    if not options["url"]:
        raise UsageError(
            "name the service: --url http://HOST/v1 (or OPENAI_BASE_URL). Providers of Inspect "
            "are asked with: inspect eval kernel_archive/forecast --model PROVIDER/NAME"
        )
    # Each takes the options that are called as its fields are.
    key = os.environ.get(options["key_env"]) or None
    service, limits = (
        msgspec.convert({**options, "key": key}, Service),
        msgspec.convert(options, Limits),
    )
    run = Run(
        archive=archive,
        questions=_questions(archive, options),
        service=service,
        output=options["output"],
        settings=msgspec.convert(options, ModelSettings),
        limits=limits,
        repeats=options["repeats"],
    )
    if not answers_path(run.output).exists():
        check_new(run.output, force=options["force"])
    with run.locked():
        run.load()
        estimate, prompt = run.estimate(), run.questions.prompt.name
        cost = limits.cost(estimate["input_tokens"], estimate["output_tokens"])
        if options["dry_run"]:
            common.emit({"prompt": prompt, "at_most": estimate, "cost": cost})
            return
        common.say(
            f"{counted(estimate['questions'], 'question')} to ask, about "
            f"{estimate['input_tokens']:,} tokens to read and at most "
            f"{estimate['output_tokens']:,} to write"
            f"{'' if cost is None else f', at most {cost:,.2f}'}; answers there already: "
            f"{run.reused:,}; prompt {prompt}"
        )
        try:
            with common.progress("Answers") as advance:
                run.ask(advance, trial=not options["no_trial"])
        except KeyboardInterrupt:
            common.say("What was answered is kept: the same command goes on")
            raise
        finally:
            n_failed = sum(map(len, run.failures.values()))
            if run.answers.answered or n_failed != 1:  # else the error says it all
                for remark in run.remarks():
                    common.say(remark)
    # The file is made anew every time from the answers that stand beside it.
    _write(run.answers, options | {"force": True})


def _convert(archive: Archive, options: dict[str, Any]) -> None:
    """Write the forecasts of answers that another program got."""
    from kernel_archive.llm.answers import import_answers
    from kernel_archive.llm.inspect_logs import from_log
    from kernel_archive.llm.run import ModelRun, answers_path

    output, split, model = options["output"], options["split"], options["model"] or ""
    if answers_path(output).exists():
        kept = printable(str(answers_path(output)), 5000)
        raise UsageError(f"{kept} belongs to a run that asked: give another -o")
    check_new(output, force=options["force"])
    if options["log_path"]:
        answers = from_log(options["log_path"], archive, split)
    else:
        answers = import_answers(options["import_paths"], archive, split, limit=options["limit"])
    _write(answers, options)
    ModelRun.of(archive, answers, model=model).save(output)


def _write(answers: Answers, options: dict[str, Any]) -> None:
    """Write the forecast file, and say what is in it."""
    from kernel_archive.llm.run import Limits

    data, counts = answers.forecast_file()
    write_new(options["output"], data, force=options["force"])
    file, split = printable(options["output"], 5000), answers.questions.asked.split.name
    cost = Limits(price=options["price"]).cost(counts.input_tokens, counts.output_tokens)
    facts = {"file": file, "split": split, "cost": cost}
    next_options = common.named_again(split, options["archive_path"])
    facts["next"] = f"kernel-archive check {common.argument(options['output'])}{next_options}"
    fields = msgspec.structs.asdict(counts)
    common.emit(facts | {"counts": fields}, {**fields, **facts})


def _export(archive: Archive, options: dict[str, Any]) -> None:
    """Write the questions without an answer as a batch file, and say what they come to."""
    from kernel_archive.llm.answers import Answers, import_answers
    from kernel_archive.llm.questions import ModelSettings, export_lines

    split, model, file = (options[n] for n in ("split", "model", "export_path"))
    if model is None:
        raise UsageError("every request of a batch file names its model: --model NAME")
    questions = _questions(archive, options)
    answers = Answers(questions=questions, repeats=options["repeats"])
    if options["import_paths"]:
        imported = import_answers(options["import_paths"], archive, split)
        if imported.questions.prompt != questions.prompt:
            raise UsageError(
                f"--import holds answers to {imported.questions.prompt.name}, and this asks "
                f"{questions.prompt.name}"
            )
        answers.answered = imported.answered
    settings = msgspec.convert(options, ModelSettings)
    lines = list(export_lines(questions, answers.open_cells(), model, settings))
    write_new(file, b"".join(lines), force=options["force"])
    stated = {"model": model, "limit": options["limit"]}
    next_options = common.named_again(split, options["archive_path"], **stated)
    common.emit(
        {
            "file": printable(file, 5000),
            "prompt": questions.prompt.name,
            "split": split,
            "questions": len(lines),
            "rows": len(questions),
            "estimated_input_tokens": answers.open_tokens(),
            "without_a_reference": sum(not code.strip() for code in questions.asked.anchors),
            "next": f"kernel-archive forecast --import ANSWERS -o FORECASTS{next_options}",
        }
    )
