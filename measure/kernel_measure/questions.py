"""Questions and proposals as files: a mutator that works outside the process.

A search asks for each program with a file ``questions/<id>.json`` in its run directory and takes
the answer from ``proposals/<id>.py``, or from ``proposals/<id>.json``: ``{"code": "..."}``, or
``{"failed": "why there is none"}``. Anything can answer: a person, a batch service, a language
model. A question says what a mutator may know and nothing else: the aim, the problem, the GPU, and
the parent with its verdict and times. An answer counts once; it is copied into the log before it is
measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.gpus import gpu_facts
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

AIM: Final = "As fast as possible, and correct."
#: Refuse an answer above this size, bytes: no program of the archive comes near it.
MAX_ANSWER: Final = 1 << 20


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """``proposals/<id>.json``: a program, or why there is none."""

    code: str | None = None
    failed: str | None = None


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
        for suffix in (".json", ".py"):
            path = self._directory / "proposals" / f"{question}{suffix}"
            if not path.is_file():
                continue
            try:
                if path.stat().st_size > MAX_ANSWER:
                    raise ValueError(f"larger than {MAX_ANSWER} bytes")  # noqa: TRY301 - one handler
                if suffix == ".py":
                    return _Answer(code=path.read_text("utf-8"))
                return msgspec.json.decode(path.read_bytes(), type=_Answer)
            except (OSError, ValueError, msgspec.DecodeError) as error:
                text, field = (
                    misfit(error) if isinstance(error, msgspec.MsgspecError) else (str(error), None)
                )
                raise DataError.of(
                    code="bad-proposal",
                    file=str(path),
                    field=field,
                    message=printable(text, 300),
                    fix='Write the program as text, or {"failed": "why there is none"}',
                ) from error
        return None
