"""Attempts of two agents on fp8_quant: Triton and CUDA C++."""
import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import heads

#: Interpreted checks cannot use the cached launcher; they take the ordinary launch instead.
PLAIN = bool(os.environ.get("FP8_PLAIN"))


def A(title, parent, note, code):
    return dict(title=title, parent=parent, note=note, code=heads.HEAD["fp8_quant"] + code)


# ---------------------------------------------------------------- Triton
IMPORTS = """import torch
import triton
import triton.language as tl
"""


def direct(kernel, consts, pick, *, imports=IMPORTS, host=None, pdl=False):
    """A program whose kernel has its constants first; the compiled kernel's C launcher is called with plain integers.

    consts: expression of the constants, may use n, size, and the names that `pick` sets (grid, warps, ...).
    """
    if PLAIN:
        return imports + kernel + f"""

def custom_kernel(data):
    x, x_q, x_s = data
    n = x_s.numel()
    size = x.numel() // n
{pick}    kernel[(grid,)]({consts}, x, x_q, x_s, num_warps=warps)
    return x_q, x_s
"""
    imports = imports.replace("import torch\n", "from functools import partial\n\nimport torch\n")
    return imports + kernel + f"""

def prepare(x, x_q, x_s):
    n = x_s.numel()
    size = x.numel() // n
{pick}    const = ({consts},)
    k = kernel.warmup(*const, x, x_q, x_s, grid=(grid,), num_warps=warps)
    # the C function behind the launcher: grid, stream, function, flags, scratch, metadata, hooks, arguments
    return partial(k.run.launch, grid, 1, 1, 0, k.function, False, {pdl}, None, None, k.packed_metadata,
                   None, None, None, *const)


ready = {{}}


""" + (host or """def custom_kernel(data):
    x, x_q, x_s = data
    key = (x.numel(), x_s.numel())
    go = ready.get(key)
    if go is None:
        go = ready[key] = prepare(x, x_q, x_s)
    go(x.data_ptr(), x_q.data_ptr(), x_s.data_ptr())
    return x_q, x_s
""")


MASKED = '''

@triton.jit
def kernel(N: tl.constexpr, SIZE: tl.constexpr, G: tl.constexpr, x_ptr, q_ptr, s_ptr):
    g = tl.program_id(0) * G + tl.arange(0, G)
    live = g < N
    o = g[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + o, mask=live[:, None], other=0.0)
    top = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10)
    tl.store(s_ptr + g, top * (1.0 / 448.0), mask=live)
    tl.store(q_ptr + o, x * (448.0 / top)[:, None], mask=live[:, None])
'''

TOP_FLOAT = "top = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10)"
TOP_BITS = """bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    top = tl.maximum(tl.max(bits, axis=1).to(tl.float32, bitcast=True), 1e-10)"""


def exact(top=TOP_FLOAT, load="", store=""):
    return f'''

@triton.jit
def kernel(SIZE: tl.constexpr, G: tl.constexpr, x_ptr, q_ptr, s_ptr):
    g = tl.program_id(0) * G + tl.arange(0, G)
    o = g[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + o{load})
    {top}
    tl.store(q_ptr + o, x * (448.0 / top)[:, None]{store})
    tl.store(s_ptr + g, top * (1.0 / 448.0))
'''


SIXTEEN = """    g = 16
    while n % g:
        g //= 2
    grid, warps = n // g, 4
"""

PER_SHAPE = """    # few groups: many one-warp programs start at once; many groups: longer programs
    g, warps = (4, 1) if n <= 32768 else (32, 4)
    while n % g:
        g //= 2
    grid = n // g
"""

TWO = '''

@triton.jit
def kernel(SIZE: tl.constexpr, G: tl.constexpr, STEPS: tl.constexpr, x_ptr, q_ptr, s_ptr):
    g = tl.program_id(0) * (G * STEPS) + tl.arange(0, G)
    o = g[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + o)
    for step in tl.static_range(STEPS):
        if step + 1 < STEPS:
            ahead = tl.load(x_ptr + o + G * SIZE)
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        top = tl.maximum(tl.max(bits, axis=1).to(tl.float32, bitcast=True), 1e-10)
        tl.store(q_ptr + o, x * (448.0 / top)[:, None])
        tl.store(s_ptr + g, top * (1.0 / 448.0))
        if step + 1 < STEPS:
            x = ahead
            g += G
            o += G * SIZE
'''

DESCRIPTOR = '''

@triton.jit
def kernel(x_ptr, q_ptr, s_ptr, N, SIZE: tl.constexpr, G: tl.constexpr, TILES):
    xd = tl.make_tensor_descriptor(x_ptr, shape=[N, SIZE], strides=[SIZE, 1], block_shape=[G, SIZE])
    qd = tl.make_tensor_descriptor(q_ptr, shape=[N, SIZE], strides=[SIZE, 1], block_shape=[G, SIZE])
    for tile in tl.range(tl.program_id(0), TILES, tl.num_programs(0), num_stages=3):
        g = tile * G + tl.arange(0, G)
        x = xd.load([tile * G, 0])
        top = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10)
        qd.store([tile * G, 0], x * (448.0 / top)[:, None])
        tl.store(s_ptr + g, top * (1.0 / 448.0), mask=g < N)


def scratch(size, alignment, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


triton.set_allocator(scratch)


def custom_kernel(data):
    x, x_q, x_s = data
    n = x_s.numel()
    tiles = (n + 15) // 16
    kernel[(min(tiles, 1056),)](x, x_q, x_s, n, x.shape[1] // x_s.shape[1], 16, tiles, num_warps=4)
    return x_q, x_s
'''

GLUON = '''

@gluon.jit
def kernel(SIZE: gl.constexpr, G: gl.constexpr, W: gl.constexpr, x_ptr, q_ptr, s_ptr):
    # a warp holds whole groups, every lane 16 contiguous bytes of each; no two warps ever meet
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [128 // SIZE, SIZE // 4], [W, 1], [1, 0])
    g = gl.program_id(0) * G + gl.arange(0, G, layout=gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))
    o = gl.expand_dims(g, 1) * SIZE + gl.expand_dims(c, 0)
    x = gl.load(x_ptr + o)
    top = gl.maximum(gl.max(gl.abs(x), axis=1), 1e-10)
    gl.store(q_ptr + o, x * gl.expand_dims(448.0 / top, 1))
    gl.store(s_ptr + g, top * (1.0 / 448.0))
'''

