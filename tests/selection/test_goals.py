"""What authors were told: a column of programs, and in nothing that is asked."""

import polars as pl
import pytest

from kernel_archive.archive.open import open_archive
from kernel_archive.llm.questions import load_questions
from kernel_archive.readers.attempts import batch_goals
from kernel_archive.schema import TABLES
from kernel_archive.scoring.load import load_split
from kernel_archive.scoring.template import template_lines
from kernel_archive.splits import FORECAST_SPLITS

GOALS = ("goal_bin", "aim")


@pytest.mark.parametrize(
    ("goals", "expected", "found"),
    [
        ([4], [[None], [1]], [4, 4]),
        ([1, 6], [[1, 1], [2], [6, 5]], [1, 1, 6]),
        # The second goal was dealt out and never written for; a goal comes back.
        ([2, 8, 3], [[2], [3]], [2, 3]),
        ([3, 8, 3], [[3], [8], [4]], [3, 8, 3]),
        ([1, 6], [[1], [None]], [None, None]),
        ([None], [[1]], [None]),
        ([1, 9], [[1], [8]], [None, None]),
        ([True], [[1]], [None]),
        ([1] * 9, [[1]], [None]),
    ],
)
def test_goals_of_batches_by_hand(goals, expected, found):
    """Batches meet the goals in their order, nearest to what the authors expect."""
    assert batch_goals(goals, expected) == found


def test_every_natural_program_has_its_goal(shipped):
    """3,426 programs and 3,451 evaluations; the goals order bins as the authors' own words do."""
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    kernels = archive.polars("kernels", columns=["search_id", "bin", *GOALS])
    natural = pl.col("search_id").str.starts_with("h200-lm-2026-11/")
    told = kernels.filter(pl.col("goal_bin").is_not_null())
    assert len(told) == len(kernels.filter(natural)) == told["aim"].count() == 3426
    assert set(told["goal_bin"]) == set(range(1, 9))
    assert archive.polars("evaluations", columns=["goal_bin"])["goal_bin"].count() == 3451
    assert told.select(pl.corr("goal_bin", "bin", method="spearman")).item() > 0.9


def test_no_goal_is_in_what_is_asked(shipped):
    """Neither split tables, questions, templates nor prompts have a goal or an aim."""
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    tables = [table.name for table in TABLES.values() if {*GOALS} & {*table.schema.names}]
    assert tables == ["kernels", "evaluations"]
    aims = archive.polars("kernels", columns=["aim"])["aim"].drop_nulls().unique().to_list()
    for name in FORECAST_SPLITS:
        if FORECAST_SPLITS[name].table not in archive.manifest.splits:
            continue
        template = b"".join(template_lines(load_split(archive, name)))
        assert b"goal" not in template
        questions = load_questions(archive, name)
        asked = questions.asked
        rows = zip(asked.anchors, asked.candidates, questions, strict=True)
        for anchor, candidate, question in list(rows)[:20]:
            prompt = question.text.replace(anchor.strip(), "").replace(candidate.strip(), "")
            assert not [text for text in (*aims, *GOALS) if text in prompt]
