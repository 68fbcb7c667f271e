"""Training examples for a language model: prompts of the forecasters, with labels.

They are the rows of ``train_pairs``. Rows of a held-out split are given out only on request, and
the record of what a model has seen says so (:meth:`TrainingExamples.record`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernel_archive.archive.open import Archive
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.bins import N_BINS, Scheme, assign_bins, checked_scheme
from kernel_archive.errors import DataError, UsageError, printable, suggestion
from kernel_archive.gpus import Gpu
from kernel_archive.ids import sha256_hex
from kernel_archive.llm.prompts import AnswerForm, Ask, Prompt, render_prompt
from kernel_archive.llm.questions import estimated_tokens
from kernel_archive.scoring.asked import ProgramPairs, load_asked_pairs
from kernel_archive.scoring.formats import TOOL_FIELDS
from kernel_archive.scoring.load import load_split
from kernel_archive.scoring.split import split_facts
from kernel_archive.splits import SplitSpec, split_of

if TYPE_CHECKING:
    import datasets

#: What a pair of each type is asked as; rows of a split that is forecast are asked as there.
_ASKED: Final[dict[str, Ask]] = {
    "seed": "forecast",
    "parent_edit": "discovery",
    "pair": "discovery",
}


class TrainingExample(NamedTuple):
    """One row to learn from."""

    row_id: str
    kind: str  # seed, parent_edit or pair
    problem: str
    gpu: str
    anchor: str  # the reference, or the other program
    candidate: str
    speedup: float  # anchor time / candidate time, x
    bin: int


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingExamples:
    """Rows to learn from, in the order in which a trainer shows them.

    Bins take turns, so that any first N rows hold as many of each bin as there are; within a bin a
    hash of row id and seed decides.
    """

    rows: tuple[TrainingExample, ...]
    prompts: dict[str, Prompt]  # type of pair -> how it is asked
    facts: dict[str, Any]  # where the rows are from
    stated_gpus: Mapping[str, Gpu]
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> rows left out

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, row: TrainingExample) -> str:
        """Write the whole prompt about a row, the same that a forecaster reads."""
        shown = (row.problem, row.gpu, row.anchor, row.candidate)
        return render_prompt(self.prompts[row.kind], *shown, stated_gpus=self.stated_gpus)

    def labelled_prompts(
        self, *, chat: bool = True, answer: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield what trainers take: ``prompt``, the labels ``bin`` and ``speedup``, and the row.

        Args:
            chat: prompts as lists of messages, else as texts.
            answer: add ``completion``, an answer to imitate (:func:`answer_text`).
        """
        for row in self.rows:
            line: dict[str, Any] = {"prompt": self.text(row)}
            if answer:
                line["completion"] = answer_text(row)
            if chat:
                roles = {"prompt": "user", "completion": "assistant"}
                line = {n: [{"role": roles[n], "content": text}] for n, text in line.items()}
            fields = ("bin", "speedup", "row_id", "kind", "problem", "gpu")
            yield line | {name: getattr(row, name) for name in fields}

    def dataset(self, *, chat: bool = True, answer: bool = False) -> datasets.Dataset:
        """Return them in memory, as TRL and verifiers take them."""
        import datasets

        return datasets.Dataset.from_list(list(self.labelled_prompts(chat=chat, answer=answer)))

    def fitting(
        self, tokens: int, count: Callable[[str], int] = estimated_tokens
    ) -> TrainingExamples:
        """Keep the rows whose prompt has at most this many tokens; no program is ever cut.

        ``count`` counts the tokens of a text; without it they are estimated, rather too many.
        ``dropped`` counts what was left out.
        """
        kept = tuple(row for row in self.rows if count(self.text(row)) <= tokens)
        reason = f"prompt of more than {tokens:,} tokens"
        dropped = {**self.dropped, reason: len(self.rows) - len(kept)}
        return replace(self, rows=kept, dropped=dropped)

    def record(self) -> dict[str, Any]:
        """Return what a model has seen."""
        bins = Counter(row.bin for row in self.rows)
        return self.facts | {"rows": len(self), "bins": [bins[b] for b in range(1, N_BINS + 1)]}


