"""Attempts of two agents on trimul: Triton and CUDA C++."""
import sys; from pathlib import Path; sys.path.insert(0, str(Path(__file__).resolve().parent))
import heads


def A(title, parent, note, code):
    return dict(title=title, parent=parent, note=note, code=heads.HEAD["trimul"] + code)


IMP = "import torch\nimport triton\nimport triton.language as tl\n\n\n"

# ---- Triton: first kernel -------------------------------------------------------------------------------------

PROJ_ALL = '''@triton.jit
def gated(z, w_ptr, first, msk, o_ptr, hh, kk, D: tl.constexpr, H: tl.constexpr):
    wp = tl.load(w_ptr + (first * H + hh)[None, :] * D + kk[:, None])
    wg = tl.load(w_ptr + (first * H + H + hh)[None, :] * D + kk[:, None])
    v = tl.dot(z, wp) * tl.sigmoid(tl.dot(z, wg)) * msk[:, None]
    tl.store(o_ptr, v.to(o_ptr.dtype.element_ty))


@triton.jit
def proj_kernel(x_ptr, mask_ptr, nw_ptr, nb_ptr, w_ptr, a_ptr, b_ptr, g_ptr, NN,
                D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """LayerNorm once, then all five projections from the same tile; operands stored channel-first."""
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BM + tl.arange(0, BM)
    row = batch * NN + pos
    hh = tl.arange(0, H)
    kk = tl.arange(0, BK)
    msk = tl.load(mask_ptr + row)
    off = (batch * H + hh)[None, :] * NN + pos[:, None]
    if D == BK:
        x = tl.load(x_ptr + row[:, None] * D + kk[None, :])
        c = x - (tl.sum(x, axis=1) / D)[:, None]
        rstd = tl.rsqrt(tl.sum(c * c, axis=1) / D + 1e-5)
        z = (c * rstd[:, None] * tl.load(nw_ptr + kk)[None, :] + tl.load(nb_ptr + kk)[None, :]).to(tl.float16)
        gated(z, w_ptr, 0, msk, a_ptr + off, hh, kk, D, H)
        gated(z, w_ptr, 2, msk, b_ptr + off, hh, kk, D, H)
        wo = tl.load(w_ptr + (4 * H + hh)[None, :] * D + kk[:, None])
        tl.store(g_ptr + row[:, None] * H + hh[None, :], tl.sigmoid(tl.dot(z, wo)).to(tl.float16))
    else:
        s1 = tl.zeros((BM,), tl.float32)
        s2 = tl.zeros((BM,), tl.float32)
        for d in range(0, D, BK):
            x = tl.load(x_ptr + row[:, None] * D + d + kk[None, :])
            s1 += tl.sum(x, axis=1)
            s2 += tl.sum(x * x, axis=1)
        mean = s1 / D
        rstd = tl.rsqrt(s2 / D - mean * mean + 1e-5)
        for part in tl.static_range(3):
            acc = tl.zeros((BM, H), tl.float32)
            gac = tl.zeros((BM, H), tl.float32)
            for d in range(0, D, BK):
                x = tl.load(x_ptr + row[:, None] * D + d + kk[None, :])
                z = ((x - mean[:, None]) * rstd[:, None] * tl.load(nw_ptr + d + kk)[None, :] + tl.load(nb_ptr + d + kk)[None, :]).to(tl.float16)
                acc = tl.dot(z, tl.load(w_ptr + (part * 2 * H + hh)[None, :] * D + d + kk[:, None]), acc)
                if part < 2:
                    gac = tl.dot(z, tl.load(w_ptr + (part * 2 * H + H + hh)[None, :] * D + d + kk[:, None]), gac)
            if part == 0:
                tl.store(a_ptr + off, (acc * tl.sigmoid(gac) * msk[:, None]).to(tl.float16))
            elif part == 1:
                tl.store(b_ptr + off, (acc * tl.sigmoid(gac) * msk[:, None]).to(tl.float16))
            else:
                tl.store(g_ptr + row[:, None] * H + hh[None, :], tl.sigmoid(acc).to(tl.float16))
'''

# weights stay in shared memory, the program walks over tiles
PROJ_RES = '''@triton.jit
def resident_kernel(x_ptr, mask_ptr, nw_ptr, nb_ptr, w_ptr, a_ptr, b_ptr, g_ptr, M, NN,
                    D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, STEP: tl.constexpr):
    """D = BK: the five weights are loaded once per program; tiles of BM pairs are taken in turn."""
    hh = tl.arange(0, H)
    kk = tl.arange(0, D)
    wl = tl.load(w_ptr + hh[None, :] * D + kk[:, None])
    wlg = tl.load(w_ptr + (H + hh)[None, :] * D + kk[:, None])
    wr = tl.load(w_ptr + (2 * H + hh)[None, :] * D + kk[:, None])
    wrg = tl.load(w_ptr + (3 * H + hh)[None, :] * D + kk[:, None])
    wg = tl.load(w_ptr + (4 * H + hh)[None, :] * D + kk[:, None])
    nw = tl.load(nw_ptr + kk)[None, :]
    nb = tl.load(nb_ptr + kk)[None, :]
    for tile in range(tl.program_id(0), M // BM, STEP):
        first = tile * BM
        row = first + tl.arange(0, BM)
        batch = first // NN
        off = (batch * H + hh)[None, :] * NN + (first - batch * NN) + tl.arange(0, BM)[:, None]
        x = tl.load(x_ptr + row[:, None] * D + kk[None, :])
        msk = tl.load(mask_ptr + row)[:, None]
        c = x - (tl.sum(x, axis=1) / D)[:, None]
        rstd = tl.rsqrt(tl.sum(c * c, axis=1) / D + 1e-5)
        z = (c * rstd[:, None] * nw + nb).to(tl.float16)
        tl.store(a_ptr + off, (tl.dot(z, wl) * tl.sigmoid(tl.dot(z, wlg)) * msk).to(tl.float16))
        tl.store(b_ptr + off, (tl.dot(z, wr) * tl.sigmoid(tl.dot(z, wrg)) * msk).to(tl.float16))
        tl.store(g_ptr + row[:, None] * H + hh[None, :], tl.sigmoid(tl.dot(z, wg)).to(tl.float16))
'''

# z written once in half precision, then a plain pipelined GEMM per part
NORM = '''@triton.jit
def norm_kernel(x_ptr, nw_ptr, nb_ptr, z_ptr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    dd = tl.arange(0, BD)
    ok = (dd < D)[None, :]
    x = tl.load(x_ptr + row[:, None] * D + dd[None, :], mask=ok, other=0.0)
    c = tl.where(ok, x - (tl.sum(x, axis=1) / D)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(c * c, axis=1) / D + 1e-5)
    z = c * rstd[:, None] * tl.load(nw_ptr + dd, mask=dd < D, other=0.0)[None, :] + tl.load(nb_ptr + dd, mask=dd < D, other=0.0)[None, :]
    tl.store(z_ptr + row[:, None] * D + dd[None, :], z.to(tl.float16), mask=ok)
'''

GEMM = '''@triton.jit
def gemm_kernel(z_ptr, mask_ptr, w_ptr, a_ptr, b_ptr, g_ptr, NN,
                D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """Part 0: left, 1: right (projection and gate together), 2: output gate. Parts of a tile are neighbours, so z comes from L2."""
    part = tl.program_id(0) % 3
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) // 3 * BM + tl.arange(0, BM)
    row = batch * NN + pos
    hh = tl.arange(0, H)
    kk = tl.arange(0, BK)
    zp = z_ptr + row[:, None] * D + kk[None, :]
    wp = w_ptr + (part * 2 * H + hh)[None, :] * D + kk[:, None]
    off = (batch * H + hh)[None, :] * NN + pos[:, None]
    acc = tl.zeros((BM, H), tl.float32)
    if part == 2:
        for d in range(0, D, BK):
            acc = tl.dot(tl.load(zp + d), tl.load(wp + d), acc)
        tl.store(g_ptr + row[:, None] * H + hh[None, :], tl.sigmoid(acc).to(tl.float16))
    else:
        gac = tl.zeros((BM, H), tl.float32)
        for d in range(0, D, BK):
            z = tl.load(zp + d)
            acc = tl.dot(z, tl.load(wp + d), acc)
            gac = tl.dot(z, tl.load(wp + H * D + d), gac)
        v = (acc * tl.sigmoid(gac) * tl.load(mask_ptr + row)[:, None]).to(tl.float16)
        if part == 0:
            tl.store(a_ptr + off, v)
        else:
            tl.store(b_ptr + off, v)
'''

# the product transposed: accumulators are [channel, pair] like the result
PROJ_T = '''@triton.jit
def transposed_kernel(z_ptr, mask_ptr, w_ptr, a_ptr, b_ptr, g_ptr, NN,
                      D: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """w @ z^T: the accumulator already has the channel-first layout; everything, the gate too, is stored channel-first."""
    batch = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0) % 5
    pos = tl.program_id(0) // 5 * BM + tl.arange(0, BM)
    row = batch * NN + pos
    hh = part % 2 * HB + tl.arange(0, HB)
    if part == 4:
        hh = tl.arange(0, HB)
    kk = tl.arange(0, BK)
    zp = z_ptr + row[None, :] * D + kk[:, None]
    msk = tl.load(mask_ptr + row)[None, :]
    if part == 4:
        for half in tl.static_range(H // HB):
            acc = tl.zeros((HB, BM), tl.float32)
            wp = w_ptr + (4 * H + half * HB + hh)[:, None] * D + kk[None, :]
            for d in range(0, D, BK):
                acc = tl.dot(tl.load(wp + d), tl.load(zp + d), acc)
            tl.store(g_ptr + (batch * H + half * HB + hh)[:, None] * NN + pos[None, :], tl.sigmoid(acc).to(tl.float16))
    else:
        side = part // 2
        acc = tl.zeros((HB, BM), tl.float32)
        gac = tl.zeros((HB, BM), tl.float32)
        wp = w_ptr + (side * 2 * H + hh)[:, None] * D + kk[None, :]
        for d in range(0, D, BK):
            z = tl.load(zp + d)
            acc = tl.dot(tl.load(wp + d), z, acc)
            gac = tl.dot(tl.load(wp + H * D + d), z, gac)
        v = (acc * tl.sigmoid(gac) * msk).to(tl.float16)
        off = (batch * H + hh)[:, None] * NN + pos[None, :]
        if side == 0:
            tl.store(a_ptr + off, v)
        else:
            tl.store(b_ptr + off, v)
'''

# ---- Triton: last kernel --------------------------------------------------------------------------------------
FINAL = '''@triton.jit
def final_kernel(t_ptr, g_ptr, nw_ptr, nb_ptr, w_ptr, o_ptr, NN, shift,
                 D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    """LayerNorm over channels, gate, output projection. t is read as [channel, pair], the way it lies."""
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BM + tl.arange(0, BM)
    row = batch * <<OUTNN>> + pos
    hh = tl.arange(0, H)
    t = tl.trans(tl.load(t_ptr + (batch * H + hh)[:, None] * NN + pos[None, :])).to(tl.float32)
    c = t - (tl.sum(t, axis=1) / H)[:, None]
    rstd = tl.rsqrt(tl.sum(c * c, axis=1) / H + 1e-5)
    z = c * rstd[:, None] * tl.load(nw_ptr + hh)[None, :] + tl.load(nb_ptr + hh)[None, :]
<<GATE>>    z = z.to(tl.float16)
    for d in range(0, D, BD):
        dd = d + tl.arange(0, BD)
        w = tl.load(w_ptr + dd[None, :] * H + hh[:, None])
        tl.store(o_ptr + row[:, None] * D + dd[None, :], tl.dot(z, w))
'''
GATE_ROW = "    z *= tl.load(g_ptr + row[:, None] * H + hh[None, :]).to(tl.float32)\n"
GATE_CH = "    z *= tl.trans(tl.load(g_ptr + (batch * H + hh)[:, None] * NN + pos[None, :])).to(tl.float32)\n"
FINAL_ROW = FINAL.replace("<<GATE>>", GATE_ROW).replace("<<OUTNN>>", "NN").replace("NN, shift,", "NN,")
FINAL_CH = FINAL.replace("<<GATE>>", GATE_CH).replace("<<OUTNN>>", "NN").replace("NN, shift,", "NN,")

FINAL_GATE = '''@triton.jit
def final_gate_kernel(t_ptr, x_ptr, xw_ptr, xb_ptr, wg_ptr, nw_ptr, nb_ptr, w_ptr, o_ptr, NN,
                      D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr):
    """D = BK. The output gate is computed here from x; it never lies in memory."""
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BM + tl.arange(0, BM)
    row = batch * NN + pos
    hh = tl.arange(0, H)
    kk = tl.arange(0, D)
    x = tl.load(x_ptr + row[:, None] * D + kk[None, :])
    c = x - (tl.sum(x, axis=1) / D)[:, None]
    r = tl.rsqrt(tl.sum(c * c, axis=1) / D + 1e-5)
    zx = (c * r[:, None] * tl.load(xw_ptr + kk)[None, :] + tl.load(xb_ptr + kk)[None, :]).to(tl.float16)
    gate = tl.sigmoid(tl.dot(zx, tl.load(wg_ptr + hh[None, :] * D + kk[:, None])))
    t = tl.trans(tl.load(t_ptr + (batch * H + hh)[:, None] * NN + pos[None, :])).to(tl.float32)
    c = t - (tl.sum(t, axis=1) / H)[:, None]
    r = tl.rsqrt(tl.sum(c * c, axis=1) / H + 1e-5)
    z = c * r[:, None] * tl.load(nw_ptr + hh)[None, :] + tl.load(nb_ptr + hh)[None, :]
    z = (z * gate).to(tl.float16)
    o = tl.dot(z, tl.load(w_ptr + kk[None, :] * H + hh[:, None]))
    tl.store(o_ptr + row[:, None] * D + kk[None, :], o)
'''

