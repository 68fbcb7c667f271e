"""Row softmax and its normaliser, the rows in parts."""

import numpy as np

AGAIN = 0  # knob: 0, 1, 2, 3
PARTS = 2  # knob: 1, 2, 4, 8


def part(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z


def custom_kernel(data):
    (x,) = data
    for i in range(AGAIN):
        np.exp(x + i)
    done = [part(p) for p in np.array_split(x, PARTS)]
    return np.concatenate([d[0] for d in done]), np.concatenate([d[1] for d in done])
