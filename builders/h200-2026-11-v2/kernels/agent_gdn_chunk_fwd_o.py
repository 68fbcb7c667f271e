"""Attempts of two agents on gdn_chunk_fwd_o: Triton and CUDA C++."""
import sys; from pathlib import Path; sys.path.insert(0, str(Path(__file__).resolve().parent))
import hashlib
import heads


def A(title, parent, note, code):
    return dict(title=title, parent=parent, note=note, code=heads.HEAD["gdn_chunk_fwd_o"] + code)


IMP = '''import torch
import triton
import triton.language as tl

'''


def host(name, grid, opts, consts="", cached=False):
    """custom_kernel of a Triton program; grid uses N (chunks), BH, V."""
    extra = ", " + consts if consts else ""
    if not cached:
        return f'''

def custom_kernel(data):
    q, k, v, h, g = data
    B, T, H, K = q.shape
    V = v.shape[-1]
    N, BH = T // 64, B * H
    o = torch.empty_like(v)
    {name}[{grid}](q, k, v, h, g, o, T=T, H=H, K=K, V=V{extra}, {opts})
    return o
'''
    values = "".join(", " + c.split("=")[1].strip() for c in consts.split(",") if c.strip())
    return f'''

COMPILED = {{}}


def custom_kernel(data):
    q, k, v, h, g = data
    o = torch.empty_like(v)
    key = (q.shape, v.shape)
    entry = COMPILED.get(key)
    if entry is None:
        B, T, H, K = q.shape
        V = v.shape[-1]
        N, BH = T // 64, B * H
        kernel = {name}[{grid}](q, k, v, h, g, o, T=T, H=H, K=K, V=V{extra}, {opts})
        if kernel is not None:
            COMPILED[key] = (kernel[{grid}], T, H, K, V)
        return o
    run, T, H, K, V = entry
    run(q, k, v, h, g, o, T, H, K, V{values})
    return o
'''


ROWS = '''
@triton.jit
def rows_kernel(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
                V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    NT: tl.constexpr = T // 64
    PR: tl.constexpr = 64 // BR
    n = tl.program_id(0) // PR
    r0 = (PR - 1 - tl.program_id(0) % PR) * BR
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    cols = tl.program_id(2) * BV + tl.arange(0, BV)
    i = r0 + tl.arange(0, BR)
    base = b * T + n * 64
    row = (base + i) * H + h
    q = tl.load(q_ptr + row[:, None] * K + kk[None, :])
    st = tl.load(h_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + cols[None, :])
    gi = tl.load(g_ptr + row) * 1.4426950408889634
    acc = tl.dot(q, st, input_precision="PREC") * tl.exp2(gi)[:, None]
    for j0 in range(0, r0 + BR, BR):
        j = j0 + tl.arange(0, BR)
        src = (base + j) * H + h
        kt = tl.load(k_ptr + src[None, :] * K + kk[:, None])
        vv = tl.load(v_ptr + src[:, None] * V + cols[None, :])
        gj = tl.load(g_ptr + src) * 1.4426950408889634
        s = tl.dot(q, kt, input_precision="PREC")
        s = tl.where(i[:, None] >= j[None, :], s * tl.exp2(gi[:, None] - gj[None, :]), 0.0)
        acc = tl.dot(s, vv, acc, input_precision="PREC")
    tl.store(o_ptr + row[:, None] * V + cols[None, :], acc * (K ** -0.5))
'''

WHOLE = '''
@triton.jit
def whole_kernel(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
                 V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    NT: tl.constexpr = T // 64
    PR: tl.constexpr = 64 // BR
    n = tl.program_id(0) // PR
    r0 = (tl.program_id(0) % PR) * BR
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    j = tl.arange(0, 64)
    i = r0 + tl.arange(0, BR)
    cols = tl.program_id(2) * BV + tl.arange(0, BV)
    base = b * T + n * 64
    row = (base + i) * H + h
    src = (base + j) * H + h
    q = tl.load(q_ptr + row[:, None] * K + kk[None, :])
    kt = tl.load(k_ptr + src[None, :] * K + kk[:, None])
    gi = tl.load(g_ptr + row) * 1.4426950408889634
    gj = tl.load(g_ptr + src) * 1.4426950408889634
    st = tl.load(h_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + cols[None, :])
    vv = tl.load(v_ptr + src[:, None] * V + cols[None, :])
    BODY
    tl.store(o_ptr + row[:, None] * V + cols[None, :], acc * (K ** -0.5))
'''


def whole(body):
    return WHOLE.replace("BODY", "\n    ".join(body.strip().split("\n")))


BF3 = '''
@triton.jit
def dot3(a, b):
    ah = a.to(tl.bfloat16)
    bh = b.to(tl.bfloat16)
    al = (a - ah.to(tl.float32)).to(tl.bfloat16)
    bl = (b - bh.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(ah, bl) + tl.dot(al, bh) + tl.dot(ah, bh)

'''

PLAIN_BODY = '''
s = tl.dot(q, kt, input_precision="PREC")
s = tl.where(i[:, None] >= j[None, :], s * tl.exp2(gi[:, None] - gj[None, :]), 0.0)
acc = tl.dot(q * tl.exp2(gi)[:, None], st, input_precision="PREC")
acc = tl.dot(s, vv, acc, input_precision="PREC")
'''

BF3_BODY = '''
s = dot3(q, kt)
s = tl.where(i[:, None] >= j[None, :], s * tl.exp2(gi[:, None] - gj[None, :]), 0.0)
acc = dot3(q, st) * tl.exp2(gi)[:, None] + dot3(s, vv)
'''

TRANSPOSED = '''
@triton.jit
def transposed_kernel(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
                      V: tl.constexpr, BR: tl.constexpr):
    NT: tl.constexpr = T // 64
    PR: tl.constexpr = 64 // BR
    n = tl.program_id(0) // PR
    r0 = (tl.program_id(0) % PR) * BR
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    j = tl.arange(0, 64)
    i = r0 + tl.arange(0, BR)
    cols = tl.program_id(2) * 64 + tl.arange(0, 64)
    base = b * T + n * 64
    row = (base + i) * H + h
    src = (base + j) * H + h
    qt = tl.load(q_ptr + row[None, :] * K + kk[:, None])
    k = tl.load(k_ptr + src[:, None] * K + kk[None, :])
    gi = tl.load(g_ptr + row) * 1.4426950408889634
    gj = tl.load(g_ptr + src) * 1.4426950408889634
    stt = tl.load(h_ptr + (((b * NT + n) * H + h) * K + kk[None, :]) * V + cols[:, None])
    vt = tl.load(v_ptr + src[None, :] * V + cols[:, None])
    s = dot3(k, qt)
    s = tl.where(i[None, :] >= j[:, None], s * tl.exp2(gi[None, :] - gj[:, None]), 0.0)
    acc = dot3(stt, qt) * tl.exp2(gi)[None, :] + dot3(vt, s)
    tl.store(o_ptr + row[None, :] * V + cols[:, None], acc * (K ** -0.5))
'''

TWO_PASS = '''
@triton.jit
def scores_kernel(q_ptr, k_ptr, g_ptr, s_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BR: tl.constexpr):
    PR: tl.constexpr = 64 // BR
    n = tl.program_id(0) // PR
    r0 = (tl.program_id(0) % PR) * BR
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    j = tl.arange(0, 64)
    i = r0 + tl.arange(0, BR)
    row = (b * T + n * 64 + i) * H + h
    src = (b * T + n * 64 + j) * H + h
    q = tl.load(q_ptr + row[:, None] * K + kk[None, :])
    kt = tl.load(k_ptr + src[None, :] * K + kk[:, None])
    gi = tl.load(g_ptr + row)
    gj = tl.load(g_ptr + src)
    s = tl.dot(q, kt, input_precision="tf32x3")
    s = tl.where(i[:, None] >= j[None, :], s * tl.exp(gi[:, None] - gj[None, :]), 0.0)
    tl.store(s_ptr + row[:, None] * 64 + j[None, :], s)


@triton.jit
def outputs_kernel(q_ptr, s_ptr, v_ptr, h_ptr, g_ptr, o_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
                   V: tl.constexpr, BV: tl.constexpr):
    NT: tl.constexpr = T // 64
    n = tl.program_id(0)
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    j = tl.arange(0, 64)
    cols = tl.program_id(2) * BV + tl.arange(0, BV)
    row = (b * T + n * 64 + j) * H + h
    q = tl.load(q_ptr + row[:, None] * K + kk[None, :])
    s = tl.load(s_ptr + row[:, None] * 64 + j[None, :])
    st = tl.load(h_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + cols[None, :])
    vv = tl.load(v_ptr + row[:, None] * V + cols[None, :])
    acc = tl.dot(q, st, input_precision="tf32x3") * tl.exp(tl.load(g_ptr + row))[:, None]
    acc = tl.dot(s, vv, acc, input_precision="tf32x3")
    tl.store(o_ptr + row[:, None] * V + cols[None, :], acc * (K ** -0.5))


def custom_kernel(data):
    q, k, v, h, g = data
    B, T, H, K = q.shape
    V = v.shape[-1]
    o = torch.empty_like(v)
    s = torch.empty((B, T, H, 64), device=q.device, dtype=torch.float32)
    scores_kernel[(T // 16, B * H)](q, k, g, s, T=T, H=H, K=K, BR=16, num_warps=2)
    outputs_kernel[(T // 64, B * H, V // 16)](q, s, v, h, g, o, T=T, H=H, K=K, V=V, BV=16, num_warps=4)
    return o
'''