PROJ_AB = PROJ_ALL.replace("def proj_kernel", "def operands_kernel").replace('''        wo = tl.load(w_ptr + (4 * H + hh)[None, :] * D + kk[:, None])
        tl.store(g_ptr + row[:, None] * H + hh[None, :], tl.sigmoid(tl.dot(z, wo)).to(tl.float16))
''', "")

CONTRACT = '''@triton.jit
def contract_kernel(a_ptr, b_ptr, t_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """t[i, j] = sum_k a[i, k] b[j, k]; the tiles of one channel are neighbours, so its operands stay in L2."""
    nt = tl.cdiv(N, BN)
    pid = tl.program_id(0)
    ch = tl.program_id(1).to(tl.int64) * N * N
    i = pid // nt * BM + tl.arange(0, BM)
    j = pid % nt * BN + tl.arange(0, BN)
    kk = tl.arange(0, BK)
    ap = a_ptr + ch + (i % N)[:, None] * N + kk[None, :]
    bp = b_ptr + ch + (j % N)[None, :] * N + kk[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, N, BK):
        acc = tl.dot(tl.load(ap, mask=(k + kk)[None, :] < N, other=0.0), tl.load(bp, mask=(k + kk)[:, None] < N, other=0.0), acc)
        ap += BK
        bp += BK
    tl.store(t_ptr + ch + i[:, None] * N + j[None, :], acc.to(tl.float16), mask=(i < N)[:, None] & (j < N)[None, :])
'''

W5 = 'w5 = torch.cat([p["left_proj.weight"], p["left_gate.weight"], p["right_proj.weight"], p["right_gate.weight"], p["out_gate.weight"]]).half()'


def host(*lines, pre=""):
    return pre + '''def custom_kernel(data):
    x, mask, p, cfg = data
    B, N, _, D = x.shape
    H = cfg["hidden_dim"]
    NN = N * N
    M = B * NN
''' + "".join("    " + l + "\n" for l in (W5,) + lines)


def mod(*parts):
    return IMP + "\n\n".join(parts)


AB = "a = torch.empty(B, H, N, N, dtype=torch.float16, device=x.device)\n    b = torch.empty_like(a)"
G = "gate = torch.empty(B, N, N, H, dtype=torch.float16, device=x.device)"
ARGS1 = 'x, mask, p["norm.weight"], p["norm.bias"], w5, a, b, gate, '
def P_ALL(bm=128, w=8): return f'proj_kernel[(NN // {bm}, B)]({ARGS1}NN, D=D, H=H, BM={bm}, BK=128, num_warps={w}, num_stages=1)'
P_RES = '''if D == 128:
        resident_kernel[(132,)](''' + ARGS1 + '''M, NN, D=D, H=H, BM=64, STEP=132, num_warps=8, num_stages=1)
    else:
        ''' + P_ALL()
def P_GEMM(bm=128, bk=64, st=3): return f'z = torch.empty(M, D, dtype=torch.float16, device=x.device)\n    norm_kernel[(M // 16,)](x, p["norm.weight"], p["norm.bias"], z, D=D, BD=triton.next_power_of_2(D), BM=16, num_warps=4)\n    gemm_kernel[(NN // {bm} * 3, B)](z, mask, w5, a, b, gate, NN, D=D, H=H, BM={bm}, BK={bk}, num_warps=8, num_stages={st})'
MM = "t = a @ b.transpose(-1, -2)"
OUT = 'out = torch.empty(B, N, N, D, dtype=torch.float32, device=x.device)\n    wo = p["to_out.weight"].half()'
def FIN(bm=128, bd=64, w=8): return f'final_kernel[(NN // {bm}, B)](t, gate, p["to_out_norm.weight"], p["to_out_norm.bias"], wo, out, NN, D=D, H=H, BM={bm}, BD={bd}, num_warps={w})\n    return out'

TRITON = [
    A("one tile, five projections", None, "the best known kernel reads x three times with 32-row tiles; read it once in 128-row tiles, large enough for warp-group products, and do left, right and gate from the same half-precision tile; last kernel reads t channel-first and transposes on chip",
      mod(PROJ_ALL, FINAL_ROW, host(AB, G, P_ALL(), MM, OUT, FIN()))),
    A("weights resident, persistent programs", 0, "with 128-row tiles the weights cost 2.5 times the bytes of x in L2 reads; for dim 128 all five fit in shared memory (160 KB), so keep them there and walk over tiles",
      mod(PROJ_ALL, PROJ_RES, FINAL_ROW, host(AB, G, P_RES, MM, OUT, FIN()))),
    A("z written once, pipelined projections", 0, "for dim 384 the fused kernel normalises the row block four times; write z in half precision once and run a plain pipelined product per part, the parts of a tile next to each other",
      mod(NORM, GEMM, FINAL_ROW, host(AB, G, P_GEMM(), MM, OUT, FIN()))),
    A("projections transposed, all channel-first", 2, "compute w @ z^T so that the accumulators have the layout of the result; 64-channel halves keep the accumulators small; the gate becomes channel-first too",
      mod(NORM, PROJ_T, FINAL_CH, host(AB, "gate = torch.empty_like(a)",
          'z = torch.empty(M, D, dtype=torch.float16, device=x.device)', 'norm_kernel[(M // 16,)](x, p["norm.weight"], p["norm.bias"], z, D=D, BD=triton.next_power_of_2(D), BM=16, num_warps=4)',
          'transposed_kernel[(NN // 128 * 5, B)](z, mask, w5, a, b, gate, NN, D=D, H=H, HB=64, BM=128, BK=64, num_warps=4, num_stages=3)', MM, OUT, FIN()))),
    A("output gate recomputed from x", 0, "storing and reading the gate moves as many bytes as reading x again when dim is 128; compute it in the last kernel instead and save one launch's worth of stores; dim 384 keeps the stored gate",
      mod(PROJ_ALL, PROJ_AB, FINAL_ROW, FINAL_GATE, host(AB, '''if D == 128:
        operands_kernel[(NN // 128, B)](x, mask, p["norm.weight"], p["norm.bias"], w5, a, b, a, NN, D=D, H=H, BM=128, BK=128, num_warps=8, num_stages=1)
        t = a @ b.transpose(-1, -2)
        out = torch.empty(B, N, N, D, dtype=torch.float32, device=x.device)
        final_gate_kernel[(NN // 64, B)](t, x, p["norm.weight"], p["norm.bias"], w5[4 * H:], p["to_out_norm.weight"], p["to_out_norm.bias"], p["to_out.weight"].half(), out, NN, D=D, H=H, BM=64, num_warps=4)
        return out''', G, P_ALL(), MM, OUT, FIN())).replace(PROJ_AB, PROJ_AB[PROJ_AB.index("@triton.jit\ndef operands"):])),
    A("contraction in Triton, 128 x 256 tiles", 0, "is cuBLAS beatable for 128 batched 1024-cubed products? 128 x 256 tiles, BK 64, eight warps, four stages, channel by channel",
      mod(PROJ_ALL, CONTRACT, FINAL_ROW, host(AB, G, P_ALL(), "t = torch.empty_like(a)",
          "contract_kernel[(triton.cdiv(N, 128) * triton.cdiv(N, 256), B * H)](a, b, t, N, BM=128, BN=256, BK=64, num_warps=8, num_stages=4)", OUT, FIN()))),
    A("t in slabs that stay in L2", 0, "t is written and read once at full size; contract 128 rows of i at a time and finish them at once, so that 32 MB of t stay in the 60 MB L2; costs more launches",
      mod(PROJ_ALL, FINAL.replace("<<GATE>>", GATE_ROW).replace("<<OUTNN>>", "shift"), host(AB, G, P_ALL(), OUT, '''slab = min(N, 128)
    o2, g2 = out.view(B, NN, D), gate.view(B, NN, H)
    for i in range(0, N, slab):
        t = a[:, :, i:i + slab] @ b.transpose(-1, -2)
        final_kernel[(slab * N // 128, B)](t, g2[:, i * N:], p["to_out_norm.weight"], p["to_out_norm.bias"], wo, o2[:, i * N:], slab * N, NN, D=D, H=H, BM=128, BD=64, num_warps=8)
    return out'''))),
    A("64-row tiles, four warps", 0, "two 128 x 128 accumulators per program leave room for one program per processor; with 64 rows and four warps several fit and hide each other's loads",
      mod(PROJ_ALL, FINAL_ROW, host(AB, G, P_ALL(64, 4), MM, OUT, FIN(64, 64, 4)))),
]

# ---- CUDA -----------------------------------------------------------------------------------------------------
HEADER = """
#include <cstdint>
#include <cuda_runtime.h>
#include <cuda_fp16.h>

constexpr int H = 128;

__device__ __forceinline__ float wsum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    return v;
}
__device__ __forceinline__ float sig(float v) { return 1.f / (1.f + __expf(-v)); }
struct __align__(16) half8 { __half2 v[4]; };
struct __align__(8) half4 { __half2 v[2]; };
"""

# a warp per pair, the row in registers
NORM_CU = """
template <int D>
__global__ void __launch_bounds__(256) norm(const float4* __restrict__ x, const float4* __restrict__ nw, const float4* __restrict__ nb, half4* __restrict__ z, int M) {
    int lane = threadIdx.x & 31;
    int row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= M) return;
    constexpr int C = D / 128;
    float4 v[C];
    float s = 0.f, q = 0.f;
    #pragma unroll
    for (int c = 0; c < C; ++c) { v[c] = __ldcs(x + (int64_t)row * (D / 4) + c * 32 + lane); s += v[c].x + v[c].y + v[c].z + v[c].w; }
    float mean = wsum(s) * (1.f / D);
    #pragma unroll
    for (int c = 0; c < C; ++c) {
        v[c].x -= mean; v[c].y -= mean; v[c].z -= mean; v[c].w -= mean;
        q += v[c].x * v[c].x + v[c].y * v[c].y + v[c].z * v[c].z + v[c].w * v[c].w;
    }
    float r = rsqrtf(wsum(q) * (1.f / D) + 1e-5f);
    #pragma unroll
    for (int c = 0; c < C; ++c) {
        float4 w = nw[c * 32 + lane], b = nb[c * 32 + lane];
        half4 o;
        o.v[0] = __floats2half2_rn(v[c].x * r * w.x + b.x, v[c].y * r * w.y + b.y);
        o.v[1] = __floats2half2_rn(v[c].z * r * w.z + b.z, v[c].w * r * w.w + b.w);
        z[(int64_t)row * (D / 4) + c * 32 + lane] = o;
    }
}
static void run_norm(uintptr_t x, uintptr_t nw, uintptr_t nb, uintptr_t z, int M, int D) {
    auto f = D == 128 ? norm<128> : D == 256 ? norm<256> : norm<384>;
    f<<<(M + 7) / 8, 256>>>((const float4*)x, (const float4*)nw, (const float4*)nb, (half4*)z, M);
}
"""

# y [5H, M] -> operands in place: everything lies channel-first, so this is elementwise
GATE_CU = """
__global__ void __launch_bounds__(256) gate(half8* __restrict__ y, const float4* __restrict__ mask, int64_t M8) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= M8) return;
    int h = blockIdx.y;
    float4 m0 = mask[2 * i], m1 = mask[2 * i + 1];
    float m[8] = {m0.x, m0.y, m0.z, m0.w, m1.x, m1.y, m1.z, m1.w};
    #pragma unroll
    for (int side = 0; side < 2; ++side) {
        half8* at = y + (int64_t)(side * 2 * H + h) * M8 + i;
        half8 p = *at, g = at[(int64_t)H * M8];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            float2 a = __half22float2(p.v[j]), b = __half22float2(g.v[j]);
            p.v[j] = __floats2half2_rn(a.x * sig(b.x) * m[2 * j], a.y * sig(b.y) * m[2 * j + 1]);
        }
        *at = p;
    }
}
"""
# t [H, M] and the raw gate y[4H:] -> z2 in place of t; a thread holds two pairs of 32 channels
FINISH_CU = """
__global__ void __launch_bounds__(256) finish(__half2* __restrict__ t, const __half2* __restrict__ g, const float* __restrict__ nw, const float* __restrict__ nb, int64_t M2) {
    __shared__ float2 part[4][64], part2[4][64];
    int r = threadIdx.x & 63, quarter = threadIdx.x >> 6;
    int64_t i = (int64_t)blockIdx.x * 64 + r;
    __half2* tq = t + (int64_t)quarter * 32 * M2 + i;
    const __half2* gq = g + (int64_t)quarter * 32 * M2 + i;
    __half2 keep[32];
    float2 s = make_float2(0.f, 0.f), q = s;
    #pragma unroll
    for (int h = 0; h < 32; ++h) keep[h] = tq[h * M2];
    #pragma unroll
    for (int h = 0; h < 32; ++h) { float2 v = __half22float2(keep[h]); s.x += v.x; s.y += v.y; }
    part[quarter][r] = s;
    __syncthreads();
    s.x = (part[0][r].x + part[1][r].x + part[2][r].x + part[3][r].x) * (1.f / H);
    s.y = (part[0][r].y + part[1][r].y + part[2][r].y + part[3][r].y) * (1.f / H);
    #pragma unroll
    for (int h = 0; h < 32; ++h) { float2 v = __half22float2(keep[h]); v.x -= s.x; v.y -= s.y; q.x += v.x * v.x; q.y += v.y * v.y; }
    part2[quarter][r] = q;
    __syncthreads();
    float r0 = rsqrtf((part2[0][r].x + part2[1][r].x + part2[2][r].x + part2[3][r].x) * (1.f / H) + 1e-5f);
    float r1 = rsqrtf((part2[0][r].y + part2[1][r].y + part2[2][r].y + part2[3][r].y) * (1.f / H) + 1e-5f);
    #pragma unroll
    for (int h = 0; h < 32; ++h) {
        float2 v = __half22float2(keep[h]), k = __half22float2(gq[h * M2]);
        float w = nw[quarter * 32 + h], b = nb[quarter * 32 + h];
        tq[h * M2] = __floats2half2_rn(((v.x - s.x) * r0 * w + b) * sig(k.x), ((v.y - s.y) * r1 * w + b) * sig(k.y));
    }
}
"""

