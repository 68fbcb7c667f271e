"""CUDA C++ templates: algorithms with knobs, compiled with load_inline."""
from fp8_ce import _CPP, fill, tag


def _module(name, signature, cuda, host, flags=""):
    """A program: the launcher's signature, the CUDA source, and the Python around them."""
    cpp = _CPP.replace("<<sig>>", signature)
    return f'''import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""{cpp}"""

CUDA = r"""
{cuda}"""

ext = load_inline(name="{name}", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True,
                  extra_cuda_cflags=["-O3", "-arch=sm_90"{flags}], verbose=False)


{host}'''


_P3 = "uintptr_t, uintptr_t, uintptr_t"

# ------------------------------------------------------------------ fp8_quant
_FP8_HOST = '''def custom_kernel(data):
    x, x_q, x_s = data
    ext.launch(x.data_ptr(), x_q.data_ptr(), x_s.data_ptr(), x_s.numel(), x.shape[1] // x_s.shape[1])
    return x_q, x_s
'''


def fp8_two(k):
    """Scales in one kernel, division in a second that runs over the flat array."""
    return _module("fp8_two_" + tag(sorted(k.items())), _P3 + ", int, int", fill('''#include <cstdint>
#include <cuda_runtime.h>

__global__ void scales(const float* __restrict__ x, float* __restrict__ s, int groups, int size) {
    int lane = threadIdx.x & 31;
    int g = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (g >= groups) return;
    float m = 1e-10f;
    for (int i = lane; i < size; i += 32) m = fmaxf(m, fabsf(x[(int64_t)g * size + i]));
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (lane == 0) s[g] = m / 448.f;
}

__device__ float squeeze(float v, float s) { return fminf(fmaxf(v / s, -448.f), 448.f); }

__global__ void apply(const float4* __restrict__ x, const float* __restrict__ s, float4* __restrict__ q, int64_t n, int shift) {
    int64_t at = (int64_t)blockIdx.x * blockDim.x * <<items>> + threadIdx.x;
    #pragma unroll
    for (int j = 0; j < <<items>>; ++j, at += blockDim.x) {
        if (at >= n) return;
        float4 v = x[at];
        float f = s[at >> shift];
        q[at] = make_float4(squeeze(v.x, f), squeeze(v.y, f), squeeze(v.z, f), squeeze(v.w, f));
    }
}

void launch(uintptr_t x, uintptr_t q, uintptr_t s, int groups, int size) {
    scales<<<(groups * 32 + <<t1>> - 1) / <<t1>>, <<t1>>>>>((const float*)x, (float*)s, groups, size);
    int64_t n = (int64_t)groups * size / 4;
    int shift = 31 - __builtin_clz(size / 4);
    apply<<<(n + <<t2>> * <<items>> - 1) / (<<t2>> * <<items>>), <<t2>>>>>((const float4*)x, (const float*)s, (float4*)q, n, shift);
}
''', t1=k["t1"], t2=k["t2"], items=k["items"]), _FP8_HOST)


def fp8_grid(k):
    """A fixed grid walks over the groups; each warp keeps a group in registers."""
    ld = {"plain": "x[at]", "ldcs": "__ldcs(x + at)", "ldg": "__ldg(x + at)"}[k["load"]]
    st = "__stcs(q + at, r)" if k["store"] == "stcs" else "q[at] = r"
    return _module("fp8_grid_" + tag(sorted(k.items())), _P3 + ", int, int", fill('''#include <cstdint>
#include <cuda_runtime.h>

__global__ void __launch_bounds__(<<threads>>) quant(const float4* __restrict__ x, float4* __restrict__ q, float* __restrict__ s, int groups, int per) {
    int lane = threadIdx.x % <<lanes>>;
    int first = (blockIdx.x * <<threads>> + threadIdx.x) / <<lanes>>;
    int step = gridDim.x * (<<threads>> / <<lanes>>);
    for (int g0 = first; g0 < ((groups + step - 1) / step) * step; g0 += step) {
        bool live = g0 < groups;
        int64_t base = (int64_t)(live ? g0 : 0) * per;
        float4 v[32 / <<lanes>>];
        float m = 1e-10f;
        #pragma unroll
        for (int j = 0; j < 32 / <<lanes>>; ++j) {
            int64_t at = base + lane + j * <<lanes>>;
            if (lane + j * <<lanes>> < per) {
                v[j] = <<ld>>;
                m = fmaxf(m, fmaxf(fmaxf(fabsf(v[j].x), fabsf(v[j].y)), fmaxf(fabsf(v[j].z), fabsf(v[j].w))));
            }
        }
        for (int d = <<lanes>> / 2; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d, <<lanes>>));
        float inv = 448.f / m;
        if (live) {
            #pragma unroll
            for (int j = 0; j < 32 / <<lanes>>; ++j) {
                int64_t at = base + lane + j * <<lanes>>;
                float4 r = make_float4(v[j].x * inv, v[j].y * inv, v[j].z * inv, v[j].w * inv);
                if (lane + j * <<lanes>> < per) <<st>>;
            }
            if (lane == 0) s[g0] = m / 448.f;
        }
    }
}

void launch(uintptr_t x, uintptr_t q, uintptr_t s, int groups, int size) {
    quant<<<<<blocks>>, <<threads>>>>>((const float4*)x, (float4*)q, (float*)s, groups, size / 4);
}
'''.replace("<<<<<blocks>>, <<threads>>>>>", "@@@<<blocks>>, <<threads>>&&&"), threads=k["threads"], lanes=k["lanes"], ld=ld, st=st, blocks=k["blocks"]).replace("@@@", "<<<").replace("&&&", ">>>"), _FP8_HOST)