TRITON = [
    A("compiled kernel's C launcher called with integers", None,
      "the two small cases move 8 and 17 MB, 2-4 us of memory time, yet known Triton programs need about 20 us: host time. "
      "Keep the compiled kernel, skip its Python launcher object and call the C function below it, with addresses "
      "as integers (no pointer query for each argument) and everything constant bound once with functools.partial",
      direct(MASKED, "n, size, 16", "    grid, warps = (n + 15) // 16, 4\n")),
    A("exact grid, no mask", 0,
      "after the L2 flush the instructions come from memory too: fewer instructions before the first load. The tile of "
      "16 groups divides the number of groups, so no mask and no bound are needed",
      direct(exact(), "size, g", SIXTEEN)),
    A("maximum of the bit patterns", 1,
      "magnitudes of floats order like their bits as integers, and the 32-bit integer maximum of a warp is one redux "
      "instruction instead of five shuffles",
      direct(exact(TOP_BITS), "size, g", SIXTEEN)),
    A("tile and warps per shape", 2,
      "2048 one-warp programs of 4 groups for the small cases (every warp independent, all resident at once), 32 groups "
      "and 4 warps (8 loads of 16 bytes a thread in flight) for the large one",
      direct(exact(TOP_BITS), "size, g", PER_SHAPE)),
    A("streaming hints on load and store", 2,
      "nothing is read twice: evict-first loads leave the L2 to the writes, .cs stores go out first",
      direct(exact(TOP_BITS, ', eviction_policy="evict_first"', ', cache_modifier=".cs"'), "size, g", SIXTEEN)),
    A("next tile loaded ahead in registers", 3,
      "four tiles a program in the large case, the load of the next one issued before the reduction of this one, so that "
      "reads overlap writes inside a program too; small cases stay at one tile",
      direct(TWO, "size, g, steps", """    g, warps, steps = (4, 1, 1) if n <= 32768 else (16, 4, 4)
    while n % (g * steps):
        g, steps = (g // 2, 1) if steps == 1 else (g, 1)
    grid = n // (g * steps)
""")),
    A("Gluon with an explicit layout", 1,
      "say the layout instead of hoping for it: a warp owns whole groups, 16 bytes a lane, so the reduction is five "
      "shuffles and no shared memory",
      direct(GLUON, "size, g, warps", SIXTEEN, imports="""import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
""")),
    A("TMA descriptors in a persistent loop", None,
      "bulk tensor copies need no address registers and could keep more bytes in flight in the large case; two "
      "descriptors built in the kernel and an ordinary launch will cost the small cases, to see how much the large one gains",
      IMPORTS + DESCRIPTOR),
]


# ---------------------------------------------------------------- CUDA
HOST_FAST = r'''#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdint>

void launch(const void* x, void* q, void* s, long groups, int size);

static PyObject* run(PyObject*, PyObject* const* a, Py_ssize_t) {
    launch(PyLong_AsVoidPtr(a[0]), PyLong_AsVoidPtr(a[1]), PyLong_AsVoidPtr(a[2]), PyLong_AsLong(a[4]),
           (int)(PyLong_AsLong(a[3]) / PyLong_AsLong(a[4])));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"run", (PyCFunction)(void*)run, METH_FASTCALL, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fp8q", nullptr, -1, methods};
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
PyMODINIT_FUNC JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
'''

CALL_FAST = '''

def custom_kernel(data):
    x, x_q, x_s = data
    ext.run(x.data_ptr(), x_q.data_ptr(), x_s.data_ptr(), x.numel(), x_s.numel())
    return x_q, x_s
'''

HOST_TUPLE = r'''#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdint>

void launch(const void* x, void* q, void* s, long groups, int size);

// the stable C table of torch.Tensor.__dlpack_c_exchange_api__ (DLPack 1.3)
struct View {
    void* data;
    int32_t device, index, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
};
struct Api {
    uint32_t major, minor;
    void *previous, *allocate, *from, *to;
    int (*view)(void*, View*);
    void* stream;
};
static Api* api = nullptr;

static PyObject* run(PyObject*, PyObject* data) {
    PyObject *x = PyTuple_GET_ITEM(data, 0), *q = PyTuple_GET_ITEM(data, 1), *s = PyTuple_GET_ITEM(data, 2);
    View a, b, c;
    if (api->view(x, &a) || api->view(q, &b) || api->view(s, &c)) return nullptr;
    launch((char*)a.data + a.offset, (char*)b.data + b.offset, (char*)c.data + c.offset,
           (long)(c.shape[0] * c.shape[1]), (int)(a.shape[1] / c.shape[1]));
    return PyTuple_Pack(2, q, s);
}

static PyObject* setup(PyObject*, PyObject* capsule) {
    api = (Api*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!api) return nullptr;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"run", run, METH_O, nullptr}, {"setup", setup, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fp8q", nullptr, -1, methods};
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
PyMODINIT_FUNC JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
'''

CALL_TUPLE = '''
ext.setup(torch.Tensor.__dlpack_c_exchange_api__)
custom_kernel = ext.run  # takes (x, x_q, x_s), returns (x_q, x_s)
'''


def cuda(body, host=HOST_TUPLE, call=CALL_TUPLE, flags='["-O3"]', after="verbose=False"):
    name = "fp8q_agent_" + hashlib.sha256((body + host + flags).encode()).hexdigest()[:10]
    return f'''import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""{host}"""

CUDA = r"""{body}"""

ext = load_inline(name="{name}", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True,
                  extra_cuda_cflags={flags}, {after})
{call}'''


