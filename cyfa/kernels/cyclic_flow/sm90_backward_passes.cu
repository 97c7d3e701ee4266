// The two gated passes of cyclic_flow's backward on Hopper (docs/operator.md, "Chunks"), a tile of one head a block. Both have one form,
// with (x, y, z, dS') = (V, dO, U, dS_V') in the value pass and (K, Q, dY, dS_K') in the key pass:
//   dx = (D * (z W^T))^T y + b (W dS')          dW = (D * (y x^T))^T z + b (x dS'^T)
// and the key pass adds dQ = D * (dY W^T) K + a (dY S_K^T) and the gradients of both norms. Of dW only <phi, dW> and X(W, dW) are kept.
// For the gates: pairs of tokens summed both ways, shares of the states, and <S_K, dS_K'> of the tile.
// Overwrites d_k and d_q (which hold the normalised keys and queries until then), then d_v (which holds W and U), and the scalars of its
// pass. 227 KB of shared memory: x, y and dS' wide, z narrow; the key pass later puts S_K in dS's place and dP^T in y's.
#include "cyfa/kernels/cyclic_flow/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

struct PassShared {
  float2 gate[kC];
  float columns[4 * kC];
};

// Distances of the regions of y, dS' and z from that of x.
constexpr int kY = kWide, kS = 2 * kWide, kZ = 3 * kWide;
constexpr int kPassBytes = 3 * kWide + kNarrow + static_cast<int>(sizeof(PassShared));

// Sums eight values over the eight lanes of equal lane % 4; returns to each the sum of value lane / 4.
__device__ __forceinline__ float sum_lanes(const float (&x)[8]) {
  const int lane = threadIdx.x % 32;
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = ((lane & 16) ? x[i + 4] : x[i]) + __shfl_xor_sync(0xFFFFFFFF, (lane & 16) ? x[i] : x[i + 4], 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) y[i] = ((lane & 8) ? y[i + 2] : y[i]) + __shfl_xor_sync(0xFFFFFFFF, (lane & 8) ? y[i] : y[i + 2], 8);
  return ((lane & 4) ? y[1] : y[0]) + __shfl_xor_sync(0xFFFFFFFF, (lane & 4) ? y[0] : y[1], 4);
}

// Of big * small * decay between the tokens s (rows) and t (columns): sums over t > s of this thread's two rows, sums over their warp's
// rows of column 32 i + 8 (lane / 8) + 2 q + lane / 4 % 2, and the terms t = s.
struct PairSums {
  float row0 = 0.0F, row8 = 0.0F, same0 = 0.0F, same8 = 0.0F;
  float column[4];
};

// `big` and `small`, 64 tokens s by the 64 tokens t of one half of the tile, times the decay from s to t >= s and packed as the next
// products' a; and their sums.
template <int kTokens>
__device__ __forceinline__ void decay_pairs(const float (&big)[32], const float (&small)[32], int row, const float2* gate,
                                            uint32_t (&a_big)[8][4], uint32_t (&a_small)[8][4], PairSums& sums) {
  const float2 gate0 = gate[row];
  const float2 gate8 = gate[row + 8];
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i4 = 0; i4 < 2; ++i4) {
    asm volatile("" ::: "memory");  // else all the loads come first, and registers run out
    float column[8];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = 4 * i4 + b;
      const int t = kTokens + 8 * i + 2 * q;
      float later[4], also[4], both[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int s = c < 2 ? row : row + 8;
        const float decay = gate_between(gate[t + c % 2], c < 2 ? gate0 : gate8, t + c % 2 >= s);
        later[c] = big[4 * i + c] * decay;
        also[c] = small[4 * i + c] * decay;
        both[c] = later[c] * small[4 * i + c];
        const bool same = t + c % 2 == s;
        (c < 2 ? sums.same0 : sums.same8) += same ? both[c] : 0.0F;
        both[c] = same ? 0.0F : both[c];
      }
      sums.row0 += both[0] + both[1];
      sums.row8 += both[2] + both[3];
      column[2 * b] = both[0] + both[2];
      column[2 * b + 1] = both[1] + both[3];
      const int kk = kTokens / 16 + i / 2;
      a_big[kk][i % 2 * 2] = pack_here(later[0], later[1]);
      a_big[kk][i % 2 * 2 + 1] = pack_here(later[2], later[3]);
      a_small[kk][i % 2 * 2] = pack_here(also[0], also[1]);
      a_small[kk][i % 2 * 2 + 1] = pack_here(also[2], also[3]);
    }
    sums.column[kTokens / 32 + i4] = sum_lanes(column);
  }
}