TRITON = [
    A("32-row blocks, causal loop, shapes constexpr", None,
      "start: one program per 32 rows of a chunk walks only the key blocks at or below its diagonal, long programs first; "
      "all shapes are constexpr so the launch binds six pointers and the index arithmetic folds; three-term tf32 because one pass sits at the tolerance",
      IMP + ROWS.replace("PREC", "tf32x3") + host("rows_kernel", "(N * 2, BH, V // 64)", "num_warps=4, num_stages=1", "BR=32, BV=64")),
    A("all operands loaded before the first product", 0,
      "a loop over key blocks pays memory latency per block and L2 is cold; take the whole 64-key chunk in one tile, 16 rows per program, "
      "and place every load ahead of the first dot; the gate multiplies q so that both products chain into one accumulator",
      IMP + whole(PLAIN_BODY.replace("PREC", "tf32x3")) + host("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", "BR=16, BV=64")),
    A("compiled kernel called directly", 1,
      "the smallest case is one chunk, so the time is the launch path: keep the compiled kernel per shape and skip the argument binder and the cache look-up",
      IMP + whole(PLAIN_BODY.replace("PREC", "tf32x3")) + host("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", "BR=16, BV=64", cached=True)),
    A("two-way bf16 split, three products", 2,
      "three-term tf32 uses m16n8k8 products; high and low bf16 parts keep 16 bits of each factor, enough for 1e-3, at half the instructions",
      IMP + BF3 + whole(BF3_BODY) + host("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", "BR=16, BV=64", cached=True)),
    A("transposed products: 64 keys or columns on the M side", 3,
      "with few rows per program the wide operand can sit on M: S^T = k q^T and O^T = v^T S^T are 64 x 16 and fit a warp-group product; price: transposed stores",
      IMP + BF3 + TRANSPOSED + host("transposed_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", "BR=16", cached=True)),
    A("two kernels: scores stored, then outputs", None,
      "expected dead end: scores to memory once so that the value-column programs need not recompute them; a second launch should cost more than it saves",
      IMP + TWO_PASS),
    A("plain float32 products", 2,
      "control for the precision scheme: no tensor cores and no splitting at all; with 16 rows x 32 columns per program the FMA work per SM is small",
      IMP + whole(PLAIN_BODY.replace("PREC", "ieee")) + host("whole_kernel", "(N * 4, BH, V // 32)", "num_warps=4, num_stages=1", "BR=16, BV=32", cached=True)),
    A("whole chunk, four value slices, eight warps", 3,
      "opposite split: 64 rows per program and 16 value columns; q and k are read four times instead of k, v and h, and the 64-row products can use warp groups",
      IMP + BF3 + whole(BF3_BODY) + host("whole_kernel", "(N, BH, V // 16)", "num_warps=8, num_stages=1", "BR=64, BV=16", cached=True)),
]

PYB = r'''#include <pybind11/pybind11.h>
#include <cstdint>
void launch(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int, int);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch); }
'''

FAST = r'''#include <Python.h>
#include <cstdint>
void launch(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int, int);
static PyObject* run(PyObject*, PyObject* const* a, Py_ssize_t) {
    uintptr_t p[6];
    int d[4];
    for (int i = 0; i < 6; ++i) p[i] = PyLong_AsUnsignedLongLong(a[i]);
    for (int i = 0; i < 4; ++i) d[i] = (int)PyLong_AsLong(a[6 + i]);
    launch(p[0], p[1], p[2], p[3], p[4], p[5], d[0], d[1], d[2], d[3]);
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"launch", (PyCFunction)(void*)run, METH_FASTCALL, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "ext", nullptr, -1, methods};
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
PyMODINIT_FUNC GLUE(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&def); }
'''

HOST = '''

def custom_kernel(data):
    q, k, v, h, g = data
    B, T, H, _ = q.shape
    o = torch.empty_like(v)
    ext.launch(q.data_ptr(), k.data_ptr(), v.data_ptr(), h.data_ptr(), g.data_ptr(), o.data_ptr(), B, T, H, v.shape[-1])
    return o
'''


def cuda(src, cpp=PYB, tail=HOST):
    tag = hashlib.sha256((src + cpp).encode()).hexdigest()[:10]
    return f'''import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""{cpp}"""

CUDA = r"""
{src}"""

ext = load_inline(name="chunk_o_{tag}", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True,
                  extra_cuda_cflags=["-O3", "-arch=sm_90"], verbose=False)
{tail}'''


INC = r'''#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr float LOG2E = 1.4426950408889634f;
'''

ARGS = "const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ st, const float* __restrict__ g, float* __restrict__ o, int T, int H, int V"
PARAMS = "uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t st, uintptr_t g, uintptr_t o, int B, int T, int H, int V"
CASTS = "(const float*)q, (const float*)k, (const float*)v, (const float*)st, (const float*)g, (float*)o, T, H, V"


def launch(grid, threads, smem=0, name="out"):
    attr = f"    static bool ready = false;\n    if (!ready) {{ cudaFuncSetAttribute({name}, cudaFuncAttributeMaxDynamicSharedMemorySize, {smem}); ready = true; }}\n" if smem else ""
    return f'''
void launch({PARAMS}) {{
{attr}    {name}<<<{grid}, {threads}, {smem}>>>({CASTS});
}}
'''


TF32 = r'''
__device__ __forceinline__ uint32_t tf(float x) { uint32_t r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
__device__ __forceinline__ void mma(float* c, const uint32_t* a, const uint32_t* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// c += a b with both factors split in two tf32 parts; the low x low term is left out
__device__ __forceinline__ void mma3(float* c, float a0, float a1, float a2, float a3, float b0, float b1) {
    float a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    uint32_t ah[4], al[4], bh[2], bl[2];
    #pragma unroll
    for (int i = 0; i < 4; ++i) { ah[i] = tf(a[i]); al[i] = tf(a[i] - __uint_as_float(ah[i])); }
    #pragma unroll
    for (int i = 0; i < 2; ++i) { bh[i] = tf(b[i]); bl[i] = tf(b[i] - __uint_as_float(bh[i])); }
    mma(c, al, bh);
    mma(c, ah, bl);
    mma(c, ah, bh);
}
'''

BF16 = r'''
__device__ __forceinline__ void mma(float* c, const uint32_t* a, const uint32_t* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// two floats (first in the low half) as a packed bf16 pair and the packed remainders
__device__ __forceinline__ void split(float x, float y, uint32_t& hi, uint32_t& lo) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(hi) : "f"(y), "f"(x));
    float rx = x - __uint_as_float(hi << 16), ry = y - __uint_as_float(hi & 0xffff0000u);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(lo) : "f"(ry), "f"(rx));
}
__device__ __forceinline__ void mma3(float* c, const uint32_t* ah, const uint32_t* al, const uint32_t* bh, const uint32_t* bl) {
    mma(c, al, bh);
    mma(c, ah, bl);
    mma(c, ah, bh);
}
'''

C_TF32 = INC + TF32 + r'''
// 16 rows per block; warp w: score columns 8w..8w+7, then value columns 8w..8w+7. All operands go from memory to fragments.
__global__ void __launch_bounds__(256) out(''' + ARGS + r''') {
    __shared__ float s[16][68];
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, gr = lane >> 2, t = lane & 3;
    int n = blockIdx.x >> 2, r0 = (3 - (blockIdx.x & 3)) * 16, b = blockIdx.y / H, hd = blockIdx.y % H;
    int64_t base = ((int64_t)b * T + n * 64) * H + hd;
    const float* qp = q + (base + (int64_t)(r0 + gr) * H) * 64 + 4 * t;
    const float* kp = k + (base + (int64_t)(8 * w + gr) * H) * 64 + 4 * t;
    bool need = 8 * w < r0 + 16;
    float4 qa[4], qb[4], kf[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        qa[i] = *(const float4*)(qp + 16 * i);
        qb[i] = *(const float4*)(qp + 8 * H * 64 + 16 * i);
        if (need) kf[i] = *(const float4*)(kp + 16 * i);
    }
    int col = blockIdx.z * 64 + 8 * w + gr;
    const float* hp = st + (((int64_t)b * (T / 64) + n) * H + hd) * 64 * V + (int64_t)4 * t * V + col;
    float hf[4][4];
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int e = 0; e < 4; ++e) hf[i][e] = hp[(int64_t)(16 * i + e) * V];
    float ga = g[base + (int64_t)(r0 + gr) * H] * LOG2E, gb = g[base + (int64_t)(r0 + gr + 8) * H] * LOG2E;
    if (need) {
        float c[4] = {};
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            mma3(c, qa[i].x, qb[i].x, qa[i].y, qb[i].y, kf[i].x, kf[i].y);
            mma3(c, qa[i].z, qb[i].z, qa[i].w, qb[i].w, kf[i].z, kf[i].w);
        }
        int j = 8 * w + 2 * t, ra = r0 + gr, rb = ra + 8;
        float g0 = g[base + (int64_t)j * H] * LOG2E, g1 = g[base + (int64_t)(j + 1) * H] * LOG2E;
        s[gr][j] = ra >= j ? c[0] * exp2f(ga - g0) : 0.f;
        s[gr][j + 1] = ra >= j + 1 ? c[1] * exp2f(ga - g1) : 0.f;
        s[gr + 8][j] = rb >= j ? c[2] * exp2f(gb - g0) : 0.f;
        s[gr + 8][j + 1] = rb >= j + 1 ? c[3] * exp2f(gb - g1) : 0.f;
    }
    float acc[4] = {};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        mma3(acc, qa[i].x, qb[i].x, qa[i].y, qb[i].y, hf[i][0], hf[i][1]);
        mma3(acc, qa[i].z, qb[i].z, qa[i].w, qb[i].w, hf[i][2], hf[i][3]);
    }
    float ea = exp2f(ga), eb = exp2f(gb);
    acc[0] *= ea; acc[1] *= ea; acc[2] *= eb; acc[3] *= eb;
    __syncthreads();
    const float* vp = v + (base + (int64_t)t * H) * V + col;
    for (int j0 = 0; j0 < r0 + 16; j0 += 16) {
        float vf[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) vf[e] = vp[(int64_t)(j0 + 4 * e) * H * V];
        mma3(acc, s[gr][j0 + t], s[gr + 8][j0 + t], s[gr][j0 + t + 4], s[gr + 8][j0 + t + 4], vf[0], vf[1]);
        mma3(acc, s[gr][j0 + t + 8], s[gr + 8][j0 + t + 8], s[gr][j0 + t + 12], s[gr + 8][j0 + t + 12], vf[2], vf[3]);
    }
    float* op = o + (base + (int64_t)(r0 + gr) * H) * V + blockIdx.z * 64 + 8 * w + 2 * t;
    *(float2*)op = make_float2(acc[0] * 0.125f, acc[1] * 0.125f);
    *(float2*)(op + (int64_t)8 * H * V) = make_float2(acc[2] * 0.125f, acc[3] * 0.125f);
}
''' + launch("dim3(T / 16, B * H, V / 64)", 256)