GENERAL = r'''
#include <cstdint>
#include <cuda_runtime.h>

// any group size: a warp per group, values read twice
__global__ void any_size(const float* __restrict__ x, float* __restrict__ q, float* __restrict__ s, long groups, int size) {
    long g = ((long)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (g >= groups) return;
    int lane = threadIdx.x & 31;
    float m = 1e-10f;
    for (int i = lane; i < size; i += 32) m = fmaxf(m, fabsf(x[g * size + i]));
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    float inv = 448.f / m;
    for (int i = lane; i < size; i += 32) q[g * size + i] = x[g * size + i] * inv;
    if (lane == 0) s[g] = m / 448.f;
}

static void general(const void* x, void* q, void* s, long groups, int size) {
    any_size<<<(unsigned)((groups + 7) / 8), 256>>>((const float*)x, (float*)q, (float*)s, groups, size);
}
'''

MAXBITS = r'''
// magnitudes order like their bits; one redux instruction for the warp
__device__ __forceinline__ unsigned bits4(float4 v) {
    return max(max(__float_as_uint(fabsf(v.x)), __float_as_uint(fabsf(v.y))),
               max(__float_as_uint(fabsf(v.z)), __float_as_uint(fabsf(v.w))));
}
__device__ __forceinline__ float top_of(unsigned bits) {
    return fmaxf(__uint_as_float(__reduce_max_sync(~0u, bits)), 1e-10f);
}
__device__ __forceinline__ float4 scaled(float4 v, float inv) {
    return make_float4(v.x * inv, v.y * inv, v.z * inv, v.w * inv);
}
'''

ONE = r'''
// groups of 128: a lane holds one float4, a warp one group
__global__ void __launch_bounds__(256) quant128(const float4* __restrict__ x, float4* __restrict__ q,
                                                float* __restrict__ s, unsigned n4) {
    unsigned i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n4) return;  // n4 is a multiple of 32: whole warps leave
    float4 v = x[i];
    float m = top_of(bits4(v));
    q[i] = scaled(v, __fdividef(448.f, m));
    if ((i & 31) == 0) s[i >> 5] = m * (1.f / 448.f);
}
'''

LAUNCH_ONE = r'''
void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    quant128<<<(unsigned)((groups + 7) / 8), 256>>>((const float4*)x, (float4*)q, (float*)s, (unsigned)(groups * 32));
}
'''

LAUNCH_DRIVER = r'''
#include <cuda.h>

typedef CUresult (*Launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                           void**, void**);
static Launch driver_launch = nullptr;
static CUfunction function = nullptr;

void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    if (!driver_launch) {
        cudaFunction_t f;
        cudaGetFuncBySymbol(&f, (const void*)quant128);
        function = (CUfunction)f;
        void* p = nullptr;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuLaunchKernel", &p, 12000, cudaEnableDefault, &found);
        driver_launch = (Launch)p;
    }
    unsigned n4 = (unsigned)(groups * 32);
    void* args[] = {&x, &q, &s, &n4};
    driver_launch(function, (n4 + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, args, nullptr);
}
'''

FOUR = r'''
// groups of 128, U groups a warp: U independent 16-byte loads a lane before the first reduction; read once, written once
template <int U>
__global__ void __launch_bounds__(256) many128(const float4* __restrict__ x, float4* __restrict__ q,
                                               float* __restrict__ s, unsigned groups) {
    unsigned lane = threadIdx.x & 31, g = (blockIdx.x * 8 + (threadIdx.x >> 5)) * U;
    float4 v[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (g + u < groups) v[u] = __ldcs(x + (size_t)(g + u) * 32 + lane);
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (g + u >= groups) return;
        float m = top_of(bits4(v[u]));
        __stcs(q + (size_t)(g + u) * 32 + lane, scaled(v[u], __fdividef(448.f, m)));
        if (lane == 0) s[g + u] = m * (1.f / 448.f);
    }
}
'''

LAUNCH_FOUR = r'''
void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    if (groups <= 32768)
        quant128<<<(unsigned)((groups + 7) / 8), 256>>>((const float4*)x, (float4*)q, (float*)s, (unsigned)(groups * 32));
    else
        many128<4><<<(unsigned)((groups + 31) / 32), 256>>>((const float4*)x, (float4*)q, (float*)s, (unsigned)groups);
}
'''

BULK = r'''
// persistent blocks, tiles of TG groups; bulk copies in and out of a ring of shared buffers
constexpr int TG = 16, STAGES = 4;

__device__ __forceinline__ unsigned shared_at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void fetch(float4* to, const float4* from, unsigned bytes, uint64_t* bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(bar)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(shared_at(bar))
                 : "memory");
}
__device__ __forceinline__ void wait_for(uint64_t* bar, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(shared_at(bar)),
                 "r"(parity)
                 : "memory");
}

__global__ void __launch_bounds__(256) bulk128(const float4* __restrict__ x, float4* __restrict__ q,
                                               float* __restrict__ s, int groups, int tiles) {
    __shared__ alignas(128) float4 ring[STAGES][TG * 32];
    __shared__ alignas(8) uint64_t full[STAGES];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(&full[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES - 1; i++) {
            int t = blockIdx.x + i * gridDim.x;
            if (t < tiles) fetch(ring[i], x + (size_t)t * TG * 32, min(TG, groups - t * TG) * 512, &full[i]);
        }
    int it = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, it++) {
        int stage = it % STAGES;
        wait_for(&full[stage], (it / STAGES) & 1);
        int rest = min(TG, groups - tile * TG);
#pragma unroll
        for (int k = 0; k < TG / 8; k++) {
            int g = k * 8 + warp;
            if (g < rest) {
                float4 v = ring[stage][g * 32 + lane];
                float m = top_of(bits4(v));
                ring[stage][g * 32 + lane] = scaled(v, __fdividef(448.f, m));
                if (lane == 0) s[tile * TG + g] = m * (1.f / 448.f);
            }
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(q + (size_t)tile * TG * 32),
                         "r"(shared_at(ring[stage])), "r"(rest * 512)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            int next = tile + (STAGES - 1) * gridDim.x, at = (it + STAGES - 1) % STAGES;
            if (next < tiles) {
                // that buffer's store (the previous one) must have been read out
                asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                fetch(ring[at], x + (size_t)next * TG * 32, min(TG, groups - next * TG) * 512, &full[at]);
            }
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
'''