# 64 pairs per block: LayerNorm in registers, products with wmma, operands leave channel-first through shared memory
WPROJ_CU = """
#include <mma.h>
using namespace nvcuda;
template <int D>
__global__ void __launch_bounds__(256) proj(const float4* __restrict__ x, const float* __restrict__ mask, const float4* __restrict__ nw, const float4* __restrict__ nb,
                                            const __half* __restrict__ w5, __half* __restrict__ a, __half* __restrict__ b, __half* __restrict__ g, int NN) {
    constexpr int R = 64, LZ = D + 8, LS = R + 4, C = D / 128;
    extern __shared__ __align__(128) unsigned char raw[];
    __half* z = (__half*)raw;
    float* stage = (float*)(raw + R * LZ * 2);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t first = (int64_t)blockIdx.x * R;
    int batch = first / NN;
    int64_t pos = first - (int64_t)batch * NN;
    for (int r = warp; r < R; r += 8) {
        float4 v[C];
        float s = 0.f, q = 0.f;
        #pragma unroll
        for (int c = 0; c < C; ++c) { v[c] = __ldcs(x + (first + r) * (D / 4) + c * 32 + lane); s += v[c].x + v[c].y + v[c].z + v[c].w; }
        float mean = wsum(s) * (1.f / D);
        #pragma unroll
        for (int c = 0; c < C; ++c) {
            v[c].x -= mean; v[c].y -= mean; v[c].z -= mean; v[c].w -= mean;
            q += v[c].x * v[c].x + v[c].y * v[c].y + v[c].z * v[c].z + v[c].w * v[c].w;
        }
        float k = rsqrtf(wsum(q) * (1.f / D) + 1e-5f);
        #pragma unroll
        for (int c = 0; c < C; ++c) {
            float4 w = nw[c * 32 + lane], o = nb[c * 32 + lane];
            half4 h;
            h.v[0] = __floats2half2_rn(v[c].x * k * w.x + o.x, v[c].y * k * w.y + o.y);
            h.v[1] = __floats2half2_rn(v[c].z * k * w.z + o.z, v[c].w * k * w.w + o.w);
            *(half4*)(z + r * LZ + c * 128 + lane * 4) = h;
        }
    }
    __syncthreads();
    for (int part = 0; part < 3; ++part) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> p[4], q[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) { wmma::fill_fragment(p[i], 0.f); wmma::fill_fragment(q[i], 0.f); }
        const __half* wp = w5 + (int64_t)(part * 2 * H + warp * 16) * D;
        for (int k = 0; k < D; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fp, fg;
            wmma::load_matrix_sync(fp, wp + k, D);
            if (part < 2) wmma::load_matrix_sync(fg, wp + H * D + k, D);
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fz;
                wmma::load_matrix_sync(fz, z + i * 16 * LZ + k, LZ);
                wmma::mma_sync(p[i], fz, fp, p[i]);
                if (part < 2) wmma::mma_sync(q[i], fz, fg, q[i]);
            }
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int e = 0; e < p[i].num_elements; ++e) p[i].x[e] = part < 2 ? p[i].x[e] * sig(q[i].x[e]) : sig(p[i].x[e]);
            wmma::store_matrix_sync(stage + warp * 16 * LS + i * 16, p[i], LS, wmma::mem_col_major);
        }
        __syncthreads();
        __half* out = part == 0 ? a : part == 1 ? b : g;
        for (int i = threadIdx.x; i < H * R / 2; i += 256) {
            int h = i / (R / 2), r = i % (R / 2) * 2;
            float2 v = *(float2*)(stage + h * LS + r);
            if (part < 2) { v.x *= mask[first + r]; v.y *= mask[first + r + 1]; }
            *(__half2*)(out + ((int64_t)batch * H + h) * NN + pos + r) = __floats2half2_rn(v.x, v.y);
        }
        __syncthreads();
    }
}
template <int D> static void go_proj(uintptr_t x, uintptr_t m, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t a, uintptr_t b, uintptr_t g, int M, int NN) {
    constexpr int S = 64 * (D + 8) * 2 + H * 68 * 4;
    cudaFuncSetAttribute(proj<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, S);
    proj<D><<<M / 64, 256, S>>>((const float4*)x, (const float*)m, (const float4*)nw, (const float4*)nb, (const __half*)w, (__half*)a, (__half*)b, (__half*)g, NN);
}
static void run_proj(uintptr_t x, uintptr_t m, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t a, uintptr_t b, uintptr_t g, int M, int NN, int D) {
    (D == 128 ? go_proj<128> : D == 256 ? go_proj<256> : go_proj<384>)(x, m, nw, nb, w, a, b, g, M, NN);
}
"""

# 64 pairs per block: channel-first t -> LayerNorm, gate -> shared half tile -> wmma with w [D, H] -> float result
WOUT_CU = """
#include <mma.h>
using namespace nvcuda;
__global__ void __launch_bounds__(256) last(const __half* __restrict__ t, const __half* __restrict__ g, const float* __restrict__ nw, const float* __restrict__ nb,
                                            const __half* __restrict__ w, float* __restrict__ out, int NN, int64_t hs, int64_t bs, int64_t gbs, int D) {
    constexpr int R = 64, LZ = H + 8;
    __shared__ __align__(128) __half tile[R * LZ];
    __shared__ float mean[R], rstd[R], part[4][R], part2[4][R];
    int warp = threadIdx.x >> 5;
    int64_t first = (int64_t)blockIdx.x * R;
    int batch = first / NN;
    int64_t pos = first - (int64_t)batch * NN;
    const __half* tb = t + batch * bs + pos;
    const __half* gb = g + batch * gbs + pos;
    int r = threadIdx.x & 63, quarter = threadIdx.x >> 6;
    float v[H / 4], s = 0.f, q = 0.f;
    #pragma unroll
    for (int j = 0; j < H / 4; ++j) { v[j] = __half2float(tb[(quarter * 32 + j) * hs + r]); s += v[j]; }
    part[quarter][r] = s;
    __syncthreads();
    float mu = (part[0][r] + part[1][r] + part[2][r] + part[3][r]) * (1.f / H);
    #pragma unroll
    for (int j = 0; j < H / 4; ++j) { v[j] -= mu; q += v[j] * v[j]; }
    part2[quarter][r] = q;
    __syncthreads();
    float k = rsqrtf((part2[0][r] + part2[1][r] + part2[2][r] + part2[3][r]) * (1.f / H) + 1e-5f);
    #pragma unroll
    for (int j = 0; j < H / 4; j += 2) {
        int h = quarter * 32 + j;
        float g0 = __half2float(gb[h * hs + r]), g1 = __half2float(gb[(h + 1) * hs + r]);
        <<SIG>>
        *(__half2*)(tile + r * LZ + h) = __floats2half2_rn((v[j] * k * nw[h] + nb[h]) * g0, (v[j + 1] * k * nw[h + 1] + nb[h + 1]) * g1);
    }
    __syncthreads();
    for (int d = warp * 16; d < D; d += 128) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) wmma::fill_fragment(acc[i], 0.f);
        #pragma unroll
        for (int c = 0; c < H; c += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fw;
            wmma::load_matrix_sync(fw, w + (int64_t)d * H + c, H);
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fz;
                wmma::load_matrix_sync(fz, tile + i * 16 * LZ + c, LZ);
                wmma::mma_sync(acc[i], fz, fw, acc[i]);
            }
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) wmma::store_matrix_sync(out + (first + i * 16) * D + d, acc[i], D, wmma::mem_row_major);
    }
}
"""
SIGN = "g0 = sig(g0); g1 = sig(g1);"