def c_bf16(rows, threads, bounds, part, cols=8):
    """bf16 split; a block of `rows` rows: warp = (row tile, group of `cols` columns of 8)."""
    return INC + BF16 + r'''
constexpr int ROWS = ''' + str(rows) + r''', NG = 8 / ''' + str(part) + r''', P = ''' + str(part) + r''';  // P tiles of 8 columns per warp
__global__ void __launch_bounds__(''' + bounds + ") out(" + ARGS + r''') {
    __shared__ uint32_t sh[ROWS][36], sl[ROWS][36];
    int lane = threadIdx.x & 31, w = (threadIdx.x >> 5) % NG, m = (threadIdx.x >> 5) / NG, gr = lane >> 2, t = lane & 3;
    constexpr int PR = 64 / ROWS;
    int n = blockIdx.x / PR, r0 = (PR - 1 - blockIdx.x % PR) * ROWS + m * 16, b = blockIdx.y / H, hd = blockIdx.y % H;
    int64_t base = ((int64_t)b * T + n * 64) * H + hd;
    const float* qp = q + (base + (int64_t)(r0 + gr) * H) * 64 + 4 * t;
    float4 qa[4], qb[4], kf[P][4];
    float hf[P][4][4], vf[P][4][4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        qa[i] = *(const float4*)(qp + 16 * i);
        qb[i] = *(const float4*)(qp + 8 * H * 64 + 16 * i);
    }
    const float* sp = st + (((int64_t)b * (T / 64) + n) * H + hd) * 64 * V;
    #pragma unroll
    for (int p = 0; p < P; ++p) {
        int j = 8 * (w * P + p) + gr, col = blockIdx.z * 64 + j;
        if (8 * (w * P + p) < r0 + 16) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) kf[p][i] = *(const float4*)(k + (base + (int64_t)j * H) * 64 + 4 * t + 16 * i);
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                hf[p][i][e] = sp[(int64_t)(16 * i + 4 * t + e) * V + col];
                if (16 * i < r0 + 16) vf[p][i][e] = v[(base + (int64_t)(16 * i + 2 * t + (e & 1) + (e >> 1) * 8) * H) * V + col];
            }
    }
    float ga = g[base + (int64_t)(r0 + gr) * H] * LOG2E, gb = g[base + (int64_t)(r0 + gr + 8) * H] * LOG2E;
    uint32_t ah[4][4], al[4][4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        split(qa[i].x, qa[i].y, ah[i][0], al[i][0]);
        split(qb[i].x, qb[i].y, ah[i][1], al[i][1]);
        split(qa[i].z, qa[i].w, ah[i][2], al[i][2]);
        split(qb[i].z, qb[i].w, ah[i][3], al[i][3]);
    }
    float acc[P][4] = {};
    #pragma unroll
    for (int p = 0; p < P; ++p) {
        if (8 * (w * P + p) < r0 + 16) {
            int j = 8 * (w * P + p) + 2 * t, ra = r0 + gr, rb = ra + 8;
            float g0 = g[base + (int64_t)j * H] * LOG2E, g1 = g[base + (int64_t)(j + 1) * H] * LOG2E;
            float c[4] = {};
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint32_t bh[2], bl[2];
                split(kf[p][i].x, kf[p][i].y, bh[0], bl[0]);
                split(kf[p][i].z, kf[p][i].w, bh[1], bl[1]);
                mma3(c, ah[i], al[i], bh, bl);
            }
            c[0] = ra >= j ? c[0] * exp2f(ga - g0) : 0.f;
            c[1] = ra >= j + 1 ? c[1] * exp2f(ga - g1) : 0.f;
            c[2] = rb >= j ? c[2] * exp2f(gb - g0) : 0.f;
            c[3] = rb >= j + 1 ? c[3] * exp2f(gb - g1) : 0.f;
            int x = 4 * (w * P + p) + t;
            split(c[0], c[1], sh[m * 16 + gr][x], sl[m * 16 + gr][x]);
            split(c[2], c[3], sh[m * 16 + gr + 8][x], sl[m * 16 + gr + 8][x]);
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t bh[2], bl[2];
            split(hf[p][i][0], hf[p][i][1], bh[0], bl[0]);
            split(hf[p][i][2], hf[p][i][3], bh[1], bl[1]);
            mma3(acc[p], ah[i], al[i], bh, bl);
        }
        float ea = exp2f(ga), eb = exp2f(gb);
        acc[p][0] *= ea; acc[p][1] *= ea; acc[p][2] *= eb; acc[p][3] *= eb;
    }
    __syncthreads();
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
        if (16 * u < r0 + 16) {
            int x = 8 * u + t, ra = m * 16 + gr;
            uint32_t ch[4] = {sh[ra][x], sh[ra + 8][x], sh[ra][x + 4], sh[ra + 8][x + 4]};
            uint32_t cl[4] = {sl[ra][x], sl[ra + 8][x], sl[ra][x + 4], sl[ra + 8][x + 4]};
            #pragma unroll
            for (int p = 0; p < P; ++p) {
                uint32_t bh[2], bl[2];
                split(vf[p][u][0], vf[p][u][1], bh[0], bl[0]);
                split(vf[p][u][2], vf[p][u][3], bh[1], bl[1]);
                mma3(acc[p], ch, cl, bh, bl);
            }
        }
    }
    #pragma unroll
    for (int p = 0; p < P; ++p) {
        float* op = o + (base + (int64_t)(r0 + gr) * H) * V + blockIdx.z * 64 + 8 * (w * P + p) + 2 * t;
        *(float2*)op = make_float2(acc[p][0] * 0.125f, acc[p][1] * 0.125f);
        *(float2*)(op + (int64_t)8 * H * V) = make_float2(acc[p][2] * 0.125f, acc[p][3] * 0.125f);
    }
}
''' + launch(f"dim3(T / {rows}, B * H, V / 64)", threads)