LAUNCH_BULK = r'''
void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    if (groups <= 32768)
        quant128<<<(unsigned)((groups + 7) / 8), 256>>>((const float4*)x, (float4*)q, (float*)s, (unsigned)(groups * 32));
    else {
        int tiles = (int)((groups + TG - 1) / TG);
        bulk128<<<min(tiles, 132 * 6), 256>>>((const float4*)x, (float4*)q, (float*)s, (int)groups, tiles);
    }
}
'''

LAUNCH_GRAPH = r'''
// one graph with one kernel node; each call puts new addresses into the instantiated graph and launches it
static cudaGraphExec_t ready = nullptr;
static cudaGraphNode_t node;

void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    unsigned n4 = (unsigned)(groups * 32);
    void* args[] = {&x, &q, &s, &n4};
    cudaKernelNodeParams p = {};
    p.func = (void*)quant128;
    p.gridDim = dim3((n4 + 255) / 256);
    p.blockDim = dim3(256);
    p.kernelParams = args;
    if (!ready) {
        cudaGraph_t graph;
        cudaGraphCreate(&graph, 0);
        cudaGraphAddKernelNode(&node, graph, nullptr, 0, &p);
        cudaGraphInstantiate(&ready, graph, 0);
    } else {
        cudaGraphExecKernelNodeSetParams(ready, node, &p);
    }
    cudaGraphLaunch(ready, 0);
}
'''

CUDA = [
    A("bare CPython binding, one float4 a lane, redux", None,
      "the best known programs take 14 us for 8 MB (2 us of memory time), so the host counts. A METH_FASTCALL function in place of "
      "pybind11, element counts in place of shapes, and a short kernel: one load, one redux, one store",
      cuda(GENERAL + MAXBITS + ONE + LAUNCH_ONE, HOST_FAST, CALL_FAST)),
    A("the extension function is custom_kernel", 0,
      "no Python code at all in a call: the C function takes the tuple, reads addresses and shapes through torch's "
      "DLPack exchange table (some 10 ns a tensor, no torch headers) and returns the pair",
      cuda(GENERAL + MAXBITS + ONE + LAUNCH_ONE)),
    A("driver launch with a cached function", 1,
      "the runtime looks the kernel up and takes locks before it calls the driver; call cuLaunchKernel with the function "
      "looked up once",
      cuda(GENERAL + MAXBITS + ONE + LAUNCH_DRIVER)),
    A("four groups a warp with streaming hints for the large case", 1,
      "235 MB in the large case: four independent loads a lane before the first reduction, evict-first both ways; the "
      "small cases keep the one-load kernel, whose blocks all fit at once",
      cuda(GENERAL + MAXBITS + ONE + FOUR + LAUNCH_FOUR)),
    A("bulk copies through shared memory for the large case", 3,
      "persistent blocks with a ring of four 8 KB buffers: bytes in flight no longer depend on registers, writes leave "
      "as 8 KB bulk stores, which may use the memory better than scattered 512-byte stores",
      cuda(GENERAL + MAXBITS + ONE + BULK + LAUNCH_BULK)),
    A("instantiated graph with new addresses each call", 1,
      "a graph launch may take less host time than a kernel launch once it is instantiated; but setting the node's "
      "parameters is one more driver call. Probably a loss, worth a figure",
      cuda(GENERAL + MAXBITS + ONE + LAUNCH_GRAPH)),
]

# ---------------------------------------------------------------- second round
def gluon(load="", store="", top="top = gl.maximum(gl.max(gl.abs(x), axis=1), 1e-10)", before=""):
    return f"""

@gluon.jit
def kernel(SIZE: gl.constexpr, G: gl.constexpr, W: gl.constexpr, x_ptr, q_ptr, s_ptr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [128 // SIZE, SIZE // 4], [W, 1], [1, 0])
    g = gl.program_id(0) * G + gl.arange(0, G, layout=gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))
    o = gl.expand_dims(g, 1) * SIZE + gl.expand_dims(c, 0){before}
    x = gl.load(x_ptr + o{load})
    {top}
    gl.store(q_ptr + o, x * gl.expand_dims(448.0 / top, 1){store})
    gl.store(s_ptr + g, top * (1.0 / 448.0))
"""


GLUON_IMPORTS = """import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
"""

# same launch with less Python: one subscript instead of get and test
LEAN = """class Ready(dict):
    def __missing__(self, key):
        raise KeyError(key)


def custom_kernel(data):
    x, x_q, x_s = data
    try:
        go = ready[x.numel(), x_s.numel()]
    except KeyError:
        go = ready[x.numel(), x_s.numel()] = prepare(x, x_q, x_s)
    go(x.data_ptr(), x_q.data_ptr(), x_s.data_ptr())
    return x_q, x_s
""".split("\n\n\n", 1)[1]


def shape(small, large, extra=""):
    return f"""    g, warps = {small} if n <= 32768 else {large}
    while n % g:
        g //= 2
    grid = n // g
{extra}"""


SPLIT = """

@triton.jit
def kernel(SIZE: tl.constexpr, G: tl.constexpr, PARTS: tl.constexpr, x_ptr, q_ptr, s_ptr):
    # one contiguous run of G * SIZE values, cut into groups by a reshape
    p = tl.program_id(0)
    o = p * (G * SIZE) + tl.arange(0, G * SIZE)
    x = tl.reshape(tl.load(x_ptr + o), (G, PARTS, SIZE // PARTS))
    bits = tl.max(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2), axis=1)
    top = tl.maximum(bits.to(tl.float32, bitcast=True), 1e-10)
    q = x * (448.0 / top)[:, None, None]
    tl.store(q_ptr + o, tl.reshape(q, (G * SIZE,)))
    tl.store(s_ptr + p * G + tl.arange(0, G), top * (1.0 / 448.0))
"""

PDL = exact(TOP_BITS).replace("    x = tl.load", "    gdc_wait()\n    x = tl.load")
FROM_PDL = IMPORTS + "from triton.language.extra.cuda import gdc_wait\n"
if PLAIN:
    PDL = PDL.replace("    gdc_wait()\n", "")