// <phi, d> and X(phi, d) / (2 pi / m) of both rows of a 64 x 128 accumulator; phi = U(-clock) b.
struct WriteTerms {
  float along0 = 0.0F, along8 = 0.0F, slope0 = 0.0F, slope8 = 0.0F;

  __device__ __forceinline__ WriteTerms(const float (&d)[64], uint32_t turn0, uint32_t turn8) {
    const int q = threadIdx.x % 4;
    const float norm = rsqrtf(0.5F * (kM - 1));
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int j = 4 * i + q;
      float s0, c0, s8, c8;
      phase(turn0, j, s0, c0);
      phase(turn8, j, s8, c8);
      const float scale = j == 0 ? rsqrtf(static_cast<float>(kM - 1)) : norm;
      c0 *= scale;
      c8 *= scale;
      s0 *= -norm;
      s8 *= -norm;
      along0 = fmaf(c0, d[4 * i], fmaf(s0, d[4 * i + 1], along0));
      along8 = fmaf(c8, d[4 * i + 2], fmaf(s8, d[4 * i + 3], along8));
      slope0 = fmaf(static_cast<float>(j), c0 * d[4 * i + 1] - s0 * d[4 * i], slope0);
      slope8 = fmaf(static_cast<float>(j), c8 * d[4 * i + 3] - s8 * d[4 * i + 2], slope8);
    }
    along0 = quad_sum(along0);
    along8 = quad_sum(along8);
    slope0 = quad_sum(slope0);
    slope8 = quad_sum(slope8);
  }
};

// 128 columns of rows `row` and `row + 8` of a bf16 array, as this thread's pairs.
struct Rows {
  uint4 row0[4], row8[4];

  __device__ __forceinline__ Rows(const bf16* from0, const bf16* from8, bool valid0, bool valid8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row0[i] = fetch_blocks(from0, 4 * i, valid0);
      row8[i] = fetch_blocks(from8, 4 * i, valid8);
    }
  }
  __device__ __forceinline__ void arrange() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row0[i] = transpose_quad(row0[i]);
      row8[i] = transpose_quad(row8[i]);
    }
  }
  template <int kBlock>
  static __device__ __forceinline__ float2 pair(const uint4& x) {
    return unpack(kBlock == 0 ? x.x : kBlock == 1 ? x.y : kBlock == 2 ? x.z : x.w);
  }
  // f(8-column block, its pair of row, its pair of row + 8) for blocks 4 i .. 4 i + 3, after arrange.
  template <typename F>
  __device__ __forceinline__ void each(int i, const F& f) const {
    f(4 * i, pair<0>(row0[i]), pair<0>(row8[i]));
    f(4 * i + 1, pair<1>(row0[i]), pair<1>(row8[i]));
    f(4 * i + 2, pair<2>(row0[i]), pair<2>(row8[i]));
    f(4 * i + 3, pair<3>(row0[i]), pair<3>(row8[i]));
  }
};

// Adds <d, x> of both rows of a 64 x 128 accumulator, this thread's share.
__device__ __forceinline__ void add_row_dots(const float (&d)[64], const Rows& x, float& sum0, float& sum8) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x.each(i, [&](int block, float2 x0, float2 x8) {
      const float* y = d + 4 * block;
      sum0 = fmaf(x0.x, y[0], fmaf(x0.y, y[1], sum0));
      sum8 = fmaf(x8.x, y[2], fmaf(x8.y, y[3], sum8));
    });
  }
}

// Adjoint of y = factor x / rms(x) weight for both rows, from dy in accumulators of 64 x 128 and <y, dy>. Without a weight y = factor x.
struct NormBackward {
  const float* weight;  // [K] in shared memory, ones where there is none
  float rate0, rate8, along0, along8;

