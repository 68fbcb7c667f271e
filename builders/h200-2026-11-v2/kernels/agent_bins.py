"""Attempts written for thinly filled bins: between 1.41x and 2x of the reference, by partial fusion."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import heads


def A(task, title, parent, note, code):
    return dict(title=title, parent=parent, note=note, code=heads.HEAD[task] + code)


def H(title, parent, note, code):
    return A("gdn_chunk_fwd_h", title, parent, note, code)


def X(title, parent, note, code):
    return A("cross_entropy", title, parent, note, code)


_OPEN = '''import torch


def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
'''

CHUNK_H = [
    H("chunk-major copies, gates in the loop", None, "the reference slices strided views sixteen times; copy once, then two fused multiply-adds per chunk with the gates left where they are", _OPEN + '''    G = B * H
    kc = k.view(B, N, 64, H, K).permute(1, 0, 3, 4, 2).reshape(N, G, K, 64).unbind(0)
    wc = w.view(B, N, 64, H, K).permute(1, 0, 3, 2, 4).reshape(N, G, 64, K).unbind(0)
    uc = u.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).reshape(N, G, 64, V).unbind(0)
    gc = g.view(B, N, 64, H).permute(1, 0, 3, 2).reshape(N, G, 64, 1).unbind(0)
    states = torch.empty(N, G, K, V, device=k.device)
    fixed = torch.empty(N, G, 64, V, device=k.device)
    s = torch.zeros(G, K, V, device=k.device)
    for n in range(N):
        states[n].copy_(s)
        vn = torch.baddbmm(uc[n], wc[n], s, alpha=-1)
        fixed[n].copy_(vn)
        last = gc[n][:, -1:]
        s = torch.baddbmm(s * torch.exp(last), kc[n], vn * torch.exp(last - gc[n]))
    h = states.view(N, B, H, K, V).transpose(0, 1).contiguous()
    v = fixed.view(N, B, H, 64, V).permute(1, 0, 3, 2, 4).reshape(B, T, H, V)
    return h, v
'''),
    H("the same without copies of the outputs", 0, "write states and values straight into the results through views: two copies less per chunk, strided stores instead", _OPEN + '''    kc = k.view(B, N, 64, H, K).permute(1, 0, 3, 4, 2).unbind(0)
    wc = w.view(B, N, 64, H, K).permute(1, 0, 3, 2, 4).unbind(0)
    uc = u.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).unbind(0)
    gc = g.view(B, N, 64, H).permute(1, 0, 3, 2).unsqueeze(-1).unbind(0)
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty(B, T, H, V, device=k.device)
    slots = states.unbind(1)
    places = fixed.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).unbind(0)
    s = torch.zeros(B, H, K, V, device=k.device)
    for n in range(N):
        slots[n].copy_(s)
        torch.sub(uc[n], torch.matmul(wc[n], s), out=places[n])
        last = gc[n][:, :, -1:]
        s = s * torch.exp(last) + torch.matmul(kc[n], places[n] * torch.exp(last - gc[n]))
    return states, fixed
'''),
    H("batch entries one after another", 1, "gates ahead of the loop save four launches per chunk; the products run per batch entry, so that each is a plain batched product over heads", _OPEN + '''    last = g.view(B, N, 64, H)[:, :, -1:]
    kg = k.view(B, N, 64, H, K) * torch.exp(last - g.view(B, N, 64, H)).unsqueeze(-1)
    carry = torch.exp(last).permute(0, 1, 3, 2).unsqueeze(-1)
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty(B, T, H, V, device=k.device)
    for b in range(B):
        kt = kg[b].permute(0, 2, 3, 1).unbind(0)
        wb = w[b].view(N, 64, H, K).transpose(1, 2).unbind(0)
        ub = u[b].view(N, 64, H, V).transpose(1, 2).unbind(0)
        out = fixed[b].view(N, 64, H, V).transpose(1, 2).unbind(0)
        s = torch.zeros(H, K, V, device=k.device)
        for n in range(N):
            states[b, n] = s
            vn = torch.baddbmm(ub[n], wb[n], s, alpha=-1)
            out[n].copy_(vn)
            s = torch.baddbmm(s * carry[b, n], kt[n], vn)
    return states, fixed
'''),
    H("gated keys, einsum for both products", 1, "what the notation costs: contraction strings are parsed for every chunk", _OPEN + '''    gc = g.view(B, N, 64, H)
    last = gc[:, :, -1:]
    kg = k.view(B, N, 64, H, K) * torch.exp(last - gc).unsqueeze(-1)
    carry = torch.exp(last[:, :, 0])[..., None, None]
    wc, uc = w.view(B, N, 64, H, K), u.view(B, N, 64, H, V)
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty(B, N, 64, H, V, device=k.device)
    s = torch.zeros(B, H, K, V, device=k.device)
    for n in range(N):
        states[:, n] = s
        vn = uc[:, n] - torch.einsum("bthk,bhkv->bthv", wc[:, n], s)
        fixed[:, n] = vn
        s = s * carry[:, n] + torch.einsum("bthk,bthv->bhkv", kg[:, n], vn)
    return states, fixed.view(B, T, H, V)
'''),
    H("values by Triton, update by torch", 2, "one program per head and chunk makes the corrected values and their gated copy; the state's product stays with the library", '''import torch
import triton
import triton.language as tl


@triton.jit
def values_kernel(w_ptr, u_ptr, g_ptr, s_ptr, f_ptr, x_ptr, n, T, H, K: tl.constexpr, V: tl.constexpr):
    b = tl.program_id(0) // H
    h = tl.program_id(0) % H
    i = tl.arange(0, 64)
    kk = tl.arange(0, K)
    vv = tl.arange(0, V)
    row = (b * T + n * 64 + i) * H + h
    s = tl.load(s_ptr + (tl.program_id(0) * K + kk[:, None]) * V + vv[None, :])
    w = tl.load(w_ptr + row[:, None] * K + kk[None, :])
    vn = tl.load(u_ptr + row[:, None] * V + vv[None, :]) - tl.dot(w, s, input_precision="ieee")
    tl.store(f_ptr + row[:, None] * V + vv[None, :], vn)
    last = tl.load(g_ptr + (b * T + n * 64 + 63) * H + h)
    gate = tl.exp(last - tl.load(g_ptr + row))
    tl.store(x_ptr + (tl.program_id(0) * 64 + i[:, None]) * V + vv[None, :], vn * gate[:, None])


def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty_like(u)
    gated = torch.empty(B, H, 64, V, device=k.device)
    s = torch.zeros(B, H, K, V, device=k.device)
    for n in range(N):
        states[:, n] = s
        values_kernel[(B * H,)](w, u, g, s, fixed, gated, n, T, H, K=K, V=V)
        keys = k[:, n * 64 : n * 64 + 64].permute(0, 2, 3, 1)
        s = s * torch.exp(g[:, n * 64 + 63])[..., None, None] + torch.matmul(keys, gated)
    return states, fixed
'''),
    H("state in float64", 1, "does a longer accumulator cost much when launches decide? Products stay in float32, the running state does not", _OPEN + '''    kc = k.view(B, N, 64, H, K).permute(1, 0, 3, 4, 2).unbind(0)
    wc = w.view(B, N, 64, H, K).permute(1, 0, 3, 2, 4).unbind(0)
    uc = u.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).unbind(0)
    gl = g.view(B, N, 64, H).permute(1, 0, 3, 2).unsqueeze(-1)
    carry = torch.exp(gl[:, :, :, -1:].double()).unbind(0)
    gate = torch.exp(gl[:, :, :, -1:] - gl).unbind(0)
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty(B, T, H, V, device=k.device)
    slots = states.unbind(1)
    places = fixed.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).unbind(0)
    s = torch.zeros(B, H, K, V, device=k.device, dtype=torch.float64)
    for n in range(N):
        slots[n].copy_(s)
        torch.sub(uc[n], torch.matmul(wc[n], slots[n]), out=places[n])
        s.mul_(carry[n]).add_(torch.matmul(kc[n], places[n] * gate[n]))
    return states, fixed
'''),
    H("one augmented product per chunk", 1, "stack the decayed state under the gated values and the keys beside an identity: state and outer product come out of one product", _OPEN + '''    G = B * H
    gc = g.view(B, N, 64, H).permute(1, 0, 3, 2).reshape(N, G, 64, 1)
    last = gc[:, :, -1:]
    left = torch.empty(N, G, K, 64 + K, device=k.device)
    left[..., :64] = (k.view(B, N, 64, H, K).permute(1, 0, 3, 2, 4).reshape(N, G, 64, K) * torch.exp(last - gc)).transpose(-1, -2)
    left[..., 64:] = torch.eye(K, device=k.device) * torch.exp(last)
    wc = w.view(B, N, 64, H, K).permute(1, 0, 3, 2, 4).reshape(N, G, 64, K)
    uc = u.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).reshape(N, G, 64, V)
    right = torch.zeros(G, 64 + K, V, device=k.device)
    states = torch.empty(N, G, K, V, device=k.device)
    fixed = torch.empty(N, G, 64, V, device=k.device)
    for n in range(N):
        states[n] = right[:, 64:]
        right[:, :64] = uc[n] - wc[n] @ right[:, 64:]
        fixed[n] = right[:, :64]
        right[:, 64:] = left[n] @ right
    h = states.view(N, B, H, K, V).transpose(0, 1).contiguous()
    v = fixed.view(N, B, H, 64, V).permute(1, 0, 3, 2, 4).reshape(B, T, H, V)
    return h, v
'''),
    H("Triton update, torch values", 4, "the other way round: the library makes the values, one program per head decays the state and adds the gated outer product in place", '''import torch
import triton
import triton.language as tl


@triton.jit
def update_kernel(k_ptr, g_ptr, s_ptr, f_ptr, n, T, H, K: tl.constexpr, V: tl.constexpr):
    b = tl.program_id(0) // H
    h = tl.program_id(0) % H
    i = tl.arange(0, 64)
    kk = tl.arange(0, K)
    vv = tl.arange(0, V)
    row = (b * T + n * 64 + i) * H + h
    last = tl.load(g_ptr + (b * T + n * 64 + 63) * H + h)
    x = tl.load(f_ptr + row[:, None] * V + vv[None, :]) * tl.exp(last - tl.load(g_ptr + row))[:, None]
    kt = tl.load(k_ptr + row[None, :] * K + kk[:, None])
    at = s_ptr + (tl.program_id(0) * K + kk[:, None]) * V + vv[None, :]
    tl.store(at, tl.load(at) * tl.exp(last) + tl.dot(kt, x, input_precision="ieee"))


def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty_like(u)
    s = torch.zeros(B, H, K, V, device=k.device)
    for n in range(N):
        part = slice(n * 64, n * 64 + 64)
        states[:, n] = s
        fixed[:, part] = u[:, part] - (w[:, part].transpose(1, 2) @ s).transpose(1, 2)
        update_kernel[(B * H,)](k, g, s, fixed, n, T, H, K=K, V=V)
    return states, fixed
'''),
    H("values by Triton, which also stores the state", 4, "values by Triton reached 1.45x; the strided copy of the state into its slot is one launch that the same program can make", '''import torch
import triton
import triton.language as tl


@triton.jit
def values_kernel(w_ptr, u_ptr, g_ptr, s_ptr, h_ptr, f_ptr, x_ptr, n, T, H, NT, K: tl.constexpr, V: tl.constexpr):
    b = tl.program_id(0) // H
    h = tl.program_id(0) % H
    i = tl.arange(0, 64)
    kk = tl.arange(0, K)
    vv = tl.arange(0, V)
    row = (b * T + n * 64 + i) * H + h
    s = tl.load(s_ptr + (tl.program_id(0) * K + kk[:, None]) * V + vv[None, :])
    tl.store(h_ptr + (((b * NT + n) * H + h) * K + kk[:, None]) * V + vv[None, :], s)
    w = tl.load(w_ptr + row[:, None] * K + kk[None, :])
    vn = tl.load(u_ptr + row[:, None] * V + vv[None, :]) - tl.dot(w, s, input_precision="ieee")
    tl.store(f_ptr + row[:, None] * V + vv[None, :], vn)
    last = tl.load(g_ptr + (b * T + n * 64 + 63) * H + h)
    gate = tl.exp(last - tl.load(g_ptr + row))
    tl.store(x_ptr + (tl.program_id(0) * 64 + i[:, None]) * V + vv[None, :], vn * gate[:, None])


def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty_like(u)
    gated = torch.empty(B, H, 64, V, device=k.device)
    s = torch.zeros(B, H, K, V, device=k.device)
    for n in range(N):
        values_kernel[(B * H,)](w, u, g, s, states, fixed, gated, n, T, H, N, K=K, V=V)
        keys = k[:, n * 64 : n * 64 + 64].permute(0, 2, 3, 1)
        s = s * torch.exp(g[:, n * 64 + 63])[..., None, None] + torch.matmul(keys, gated)
    return states, fixed
'''),
    H("values by Triton, decay and views ahead of the loop", 4, "the other way to save launches at 1.45x: exponentials of the chunk ends and all slices once, before the loop", '''import torch
import triton
import triton.language as tl


@triton.jit
def values_kernel(w_ptr, u_ptr, g_ptr, s_ptr, f_ptr, x_ptr, n, T, H, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    b = tl.program_id(0) // H
    h = tl.program_id(0) % H
    i = tl.arange(0, 64)
    kk = tl.arange(0, K)
    vv = tl.program_id(1) * BV + tl.arange(0, BV)
    row = (b * T + n * 64 + i) * H + h
    s = tl.load(s_ptr + (tl.program_id(0) * K + kk[:, None]) * V + vv[None, :])
    w = tl.load(w_ptr + row[:, None] * K + kk[None, :])
    vn = tl.load(u_ptr + row[:, None] * V + vv[None, :]) - tl.dot(w, s, input_precision="ieee")
    tl.store(f_ptr + row[:, None] * V + vv[None, :], vn)
    last = tl.load(g_ptr + (b * T + n * 64 + 63) * H + h)
    gate = tl.exp(last - tl.load(g_ptr + row))
    tl.store(x_ptr + (tl.program_id(0) * 64 + i[:, None]) * V + vv[None, :], vn * gate[:, None])


def custom_kernel(data):
    k, w, u, g = data
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    states = torch.empty(B, N, H, K, V, device=k.device)
    fixed = torch.empty_like(u)
    gated = torch.empty(B, H, 64, V, device=k.device)
    slots = states.unbind(1)
    keys = k.view(B, N, 64, H, K).permute(1, 0, 3, 4, 2).unbind(0)
    carry = torch.exp(g.view(B, N, 64, H)[:, :, -1])[..., None, None].unbind(1)
    s = torch.zeros(B, H, K, V, device=k.device)
    for n in range(N):
        slots[n].copy_(s)
        values_kernel[(B * H, V // 16)](w, u, g, s, fixed, gated, n, T, H, K=K, V=V, BV=16)
        s = s * carry[n] + torch.matmul(keys[n], gated)
    return states, fixed
'''),
    H("chunk-major copies, gates ahead", 0, "copies and fused multiply-adds alone reached 1.26x; the three gate launches per chunk can be made for all chunks at once", _OPEN + '''    G = B * H
    gc = g.view(B, N, 64, H).permute(1, 0, 3, 2).reshape(N, G, 1, 64)
    last = gc[..., -1:]
    kc = (k.view(B, N, 64, H, K).permute(1, 0, 3, 4, 2).reshape(N, G, K, 64) * torch.exp(last - gc)).unbind(0)
    wc = w.view(B, N, 64, H, K).permute(1, 0, 3, 2, 4).reshape(N, G, 64, K).unbind(0)
    uc = u.view(B, N, 64, H, V).permute(1, 0, 3, 2, 4).reshape(N, G, 64, V).unbind(0)
    carry = torch.exp(last).unbind(0)
    states = torch.empty(N, G, K, V, device=k.device)
    fixed = torch.empty(N, G, 64, V, device=k.device)
    s = torch.zeros(G, K, V, device=k.device)
    for n in range(N):
        states[n].copy_(s)
        vn = torch.baddbmm(uc[n], wc[n], s, alpha=-1)
        fixed[n].copy_(vn)
        s = torch.baddbmm(s * carry[n], kc[n], vn)
    h = states.view(N, B, H, K, V).transpose(0, 1).contiguous()
    v = fixed.view(N, B, H, 64, V).permute(1, 0, 3, 2, 4).reshape(B, T, H, V)
    return h, v
'''),
]

_TRITON = '''import torch
import triton
import triton.language as tl


'''

CROSS = [
    X("log-sum-exp by torch, gradient by Triton", None, "the library's log-sum-exp reads the row three times in float32; only the gradient is fused", _TRITON + '''@triton.jit
def gradient(x_ptr, t_ptr, go_ptr, z_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + o, mask=o < cols, other=0.0).to(tl.float32)
    p = tl.exp(x - tl.load(z_ptr + row))
    g = tl.where(o == tl.load(t_ptr + row), p - 1.0, p) * tl.load(go_ptr + row)
    tl.store(out_ptr + row * cols + o, g.to(tl.bfloat16), mask=o < cols)


def custom_kernel(data):
    logits, targets, grad_output = data
    rows, cols = logits.shape
    z = torch.logsumexp(logits.float(), dim=1)
    losses = z - logits.gather(1, targets[:, None])[:, 0].float()
    grad = torch.empty_like(logits)
    gradient[(rows, triton.cdiv(cols, 4096))](logits, targets, grad_output, z, grad, cols, BLOCK=4096, num_warps=8)
    return losses, grad
'''),
    X("five float32 passes in Triton", None, "a kernel per step of the formula, every intermediate in memory", _TRITON + '''@triton.jit
def row_max(x_ptr, m_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for c in range(0, cols, BLOCK):
        o = c + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(x_ptr + row * cols + o, mask=o < cols, other=float("-inf")).to(tl.float32))
    tl.store(m_ptr + row, tl.max(top, 0))


@triton.jit
def exponentials(x_ptr, m_ptr, e_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + o, mask=o < cols, other=0.0).to(tl.float32)
    tl.store(e_ptr + row * cols + o, tl.exp(x - tl.load(m_ptr + row)), mask=o < cols)


@triton.jit
def row_sum(e_ptr, z_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for c in range(0, cols, BLOCK):
        o = c + tl.arange(0, BLOCK)
        acc += tl.load(e_ptr + row * cols + o, mask=o < cols, other=0.0)
    tl.store(z_ptr + row, tl.sum(acc, 0))


@triton.jit
def finish(e_ptr, x_ptr, m_ptr, z_ptr, t_ptr, go_ptr, loss_ptr, grad_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(t_ptr + row)
    z = tl.load(z_ptr + row)
    if tl.program_id(1) == 0:
        tl.store(loss_ptr + row, tl.log(z) + tl.load(m_ptr + row) - tl.load(x_ptr + row * cols + target).to(tl.float32))
    p = tl.load(e_ptr + row * cols + o, mask=o < cols, other=0.0) / z
    tl.store(e_ptr + row * cols + o, tl.where(o == target, p - 1.0, p) * tl.load(go_ptr + row), mask=o < cols)


def custom_kernel(data):
    logits, targets, grad_output = data
    rows, cols = logits.shape
    e = torch.empty((rows, cols), dtype=torch.float32, device=logits.device)
    m, z, losses = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
    tiles = (rows, triton.cdiv(cols, 2048))
    row_max[(rows,)](logits, m, cols, BLOCK=2048)
    exponentials[tiles](logits, m, e, cols, BLOCK=2048)
    row_sum[(rows,)](e, z, cols, BLOCK=2048)
    finish[tiles](e, logits, m, z, targets, grad_output, losses, e, cols, BLOCK=2048)
    return losses, e.to(torch.bfloat16)
'''),
    X("softmax into float32, everything else in place", 0, "one library softmax with the cast fused, then two in-place passes and one cast", '''import torch


def custom_kernel(data):
    logits, targets, grad_output = data
    p = torch.softmax(logits, dim=1, dtype=torch.float32)
    at = targets[:, None]
    chosen = p.gather(1, at)
    losses = -torch.log(chosen[:, 0])
    p.scatter_(1, at, chosen - 1.0)
    p.mul_(grad_output[:, None])
    return losses, p.to(torch.bfloat16)
'''),
    X("log-softmax in slices of 256 rows", 2, "a slice in float32 stays in the cache from pass to pass; more launches, fewer bytes from memory", '''import torch


def custom_kernel(data):
    logits, targets, grad_output = data
    rows = logits.shape[0]
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for r in range(0, rows, 256):
        part = slice(r, r + 256)
        lp = torch.log_softmax(logits[part], dim=1, dtype=torch.float32)
        at = targets[part, None]
        chosen = lp.gather(1, at)
        losses[part] = -chosen[:, 0]
        p = lp.exp_()
        p.scatter_(1, at, chosen.exp() - 1.0)
        torch.mul(p, grad_output[part, None], out=p)
        grad[part] = p
    return losses, grad
'''),
]

SERIES = {"gdn_chunk_fwd_h": CHUNK_H, "cross_entropy": CROSS}