TRITON += [
    A("evict-first loads, ordinary stores", 6,
      "attempt 4 hinted both ways and the large case went from 68.5 to 71.3 us; Gluon without hints reached 66.8. The .cs "
      "store may be the culprit: lines of the result pushed out at once. Keep only the load hint, so that the 117 MB read "
      "do not drive out written lines, which may then still lie in the L2 when the kernel ends",
      direct(gluon(', eviction_policy="evict_first"'), "size, g, warps", SIXTEEN, imports=GLUON_IMPORTS)),
    A("evict-last stores", 6,
      "the other half of that idea: written lines kept as long as possible, loads with the normal policy; what is still dirty in the "
      "60 MB L2 at the end was never paid for. Against 66.8 us of attempt 6",
      direct(gluon("", ', eviction_policy="evict_last"'), "size, g, warps", SIXTEEN, imports=GLUON_IMPORTS)),
    A("evict-first loads and evict-last stores", 8,
      "both hints pull the same way: reads leave first, writes stay. Small cases get 4 groups in one warp as in attempt 3 "
      "(13.1 us there, 12.8 with 16 groups in 4 warps: no difference beyond noise)",
      direct(gluon(', eviction_policy="evict_first"', ', eviction_policy="evict_last"'), "size, g, warps",
             shape("(4, 1)", "(16, 4)"), imports=GLUON_IMPORTS)),
    A("wide programs for the small cases", 3,
      "one-warp programs (13.1 us) and four-warp programs (12.8) cost the same, so try the other end: 64 groups and 16 "
      "warps, 128 programs for 132 multiprocessors, one launch wave; large case with 64 groups in 8 warps, 8 loads in flight a thread",
      direct(exact(TOP_BITS), "size, g", shape("(64, 16)", "(64, 8)"))),
    A("programmatic launch flag", 2,
      "set the programmatic-serialisation attribute, so that the front end need not wait for the stream to be idle before it "
      "places the blocks; the kernel itself waits (griddepcontrol.wait), so the result is safe",
      direct(PDL, "size, g", SIXTEEN, imports=FROM_PDL, pdl=True)),
    A("flat load cut by a reshape", 2,
      "load one contiguous run per program and let a reshape find the groups: the compiler may choose another distribution "
      "than a warp per group, with an in-thread part and fewer lanes in the shuffles (two-level maximum)",
      direct(SPLIT, "size, g, 4", SIXTEEN)),
    A("Gluon, half a warp per group, two loads a lane", 6,
      "a lane holds two 16-byte pieces of a group (64 values apart), so a warp finishes two groups with one shuffle tree "
      "of four steps; subscript instead of get-and-test on the host, 8 groups a program in the small cases and 32 in the large one",
      direct(gluon().replace("gl.BlockedLayout([1, 4], [128 // SIZE, SIZE // 4], [W, 1], [1, 0])",
                             "gl.BlockedLayout([1, 4], [256 // SIZE, SIZE // 8], [W, 1], [1, 0])"),
             "size, g, warps", shape("(8, 2)", "(32, 4)"), imports=GLUON_IMPORTS, host=LEAN)),
]

POLICY = r"""
__device__ __forceinline__ uint64_t evict_first() {
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ uint64_t evict_last() {
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ float4 load_hint(const float4* a, uint64_t p) {
    float4 v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(a), "l"(p));
    return v;
}
__device__ __forceinline__ void store_hint(float4* a, float4 v, uint64_t p) {
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(a), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "l"(p) : "memory");
}
"""


def hinted(load, store, name="hint128"):
    return r"""
// as quant128, with L2 policies
__global__ void __launch_bounds__(256) NAME(const float4* __restrict__ x, float4* __restrict__ q,
                                            float* __restrict__ s, unsigned n4) {
    unsigned i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n4) return;
    float4 v = LOAD;
    float m = top_of(bits4(v));
    STORE;
    if ((i & 31) == 0) s[i >> 5] = m * (1.f / 448.f);
}
""".replace("NAME", name).replace("LOAD", load).replace("STORE", store)


LD_PLAIN, ST_PLAIN = "x[i]", "q[i] = scaled(v, __fdividef(448.f, m))"
LD_FIRST, ST_LAST = "load_hint(x + i, evict_first())", "store_hint(q + i, scaled(v, __fdividef(448.f, m)), evict_last())"

# driver launch of two kernels: one for few groups, one for many
DRIVER = r"""
#include <cuda.h>

typedef CUresult (*Launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                           void**, void**);
static Launch driver_launch = nullptr;
static CUfunction few = nullptr, many = nullptr;

static CUfunction handle(const void* kernel) {
    cudaFunction_t f = nullptr;
    cudaGetFuncBySymbol(&f, kernel);
    return (CUfunction)f;
}

void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    if (!driver_launch) {
        few = handle((const void*)FEW);
        many = handle((const void*)MANY);
        void* p = nullptr;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuLaunchKernel", &p, 12000, cudaEnableDefault, &found);
        driver_launch = (Launch)p;
    }
    unsigned n4 = (unsigned)(groups * 32);
    void* args[] = {&x, &q, &s, &n4};
    if (groups <= 32768)
        driver_launch(few, (n4 + FEW_STEP - 1) / (FEW_STEP), 1, 1, FEW_T, 1, 1, 0, nullptr, args, nullptr);
    else
        driver_launch(many, (n4 + MANY_STEP - 1) / (MANY_STEP), 1, 1, MANY_T, 1, 1, 0, nullptr, args, nullptr);
}
"""


def driver(few, few_t, few_step, many, many_t, many_step):
    text = DRIVER
    for a, b in (("FEW_STEP", few_step), ("FEW_T", few_t), ("FEW", few), ("MANY_STEP", many_step), ("MANY_T", many_t), ("MANY", many)):
        text = text.replace(a, str(b))
    return text


