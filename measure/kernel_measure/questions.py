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

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import msgspec

from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.gpus import gpu_facts
from kernel_archive.llm.prompts import Prompt, render
from kernel_archive.problems import get_problem
from kernel_archive.untrusted import misfit
from kernel_measure.logs import write_json
from kernel_measure.providers import NoProposal, Proposal
from kernel_measure.tasks import get_task

if TYPE_CHECKING:
    import random
    from collections.abc import Collection
    from pathlib import Path

    from kernel_measure.providers import Parent

T = TypeVar("T")
AIM: Final = "As fast as possible, and correct."
_FIXES: Final = {
    "proposals": 'Write the program as text, or {"failed": "why there is none"}',
    "forecasts": 'Write the answer to the prompt: {"expected_speedup": 1.3, ...}',
}
#: Refuse an answer above this size, bytes: no program of the archive comes near it.
MAX_ANSWER: Final = 1 << 20


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """``proposals/<id>.json``: a program, or why there is none."""

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
        reference = self._task.reference.replace("def reference(", "def custom_kernel(", 1)
        try:
            self._start = start.read_text("utf-8") if start else reference
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{start}: the program to start from cannot be read") from error

    def seed(self) -> Proposal:
        """The starting program."""
        return Proposal(self._start)

    def propose(
        self, question: str, parent: Parent, rng: random.Random, seen: Collection[str]
    ) -> Proposal | NoProposal | None:
        """Take the answer to a question; ask it where there is none yet.

        Raises:
            DataError: the answer is no program, with file and field.
        """
        del rng
        answer = self._read(question)
        if answer is None:
            path = self._directory / "questions" / f"{question}.json"
            if not path.exists():
                write_json(path, self._ask(question, parent))
            return None
        if answer.code is None:
            return NoProposal(answer.failed or "no program was proposed")
        if answer.code in seen:
            return NoProposal("the program was proposed before")
        return Proposal(answer.code)

    def forecast(self, question: str, code: str) -> dict[str, Any] | None:
        """Take the forecast of a proposal; ask for it where there is none yet.

        Raises:
            DataError: the answer is no forecast, with file and field.
        """
        path = self._directory / "forecasts" / f"{question}.json"
        if path.is_file():
            _decode(path, _Forecast)
            return dict(msgspec.json.decode(path.read_bytes()))
        prompt = self._directory / "prompts" / f"{question}.md"
        if not prompt.exists():
            prompt.parent.mkdir(exist_ok=True)
            text = render(
                Prompt(ask="forecast"),
                problem=self._task.name,
                gpu=self._gpu,
                anchor=self._task.reference,
                candidate=code,
            )
            prompt.write_text(text, "utf-8")
        return None

    def _ask(self, question: str, parent: Parent) -> dict[str, Any]:
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
                "speedup": parent.speedup,
                "cases": feedback.per_case_speedups if feedback else [],
            },
        }

    def _read(self, question: str) -> _Answer | None:
        """Read the answer to a question; ``None`` when there is none yet."""
        folder = self._directory / "proposals"
        if (folder / f"{question}.json").is_file():
            return _decode(folder / f"{question}.json", _Answer)
        if (folder / f"{question}.py").is_file():
            return _Answer(code=_decode(folder / f"{question}.py", str))
        return None


def _decode(path: Path, kind: type[T]) -> T:
    """Read an answer: text for ``str``, else JSON.

    Raises:
        DataError: it is not what was asked for, with file and field.
    """
    try:
        if path.stat().st_size > MAX_ANSWER:
            raise ValueError(f"larger than {MAX_ANSWER} bytes")  # noqa: TRY301 - one handler
        if kind is str:
            return cast("T", path.read_text("utf-8"))
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        text, field = (
            misfit(error) if isinstance(error, msgspec.MsgspecError) else (str(error), None)
        )
        raise DataError.of(
            code="bad-proposal",
            file=str(path),
            field=field,
            message=printable(text, 300),
            fix=_FIXES[path.parent.name],
        ) from error
