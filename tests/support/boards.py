"""Forecast files for boards."""

import base64
import json
import re
import zlib

import msgspec
import numpy as np

#: Enough for intervals, few enough for tests.
DRAWS = 200


def write_lines(path, split, probabilities, **fields):
    """A forecast file from an array of shape (n, 8) or (R, n, 8), with these further fields."""
    p = np.asarray(probabilities)
    with path.open("w") as out:
        for repeat, rows in enumerate(p[None] if p.ndim == 2 else p):
            for row_id, row in zip(split.row_ids, rows.tolist(), strict=True):
                line = {"row_id": row_id, "repeat": repeat, "probabilities": row, **fields}
                out.write(json.dumps(line) + "\n")
    return path


def informed(split, sharpness, seed=0):
    """Probabilities around the truth: the larger the sharpness, the nearer."""
    rng = np.random.default_rng(seed)
    centre = split.bins[:, None] + rng.normal(0, 1 / sharpness, (len(split), 1))
    p = np.exp(-0.5 * sharpness * (np.arange(1, 9)[None] - centre) ** 2) + 1e-3
    return p / p.sum(axis=1, keepdims=True)


def page_data(page):
    """The data in a page, as its script reads it."""
    packed = re.search(r'id="payload">([^<]+)<', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed), -15))


def with_figure(record, name, **changes):
    """A score whose figure of one metric is another."""
    figure = msgspec.structs.replace(record.metrics[name], **changes)
    return msgspec.structs.replace(record, metrics=record.metrics | {name: figure})


def killing(module, name):
    """Code that has its process killed as soon as this function of a module has returned."""
    return f"""
import os, signal
import {module} as module
inner = module.{name}
def killing(*args, **kwargs):
    inner(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
module.{name} = killing
"""