  __device__ __forceinline__ NormBackward(bool norm, const float* weights, float inverse0, float inverse8, float factor, float dot0,
                                          float dot8)
      : weight(weights) {
    rate0 = norm ? inverse0 * factor : factor;
    rate8 = norm ? inverse8 * factor : factor;
    along0 = norm && factor != 0.0F ? dot0 * inverse0 / (factor * kD) : 0.0F;
    along8 = norm && factor != 0.0F ? dot8 * inverse8 / (factor * kD) : 0.0F;
  }

  // Columns from column0 on: dx to memory, and these 16 rows' share of the weight's gradient.
  __device__ __forceinline__ void columns(const float (&d)[64], const Rows& x, int column0, bf16* to0, bf16* to8, bool valid0, bool valid8,
                                          float* d_weight) const {
    const int lane = threadIdx.x % 32;
    const int q = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t out0[4], out8[4];
      float column[8];
      x.each(i, [&](int block, float2 x0, float2 x8) {
        const int b = block % 4;
        const float* dy = d + 4 * block;
        const float2 g = reinterpret_cast<const float2*>(weight + column0)[4 * block + q];
        out0[b] = pack(rate0 * (g.x * dy[0] - x0.x * along0), rate0 * (g.y * dy[1] - x0.y * along0));
        out8[b] = pack(rate8 * (g.x * dy[2] - x8.x * along8), rate8 * (g.y * dy[3] - x8.y * along8));
        column[2 * b] = dy[0] * x0.x * rate0 + dy[2] * x8.x * rate8;
        column[2 * b + 1] = dy[1] * x0.y * rate0 + dy[3] * x8.y * rate8;
      });
      d_weight[column0 + 32 * i + 8 * (lane / 8) + 2 * q + lane / 4 % 2] = sum_lanes(column);
      const int at = column0 + 32 * i + 8 * q;
      const uint4 y0 = transpose_quad(make_uint4(out0[0], out0[1], out0[2], out0[3]));
      const uint4 y8 = transpose_quad(make_uint4(out8[0], out8[1], out8[2], out8[3]));
      if (valid0) *reinterpret_cast<uint4*>(to0 + at) = y0;
      if (valid8) *reinterpret_cast<uint4*>(to8 + at) = y8;
    }
  }
};

