"""Questions and proposals as files: a mutator that works outside the process.

A search asks for each program with a file ``questions/<id>.json`` in its run directory and takes
the answer from ``proposals/<id>.py``, or from ``proposals/<id>.json``: ``{"code": "..."}``, or
``{"failed": "why there is none"}``. Anything can answer: a person, a batch service, a language
model. A question says what a mutator may know and nothing else: the aim, the problem, the GPU, and
the parent with its verdict and times. An answer counts once; it is copied into the log before it is
measured.

Where a plan has more programs proposed than measured, a forecaster chooses: each proposal is asked
about in ``prompts/<id>.md``, the same text that a forecast of the archive's rows is asked with, and
``forecasts/<id>.json`` holds the answer, of which ``expected_speedup`` counts.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from kernel_archive.errors import UsageError
from kernel_archive.gpus import gpu_facts
from kernel_archive.llm.prompts import Prompt, render_prompt
from kernel_archive.problems import get_problem
from kernel_archive.storage import write_atomically
from kernel_measure.logs import read_given, write_json
from kernel_measure.strategies import SearchNode
from kernel_measure.tasks import get_task

T = TypeVar("T")
AIM: Final = "As fast as possible, and correct."
_FIXES: Final = {
    "proposals": 'Write the program as text, or {"failed": "why there is none"}',
    "forecasts": 'Write the answer to the prompt: {"expected_speedup": 1.3, ...}',
}


class Proposal(msgspec.Struct, forbid_unknown_fields=True):
    """A program, or why there is none; also what ``proposals/<id>.json`` holds."""

    code: str | None = None
    failed: str | None = None


class _Forecast(msgspec.Struct):
    """``forecasts/<id>.json``: the answer to a prompt, with this field at least."""

    expected_speedup: Annotated[float, msgspec.Meta(gt=0)]


class FileProvider:
    """Asks by files in ``directory`` and takes programs from there.

    The search starts from the program in the file ``start``, or from the task's reference.

    Raises:
        UsageError: there is no such file.
    """

    def __init__(self, directory: Path, task: str, gpu: str, start: Path | None) -> None:
        self._directory, self._task, self._gpu = directory, get_task(task), gpu
        try:
            self.start = start.read_text("utf-8") if start else self._task.reference_program
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{start}: the program to start from cannot be read") from error

    def propose(self, question: str, parent: SearchNode, seen: Collection[str]) -> Proposal | None:
        """Take the answer to a question; ask it where there is none yet.

        Raises:
            DataError: the answer is no program, with file and field.
        """
        proposals = self._directory / "proposals"
        answer, program = proposals / f"{question}.json", proposals / f"{question}.py"
        if answer.is_file():
            proposal = _read(answer, Proposal)
        elif program.is_file():
            proposal = Proposal(code=_read(program, str))
        else:
            path = self._directory / "questions" / f"{question}.json"
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                write_json(path, self._ask(question, parent))
            return None
        again = Proposal(failed="the program was proposed before")
        return again if proposal.code in seen else proposal

    def forecast(self, question: str, code: str) -> dict[str, Any] | None:
        """Take the forecast of a proposal; ask for it where there is none yet.

        Raises:
            DataError: the answer is no forecast, with file and field.
        """
        path = self._directory / "forecasts" / f"{question}.json"
        if path.is_file():
            _read(path, _Forecast)
            return dict(msgspec.json.decode(path.read_bytes()))
        prompt = self._directory / "prompts" / f"{question}.md"
        if not prompt.exists():
            prompt.parent.mkdir(exist_ok=True)
            text = render_prompt(
                Prompt(ask="forecast"),
                problem=self._task.name,
                gpu=self._gpu,
                anchor=self._task.reference,
                candidate=code,
            )
            write_atomically(prompt, text.encode())
        return None

    def _ask(self, question: str, parent: SearchNode) -> dict[str, Any]:
        """Write a question: all that a mutator may know."""
        problem, feedback = get_problem(self._task.name), parent.feedback
        return {
            "question": question,
            "aim": AIM,
            "problem": {
                "name": self._task.name,
                "title": problem.title,
                "inputs": problem.inputs,
                "outputs": self._task.outputs,
                "cases": self._task.benchmark_cases,
                "tolerance": {"rtol": self._task.rtol, "atol": self._task.atol}
                | self._task.describe_checks(),
                "reference": self._task.reference,
            },
            "gpu": {"name": self._gpu, **msgspec.to_builtins(gpu_facts(self._gpu))},
            "parent": {
                "code": parent.code,
                "verdict": feedback.kind if feedback else None,
                "speedup": feedback.aggregated_speedup if feedback else None,
                "cases": feedback.per_case_speedups if feedback else [],
            },
        }


def _read(path: Path, kind: type[T]) -> T:
    return read_given(path, kind, code="bad-proposal", fix=_FIXES[path.parent.name])