def fp8_block(k):
    """A block takes a token: the row goes through shared memory, one warp per group."""
    return _module("fp8_block_" + tag(sorted(k.items())), _P3 + ", int, int", fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int ROW = <<cap>>;  // values of the row that are staged

__global__ void __launch_bounds__(<<threads>>) quant(const float4* __restrict__ x, float4* __restrict__ q, float* __restrict__ s, int cols, int size) {
    __shared__ float4 stage[ROW / 4];
    int64_t base = (int64_t)blockIdx.x * cols / 4;
    int per = size / 4, groups = cols / size;
    for (int c0 = 0; c0 < cols; c0 += ROW) {
        int n = min(ROW, cols - c0) / 4;
        for (int i = threadIdx.x; i < n; i += <<threads>>) stage[i] = x[base + c0 / 4 + i];
        __syncthreads();
        int lane = threadIdx.x & 31;
        for (int g = threadIdx.x >> 5; g < n / per; g += <<threads>> / 32) {
            float m = 1e-10f;
            for (int i = lane; i < per; i += 32) {
                float4 v = stage[g * per + i];
                m = fmaxf(m, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
            }
            for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
            float inv = 448.f / m;
            for (int i = lane; i < per; i += 32) {
                float4 v = stage[g * per + i];
                q[base + c0 / 4 + g * per + i] = make_float4(v.x * inv, v.y * inv, v.z * inv, v.w * inv);
            }
            if (lane == 0) s[(int64_t)blockIdx.x * groups + c0 / size + g] = m / 448.f;
        }
        __syncthreads();
    }
}

void launch(uintptr_t x, uintptr_t q, uintptr_t s, int rows, int cols, int size) {
    quant<<<rows, <<threads>>>>>((const float4*)x, (float4*)q, (float*)s, cols, size);
}
''', threads=k["threads"], cap=k["cap"]).replace("rows, int cols, int size) {\n    quant", "rows, int cols, int size) {\n    quant"), '''def custom_kernel(data):
    x, x_q, x_s = data
    ext.launch(x.data_ptr(), x_q.data_ptr(), x_s.data_ptr(), x.shape[0], x.shape[1], x.shape[1] // x_s.shape[1])
    return x_q, x_s
''').replace(_P3 + ", int, int)", _P3 + ", int, int, int)")


_T = [64, 128, 256, 512, 1024]
FP8 = {
    "cuda_two": (dict(t1=[64, 128, 256, 512], t2=[128, 256, 512], items=[1, 2, 4]), fp8_two),
    "cuda_grid": (dict(threads=[128, 256, 512], lanes=[8, 16, 32], blocks=[66, 132, 264, 528, 1056], load=["plain", "ldcs", "ldg"], store=["plain", "stcs"]), fp8_grid),
    "cuda_block": (dict(threads=[64, 128, 256, 512], cap=[1024, 2048, 4096, 8192]), fp8_block),
}

# ------------------------------------------------------------------ cross_entropy
_CE_HEAD = '''#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_bf16.h>

constexpr int VEC = <<vec>>;
struct alignas(2 * VEC) Pack { __nv_bfloat16 v[VEC]; };

__device__ float2 join(float2 a, float2 b) {
    float m = fmaxf(a.x, b.x);
    return make_float2(m, a.y * <<exp>>(a.x - m) + b.y * <<exp>>(b.x - m));
}

__device__ float2 add(float2 acc, Pack p) {
    float m = acc.x;
    #pragma unroll
    for (int j = 0; j < VEC; ++j) m = fmaxf(m, __bfloat162float(p.v[j]));
    float z = acc.y * <<exp>>(acc.x - m);
    #pragma unroll
    for (int j = 0; j < VEC; ++j) z += <<exp>>(__bfloat162float(p.v[j]) - m);
    return make_float2(m, z);
}

__device__ Pack gradient(Pack p, float lse, float g, int hot) {
    #pragma unroll
    for (int j = 0; j < VEC; ++j) {
        float e = <<exp>>(__bfloat162float(p.v[j]) - lse);
        p.v[j] = __float2bfloat16((j == hot ? e - 1.f : e) * g);
    }
    return p;
}

__device__ float2 warp_join(float2 a) {
    for (int d = 16; d; d >>= 1) a = join(a, make_float2(__shfl_xor_sync(~0u, a.x, d), __shfl_xor_sync(~0u, a.y, d)));
    return a;
}
'''
_CE_HOST = '''def custom_kernel(data):
    logits, targets, grad_output = data
    rows, cols = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    ext.launch(logits.data_ptr(), targets.data_ptr(), grad_output.data_ptr(), losses.data_ptr(), grad.data_ptr(),
               rows, cols)
    return losses, grad
'''
_P5 = "uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int"


def ce_stage(k):
    """A block per row; as much of the row as fits stays in shared memory between the two passes."""
    return _module("ce_stage_" + tag(sorted(k.items())), _P5, fill(_CE_HEAD + '''
constexpr int THREADS = <<threads>>;
constexpr int CAP = <<kb>> * 1024 / (2 * VEC);  // packs of the row kept on chip

__global__ void __launch_bounds__(THREADS) xent(const __nv_bfloat16* __restrict__ x, const int64_t* __restrict__ t,
        const float* __restrict__ go, float* __restrict__ loss, __nv_bfloat16* __restrict__ grad, int cols) {
    extern __shared__ char raw[];
    Pack* kept = (Pack*)raw;
    __shared__ float2 part[32];
    int64_t row = blockIdx.x;
    const Pack* src = (const Pack*)(x + row * cols);
    Pack* dst = (Pack*)(grad + row * cols);
    int n = cols / VEC;
    float2 acc = make_float2(-1e30f, 0.f);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        Pack p = src[i];
        if (i < CAP) kept[i] = p;
        acc = add(acc, p);
    }
    acc = warp_join(acc);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = acc;
    __syncthreads();
    acc = (threadIdx.x & 31) < THREADS / 32 ? part[threadIdx.x & 31] : make_float2(-1e30f, 0.f);
    acc = warp_join(acc);
    float lse = acc.x + logf(acc.y);
    int target = (int)t[row];
    float g = go[row];
    if (threadIdx.x == 0) loss[row] = lse - __bfloat162float(x[row * cols + target]);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        Pack p = i < CAP ? kept[i] : src[i];
        dst[i] = gradient(p, lse, g, target - i * VEC);
    }
}

void launch(uintptr_t x, uintptr_t t, uintptr_t go, uintptr_t loss, uintptr_t grad, int rows, int cols) {
    cudaFuncSetAttribute(xent, cudaFuncAttributeMaxDynamicSharedMemorySize, <<kb>> * 1024);
    int want = cols * 2 < <<kb>> * 1024 ? (cols * 2 + 15) / 16 * 16 : <<kb>> * 1024;
    xent<<<rows, THREADS, want>>>((const __nv_bfloat16*)x, (const int64_t*)t, (const float*)go, (float*)loss, (__nv_bfloat16*)grad, cols);
}
''', vec=k["vec"], exp=k["exp"], threads=k["threads"], kb=k["kb"]), _CE_HOST)


def ce_split(k):
    """Several blocks per row for the normaliser, then several for the gradient."""
    return _module("ce_split_" + tag(sorted(k.items())), "uintptr_t, " + _P5 + ", int", fill(_CE_HEAD + '''
constexpr int T1 = <<t1>>, T2 = <<t2>>, SPLIT = <<split>>;

__global__ void __launch_bounds__(T1) normaliser(const __nv_bfloat16* __restrict__ x, float2* __restrict__ parts, int cols) {
    __shared__ float2 part[32];
    int64_t row = blockIdx.x;
    const Pack* src = (const Pack*)(x + row * cols);
    int n = cols / VEC;
    float2 acc = make_float2(-1e30f, 0.f);
    for (int i = blockIdx.y * T1 + threadIdx.x; i < n; i += T1 * SPLIT) acc = add(acc, src[i]);
    acc = warp_join(acc);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = acc;
    __syncthreads();
    if (threadIdx.x < 32) {
        acc = threadIdx.x < T1 / 32 ? part[threadIdx.x] : make_float2(-1e30f, 0.f);
        acc = warp_join(acc);
        if (threadIdx.x == 0) parts[row * SPLIT + blockIdx.y] = acc;
    }
}

__global__ void __launch_bounds__(T2) backward(const __nv_bfloat16* __restrict__ x, const int64_t* __restrict__ t,
        const float* __restrict__ go, const float2* __restrict__ parts, float* __restrict__ loss, __nv_bfloat16* __restrict__ grad, int cols) {
    int64_t row = blockIdx.x;
    float2 acc = parts[row * SPLIT];
    for (int i = 1; i < SPLIT; ++i) acc = join(acc, parts[row * SPLIT + i]);
    float lse = acc.x + logf(acc.y);
    int target = (int)t[row];
    float g = go[row];
    if (blockIdx.y == 0 && threadIdx.x == 0) loss[row] = lse - __bfloat162float(x[row * cols + target]);
    const Pack* src = (const Pack*)(x + row * cols);
    Pack* dst = (Pack*)(grad + row * cols);
    for (int i = blockIdx.y * T2 + threadIdx.x; i < cols / VEC; i += T2 * gridDim.y) dst[i] = gradient(src[i], lse, g, target - i * VEC);
}

void launch(uintptr_t parts, uintptr_t x, uintptr_t t, uintptr_t go, uintptr_t loss, uintptr_t grad, int rows, int cols, int wide) {
    normaliser<<<dim3(rows, SPLIT), T1>>>((const __nv_bfloat16*)x, (float2*)parts, cols);
    backward<<<dim3(rows, wide), T2>>>((const __nv_bfloat16*)x, (const int64_t*)t, (const float*)go, (const float2*)parts, (float*)loss, (__nv_bfloat16*)grad, cols);
}
''', vec=k["vec"], exp=k["exp"], t1=k["t1"], t2=k["t2"], split=k["split"]), fill('''def custom_kernel(data):
    logits, targets, grad_output = data
    rows, cols = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    parts = torch.empty(rows, <<split>>, 2, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    ext.launch(parts.data_ptr(), logits.data_ptr(), targets.data_ptr(), grad_output.data_ptr(), losses.data_ptr(),
               grad.data_ptr(), rows, cols, <<wide>>)
    return losses, grad
''', split=k["split"], wide=k["wide"]))


def ce_warp(k):
    """A warp per row, several rows per block: no block-wide synchronisation."""
    return _module("ce_warp_" + tag(sorted(k.items())), _P5, fill(_CE_HEAD + '''
constexpr int WARPS = <<warps>>;

__global__ void __launch_bounds__(WARPS * 32) xent(const __nv_bfloat16* __restrict__ x, const int64_t* __restrict__ t,
        const float* __restrict__ go, float* __restrict__ loss, __nv_bfloat16* __restrict__ grad, int rows, int cols) {
    int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    int lane = threadIdx.x & 31;
    const Pack* src = (const Pack*)(x + row * cols);
    Pack* dst = (Pack*)(grad + row * cols);
    float2 acc = make_float2(-1e30f, 0.f);
    #pragma unroll <<unroll>>
    for (int i = lane; i < cols / VEC; i += 32) acc = add(acc, src[i]);
    acc = warp_join(acc);
    float lse = acc.x + logf(acc.y);
    int target = (int)t[row];
    float g = go[row];
    if (lane == 0) loss[row] = lse - __bfloat162float(x[row * cols + target]);
    #pragma unroll <<unroll>>
    for (int i = lane; i < cols / VEC; i += 32) dst[i] = gradient(src[i], lse, g, target - i * VEC);
}

void launch(uintptr_t x, uintptr_t t, uintptr_t go, uintptr_t loss, uintptr_t grad, int rows, int cols) {
    xent<<<(rows + WARPS - 1) / WARPS, WARPS * 32>>>((const __nv_bfloat16*)x, (const int64_t*)t, (const float*)go, (float*)loss, (__nv_bfloat16*)grad, rows, cols);
}
''', vec=k["vec"], exp=k["exp"], warps=k["warps"], unroll=k["unroll"]), _CE_HOST)


def ce_passes(k):
    """Maximum, sum and gradient in three passes over the row."""
    back = "n - 1 - i" if k["last"] == "backwards" else "i"
    return _module("ce_passes_" + tag(sorted(k.items())), _P5, fill(_CE_HEAD + '''
constexpr int THREADS = <<threads>>;

template <bool MAX> __device__ float all(float v, float* part) {
    for (int d = 16; d; d >>= 1) { float o = __shfl_xor_sync(~0u, v, d); v = MAX ? fmaxf(v, o) : v + o; }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = (threadIdx.x & 31) < THREADS / 32 ? part[threadIdx.x & 31] : (MAX ? -1e30f : 0.f);
    for (int d = 16; d; d >>= 1) { float o = __shfl_xor_sync(~0u, v, d); v = MAX ? fmaxf(v, o) : v + o; }
    return v;
}

__global__ void __launch_bounds__(THREADS) xent(const __nv_bfloat16* __restrict__ x, const int64_t* __restrict__ t,
        const float* __restrict__ go, float* __restrict__ loss, __nv_bfloat16* __restrict__ grad, int cols) {
    __shared__ float part[32];
    int64_t row = blockIdx.x;
    const Pack* src = (const Pack*)(x + row * cols);
    Pack* dst = (Pack*)(grad + row * cols);
    int n = cols / VEC;
    float m = -1e30f, z = 0.f;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        Pack p = src[i];
        #pragma unroll
        for (int j = 0; j < VEC; ++j) m = fmaxf(m, __bfloat162float(p.v[j]));
    }
    m = all<true>(m, part);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        Pack p = src[i];
        #pragma unroll
        for (int j = 0; j < VEC; ++j) z += <<exp>>(__bfloat162float(p.v[j]) - m);
    }
    z = all<false>(z, part);
    float lse = m + logf(z);
    int target = (int)t[row];
    float g = go[row];
    if (threadIdx.x == 0) loss[row] = lse - __bfloat162float(x[row * cols + target]);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int at = <<back>>;
        dst[at] = gradient(src[at], lse, g, target - at * VEC);
    }
}

