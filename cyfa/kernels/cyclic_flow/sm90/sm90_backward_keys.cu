// The key pass of the Hopper backward, one tile of one head at a time, including the norms of q and k. In the notation of
// sm90_backward_pass.cuh, with rows s, columns t >= s and D_st the decay from s to t:
//   ok = f (D * (phi dY~^T)) q + f b (phi dS_K')           dk = w ok - k <K, dK> rk^2 / d_k
//   oq = (f D * (phi dY~^T))^T k + a (dY~ S_K)             dq = w oq - q <Q, dQ> / rms(q)^2 / d_k
// (states as stored, slots x columns). Also the pass's per-token scalars, and the sums of q oq for the gradients of the norm weights. These
// serve both weights: summed over a sequence, k ok and q oq are equal, since only the product of the weights matters.
//
// S_K is loaded into the buffers of the first two panels of dS_K' and of dY~. The gradients of pairs are transposed through the last two
// buffers of dS_K'. For narrower heads the buffers of dS_K' suffice.
//
// Launched after the value pass with programmatic dependent launch. Overwrites d_k, which held U and dY~, and d_q, which held dS_K' (a
// tile's data is all in shared memory before its first gradient is stored), d_weights, and the key pass's scalars of the workspace.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_pairs.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

constexpr int kTranspose = kS + 2;  // and the next buffer
// The warps' column sums, in the half panel that the transposition leaves free.
constexpr int kColumns = kTranspose * kPanelBytes + 64 * kRowBytes;

// Buffer of panel i of S_K. Each of these buffers is filled twice per tile.
__device__ __forceinline__ int state_place(int panel) { return panel < 2 ? kS + panel : kZ + panel - 2; }

// Issues copies in the order in which buffers become free.
template <int kPanels>
__device__ __forceinline__ void feed_copies(const PassParams& params, PassShared& s) {
  const Sm90BackwardParams& p = params.p;
  const Share share(p);
  const int column = share.h * kPanels * kPanelColumns;
  int parity = 1;
#pragma unroll 1
  for (int t = share.first; t < p.in.tiles; t += share.step, parity ^= 1) {
    const int token = static_cast<int>(p.in.tile[t].token);
#pragma unroll 1
    for (int i = 0; i < kPanels; ++i) {
      feed_panel(s, kX + i, parity, &params.x, column + i * kPanelColumns, token);
      feed_panel(s, kY + i, parity, &params.y, column + i * kPanelColumns, token);
      feed_d_state<kPanels>(params, s, t, share.h, kKeys, i, i < 2 ? 1 : parity);
    }
#pragma unroll 1
    for (int i = 0; i < kM / kPanelColumns; ++i) {
      feed_panel(s, kZ + i, kPanels == 4 ? 1 : parity, &params.z, share.h * 2 * kM + i * kPanelColumns, token);
    }
#pragma unroll 1
    for (int i = 0; i < kPanels; ++i) {
      const int panel = kPanels == 4 ? (i + 2) % kPanels : i;
      feed_panel(s, state_place(panel), 0, &params.states, panel * kPanelColumns, state_row(p.in, t, share.h, kKeys));
    }
  }
}

__device__ __forceinline__ void feed(const PassParams& params, PassShared& s) {
  const Sm90BackwardParams& p = params.p;
  const Share share(p);
  int parity = 1;
#pragma unroll 1
  for (int t = share.first; t < p.in.tiles; t += share.step, parity ^= 1) {
    feed_tokens(params.w, s, share.h * p.in.T + p.in.tile[t].token, p.in.tile[t].tokens, parity);
  }
}

// dx = w o - c x for 64 columns of both rows, in bf16 and A operand order.
__device__ __forceinline__ void adjoint_of_norm(const float (&o)[32], const uint32_t (&x)[4][4], const float* weight, float c0, float c8,
                                                uint32_t (&out)[4][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 x0 = unpack(x[i / 2][i % 2 * 2]);
    const float2 x8 = unpack(x[i / 2][i % 2 * 2 + 1]);
    const float2 g = *reinterpret_cast<const float2*>(weight + 8 * i + 2 * (threadIdx.x % 4));
    const float* d = o + 4 * i;
    out[i / 2][i % 2 * 2] = pack(fmaf(g.x, d[0], -c0 * x0.x), fmaf(g.y, d[1], -c0 * x0.y));
    out[i / 2][i % 2 * 2 + 1] = pack(fmaf(g.x, d[2], -c8 * x8.x), fmaf(g.y, d[3], -c8 * x8.y));
  }
}

