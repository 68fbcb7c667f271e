import numpy as np


def part(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z


def custom_kernel(data):
    (x,) = data
    done = [part(p) for p in np.array_split(x, 1)]
    return np.concatenate([d[0] for d in done]), np.concatenate([d[1] for d in done])