void launch(uintptr_t x, uintptr_t t, uintptr_t go, uintptr_t loss, uintptr_t grad, int rows, int cols) {
    xent<<<rows, THREADS>>>((const __nv_bfloat16*)x, (const int64_t*)t, (const float*)go, (float*)loss, (__nv_bfloat16*)grad, cols);
}
''', vec=k["vec"], exp=k["exp"], threads=k["threads"], back=back), _CE_HOST)


_EXP = ["expf", "__expf"]
CE = {
    "cuda_stage": (dict(vec=[1, 2, 4, 8], threads=[128, 256, 512, 1024], kb=[16, 32, 64, 100, 200], exp=_EXP), ce_stage),
    "cuda_split": (dict(vec=[1, 2, 4, 8], t1=[64, 128, 256, 512], t2=[128, 256, 512], split=[1, 2, 4, 8, 16], wide=[1, 2, 4, 8, 16], exp=_EXP), ce_split),
    "cuda_warp": (dict(vec=[1, 2, 4, 8], warps=[1, 2, 4, 8], unroll=[1, 2, 4, 8], exp=_EXP), ce_warp),
    "cuda_passes": (dict(vec=[1, 2, 4, 8], threads=[32, 64, 128, 256, 512, 1024], last=["forwards", "backwards"], exp=_EXP), ce_passes),
}

# ------------------------------------------------------------------ gdn_recompute_w_u
_P7 = "uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int, int, int"


def _tile_threads(br, tm, tn, width=64):
    """Make a register tile fit: 32 to 1024 threads, no tile larger than the block."""
    tm, tn = min(tm, br), min(tn, width)
    while br // tm * (width // tn) < 32:
        if tm >= tn and tm > 1:
            tm //= 2
        else:
            tn //= 2
    while br // tm * (width // tn) > 1024:
        tn *= 2
    return tm, tn


def wu_tile(k):
    """A block per chunk, head and row part; the scaled operand in shared memory, register tiles."""
    br = k["br"]
    tm, tn = _tile_threads(br, k["tm"], k["tn"])
    both = k["launches"] == 1
    return _module("wu_tile_" + tag(sorted(dict(k, tm=tm, tn=tn).items())), _P7, fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int C = 64, BR = <<br>>, TM = <<tm>>, TN = <<tn>>, THREADS = (BR / TM) * (64 / TN);

// y[rows of the part] = A (scale * x), columns in tiles of 64
__device__ void product(const float* __restrict__ x, float* __restrict__ y, const float (*at)[BR + 1], float (*xs)[64],
                        const float* scale, int64_t row0, int64_t stride, int r0, int D) {
    int tx = threadIdx.x % (64 / TN), ty = threadIdx.x / (64 / TN);
    for (int c0 = 0; c0 < D; c0 += 64) {
        __syncthreads();
        for (int i = threadIdx.x; i < C * 64; i += THREADS) xs[i / 64][i % 64] = x[(row0 + (i / 64) * stride) * D + c0 + i % 64] * scale[i / 64];
        __syncthreads();
        float acc[TM][TN] = {};
        #pragma unroll <<unroll>>
        for (int j = 0; j < <<jend>>; ++j) {
            float a[TM], b[TN];
            #pragma unroll
            for (int i = 0; i < TM; ++i) a[i] = at[j][ty * TM + i];
            #pragma unroll
            for (int i = 0; i < TN; ++i) b[i] = xs[j][tx * TN + i];
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                #pragma unroll
                for (int l = 0; l < TN; ++l) acc[i][l] += a[i] * b[l];
        }
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int l = 0; l < TN; ++l) y[(row0 + (r0 + ty * TM + i) * stride) * D + c0 + tx * TN + l] = acc[i][l];
    }
}

__global__ void __launch_bounds__(THREADS) wu(const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ beta,
        const float* __restrict__ A, const float* __restrict__ g, float* __restrict__ w, float* __restrict__ u, int T, int H, int K, int V, int which) {
    __shared__ float at[C][BR + 1], xs[C][64], sb[C], sg[C];
    int b = blockIdx.y / H, h = blockIdx.y % H, r0 = blockIdx.z * BR;
    int64_t row0 = ((int64_t)b * T + blockIdx.x * C) * H + h;
    for (int i = threadIdx.x; i < BR * C; i += THREADS) at[i % C][i / C] = A[(row0 + (int64_t)(r0 + i / C) * H) * C + i % C];
    for (int i = threadIdx.x; i < C; i += THREADS) {
        float s = beta[row0 + (int64_t)i * H];
        sb[i] = s;
        sg[i] = s * expf(g[row0 + (int64_t)i * H]);
    }
    __syncthreads();
    if (which & 1) product(v, u, at, xs, sb, row0, H, r0, V);
    if (which & 2) product(k, w, at, xs, sg, row0, H, r0, K);
}

void launch(uintptr_t k, uintptr_t v, uintptr_t beta, uintptr_t A, uintptr_t g, uintptr_t w, uintptr_t u, int B, int T, int H, int K, int V) {
    dim3 grid(T / C, B * H, C / BR);
<<launches>>}
''', br=br, tm=tm, tn=tn, unroll=k["unroll"], jend="r0 + BR" if k["span"] == "causal" else "C",
        launches="".join(f"    wu<<<grid, THREADS>>>((const float*)k, (const float*)v, (const float*)beta, (const float*)A, (const float*)g, (float*)w, (float*)u, T, H, K, V, {m});\n" for m in ([3] if both else [1, 2])).replace("<<<", "@@@").replace(">>>", "&&&")).replace("@@@", "<<<").replace("&&&", ">>>"), '''def custom_kernel(data):
    k, v, beta, A, g = data
    B, T, H, K = k.shape
    w, u = torch.empty_like(k), torch.empty_like(v)
    ext.launch(k.data_ptr(), v.data_ptr(), beta.data_ptr(), A.data_ptr(), g.data_ptr(), w.data_ptr(), u.data_ptr(),
               B, T, H, K, v.shape[-1])
    return w, u
''')