def unit(name, cuda, exports, body, arch="-arch=sm_90a"):
    """A module: `exports` maps a C function to its number of pointers and of integers, and its body."""
    n = {k: (v[0], v[1]) for k, v in exports.items()}
    decl = "".join("void %s(%s);\n" % (k, ", ".join(["uintptr_t"] * p + ["int"] * i)) for k, (p, i) in n.items())
    defs = "".join("m.def(\"%s\", &%s); " % (k, k) for k in n)
    fun = "".join("void %s(%s) {\n%s}\n" % (k, ", ".join(["uintptr_t p%d" % j for j in range(p)] + ["int i%d" % j for j in range(i)]), exports[k][2]) for k, (p, i) in n.items())
    return ('import torch\nfrom torch.utils.cpp_extension import load_inline\n\nCPP = r"""#include <pybind11/pybind11.h>\n#include <cstdint>\n' + decl +
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { ' + defs + '}\n"""\n\nCUDA = r"""' + cuda.replace("#include <mma.h>\nusing namespace nvcuda;\n", "").replace("constexpr int H", ("#include <mma.h>\nusing namespace nvcuda;\n" if "nvcuda" in cuda else "") + "constexpr int H", 1) + "\n" + fun + '"""\n\n'
            'ext = load_inline(name="' + name + '", cpp_sources=CPP, cuda_sources=CUDA, no_implicit_headers=True,\n                  extra_cuda_cflags=["-O3", "' + arch + '"], verbose=False)\n\n\n'
            'def custom_kernel(data):\n    x, mask, p, cfg = data\n    B, N, _, D = x.shape\n    H = cfg["hidden_dim"]\n    NN = N * N\n    M = B * NN\n' + "".join("    " + l + "\n" for l in body))


X_NORM = {"norm_": (4, 2, "    run_norm(p0, p1, p2, p3, i0, i1);\n")}
X_GATE = {"gate_": (2, 1, "    gate<<<dim3((i0 / 8 + 255) / 256, H), 256>>>((half8*)p0, (const float4*)p1, i0 / 8);\n")}
X_FIN = {"finish_": (4, 1, "    finish<<<i0 / 128, 256>>>((__half2*)p0, (const __half2*)p1, (const float*)p2, (const float*)p3, i0 / 2);\n")}
X_PROJ = {"proj_": (8, 3, "    run_proj(p0, p1, p2, p3, p4, p5, p6, p7, i0, i1, i2);\n")}
# t [H, B, NN] with the gate as the last part of y [5H, B, NN]
X_LAST_H = {"last_": (6, 3, "    last<<<i0 / 64, 256>>>((const __half*)p0, (const __half*)p1, (const float*)p2, (const float*)p3, (const __half*)p4, (float*)p5, i1, i0, i1, i1, i2);\n")}
# t and gate [B, H, NN]
X_LAST_B = {"last_": (6, 3, "    last<<<i0 / 64, 256>>>((const __half*)p0, (const __half*)p1, (const float*)p2, (const float*)p3, (const __half*)p4, (float*)p5, i1, i1, (int64_t)i1 * H, (int64_t)i1 * H, i2);\n")}
C_W5 = W5
C_Z = 'z = torch.empty(M, D, dtype=torch.float16, device=x.device)\n    ext.norm_(x.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), z.data_ptr(), M, D)'
C_Y = "y = torch.mm(w5, z.t())"
C_GATE = "ext.gate_(y.data_ptr(), mask.data_ptr(), M)"
C_T = "v = y.view(5, H, B, N, N)\n    t = v[0] @ v[2].transpose(-1, -2)"
C_FIN = 'ext.finish_(t.data_ptr(), v[4].data_ptr(), p["to_out_norm.weight"].data_ptr(), p["to_out_norm.bias"].data_ptr(), M)'
C_MM = 'return torch.mm(t.view(H, M).t(), p["to_out.weight"].half().t(), out_dtype=torch.float32).view(B, N, N, D)'
def C_LAST(gate): return 'wo = p["to_out.weight"].half()\n    out = torch.empty(B, N, N, D, dtype=torch.float32, device=x.device)\n    ext.last_(t.data_ptr(), %s.data_ptr(), p["to_out_norm.weight"].data_ptr(), p["to_out_norm.bias"].data_ptr(), wo.data_ptr(), out.data_ptr(), M, NN, D)\n    return out' % gate
C_ABG = AB + "\n    g = torch.empty_like(a)"
C_PROJ = 'ext.proj_(x.data_ptr(), mask.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), w5.data_ptr(), a.data_ptr(), b.data_ptr(), g.data_ptr(), M, NN, D)'

CUDA = [
    A("channel-first from cuBLAS, no transposes", None, "the known CUDA programs spend two kernels on transposing through shared memory; let cuBLAS write w5 @ z^T, so that operands, gate and t all lie channel-first and every own kernel is elementwise; last product reads z transposed and writes float32 from half inputs",
      unit("tri_ag_c0", HEADER + NORM_CU + GATE_CU + FINISH_CU, {**X_NORM, **X_GATE, **X_FIN}, [C_W5, C_Z, C_Y, C_GATE, C_T, C_FIN, C_MM])),
    A("last LayerNorm, gate and product in one kernel", 0, "z2 is written and read once more only to reach cuBLAS; a block of 64 pairs normalises over channels in registers and multiplies with wmma straight into the float32 result",
      unit("tri_ag_c1", HEADER + NORM_CU + GATE_CU + WOUT_CU.replace("<<SIG>>", SIGN), {**X_NORM, **X_GATE, **X_LAST_H}, [C_W5, C_Z, C_Y, C_GATE, C_T, C_LAST("v[4]")])),
    A("LayerNorm, projections and gates in one wmma kernel", 0, "y costs 1.3 GB written and read at N = 1024; normalise 64 pairs in registers, keep the half tile in shared memory, multiply with weights read through L1, write only the gated operands",
      unit("tri_ag_c2", HEADER + WPROJ_CU + FINISH_CU.replace("sig(k.x)", "k.x").replace("sig(k.y)", "k.y"),
           {**X_PROJ, "finish_": (4, 3, "    for (int b = 0; b < i1; ++b)\n        finish<<<i0 / 128, 256>>>((__half2*)p0 + (int64_t)b * H * i0 / 2, (const __half2*)p1 + (int64_t)b * H * i0 / 2, (const float*)p2, (const float*)p3, i0 / 2);\n")},
           [C_W5, C_ABG, C_PROJ, MM, 'ext.finish_(t.data_ptr(), g.data_ptr(), p["to_out_norm.weight"].data_ptr(), p["to_out_norm.bias"].data_ptr(), NN, B, 0)',
            'if B == 1:\n        return torch.mm(t.view(H, M).t(), p["to_out.weight"].half().t(), out_dtype=torch.float32).view(B, N, N, D)',
            'wo = p["to_out.weight"].half().t().expand(B, H, D)', 'return torch.bmm(t.view(B, H, NN).transpose(1, 2), wo, out_dtype=torch.float32).view(B, N, N, D)'])),
    A("both ends fused", 2, "attempts 1 and 2 together: three launches of ours or cuBLAS touch the large arrays, the least traffic short of fusing the contraction",
      unit("tri_ag_c3", HEADER + WPROJ_CU + WOUT_CU.replace("<<SIG>>", ""), {**X_PROJ, **X_LAST_B}, [C_W5, C_ABG, C_PROJ, MM, C_LAST("g")])),
    A("fused for dim 128, cuBLAS first product for dim 384", 3, "with dim 384 a block of 64 pairs reads 480 KB of weights through L1 for 96 KB of x; there the cuBLAS product should win although y is written, so choose by dim",
      unit("tri_ag_c4", HEADER + NORM_CU + GATE_CU + WPROJ_CU + WOUT_CU.replace("<<SIG>>", "if (rawgate) { " + SIGN + " }").replace("int64_t gbs, int D)", "int64_t gbs, int D, int rawgate)"),
           {**X_NORM, **X_GATE, **X_PROJ, "last_": (6, 4, """    int64_t hs = i3 ? i0 : i1, bs = i3 ? i1 : (int64_t)i1 * H;
    last<<<i0 / 64, 256>>>((const __half*)p0, (const __half*)p1, (const float*)p2, (const float*)p3, (const __half*)p4, (float*)p5, i1, hs, bs, bs, i2, i3);
""")},
           [C_W5, "raw = D > 128", "if raw:\n        " + C_Z.replace("\n", "\n    ") + "\n        " + C_Y + "\n        " + C_GATE + "\n        " + C_T.replace("\n", "\n    ") + "\n        g = v[4]",
            "else:\n        " + C_ABG.replace("\n", "\n    ") + "\n        " + C_PROJ + "\n        " + MM, C_LAST("g").replace("M, NN, D)", "M, NN, D, int(raw))")])),
]

# ---- second round ---------------------------------------------------------------------------------------------
Z_NORM = 'z = torch.empty(M, D, dtype=torch.float16, device=x.device)\n    norm_kernel[(M // 16,)](x, p["norm.weight"], p["norm.bias"], z, D=D, BD=triton.next_power_of_2(D), BM=16, num_warps=4)'
def P_T(bm=128, hb=64, w=4, st=3, bk=64): return f'transposed_kernel[(NN // {bm} * 5, B)](z, mask, w5, a, b, gate, NN, D=D, H=H, HB={hb}, BM={bm}, BK={bk}, num_warps={w}, num_stages={st})'
G_CH = "gate = torch.empty_like(a)"

FUSED_T = """@triton.jit
def fused_kernel(x_ptr, mask_ptr, nw_ptr, nb_ptr, w_ptr, a_ptr, b_ptr, g_ptr, NN, D: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BM: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BM + tl.arange(0, BM)
    row = batch * NN + pos
    kk = tl.arange(0, D)
    x = tl.load(x_ptr + row[:, None] * D + kk[None, :])
    c = x - (tl.sum(x, axis=1) / D)[:, None]
    r = tl.rsqrt(tl.sum(c * c, axis=1) / D + 1e-5)
    z = tl.trans((c * r[:, None] * tl.load(nw_ptr + kk)[None, :] + tl.load(nb_ptr + kk)[None, :]).to(tl.float16))
    msk = tl.load(mask_ptr + row)[None, :]
    for h in tl.static_range(0, H, HB):
        hh = h + tl.arange(0, HB)
        wp = w_ptr + hh[:, None] * D + kk[None, :]
        off = (batch * H + hh)[:, None] * NN + pos[None, :]
        tl.store(a_ptr + off, (tl.dot(tl.load(wp), z) * tl.sigmoid(tl.dot(tl.load(wp + H * D), z)) * msk).to(tl.float16))
        tl.store(b_ptr + off, (tl.dot(tl.load(wp + 2 * H * D), z) * tl.sigmoid(tl.dot(tl.load(wp + 3 * H * D), z)) * msk).to(tl.float16))
        tl.store(g_ptr + off, tl.sigmoid(tl.dot(tl.load(wp + 4 * H * D), z)).to(tl.float16))
"""

WIDE_T = """@triton.jit
def wide_kernel(z_ptr, mask_ptr, w_ptr, a_ptr, b_ptr, g_ptr, NN, D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0) % 3
    pos = tl.program_id(0) // 3 * BM + tl.arange(0, BM)
    row = batch * NN + pos
    hh = tl.arange(0, H)
    kk = tl.arange(0, BK)
    zp = z_ptr + row[None, :] * D + kk[:, None]
    wp = w_ptr + (part * 2 * H + hh)[:, None] * D + kk[None, :]
    off = (batch * H + hh)[:, None] * NN + pos[None, :]
    acc = tl.zeros((H, BM), tl.float32)
    if part == 2:
        for d in range(0, D, BK):
            acc = tl.dot(tl.load(wp + d), tl.load(zp + d), acc)
        tl.store(g_ptr + off, tl.sigmoid(acc).to(tl.float16))
    else:
        gac = tl.zeros((H, BM), tl.float32)
        for d in range(0, D, BK):
            z = tl.load(zp + d)
            acc = tl.dot(tl.load(wp + d), z, acc)
            gac = tl.dot(tl.load(wp + H * D + d), z, gac)
        v = (acc * tl.sigmoid(gac) * tl.load(mask_ptr + row)[None, :]).to(tl.float16)
        if part == 0:
            tl.store(a_ptr + off, v)
        else:
            tl.store(b_ptr + off, v)
"""

# last kernel over several tiles with the loads of the next one in flight
FINAL_LOOP = """@triton.jit
def final_loop_kernel(t_ptr, g_ptr, nw_ptr, nb_ptr, w_ptr, o_ptr, NN, tiles,
                      D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, STEP: tl.constexpr):
    hh = tl.arange(0, H)
    dd = tl.program_id(1) * 128 + tl.arange(0, 128)
    w = tl.load(w_ptr + dd[None, :] * H + hh[:, None])
    nw = tl.load(nw_ptr + hh)[None, :]
    nb = tl.load(nb_ptr + hh)[None, :]
    for tile in tl.range(tl.program_id(0), tiles, STEP, num_stages=3):
        row = tile * BM + tl.arange(0, BM)
        batch = (tile * BM) // NN
        at = (batch * H + hh)[:, None] * NN + (tile * BM - batch * NN + tl.arange(0, BM))[None, :]
        t = tl.trans(tl.load(t_ptr + at)).to(tl.float32)
        g = tl.trans(tl.load(g_ptr + at)).to(tl.float32)
        c = t - (tl.sum(t, axis=1) / H)[:, None]
        r = tl.rsqrt(tl.sum(c * c, axis=1) / H + 1e-5)
        z = ((c * r[:, None] * nw + nb) * g).to(tl.float16)
        tl.store(o_ptr + row[:, None] * D + dd[None, :], tl.dot(z, w))
"""
# statistics along the channels while they are still the first axis; only the half tile is transposed, by the product
FINAL_T = """@triton.jit
def final_t_kernel(t_ptr, g_ptr, nw_ptr, nb_ptr, w_ptr, o_ptr, NN, D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    pos = tl.program_id(0) * BM + tl.arange(0, BM)
    row = batch * NN + pos
    hh = tl.arange(0, H)
    at = (batch * H + hh)[:, None] * NN + pos[None, :]
    t = tl.load(t_ptr + at).to(tl.float32)
    g = tl.load(g_ptr + at).to(tl.float32)
    c = t - (tl.sum(t, axis=0) / H)[None, :]
    r = tl.rsqrt(tl.sum(c * c, axis=0) / H + 1e-5)
    z = tl.trans(((c * r[None, :] * tl.load(nw_ptr + hh)[:, None] + tl.load(nb_ptr + hh)[:, None]) * g).to(tl.float16))
    for d in tl.static_range(0, D, BD):
        dd = d + tl.arange(0, BD)
        tl.store(o_ptr + row[:, None] * D + dd[None, :], tl.dot(z, tl.load(w_ptr + dd[None, :] * H + hh[:, None])))
"""
def FIN_T(bm=64, bd=64, w=4): return FIN(bm, bd, w).replace("final_kernel", "final_t_kernel")

PREP = """@triton.jit
def prep_kernel(lp, lg, rp, rg, og, wo, o_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.program_id(1)
    src = lp
    if part == 1:
        src = lg
    elif part == 2:
        src = rp
    elif part == 3:
        src = rg
    elif part == 4:
        src = og
    elif part == 5:
        src = wo
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + part * SIZE + i, tl.load(src + i).to(tl.float16))
"""

TMA_T = """@triton.jit
def tma_kernel(z_desc, mask_ptr, w_desc, a_desc, b_desc, g_desc, NN, D: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(1)
    part = tl.program_id(0) % 6
    pos = tl.program_id(0) // 6 * BM
    row = batch * NN + pos
    h0 = part % 2 * HB
    side = part // 2
    acc = tl.zeros((HB, BM), tl.float32)
    if side == 2:
        for d in range(0, D, BK):
            acc = tl.dot(w_desc.load([4 * H + h0, d]), z_desc.load([row, d]).T, acc)
        g_desc.store([batch * H + h0, pos], tl.sigmoid(acc).to(tl.float16))
    else:
        gac = tl.zeros((HB, BM), tl.float32)
        for d in range(0, D, BK):
            z = z_desc.load([row, d]).T
            acc = tl.dot(w_desc.load([side * 2 * H + h0, d]), z, acc)
            gac = tl.dot(w_desc.load([side * 2 * H + H + h0, d]), z, gac)
        v = (acc * tl.sigmoid(gac) * tl.load(mask_ptr + row + tl.arange(0, BM))[None, :]).to(tl.float16)
        if side == 0:
            a_desc.store([batch * H + h0, pos], v)
        else:
            b_desc.store([batch * H + h0, pos], v)
"""
BY_DIM = """if D == 128:
        %s
    else:
        %s"""
P_FUSED = 'fused_kernel[(NN // 64, B)](x, mask, p["norm.weight"], p["norm.bias"], w5, a, b, gate, NN, D=D, H=H, HB=64, BM=64, num_warps=4)'

TRITON += [
    A("smaller tiles in the last kernel", 3, "attempt 3 (9.98x) kept the 128-row last kernel; attempt 7 gained 8 % on dim 128 from 64-row tiles with four warps at both ends, so take that for the end of attempt 3",
      mod(NORM, PROJ_T, FINAL_CH, host(AB, G_CH, Z_NORM, P_T(), MM, OUT, FIN(64, 64, 4)))),
    A("LayerNorm inside the transposed projections for dim 128", 8, "attempts 3 and 7 took 1821 and 1811 us at N = 1024, dim 128: one wrote z, the other did not transpose; join both, 64 pairs and 64 channels at a time; dim 384 stays with the written z, which took 3015 us against 3867 us",
      mod(NORM, PROJ_T, FUSED_T, FINAL_CH, host(AB, G_CH, BY_DIM % (P_FUSED, Z_NORM.replace("\n", "\n    ") + "\n        " + P_T()), MM, OUT, FIN(64, 64, 4)))),
    A("statistics before the transpose", 8, "the last kernel transposes t and the gate through shared memory, then reduces; reduce along the first axis as loaded and hand only the finished half tile to the product, which reads either order",
      mod(NORM, PROJ_T, FINAL_T, host(AB, G_CH, Z_NORM, P_T(), MM, OUT, FIN_T()))),
    A("all 128 channels of a side in one program", 8, "attempt 3 reads every z tile five times from L2; with 128 x 128 accumulators for product and gate and eight warps it is three times; fewer programs per processor in exchange",
      mod(NORM, WIDE_T, FINAL_CH, host(AB, G_CH, Z_NORM, 'wide_kernel[(NN // 128 * 3, B)](z, mask, w5, a, b, gate, NN, D=D, H=H, BM=128, BK=64, num_warps=8, num_stages=3)', MM, OUT, FIN(64, 64, 4)))),
    A("last kernel walks over tiles with loads in flight", 8, "the last kernel has no loop to pipeline, so loads wait; let resident programs walk over tiles with three stages, the output weights kept in shared memory, 128 output columns each",
      mod(NORM, PROJ_T, FINAL_LOOP, host(AB, G_CH, Z_NORM, P_T(), MM, OUT, 'final_loop_kernel[(264, D // 128)](t, gate, p["to_out_norm.weight"], p["to_out_norm.bias"], wo, out, NN, M // 64, D=D, H=H, BM=64, STEP=264, num_warps=4)', "return out"))),
    A("weights converted in one launch", 8, "cat and two conversions are three launches before the first real work; one small kernel writes all six weights in half precision; matters for the cases of 290 us",
      mod(PREP, NORM, PROJ_T, FINAL_CH, host("w6 = torch.empty(6 * H, D, dtype=torch.float16, device=x.device)",
          'prep_kernel[(H * D // 1024, 6)](p["left_proj.weight"], p["left_gate.weight"], p["right_proj.weight"], p["right_gate.weight"], p["out_gate.weight"], p["to_out.weight"], w6, SIZE=H * D, BLOCK=1024, num_warps=4)',
          "w5, wo = w6, w6[5 * H:]", AB, G_CH, Z_NORM, P_T(), MM, OUT.split("\n")[0], FIN(64, 64, 4)).replace("    " + W5 + "\n", ""))),
    A("tensor memory accelerator for projections", 8, "tiles of z and w arrive and operands leave through TMA descriptors: no address registers, stores straight from shared memory; building five descriptors costs host time",
      mod(NORM, TMA_T, FINAL_CH, host(AB, G_CH, Z_NORM, "desc = lambda t, r, c, br, bc: TensorDescriptor(t, [r, c], [c, 1], [br, bc])",
          "tma_kernel[(NN // 128 * 6, B)](desc(z, M, D, 128, 64), mask, desc(w5, 5 * H, D, 64, 64), desc(a, B * H, NN, 64, 128), desc(b, B * H, NN, 64, 128), desc(gate, B * H, NN, 64, 128), NN, D=D, H=H, HB=64, BM=128, BK=64, num_warps=4, num_stages=3)",
          MM, OUT, FIN(64, 64, 4))).replace("import triton.language as tl\n", "import triton.language as tl\nfrom triton.tools.tensor_descriptor import TensorDescriptor\n", 1)),
]

# 128 pairs per block, two pairs per thread and load
WOUT2_CU = """
#include <mma.h>
using namespace nvcuda;
__global__ void __launch_bounds__(256, 2) last(const __half2* __restrict__ t, const __half2* __restrict__ g, const float* __restrict__ nw, const float* __restrict__ nb,
                                            const __half* __restrict__ w, float* __restrict__ out, int NN, int64_t hs, int64_t bs, int D) {
    constexpr int R = 128, LZ = H + 8;
    __shared__ __align__(128) __half tile[R * LZ];
    __shared__ float2 part[4][64], part2[4][64];
    int warp = threadIdx.x >> 5;
    int64_t first = (int64_t)blockIdx.x * R;
    int batch = first / NN;
    int64_t pos = first - (int64_t)batch * NN;
    int r = threadIdx.x & 63, quarter = threadIdx.x >> 6;
    const __half2* tb = t + (batch * bs + quarter * 32 * hs + pos) / 2 + r;
    const __half2* gb = g + (batch * bs + quarter * 32 * hs + pos) / 2 + r;
    __half2 v[32];
    float2 s = make_float2(0.f, 0.f), q = s;
    #pragma unroll
    for (int j = 0; j < 32; ++j) v[j] = tb[j * (hs / 2)];
    #pragma unroll
    for (int j = 0; j < 32; ++j) { float2 f = __half22float2(v[j]); s.x += f.x; s.y += f.y; }
    part[quarter][r] = s;
    __syncthreads();
    s.x = (part[0][r].x + part[1][r].x + part[2][r].x + part[3][r].x) * (1.f / H);
    s.y = (part[0][r].y + part[1][r].y + part[2][r].y + part[3][r].y) * (1.f / H);
    #pragma unroll
    for (int j = 0; j < 32; ++j) { float2 f = __half22float2(v[j]); f.x -= s.x; f.y -= s.y; q.x += f.x * f.x; q.y += f.y * f.y; }
    part2[quarter][r] = q;
    __syncthreads();
    float k0 = rsqrtf((part2[0][r].x + part2[1][r].x + part2[2][r].x + part2[3][r].x) * (1.f / H) + 1e-5f);
    float k1 = rsqrtf((part2[0][r].y + part2[1][r].y + part2[2][r].y + part2[3][r].y) * (1.f / H) + 1e-5f);
    #pragma unroll
    for (int j = 0; j < 32; j += 2) {
        int h = quarter * 32 + j;
        float2 f0 = __half22float2(v[j]), f1 = __half22float2(v[j + 1]), g0 = __half22float2(gb[j * (hs / 2)]), g1 = __half22float2(gb[(j + 1) * (hs / 2)]);
        <<SIG>>
        float w0 = nw[h], w1 = nw[h + 1], b0 = nb[h], b1 = nb[h + 1];
        *(__half2*)(tile + (2 * r) * LZ + h) = __floats2half2_rn(((f0.x - s.x) * k0 * w0 + b0) * g0.x, ((f1.x - s.x) * k0 * w1 + b1) * g1.x);
        *(__half2*)(tile + (2 * r + 1) * LZ + h) = __floats2half2_rn(((f0.y - s.y) * k1 * w0 + b0) * g0.y, ((f1.y - s.y) * k1 * w1 + b1) * g1.y);
    }
    __syncthreads();
    for (int d = warp * 16; d < D; d += 128) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) wmma::fill_fragment(acc[i], 0.f);
        #pragma unroll
        for (int c = 0; c < H; c += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fw;
            wmma::load_matrix_sync(fw, w + (int64_t)d * H + c, H);
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fz;
                wmma::load_matrix_sync(fz, tile + i * 16 * LZ + c, LZ);
                wmma::mma_sync(acc[i], fz, fw, acc[i]);
            }
        }
        #pragma unroll
        for (int i = 0; i < 8; ++i) wmma::store_matrix_sync(out + (first + i * 16) * D + d, acc[i], D, wmma::mem_row_major);
    }
}
"""
SIG2 = "g0.x = sig(g0.x); g0.y = sig(g0.y); g1.x = sig(g1.x); g1.y = sig(g1.y);"
SIG2_IF = "if (rawgate) { " + SIG2 + " }"
WOUT2_IF = WOUT2_CU.replace("<<SIG>>", SIG2_IF).replace("int64_t bs, int D)", "int64_t bs, int D, int rawgate)")
L2ARGS = "(const __half2*)p0, (const __half2*)p1, (const float*)p2, (const float*)p3, (const __half*)p4, (float*)p5, i1, "
X_LAST2_H = {"last_": (6, 3, "    last<<<i0 / 128, 256>>>(" + L2ARGS + "i0, i1, i2);\n")}
# i3 = 1: [H, B, NN] with the raw gate; 0: [B, H, NN] with the finished gate; 2: [H, B, NN] with the finished gate
X_LAST2_IF = {"last_": (6, 4, "    int64_t hs = i3 ? i0 : i1, bs = i3 ? i1 : (int64_t)i1 * H;\n    last<<<i0 / 128, 256>>>(" + L2ARGS + "hs, bs, i2, i3 == 1);\n")}

# out of place, one chunk of pairs: y [5H, C] -> columns of a, b, g [H, M]
GATE_CHUNK = """
__global__ void __launch_bounds__(256) gate(const half8* __restrict__ y, const float4* __restrict__ mask, half8* __restrict__ a, half8* __restrict__ b, half8* __restrict__ g, int C8, int64_t M8) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= C8) return;
    int h = blockIdx.y;
    float4 m0 = mask[2 * i], m1 = mask[2 * i + 1];
    float m[8] = {m0.x, m0.y, m0.z, m0.w, m1.x, m1.y, m1.z, m1.w};
    #pragma unroll
    for (int side = 0; side < 2; ++side) {
        half8 p = y[(int64_t)(side * 2 * H + h) * C8 + i], q = y[(int64_t)((side * 2 + 1) * H + h) * C8 + i];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            float2 u = __half22float2(p.v[j]), v = __half22float2(q.v[j]);
            p.v[j] = __floats2half2_rn(u.x * sig(v.x) * m[2 * j], u.y * sig(v.y) * m[2 * j + 1]);
        }
        (side ? b : a)[h * M8 + i] = p;
    }
    half8 p = y[(int64_t)(4 * H + h) * C8 + i];
    #pragma unroll
    for (int j = 0; j < 4; ++j) { float2 u = __half22float2(p.v[j]); p.v[j] = __floats2half2_rn(sig(u.x), sig(u.y)); }
    g[h * M8 + i] = p;
}
"""
X_GATE_CHUNK = {"gate_": (5, 2, "    gate<<<dim3((i0 / 8 + 255) / 256, H), 256>>>((const half8*)p0, (const float4*)p1, (half8*)p2, (half8*)p3, (half8*)p4, i0 / 8, i1 / 8);\n")}

# dim 128: the five weights stay in shared memory, blocks walk over tiles of 64 pairs
RESIDENT_CU = """
#include <mma.h>
using namespace nvcuda;
__global__ void __launch_bounds__(512) resident(const float4* __restrict__ x, const float* __restrict__ mask, const float4* __restrict__ nw, const float4* __restrict__ nb,
                                                const half8* __restrict__ w5, __half* __restrict__ a, __half* __restrict__ b, __half* __restrict__ g, int tiles, int NN) {
    constexpr int D = 128, R = 64, LZ = D + 8, LS = R + 8;
    extern __shared__ __align__(128) unsigned char raw[];
    __half* w = (__half*)raw;
    __half* z = w + 5 * H * LZ;
    __half* stage = z + R * LZ;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int i = threadIdx.x; i < 5 * H * 16; i += 512) *(half8*)(w + i / 16 * LZ + i % 16 * 8) = w5[i];
    float4 lw = nw[lane], lb = nb[lane];
    int slice = warp & 7, rows = warp >> 3;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t first = (int64_t)tile * R;
        int batch = first / NN;
        int64_t pos = first - (int64_t)batch * NN;
        float4 v[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __ldcs(x + (first + warp + i * 16) * 32 + lane);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float mean = wsum(v[i].x + v[i].y + v[i].z + v[i].w) * (1.f / D);
            v[i].x -= mean; v[i].y -= mean; v[i].z -= mean; v[i].w -= mean;
            float k = rsqrtf(wsum(v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w) * (1.f / D) + 1e-5f);
            half4 o;
            o.v[0] = __floats2half2_rn(v[i].x * k * lw.x + lb.x, v[i].y * k * lw.y + lb.y);
            o.v[1] = __floats2half2_rn(v[i].z * k * lw.z + lb.z, v[i].w * k * lw.w + lb.w);
            *(half4*)(z + (warp + i * 16) * LZ + lane * 4) = o;
        }
        __syncthreads();
        for (int part = 0; part < 3; ++part) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> p[2], q[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i) { wmma::fill_fragment(p[i], 0.f); wmma::fill_fragment(q[i], 0.f); }
            const __half* wp = w + (part * 2 * H + slice * 16) * LZ;
            #pragma unroll
            for (int k = 0; k < D; k += 16) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fp, fg;
                wmma::load_matrix_sync(fp, wp + k, LZ);
                if (part < 2) wmma::load_matrix_sync(fg, wp + H * LZ + k, LZ);
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fz;
                    wmma::load_matrix_sync(fz, z + (rows * 32 + i * 16) * LZ + k, LZ);
                    wmma::mma_sync(p[i], fz, fp, p[i]);
                    if (part < 2) wmma::mma_sync(q[i], fz, fg, q[i]);
                }
            }
            // accumulator layout of m16n16k16: two 8-column halves, rows lane/4 and lane/4 + 8, columns 2*(lane%4)
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                #pragma unroll
                for (int e = 0; e < 8; ++e) {
                    int r = rows * 32 + i * 16 + lane / 4 + (e & 2) * 4, h = slice * 16 + (e >> 2) * 8 + lane % 4 * 2 + (e & 1);
                    float f = part < 2 ? p[i].x[e] * sig(q[i].x[e]) * mask[first + r] : sig(p[i].x[e]);
                    stage[h * LS + r] = __float2half(f);
                }
            }
            __syncthreads();
            __half* out = part == 0 ? a : part == 1 ? b : g;
            for (int i = threadIdx.x; i < H * R / 8; i += 512) {
                int h = i >> 3, r = (i & 7) * 8;
                *(half8*)(out + ((int64_t)batch * H + h) * NN + pos + r) = *(half8*)(stage + h * LS + r);
            }
            __syncthreads();
        }
    }
}
static void run_resident(uintptr_t x, uintptr_t m, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t a, uintptr_t b, uintptr_t g, int M, int NN) {
    constexpr int S = (5 * H * 136 + 64 * 136 + H * 72) * 2;
    cudaFuncSetAttribute(resident, cudaFuncAttributeMaxDynamicSharedMemorySize, S);
    resident<<<132, 512, S>>>((const float4*)x, (const float*)m, (const float4*)nw, (const float4*)nb, (const half8*)w, (__half*)a, (__half*)b, (__half*)g, M / 64, NN);
}
"""

_ACC = ", ".join("%%%d" % i for i in range(64))
_OUT = ", ".join('"+f"(d[%d])' % i for i in range(64))
WG_CU = """
__device__ __forceinline__ uint64_t describe(uint32_t at) {  // K-major, 128-byte swizzle, 8-row groups 1024 bytes apart
    return (uint64_t)((at & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
__device__ __forceinline__ void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
__device__ __forceinline__ void wgmma128(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {""" + _ACC + """}, %64, %65, p, 1, 1, 0, 0; }"
                 : """ + _OUT + """ : "l"(a), "l"(b), "r"(keep));
}
__device__ __forceinline__ void bar_sync(int id) { asm volatile("bar.sync %0, 384;" :: "r"(id) : "memory"); }
__device__ __forceinline__ void bar_arrive(int id) { asm volatile("bar.arrive %0, 384;" :: "r"(id) : "memory"); }
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// four lanes hold two neighbouring pairs of four 8-pair blocks each; afterwards each holds the eight pairs of one block
__device__ __forceinline__ void quad_store(__half* row, const uint32_t (&v)[4], int q) {
    uint32_t o[4];
    #pragma unroll
    for (int s = 0; s < 4; ++s) {
        int want = q ^ s;  // send block q^s, receive our block from lane q^s
        uint32_t give = want == 0 ? v[0] : want == 1 ? v[1] : want == 2 ? v[2] : v[3];
        uint32_t got = s ? __shfl_xor_sync(~0u, give, s) : give;
        #pragma unroll
        for (int j = 0; j < 4; ++j) if (want == j) o[j] = got;
    }
    *(uint4*)(row + q * 8) = make_uint4(o[0], o[1], o[2], o[3]);
}
__device__ __forceinline__ uint32_t pack(float a, float b) { __half2 h = __floats2half2_rn(a, b); return *(uint32_t*)&h; }
"""
WGPROJ_CU = WG_CU + """
// dim 128. One warp group normalises tiles of 128 pairs into two swizzled buffers, two multiply: w [64 channels] x z^T
__global__ void __launch_bounds__(384, 1) wgproj(const float4* __restrict__ x, const float* __restrict__ mask, const float4* __restrict__ nw, const float4* __restrict__ nb,
                                                 const uint4* __restrict__ w5, __half* __restrict__ a, __half* __restrict__ b, __half* __restrict__ g, int tiles, int NN) {
    extern __shared__ unsigned char raw[];
    uint32_t base = ((uint32_t)__cvta_generic_to_shared(raw) + 1023) & ~1023u;
    unsigned char* w = raw + (base - (uint32_t)__cvta_generic_to_shared(raw));
    unsigned char* zb = w + 163840;
    for (int i = threadIdx.x; i < 640 * 16; i += 384) {
        int r = i >> 4, c = i & 15;
        *(uint4*)(w + (c >> 3) * 81920 + r * 128 + (((c & 7) ^ (r & 7)) << 4)) = w5[i];
    }
    proxy_fence();
    __syncthreads();
    int group = threadIdx.x >> 7, lane = threadIdx.x & 31;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
        int warp = threadIdx.x >> 5, n = 0;
        float4 lw = nw[lane], lb = nb[lane];
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++n) {
            int buf = n & 1;
            const float4* src = x + (int64_t)tile * 128 * 32 + lane;
            unsigned char* dst = zb + buf * 32768 + (lane >> 4) * 16384 + (lane & 1) * 8;
            for (int r0 = warp * 32; r0 < warp * 32 + 32; r0 += 8) {
                float4 v[8];
                #pragma unroll
                for (int i = 0; i < 8; ++i) v[i] = __ldcs(src + (r0 + i) * 32);
                if (r0 == warp * 32 && n >= 2) bar_sync(3 + buf);
                #pragma unroll
                for (int i = 0; i < 8; ++i) {
                    float mean = wsum(v[i].x + v[i].y + v[i].z + v[i].w) * (1.f / 128);
                    v[i].x -= mean; v[i].y -= mean; v[i].z -= mean; v[i].w -= mean;
                    float k = rsqrtf(wsum(v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w) * (1.f / 128) + 1e-5f);
                    *(uint2*)(dst + (r0 + i) * 128 + ((((lane & 15) >> 1) ^ i) << 4)) =
                        make_uint2(pack(v[i].x * k * lw.x + lb.x, v[i].y * k * lw.y + lb.y), pack(v[i].z * k * lw.z + lb.z, v[i].w * k * lw.w + lb.w));
                }
            }
            proxy_fence();
            bar_arrive(1 + buf);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
        int half = group - 1, warp = (threadIdx.x >> 5) & 3, q = lane & 3, n = 0;
        int h0 = half * 64 + warp * 16 + (lane >> 2);
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++n) {
            int buf = n & 1;
            int64_t first = (int64_t)tile * 128;
            int batch = first / NN;
            int64_t off = ((int64_t)batch * H + h0) * NN + (first - (int64_t)batch * NN);
            uint32_t zat = base + 163840 + buf * 32768;
            bar_sync(1 + buf);
            for (int part = 0; part < 3; ++part) {
                float p[64], s[64];
                uint32_t wat = base + (part * 256 + half * 64) * 128;
                wg_fence();
                #pragma unroll
                for (int k = 0; k < 8; ++k) wgmma128(p, describe(wat + (k >> 2) * 81920 + (k & 3) * 32), describe(zat + (k >> 2) * 16384 + (k & 3) * 32), k);
                if (part < 2) {
                    #pragma unroll
                    for (int k = 0; k < 8; ++k) wgmma128(s, describe(wat + 16384 + (k >> 2) * 81920 + (k & 3) * 32), describe(zat + (k >> 2) * 16384 + (k & 3) * 32), k);
                }
                wg_commit();
                wg_wait();
                #pragma unroll
                for (int i = 0; i < 64; ++i) { asm volatile("" : "+f"(p[i]) :: "memory"); asm volatile("" : "+f"(s[i]) :: "memory"); }
                if (part == 2 && tile + 2 * gridDim.x < tiles) bar_arrive(3 + buf);
                __half* out = (part == 0 ? a : part == 1 ? b : g) + off;
                #pragma unroll
                for (int c = 0; c < 4; ++c) {
                    uint32_t lo[4], hi[4];
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        int e = (c * 4 + j) * 4;
                        if (part < 2) {
                            float2 m = *(const float2*)(mask + first + c * 32 + j * 8 + q * 2);
                            lo[j] = pack(p[e] * sig(s[e]) * m.x, p[e + 1] * sig(s[e + 1]) * m.y);
                            hi[j] = pack(p[e + 2] * sig(s[e + 2]) * m.x, p[e + 3] * sig(s[e + 3]) * m.y);
                        } else {
                            lo[j] = pack(sig(p[e]), sig(p[e + 1]));
                            hi[j] = pack(sig(p[e + 2]), sig(p[e + 3]));
                        }
                    }
                    quad_store(out + c * 32, lo, q);
                    quad_store(out + 8ll * NN + c * 32, hi, q);
                }
            }
        }
    }
}
static void run_wgproj(uintptr_t x, uintptr_t m, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t a, uintptr_t b, uintptr_t g, int M, int NN) {
    constexpr int S = 163840 + 65536 + 1024;
    cudaFuncSetAttribute(wgproj, cudaFuncAttributeMaxDynamicSharedMemorySize, S);
    int tiles = M / 128;
    wgproj<<<tiles < 132 ? tiles : 132, 384, S>>>((const float4*)x, (const float*)m, (const float4*)nw, (const float4*)nb, (const uint4*)w, (__half*)a, (__half*)b, (__half*)g, tiles, NN);
}
"""
C_RAW = "if raw:\n        " + C_Z.replace("\n", "\n    ") + "\n        " + C_Y + "\n        " + C_GATE + "\n        " + C_T.replace("\n", "\n    ") + "\n        g = v[4]"
def C_FUSED(call): return "else:\n        " + C_ABG.replace("\n", "\n    ") + "\n        " + call + "\n        " + MM
C_LAST_RAW = C_LAST("g").replace("M, NN, D)", "M, NN, D, int(raw))")
C_CALL = 'ext.%s(x.data_ptr(), mask.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), w5.data_ptr(), a.data_ptr(), b.data_ptr(), g.data_ptr(), M, NN)'
C_CHUNKS = """a = torch.empty(H, B, N, N, dtype=torch.float16, device=x.device)
    b, g = torch.empty_like(a), torch.empty_like(a)
    C = min(M, 32768)
    z = torch.empty(C, D, dtype=torch.float16, device=x.device)
    y = torch.empty(5 * H, C, dtype=torch.float16, device=x.device)
    zt = z.t()
    px, pm, pw, pb, pz, py = x.data_ptr(), mask.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), z.data_ptr(), y.data_ptr()
    pa, pq, pg = a.data_ptr(), b.data_ptr(), g.data_ptr()
    for i in range(0, M, C):
        ext.norm_(px + i * D * 4, pw, pb, pz, C, D)
        torch.mm(w5, zt, out=y)
        ext.gate_(py, pm + i * 4, pa + i * 2, pq + i * 2, pg + i * 2, C, M)"""

CUDA += [
    A("last kernel with two pairs per load", 1, "attempt 1 was best (8.47x, 2259 us at N = 1024, dim 128); its last kernel reads t and gate two bytes per thread; take 128 pairs per block and half2 loads, and use each fragment of the output weights twice as often",
      unit("tri_ag_c5", HEADER + NORM_CU + GATE_CU + WOUT2_CU.replace("<<SIG>>", SIG2), {**X_NORM, **X_GATE, **X_LAST2_H}, [C_W5, C_Z, C_Y, C_GATE, C_T, C_LAST("v[4]")])),
    A("first product in chunks that stay in L2", 5, "y is 1.3 GB at N = 1024, written once and read once; work on 32768 pairs at a time with one reused buffer of 42 MB, so that y should never reach memory; 96 launches instead of three",
      unit("tri_ag_c6", HEADER + NORM_CU + GATE_CHUNK + WOUT2_CU.replace("<<SIG>>", ""), {**X_NORM, **X_GATE_CHUNK, **X_LAST2_H}, [C_W5, C_CHUNKS, MM, C_LAST("g")])),
    A("weights resident in shared memory, wmma", 4, "the fused kernels of attempts 2 to 4 (3058 us) fetch weight fragments from L1 in 32-byte pieces; keep all five weights padded in shared memory, 16 warps, half-precision staging; dim 384 as in attempt 5",
      unit("tri_ag_c7", HEADER + NORM_CU + GATE_CU + RESIDENT_CU + WOUT2_IF, {**X_NORM, **X_GATE, **X_LAST2_IF, "proj_": (8, 2, "    run_resident(p0, p1, p2, p3, p4, p5, p6, p7, i0, i1);\n")},
           [C_W5, "raw = D > 128", C_RAW, C_FUSED(C_CALL % "proj_"), C_LAST_RAW])),
    A("warp groups: one normalises, two multiply", 5, "wmma reaches half of the tensor throughput and the phases wait for each other; wgmma with the weights resident (160 KB), z double-buffered by a producer warp group, results transposed inside quads and stored directly; dim 384 as in attempt 5",
      unit("tri_ag_c8", HEADER + NORM_CU + GATE_CU + WGPROJ_CU + WOUT2_IF, {**X_NORM, **X_GATE, **X_LAST2_IF, "proj_": (8, 2, "    run_wgproj(p0, p1, p2, p3, p4, p5, p6, p7, i0, i1);\n")},
           [C_W5, "raw = D > 128", C_RAW, C_FUSED(C_CALL % "proj_"), C_LAST_RAW], "-gencode=arch=compute_90a,code=sm_90a")),
]

# ---- third round ----------------------------------------------------------------------------------------------
# weights in the order in which the ring takes them: chunks of [128 channels][64 inputs], swizzled, 16 KB each
PREP_CU = """
__global__ void prep(const float4* __restrict__ lp, const float4* __restrict__ lg, const float4* __restrict__ rp, const float4* __restrict__ rg, const float4* __restrict__ og,
                     const float4* __restrict__ wo, uint4* __restrict__ wsw, uint4* __restrict__ woh, int D) {
    int per = H * D / 8, i = blockIdx.x * 256 + threadIdx.x;
    if (i >= 6 * per) return;
    int m = i / per, j = i % per;
    const float4* src = (m == 0 ? lp : m == 1 ? lg : m == 2 ? rp : m == 3 ? rg : m == 4 ? og : wo) + 2 * j;
    float4 u = src[0], v = src[1];
    uint4 o = make_uint4(pack(u.x, u.y), pack(u.z, u.w), pack(v.x, v.y), pack(v.z, v.w));
    if (m == 5) { woh[j] = o; return; }
    int r = j / (D / 8), c = j % (D / 8), kc = c >> 3, KC = D / 64;
    int chunk = m == 4 ? 4 * KC + kc : (m >> 1) * 2 * KC + kc * 2 + (m & 1);
    wsw[chunk * 1024 + r * 8 + ((c & 7) ^ (r & 7))] = o;
}
"""
STREAM_CU = """
__device__ __forceinline__ void mb_init(uint32_t at, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(n) : "memory"); }
__device__ __forceinline__ void mb_arrive(uint32_t at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }
__device__ __forceinline__ void mb_expect(uint32_t at, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory"); }
__device__ __forceinline__ void mb_wait(uint32_t at, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" :: "r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk(uint32_t dst, const void* src, int bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
// 128 pairs at a time: eight warps normalise the tile into shared memory, then two warp groups multiply while a ninth warp streams the weights
template <int C, int S>
__global__ void __launch_bounds__(384, 1) stream(const float4* __restrict__ x, const float* __restrict__ mask, const float4* __restrict__ nw, const float4* __restrict__ nb,
                                                 const unsigned char* __restrict__ wsw, __half* __restrict__ a, __half* __restrict__ b, __half* __restrict__ g, int tiles, int NN) {
    constexpr int KC = 2 * C, D = 128 * C;
    extern __shared__ unsigned char raw[];
    __shared__ __align__(8) uint64_t bars[2 * S];
    uint32_t base = ((uint32_t)__cvta_generic_to_shared(raw) + 1023) & ~1023u;
    unsigned char* z = raw + (base - (uint32_t)__cvta_generic_to_shared(raw));
    uint32_t ring = base + KC * 16384, full = (uint32_t)__cvta_generic_to_shared(bars), empty = full + 8 * S;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S; ++i) { mb_init(full + 8 * i, 1); mb_init(empty + 8 * i, 8); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) {
            int st = 0; uint32_t ph = 1;
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                for (int c = 0; c < 5 * KC; ++c) {
                    mb_wait(empty + 8 * st, ph);
                    mb_expect(full + 8 * st, 16384);
                    bulk(ring + st * 16384, wsw + c * 16384, 16384, full + 8 * st);
                    if (++st == S) { st = 0; ph ^= 1; }
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int half = warp >> 2, q = lane & 3;
    int h0 = half * 64 + (warp & 3) * 16 + (lane >> 2);
    int st = 0; uint32_t ph = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t first = (int64_t)tile * 128;
        for (int r0 = warp * 16; r0 < warp * 16 + 16; r0 += 4) {
            float4 v[4][C];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                #pragma unroll
                for (int c = 0; c < C; ++c) v[i][c] = __ldcs(x + (first + r0 + i) * (D / 4) + c * 32 + lane);
            }
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                float t = 0.f, u = 0.f;
                #pragma unroll
                for (int c = 0; c < C; ++c) t += v[i][c].x + v[i][c].y + v[i][c].z + v[i][c].w;
                float mean = wsum(t) * (1.f / D);
                #pragma unroll
                for (int c = 0; c < C; ++c) {
                    float4& f = v[i][c];
                    f.x -= mean; f.y -= mean; f.z -= mean; f.w -= mean;
                    u += f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w;
                }
                float k = rsqrtf(wsum(u) * (1.f / D) + 1e-5f);
                int r = r0 + i;
                #pragma unroll
                for (int c = 0; c < C; ++c) {
                    float4 f = v[i][c], w = nw[c * 32 + lane], o = nb[c * 32 + lane];
                    *(uint2*)(z + (2 * c + (lane >> 4)) * 16384 + r * 128 + ((((lane & 15) >> 1) ^ (r & 7)) << 4) + (lane & 1) * 8) =
                        make_uint2(pack(f.x * k * w.x + o.x, f.y * k * w.y + o.y), pack(f.z * k * w.z + o.z, f.w * k * w.w + o.w));
                }
            }
        }
        proxy_fence();
        asm volatile("bar.sync 1, 256;" ::: "memory");
        <<PREFETCH>>
        int batch = first / NN;
        int64_t off = ((int64_t)batch * H + h0) * NN + (first - (int64_t)batch * NN);
        for (int part = 0; part < 3; ++part) {
            float p[64], s[64];
            int before = -1;
            #pragma unroll 1
            for (int kc = 0; kc < KC; ++kc) {
                uint32_t zat = base + kc * 16384;
                mb_wait(full + 8 * st, ph);
                uint32_t wat = ring + st * 16384 + half * 8192;
                wg_fence();
                #pragma unroll
                for (int k = 0; k < 4; ++k) wgmma128(p, describe(wat + k * 32), describe(zat + k * 32), kc | k);
                wg_commit();
                if (before >= 0) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); if (lane == 0) mb_arrive(empty + 8 * before); }
                before = st;
                if (++st == S) { st = 0; ph ^= 1; }
                if (part < 2) {
                    mb_wait(full + 8 * st, ph);
                    wat = ring + st * 16384 + half * 8192;
                    wg_fence();
                    #pragma unroll
                    for (int k = 0; k < 4; ++k) wgmma128(s, describe(wat + k * 32), describe(zat + k * 32), kc | k);
                    wg_commit();
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (lane == 0) mb_arrive(empty + 8 * before);
                    before = st;
                    if (++st == S) { st = 0; ph ^= 1; }
                }
            }
            wg_wait();
            #pragma unroll
            for (int i = 0; i < 64; ++i) { asm volatile("" : "+f"(p[i]) :: "memory"); asm volatile("" : "+f"(s[i]) :: "memory"); }
            if (lane == 0) mb_arrive(empty + 8 * before);
            __half* out = (part == 0 ? a : part == 1 ? b : g) + off;
            #pragma unroll
            for (int c = 0; c < 4; ++c) {
                uint32_t lo[4], hi[4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    int e = (c * 4 + j) * 4;
                    if (part < 2) {
                        float2 m = *(const float2*)(mask + first + c * 32 + j * 8 + q * 2);
                        lo[j] = pack(p[e] * sig(s[e]) * m.x, p[e + 1] * sig(s[e + 1]) * m.y);
                        hi[j] = pack(p[e + 2] * sig(s[e + 2]) * m.x, p[e + 3] * sig(s[e + 3]) * m.y);
                    } else {
                        lo[j] = pack(sig(p[e]), sig(p[e + 1]));
                        hi[j] = pack(sig(p[e + 2]), sig(p[e + 3]));
                    }
                }
                quad_store(out + c * 32, lo, q);
                quad_store(out + 8ll * NN + c * 32, hi, q);
            }
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
    }
}
template <int C, int S> static void go_stream(uintptr_t x, uintptr_t m, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t a, uintptr_t b, uintptr_t g, int M, int NN) {
    constexpr int bytes = 2 * C * 16384 + S * 16384 + 1024;
    cudaFuncSetAttribute(stream<C, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    int tiles = M / 128;
    stream<C, S><<<tiles < 132 ? tiles : 132, 384, bytes>>>((const float4*)x, (const float*)m, (const float4*)nw, (const float4*)nb, (const unsigned char*)w, (__half*)a, (__half*)b, (__half*)g, tiles, NN);
}
static void run_stream(uintptr_t x, uintptr_t m, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t a, uintptr_t b, uintptr_t g, int M, int NN, int D) {
    (D == 128 ? go_stream<1, 8> : D == 256 ? go_stream<2, 8> : go_stream<3, 7>)(x, m, nw, nb, w, a, b, g, M, NN);
}
static void run_prep(uintptr_t lp, uintptr_t lg, uintptr_t rp, uintptr_t rg, uintptr_t og, uintptr_t wo, uintptr_t wsw, uintptr_t woh, int D) {
    prep<<<(6 * H * D / 8 + 255) / 256, 256>>>((const float4*)lp, (const float4*)lg, (const float4*)rp, (const float4*)rg, (const float4*)og, (const float4*)wo, (uint4*)wsw, (uint4*)woh, D);
}
"""
PREFETCH = """if (tile + gridDim.x < tiles) {
            const char* next = (const char*)(x + (first + 128ll * gridDim.x) * (D / 4));
            for (int i = threadIdx.x; i < 128 * D / 32; i += 256) asm volatile("prefetch.global.L2 [%0];" :: "l"(next + i * 128ll));
        }"""
FAST = "__device__ __forceinline__ float sig(float v) { float t; asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(t) : \"f\"(0.5f * v)); return fmaf(t, 0.5f, 0.5f); }"
HEADER_FAST = HEADER.replace("__device__ __forceinline__ float sig(float v) { return 1.f / (1.f + __expf(-v)); }", FAST)
PREP_SW = PREP_CU.replace("if (m == 5) { woh[j] = o; return; }", """if (m == 5) {
        int d = j >> 4, e = j & 15;
        woh[((d >> 7) * 2 + (e >> 3)) * 1024 + (d & 127) * 8 + ((e & 7) ^ (d & 7))] = o;
        return;
    }""")
STREAM = STREAM_CU.replace("<<PREFETCH>>", PREFETCH)
# 64 pairs and one warp group per block, several blocks per processor; the output weights arrive swizzled by bulk copies
WGLAST_CU = """
__global__ void __launch_bounds__(128) wglast(const __half2* __restrict__ t, const __half2* __restrict__ g, const float* __restrict__ nw, const float* __restrict__ nb,
                                              const unsigned char* __restrict__ w, float* __restrict__ out, int NN, int D) {
    extern __shared__ unsigned char raw[];
    __shared__ float2 part[4][32], part2[4][32];
    __shared__ __align__(8) uint64_t bar[1];
    uint32_t base = ((uint32_t)__cvta_generic_to_shared(raw) + 1023) & ~1023u, full = (uint32_t)__cvta_generic_to_shared(bar);
    unsigned char* z = raw + (base - (uint32_t)__cvta_generic_to_shared(raw));
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        mb_init(full, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        mb_expect(full, 32768);
        bulk(base + 16384, w, 32768, full);
    }
    int64_t first = (int64_t)blockIdx.x * 64;
    int batch = first / NN;
    int64_t at = ((int64_t)batch * H + warp * 32) * (NN / 2) + (first - (int64_t)batch * NN) / 2 + lane;
    __half2 v[32];
    float2 s = make_float2(0.f, 0.f), q = s;
    #pragma unroll
    for (int j = 0; j < 32; ++j) v[j] = t[at + (int64_t)j * (NN / 2)];
    #pragma unroll
    for (int j = 0; j < 32; ++j) { float2 f = __half22float2(v[j]); s.x += f.x; s.y += f.y; }
    part[warp][lane] = s;
    __syncthreads();
    s.x = (part[0][lane].x + part[1][lane].x + part[2][lane].x + part[3][lane].x) * (1.f / H);
    s.y = (part[0][lane].y + part[1][lane].y + part[2][lane].y + part[3][lane].y) * (1.f / H);
    #pragma unroll
    for (int j = 0; j < 32; ++j) { float2 f = __half22float2(v[j]); f.x -= s.x; f.y -= s.y; q.x += f.x * f.x; q.y += f.y * f.y; }
    part2[warp][lane] = q;
    __syncthreads();
    float k0 = rsqrtf((part2[0][lane].x + part2[1][lane].x + part2[2][lane].x + part2[3][lane].x) * (1.f / H) + 1e-5f);
    float k1 = rsqrtf((part2[0][lane].y + part2[1][lane].y + part2[2][lane].y + part2[3][lane].y) * (1.f / H) + 1e-5f);
    int r = 2 * lane;
    unsigned char* zr = z + (warp >> 1) * 8192 + r * 128;
    #pragma unroll
    for (int j = 0; j < 32; j += 8) {
        float y0[8], y1[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            float2 f = __half22float2(v[j + i]), k = __half22float2(g[at + (int64_t)(j + i) * (NN / 2)]);
            float a = nw[warp * 32 + j + i], b = nb[warp * 32 + j + i];
            y0[i] = ((f.x - s.x) * k0 * a + b) * k.x;
            y1[i] = ((f.y - s.y) * k1 * a + b) * k.y;
        }
        int c = (warp & 1) * 4 + j / 8;
        *(uint4*)(zr + ((c ^ (r & 7)) << 4)) = make_uint4(pack(y0[0], y0[1]), pack(y0[2], y0[3]), pack(y0[4], y0[5]), pack(y0[6], y0[7]));
        *(uint4*)(zr + 128 + ((c ^ ((r + 1) & 7)) << 4)) = make_uint4(pack(y1[0], y1[1]), pack(y1[2], y1[3]), pack(y1[4], y1[5]), pack(y1[6], y1[7]));
    }
    proxy_fence();
    __syncthreads();
    for (int d = 0; d < D; d += 128) {
        mb_wait(full, (d >> 7) & 1);
        float p[64];
        wg_fence();
        #pragma unroll
        for (int k = 0; k < 8; ++k) wgmma128(p, describe(base + (k >> 2) * 8192 + (k & 3) * 32), describe(base + 16384 + (k >> 2) * 16384 + (k & 3) * 32), k);
        wg_commit();
        wg_wait();
        #pragma unroll
        for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(p[i]) :: "memory");
        if (d + 128 < D) {
            __syncthreads();
            if (threadIdx.x == 0) { mb_expect(full, 32768); bulk(base + 16384, w + (d / 128 + 1) * 32768, 32768, full); }
        }
        float* o = out + (first + warp * 16 + (lane >> 2)) * D + d + (lane & 3) * 2;
        #pragma unroll
        for (int j = 0; j < 16; ++j) {
            __stcs((float2*)(o + j * 8), make_float2(p[4 * j], p[4 * j + 1]));
            __stcs((float2*)(o + 8ll * D + j * 8), make_float2(p[4 * j + 2], p[4 * j + 3]));
        }
    }
}
static void run_wglast(uintptr_t t, uintptr_t g, uintptr_t nw, uintptr_t nb, uintptr_t w, uintptr_t out, int M, int NN, int D) {
    cudaFuncSetAttribute(wglast, cudaFuncAttributeMaxDynamicSharedMemorySize, 50176);
    wglast<<<M / 64, 128, 50176>>>((const __half2*)t, (const __half2*)g, (const float*)nw, (const float*)nb, (const unsigned char*)w, (float*)out, NN, D);
}
"""
GEN = "-gencode=arch=compute_90a,code=sm_90a"
X_PREP = {"prep_": (8, 1, "    run_prep(p0, p1, p2, p3, p4, p5, p6, p7, i0);\n")}
X_STREAM = {"proj_": (8, 3, "    run_stream(p0, p1, p2, p3, p4, p5, p6, p7, i0, i1, i2);\n")}
X_WGLAST = {"last_": (6, 3, "    run_wglast(p0, p1, p2, p3, p4, p5, i0, i1, i2);\n")}
X_LAST2_B = {"last_": (6, 3, "    last<<<i0 / 128, 256>>>(" + L2ARGS + "i1, (int64_t)i1 * H, i2);\n")}
C_PREP = """w6 = torch.empty(6 * H, D, dtype=torch.float16, device=x.device)
    w5 = w6
    ext.prep_(*(p[n + ".weight"].data_ptr() for n in ("left_proj", "left_gate", "right_proj", "right_gate", "out_gate", "to_out")), w6.data_ptr(), w6.data_ptr() + 10 * H * D, D)"""
C_LAST6 = 'out = torch.empty(B, N, N, D, dtype=torch.float32, device=x.device)\n    ext.last_(t.data_ptr(), g.data_ptr(), p["to_out_norm.weight"].data_ptr(), p["to_out_norm.bias"].data_ptr(), w6.data_ptr() + 10 * H * D, out.data_ptr(), M, NN, D)\n    return out'
C_RESIDENT_OR = """if D == 128:
        q5 = torch.cat([p["left_proj.weight"], p["left_gate.weight"], p["right_proj.weight"], p["right_gate.weight"], p["out_gate.weight"]]).half()
        ext.resident_(x.data_ptr(), mask.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), q5.data_ptr(), a.data_ptr(), b.data_ptr(), g.data_ptr(), M, NN)
    else:
        """
X_WGRES = {"resident_": (8, 2, "    run_wgproj(p0, p1, p2, p3, p4, p5, p6, p7, i0, i1);\n")}

CUDA += [
    A("weights streamed through a ring, both dims fused", 8, "attempt 8 was right but slow (2866 us against 2246): one producer group and an exact division per sigmoid; now all eight warps normalise 128 pairs, two warp groups multiply, a ninth warp streams pre-swizzled 16 KB weight chunks by bulk copies, sigmoid by tanh.approx; works for dim 384, where z and y (about 4 GB of traffic at N = 1024) disappear",
      unit("tri_ag_c9", HEADER_FAST + WG_CU + PREP_CU + STREAM + WOUT2_CU.replace("<<SIG>>", ""), {**X_PREP, **X_STREAM, **X_LAST2_B}, [C_PREP, C_ABG, C_PROJ, MM, C_LAST6], GEN)),
    A("last kernel with one warp group per 64 pairs", 9, "the last kernel fetches weight fragments from L1 in 32-byte pieces and runs at two blocks per processor; 64 pairs per block, wgmma on swizzled tiles, output weights by bulk copies while the LayerNorm runs, four blocks per processor",
      unit("tri_ag_c10", HEADER_FAST + WG_CU + PREP_SW + STREAM + WGLAST_CU, {**X_PREP, **X_STREAM, **X_WGLAST}, [C_PREP, C_ABG, C_PROJ, MM, C_LAST6], GEN)),
    A("resident weights for dim 128 with the cheap sigmoid", 10, "was the exact division what made attempt 8 slow? Its kernel again with tanh.approx for dim 128, streamed weights for dim 384, new last kernel",
      unit("tri_ag_c11", HEADER_FAST + WGPROJ_CU + PREP_SW + STREAM + WGLAST_CU, {**X_PREP, **X_STREAM, **X_WGRES, **X_WGLAST}, [C_PREP, C_ABG, C_RESIDENT_OR + C_PROJ, MM, C_LAST6], GEN)),
    A("cuBLAS projections, warp-group last kernel", 5, "attempt 5 (8.47x) with the channel-first cuBLAS product kept: tells how much of the gain of the new last kernel and the cheap sigmoid stands alone; operands are gated out of place so that the gate is finished there",
      unit("tri_ag_c12", HEADER_FAST + WG_CU + PREP_SW + STREAM_CU[:STREAM_CU.index("// 128 pairs at a time")] + """static void run_prep(uintptr_t lp, uintptr_t lg, uintptr_t rp, uintptr_t rg, uintptr_t og, uintptr_t wo, uintptr_t wsw, uintptr_t woh, int D) {
    prep<<<(6 * H * D / 8 + 255) / 256, 256>>>((const float4*)lp, (const float4*)lg, (const float4*)rp, (const float4*)rg, (const float4*)og, (const float4*)wo, (uint4*)wsw, (uint4*)woh, D);
}
""" + NORM_CU + GATE_CHUNK + WGLAST_CU, {**X_PREP, **X_NORM, **X_GATE_CHUNK, **X_WGLAST},
           [C_PREP.replace("w5 = w6", W5), C_Z, "a = torch.empty(B, H, N, N, dtype=torch.float16, device=x.device)\n    b, g = torch.empty_like(a), torch.empty_like(a)",
            """for i in range(B):
        y = torch.mm(w5, z[i * NN:(i + 1) * NN].t())
        ext.gate_(y.data_ptr(), mask[i].data_ptr(), a[i].data_ptr(), b[i].data_ptr(), g[i].data_ptr(), NN, NN)""", MM, C_LAST6], GEN)),
    A("cuBLAS for dim 128, streamed weights for dim 384", 12, "at dim 384 every pair brings three times the products for the same stores; there the fused kernel has work to hide its serial LayerNorm phase behind, while at dim 128 the three short phases may stay exposed; the two ways side by side",
      unit("tri_ag_c13", HEADER_FAST + WG_CU + PREP_SW + STREAM + NORM_CU + GATE_CHUNK + WGLAST_CU, {**X_PREP, **X_STREAM, **X_NORM, **X_GATE_CHUNK, **X_WGLAST},
           [C_PREP, C_ABG, """if D > 128:
        """ + C_PROJ + """
    else:
        w5 = torch.cat([p["left_proj.weight"], p["left_gate.weight"], p["right_proj.weight"], p["right_gate.weight"], p["out_gate.weight"]]).half()
        z = torch.empty(M, D, dtype=torch.float16, device=x.device)
        ext.norm_(x.data_ptr(), p["norm.weight"].data_ptr(), p["norm.bias"].data_ptr(), z.data_ptr(), M, D)
        for i in range(B):
            y = torch.mm(w5, z[i * NN:(i + 1) * NN].t())
            ext.gate_(y.data_ptr(), mask[i].data_ptr(), a[i].data_ptr(), b[i].data_ptr(), g[i].data_ptr(), NN, NN)""", MM, C_LAST6], GEN)),
]

def P_TMA(): return '''desc = lambda t, r, c, br, bc: TensorDescriptor(t, [r, c], [c, 1], [br, bc])
        tma_kernel[(NN // 128 * 6, B)](desc(z, M, D, 128, 64), mask, desc(w5, 5 * H, D, 64, 64), desc(a, B * H, NN, 64, 128), desc(b, B * H, NN, 64, 128), desc(gate, B * H, NN, 64, 128), NN, D=D, H=H, HB=64, BM=128, BK=64, num_warps=4, num_stages=3)'''
Z_IN = Z_NORM.replace("\n", "\n    ") + "\n        "
def tma(code): return code.replace("import triton.language as tl\n", "import triton.language as tl\nfrom triton.tools.tensor_descriptor import TensorDescriptor\n", 1)
BEST = [AB, G_CH, BY_DIM % (P_FUSED, Z_IN + P_TMA()), MM, OUT, FIN_T()]
SIG_ASM = """@triton.jit
def sigmoid(v):
    t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [v * 0.5], dtype=tl.float32, is_pure=True, pack=1)
    return t * 0.5 + 0.5
