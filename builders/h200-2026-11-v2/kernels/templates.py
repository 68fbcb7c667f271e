"""The templates of this recipe, by task and language: what a ``TemplateProvider`` needs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuda_cpp
import fp8_ce
import gdn
import trimul
from heads import HEAD

_TRITON = {
    "fp8_quant": fp8_ce.FP8,
    "cross_entropy": fp8_ce.CE,
    "gdn_recompute_w_u": gdn.WU,
    "gdn_chunk_fwd_o": gdn.O,
    "gdn_chunk_fwd_h": gdn.HH,
    "trimul": trimul.TRI,
}
_CUDA = {
    "fp8_quant": {**fp8_ce.FP8_CUDA, **cuda_cpp.FP8},
    "cross_entropy": {**fp8_ce.CE_CUDA, **cuda_cpp.CE},
    "gdn_recompute_w_u": cuda_cpp.WU,
    "gdn_chunk_fwd_o": cuda_cpp.O,
    "gdn_chunk_fwd_h": cuda_cpp.H,
    "trimul": cuda_cpp.TRI,
}


def _table(task, language):
    return (_CUDA if language == "cuda" else _TRITON)[task]


def algorithms(task, language):
    """Names of the algorithms with their knobs and the values of each."""
    return {name: entry[0] for name, entry in _table(task, language).items()}


def render(task, language, spec):
    """The program text of a spec."""
    code = HEAD[task] + _table(task, language)[spec["algo"]][1](spec["knobs"])
    return FAULTS[spec["fault"]](code) if spec.get("fault") else code


def seed(task, language):
    """The spec that searches start from."""
    return (_CUDA_SEEDS if language == "cuda" else _SEEDS)[task]


def _syntax(code):
    return code.replace("def custom_kernel(data):", "def custom_kernel(data)", 1)


def _name(code):
    i = code.index("def custom_kernel(data):")
    j = code.rindex("return ")
    return code[:i] + code[i:j] + "torch.cuda.synchronise()\n    " + code[j:]


def _wrong(code):
    for a, b in (("/ 448.0", "/ 440.0"), ("448.0 / top", "440.0 / top"), ("- 1.0", "+ 1.0"), ("-= 1.0", "+= 1.0"),
                 ("K ** -0.5", "K ** -0.25"), ("kd ** -0.5", "kd ** 0.5"), ("last - ", "last + "), ("1e-5", "1e-1"),
                 ("torch.sigmoid(", "torch.tanh("), ("beta = tl.load(beta_ptr + row)", "beta = tl.load(g_ptr + row)"),
                 ("u_ptr + row[:, None] * V", "u_ptr + row[:, None] * K"), ("Ac @", "Ac.transpose(-1, -2) @"), ("torch.exp(g)", "torch.exp(-g)")):
        i = code.rfind(a)
        if i > 0:
            return code[:i] + b + code[i + len(a):]
    return code.replace("return ", "return 2 * ", 1)


def _none(code):
    i = code.rindex("return ")
    return code[:i] + "pass\n"


def _shape(code):
    i = code.index("def custom_kernel(data):")
    j = code.rindex("return ")
    end = code.index("\n", j)
    return code[:j] + "torch.empty(4, 4, device=data[0].device) @ torch.empty(5, 4, device=data[0].device)\n    " + code[j:end] + code[end:]


FAULTS = {"syntax": _syntax, "name": _name, "wrong": _wrong, "none": _none, "shape": _shape}


_SEEDS = {
    "fp8_quant": dict(algo="eager", knobs=dict(absmax="abs_amax", apply="div", clamp="clamp", dtype="float32", store="copy", checks=0)),
    "cross_entropy": dict(algo="eager", knobs=dict(form="two_softmax", hot="index", mul="new", dtype="float32")),
    "gdn_recompute_w_u": dict(algo="eager", knobs=dict(form="matmul", dtype="float32", loop="none", chunks=1, mm="")),
    "gdn_chunk_fwd_o": dict(algo="eager", knobs=dict(form="matmul", mask="where", dtype="float32", loop="none", chunks=1, mm="")),
    "gdn_chunk_fwd_h": dict(algo="eager", knobs=dict(pre="none", contig=False, fuse="none", upd="plain", store="assign", dtype="float32", loop="none", mm="")),
    "trimul": dict(algo="slices", knobs=dict(slices=1, dtype="float32", again=False, how="einsum", renorm=False)),
}
_CUDA_SEEDS = {
    "fp8_quant": dict(algo="cuda_lanes", knobs=dict(lanes=32, threads=256, vec=1, apply="div", reduce="smem", fast=False)),
    "cross_entropy": dict(algo="cuda_row", knobs=dict(threads=256, vec=1, unroll=1, exp="expf")),
    "gdn_recompute_w_u": dict(algo="cuda_tile", knobs=dict(br=64, tm=4, tn=4, span="full", launches=2, unroll=4)),
    "gdn_chunk_fwd_o": dict(algo="cuda_rows", knobs=dict(br=32, tm=4, tn=4, span="full", exp="expf", unroll=4)),
    "gdn_chunk_fwd_h": dict(algo="cuda_scan", knobs=dict(bv=16, threads=256, unroll=4, exp="expf", pad=0)),
    "trimul": dict(algo="cuda_mix", knobs=dict(p1="tf32", p2="tf32", p3="tf32", warps=4, tile=32, gate="expf")),
}