def wu_warp(k):
    """A warp per output row: A's row in registers, columns across lanes, operands straight from L1."""
    return _module("wu_warp_" + tag(sorted(k.items())), _P7, fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int C = 64, WARPS = <<warps>>;

__global__ void __launch_bounds__(WARPS * 32) wu(const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ beta,
        const float* __restrict__ A, const float* __restrict__ g, float* __restrict__ w, float* __restrict__ u, int T, int H, int K, int V, int64_t rows) {
    int64_t id = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);  // (b, t, h)
    if (id >= rows) return;
    int lane = threadIdx.x & 31;
    int h = id % H;
    int64_t bt = id / H;
    int t = bt % T;
    int64_t row0 = (bt - t + t / C * C) * H + h;
    float s0 = beta[row0 + (int64_t)lane * H], s1 = beta[row0 + (int64_t)(lane + 32) * H];
    float a0 = A[id * C + lane] * s0, a1 = A[id * C + lane + 32] * s1;
    float e0 = a0 * expf(g[row0 + (int64_t)lane * H]), e1 = a1 * expf(g[row0 + (int64_t)(lane + 32) * H]);
    int last = <<last>>;
    for (int c = lane; c < V; c += 32) {
        float acc = 0.f;
        #pragma unroll <<unroll>>
        for (int j = 0; j < last; ++j) acc += __shfl_sync(~0u, j < 32 ? a0 : a1, j & 31) * v[(row0 + (int64_t)j * H) * V + c];
        u[id * V + c] = acc;
    }
    for (int c = lane; c < K; c += 32) {
        float acc = 0.f;
        #pragma unroll <<unroll>>
        for (int j = 0; j < last; ++j) acc += __shfl_sync(~0u, j < 32 ? e0 : e1, j & 31) * k[(row0 + (int64_t)j * H) * K + c];
        w[id * K + c] = acc;
    }
}