C_FLASH = INC + BF16 + r'''
// One warp: 16 rows and 16 value columns. Scores stay in registers: accumulators of two key tiles are the next A fragment.
__global__ void __launch_bounds__(32) out(''' + ARGS + r''') {
    int lane = threadIdx.x, gr = lane >> 2, t = lane & 3;
    int n = blockIdx.x >> 2, r0 = (3 - (blockIdx.x & 3)) * 16, b = blockIdx.y / H, hd = blockIdx.y % H, c0 = blockIdx.z * 16;
    int64_t base = ((int64_t)b * T + n * 64) * H + hd;
    const float* qp = q + (base + (int64_t)(r0 + gr) * H) * 64 + 4 * t;
    const float* sp = st + (((int64_t)b * (T / 64) + n) * H + hd) * 64 * V + c0 + gr;
    float hf[2][4][4];
    uint32_t ah[4][4], al[4][4];
    #pragma unroll
    for (int p = 0; p < 2; ++p)
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int e = 0; e < 4; ++e) hf[p][i][e] = sp[(int64_t)(16 * i + 4 * t + e) * V + 8 * p];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        float4 x = *(const float4*)(qp + 16 * i), y = *(const float4*)(qp + 8 * H * 64 + 16 * i);
        split(x.x, x.y, ah[i][0], al[i][0]);
        split(y.x, y.y, ah[i][1], al[i][1]);
        split(x.z, x.w, ah[i][2], al[i][2]);
        split(y.z, y.w, ah[i][3], al[i][3]);
    }
    float ga = g[base + (int64_t)(r0 + gr) * H] * LOG2E, gb = g[base + (int64_t)(r0 + gr + 8) * H] * LOG2E;
    float acc[2][4] = {};
    #pragma unroll
    for (int p = 0; p < 2; ++p) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t bh[2], bl[2];
            split(hf[p][i][0], hf[p][i][1], bh[0], bl[0]);
            split(hf[p][i][2], hf[p][i][3], bh[1], bl[1]);
            mma3(acc[p], ah[i], al[i], bh, bl);
        }
        float ea = exp2f(ga), eb = exp2f(gb);
        acc[p][0] *= ea; acc[p][1] *= ea; acc[p][2] *= eb; acc[p][3] *= eb;
    }
    #pragma unroll 2
    for (int j0 = 0; j0 <= r0; j0 += 16) {
        float vf[2][4], c[2][4] = {};
        #pragma unroll
        for (int p = 0; p < 2; ++p)
            #pragma unroll
            for (int e = 0; e < 4; ++e) vf[p][e] = v[(base + (int64_t)(j0 + 2 * t + (e & 1) + (e >> 1) * 8) * H) * V + c0 + 8 * p + gr];
        #pragma unroll
        for (int p = 0; p < 2; ++p) {
            const float* kp = k + (base + (int64_t)(j0 + 8 * p + gr) * H) * 64 + 4 * t;
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                float4 x = *(const float4*)(kp + 16 * i);
                uint32_t bh[2], bl[2];
                split(x.x, x.y, bh[0], bl[0]);
                split(x.z, x.w, bh[1], bl[1]);
                mma3(c[p], ah[i], al[i], bh, bl);
            }
            int j = j0 + 8 * p + 2 * t, ra = r0 + gr, rb = ra + 8;
            float g0 = g[base + (int64_t)j * H] * LOG2E, g1 = g[base + (int64_t)(j + 1) * H] * LOG2E;
            c[p][0] = ra >= j ? c[p][0] * exp2f(ga - g0) : 0.f;
            c[p][1] = ra >= j + 1 ? c[p][1] * exp2f(ga - g1) : 0.f;
            c[p][2] = rb >= j ? c[p][2] * exp2f(gb - g0) : 0.f;
            c[p][3] = rb >= j + 1 ? c[p][3] * exp2f(gb - g1) : 0.f;
        }
        uint32_t ch[4], cl[4];
        split(c[0][0], c[0][1], ch[0], cl[0]);
        split(c[0][2], c[0][3], ch[1], cl[1]);
        split(c[1][0], c[1][1], ch[2], cl[2]);
        split(c[1][2], c[1][3], ch[3], cl[3]);
        #pragma unroll
        for (int p = 0; p < 2; ++p) {
            uint32_t bh[2], bl[2];
            split(vf[p][0], vf[p][1], bh[0], bl[0]);
            split(vf[p][2], vf[p][3], bh[1], bl[1]);
            mma3(acc[p], ch, cl, bh, bl);
        }
    }
    #pragma unroll
    for (int p = 0; p < 2; ++p) {
        float* op = o + (base + (int64_t)(r0 + gr) * H) * V + c0 + 8 * p + 2 * t;
        *(float2*)op = make_float2(acc[p][0] * 0.125f, acc[p][1] * 0.125f);
        *(float2*)(op + (int64_t)8 * H * V) = make_float2(acc[p][2] * 0.125f, acc[p][3] * 0.125f);
    }
}
''' + launch("dim3(T / 16, B * H, V / 16)", 32)

C_FP32 = INC + r'''
constexpr int BR = 32, THREADS = 128;
struct Smem { float q[BR][68], k[64][68], v[64][64], h[64][64], s[BR][68], g[64]; };
__device__ __forceinline__ void copy16(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}
__global__ void __launch_bounds__(THREADS) out(''' + ARGS + r''') {
    extern __shared__ __align__(16) unsigned char raw[];
    Smem& m = *(Smem*)raw;
    int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
    int n = blockIdx.x >> 1, r0 = (1 - (blockIdx.x & 1)) * BR, b = blockIdx.y / H, hd = blockIdx.y % H, c0 = blockIdx.z * 64, jn = r0 + BR;
    int64_t base = ((int64_t)b * T + n * 64) * H + hd;
    const float* sp = st + (((int64_t)b * (T / 64) + n) * H + hd) * 64 * V + c0;
    for (int i = tid; i < BR * 16; i += THREADS) copy16(&m.q[i / 16][i % 16 * 4], q + (base + (int64_t)(r0 + i / 16) * H) * 64 + i % 16 * 4);
    for (int i = tid; i < jn * 16; i += THREADS) copy16(&m.k[i / 16][i % 16 * 4], k + (base + (int64_t)(i / 16) * H) * 64 + i % 16 * 4);
    asm volatile("cp.async.commit_group;");
    for (int i = tid; i < 64 * 16; i += THREADS) copy16(&m.h[i / 16][i % 16 * 4], sp + (int64_t)(i / 16) * V + i % 16 * 4);
    for (int i = tid; i < jn * 16; i += THREADS) copy16(&m.v[i / 16][i % 16 * 4], v + (base + (int64_t)(i / 16) * H) * V + c0 + i % 16 * 4);
    asm volatile("cp.async.commit_group;");
    if (tid < 64) m.g[tid] = g[base + (int64_t)tid * H] * LOG2E;
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    float acc[4][4] = {};
    #pragma unroll 4
    for (int x = 0; x < 64; x += 4) {
        float4 a[4], c[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) { a[i] = *(float4*)&m.q[ty * 4 + i][x]; c[i] = *(float4*)&m.k[tx + 16 * i][x]; }
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int l = 0; l < 4; ++l)
                acc[i][l] += a[i].x * c[l].x + a[i].y * c[l].y + a[i].z * c[l].z + a[i].w * c[l].w;
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int l = 0; l < 4; ++l) {
            int r = r0 + ty * 4 + i, c = tx + 16 * l;
            m.s[ty * 4 + i][c] = r >= c ? acc[i][l] * exp2f(m.g[r] - m.g[c]) : 0.f;
            acc[i][l] = 0.f;
        }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    #pragma unroll 4
    for (int x = 0; x < 64; x += 4) {
        float4 c[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) c[e] = *(float4*)&m.h[x + e][tx * 4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float4 a = *(float4*)&m.q[ty * 4 + i][x];
            float aa[4] = {a.x, a.y, a.z, a.w};
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                acc[i][0] += aa[e] * c[e].x; acc[i][1] += aa[e] * c[e].y; acc[i][2] += aa[e] * c[e].z; acc[i][3] += aa[e] * c[e].w;
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        float e = exp2f(m.g[r0 + ty * 4 + i]);
        #pragma unroll
        for (int l = 0; l < 4; ++l) acc[i][l] *= e;
    }
    #pragma unroll 4
    for (int x = 0; x < jn; x += 4) {
        float4 c[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) c[e] = *(float4*)&m.v[x + e][tx * 4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float4 a = *(float4*)&m.s[ty * 4 + i][x];
            float aa[4] = {a.x, a.y, a.z, a.w};
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                acc[i][0] += aa[e] * c[e].x; acc[i][1] += aa[e] * c[e].y; acc[i][2] += aa[e] * c[e].z; acc[i][3] += aa[e] * c[e].w;
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        *(float4*)(o + (base + (int64_t)(r0 + ty * 4 + i) * H) * V + c0 + tx * 4) =
            make_float4(acc[i][0] * 0.125f, acc[i][1] * 0.125f, acc[i][2] * 0.125f, acc[i][3] * 0.125f);
}
''' + launch("dim3(T / 32, B * H, V / 64)", "THREADS", "sizeof(Smem)")

CUDA = [
    A("fp32 4x4 register tile, everything staged by cp.async", None,
      "start without tensor cores: 32 rows per block, all four operands requested at once in two copy groups, float4 reads from padded shared memory, "
      "key loop of the second product stops at the diagonal block",
      cuda(C_FP32)),
    A("mma m16n8k8, three-term tf32, fragments straight from memory", None,
      "16 rows per block, warp w owns score columns and then value columns 8w..8w+7; the inner index is permuted so that q and k fragments are float4 loads "
      "and no operand passes through shared memory, only the 16 x 64 scores do",
      cuda(C_TF32)),
    A("m16n8k16 with two-way bf16 split, values prefetched", 1,
      "half the products of the tf32 form and scores are exchanged already split; value fragments are requested at the top so that only one memory latency is paid",
      cuda(c_bf16(16, 256, "256", 1))),
    A("no barrier: one warp per 16 x 16 outputs", 2,
      "scores are recomputed by each of the four column slices but stay in registers (accumulators of two key tiles form the next A fragment): no shared memory, no barrier, 1536 small blocks in the largest case",
      cuda(C_FLASH)),
    A("bf16 split, C-API binding", 2,
      "small cases are launch bound: replace pybind11 by a METH_FASTCALL function that reads ten integers",
      cuda(c_bf16(16, 256, "256", 1), FAST)),
    A("bf16 split, one block per chunk, 16 warps", 4,
      "four row tiles in one block of 512 threads so that k, v and h come from memory once and the repeats hit L1; 96 blocks in the largest case is less than one wave",
      cuda(c_bf16(64, 512, "512", 2), FAST)),
]

