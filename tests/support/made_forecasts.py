"""Random splits, and forecasts that know them up to noise."""

import numpy as np

from kernel_archive.scoring import Forecasts, Split

CENTRES = np.array([-2.25, -1.5, -0.75, -0.25, 0.25, 0.75, 1.5, 2.25])


def make_split(rng, sizes=(12, 7, 9), split="eval"):
    """A split with random speedups; ids are numbered over tasks of these sizes."""
    tasks = [f"task{t}" for t, size in enumerate(sizes) for _ in range(size)]
    groups = ["left" if name == "task0" else "right" for name in tasks]
    return Split.from_arrays(
        row_ids=[f"row-{i:04d}" for i in range(len(tasks))],
        tasks=tasks,
        groups=groups if split == "discovery" else None,
        speedups=np.exp2(rng.normal(0, 1.4, len(tasks))),
        split=split,
    )


def rows_of(speedups, tasks=None, **options):
    """A split of these speedups, of one task unless tasks are given; its rows are a, b, c, ..."""
    ids = list("abcdefgh"[: len(speedups)])
    tasks = tasks or ["t"] * len(ids)
    return Split.from_arrays(row_ids=ids, tasks=tasks, speedups=speedups, **options)


def make_forecasts(
    rng, split, repeats=2, noise=0.8, name="made", places=None, missing=0.0, deferred=0.0
):
    """Forecasts that know the speedups up to noise; ``places`` rounds them, so that ties appear."""
    z = np.log2(split.speedups) + rng.normal(0, noise, (repeats, len(split)))
    p = np.exp(-0.5 * ((z[..., None] - CENTRES) / 0.7) ** 2) + 1e-3
    p /= p.sum(axis=-1, keepdims=True)
    if places is not None:
        p = np.round(p, places) + 10.0**-places
    parsed = rng.random(p.shape[:2]) >= missing
    return Forecasts.from_arrays(
        split,
        p / p.sum(axis=-1, keepdims=True),
        name=name,
        parsed=parsed,
        deferred=rng.random(p.shape[:2]) < deferred,
        stated_bins=np.where(parsed, rng.integers(0, 9, p.shape[:2]), 0),
    )