void launch(uintptr_t k, uintptr_t v, uintptr_t beta, uintptr_t A, uintptr_t g, uintptr_t w, uintptr_t u, int B, int T, int H, int K, int V) {
    int64_t rows = (int64_t)B * T * H;
    wu<<<(rows + WARPS - 1) / WARPS, WARPS * 32>>>((const float*)k, (const float*)v, (const float*)beta, (const float*)A, (const float*)g, (float*)w, (float*)u, T, H, K, V, rows);
}
''', warps=k["warps"], unroll=k["unroll"], last="t % C + 1" if k["span"] == "causal" else "C"), '''def custom_kernel(data):
    k, v, beta, A, g = data
    B, T, H, K = k.shape
    w, u = torch.empty_like(k), torch.empty_like(v)
    ext.launch(k.data_ptr(), v.data_ptr(), beta.data_ptr(), A.data_ptr(), g.data_ptr(), w.data_ptr(), u.data_ptr(),
               B, T, H, K, v.shape[-1])
    return w, u
''')


WU = {
    "cuda_tile": (dict(br=[8, 16, 32, 64], tm=[1, 2, 4, 8], tn=[1, 2, 4, 8], span=["full", "causal"], launches=[1, 2], unroll=[1, 4, 16]), wu_tile),
    "cuda_warp": (dict(warps=[1, 2, 4, 8], span=["full", "causal"], unroll=[1, 4, 8, 16]), wu_warp),
}

# ------------------------------------------------------------------ gdn_chunk_fwd_o
_O_HOST = '''def custom_kernel(data):
    q, k, v, h, g = data
    B, T, H, K = q.shape
    o = torch.empty_like(v)
    ext.launch(q.data_ptr(), k.data_ptr(), v.data_ptr(), h.data_ptr(), g.data_ptr(), o.data_ptr(), B, T, H, K, v.shape[-1])
    return o
'''
_P6 = "uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int, int, int"


def o_rows(k):
    """A block per chunk, head and row part; scores in shared memory, one buffer for keys, states and values in turn."""
    br = k["br"]
    tm, tn = _tile_threads(br, k["tm"], k["tn"])
    return _module("o_rows_" + tag(sorted(dict(k, tm=tm, tn=tn).items())), _P6, fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int C = 64, BR = <<br>>, TM = <<tm>>, TN = <<tn>>, THREADS = (BR / TM) * (64 / TN);

// acc += left^T-stored rows times right, over the first `n` inner indices
__device__ void multiply(float (*acc)[TN], const float (*left)[BR + 1], const float (*right)[65], int n) {
    int tx = threadIdx.x % (64 / TN), ty = threadIdx.x / (64 / TN);
    #pragma unroll <<unroll>>
    for (int j = 0; j < n; ++j) {
        float a[TM], b[TN];
        #pragma unroll
        for (int i = 0; i < TM; ++i) a[i] = left[j][ty * TM + i];
        #pragma unroll
        for (int i = 0; i < TN; ++i) b[i] = right[j][tx * TN + i];
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int l = 0; l < TN; ++l) acc[i][l] += a[i] * b[l];
    }
}

__global__ void __launch_bounds__(THREADS) out(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
        const float* __restrict__ st, const float* __restrict__ g, float* __restrict__ o, int T, int H, int V, float scale) {
    constexpr int K = 64;
    __shared__ float qt[K][BR + 1], s[C][BR + 1], buf[64][65], gs[C];
    int b = blockIdx.y / H, h = blockIdx.y % H, r0 = blockIdx.z * BR, NT = T / C;
    int64_t row0 = ((int64_t)b * T + blockIdx.x * C) * H + h;
    int64_t state0 = (((int64_t)b * NT + blockIdx.x) * H + h) * K * V;
    int tx = threadIdx.x % (64 / TN), ty = threadIdx.x / (64 / TN);
    for (int i = threadIdx.x; i < C; i += THREADS) gs[i] = g[row0 + (int64_t)i * H];
    for (int i = threadIdx.x; i < BR * K; i += THREADS) qt[i % K][i / K] = q[(row0 + (int64_t)(r0 + i / K) * H) * K + i % K];
    for (int i = threadIdx.x; i < C * K; i += THREADS) buf[i % K][i / K] = k[(row0 + (int64_t)(i / K) * H) * K + i % K];
    __syncthreads();
    float acc[TM][TN] = {};
    multiply(acc, qt, buf, K);
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int l = 0; l < TN; ++l) {
            int r = r0 + ty * TM + i, c = tx * TN + l;
            s[c][ty * TM + i] = r >= c ? acc[i][l] * <<exp>>(gs[r] - gs[c]) : 0.f;
        }
    for (int c0 = 0; c0 < V; c0 += 64) {
        __syncthreads();
        for (int i = threadIdx.x; i < K * 64; i += THREADS) buf[i / 64][i % 64] = st[state0 + (int64_t)(i / 64) * V + c0 + i % 64];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int l = 0; l < TN; ++l) acc[i][l] = 0.f;
        multiply(acc, qt, buf, K);
        #pragma unroll
        for (int i = 0; i < TM; ++i) {
            float e = <<exp>>(gs[r0 + ty * TM + i]);
            #pragma unroll
            for (int l = 0; l < TN; ++l) acc[i][l] *= e;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < C * 64; i += THREADS) buf[i / 64][i % 64] = v[(row0 + (int64_t)(i / 64) * H) * V + c0 + i % 64];
        __syncthreads();
        multiply(acc, s, buf, <<jend>>);
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int l = 0; l < TN; ++l) o[(row0 + (int64_t)(r0 + ty * TM + i) * H) * V + c0 + tx * TN + l] = acc[i][l] * scale;
    }
}

void launch(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t st, uintptr_t g, uintptr_t o, int B, int T, int H, int K, int V) {
    out<<<dim3(T / C, B * H, C / BR), THREADS>>>((const float*)q, (const float*)k, (const float*)v, (const float*)st, (const float*)g, (float*)o, T, H, V, 1.f / sqrtf((float)K));
}
'''.replace("<<<dim3", "@@@dim3").replace("THREADS>>>", "THREADS&&&"), br=br, tm=tm, tn=tn, unroll=k["unroll"], exp=k["exp"], jend="r0 + BR" if k["span"] == "causal" else "C").replace("@@@", "<<<").replace("&&&", ">>>"), _O_HOST)