"""
def asm(s): return s.replace("tl.sigmoid(", "sigmoid(")
TMA_MM = """@triton.jit
def tma_contract_kernel(a_desc, b_desc, t_desc, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    nt = tl.cdiv(N, BN)
    ch = tl.program_id(1) * N
    i = ch + tl.program_id(0) // nt * BM
    j = tl.program_id(0) % nt * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, N, BK):
        acc = tl.dot(a_desc.load([i, k]), b_desc.load([ch + j, k]).T, acc)
    t_desc.store([i, j], acc.to(tl.float16))
"""
# weights of one 64-channel block stay, the program walks over tiles of pairs
FUSED_WALK = """@triton.jit
def walk_kernel(x_ptr, mask_ptr, nw_ptr, nb_ptr, w_ptr, a_ptr, b_ptr, g_ptr, NN, tiles, D: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, STEP: tl.constexpr):
    hh = tl.arange(0, H)
    kk = tl.arange(0, D)
    nw = tl.load(nw_ptr + kk)[None, :]
    nb = tl.load(nb_ptr + kk)[None, :]
    wp = w_ptr + hh[:, None] * D + kk[None, :]
    wl, wlg, wr, wrg, wg = tl.load(wp), tl.load(wp + H * D), tl.load(wp + 2 * H * D), tl.load(wp + 3 * H * D), tl.load(wp + 4 * H * D)
    for tile in tl.range(tl.program_id(0), tiles, STEP, num_stages=1):
        row = tile * BM + tl.arange(0, BM)
        batch = (tile * BM) // NN
        x = tl.load(x_ptr + row[:, None] * D + kk[None, :])
        msk = tl.load(mask_ptr + row)[None, :]
        c = x - (tl.sum(x, axis=1) / D)[:, None]
        r = tl.rsqrt(tl.sum(c * c, axis=1) / D + 1e-5)
        z = tl.trans((c * r[:, None] * nw + nb).to(tl.float16))
        off = (batch * H + hh)[:, None] * NN + (row - batch * NN)[None, :]
        tl.store(a_ptr + off, (tl.dot(wl, z) * tl.sigmoid(tl.dot(wlg, z)) * msk).to(tl.float16))
        tl.store(b_ptr + off, (tl.dot(wr, z) * tl.sigmoid(tl.dot(wrg, z)) * msk).to(tl.float16))
        tl.store(g_ptr + off, tl.sigmoid(tl.dot(wg, z)).to(tl.float16))
