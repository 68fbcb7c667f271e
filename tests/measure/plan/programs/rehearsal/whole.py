"""Row softmax and its normaliser, the whole array at once."""

import numpy as np

AGAIN = 0  # knob: 0, 1, 2, 3, 4, 5


def part(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z


def custom_kernel(data):
    (x,) = data
    for i in range(AGAIN):
        np.exp(x + i)
    return part(x)
