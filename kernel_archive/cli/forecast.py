"""The command ``forecast``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from click.core import ParameterSource

import kernel_archive
from kernel_archive.cli import common
from kernel_archive.errors import UsageError, printable
from kernel_archive.storage import check_new, write_new

if TYPE_CHECKING:
    from kernel_archive import Archive

#: Options that say how rows are asked, and how a model answers.
_ASKED: Final = ("answer", "scheme", "defer", "limit", "repeats")
_SAMPLED: Final = ("temperature", "max_tokens", "reasoning_effort", "seed")


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
@common.archive_options
def forecast(**options: Any) -> None:
    """Export questions to a language model, and make a forecast file of its answers.

    'inspect eval kernel_archive/forecast --model PROVIDER/MODEL' asks a service, and --from-log LOG
    -o FORECASTS converts its log.

    --model MODEL --export QUESTIONS writes a batch file, and --import ANSWERS -o FORECASTS reads
    what came back, or plain lines {"custom_id": ..., "answer": "..."}. How rows are asked is typed
    with --export alone. With --import type --model and its settings again: answers lack them.
    """
    export, log, paths = (options[n] for n in ("export_path", "log_path", "import_paths"))
    if bool(log) == bool(export or paths):
        raise UsageError(
            "give one of --export FILE (with --model), --import FILE and --from-log LOG. To ask a "
            "service, type: inspect eval kernel_archive/forecast --model PROVIDER/MODEL"
        )
    decided = () if export else (*_ASKED, *_SAMPLED) if log else _ASKED
    context, default = click.get_current_context(), ParameterSource.DEFAULT
    if typed := [name for name in decided if context.get_parameter_source(name) is not default]:
        flags = {option.name: option.opts[0] for option in forecast.params}
        named = ", ".join(flags[name] for name in typed)
        raise UsageError(f"answers and logs say this themselves: leave out {named}")
    archive = kernel_archive.open_archive(options["archive_path"])
    if export:
        _export(archive, options)
    elif options["output"] is None:
        raise UsageError("name the forecast file to write: -o FILE")
    else:
        _convert(archive, options)


def _convert(archive: Archive, options: dict[str, Any]) -> None:
    """Write the forecasts of answers, and say what is in the file."""
    from kernel_archive.llm.answers import import_answers
    from kernel_archive.llm.inspect_logs import from_log
    from kernel_archive.llm.questions import ModelSettings
    from kernel_archive.llm.run import ModelRun

    output, split, force = (options[n] for n in ("output", "split", "force"))
    check_new(output, force=force)
    if options["log_path"]:
        answers = from_log(options["log_path"], archive, split)
    else:
        answers = import_answers(options["import_paths"], archive, split)
        answers.settings = msgspec.convert(options, ModelSettings)
    answers.model = options["model"] or answers.model
    data, counts = answers.forecast_file()
    write_new(output, data, force=force)
    ModelRun.of(answers).save(output)
    facts = {"file": printable(output, 5000), "split": split}
    facts["next"] = common.next_command("check", output, split, options["archive_path"])
    fields = msgspec.structs.asdict(counts)
    common.emit(facts | {"counts": fields}, {**fields, **facts})


def _export(archive: Archive, options: dict[str, Any]) -> None:
    """Write the questions without an answer as a batch file, and say what they come to."""
    from kernel_archive.llm.answers import Answers, import_answers
    from kernel_archive.llm.questions import ModelSettings, export_lines, load_questions

    split, model, file = (options[n] for n in ("split", "model", "export_path"))
    if model is None:
        raise UsageError("every request of a batch file names its model: --model NAME")
    asked = {name: options[name] for name in ("answer", "scheme", "defer", "limit")}
    questions = load_questions(archive, split, **asked)
    answers = Answers(questions=questions, repeats=options["repeats"])
    if options["import_paths"]:
        earlier = import_answers(options["import_paths"], archive, split)
        if earlier.questions.prompt.digest != questions.prompt.digest:
            raise UsageError(
                f"the answers are to {earlier.questions.prompt.name}, and this export asks with "
                f"{questions.prompt.name}. Give --answer, --bins and --defer as for their export"
            )
        answers.answered = earlier.answered
    settings = msgspec.convert(options, ModelSettings)
    lines = list(export_lines(questions, answers.unanswered_keys(), model, settings))
    write_new(file, b"".join(lines), force=options["force"])
    numbers = msgspec.structs.asdict(settings)
    stated = {n.replace("_", "-"): str(v) for n, v in numbers.items() if v is not None}
    next_options = common.restated_options(options["archive_path"], split, model=model, **stated)
    common.emit(
        {
            "file": printable(file, 5000),
            "prompt": questions.prompt.name,
            "split": split,
            "questions": len(lines),
            "rows": len(questions),
            "estimated_input_tokens": answers.unanswered_tokens(),
            "without_a_reference": sum(not code.strip() for code in questions.asked.anchors),
            "next": f"kernel-archive forecast --import ANSWERS -o FORECASTS{next_options}",
        }
    )