# ---------------------------------------------------------------- round 2
def direct(name, grid, opts, consts="", pointers=False):
    """custom_kernel that calls the compiled launcher itself; pointers: raw addresses instead of tensors."""
    values = "".join(", " + c.split("=")[1].strip() for c in consts.split(",") if c.strip())
    extra = ", " + consts if consts else ""
    args = ", ".join(f"{x}.data_ptr()" for x in "qkvhgo") if pointers else "q, k, v, h, g, o"
    return f'''

LAUNCH = {{}}


def custom_kernel(data):
    q, k, v, h, g = data
    o = torch.empty_like(v)
    entry = LAUNCH.get(h.shape)
    if entry is None:
        B, T, H, K = q.shape
        V = v.shape[-1]
        N, BH = T // 64, B * H
        grid = {grid}
        kernel = {name}[grid](q, k, v, h, g, o, T=T, H=H, K=K, V=V{extra}, {opts})
        if kernel is not None:
            grid = grid + (1,) * (3 - len(grid))
            head = functools.partial(kernel.run, *grid, torch.cuda.current_stream().cuda_stream, kernel.function, kernel.packed_metadata, None, None, None)
            LAUNCH[h.shape] = (head, (T, H, K, V{values}))
        return o
    entry[0]({args}, *entry[1])
    return o
'''


IMPF = IMP.replace("import torch\n", "import functools\n\nimport torch\n", 1)

MASKED = whole(BF3_BODY).replace(
    "kt = tl.load(k_ptr + src[None, :] * K + kk[:, None])",
    "live = j < r0 + BR\n    kt = tl.load(k_ptr + src[None, :] * K + kk[:, None], mask=live[None, :], other=0.0)").replace(
    "vv = tl.load(v_ptr + src[:, None] * V + cols[None, :])",
    "vv = tl.load(v_ptr + src[:, None] * V + cols[None, :], mask=live[:, None], other=0.0)").replace(
    "gj = tl.load(g_ptr + src) ", "gj = tl.load(g_ptr + src, mask=live, other=0.0) ")

# scores of the block's rows, then one product of inner length 128: [q exp(g), s] times [h; v] in halves chained on one accumulator
CHAIN = '''
@triton.jit
def parts(a):
    hi = a.to(tl.bfloat16)
    return hi, (a - hi.to(tl.float32)).to(tl.bfloat16)

''' + whole('''
qh, ql = parts(q)
kh, kl = parts(kt)
hh, hl = parts(st)
vh, vl = parts(vv)
s = tl.dot(ql, kh)
s = tl.dot(qh, kl, s)
s = tl.dot(qh, kh, s)
acc = tl.dot(ql, hh)
acc = tl.dot(qh, hl, acc)
acc = tl.dot(qh, hh, acc)
acc = acc * tl.exp2(gi)[:, None]
s = tl.where(i[:, None] >= j[None, :], s * tl.exp2(gi[:, None] - gj[None, :]), 0.0)
sh, sl = parts(s)
acc = tl.dot(sl, vh, acc)
acc = tl.dot(sh, vl, acc)
acc = tl.dot(sh, vh, acc)
''')

B16 = "BR=16, BV=64"
TRITON += [
    A("launcher called without the runner", 3,
      "cached call took 27.5 us in all three cases against 43-49 uncached, so the kernel is hidden behind the host: bind grid, stream and function once with partial, "
      "pass no hooks, and look up by h.shape alone",
      IMPF + BF3 + whole(BF3_BODY) + direct("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", B16)),
    A("raw addresses to the launcher", 8,
      "for tensor arguments the launcher calls data_ptr and asks the driver for each pointer's attributes; integers skip the query",
      IMPF + BF3 + whole(BF3_BODY) + direct("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", B16, pointers=True)),
    A("transposed products on two warps", 4,
      "attempts 4 and 7 (the two with 64 rows on M in bf16) both failed with an illegal access while the same launch path works at 16 rows; "
      "two warps cannot form a warp-group product, so this tests the layout alone",
      IMPF + BF3 + TRANSPOSED + direct("transposed_kernel", "(N * 4, BH, V // 64)", "num_warps=2, num_stages=1", "BR=16", pointers=True)),
    A("whole chunk per program in three-term tf32", 7,
      "attempt 7 failed; keep its 64-row shape and value slices but with tf32 terms and four warps, to learn whether the bf16 warp-group product was at fault",
      IMPF + whole(PLAIN_BODY.replace("PREC", "tf32x3")) + direct("whole_kernel", "(N, BH, V // 16)", "num_warps=4, num_stages=1", "BR=64, BV=16", pointers=True)),
    A("masked key and value rows", 9,
      "a block of 16 rows needs 16 to 64 keys: mask the loads above its diagonal, which removes 37 % of the k and v traffic without a loop or a branch",
      IMPF + BF3 + MASKED + direct("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", B16, pointers=True)),
    A("chained accumulators, carried part between the score products and their use", 9,
      "dot3 adds three separate accumulators; chain them instead, and issue the state products before the gate so that exp2 overlaps them",
      IMPF + CHAIN + direct("whole_kernel", "(N * 4, BH, V // 64)", "num_warps=4, num_stages=1", B16, pointers=True)),
    A("32 rows, 32 columns per program, bf16 split", 9,
      "16 x 64 tiles read k, v and h four times per chunk; 32 x 32 reads k twice per column half and v and h twice in all: the same program count with a squarer tile",
      IMPF + BF3 + whole(BF3_BODY) + direct("whole_kernel", "(N * 2, BH, V // 32)", "num_warps=4, num_stages=1", "BR=32, BV=32", pointers=True)),
]

ALL = r'''#include <torch/csrc/autograd/python_variable.h>
#include <ALLOCHEADER>
#include <cstdint>
void launch(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int, int);
static PyObject* run(PyObject*, PyObject* data) {
    const at::Tensor& q = THPVariable_Unpack(PyTuple_GET_ITEM(data, 0));
    const at::Tensor& k = THPVariable_Unpack(PyTuple_GET_ITEM(data, 1));
    const at::Tensor& v = THPVariable_Unpack(PyTuple_GET_ITEM(data, 2));
    const at::Tensor& h = THPVariable_Unpack(PyTuple_GET_ITEM(data, 3));
    const at::Tensor& g = THPVariable_Unpack(PyTuple_GET_ITEM(data, 4));
    at::Tensor o = ALLOC;
    launch((uintptr_t)q.const_data_ptr(), (uintptr_t)k.const_data_ptr(), (uintptr_t)v.const_data_ptr(), (uintptr_t)h.const_data_ptr(),
           (uintptr_t)g.const_data_ptr(), (uintptr_t)o.mutable_data_ptr(), (int)v.size(0), (int)v.size(1), (int)v.size(2), (int)v.size(3));
    return THPVariable_Wrap(std::move(o));
}
static PyMethodDef methods[] = {{"run", run, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef moddef = {PyModuleDef_HEAD_INIT, "ext", nullptr, -1, methods};
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
PyMODINIT_FUNC GLUE(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&moddef); }
'''
ALL_LIKE = ALL.replace("ALLOCHEADER", "ATen/ops/empty_like.h").replace("ALLOC", "at::empty_like(v)")
HOST_ALL = '''

def custom_kernel(data):
    return ext.run(data)
'''

# Tensors handled in C through the interpreter's own API; no torch headers
CAPI = r'''#include <Python.h>
#include <cstdint>
void launch(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int, int);
static PyObject *empty_like, *data_ptr, *shape;
static uintptr_t address(PyObject* t) {
    PyObject* r = PyObject_VectorcallMethod(data_ptr, &t, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    uintptr_t p = PyLong_AsUnsignedLongLong(r);
    Py_DECREF(r);
    return p;
}
static PyObject* run(PyObject*, PyObject* data) {
    PyObject* slots[8];
    PyObject** x = slots + 1;
    for (int i = 0; i < 5; ++i) x[i] = PyTuple_GET_ITEM(data, i);
    PyObject* o = PyObject_Vectorcall(empty_like, &x[2], 1, nullptr);
    if (!o) return nullptr;
    PyObject* s = PyObject_GetAttr(x[2], shape);
    int d[4];
    for (int i = 0; i < 4; ++i) d[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(s, i));
    Py_DECREF(s);
    uintptr_t p[6];
    for (int i = 0; i < 5; ++i) {
        PyObject* one[2] = {nullptr, x[i]};
        PyObject* r = PyObject_VectorcallMethod(data_ptr, one + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
        p[i] = PyLong_AsUnsignedLongLong(r);
        Py_DECREF(r);
    }
    {
        PyObject* one[2] = {nullptr, o};
        PyObject* r = PyObject_VectorcallMethod(data_ptr, one + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
        p[5] = PyLong_AsUnsignedLongLong(r);
        Py_DECREF(r);
    }
    launch(p[0], p[1], p[2], p[3], p[4], p[5], d[0], d[1], d[2], d[3]);
    return o;
}
static PyObject* init(PyObject*, PyObject* f) {
    Py_INCREF(f);
    empty_like = f;
    data_ptr = PyUnicode_InternFromString("data_ptr");
    shape = PyUnicode_InternFromString("shape");
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"run", run, METH_O, ""}, {"init", init, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef moddef = {PyModuleDef_HEAD_INIT, "ext", nullptr, -1, methods};
#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
PyMODINIT_FUNC GLUE(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&moddef); }
'''.replace('''static uintptr_t address(PyObject* t) {
    PyObject* r = PyObject_VectorcallMethod(data_ptr, &t, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    uintptr_t p = PyLong_AsUnsignedLongLong(r);
    Py_DECREF(r);
    return p;
}
''', "")
HOST_CAPI = '''
ext.init(torch.empty_like)


def custom_kernel(data):
    return ext.run(data)
'''