// o = a state + pairs for 64 columns, and the sums of w x state of both rows.
__device__ __forceinline__ void add_states(const float (&state)[32], const float (&pairs)[32], const uint32_t (&x)[4][4],
                                           const float* weight, float a0, float a8, float (&o)[32], float& read0, float& read8) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 x0 = unpack(x[i / 2][i % 2 * 2]);
    const float2 x8 = unpack(x[i / 2][i % 2 * 2 + 1]);
    const float2 g = *reinterpret_cast<const float2*>(weight + 8 * i + 2 * (threadIdx.x % 4));
    const float* d = state + 4 * i;
    read0 = fmaf(g.x * x0.x, d[0], fmaf(g.y * x0.y, d[1], read0));
    read8 = fmaf(g.x * x8.x, d[2], fmaf(g.y * x8.y, d[3], read8));
#pragma unroll
    for (int c = 0; c < 4; ++c) o[4 * i + c] = fmaf(c < 2 ? a0 : a8, d[c], pairs[4 * i + c]);
  }
}

// Sums x o over the warp's rows for 64 columns, and adds the sum of the block's earlier tiles.
__device__ __forceinline__ void add_products(const float (&o)[32], const uint32_t (&x)[4][4], const float (&before)[2], float* partial) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float column[8];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = 4 * half + b;
      const float2 x0 = unpack(x[i / 2][i % 2 * 2]);
      const float2 x8 = unpack(x[i / 2][i % 2 * 2 + 1]);
      column[2 * b] = fmaf(x0.x, o[4 * i], x8.x * o[4 * i + 2]);
      column[2 * b + 1] = fmaf(x0.y, o[4 * i + 1], x8.y * o[4 * i + 3]);
    }
    partial[32 * half + column_of_lane()] = before[half] + sum_lanes(column);
  }
}

// Stores bf16 rows from registers, half a 16-byte piece per lane: one sector of each row at a time.
__device__ __forceinline__ void store_packed(const uint32_t (&a)[4][4], bf16* to0, bf16* to8, bool valid0, bool valid8) {
  const int q = threadIdx.x % 4;
  const bool odd = (q & 1) != 0;
  const int at = 8 * (q & 1) + 4 * (q / 2);
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t left = a[kk][r];  // first 8 columns of 16
      const uint32_t right = a[kk][2 + r];
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, odd ? left : right, 1);
      const uint2 x = odd ? make_uint2(other, right) : make_uint2(left, other);
      if (r == 0 ? valid0 : valid8) *reinterpret_cast<uint2*>((r == 0 ? to0 : to8) + 16 * kk + at) = x;
    }
  }
}

// Transposes the decayed gradients of pairs, [s, t] in the warps' registers, into A operands [t, s] for the strip's t. `first` has the
// tokens s of the first half tile; `second` those of the second, which only tokens t of the second half see.
template <bool kFirst, int kPanels>
__device__ __forceinline__ void transpose_pairs(const HalfTile<kKeys, kFirst, kPanels>& tile, const Pairs& found, uint32_t (&first)[4][4],
                                                uint32_t (&second)[4][4]) {
  const int lane = threadIdx.x % 32;
  const uint32_t panel = tile.panel_at(kTranspose + tile.half);
  put_strip(found.own, panel, tile.strip);
  if (tile.half == 0) put_strip(found.other, panel + kPanelBytes, tile.strip);
  named_barrier(1, 256);
  const int row = lane / 16 * 8 + lane % 8;
  const uint32_t from = panel + row * kRowBytes + (((2 * (tile.strip % 4) + lane / 8 % 2) ^ (lane & 7)) << 4);
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
    load_blocks_transposed(first[kk], from + 16 * kk * kRowBytes);
    if (tile.half == 1) load_blocks_transposed(second[kk], from + (64 + 16 * kk) * kRowBytes);
  }
}