WIDE = r"""
// T threads; a warp takes U consecutive groups, all its loads issued before the first reduction
template <int T, int U>
__global__ void __launch_bounds__(T) warp_groups(const float4* __restrict__ x, float4* __restrict__ q,
                                                 float* __restrict__ s, unsigned n4) {
    unsigned i = (blockIdx.x * (T / 32) + (threadIdx.x >> 5)) * (U * 32) + (threadIdx.x & 31);
    float4 v[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (i + u * 32 < n4) v[u] = LOAD;
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (i + u * 32 >= n4) return;
        float m = top_of(bits4(v[u]));
        q[i + u * 32] = scaled(v[u], __fdividef(448.f, m));
        if ((i & 31) == 0) s[(i >> 5) + u] = m * (1.f / 448.f);
    }
}
"""
WIDE_PLAIN = WIDE.replace("LOAD", "x[i + u * 32]")

AHEAD = r"""
// a miss brings 256 bytes into the L2
__device__ __forceinline__ float4 load_256(const float4* a) {
    float4 v;
    asm("ld.global.nc.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(a));
    return v;
}
"""

LAUNCH_EX = r"""
static cudaLaunchAttribute attributes[2];

void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)((groups + 7) / 8));
    c.blockDim = dim3(256);
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = attributes;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, waiting128, (const float4*)x, (float4*)q, (float*)s, (unsigned)(groups * 32));
}
"""

BASE = GENERAL + MAXBITS
CUDA += [
    A("evict-first loads in the large case", 2,
      "streaming both ways cost 2 us (attempt 3: 69.8 us against 67.5 and 65.9 without hints). Separate the two: only the reads "
      "are marked evict-first, so that written lines may stay in the L2 and need no write-back before the kernel ends",
      cuda(BASE + ONE + POLICY + hinted(LD_FIRST, ST_PLAIN) + driver("quant128", 256, 256, "hint128", 256, 256))),
    A("evict-first loads, evict-last stores", 6,
      "go further: an evict-last policy on the stores. The L2 is full of the flush's dirty lines at the start; the more of our own "
      "writes it holds at the end, the fewer bytes the kernel waits for. Small cases with 512-thread blocks, half as many to place",
      cuda(BASE + POLICY + WIDE_PLAIN + hinted(LD_FIRST, ST_LAST) + driver("(warp_groups<512, 1>)", 512, 512, "hint128", 256, 256))),
    A("evict-last stores only; two groups a warp for few groups", 6,
      "the store hint alone in the large case, as the control; small cases with 256 threads and two groups a warp: half the "
      "blocks, two loads in flight",
      cuda(BASE + POLICY + WIDE_PLAIN + hinted(LD_PLAIN, ST_LAST) + driver("(warp_groups<256, 2>)", 256, 512, "hint128", 256, 256))),
    A("four groups a warp without hints; 1024-thread blocks for few groups", 2,
      "attempt 3 changed two things in the large case; this is its four loads a lane without the hints. Small cases in blocks "
      "of 1024: 256 and 512 blocks to place instead of 1024 and 2048",
      cuda(BASE + WIDE_PLAIN + driver("(warp_groups<1024, 1>)", 1024, 1024, "(warp_groups<256, 4>)", 256, 1024))),
    A("loads that prefetch 256 bytes into the L2", 2,
      "cold memory latency is most of a small case: let a miss fetch its neighbour too (.L2::256B), so that half of the warps find "
      "their data on the way; same kernel for all cases",
      cuda(BASE + AHEAD + hinted("load_256(x + i)", ST_PLAIN) + driver("hint128", 256, 256, "hint128", 256, 256))),
    A("programmatic stream serialisation", 1,
      "the launch attribute lets the front end place blocks before the stream is drained; the kernel still waits with "
      "griddepcontrol.wait. Costs the extended launch call, may save a fraction of a microsecond on the device",
      cuda(BASE + hinted("x[i]", ST_PLAIN, "waiting128").replace("    unsigned i =", '    asm volatile("griddepcontrol.wait;" ::: "memory");\n    unsigned i =')
           + LAUNCH_EX)),
]

# ---------------------------------------------------------------- third round
def lanes(body, per_thread, threads):
    return body.replace("gl.BlockedLayout([1, 4], [128 // SIZE, SIZE // 4], [W, 1], [1, 0])",
                        f"gl.BlockedLayout([1, {per_thread}], {threads}, [W, 1], [1, 0])")


LAST = ', eviction_policy="evict_last"'
HALF, QUARTER, SECTOR = "[256 // SIZE, SIZE // 8]", "[512 // SIZE, SIZE // 16]", "[256 // SIZE, SIZE // 8]"

MAPPED = """def custom_kernel(data, count=torch.Tensor.numel, address=torch.Tensor.data_ptr):
    try:
        go = ready[count(data[0]), count(data[2])]
    except KeyError:
        go = ready[count(data[0]), count(data[2])] = prepare(*data)
    go(*map(address, data))
    return data[1:]
"""

RECIPROCAL = exact(TOP_BITS).replace(
    "    tl.store(q_ptr + o, x * (448.0 / top)[:, None])",
    """    r = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [top], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(q_ptr + o, x * (448.0 * r)[:, None])""")

RING = """

@gluon.jit
def kernel(SIZE: gl.constexpr, G: gl.constexpr, W: gl.constexpr, TILES: gl.constexpr, NP: gl.constexpr, STAGES: gl.constexpr,
           x_ptr, q_ptr, s_ptr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [128 // SIZE, SIZE // 4], [W, 1], [1, 0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    ring = gl.allocate_shared_memory(gl.float32, [STAGES, G, SIZE], SHARED)
    first = gl.program_id(0)
    g = gl.arange(0, G, layout=gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))
    o = gl.expand_dims(g, 1) * SIZE + gl.expand_dims(c, 0)
    for i in gl.static_range(STAGES - 1):
        # past the end the last tile is fetched again, so that the number of groups in flight stays the same
        tile = gl.minimum(first + i * NP, TILES - 1)
        async_copy.async_copy_global_to_shared(ring.index(i), x_ptr + tile * (G * SIZE) + o)
        async_copy.commit_group()
    turn = 0
    for tile in range(first, TILES, NP):
        async_copy.wait_group(STAGES - 2)
        x = ring.index(turn % STAGES).load(LAYOUT)
        ahead = gl.minimum(tile + (STAGES - 1) * NP, TILES - 1)
        async_copy.async_copy_global_to_shared(ring.index((turn + STAGES - 1) % STAGES), x_ptr + ahead * (G * SIZE) + o)
        async_copy.commit_group()
        top = gl.maximum(gl.max(gl.abs(x), axis=1), 1e-10)
        gl.store(q_ptr + tile * (G * SIZE) + o, x * gl.expand_dims(448.0 / top, 1))
        gl.store(s_ptr + tile * G + g, top * (1.0 / 448.0))
        turn += 1
    async_copy.wait_group(0)
"""