# Two warp groups of eight: one computes scores, the other the carried part, at the same time
C_SPLIT = INC + BF16 + r'''
__global__ void __launch_bounds__(512) out(''' + ARGS + r''') {
    __shared__ uint32_t sh[16][36], sl[16][36];
    __shared__ float2 carried[8][2][32];
    int lane = threadIdx.x & 31, w = (threadIdx.x >> 5) & 7, gr = lane >> 2, t = lane & 3;
    bool scores = threadIdx.x < 256;
    int n = blockIdx.x >> 2, r0 = (3 - (blockIdx.x & 3)) * 16, b = blockIdx.y / H, hd = blockIdx.y % H;
    int64_t base = ((int64_t)b * T + n * 64) * H + hd;
    const float* qp = q + (base + (int64_t)(r0 + gr) * H) * 64 + 4 * t;
    int j = 8 * w + gr, col = blockIdx.z * 64 + j;
    float ga = g[base + (int64_t)(r0 + gr) * H] * LOG2E, gb = g[base + (int64_t)(r0 + gr + 8) * H] * LOG2E;
    uint32_t ah[4][4], al[4][4];
    float4 qa[4], qb[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        qa[i] = *(const float4*)(qp + 16 * i);
        qb[i] = *(const float4*)(qp + 8 * H * 64 + 16 * i);
    }
    float bf[4][4], vf[4][4];
    if (scores) {
        if (8 * w < r0 + 16) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                float4 x = *(const float4*)(k + (base + (int64_t)j * H) * 64 + 4 * t + 16 * i);
                bf[i][0] = x.x; bf[i][1] = x.y; bf[i][2] = x.z; bf[i][3] = x.w;
            }
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int e = 0; e < 4; ++e)
                if (16 * i < r0 + 16) vf[i][e] = v[(base + (int64_t)(16 * i + 2 * t + (e & 1) + (e >> 1) * 8) * H) * V + col];
    } else {
        const float* sp = st + (((int64_t)b * (T / 64) + n) * H + hd) * 64 * V + col;
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int e = 0; e < 4; ++e) bf[i][e] = sp[(int64_t)(16 * i + 4 * t + e) * V];
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        split(qa[i].x, qa[i].y, ah[i][0], al[i][0]);
        split(qb[i].x, qb[i].y, ah[i][1], al[i][1]);
        split(qa[i].z, qa[i].w, ah[i][2], al[i][2]);
        split(qb[i].z, qb[i].w, ah[i][3], al[i][3]);
    }
    float c[4] = {};
    if (!scores || 8 * w < r0 + 16) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t bh[2], bl[2];
            split(bf[i][0], bf[i][1], bh[0], bl[0]);
            split(bf[i][2], bf[i][3], bh[1], bl[1]);
            mma3(c, ah[i], al[i], bh, bl);
        }
        if (scores) {
            int jj = 8 * w + 2 * t, ra = r0 + gr, rb = ra + 8;
            float g0 = g[base + (int64_t)jj * H] * LOG2E, g1 = g[base + (int64_t)(jj + 1) * H] * LOG2E;
            c[0] = ra >= jj ? c[0] * exp2f(ga - g0) : 0.f;
            c[1] = ra >= jj + 1 ? c[1] * exp2f(ga - g1) : 0.f;
            c[2] = rb >= jj ? c[2] * exp2f(gb - g0) : 0.f;
            c[3] = rb >= jj + 1 ? c[3] * exp2f(gb - g1) : 0.f;
            split(c[0], c[1], sh[gr][4 * w + t], sl[gr][4 * w + t]);
            split(c[2], c[3], sh[gr + 8][4 * w + t], sl[gr + 8][4 * w + t]);
        } else {
            float ea = exp2f(ga), eb = exp2f(gb);
            carried[w][0][lane] = make_float2(c[0] * ea, c[1] * ea);
            carried[w][1][lane] = make_float2(c[2] * eb, c[3] * eb);
        }
    }
    __syncthreads();
    if (!scores) return;
    float2 x = carried[w][0][lane], y = carried[w][1][lane];
    float acc[4] = {x.x, x.y, y.x, y.y};
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
        if (16 * u < r0 + 16) {
            int p = 8 * u + t;
            uint32_t ch[4] = {sh[gr][p], sh[gr + 8][p], sh[gr][p + 4], sh[gr + 8][p + 4]};
            uint32_t cl[4] = {sl[gr][p], sl[gr + 8][p], sl[gr][p + 4], sl[gr + 8][p + 4]};
            uint32_t bh[2], bl[2];
            split(vf[u][0], vf[u][1], bh[0], bl[0]);
            split(vf[u][2], vf[u][3], bh[1], bl[1]);
            mma3(acc, ch, cl, bh, bl);
        }
    }
    float* op = o + (base + (int64_t)(r0 + gr) * H) * V + blockIdx.z * 64 + 8 * w + 2 * t;
    *(float2*)op = make_float2(acc[0] * 0.125f, acc[1] * 0.125f);
    *(float2*)(op + (int64_t)8 * H * V) = make_float2(acc[2] * 0.125f, acc[3] * 0.125f);
}
''' + launch("dim3(T / 16, B * H, V / 64)", 512)


def driver_launch(src, grid, threads):
    """Replaces the runtime launch by cuLaunchKernel on a function handle that is looked up once."""
    head = src[:src.rindex("\nvoid launch(")]
    gx, gy, gz = grid
    return head.replace("#include <cuda_runtime.h>", "#include <cuda.h>\n#include <cuda_runtime.h>", 1) + f'''
void launch({PARAMS}) {{
    static CUfunction fn = nullptr;
    static CUresult (*start)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**) = nullptr;
    if (!start) {{
        cudaFree(nullptr);
        cudaFunction_t f;
        cudaGetFuncBySymbol(&f, (const void*)out);
        fn = (CUfunction)f;
        cudaDriverEntryPointQueryResult r;
        cudaGetDriverEntryPointByVersion("cuLaunchKernel", (void**)&start, 12000, cudaEnableDefault, &r);
    }}
    void* args[] = {{&q, &k, &v, &st, &g, &o, &T, &H, &V}};
    start(fn, {gx}, {gy}, {gz}, {threads}, 1, 1, 0, (CUstream)0, args, nullptr);
}}
'''


CUDA += [
    A("bf16 split, whole call in C++", 4,
      "the C-API binding brought 26.4 us (reference 210) to 20.1 us (reference 265), so the host still dominates: unpack the tuple, allocate and wrap in C++, one Python call in all",
      cuda(c_bf16(16, 256, "256", 1), ALL_LIKE, HOST_ALL)),
    A("bf16 split, tensors handled through the interpreter's C API", 4,
      "same aim as attempt 6 without torch headers: empty_like and data_ptr are called from C by vectorcall, which costs 7 s to compile instead of 20 but keeps the method calls",
      cuda(c_bf16(16, 256, "256", 1), CAPI, HOST_CAPI)),
    A("driver launch with a cached function handle", 6,
      "cudaLaunchKernel looks the function up per call; take the handle once and call cuLaunchKernel",
      cuda(driver_launch(c_bf16(16, 256, "256", 1), ("T / 16", "B * H", "V / 64"), 256), ALL_LIKE, HOST_ALL)),
    A("32 rows per block, two tiles of eight columns per warp", 6,
      "122 registers leave two blocks of 256 threads per SM, so 384 blocks take two waves in the largest case (22.4 us against 20.1 for one chunk); "
      "32-row blocks read k, v and h half as often and 192 blocks fit one wave",
      cuda(c_bf16(32, 256, "256", 2), ALL_LIKE, HOST_ALL)),
    A("scores and carried part on different warps", 6,
      "16 warps per block: eight compute scores while eight multiply q by the state, then the first eight finish; shorter chain and fewer registers per thread",
      cuda(C_SPLIT, ALL_LIKE, HOST_ALL)),
    A("fp32 register tile, whole call in C++", 0,
      "attempt 0 was only 2 us behind the tensor-core form with the same binding; with the host removed, how much do the tensor cores matter?",
      cuda(C_FP32, ALL_LIKE, HOST_ALL)),
]

# ---------------------------------------------------------------- round 3
def bare(name, grid, opts, consts=""):
    """custom_kernel that calls the C launch function under the launcher object, with everything but addresses bound."""
    values = "".join(", " + c.split("=")[1].strip() for c in consts.split(",") if c.strip())
    extra = ", " + consts if consts else ""
    return f'''

LAUNCH = {{}}


def bind(kernel, grid, tail):
    """The C function below the launcher object: note what the object would pass on, and bind the part before our arguments."""
    launcher = kernel.run
    fixed = (*grid, torch.cuda.current_stream().cuda_stream, kernel.function, kernel.packed_metadata, None, None, None)
    real, seen = getattr(launcher, "launch", None), []
    if real is None:
        return functools.partial(launcher, *fixed)
    args = (1, 2, 3, 4, 5, 6) + tail
    launcher.launch = lambda *a: seen.append(a)
    try:
        launcher(*fixed, *args)
    finally:
        launcher.launch = real
    a = seen[0]
    if a[-len(args):] == args:
        return functools.partial(real, *a[:-len(args)])
    return functools.partial(launcher, *fixed)


def custom_kernel(data):
    q, k, v, h, g = data
    o = torch.empty_like(v)
    entry = LAUNCH.get(h.shape)
    if entry is None:
        B, T, H, K = q.shape
        V = v.shape[-1]
        N, BH = T // 64, B * H
        grid = {grid}
        kernel = {name}[grid](q, k, v, h, g, o, T=T, H=H, K=K, V=V{extra}, {opts})
        if kernel is not None:
            tail = (T, H, K, V{values})
            LAUNCH[h.shape] = (bind(kernel, grid, tail), tail)
        return o
    entry[0](q.data_ptr(), k.data_ptr(), v.data_ptr(), h.data_ptr(), g.data_ptr(), o.data_ptr(), *entry[1])
    return o
'''