template <Pass kPass>
__device__ __forceinline__ void pass_backward(const Sm90BackwardParams& p, const Workspace& w) {
  extern __shared__ __align__(1024) char raw[];
  PassShared& shared = *reinterpret_cast<PassShared*>(raw + 3 * kWide + kNarrow);
  const uint32_t at_x = shared_address(raw);
  const uint32_t at_y = at_x + kWide;
  const uint32_t at_s = at_y + kWide;
  const uint32_t at_z = at_s + kWide;
  const uint32_t place = at_x >> 4;  // of operands of products, beside a constant distance
  const int H = p.in.H;
  const int h = blockIdx.x % H;
  const int tile_index = blockIdx.x / H;
  const Tile tile = p.in.tile[tile_index];
  const int64_t wide = static_cast<int64_t>(H) * kD;  // distance of tokens
  const int64_t narrow = static_cast<int64_t>(H) * kM;
  const int64_t scalars = h * p.in.T + tile.token;
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int q = lane % 4;
  const int row = 16 * warp + lane / 4;  // and row + 8
  const uint32_t place_of_rows = place + group * (64 * kRowBytes >> 4);
  const bool valid0 = row < tile.tokens;
  const bool valid8 = row + 8 < tile.tokens;

  const bf16* x = static_cast<const bf16*>(kPass == kKeys ? p.d_k : p.in.v);
  const int64_t x_stride = kPass == kKeys ? wide : p.in.v_stride;
  const bf16* y = static_cast<const bf16*>(kPass == kKeys ? p.d_q : p.grad_o);
  const bf16* z = kPass == kKeys ? w.d_scores + tile.token * narrow + h * kM : w.weights + tile.token * wide + h * kD;
  load_tile<kC, kD / 8, kThreads>(at_x, x + tile.token * x_stride + h * kD, x_stride, tile.tokens);
  load_tile<kC, kD / 8, kThreads>(at_y, y + tile.token * wide + h * kD, wide, tile.tokens);
  load_tile<kC, kM / 8, kThreads>(at_z, z, kPass == kKeys ? narrow : wide, tile.tokens);
  copy_async_commit();
  load_tile<kM, kD / 8, kThreads>(at_s, d_state(p, w, tile_index, h, kPass), kD, kM);
  copy_async_commit();
  load_gates(shared.gate, w, p, tile, h);
  const auto token_value = [&](const auto* from, bool valid, int r) { return valid ? from[scalars + r] : 0; };
  const uint32_t turn0 = token_value(w.turn, valid0, row);
  const uint32_t turn8 = token_value(w.turn, valid8, row + 8);
  const float beta0 = valid0 ? p.in.beta[(tile.token + row) * H + h] : 0.0F;
  const float beta8 = valid8 ? p.in.beta[(tile.token + row + 8) * H + h] : 0.0F;
  float rate_k0 = 0.0F, rate_k8 = 0.0F, rate_q0 = 0.0F, rate_q8 = 0.0F;
  if constexpr (kPass == kKeys) {  // asked for now, used at last
    rate_k0 = token_value(w.rate[0], valid0, row);
    rate_k8 = token_value(w.rate[0], valid8, row + 8);
    rate_q0 = token_value(w.rate[1], valid0, row);
    rate_q8 = token_value(w.rate[1], valid8, row + 8);
  }
  const auto put = [&](float* to, float of_row0, float of_row8) {
    if (q == 0 && valid0) to[scalars + row] = of_row0;
    if (q == 0 && valid8) to[scalars + row + 8] = of_row8;
  };

  uint32_t a_big[8][4], a_small[8][4];
  uint32_t writes[8][4];  // W of this thread's rows, as a product's a
  float along0, along8;   // <x, dx> of both rows
  {
    const bf16* from = w.writes + (tile.token + row) * wide + h * kD;
    Rows rows(from, from + 8 * wide, valid0, valid8);
    rows.arrange();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t of_rows[2][4] = {{rows.row0[i].x, rows.row0[i].y, rows.row0[i].z, rows.row0[i].w},
                                      {rows.row8[i].x, rows.row8[i].y, rows.row8[i].z, rows.row8[i].w}};
#pragma unroll
      for (int c = 0; c < 8; ++c) writes[2 * i + c / 4][c % 4] = of_rows[c % 2][c / 4 * 2 + c % 4 / 2];
    }
  }
  copy_async_wait<1>();
  fence_async_proxy();
  __syncthreads();
  {
    PairSums sums;
    const auto half = [&](auto tokens) {
      constexpr int kTokens = decltype(tokens)::value;
      float big[32], small[32];
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kM / 16; ++kk) wgmma<0>(small, writes[kk], columns_of(place, kZ + kTokens * kRowBytes, 16 * kk), kk > 0);
#pragma unroll
      for (int kk = 0; kk < kD / 16; ++kk) {
        wgmma<0>(big, columns_of(place_of_rows, 0, 16 * kk), columns_of(place, kY + kTokens * kRowBytes, 16 * kk), kk > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      decay_pairs<kTokens>(big, small, row, shared.gate, a_big, a_small, sums);
    };
    const auto no_half = [&](auto tokens) {
      constexpr int kTokens = decltype(tokens)::value;
#pragma unroll
      for (int kk = kTokens / 16; kk < kTokens / 16 + 4; ++kk) {
#pragma unroll
        for (int c = 0; c < 4; ++c) a_big[kk][c] = a_small[kk][c] = 0;
      }
      sums.column[kTokens / 32] = sums.column[kTokens / 32 + 1] = 0.0F;
    };
    // The tokens t of the first half come before all s of the second warpgroup; a short tile has no second half.
    if (group == 0) {
      half(std::integral_constant<int, 0>());
    } else {
      no_half(std::integral_constant<int, 0>());
    }
    if (tile.tokens > 64) {
      half(std::integral_constant<int, 64>());
    } else {
      no_half(std::integral_constant<int, 64>());
    }
    sums.row0 = quad_sum(sums.row0);
    sums.row8 = quad_sum(sums.row8);
    along0 = sums.row0 + quad_sum(sums.same0);
    along8 = sums.row8 + quad_sum(sums.same8);
    put(w.earlier[kPass], sums.row0, sums.row8);
    // Four warps at a time meet in shared memory: there is no room for eight.
    float sum = 0.0F;
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      if (group == turn) {
#pragma unroll
        for (int i = 0; i < 4; ++i) shared.columns[warp % 4 * kC + 32 * i + 8 * (lane / 8) + 2 * q + lane / 4 % 2] = sums.column[i];
      }
      __syncthreads();
      if (threadIdx.x < kC) {
        for (int i = 0; i < 4; ++i) sum += shared.columns[i * kC + threadIdx.x];
      }
      __syncthreads();
    }
    if (static_cast<int>(threadIdx.x) < tile.tokens) w.later[kPass][scalars + threadIdx.x] = sum;
    // From here on the columns' room holds the weights of k in its second half and, at last, those of q in its first.
    if (kPass == kKeys) shared.columns[2 * kC + threadIdx.x] = p.in.k_norm_weight != nullptr ? p.in.k_norm_weight[threadIdx.x] : 1.0F;
  }

  copy_async_wait<0>();
  fence_async_proxy();
  __syncthreads();
  const float2 end = shared.gate[kC - 1];
  const float b0 = gate_between(end, shared.gate[row]);
  const float b8 = gate_between(end, shared.gate[row + 8]);
  {
    float d_writes[64];
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kD / 16; ++kk) wgmma<0>(d_writes, columns_of(place_of_rows, 0, 16 * kk), columns_of(place, kS, 16 * kk), kk > 0);
    wgmma_commit();
    // Meanwhile <S_K, dS_K'>; the walk of dS_V has found <S_V, dS_V'>.
    if constexpr (kPass == kKeys) {
      const uint4* states = reinterpret_cast<const uint4*>(w.states + tile_state(p, tile_index, h, kKeys));
      float whole = 0.0F;
#pragma unroll 8
      for (int i = 0; i < kM * kD / 8 / kThreads; ++i) {
        const int index = i * kThreads + static_cast<int>(threadIdx.x);
        const uint4 s4 = states[index];
        const uint4 d4 = *reinterpret_cast<const uint4*>(raw + 2 * kWide + piece_offset(kM, index / (kD / 8), index % (kD / 8)));
        const uint32_t s1[4] = {s4.x, s4.y, s4.z, s4.w};
        const uint32_t d1[4] = {d4.x, d4.y, d4.z, d4.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) whole = fmaf(unpack(s1[c]).x, unpack(d1[c]).x, fmaf(unpack(s1[c]).y, unpack(d1[c]).y, whole));
      }
#pragma unroll
      for (int bit = 1; bit < 32; bit *= 2) whole += __shfl_xor_sync(0xFFFFFFFF, whole, bit);
      if (lane == 0) shared.columns[warp] = whole;
    }
    wgmma_wait<0>();
    scale_rows(d_writes, b0, b8);
    const WriteTerms from_end(d_writes, anew(turn0), anew(turn8));
    put(w.written[kPass], beta0 * from_end.along0, beta8 * from_end.along8);
    along0 += beta0 * from_end.along0;
    along8 += beta8 * from_end.along8;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(d_writes, a_big[kk], rows_of(place, kZ, 16 * kk), 1);
    wgmma_commit();
    wgmma_wait<0>();
    const WriteTerms all(d_writes, anew(turn0), anew(turn8));
    put(w.beta[kPass], all.along0, all.along8);
    put(w.turned[kPass], kTurn * beta0 * all.slope0, kTurn * beta8 * all.slope8);
  }

  const int64_t to_row = (tile.token + row) * wide + h * kD;
  const int64_t to_row8 = to_row + 8 * wide;
  float* d_weight = w.d_weights + ((static_cast<int64_t>(tile_index) * H + h) * kWarps + warp) * kD;