def o_warp(k):
    """A warp per query row: scores across lanes, then both products with columns across lanes."""
    return _module("o_warp_" + tag(sorted(k.items())), _P6, fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int C = 64, K = 64, WARPS = <<warps>>;

__global__ void __launch_bounds__(WARPS * 32) out(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
        const float* __restrict__ st, const float* __restrict__ g, float* __restrict__ o, int T, int H, int V, int64_t rows, float scale) {
    __shared__ float qs[WARPS][K], ss[WARPS][C];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t id = (int64_t)blockIdx.x * WARPS + warp;  // (b, t, h)
    if (id >= rows) return;
    int h = id % H;
    int64_t bt = id / H;
    int t = bt % T, i = t % C;
    int64_t row0 = (bt - i) * H + h;
    int64_t state0 = (((bt / T) * (T / C) + t / C) * H + h) * (int64_t)K * V;
    qs[warp][lane] = q[id * K + lane];
    qs[warp][lane + 32] = q[id * K + lane + 32];
    __syncwarp();
    float gi = g[id];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        int j = lane + half * 32;
        float acc = 0.f;
        if (j <= i) {
            const float* kr = k + (row0 + (int64_t)j * H) * K;
            #pragma unroll <<unroll>>
            for (int d = 0; d < K; ++d) acc += qs[warp][d] * kr[d];
            acc *= <<exp>>(gi - g[row0 + (int64_t)j * H]);
        }
        ss[warp][j] = acc;
    }
    __syncwarp();
    float e = <<exp>>(gi);
    for (int c = lane; c < V; c += 32) {
        float a = 0.f, b = 0.f;
        #pragma unroll <<unroll>>
        for (int d = 0; d < K; ++d) a += qs[warp][d] * st[state0 + (int64_t)d * V + c];
        #pragma unroll <<unroll>>
        for (int j = 0; j < <<last>>; ++j) b += ss[warp][j] * v[(row0 + (int64_t)j * H) * V + c];
        o[id * V + c] = (a * e + b) * scale;
    }
}

void launch(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t st, uintptr_t g, uintptr_t o, int B, int T, int H, int K_, int V) {
    int64_t rows = (int64_t)B * T * H;
    out<<<(rows + WARPS - 1) / WARPS, WARPS * 32>>>((const float*)q, (const float*)k, (const float*)v, (const float*)st, (const float*)g, (float*)o, T, H, V, rows, 1.f / sqrtf((float)K_));
}
''', warps=k["warps"], unroll=k["unroll"], exp=k["exp"], last="i + 1" if k["span"] == "causal" else "C"), _O_HOST)


O = {
    "cuda_rows": (dict(br=[8, 16, 32], tm=[1, 2, 4, 8], tn=[1, 2, 4, 8], span=["full", "causal"], exp=_EXP, unroll=[1, 4, 16]), o_rows),
    "cuda_warp": (dict(warps=[1, 2, 4, 8], span=["full", "causal"], exp=_EXP, unroll=[1, 4, 16]), o_warp),
}

# ------------------------------------------------------------------ gdn_chunk_fwd_h
_H_HOST = '''def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    states = torch.empty(B, T // 64, H, K, V, dtype=k.dtype, device=k.device)
    fixed = torch.empty_like(u)
    ext.launch(k.data_ptr(), w.data_ptr(), u.data_ptr(), g.data_ptr(), states.data_ptr(), fixed.data_ptr(), B, T, H, K, V)
    return states, fixed
'''


def h_scan(k):
    """A block carries BV columns of the state through all chunks; state and gated values in shared memory."""
    bv, threads = k["bv"], k["threads"]
    while 64 * bv < threads:
        threads //= 2
    return _module("h_scan_" + tag(sorted(dict(k, threads=threads).items())), _P6, fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int C = 64, K = 64, BV = <<bv>>, THREADS = <<threads>>, ROWS = 64 * BV / THREADS, STEP = THREADS / BV, PAD = <<pad>>;

__global__ void __launch_bounds__(THREADS) scan(const float* __restrict__ k, const float* __restrict__ w, const float* __restrict__ u,
        const float* __restrict__ g, float* __restrict__ states, float* __restrict__ fixed, int T, int H, int V) {
    __shared__ float s[K][BV], x[C][BV], m[C][K + PAD], fade[C];
    int c = threadIdx.x % BV, r = threadIdx.x / BV, c0 = blockIdx.x * BV;
    int b = blockIdx.y / H, h = blockIdx.y % H, NT = T / C;
    for (int i = threadIdx.x; i < K * BV; i += THREADS) s[i / BV][i % BV] = 0.f;
    for (int n = 0; n < NT; ++n) {
        int64_t row0 = ((int64_t)b * T + n * C) * H + h;
        int64_t state0 = (((int64_t)b * NT + n) * H + h) * K * V;
        __syncthreads();
        for (int i = threadIdx.x; i < K * BV; i += THREADS) states[state0 + (int64_t)(i / BV) * V + c0 + i % BV] = s[i / BV][i % BV];
        for (int i = threadIdx.x; i < C * K; i += THREADS) m[i / K][i % K] = w[(row0 + (int64_t)(i / K) * H) * K + i % K];
        float last = g[row0 + (int64_t)(C - 1) * H];
        for (int i = threadIdx.x; i < C; i += THREADS) fade[i] = <<exp>>(last - g[row0 + (int64_t)i * H]);
        __syncthreads();
        float acc[ROWS];
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) acc[i] = 0.f;
        #pragma unroll <<unroll>>
        for (int d = 0; d < K; ++d) {
            float sv = s[d][c];
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) acc[i] += m[r + i * STEP][d] * sv;
        }
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            int64_t at = (row0 + (int64_t)(r + i * STEP) * H) * V + c0 + c;
            float vn = u[at] - acc[i];
            fixed[at] = vn;
            x[r + i * STEP][c] = vn * fade[r + i * STEP];
        }
        if (n + 1 == NT) break;
        __syncthreads();
        for (int i = threadIdx.x; i < C * K; i += THREADS) m[i / K][i % K] = k[(row0 + (int64_t)(i / K) * H) * K + i % K];
        __syncthreads();
        float carry = <<exp>>(last);
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) acc[i] = s[r + i * STEP][c] * carry;
        #pragma unroll <<unroll>>
        for (int j = 0; j < C; ++j) {
            float xv = x[j][c];
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) acc[i] += m[j][r + i * STEP] * xv;
        }
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) s[r + i * STEP][c] = acc[i];
    }
}

void launch(uintptr_t k, uintptr_t w, uintptr_t u, uintptr_t g, uintptr_t states, uintptr_t fixed, int B, int T, int H, int K_, int V) {
    scan<<<dim3(V / BV, B * H), THREADS>>>((const float*)k, (const float*)w, (const float*)u, (const float*)g, (float*)states, (float*)fixed, T, H, V);
}
'''.replace("<<<dim3", "@@@dim3").replace("THREADS>>>", "THREADS&&&"), bv=bv, threads=threads, unroll=k["unroll"], exp=k["exp"], pad=k["pad"]).replace("@@@", "<<<").replace("&&&", ">>>"), _H_HOST)