TRITON += [
    A("half a warp per group with evict-last stores", 14,
      "two loads a lane gave the best large case so far (66.6 us) and the flattest small ones (12.9 and 13.3 us; others lose "
      "0.9 us from the first to the second). Evict-first loads cost 2 to 4 us (71.4), evict-last stores alone did no harm (68.2 with "
      "a slow host, 65.9 in C++): put these two together",
      direct(lanes(gluon("", LAST), 4, HALF), "size, g, warps", shape("(8, 2)", "(32, 4)"), imports=GLUON_IMPORTS, host=LEAN)),
    A("a quarter of a warp per group, four loads a lane", 14,
      "go on in that direction: eight lanes a group, four 16-byte loads a lane at distance 128 bytes, three shuffles for four "
      "groups at once; 16 groups in 2 warps for the small cases",
      direct(lanes(gluon(), 4, QUARTER), "size, g, warps", shape("(16, 2)", "(32, 4)"), imports=GLUON_IMPORTS, host=LEAN)),
    A("a whole 32-byte sector a lane", 14,
      "as attempt 14, but the two 16-byte loads of a lane are neighbours, so that every lane reads and writes one sector; a "
      "warp's load then touches half of each sector, which the L1 has to join. Probably no better, it isolates the effect of distance",
      direct(lanes(gluon(), 8, SECTOR), "size, g, warps", shape("(8, 2)", "(32, 4)"), imports=GLUON_IMPORTS, host=LEAN)),
    A("host call by method descriptors and map", 13,
      "the flat kernel (13.0, 13.4, 67.1 us) with a leaner host: bound-method look-ups for three addresses and two "
      "counts become calls of the descriptors kept as defaults, map feeds the launcher, the result is a slice of the tuple",
      direct(SPLIT, "size, g, 4", SIXTEEN, host=MAPPED)),
    A("asynchronous copies into a shared ring", 6,
      "Gluon with cp.async: 528 persistent programs, four 8 KB buffers each, three tiles in flight without registers; small cases "
      "have 512 to 1024 tiles and so one or two turns. Register prefetch (attempt 5: 69.0 us) and descriptors (99 us) both lost; this "
      "is the remaining way to decouple loads",
      direct(RING, "size, g, warps, n // g, grid, 4", SIXTEEN + "    grid = min(grid, 528)\n",
             imports=GLUON_IMPORTS + "from triton.experimental.gluon.language.nvidia.ampere import async_copy\n", host=LEAN)),
    A("evict-last on both sides", 9,
      "evict-first reads slow the large case, so is it better still to protect them? The opposite of attempt 8; if this is "
      "no faster than 66.6 to 68 us, the L2 policy of the reads has nothing more to give",
      direct(gluon(LAST, LAST), "size, g, warps", shape("(8, 2)", "(16, 4)"), imports=GLUON_IMPORTS, host=LEAN)),
    A("approximate reciprocal in one instruction", 2,
      "448 / top becomes a full-range division of about eight instructions; rcp.approx is one, and its error of 1 ulp is far "
      "below the tolerance. The code is fetched cold in every call, so shorter may be faster; 8 groups in 2 warps for small cases",
      direct(RECIPROCAL, "size, g", shape("(8, 2)", "(32, 4)"), host=LEAN)),
]

LD_LAST = "load_hint(x + i, evict_last())"
WIDE_256 = WIDE.replace("LOAD", "load_256(x + i + u * 32)")

SHORT = r"""
// exact grid, three parameters, no bound
template <int T>
__global__ void __launch_bounds__(T) short128(const float4* __restrict__ x, float4* __restrict__ q, float* __restrict__ s) {
    unsigned i = blockIdx.x * T + threadIdx.x;
    float4 v = x[i];
    float m = top_of(bits4(v)), inv;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inv) : "f"(m));
    q[i] = scaled(v, inv * 448.f);
    if ((i & 31) == 0) s[i >> 5] = m * (1.f / 448.f);
}

#include <cuda.h>

typedef CUresult (*Launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                           void**, void**);
static Launch driver_launch = nullptr;
static CUfunction function = nullptr;

void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128 || groups % 16) return general(x, q, s, groups, size);
    if (!driver_launch) {
        cudaFunction_t f = nullptr;
        cudaGetFuncBySymbol(&f, (const void*)short128<512>);
        function = (CUfunction)f;
        void* p = nullptr;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuLaunchKernel", &p, 12000, cudaEnableDefault, &found);
        driver_launch = (Launch)p;
    }
    struct { const void* x; void *q, *s; } packed = {x, q, s};
    size_t bytes = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    driver_launch(function, (unsigned)(groups / 16), 1, 1, 512, 1, 1, 0, nullptr, nullptr, extra);
}
"""