def load_training_examples(
    archive: Archive,
    split: str = "train",
    *,
    answer: AnswerForm = "json",
    kinds: Collection[str] = ("seed", "parent_edit", "pair"),
    seed: int = 0,
    held_out: bool = False,
) -> TrainingExamples:
    """Load rows to learn from.

    ``split`` is ``train``, or with ``held_out`` a split that is forecast: the record of what a
    model has seen then says so. ``kinds`` are types of training pairs.

    Raises:
        UsageError: the split is held out and ``held_out`` is not set, or a kind is not known.
        DataError: the archive has no such rows.
    """
    spec = split_of(split)
    if spec.asks_outcome:
        raise UsageError(f"{spec.name} asks about programs that fail, of which no example is made")
    if spec.kind != "train" and not held_out:
        raise UsageError(
            f"{spec.name} is held out: a model that learns from it can't be judged by it. Learn "
            "from 'train', or say held_out=True, which marks the model's entry"
        )
    if unknown := sorted(set(kinds) - set(_ASKED)):
        kind = unknown[0]
        raise UsageError(f"unknown type of pair {printable(kind)!r}. {suggestion(kind, _ASKED)}")
    scheme = checked_scheme(split_facts(archive, spec).scheme)
    # A split that is forecast has one type of pair, which ``kinds`` does not choose.
    rows = [
        row for row in _rows(archive, spec, scheme) if spec.kind != "train" or row.kind in kinds
    ]
    if not rows:
        listed = ", ".join(sorted(kinds))
        raise DataError(f"the archive in {archive.path} has no {spec.rows} of type {listed}")
    # Bins take turns: first the first row of each, then the second.
    rows.sort(key=lambda row: sha256_hex(f"learn:{seed}:{row.row_id}".encode()))
    taken: Counter[int] = Counter()  # bin -> rows of it so far
    turns: dict[str, int] = {}  # row id -> rows of its bin before it
    for row in rows:
        turns[row.row_id] = taken[row.bin]
        taken[row.bin] += 1
    rows.sort(key=lambda row: turns[row.row_id])
    return TrainingExamples(
        rows=tuple(rows),
        prompts={kind: Prompt(ask=a, answer=answer, scheme=scheme) for kind, a in _ASKED.items()},
        facts={
            "archive": archive.manifest.name,
            "version": archive.manifest.version,
            "digest": archive.manifest.logical_digest,
            "split": spec.name,
            "held_out": spec.kind != "train",
            "kinds": sorted({row.kind for row in rows}),
            "seed": seed,
        },
        stated_gpus=archive.stated_gpus,
    )


def _rows(archive: Archive, spec: SplitSpec, scheme: Scheme) -> list[TrainingExample]:
    """Read the rows of a split with their labels."""
    pairs: ProgramPairs
    if spec.kind == "train":
        pairs = training = load_training_pairs(archive)
        speedups, kinds = training.speedups, training.pair_types
    else:
        pairs, labelled = load_asked_pairs(archive, spec.name), load_split(archive, spec.name)
        speedups = labelled.speedups[[labelled.index[row_id] for row_id in pairs.row_ids]]
        kinds = (spec.pair_type,) * len(pairs)
    bins = assign_bins(speedups, scheme, row_ids=pairs.row_ids)
    texts = (pairs.row_ids, kinds, pairs.problems, pairs.gpus, pairs.anchors, pairs.candidates)
    columns = (*texts, speedups.tolist(), bins.tolist())
    return [TrainingExample(*row) for row in zip(*columns, strict=True)]


def answer_text(row: TrainingExample) -> str:
    """Write an answer to a row in the form that prompts ask for, as an example to imitate.

    The distribution falls off from the true bin by a constant factor per bin, which a hash of the
    row id draws from 0.15 to 0.75. So imitating it teaches form and place, and no fixed confidence.
    """
    draw = int(sha256_hex(f"answer:{row.row_id}".encode())[:8], 16) / 2**32
    weights = [(0.15 + 0.6 * draw) ** abs(b - row.bin) for b in range(1, N_BINS + 1)]
    hundredths = [round(100 * weight / sum(weights)) for weight in weights]
    hundredths[row.bin - 1] += 100 - sum(hundredths)
    fields: dict[str, Any] = {"rationale": ""}
    fields |= {name: h / 100 for name, h in zip(TOOL_FIELDS, hundredths, strict=True)}
    fields |= {"predicted_bin": row.bin, "expected_speedup": float(f"{row.speedup:.2g}")}
    return json.dumps(fields)