SUBSTATE = '''
@triton.jit
def substate_kernel(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
                    V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    NT: tl.constexpr = T // 64
    PR: tl.constexpr = 64 // BR
    n = tl.program_id(0) // PR
    r0 = (tl.program_id(0) % PR) * BR
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    j = tl.arange(0, 64)
    i = r0 + tl.arange(0, BR)
    cols = tl.program_id(2) * BV + tl.arange(0, BV)
    base = b * T + n * 64
    row = (base + i) * H + h
    src = (base + j) * H + h
    before = j < r0
    q = tl.load(q_ptr + row[:, None] * K + kk[None, :])
    kt = tl.load(k_ptr + src[None, :] * K + kk[:, None], mask=before[None, :], other=0.0)
    vv = tl.load(v_ptr + src[:, None] * V + cols[None, :], mask=before[:, None], other=0.0)
    st = tl.load(h_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + cols[None, :])
    kd = tl.load(k_ptr + row[None, :] * K + kk[:, None])
    vd = tl.load(v_ptr + row[:, None] * V + cols[None, :])
    gi = tl.load(g_ptr + row) * 1.4426950408889634
    gj = tl.load(g_ptr + src) * 1.4426950408889634
    g0 = tl.load(g_ptr + (base + r0) * H + h) * 1.4426950408889634
    weight = tl.exp2(tl.where(before, g0 - gj, 0.0))
    state = st * tl.exp2(g0) + dot3(kt * weight[None, :], vv)
    s = dot3(q, kd)
    s = tl.where(i[:, None] >= i[None, :], s * tl.exp2(gi[:, None] - gi[None, :]), 0.0)
    acc = dot3(q, state) * tl.exp2(gi - g0)[:, None] + dot3(s, vd)
    tl.store(o_ptr + row[:, None] * V + cols[None, :], acc * (K ** -0.5))
'''

TILES = '''
@triton.jit
def tiles_kernel(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
                 V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    NT: tl.constexpr = T // 64
    PR: tl.constexpr = 64 // BR
    n = tl.program_id(0) // PR
    r0 = (PR - 1 - tl.program_id(0) % PR) * BR
    b = tl.program_id(1) // H
    h = tl.program_id(1) % H
    kk = tl.arange(0, K)
    i = r0 + tl.arange(0, BR)
    cols = tl.program_id(2) * BV + tl.arange(0, BV)
    base = b * T + n * 64
    row = (base + i) * H + h
    q = tl.load(q_ptr + row[:, None] * K + kk[None, :])
    st = tl.load(h_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + cols[None, :])
    gi = tl.load(g_ptr + row) * 1.4426950408889634
    acc = dot3(q, st) * tl.exp2(gi)[:, None]
    for block in tl.static_range(PR):
        if block * BR <= r0:
            j = block * BR + tl.arange(0, BR)
            src = (base + j) * H + h
            kt = tl.load(k_ptr + src[None, :] * K + kk[:, None])
            vv = tl.load(v_ptr + src[:, None] * V + cols[None, :])
            gj = tl.load(g_ptr + src) * 1.4426950408889634
            s = dot3(q, kt)
            s = tl.where(i[:, None] >= j[None, :], s * tl.exp2(gi[:, None] - gj[None, :]), 0.0)
            acc += dot3(s, vv)
    tl.store(o_ptr + row[:, None] * V + cols[None, :], acc * (K ** -0.5))
'''

SLICED = TRANSPOSED.replace("V: tl.constexpr, BR: tl.constexpr", "V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr").replace(
    "tl.program_id(2) * 64 + tl.arange(0, 64)", "tl.program_id(2) * BV + tl.arange(0, BV)")
FP16_3 = BF3.replace("tl.bfloat16", "tl.float16")
ROWGRID = "(N * 4, BH, V // 64)"

TRITON += [
    A("C launch function bound directly", 13,
      "raw addresses gave 21.5 against 22.6-23.9 us and the kernel variants 9, 12 and 13 are equal, so only the host counts below 1024 steps: "
      "go one layer deeper, past the Python launcher object that checks scratch sizes on every call",
      IMPF + CHAIN + bare("whole_kernel", ROWGRID, "num_warps=4, num_stages=1", B16)),
    A("two warps per program", 15,
      "384 programs of four warps; with two warps each has more independent products per warp and cheaper barriers, and more programs fit an SM",
      IMPF + CHAIN + bare("whole_kernel", ROWGRID, "num_warps=2, num_stages=1", B16)),
    A("state advanced to the first row of the block", 15,
      "other algorithm: fold all earlier keys of the chunk into the state, h(r0) = exp(g_r0) h + sum exp(g_r0 - g_j) k_j v_j^T (every factor at most 1), "
      "so that a block needs one state product and a 16 x 16 diagonal; two warps because 64-row bf16 products on four failed twice (4, 7) and worked on two (10)",
      IMPF + BF3 + SUBSTATE + bare("substate_kernel", ROWGRID, "num_warps=2, num_stages=1", B16)),
    A("transposed, one warp per 32 columns", 10,
      "transposed on two warps was fastest for one chunk (20.9 us) but 1.4 us slower than attempt 9 in the larger cases; halve the columns per program and drop the barriers with one warp",
      IMPF + BF3 + SLICED + bare("transposed_kernel", "(N * 4, BH, V // 32)", "num_warps=1, num_stages=1", "BR=16, BV=32")),
    A("unrolled 16-key tiles behind uniform branches", 15,
      "masked loads (12) saved traffic but not products: skip whole 16-key tiles above the diagonal; the price is one memory latency per tile",
      IMPF + BF3 + TILES + bare("tiles_kernel", ROWGRID, "num_warps=4, num_stages=1", B16)),
    A("compiler's own three-term bf16", 15,
      "input_precision bf16x3 leaves the split to the compiler, which can share converted fragments between the products of the same operand",
      IMPF + whole(PLAIN_BODY.replace("PREC", "bf16x3")) + bare("whole_kernel", ROWGRID, "num_warps=4, num_stages=1", B16)),
    A("fp16 split instead of bf16", 15,
      "same instruction count with 22 instead of 16 bits per factor; all factors are far below 65504 and parts below 6e-8 do not matter at 1e-3: more accuracy for nothing, if the conversions cost the same",
      IMPF + FP16_3 + whole(BF3_BODY) + bare("whole_kernel", ROWGRID, "num_warps=4, num_stages=1", B16)),
]

ALL_CUDA = ALL.replace("ALLOCHEADER", "ATen/cuda/EmptyTensor.h").replace("at::Tensor o = ALLOC", "at::Tensor o(at::detail::empty_cuda(v.sizes(), v.options()))")


def optimised(code):
    """Host source compiled with -O2: load_inline passes no optimisation flag for it."""
    return code.replace("chunk_o_", "chunk_o2_").replace("extra_cuda_cflags=", 'extra_cflags=["-O2"], extra_cuda_cflags=')


HELPERS = r'''
__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
'''
STAGE_ASYNC = r'''
    for (int i = tid; i < 32 * 16; i += 256) copy16(&m.q[i / 16][i % 16 * 4], q + (base + (int64_t)(R0 + i / 16) * H) * 64 + i % 16 * 4);
    for (int i = tid; i < jn * 16; i += 256) copy16(&m.k[i / 16][i % 16 * 4], k + (base + (int64_t)(i / 16) * H) * 64 + i % 16 * 4);
    asm volatile("cp.async.commit_group;");
    for (int i = tid; i < 64 * 16; i += 256) copy16(&m.h[i / 16][i % 16 * 4], sp + (int64_t)(i / 16) * V + i % 16 * 4);
    asm volatile("cp.async.commit_group;");
    for (int i = tid; i < jn * 16; i += 256) copy16(&m.v[i / 16][i % 16 * 4], v + (base + (int64_t)(i / 16) * H) * V + c0 + i % 16 * 4);
    asm volatile("cp.async.commit_group;");
    if (tid < 64) m.g[tid] = g[base + (int64_t)tid * H] * LOG2E;
'''
COPY16 = r'''
__device__ __forceinline__ void copy16(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address(to)), "l"(from) : "memory");
}
'''
BARS = r'''
__device__ __forceinline__ void expect(const void* bar, int bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(bar)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(const void* bar) {
    uint32_t ok;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(address(bar)) : "memory");
    } while (!ok);
}
// one row of 64 floats
__device__ __forceinline__ void row(float* to, const float* from, const void* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
        :: "r"(address(to)), "l"(from), "r"(address(bar)) : "memory");
}
'''
MULTICAST = r'''
__device__ __forceinline__ void row2(float* to, const float* from, const void* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, [%2], %3;"
        :: "r"(address(to)), "l"(from), "r"(address(bar)), "h"((uint16_t)3) : "memory");
}
__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
'''
STAGE_BULK = r'''
    if (tid == 0) {
        expect(&m.bar[0], (32 + jn) * 256);
        expect(&m.bar[1], 64 * 256);
        expect(&m.bar[2], jn * 256);
    }
    __syncthreads();
    if (tid < 32) row(m.q[tid], q + (base + (int64_t)(R0 + tid) * H) * 64, &m.bar[0]);
    else if (tid < 96) { if (tid - 32 < jn) row(m.k[tid - 32], k + (base + (int64_t)(tid - 32) * H) * 64, &m.bar[0]); }
    else if (tid < 160) row(m.h[tid - 96], sp + (int64_t)(tid - 96) * V, &m.bar[1]);
    else if (tid < 224) { if (tid - 160 < jn) row(m.v[tid - 160], v + (base + (int64_t)(tid - 160) * H) * V + c0, &m.bar[2]); }
    if (tid < 64) m.g[tid] = g[base + (int64_t)tid * H] * LOG2E;
    __syncthreads();
'''
STAGE_CLUSTER = r'''
    if (tid == 0) {
        expect(&m.bar[0], (32 + 64) * 256);
        expect(&m.bar[1], 64 * 256);
        expect(&m.bar[2], 64 * 256);
    }
    __syncthreads();
    meet();
    int x = R0 + (tid & 31);  // each block of the pair fetches its half of k, h and v for both
    if (tid < 32) row(m.q[tid], q + (base + (int64_t)x * H) * 64, &m.bar[0]);
    else if (tid < 64) row2(m.k[x], k + (base + (int64_t)x * H) * 64, &m.bar[0]);
    else if (tid < 96) row2(m.h[x], sp + (int64_t)x * V, &m.bar[1]);
    else if (tid < 128) row2(m.v[x], v + (base + (int64_t)x * H) * V + c0, &m.bar[2]);
    if (tid < 64) m.g[tid] = g[base + (int64_t)tid * H] * LOG2E;
    __syncthreads();
'''
WAIT_ASYNC = ('asm volatile("cp.async.wait_group 2;" ::: "memory");\n    __syncthreads();', 'asm volatile("cp.async.wait_group 1;" ::: "memory");\n    __syncthreads();', 'asm volatile("cp.async.wait_group 0;" ::: "memory");\n    __syncthreads();')
WAIT_BULK = ("wait(&m.bar[0]);", "wait(&m.bar[1]);", "wait(&m.bar[2]);\n    __syncthreads();")


