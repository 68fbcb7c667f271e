"""The taskset: rows of an archive as the forecasters are asked about them.

Judged by the archive's own rewards.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import verifiers.v1 as vf

from kernel_archive import open_archive
from kernel_archive.llm.training import load_training_examples
from kernel_archive.scoring.completions import read_completion
from kernel_archive.scoring.rewards import KINDS, of_completions

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ForecastData",
    "ForecastTask",
    "ForecastTaskConfig",
    "KernelForecastsConfig",
    "KernelForecastsTaskset",
]


class ForecastData(vf.TaskData):
    """One row: what is asked, and its label, which the prompt does not hold."""

    bin: int
    speedup: float
    kind: str
    problem: str
    gpu: str


class ForecastTaskConfig(vf.TaskConfig):
    """How an answer is judged."""

    reward: Literal["correctness", "brier", "crps", "log"] = "crps"


class ForecastTask(vf.Task[ForecastData, vf.State, ForecastTaskConfig]):
    """One forecast. Every reward is logged; the one that was chosen counts."""

    @property
    def key(self) -> str:
        """The row id, which stays what it is between versions of the archive."""
        return str(self.data.id)

    @vf.reward(weight=1.0)
    async def forecast(self, trace: vf.Trace) -> float:
        """The chosen reward of the answer; 0 where it holds no forecast."""
        return of_completions([trace.last_reply], bins=[self.data.bin], kind=self.config.reward)[0]

    @vf.metric
    async def rewards(self, trace: vf.Trace) -> dict[str, float]:
        """Every reward, whether the answer could be read, and how sure it is."""
        read = read_completion(trace.last_reply).probabilities
        made = {
            f"reward_{kind}": of_completions([trace.last_reply], bins=[self.data.bin], kind=kind)[0]
            for kind in KINDS
        }
        return made | {
            "parsed": float(read is not None),
            "confidence": max(read) / sum(read) if read else 0.0,
        }

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Certainty of the true bin earns all there is, and certainty of any other one less."""
        del runtime
        sure = [
            json.dumps({"probabilities": [float(b == i) for b in range(1, 9)]}) for i in range(1, 9)
        ]
        earned = of_completions(sure, bins=[self.data.bin] * 8, kind=self.config.reward)
        most = 1.0 if self.config.reward in {"correctness", "log"} else 2.0
        return earned[self.data.bin - 1] == most and sorted(earned)[-2] < most


class KernelForecastsConfig(vf.TasksetConfig):
    """Which rows, and how they are asked about."""

    archive: str | None = None
    """Directory of the archive; ``gpu-forecasters/kernels`` here when not given."""
    split: str = "train"
    """``train``; a split that is there to be forecast only with ``held_out``."""
    held_out: bool = False
    """Give out held-out rows: to evaluate, never to learn from."""
    answer: Literal["json", "text"] = "json"
    """Form of the answer: a JSON object, or a text that ends with one."""
    kinds: tuple[Literal["seed", "parent_edit", "pair"], ...] = ("seed", "parent_edit", "pair")
    """Types of training pairs."""
    seed: int = 0
    """Of the order, in which bins take turns."""
    max_prompt_tokens: int | None = None
    """Leave out rows with longer prompts, at 2.5 characters a token; no program is ever cut."""
    task: ForecastTaskConfig = ForecastTaskConfig()


class KernelForecastsTaskset(vf.Taskset[ForecastTask, KernelForecastsConfig]):
    """The rows of one split."""

    def load(self) -> Iterator[ForecastTask]:
        """One task for each row, each prompt made when it is its turn."""
        c = self.config
        examples = load_training_examples(
            open_archive(c.archive),
            c.split,
            answer=c.answer,
            kinds=c.kinds,
            seed=c.seed,
            held_out=c.held_out,
        )
        if c.max_prompt_tokens is not None:
            examples = examples.fitting(c.max_prompt_tokens)
        for row in examples.rows:
            data = ForecastData(
                id=row.row_id,
                prompt=examples.text(row),
                bin=row.bin,
                speedup=row.speedup,
                kind=row.kind,
                problem=row.problem,
                gpu=row.gpu,
            )
            yield ForecastTask(data, c.task)
