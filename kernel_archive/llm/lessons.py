"""What a language model learns from: rows with their labels, asked as a forecaster is asked, in an order that never changes.

Rows of ``train_pairs`` by default. Rows that a board asks about are given out only to who says so, and what comes of
them says so, too (:meth:`Lessons.record`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.bins import N_BINS, assign_bins
from kernel_archive.bins import scheme as scheme_of
from kernel_archive.errors import DataError, UsageError, printable, suggestion
from kernel_archive.forecasters.pairs import load_asked_pairs, load_training_pairs
from kernel_archive.llm.prompts import CHARACTERS_PER_TOKEN, Prompt, render
from kernel_archive.scoring.formats import TOOL_FIELDS
from kernel_archive.scoring.load import load_target
from kernel_archive.scoring.target import split_facts
from kernel_archive.splits import split_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import datasets

    from kernel_archive.archive.open import Archive
    from kernel_archive.forecasters.pairs import AskedPairs, TrainingPairs
    from kernel_archive.gpus import Gpu
    from kernel_archive.llm.prompts import AnswerForm, Ask
    from kernel_archive.splits import Split

#: What a pair of each type is asked as; rows of a split that is forecast are asked as there.
_ASKED: Final[dict[str, Ask]] = {"seed": "forecast", "parent_edit": "discovery", "pair": "discovery"}


@dataclass(frozen=True)
class Lesson:
    """One row to learn from, of the kind ``seed``, ``parent_edit`` or ``pair``.

    Attributes:
        anchor: the reference, or the other program.
        candidate: the program that is asked about.
        speedup: anchor time / candidate time, x.
    """

    row_id: str
    kind: str
    problem: str
    gpu: str
    anchor: str
    candidate: str
    speedup: float
    bin: int


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """Rows to learn from, in the order in which they are to be shown.

    Attributes:
        rows: the rows. Bins take turns, so that of any first N as many are of each bin as there are; within a bin a
            hash of row id and seed decides.
        prompts: type of pair -> how it is asked.
        facts: where the rows are from, for :meth:`record`.
        stated_gpus: facts of GPUs that this package does not know.
    """

    rows: tuple[Lesson, ...]
    prompts: dict[str, Prompt]
    facts: dict[str, Any]
    stated_gpus: Mapping[str, Gpu] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, row: Lesson) -> str:
        """The prompt about a row, whole: the same that a forecaster reads."""
        return render(
            self.prompts[row.kind],
            problem=row.problem,
            gpu=row.gpu,
            anchor=row.anchor,
            candidate=row.candidate,
            stated_gpus=self.stated_gpus,
        )

    def examples(self, *, chat: bool = True, answer: bool = False) -> Iterator[dict[str, Any]]:
        """What trainers take: ``prompt``, the labels ``bin`` and ``speedup``, and what the row is.

        Args:
            chat: prompts as lists of messages, else as texts.
            answer: add ``completion``, an answer to imitate (:func:`answer_text`), for a supervised start.
        """
        for row in self.rows:
            made = {"prompt": self.text(row)} | ({"completion": answer_text(row)} if answer else {})
            told = {"prompt": "user", "completion": "assistant"}
            texts = {k: [{"role": told[k], "content": v}] for k, v in made.items()} if chat else made
            yield {
                **texts, "bin": row.bin, "speedup": row.speedup,
                "row_id": row.row_id, "kind": row.kind, "problem": row.problem, "gpu": row.gpu,
            }  # fmt: skip

    def dataset(self, *, chat: bool = True, answer: bool = False) -> datasets.Dataset:
        """The examples in memory."""
        import datasets

        return datasets.Dataset.from_list(list(self.examples(chat=chat, answer=answer)))

    def stream(self, *, chat: bool = True, answer: bool = False) -> datasets.IterableDataset:
        """The examples one by one, each prompt made when it is its turn."""
        import datasets

        return datasets.IterableDataset.from_generator(self.examples, gen_kwargs={"chat": chat, "answer": answer})

    def fitting(self, tokens: int, count: Callable[[str], int] | None = None) -> tuple[Lessons, tuple[str, ...]]:
        """The rows whose prompt comes to at most so many tokens, and the ids of the others. No program is ever cut.

        Args:
            tokens: the most that a prompt may have.
            count: tokens of a text; by default an estimate that errs upwards, 2.5 characters a token.
        """
        count = count or (lambda text: round(len(text) / CHARACTERS_PER_TOKEN + 0.5))
        kept = tuple(row for row in self.rows if count(self.text(row)) <= tokens)
        ids = {row.row_id for row in kept}
        return replace(self, rows=kept), tuple(row.row_id for row in self.rows if row.row_id not in ids)

    def record(self) -> dict[str, Any]:
        """What a model that learns from these rows has seen, for ``leaderboard add --training``."""
        bins = Counter(row.bin for row in self.rows)
        return self.facts | {"rows": len(self), "bins": [bins[b] for b in range(1, N_BINS + 1)]}


def load_lessons(
    archive: Archive,
    split: str = "train",
    *,
    answer: AnswerForm = "json",
    kinds: Collection[str] = ("seed", "parent_edit", "pair"),
    seed: int = 0,
    held_out: bool = False,
) -> Lessons:
    """Rows to learn from.

    Args:
        archive: an opened archive.
        split: ``train``; another split only with ``held_out``.
        answer: form of the answer that the prompts ask for.
        kinds: types of training pairs: ``seed``, ``parent_edit``, ``pair``.
        seed: of the order.
        held_out: take rows that are there to be forecast. The record says so, and so does the entry of what learnt
            from them.

    Raises:
        UsageError: the split is held out and ``held_out`` is not set, or a kind is not known.
        DataError: the archive has no such rows.
    """
    spec = split_of(split)
    if spec.kind != "train" and not held_out:
        raise UsageError(
            f"{spec.name} is held out: a model that has learnt from it can't be judged by it. Learn from 'train', or "
            "say held_out=True, which marks the model's entry"
        )
    wrong = sorted(set(kinds) - set(_ASKED))
    if wrong:
        raise UsageError(f"unknown type of pair {printable(wrong[0])!r}. {suggestion(wrong[0], _ASKED)}")
    made = [row for row in _rows(archive, spec) if spec.kind != "train" or row.kind in kinds]
    if not made:
        raise DataError(f"the archive in {archive.path} has no {spec.rows} of type {', '.join(sorted(kinds))}")
    hashes = {row.row_id: hashlib.sha256(f"learn:{seed}:{row.row_id}".encode()).digest() for row in made}
    turns: Counter[int] = Counter()
    placed: list[tuple[int, bytes, Lesson]] = []
    for row in sorted(made, key=lambda row: hashes[row.row_id]):
        placed.append((turns[row.bin], hashes[row.row_id], row))
        turns[row.bin] += 1
    facts = {
        "archive": archive.manifest.name,
        "version": archive.manifest.version,
        "digest": archive.manifest.logical_digest,
        "split": spec.name,
        "held_out": spec.kind != "train",
        "kinds": sorted({row.kind for row in made}),
        "seed": seed,
    }
    scheme = split_facts(archive, spec).scheme
    prompts = {kind: Prompt(ask=ask, answer=answer, scheme=scheme_of(scheme).name) for kind, ask in _ASKED.items()}
    return Lessons(
        rows=tuple(row for *_, row in sorted(placed, key=lambda p: p[:2])),
        prompts=prompts,
        facts=facts,
        stated_gpus=archive.stated_gpus,
    )


def _rows(archive: Archive, spec: Split) -> list[Lesson]:
    pairs: TrainingPairs | AskedPairs
    if spec.kind == "train":
        pairs = load_training_pairs(archive)
        speedups, kinds = pairs.speedups, pairs.kinds
    else:
        pairs = load_asked_pairs(archive, spec.name)
        target = load_target(archive, spec.name)
        speedups = target.speedups[[target.index[row_id] for row_id in pairs.row_ids]]
        kinds = (spec.pair_type,) * len(pairs)
    bins = assign_bins(speedups, scheme_of(split_facts(archive, spec).scheme).name, row_ids=pairs.row_ids)
    columns = (pairs.row_ids, kinds, pairs.problems, pairs.gpus, pairs.anchors, pairs.candidates)
    return [
        Lesson(row_id, kind, problem, gpu, anchor, candidate, float(speedup), int(label))
        for row_id, kind, problem, gpu, anchor, candidate, speedup, label in zip(*columns, speedups, bins, strict=True)
    ]


def answer_text(row: Lesson) -> str:
    """An answer to a row in the form that prompts ask for, as an example to imitate.

    The distribution falls off from the true bin by the same factor a bin, which a hash of the row id draws from 0.15 to
    0.75: who imitates it learns the form and where the mass belongs, and is sure of itself by no fixed amount.
    """
    draw = int.from_bytes(hashlib.sha256(f"answer:{row.row_id}".encode()).digest()[:4], "big") / 2**32
    masses = [(0.15 + 0.6 * draw) ** abs(b - row.bin) for b in range(1, N_BINS + 1)]
    hundredths = [round(100 * mass / sum(masses)) for mass in masses]
    hundredths[row.bin - 1] += 100 - sum(hundredths)
    numbers = {name: h / 100 for name, h in zip(TOOL_FIELDS, hundredths, strict=True)}
    fields = {"rationale": "", **numbers, "predicted_bin": row.bin, "expected_speedup": float(f"{row.speedup:.2g}")}
    return json.dumps(fields)