PHASES = BULK.split("__global__ void __launch_bounds__(256) bulk128")[0].replace("constexpr int TG = 16, STAGES = 4;", "") + r"""
// one block per multiprocessor; PG groups at a time: all in, all scaled, all out
constexpr int PIECE = 29, PIECES = 12, PG = PIECE * PIECES;

__global__ void __launch_bounds__(1024) phases128(const float4* __restrict__ x, float4* __restrict__ q,
                                                  float* __restrict__ s, int groups, int tiles) {
    extern __shared__ __align__(128) float4 tile_data[];
    __shared__ alignas(8) uint64_t full;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(&full)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    unsigned parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, parity ^= 1) {
        int rest = min(PG, groups - tile * PG);
        size_t base = (size_t)tile * PG * 32;
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(&full)), "r"(rest * 512) : "memory");
            for (int g = 0; g < rest; g += PIECE)
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                                 shared_at(tile_data + g * 32)),
                             "l"(x + base + g * 32), "r"(min(PIECE, rest - g) * 512), "r"(shared_at(&full))
                             : "memory");
        }
        wait_for(&full, parity);
        for (int g = warp; g < rest; g += 32) {
            float4 v = tile_data[g * 32 + lane];
            float m = top_of(bits4(v));
            tile_data[g * 32 + lane] = scaled(v, __fdividef(448.f, m));
            if (lane == 0) s[tile * PG + g] = m * (1.f / 448.f);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int g = 0; g < rest; g += PIECE)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(q + base + g * 32),
                             "r"(shared_at(tile_data + g * 32)), "r"(min(PIECE, rest - g) * 512)
                             : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

void launch(const void* x, void* q, void* s, long groups, int size) {
    if (size != 128) return general(x, q, s, groups, size);
    if (groups <= 32768) {
        warp_groups<512, 1><<<(unsigned)((groups + 15) / 16), 512>>>((const float4*)x, (float4*)q, (float*)s, (unsigned)(groups * 32));
        return;
    }
    static bool ready = false;
    if (!ready) {
        cudaFuncSetAttribute(phases128, cudaFuncAttributeMaxDynamicSharedMemorySize, PG * 512);
        ready = true;
    }
    int tiles = (int)((groups + PG - 1) / PG);
    phases128<<<min(tiles, 132), 1024, PG * 512>>>((const float4*)x, (float4*)q, (float*)s, (int)groups, tiles);
}
"""

LOOP = r"""
// 132 x 8 blocks stay; the next value is loaded before this one is reduced
__global__ void __launch_bounds__(256) loop128(const float4* __restrict__ x, float4* __restrict__ q,
                                               float* __restrict__ s, unsigned n4) {
    unsigned i = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    if (i >= n4) return;
    float4 v = x[i];
    while (true) {
        unsigned j = i + step;
        float4 w = v;
        if (j < n4) w = x[j];
        float m = top_of(bits4(v));
        q[i] = scaled(v, __fdividef(448.f, m));
        if ((i & 31) == 0) s[i >> 5] = m * (1.f / 448.f);
        if (j >= n4) return;
        v = w;
        i = j;
    }
}
"""

QUARTERS = r"""
// eight lanes a group, four float4 a lane; three shuffles serve the four groups of a warp
__global__ void __launch_bounds__(256) quarter128(const float4* __restrict__ x, float4* __restrict__ q,
                                                  float* __restrict__ s, unsigned n4) {
    unsigned t = blockIdx.x * 256 + threadIdx.x, g = t >> 3, i = g * 32 + (t & 7);
    bool on = i < n4;
    float4 v[4];
    unsigned b = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = on ? x[i + 8 * k] : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int k = 0; k < 4; k++) b = max(b, bits4(v[k]));
#pragma unroll
    for (int d = 4; d; d >>= 1) b = max(b, __shfl_xor_sync(~0u, b, d));
    if (!on) return;
    float m = fmaxf(__uint_as_float(b), 1e-10f), inv = __fdividef(448.f, m);
#pragma unroll
    for (int k = 0; k < 4; k++) q[i + 8 * k] = scaled(v[k], inv);
    if ((t & 7) == 0) s[g] = m * (1.f / 448.f);
}
"""

CUDA += [
    A("best parts: 512 threads with 256-byte prefetch, evict-last stores", 8,
      "of round two: 512-thread blocks lost only 0.3 us from the first to the second case (13.1, 13.4 with a slow host; others about "
      "1.2), .L2::256B had the shortest first case (10.9 us), evict-last stores tied for the best large case (65.9). All three",
      cuda(BASE + AHEAD + POLICY + WIDE_256 + hinted(LD_PLAIN, ST_LAST) + driver("(warp_groups<512, 1>)", 512, 512, "hint128", 256, 256))),
    A("shortest code: exact grid, three parameters, packed", 7,
      "what is left of a small case is launch and cold fetches of code and parameters. No bound, no count, one-instruction "
      "reciprocal, and the parameters given to the driver as one packed buffer, so it need not walk their layout",
      cuda(BASE + SHORT)),
    A("evict-last loads; 512 threads with two groups a warp", 8,
      "evict-first loads cost 3 us in the large case (68.9 against 65.9), so try the opposite policy on the loads, with evict-last "
      "stores as before. Small cases: 512 threads and two loads a lane, 256 and 512 blocks",
      cuda(BASE + POLICY + WIDE_PLAIN + hinted(LD_LAST, ST_LAST) + driver("(warp_groups<512, 2>)", 512, 1024, "hint128", 256, 256))),
    A("read phase, then write phase: 174 KB a multiprocessor", 4,
      "everything sits at 66 us, 4.1 TB/s after launch: perhaps the memory loses time turning between reads and writes. One block per "
      "multiprocessor fills 174 KB by bulk copies, scales, and sends all of it out: 23 MB read, then 23 MB written. Nothing "
      "overlaps inside a block, so it may as well lose",
      cuda(BASE + WIDE_PLAIN + PHASES)),
    A("persistent blocks with a register ahead; 128 threads and four groups a warp", 9,
      "28,672 short blocks each wait for memory once; 1056 blocks that stay and load one value ahead have twice the loads in "
      "flight and no block launches. Small cases: 128 threads, four loads a lane, all in one wave",
      cuda(BASE + WIDE_PLAIN + LOOP
           + driver("(warp_groups<128, 4>)", 128, 512, "loop128", 256, 256)
           .replace("driver_launch(many, (n4 + 256 - 1) / (256)", "driver_launch(many, 132 * 8"))),
    A("a quarter of a warp per group", 9,
      "four loads a lane (66.7 us) still need four reductions; eight lanes a group need three shuffles for four groups. Same kernel "
      "for the small cases: 256 and 512 blocks of 256 threads, four loads in flight a lane",
      cuda(BASE + QUARTERS + driver("quarter128", 256, 1024, "quarter128", 256, 1024))),
]
SERIES = {"triton": TRITON, "cuda": CUDA}
