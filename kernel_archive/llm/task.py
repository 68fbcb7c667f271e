"""The task of Inspect: ``inspect eval kernel_archive/forecast``.

Rows are samples under their row ids, repeats are epochs, and the metrics are those of
``kernel-archive score`` on the whole split. Providers, concurrency, retries and logs are Inspect's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ResponseSchema
from inspect_ai.scorer import Metric, SampleScore, Scorer, Target, metric, scorer
from inspect_ai.scorer import Score as SampleResult
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolDef, ToolFunction, ToolParams
from inspect_ai.util import JSONSchema

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import UsageError, printable, suggestion
from kernel_archive.llm.answers import NoAnswer
from kernel_archive.llm.inspect_logs import answer_of
from kernel_archive.llm.prompts import ANSWER_FORMS, TOOL_NAME, AnswerForm, Prompt, answer_schema
from kernel_archive.llm.questions import load_questions
from kernel_archive.scoring import METRICS, check_forecasts, load_split, score
from kernel_archive.scoring.formats import read_line

__all__ = ["forecast"]

_cached_split = cache(load_split)


@task
def forecast(
    split: str = "eval",
    answer: AnswerForm = "json",
    archive: str | None = None,
    bins: str | None = None,
    *,
    defer: bool = False,
) -> Task:
    """Forecast every row of a split.

    Args:
        split: name of a split that is forecast.
        answer: form of the answer: json, tool or text.
        archive: directory of the archive; ``gpu-forecasters/kernels`` here when not given.
        bins: bin scheme to ask in; the split's own when not given.
        defer: whether the model may leave a row to a measurement.
    """
    if answer not in ANSWER_FORMS:
        raise UsageError(
            f"unknown form of answer {printable(answer)!r}. {suggestion(answer, ANSWER_FORMS)}"
        )
    questions = load_questions(
        open_archive(archive), split, answer=answer, scheme=bins, defer=defer
    )
    prompt, asked = questions.prompt, questions.asked
    name = asked.split.name
    loaded = _cached_split(archive, name, prompt.scheme)
    samples = [
        Sample(
            id=question.row_id,
            input=[ChatMessageUser(content=question.text)],
            target=str(loaded.bins[loaded.index[question.row_id]]),
            metadata={"problem": problem, "gpu": gpu, "question": question.digest},
        )
        for question, problem, gpu in zip(questions, asked.problems, asked.gpus, strict=True)
    ]
    identity = loaded.identity
    title = f"{identity.archive_name} {identity.archive_version} {name}"
    return Task(
        dataset=MemoryDataset(samples, name=title),
        solver=ask(prompt),
        scorer=forecasts(prompt),
        metrics=[scored(archive, name, prompt.scheme)],
        version=prompt.name,
        metadata={"prompt": prompt.name, "split": name, "split_digest": identity.split_digest},
    )


@solver
def ask(prompt: Prompt) -> Solver:
    """Ask once, for an answer in the prompt's form."""
    schema = answer_schema(prompt.ask)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        form = None
        if prompt.answer == "tool":
            state.tools = [_tool(schema)]
            state.tool_choice = ToolFunction(name=TOOL_NAME)
        elif prompt.answer == "json":
            json_schema = JSONSchema.model_validate(schema)
            form = ResponseSchema(name=TOOL_NAME, json_schema=json_schema, strict=True)
        return await generate(state, tool_calls="none", response_schema=form)

    return solve


def _tool(schema: dict[str, Any]) -> Any:
    """Make the tool that takes a forecast; its arguments are the answer, nobody calls it."""

    async def execute(**arguments: Any) -> str:
        raise NotImplementedError(arguments)  # Inspect ends at the call and never runs it

    parameters = ToolParams.model_validate(schema)
    return ToolDef(
        execute, name=TOOL_NAME, description="Give the forecast.", parameters=parameters
    ).as_tool()


@metric(scores="unreduced")
def scored(archive: str | None, split: str, scheme: str) -> Metric:
    """Compute every metric of ``kernel-archive score`` on the whole split, without intervals.

    As there, a row without an answer counts as uniform, and coverage says how many there are.
    """

    def compute(scores: list[SampleScore]) -> dict[str, str | int | float | bool | None]:
        loaded = _cached_split(archive, split, scheme)
        lines = [sample.score.metadata["line"] for sample in scores if sample.score.metadata]
        forecasts, report = check_forecasts(lines, loaded)
        if forecasts is None:
            return {"coverage": report.coverage, "parse_rate": report.parse_rate}
        record = score(loaded, forecasts, draws=0)
        means = {name: figure.mean for name, figure in record.metrics.items() if name in METRICS}
        return {
            **{name: mean for name, mean in means.items() if mean is not None},
            "coverage": forecasts.coverage,
            "parse_rate": forecasts.parse_rate,
            "deferral_rate": float(forecasts.deferred.mean()),
        }

    return compute


@scorer(metrics=[])
def forecasts(prompt: Prompt) -> Scorer:
    """Read an answer as ``kernel-archive forecast`` does; score whether its bin is the true one."""

    async def judge(state: TaskState, target: Target) -> SampleResult | None:
        answer = answer_of(state.output, str(state.sample_id), state.epoch - 1)
        if isinstance(answer, NoAnswer):  # an epoch without an answer has no score
            return None
        line = answer.line(prompt, state.metadata["question"])
        stated = read_line(line).probabilities
        best = "" if stated is None else str(1 + stated.index(max(stated)))
        return SampleResult(
            value=float(best == target.text),
            answer=best,
            explanation=line.get("rationale") or line.get("parse_error", ""),
            metadata={"line": line},
        )

    return judge