"""
P_WALK = 'walk_kernel[(132,)](x, mask, p["norm.weight"], p["norm.bias"], w5, a, b, gate, NN, M // 64, D=D, H=H, BM=64, STEP=132, num_warps=8)'
FINAL_MIX = '''if D == 128:
        final_loop_kernel[(264, 1)](t, gate, p["to_out_norm.weight"], p["to_out_norm.bias"], wo, out, NN, M // 64, D=D, H=H, BM=64, STEP=264, num_warps=4)
        return out'''
PREP_HOST = ["w6 = torch.empty(6 * H, D, dtype=torch.float16, device=x.device)",
          'prep_kernel[(H * D // 1024, 6)](p["left_proj.weight"], p["left_gate.weight"], p["right_proj.weight"], p["right_gate.weight"], p["out_gate.weight"], p["to_out.weight"], w6, SIZE=H * D, BLOCK=1024, num_warps=4)',
          "w5, wo = w6, w6[5 * H:]"]

TRITON += [
    A("the best parts together", 9, "attempt 9 (10.32x, 1653 us) has the best first kernel for dim 128, attempt 14 the best for dim 384 (2941 us) although its descriptors cost 16 us at N = 256, dim 128, attempt 10 the best end (60 to 80 us less at N = 1024); take each where it wins",
      tma(mod(NORM, TMA_T, FUSED_T, FINAL_T, host(*BEST)))),
    A("sigmoid by tanh.approx", 15, "400 million sigmoids at N = 1024 cost two special-function operations each; sigmoid(x) = (tanh(x/2) + 1)/2 with the approximate instruction costs one, with an error far below half precision's",
      tma(mod(SIG_ASM, NORM, asm(TMA_T), asm(FUSED_T), FINAL_T, host(*BEST)))),
    A("128 pairs and eight warps for dim 128", 15, "attempt 9 multiplies 64 channels by 64 pairs and reads 160 KB of weights from L2 for 32 KB of x; 128 pairs and two warp groups halve that; attempt 11 lost with more accumulators per thread, here their number stays",
      tma(mod(NORM, TMA_T, FUSED_T, FINAL_T, host(*BEST))).replace("fused_kernel[(NN // 64, B)]", "fused_kernel[(NN // 128, B)]").replace("HB=64, BM=64, num_warps=4)\n    else", "HB=64, BM=128, num_warps=8)\n    else")),
    A("transposed products with resident weights", 15, "attempt 1 kept all weights in shared memory and gained 3 % over attempt 0; the same for the transposed products, one program per processor, eight warps, 64 pairs at a time",
      tma(mod(NORM, TMA_T, FUSED_WALK, FINAL_T, host(AB, G_CH, BY_DIM % (P_WALK, Z_IN + P_TMA()), MM, OUT, FIN_T())))),
    A("contraction with tensor memory descriptors", 15, "attempt 5 lost 130 us to cuBLAS with pointer loads; the same 128 x 256 tiles with TMA loads and store; is cuBLAS still ahead?",
      tma(mod(NORM, TMA_T, FUSED_T, TMA_MM, FINAL_T, host(AB, G_CH, BY_DIM % (P_FUSED, Z_IN + P_TMA()), "t = torch.empty_like(a)", "bm, bn, bk = min(N, 128), min(N, 256), min(N, 64)",
          "rows = lambda t, br, bc: TensorDescriptor(t, [B * H * N, N], [N, 1], [br, bc])",
          "tma_contract_kernel[((N // bm) * (N // bn), B * H)](rows(a, bm, bk), rows(b, bn, bk), rows(t, bm, bn), N, BM=bm, BN=bn, BK=bk, num_warps=8, num_stages=3)", OUT, FIN_T())))),
    A("walking last kernel for dim 128 only", 16, "attempt 12 gained 87 us over attempt 8 for dim 128 and lost for 384, where t was read three times; use it for 128 beside the cheap sigmoid, and one launch for all weight conversions, worth 15 us in attempt 13 at best",
      tma(mod(SIG_ASM, PREP, NORM, asm(TMA_T), asm(FUSED_T), FINAL_LOOP, FINAL_T, host(*PREP_HOST, AB, G_CH, BY_DIM % (P_FUSED, Z_IN + P_TMA()), MM, OUT.split("\n")[0], FINAL_MIX, FIN_T()).replace("    " + W5 + "\n", "")))),
    A("small last tiles with two warps", 16, "64-pair tiles with statistics along the first axis won; 32 pairs and two warps keep more programs in flight on a kernel that only waits for memory",
      tma(mod(SIG_ASM, NORM, asm(TMA_T), asm(FUSED_T), FINAL_T, host(AB, G_CH, BY_DIM % (P_FUSED, Z_IN + P_TMA()), MM, OUT, FIN_T(32, 128, 2))))),
]
SERIES = {"triton": TRITON, "cuda": CUDA}
