"""The tasks of Inspect: ``inspect eval kernel_archive/forecast --model MODEL``, also ``discovery`` and ``defer``.

Rows are samples under their row ids, repeats are epochs, and the metrics are those of ``kernel-archive score``. Providers,
concurrency, retries, logs and their viewer are Inspect's. Inspect finds this module by the package's entry point.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ResponseSchema
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolDef, ToolFunction, ToolParams
from inspect_ai.util import JSONSchema

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import UsageError, printable, suggestion
from kernel_archive.llm.answers import answered_of
from kernel_archive.llm.prompts import PROMPT_VERSION, TOOL_NAME, AnswerForm, Ask, Prompt, answer_schema, load_questions
from kernel_archive.scoring import METRICS, check_forecasts, load_target, score

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.bins import Scheme
    from kernel_archive.scoring import Target as Rows

__all__ = ["defer", "discovery", "forecast"]

#: Called after every answer, while somebody watches (``kernel_archive/llm/run.py``).
watchers: list[Callable[[], None]] = []


@task
def forecast(
    split: str = "eval",
    answer: AnswerForm = "tool",
    archive: str | None = None,
    bins: str | None = None,
    version: str = PROMPT_VERSION,
) -> Task:
    """Forecast every row of a split.

    Args:
        split: name of a split that is forecast.
        answer: form of the answer: tool, json or text.
        archive: directory of the archive; ``gpu-forecasters/kernels`` here when not given.
        bins: bin scheme to ask in; the split's own when not given.
        version: of the prompts.
    """
    return _task(split, answer, archive, bins, version, leave=False)


@task
def discovery(
    answer: AnswerForm = "tool", archive: str | None = None, bins: str | None = None, version: str = PROMPT_VERSION
) -> Task:
    """Forecast children against their parents; arguments as in :func:`forecast`."""
    return _task("discovery", answer, archive, bins, version, leave=False)


@task
def defer(
    split: str = "eval",
    answer: AnswerForm = "tool",
    archive: str | None = None,
    bins: str | None = None,
    version: str = PROMPT_VERSION,
) -> Task:
    """Forecast every row of a split, or leave it to a measurement; arguments as in :func:`forecast`."""
    return _task(split, answer, archive, bins, version, leave=True)


def _task(split: str, answer: AnswerForm, archive: str | None, bins: str | None, version: str, *, leave: bool) -> Task:
    if answer not in get_args(AnswerForm):
        raise UsageError(f"unknown form of answer {printable(answer)!r}. {suggestion(answer, get_args(AnswerForm))}")
    questions = load_questions(open_archive(archive), split, answer=answer, bins=bins, defer=leave, version=version)
    prompt, rows = questions.prompt, _rows(archive, split, questions.prompt.scheme)
    asked = questions.asked
    samples = [
        Sample(
            id=question.row_id,
            input=[ChatMessageUser(content=question.text)],
            target=str(rows.bins[rows.index[question.row_id]]),
            metadata={"problem": problem, "gpu": gpu},
        )
        for question, problem, gpu in zip(questions, asked.problems, asked.gpus, strict=True)
    ]
    name = asked.split.name
    return Task(
        dataset=MemoryDataset(samples, name=f"{rows.facts.archive_name} {rows.facts.archive_version} {name}"),
        solver=ask(prompt.ask, answer),
        scorer=forecasts(prompt.ask, answer, prompt.scheme, version),
        metrics=[scored(archive, name, prompt.scheme)],
        version=prompt.name,
        metadata={"prompt": prompt.name, "split": name, "split_digest": rows.facts.split_digest},
    )


@cache
def _rows(archive: str | None, split: str, scheme: str) -> Rows:
    return load_target(archive, split, scheme)


@solver
def ask(what: Ask, answer: AnswerForm) -> Solver:
    """Ask once, for an answer in that form."""
    schema = answer_schema(what)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        form = None
        if answer == "tool":
            state.tools = [_tool(schema)]
            state.tool_choice = ToolFunction(name=TOOL_NAME)
        elif answer == "json":
            form = ResponseSchema(name=TOOL_NAME, json_schema=JSONSchema.model_validate(schema), strict=True)
        state = await generate(state, tool_calls="none", response_schema=form)
        for told in watchers:
            told()
        return state

    return solve


def _tool(schema: dict[str, Any]) -> Any:
    """The tool that takes a forecast. Nobody calls it: its arguments are the answer."""

    async def execute(**arguments: Any) -> str:
        raise NotImplementedError(arguments)  # Inspect ends at the call and never runs it

    return ToolDef(
        execute, name=TOOL_NAME, description="Give the forecast.", parameters=ToolParams.model_validate(schema)
    ).as_tool()


@metric(scores="unreduced")
def scored(archive: str | None, split: str, scheme: str) -> Metric:
    """Every metric of ``kernel-archive score`` over the rows that were asked about, without intervals."""

    def compute(scores: list[SampleScore]) -> dict[str, str | int | float | bool | None]:
        rows = _rows(archive, split, scheme)
        lines = [sample.score.metadata["line"] for sample in scores if sample.score.metadata]
        asked = sorted({rows.index[line["row_id"]] for line in lines})
        if not asked:
            return {}
        import numpy as np

        part = rows.take(np.asarray(asked, dtype=np.intp))
        given, _ = check_forecasts(lines, part)
        if given is None:
            return {}
        record = score(part, given, draws=0)
        values = {name: figure.mean for name, figure in record.metrics.items() if name in METRICS}
        return {
            **{name: value for name, value in values.items() if value is not None},
            "coverage": given.coverage,
            "parse_rate": given.parse_rate,
            "deferral_rate": float(given.deferred.mean()),
        }

    return compute


@scorer(metrics=[])
def forecasts(what: Ask, answer: AnswerForm, scheme: Scheme, version: str) -> Scorer:
    """Reads an answer as ``kernel-archive forecast`` does, and says whether the most probable bin is the measured one."""
    prompt = Prompt(ask=what, answer=answer, scheme=scheme, version=version)

    async def judge(state: TaskState, target: Target) -> Score | None:
        got = answered_of(state.output, str(state.sample_id), state.epoch - 1)
        if isinstance(got, str):
            return None
        line = got.line(prompt)
        masses = line.get("probabilities")
        best = "" if masses is None else str(1 + masses.index(max(masses)))
        return Score(
            value=float(best == target.text),
            answer=best,
            explanation=line.get("rationale") or line.get("parse_error", ""),
            metadata={"line": line},
        )

    return judge
