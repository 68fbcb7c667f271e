"""Templates of the rehearsal task, for tests."""

FAULTS = {"syntax": lambda code: code.replace("def custom_kernel(data):", "def custom_kernel(data)", 1)}


def algorithms(task, language):
    del task, language
    return {"rows": {"parts": [1, 2, 4, 8], "again": [0, 1, 2, 3]}, "whole": {"again": [0, 1, 2, 3, 4, 5]}}


def seed(task, language):
    del task, language
    return {"algo": "whole", "knobs": {"again": 0}}


def render(task, language, spec):
    del task, language
    knobs = spec["knobs"]
    waste = "".join(f"    np.exp(x + {i})\n" for i in range(knobs["again"]))
    parts = knobs.get("parts", 1)
    code = f"""import numpy as np


def part(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z


def custom_kernel(data):
    (x,) = data
{waste}    done = [part(p) for p in np.array_split(x, {parts})]
    return np.concatenate([d[0] for d in done]), np.concatenate([d[1] for d in done])
"""
    return FAULTS[spec["fault"]](code) if spec.get("fault") else code
