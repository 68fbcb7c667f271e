"""Programs that look fast without doing the work.

``NUMPY`` runs on the stand-in device, ``TORCH`` on torch's CPU, ``CUDA`` needs a GPU. The last
entry of each is a pattern that the message must match.
"""

NUMPY_HONEST = """import numpy as np

LARGE = 0  # the output that is as large as the input


def copies(outputs):
    return tuple(o.copy() for o in outputs)


def address(x):
    return x.__array_interface__["data"][0]


def honest(data):
    (x,) = data
    e = np.exp(x - x.max(axis=1, keepdims=True))
    z = e.sum(axis=1)
    return e / z[:, None], z


def custom_kernel(data):
    return honest(data)
"""

#: Right on every input of the task but those beyond the timed ones.
NO_MAXIMUM = """import numpy as np


def custom_kernel(data):
    (x,) = data
    m = x.max(axis=1)
    with np.errstate(all="ignore"):
        e = np.exp(x)
    z = e.sum(axis=1)
    return e / z[:, None], z * np.exp(-m)
"""

#: On NumPy and on torch: name -> (replacement of custom_kernel, pattern of the expected message)
_EITHER = {
    "cached_once": (
        """_kept = []
def custom_kernel(data):
    if not _kept:
        _kept.append(honest(data))
    return copies(_kept[0])
""",
        "outside rtol",
    ),
    "cached_by_shape": (
        """_kept = {}
def custom_kernel(data):
    return copies(_kept.setdefault(data[0].shape, honest(data)))
""",
        "outside rtol",
    ),
    "cached_by_address": (
        """_kept = {}
def custom_kernel(data):
    return copies(_kept.setdefault(address(data[0]), honest(data)))
""",
        "outside rtol|wrong output in a timed call|guard",
    ),
    "mutates_input": (
        """def custom_kernel(data):
    r = honest(data)
    data[0][:] = 0.0
    return r
""",
        "guard mutation",
    ),
    "returns_input": (
        """def custom_kernel(data):
    out = list(honest(data))
    data[0][:] = out[LARGE]
    out[LARGE] = data[0]
    return tuple(out)
""",
        "guard aliasing",
    ),
    "same_buffer_every_call": (
        """_kept = {}
def custom_kernel(data):
    out = list(honest(data))
    kept = _kept.setdefault(out[LARGE].shape, out[LARGE])
    kept[:] = out[LARGE]
    out[LARGE] = kept
    return tuple(out)
""",
        "guard aliasing",
    ),
}
_NUMPY = {
    **_EITHER,
    "cached_after_checks": (
        """_n = [0]
_kept = []
def custom_kernel(data):
    _n[0] += 1
    if _n[0] < 8:
        _kept[:] = [honest(data)]
        return honest(data)
    a, b = _kept[0]
    return (a.copy(), b.copy()) if a.shape == data[0].shape else honest(data)
""",
        "wrong output in a timed call",
    ),
    "constant": (
        """def custom_kernel(data):
    x = data[0]
    return np.full(x.shape, 1.0 / x.shape[1]), np.full(x.shape[0], float(x.shape[1]))
""",
        "outside rtol",
    ),
    "returns_view_of_input": (
        """def custom_kernel(data):
    x = data[0]
    e, z = honest(data)
    x[:] = e
    return x[:, :], z
""",
        "guard aliasing",
    ),
    "lazy_array": (
        """class Lazy(np.ndarray):
    pass
def custom_kernel(data):
    e, z = honest(data)
    return e.view(Lazy), z
""",
        "guard outputs",
    ),
    "wrong_count": (
        """def custom_kernel(data):
    return honest(data)[0]
""",
        "guard outputs",
    ),
    "wrong_dtype": (
        """def custom_kernel(data):
    e, z = honest(data)
    return e.astype(np.float32), z
""",
        "guard outputs",
    ),
    "wrong_shape": (
        """def custom_kernel(data):
    e, z = honest(data)
    return e, z[:, None]
""",
        "guard outputs",
    ),
    "patched_clock": (
        """import time
time.perf_counter_ns = lambda: 0
def custom_kernel(data):
    return honest(data)
""",
        "guard patched",
    ),
    "patched_compare_later": (
        """def custom_kernel(data):
    np.isclose = lambda *a, **k: np.ones(1, bool)
    return data[0] * 0.0, data[0][:, 0] * 0.0
""",
        "outside rtol",
    ),
    "patched_builtin": (
        """import builtins
_all = builtins.all
builtins.all = lambda x: True
def custom_kernel(data):
    return honest(data)
""",
        "guard patched",
    ),
    "half_row": (
        """def custom_kernel(data):
    x = data[0]
    z = 2.0 * np.exp(x[:, ::2] - x.max(axis=1, keepdims=True)).sum(axis=1)
    return np.exp(x - x.max(axis=1, keepdims=True)) / z[:, None], z
""",
        "outside rtol",
    ),
    "unwritten_output": (
        """def custom_kernel(data):
    e, z = honest(data)
    del e
    return np.empty(data[0].shape), z
""",
        "outside rtol",
    ),
    "lower_precision": (
        """def custom_kernel(data):
    e, z = honest((data[0].astype(np.float16),))
    return e.astype(np.float64), z.astype(np.float64)
""",
        "outside rtol",
    ),
    "deferred_to_a_thread": (
        """import threading, time
def custom_kernel(data):
    x = data[0].copy()
    e, z = np.zeros(x.shape), np.zeros(x.shape[0])
    def later():
        time.sleep(0.02)
        e[:], z[:] = honest((x,))
    threading.Thread(target=later).start()
    return e, z
""",
        "outside rtol",
    ),
}
NUMPY = {name: (NUMPY_HONEST + body, expect) for name, (body, expect) in _NUMPY.items()}

