import numpy as np


def custom_kernel(data):
    e = np.exp(data[0])
    return e, e.sum(axis=1)
