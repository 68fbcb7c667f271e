"""Forecast files for boards."""

import json

import numpy as np

#: Enough for intervals, few enough for tests.
DRAWS = 200


def write_lines(path, target, probabilities, **fields):
    """A forecast file from an array of shape (n, 8) or (R, n, 8), with these further fields."""
    p = np.asarray(probabilities)
    with path.open("w") as out:
        for repeat, rows in enumerate(p[None] if p.ndim == 2 else p):
            for row_id, row in zip(target.row_ids, rows.tolist(), strict=True):
                line = {"row_id": row_id, "repeat": repeat, "probabilities": row, **fields}
                out.write(json.dumps(line) + "\n")
    return path


def informed(target, sharpness, seed=0):
    """Probabilities around the truth: the larger the sharpness, the nearer."""
    rng = np.random.default_rng(seed)
    centre = target.bins[:, None] + rng.normal(0, 1 / sharpness, (len(target), 1))
    p = np.exp(-0.5 * sharpness * (np.arange(1, 9)[None] - centre) ** 2) + 1e-3
    return p / p.sum(axis=1, keepdims=True)