def h_step(k):
    """Two kernels per chunk; the state goes through device memory, one thread per element."""
    return _module("h_step_" + tag(sorted(k.items())), _P6, fill('''#include <cstdint>
#include <cuda_runtime.h>

constexpr int C = 64, K = 64;

__global__ void fix(const float* __restrict__ w, const float* __restrict__ u, const float* __restrict__ states, float* __restrict__ fixed,
                    int n, int T, int H, int V) {
    int b = blockIdx.y / H, h = blockIdx.y % H, NT = T / C;
    int id = blockIdx.x * blockDim.x + threadIdx.x, r = id / V, c = id % V;
    if (r >= C) return;
    int64_t row = ((int64_t)b * T + n * C + r) * H + h;
    const float* s = states + (((int64_t)b * NT + n) * H + h) * K * V + c;
    float acc = 0.f;
    #pragma unroll <<unroll>>
    for (int d = 0; d < K; ++d) acc += w[row * K + d] * s[(int64_t)d * V];
    fixed[row * V + c] = u[row * V + c] - acc;
}

__global__ void carry(const float* __restrict__ k, const float* __restrict__ g, float* __restrict__ states, const float* __restrict__ fixed,
                      int n, int T, int H, int V) {
    int b = blockIdx.y / H, h = blockIdx.y % H, NT = T / C;
    int id = blockIdx.x * blockDim.x + threadIdx.x, d = id / V, c = id % V;
    if (d >= K) return;
    int64_t row0 = ((int64_t)b * T + n * C) * H + h;
    int64_t at = (((int64_t)b * NT + n) * H + h) * K * V + (int64_t)d * V + c;
    float last = g[row0 + (int64_t)(C - 1) * H];
    float acc = states[at] * <<exp>>(last);
    #pragma unroll <<unroll>>
    for (int j = 0; j < C; ++j) {
        int64_t row = row0 + (int64_t)j * H;
        acc += k[row * K + d] * fixed[row * V + c] * <<exp>>(last - g[row]);
    }
    states[at + (int64_t)H * K * V] = acc;
}

void launch(uintptr_t k, uintptr_t w, uintptr_t u, uintptr_t g, uintptr_t states, uintptr_t fixed, int B, int T, int H, int K_, int V) {
    dim3 grid((C * V + <<threads>> - 1) / <<threads>>, B * H);
    for (int n = 0; n < T / C; ++n) {
        fix<<<grid, <<threads>>&&&((const float*)w, (const float*)u, (const float*)states, (float*)fixed, n, T, H, V);
        if (n + 1 < T / C) carry<<<grid, <<threads>>&&&((const float*)k, (const float*)g, (float*)states, (const float*)fixed, n, T, H, V);
    }
}
'''.replace("<<<grid, <<threads>>&&&", "@@@grid, <<threads>>&&&"), threads=k["threads"], unroll=k["unroll"], exp=k["exp"]).replace("@@@", "<<<").replace("&&&", ">>>"), _H_HOST.replace("torch.empty(B, T", "torch.zeros(B, T"))


H = {
    "cuda_scan": (dict(bv=[2, 4, 8, 16, 32], threads=[64, 128, 256, 512, 1024], unroll=[1, 4, 16, 64], exp=_EXP, pad=[0, 1, 4]), h_scan),
    "cuda_step": (dict(threads=[32, 64, 128, 256, 512, 1024], unroll=[1, 4, 16, 64], exp=_EXP), h_step),
}

# ------------------------------------------------------------------ trimul
_TYPES = {"fp16": ("__half", "torch.float16", "__float2half({})", "__half2float({})"),
          "bf16": ("__nv_bfloat16", "torch.bfloat16", "__float2bfloat16({})", "__bfloat162float({})"),
          "tf32": ("float", "torch.float32", "({})", "({})")}