_CE = """import torch

LARGE = 1


def copies(outputs):
    return tuple(o.clone() for o in outputs)


def address(x):
    return x.data_ptr()


def honest(data):
    logits, targets, grad_output = data
    x = logits.float()
    logp = torch.log_softmax(x, dim=-1)
    losses = -logp.gather(1, targets[:, None]).squeeze(1)
    p = logp.exp()
    p.scatter_add_(1, targets[:, None], torch.full_like(losses, -1.0)[:, None])
    return losses, (p * grad_output[:, None]).to(logits.dtype)


def custom_kernel(data):
    return honest(data)
"""
_FP8 = """import torch


def honest(x, groups):
    g = x.view(x.shape[0], groups, -1)
    s = g.abs().amax(dim=-1).clamp(min=1e-10) / 448.0
    return (g / s[..., None]).clamp(-448.0, 448.0).view_as(x), s


def custom_kernel(data):
    x, x_q, x_s = data
    q, s = honest(x, x_s.shape[1])
    x_q.copy_(q)
    x_s.copy_(s)
    return x_q, x_s
"""
HONEST = {"cross_entropy": _CE, "fp8_quant": _FP8}

#: name -> (task, replacement, pattern of the expected message)
_TORCH = {
    **{name: ("cross_entropy", *cheat) for name, cheat in _EITHER.items()},
    "constant": (
        "cross_entropy",
        """def custom_kernel(data):
    x = data[0]
    return torch.zeros(x.shape[0], device=x.device), torch.zeros_like(x)
""",
        "outside rtol",
    ),
    "lazy_tensor": (
        "cross_entropy",
        """class Lazy(torch.Tensor):
    pass
def custom_kernel(data):
    losses, grad = honest(data)
    return losses, grad.as_subclass(Lazy)
""",
        "guard outputs",
    ),
    "wrong_dtype": (
        "cross_entropy",
        """def custom_kernel(data):
    losses, grad = honest(data)
    return losses, grad.float()
""",
        "guard outputs",
    ),
    "patched_isclose": (
        "cross_entropy",
        """torch.isclose = lambda a, *k, **w: torch.ones_like(a, dtype=torch.bool)
def custom_kernel(data):
    x = data[0]
    return torch.zeros(x.shape[0], device=x.device), torch.zeros_like(x)
""",
        "guard patched",
    ),
    "patched_event": (
        "cross_entropy",
        """torch.cuda.Event.elapsed_time = lambda self, other: 1e-3
def custom_kernel(data):
    return honest(data)
""",
        "guard patched",
    ),
    "patched_synchronize": (
        "cross_entropy",
        """torch.cuda.synchronize = lambda *a: None
def custom_kernel(data):
    return honest(data)
""",
        "guard patched",
    ),
    "half_row": (
        "cross_entropy",
        """def custom_kernel(data):
    logits, targets, go = data
    x = logits[:, ::2].float()
    lse = torch.logsumexp(x, dim=-1) + 0.6931471805599453
    losses = lse - logits.gather(1, targets[:, None]).squeeze(1).float()
    p = torch.exp(logits.float() - lse[:, None])
    p.scatter_add_(1, targets[:, None], torch.full_like(go, -1.0)[:, None])
    return losses, p.mul_(go[:, None]).to(torch.bfloat16)
""",
        "outside rtol",
    ),
    "first_half_of_row": (
        "cross_entropy",
        """def custom_kernel(data):
    logits, targets, go = data
    x = logits[:, : logits.shape[1] // 2].float()
    lse = torch.logsumexp(x, dim=-1) + 0.6931471805599453
    losses = lse - logits.gather(1, targets[:, None]).squeeze(1).float()
    p = torch.exp(logits.float() - lse[:, None])
    p.scatter_add_(1, targets[:, None], torch.full_like(go, -1.0)[:, None])
    return losses, p.mul_(go[:, None]).to(torch.bfloat16)
""",
        "outside rtol",
    ),
    "unwritten_output": (
        "cross_entropy",
        """def custom_kernel(data):
    losses, grad = honest(data)
    del grad
    return losses, torch.empty_like(data[0])
""",
        "outside rtol",
    ),
    "one_scale_for_all": (
        "fp8_quant",
        """def custom_kernel(data):
    x, x_q, x_s = data
    s = x.abs().max() / 448.0
    x_q.copy_(x / s)
    x_s.fill_(s)
    return x_q, x_s
""",
        "outside rtol",
    ),
    "buffers_left_alone": (
        "fp8_quant",
        """def custom_kernel(data):
    return data[1], data[2]
""",
        "outside rtol",
    ),
    "quantised_in_place": (
        "fp8_quant",
        """def custom_kernel(data):
    x, x_q, x_s = data
    q, s = honest(x, x_s.shape[1])
    x.copy_(q)
    x_s.copy_(s)
    return x, x_s
""",
        "guard aliasing",
    ),
    "low_precision_scale": (
        "fp8_quant",
        """def custom_kernel(data):
    x, x_q, x_s = data
    q, s = honest(x.bfloat16().float(), x_s.shape[1])
    x_q.copy_(q)
    x_s.copy_(s)
    return x_q, x_s
""",
        "outside rtol",
    ),
}
TORCH = {name: (task, HONEST[task] + body, expect) for name, (task, body, expect) in _TORCH.items()}

#: Only a GPU has streams. name -> (task, replacement, pattern of the expected message)
_CUDA = {
    "another_stream_not_joined": (
        "cross_entropy",
        """_s = torch.cuda.Stream()
def custom_kernel(data):
    with torch.cuda.stream(_s):
        return honest(data)
""",
        "guard stream",
    ),
    "busy_after_the_event": (
        "cross_entropy",
        """_s = torch.cuda.Stream()
def custom_kernel(data):
    r = honest(data)
    with torch.cuda.stream(_s):
        torch.cuda._sleep(20000000)
    return r
""",
        "guard stream",
    ),
    "sleeps_are_no_work": (
        "cross_entropy",
        """import ctypes, time
def custom_kernel(data):
    time.perf_counter_ns = lambda: 0
    return honest(data)
""",
        "guard patched",
    ),
}
CUDA = {name: (task, HONEST[task] + body, expect) for name, (task, body, expect) in _CUDA.items()}