#pragma unroll 1  // the key pass would outgrow the instruction cache: 1.29 ms instead of 0.6 at B32 T2048 H4
  for (int column0 = 0; column0 < kD; column0 += 128) {
    const uint32_t place_of_half = place + column0 * (kC * 2 >> 4);
    // Rows that come from memory for the last step of each half are asked for before its products.
    const bf16* from = kPass == kKeys ? static_cast<const bf16*>(p.in.k) + (tile.token + row) * p.in.k_stride + h * kD + column0 : nullptr;
    Rows raw_rows(from, from + 8 * p.in.k_stride, kPass == kKeys && valid0, kPass == kKeys && valid8);
    float out[64];
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(out, writes[kk], rows_of(place_of_half, kS, 16 * kk), kk > 0);
    wgmma_commit();
    wgmma_wait<0>();
    scale_rows(out, b0, b8);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(out, a_small[kk], rows_of(place_of_half, kY, 16 * kk), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if constexpr (kPass == kValues) {
      bf16* to = static_cast<bf16*>(p.d_v) + column0;
      store_rows(out, to + to_row, to + to_row8, valid0, valid8);
    } else {
      __syncthreads();  // these columns of dS' are done with, and make room for those of S_K
      if (column0 == 0 && threadIdx.x == 0) {
        float whole = 0.0F;
        for (int i = 0; i < kWarps; ++i) whole += shared.columns[i];
        w.whole[kKeys][static_cast<int64_t>(tile_index) * H + h] = whole;
      }
      if (column0 > 0) shared.columns[threadIdx.x] = p.in.q_norm_weight != nullptr ? p.in.q_norm_weight[threadIdx.x] : 1.0F;
      load_tile<kM, 16, kThreads>(at_s + column0 * kC * 2, w.states + tile_state(p, tile_index, h, kKeys) + column0, kD, kM);
      copy_async_commit();
      const NormBackward norm(p.in.k_norm_weight != nullptr, shared.columns + 2 * kC, rate_k0, rate_k8, 1.0F, along0, along8);
      raw_rows.arrange();
      bf16* to = static_cast<bf16*>(p.d_k);
      norm.columns(out, raw_rows, column0, to + to_row, to + to_row8, valid0, valid8, d_weight);
    }
  }
  if constexpr (kPass == kKeys) {
    put_rows(at_y, row, a_small);  // dP^T
    const uint32_t place_of_columns = place + group * (kC * kRowBytes >> 4);
    float read0 = 0.0F;
    float read8 = 0.0F;
    const NormBackward norm(p.in.q_norm_weight != nullptr, shared.columns, rate_q0, rate_q8, p.in.scale, token_value(w.along, valid0, row),
                            token_value(w.along, valid8, row + 8));
#pragma unroll 1
    for (int column0 = 0; column0 < kD; column0 += 128) {
      const uint32_t place_of_half = place + column0 * (kC * 2 >> 4);
      bf16* to = static_cast<bf16*>(p.d_q);
      const bf16* from = static_cast<const bf16*>(p.in.q) + (tile.token + row) * p.in.q_stride + h * kD + column0;
      Rows queries(to + to_row + column0, to + to_row8 + column0, valid0, valid8);
      Rows raw_rows(from, from + 8 * p.in.q_stride, valid0, valid8);
      if (column0 == 0) {
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      fence_async_proxy();
      __syncthreads();
      float out[64];
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kM / 16; ++kk)
        wgmma<1>(out, columns_of(place_of_rows, kZ, 16 * kk), rows_of(place_of_half, kS, 16 * kk), kk > 0);
      wgmma_commit();
      queries.arrange();
      wgmma_wait<0>();
      scale_rows(out, power_of_2(shared.gate[row].x), power_of_2(shared.gate[row + 8].x));
      add_row_dots(out, queries, read0, read8);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kC / 16; ++kk) wgmma<1, 1>(out, rows_of(place_of_columns, kY, 16 * kk), rows_of(place_of_half, 0, 16 * kk), 1);
      wgmma_commit();
      raw_rows.arrange();
      wgmma_wait<0>();
      norm.columns(out, raw_rows, column0, to + to_row, to + to_row8, valid0, valid8,
                   d_weight + static_cast<int64_t>(p.in.tiles) * H * kWarps * kD);
    }
    put(w.read[kKeys], quad_sum(read0), quad_sum(read8));
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    cyclic_flow_backward_values_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  pass_backward<kValues>(p, w);
}
__global__ void __launch_bounds__(kThreads, 1)
    cyclic_flow_backward_keys_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  pass_backward<kKeys>(p, w);
}

}  // namespace

cudaError_t backward_passes(const Sm90BackwardParams& p, cudaStream_t stream) {
  for (auto* kernel : {cyclic_flow_backward_keys_sm90, cyclic_flow_backward_values_sm90}) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPassBytes);
    if (status != cudaSuccess) return status;
    kernel<<<p.in.tiles * p.in.H, kThreads, kPassBytes, stream>>>(p, workspace_of(p));
  }
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