def tri_mix(k):
    """Normalisation, gates and transposition in CUDA, the four matrix products in cuBLAS, precision stage by stage."""
    t1, n1, to1, from1 = _TYPES[k["p1"]]
    t2, n2, to2, from2 = _TYPES[k["p2"]]
    t3, n3, to3, _ = _TYPES[k["p3"]]
    tf32 = "tf32" in (k["p1"], k["p2"], k["p3"])
    cuda = fill('''#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>

constexpr int WARPS = <<warps>>, TILE = <<tile>>, H = 128;

__device__ float sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

__device__ float gate_of(float v) { return 1.f / (1.f + <<gate>>(-v)); }

// a warp per pair: layer norm over the input width
__global__ void __launch_bounds__(WARPS * 32) norm(const float* __restrict__ x, const float* __restrict__ nw, const float* __restrict__ nb,
                                                  <<t1>>* __restrict__ z, int64_t M, int D) {
    int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= M) return;
    int lane = threadIdx.x & 31;
    const float* src = x + row * D;
    float s = 0.f;
    for (int d = lane; d < D; d += 32) s += src[d];
    float mean = sum(s) / D;
    float q = 0.f;
    for (int d = lane; d < D; d += 32) { float c = src[d] - mean; q += c * c; }
    float rstd = rsqrtf(sum(q) / D + 1e-5f);
    for (int d = lane; d < D; d += 32) { float v = (src[d] - mean) * rstd * nw[d] + nb[d]; z[row * D + d] = <<to1>>; }
}

// y [M, 5H] -> a, b [B, H, N*N] (transposed through shared memory), gate [M, H]
__global__ void split(const <<t1>>* __restrict__ y, const float* __restrict__ mask, <<t2>>* __restrict__ a, <<t2>>* __restrict__ b, <<t1>>* __restrict__ gate, int64_t NN) {
    __shared__ float sa[TILE][TILE + 1], sb[TILE][TILE + 1];
    int64_t p0 = (int64_t)blockIdx.x * TILE;
    int h0 = blockIdx.y * TILE, batch = blockIdx.z;
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) {
        int p = i / TILE, h = i % TILE;
        float va = 0.f, vb = 0.f;
        if (p0 + p < NN) {
            int64_t row = batch * NN + p0 + p;
            const <<t1>>* r = y + row * 5 * H + h0 + h;
            float m = mask[row];
            va = <<y0>> * gate_of(<<y1>>) * m;
            vb = <<y2>> * gate_of(<<y3>>) * m;
            float v = gate_of(<<y4>>);
            gate[row * H + h0 + h] = <<to1>>;
        }
        sa[h][p] = va;
        sb[h][p] = vb;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) {
        int h = i / TILE, p = i % TILE;
        if (p0 + p < NN) {
            int64_t at = ((int64_t)batch * H + h0 + h) * NN + p0 + p;
            { float v = sa[h][p]; a[at] = <<to2>>; }
            { float v = sb[h][p]; b[at] = <<to2>>; }
        }
    }
}

// t [B, H, N*N] -> z [M, H]: layer norm over channels, gate
__global__ void finish(const <<t2>>* __restrict__ t, const <<t1>>* __restrict__ gate, const float* __restrict__ nw, const float* __restrict__ nb, <<t3>>* __restrict__ z, int64_t NN) {
    __shared__ float s[H][TILE + 1];
    int64_t p0 = (int64_t)blockIdx.x * TILE;
    int batch = blockIdx.y;
    for (int i = threadIdx.x; i < H * TILE; i += blockDim.x) {
        int h = i / TILE, p = i % TILE;
        s[h][p] = p0 + p < NN ? <<t0>> : 0.f;
    }
    __syncthreads();
    int lane = threadIdx.x & 31;
    for (int p = threadIdx.x >> 5; p < TILE && p0 + p < NN; p += blockDim.x >> 5) {
        float v0[H / 32], tot = 0.f, q = 0.f;
        #pragma unroll
        for (int j = 0; j < H / 32; ++j) { v0[j] = s[lane + 32 * j][p]; tot += v0[j]; }
        float mean = sum(tot) / H;
        #pragma unroll
        for (int j = 0; j < H / 32; ++j) { v0[j] -= mean; q += v0[j] * v0[j]; }
        float rstd = rsqrtf(sum(q) / H + 1e-5f);
        int64_t row = batch * NN + p0 + p;
        #pragma unroll
        for (int j = 0; j < H / 32; ++j) {
            int h = lane + 32 * j;
            float v = (v0[j] * rstd * nw[h] + nb[h]) * <<g0>>;
            z[row * H + h] = <<to3>>;
        }
    }
}

void launch(int stage, uintptr_t p0, uintptr_t p1, uintptr_t p2, uintptr_t p3, uintptr_t p4, int B, int N, int D) {
    int64_t NN = (int64_t)N * N, M = NN * B;
    if (stage == 0) norm<<<(M + WARPS - 1) / WARPS, WARPS * 32&&&((const float*)p0, (const float*)p1, (const float*)p2, (<<t1>>*)p3, M, D);
    if (stage == 1) split<<<dim3((NN + TILE - 1) / TILE, H / TILE, B), 256&&&((const <<t1>>*)p0, (const float*)p1, (<<t2>>*)p2, (<<t2>>*)p3, (<<t1>>*)p4, NN);
    if (stage == 2) finish<<<dim3((NN + TILE - 1) / TILE, B), 256&&&((const <<t2>>*)p0, (const <<t1>>*)p1, (const float*)p2, (const float*)p3, (<<t3>>*)p4, NN);
}
'''.replace("<<<", "@@@"), warps=k["warps"], tile=k["tile"], gate=k["gate"], t1=t1, t2=t2, t3=t3,
        to1=to1.format("v"), to2=to2.format("v"), to3=to3.format("v"),
        y0=from1.format("r[0]"), y1=from1.format("r[H]"), y2=from1.format("r[2 * H]"), y3=from1.format("r[3 * H]"), y4=from1.format("r[4 * H]"),
        t0=from2.format("t[((int64_t)batch * H + h) * NN + p0 + p]"), g0=from1.format("gate[row * H + h]")).replace("@@@", "<<<").replace("&&&", ">>>")
    body = f'''z = torch.empty(M, D, dtype={n1}, device=x.device)
ext.launch(0, x.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), z.data_ptr(), 0, B, N, D)
w5 = torch.cat([p["left_proj.weight"], p["left_gate.weight"], p["right_proj.weight"], p["right_gate.weight"], p["out_gate.weight"]])
y = F.linear(z, w5.to({n1}))
a = torch.empty(B, H, N, N, dtype={n2}, device=x.device)
b = torch.empty_like(a)
gate = torch.empty(M, H, dtype={n1}, device=x.device)
ext.launch(1, y.data_ptr(), mask.data_ptr(), a.data_ptr(), b.data_ptr(), gate.data_ptr(), B, N, D)
t = a @ b.transpose(-1, -2)
z2 = torch.empty(M, H, dtype={n3}, device=x.device)
ext.launch(2, t.data_ptr(), gate.data_ptr(), p["to_out_norm.weight"].data_ptr(), p["to_out_norm.bias"].data_ptr(), z2.data_ptr(), B, N, D)
return F.linear(z2, p["to_out.weight"].to({n3})).float().view(B, N, N, D)
'''
    indent = "        " if tf32 else "    "
    lines = "".join(indent + line + "\n" for line in body.splitlines())
    if tf32:
        lines = ("    old = torch.backends.cuda.matmul.allow_tf32\n    torch.backends.cuda.matmul.allow_tf32 = True\n    try:\n" + lines +
                 "    finally:\n        torch.backends.cuda.matmul.allow_tf32 = old\n")
    host = '''def custom_kernel(data):
    x, mask, p, cfg = data
    B, N, _, D = x.shape
    H = cfg["hidden_dim"]
    M = B * N * N
''' + lines
    code = _module("tri_mix_" + tag(sorted(k.items())), "int, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, int, int", cuda, host)
    return code.replace("import torch\n", "import torch\nimport torch.nn.functional as F\n", 1)


TRI = {
    "cuda_mix": (dict(p1=["tf32", "fp16", "bf16"], p2=["tf32", "fp16", "bf16"], p3=["tf32", "fp16", "bf16"], warps=[1, 2, 4, 8], tile=[16, 32], gate=_EXP), tri_mix),
}