def staged(helpers, stage, waits, part="1 - (blockIdx.x & 1)", attr="", end=""):
    """32 rows per block, operands staged in shared memory, fragments split to bf16 when read."""
    return INC + BF16 + HELPERS + helpers + r'''
// pitches 72 (float2 fragment reads) and 68 (column reads) are free of bank conflicts
struct __align__(16) Smem { float q[32][72], k[64][72], h[64][68], v[64][68]; uint32_t sh[32][36], sl[32][36]; float g[64]; uint64_t bar[4]; };
__global__ void ''' + attr + "__launch_bounds__(256) out(" + ARGS + r''') {
    extern __shared__ __align__(16) unsigned char raw[];
    Smem& m = *(Smem*)raw;
    int tid = threadIdx.x, lane = tid & 31, w = (tid >> 5) & 3, mt = tid >> 7, gr = lane >> 2, t = lane & 3;
    int n = blockIdx.x >> 1, R0 = (''' + part + r''') * 32, jn = R0 + 32, b = blockIdx.y / H, hd = blockIdx.y % H, c0 = blockIdx.z * 64;
    int64_t base = ((int64_t)b * T + n * 64) * H + hd;
    const float* sp = st + (((int64_t)b * (T / 64) + n) * H + hd) * 64 * V + c0;
''' + stage + "    " + waits[0] + r'''
    int la = mt * 16 + gr, lb = la + 8, ra = R0 + la, rb = ra + 8;
    uint32_t ah[4][4], al[4][4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            float2 x = *(float2*)&m.q[(e & 1) ? lb : la][16 * i + 2 * t + (e >> 1) * 8];
            split(x.x, x.y, ah[i][e], al[i][e]);
        }
    }
    float ga = m.g[ra], gb = m.g[rb];
    #pragma unroll
    for (int p = 0; p < 2; ++p) {
        int tile = 2 * w + p;
        if (8 * tile < R0 + mt * 16 + 16) {
            float c[4] = {};
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint32_t bh[2], bl[2];
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float2 x = *(float2*)&m.k[8 * tile + gr][16 * i + 2 * t + 8 * e];
                    split(x.x, x.y, bh[e], bl[e]);
                }
                mma3(c, ah[i], al[i], bh, bl);
            }
            int j = 8 * tile + 2 * t;
            float g0 = m.g[j], g1 = m.g[j + 1];
            c[0] = ra >= j ? c[0] * exp2f(ga - g0) : 0.f;
            c[1] = ra >= j + 1 ? c[1] * exp2f(ga - g1) : 0.f;
            c[2] = rb >= j ? c[2] * exp2f(gb - g0) : 0.f;
            c[3] = rb >= j + 1 ? c[3] * exp2f(gb - g1) : 0.f;
            split(c[0], c[1], m.sh[la][4 * tile + t], m.sl[la][4 * tile + t]);
            split(c[2], c[3], m.sh[lb][4 * tile + t], m.sl[lb][4 * tile + t]);
        }
    }
    ''' + waits[1] + r'''
    float acc[2][4] = {};
    float ea = exp2f(ga), eb = exp2f(gb);
    #pragma unroll
    for (int p = 0; p < 2; ++p) {
        int col = 8 * (2 * w + p) + gr;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t bh[2], bl[2];
            #pragma unroll
            for (int e = 0; e < 2; ++e) split(m.h[16 * i + 2 * t + 8 * e][col], m.h[16 * i + 2 * t + 8 * e + 1][col], bh[e], bl[e]);
            mma3(acc[p], ah[i], al[i], bh, bl);
        }
        acc[p][0] *= ea; acc[p][1] *= ea; acc[p][2] *= eb; acc[p][3] *= eb;
    }
    ''' + waits[2] + r'''
    #pragma unroll
    for (int u = 0; u < 4; ++u) {
        if (16 * u < R0 + mt * 16 + 16) {
            int x = 8 * u + t;
            uint32_t ch[4] = {m.sh[la][x], m.sh[lb][x], m.sh[la][x + 4], m.sh[lb][x + 4]};
            uint32_t cl[4] = {m.sl[la][x], m.sl[lb][x], m.sl[la][x + 4], m.sl[lb][x + 4]};
            #pragma unroll
            for (int p = 0; p < 2; ++p) {
                int col = 8 * (2 * w + p) + gr;
                uint32_t bh[2], bl[2];
                #pragma unroll
                for (int e = 0; e < 2; ++e) split(m.v[16 * u + 2 * t + 8 * e][col], m.v[16 * u + 2 * t + 8 * e + 1][col], bh[e], bl[e]);
                mma3(acc[p], ch, cl, bh, bl);
            }
        }
    }
    #pragma unroll
    for (int p = 0; p < 2; ++p) {
        float* op = o + (base + (int64_t)ra * H) * V + c0 + 8 * (2 * w + p) + 2 * t;
        *(float2*)op = make_float2(acc[p][0] * 0.125f, acc[p][1] * 0.125f);
        *(float2*)(op + (int64_t)8 * H * V) = make_float2(acc[p][2] * 0.125f, acc[p][3] * 0.125f);
    }
''' + end + "}\n" + launch("dim3(T / 32, B * H, V / 64)", 256, "sizeof(Smem)")


CUDA += [
    A("whole call in C++, host source optimised", 6,
      "attempt 7 took 15.7 us where attempt 6, with fewer steps, took 19.3: load_inline gives the host source no -O flag, so the torch headers (and pybind11 in attempts 0-3) run unoptimised; compile it with -O2",
      optimised(cuda(c_bf16(16, 256, "256", 1), ALL_LIKE, HOST_ALL))),
    A("three blocks per SM", 7,
      "1024 steps cost 3.9 us more than one chunk (19.6 against 15.7) because 384 blocks of 122 registers take two waves; cap at three blocks per SM, one wave, and let the compiler delay some loads",
      cuda(c_bf16(16, 256, "256, 3", 1), CAPI, HOST_CAPI)),
    A("32 rows staged by cp.async, fragments split on reading", 7,
      "attempt 9 lost at 26.8 us because prefetched operands fill 144 registers; stage them in shared memory instead (72 KB, three copy groups), so 192 blocks sit in one wave and rows are read as full 256-byte lines",
      cuda(staged(COPY16, STAGE_ASYNC, WAIT_ASYNC), CAPI, HOST_CAPI)),
    A("rows fetched by the bulk-copy engine", 14,
      "14 issues about fourteen cp.async per thread; one 256-byte bulk copy per row and three mbarriers leave the threads free and need one instruction per row",
      cuda(staged(BARS, STAGE_BULK, WAIT_BULK), CAPI, HOST_CAPI)),
    A("pairs of blocks share k, v and h by multicast", 15,
      "the two halves of a chunk read the same k, v and h: a cluster of two fetches each row once and multicasts it into both shared memories",
      cuda(staged(BARS + MULTICAST, STAGE_CLUSTER, WAIT_BULK, "blockIdx.x & 1", "__cluster_dims__(2, 1, 1) ", "    meet();\n"), CAPI, HOST_CAPI)),
    A("optimised C++ call, direct allocation, driver launch", 12,
      "remove what is left on the host: allocate from the CUDA allocator without the dispatcher, launch through the driver with a cached handle; worth more once the host source is optimised",
      optimised(cuda(driver_launch(c_bf16(16, 256, "256", 1), ("T / 16", "B * H", "V / 64"), 256), ALL_CUDA, HOST_ALL))),
]

SERIES = {"triton": TRITON, "cuda": CUDA}