// dk of a half tile, 64 columns at a time.
template <bool kFirst, int kPanels>
__device__ __forceinline__ void keys_of_half(const HalfTile<kKeys, kFirst, kPanels>& tile, const Pairs& found) {
  const Sm90BackwardParams& p = tile.params.p;
  const bool norm = p.in.k_norm_weight != nullptr;
  const float c0 = norm ? found.coefficient0 / tile.kWidth : 0.0F;
  const float c8 = norm ? found.coefficient8 / tile.kWidth : 0.0F;
#pragma unroll 1
  for (int panel = 0; panel < kPanels; ++panel) {
    float d[32];
    uint32_t x[4][4], out[4][4];
    tile.multiply(d, found, panel);
    load_strip(x, tile.panel_at(kX + panel), tile.strip);
    wgmma_wait<0>();
    if (panel < 2) tile.release(kS + panel);
    adjoint_of_norm(d, x, tile.s.weight + panel * kPanelColumns, c0, c8, out);
    const int64_t stride = static_cast<int64_t>(p.in.H) * tile.kWidth;
    bf16* to = static_cast<bf16*>(p.d_k) + tile.first_row() + (tile.row & 15) * stride + panel * kPanelColumns;
    store_packed(out, to, to + 8 * stride, tile.valid0(), tile.valid8());
    if (panel == 0) {  // the loads of dY~ are complete: they were issued before those of x, which have been used
      tile.release(kZ);
      tile.release(kZ + 1);
    }
  }
}

// dq of a half tile, and the column sums, which needed a free buffer. `token` and `tokens` become those of the next tile.
template <bool kFirst, int kPanels>
__device__ __forceinline__ void queries_of_half(const HalfTile<kKeys, kFirst, kPanels>& tile, const Pairs& found,
                                                const uint32_t (&d_scores)[2][4][4], const float (&column)[4], int& token, int& tokens) {
  const Sm90BackwardParams& p = tile.params.p;
  const Workspace& w = tile.params.w;
  PassShared& s = tile.s;
  const int strip = tile.strip;
  const bool norm = p.in.q_norm_weight != nullptr;
  const int64_t scalars = tile.scalars();
  const float rate0 = norm && tile.valid0() ? w.rate[1][scalars] : 0.0F;
  const float rate8 = norm && tile.valid8() ? w.rate[1][scalars + 8] : 0.0F;
  const float along0 = tile.valid0() ? w.along[scalars] : 0.0F;
  const float along8 = tile.valid8() ? w.along[scalars + 8] : 0.0F;
  float a0 = tile.valid0() ? w.gate[scalars].x : 0.0F;
  float a8 = tile.valid8() ? w.gate[scalars + 8].x : 0.0F;
  const auto partials_of = [&](int panel) {
    return w.d_weights + (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32 - 4) * tile.kWidth +
           panel % kPanels * kPanelColumns + column_of_lane();
  };
  const bool none = tile.n() == 0;
  float before[2] = {none ? 0.0F : partials_of(0)[0], none ? 0.0F : partials_of(0)[32]};

  uint32_t first[4][4], second[4][4] = {};
  named_barrier(1, 256);  // dS_K' is no longer needed
  float* columns = reinterpret_cast<float*>(s.ring + kColumns);
#pragma unroll
  for (int i = 0; i < 4; ++i) columns[strip * kC + 32 * i + column_of_lane()] = column[i];
  transpose_pairs(tile, found, first, second);
  if (threadIdx.x < 256) {
    const int t = static_cast<int>(threadIdx.x) - 128;
    if (t < tile.tokens()) w.later[kKeys][scalars - tile.row + t] = sum_columns(columns, kC, t);
  }
  fence_async_proxy();
  Share(p).tile(p, tile.n() + 1, token, tokens);  // load now, use in the next tile
  a0 = power_of_2(a0);
  a8 = power_of_2(a8);
  const float c0 = along0 * rate0 * rate0 / tile.kWidth;
  const float c8 = along8 * rate8 * rate8 / tile.kWidth;
  float read0 = 0.0F, read8 = 0.0F;
  settle(first);
  settle(second);
#pragma unroll 1
  for (int panel = 0; panel < kPanels; ++panel) {
    float state[32], pairs[32];
    tile.wait_second(state_place(panel));
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) {
      wgmma<1>(state, d_scores[kk / 4][kk % 4], rows_of(tile.operand_at(state_place(panel)), 0, 16 * kk), kk > 0);
    }
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) wgmma<1>(pairs, first[kk], rows_of(tile.operand_at(kX + panel), 0, 16 * kk), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) wgmma<1>(pairs, second[kk], rows_of(tile.operand_at(kX + panel) + kHalfRows, 0, 16 * kk), 1);
    wgmma_commit();
    uint32_t x[4][4], out[4][4];
    load_strip(x, tile.panel_at(kY + panel), strip);
    const float next[2] = {none ? 0.0F : partials_of(panel + 1)[0], none ? 0.0F : partials_of(panel + 1)[32]};
    if (panel > 0) {
      copies_read();
      tile.release(kY + panel - 1);
    }
    wgmma_wait<0>();
    if (kPanels == 4 && panel == 0) {  // the wgmmas have consumed the transposed pairs
      tile.release(kTranspose);
      tile.release(kTranspose + 1);
    }
    tile.release(kX + panel);
    tile.release(state_place(panel));
    const float* weight = s.weight + panel * kPanelColumns;
    float o[32];
    add_states(state, pairs, x, weight, a0, a8, o, read0, read8);
    adjoint_of_norm(o, x, weight, c0, c8, out);
    // These rows of q are no longer needed.
    const int column = panel * kPanelColumns;
    put_strip(out, tile.panel_at(kY + panel), strip);
    store_strip(tile.panel_at(kY + panel), strip, &tile.params.out, tile.h() * tile.kWidth + column, tile.token() + 16 * strip,
                static_cast<bf16*>(p.d_q) + tile.first_row() + column, static_cast<int64_t>(p.in.H) * tile.kWidth,
                tile.tokens() - 16 * strip);
    add_products(o, x, before, partials_of(panel) - column_of_lane());
    before[0] = next[0];
    before[1] = next[1];
  }
  tile.put(w.read[kKeys], a0 * quad_sum(read0), a8 * quad_sum(read8));
  copies_read();
  fence_async_proxy();
  tile.release(kY + kPanels - 1);
}

