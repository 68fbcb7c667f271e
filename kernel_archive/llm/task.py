"""The task of Inspect: ``inspect eval kernel_archive/forecast``.

Rows are samples under their row ids, repeats are epochs. Providers, concurrency, retries and logs
are Inspect's. Scores are not: there is one scorer, ``kernel-archive score``, for the forecast file
that ``kernel-archive forecast --from-log`` makes of a log. So no label gets into a log either.
"""

from __future__ import annotations

from typing import Literal

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ResponseSchema
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import JSONSchema

from kernel_archive.archive.open import open_archive
from kernel_archive.llm.prompts import TOOL_NAME, Prompt, answer_schema
from kernel_archive.llm.questions import load_questions

__all__ = ["forecast"]


@task
def forecast(
    split: str = "eval",
    answer: Literal["json", "text"] = "json",
    archive: str | None = None,
    *,
    defer: bool = False,
) -> Task:
    """Ask about every row of a split.

    Args:
        split: name of a split that is forecast.
        answer: form of the answer: json or text.
        archive: directory of the archive; ``gpu-forecasters/kernels`` here when not given.
        defer: whether the model may leave a row to a measurement.
    """
    opened = open_archive(archive)
    questions = load_questions(opened, split, answer=answer, defer=defer)
    name, prompt = questions.asked.split.name, questions.prompt
    samples = [
        Sample(id=question.row_id, input=[ChatMessageUser(content=question.text)])
        for question in questions
    ]
    title = f"{opened.manifest.name} {opened.manifest.version} {name}"
    return Task(
        dataset=MemoryDataset(samples, name=title),
        solver=ask(prompt),
        version=prompt.name,
        metadata={"prompt": prompt.name, "split": name},
    )


@solver
def ask(prompt: Prompt) -> Solver:
    """Ask once, for an answer in the prompt's form."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        form = None
        if prompt.answer == "json":
            schema = JSONSchema.model_validate(answer_schema(prompt.ask))
            form = ResponseSchema(name=TOOL_NAME, json_schema=schema, strict=True)
        return await generate(state, response_schema=form)

    return solve