template <bool kFirst, int kPanels>
__global__ void __launch_bounds__(kPassThreads, 1) cyclic_flow_backward_keys_sm90(const __grid_constant__ PassParams params) {
  extern __shared__ __align__(1024) char raw[];
  PassShared& s = *reinterpret_cast<PassShared*>(raw);
  if (threadIdx.x < kPanels * kPanelColumns) s.weight[threadIdx.x] = params.w.weight[threadIdx.x];
  if (threadIdx.x == 0) init_barriers(s, -1);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      feed_copies<kPanels>(params, s);
    } else if (threadIdx.x >= 32) {
      feed(params, s);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    int token, tokens;
    Share(params.p).tile(params.p, 0, token, tokens);
    int n = 0;
#pragma unroll 1
    while (tokens > 0) {
      const HalfTile<kKeys, kFirst, kPanels> tile(params, s, token, tokens, n,
                                                  __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128 - 1, 0));
      Pairs found;
      float column[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      tile.pairs(found, [&](int i, float sum) { column[i] = sum; });
      uint32_t d_scores[2][4][4];  // dY~ of this warp's rows
      load_strip(d_scores[0], tile.panel_at(kZ), tile.strip);
      load_strip(d_scores[1], tile.panel_at(kZ + 1), tile.strip);
      settle(d_scores[0]);
      settle(d_scores[1]);
      wait_for_earlier_launch();  // the value pass may still read d_k
      keys_of_half(tile, found);
      queries_of_half(tile, found, d_scores, column, token, tokens);
      n = tile.n() + 1;
    }
  }
}

}  // namespace

cudaError_t backward_keys(const Sm90BackwardParams& p, cudaStream_t stream) {
  if (p.in.section > 0) return launch_pass(&cyclic_flow_backward_keys_sm90<false, 4>, p, kKeys, stream);
  return with_panel_count(p.in.K / kPanelColumns, [&](auto panels) {
    return launch_pass(&cyclic_flow_backward_keys_sm90<true, decltype(panels)::value>, p, kKeys, stream);
  });
}

cudaError_t backward_passes(const Sm90BackwardParams& p, cudaStream_t stream) {
  const cudaError_t status = backward_values(p, stream);
  return status != cudaSuccess ? status : backward_keys(p, stream);
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
