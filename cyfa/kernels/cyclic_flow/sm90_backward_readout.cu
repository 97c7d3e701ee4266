// The readout stage of cyclic_flow's backward on Hopper (docs/operator.md, "Chunks"): stages 1 to 3 of forward again, then
//   dU = D * (dO V^T) W + a (dO S_V^T)      dX = rot(dU)      dL = p * (dX A^T - rowsum(p * dX A^T))
//   dY = unrot(dL A)                        dA += dL^T Z + p^T dX
// One tile of one head at a time, with no dependence between tiles. A block takes every so many tiles of one head and sums its own dA in
// memory. Overwrites weights (U), d_scores, d_tables, read[kValues], along and turned[2] of the workspace.
// 224 KB of shared memory in phases: three wide regions hold (q, k, key state), then (dO, v, value state), then (tables; Z, dX; p, dL);
// the write vectors have a narrow one.
#include "cyfa/kernels/cyclic_flow/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

struct ReadoutShared {
  float2 gate[kC];
  uint32_t turn[kC];
  uint32_t row[kThreads];  // each thread's first row
};

// Distances of the regions: the first is for q, dO and the tables.
constexpr int kK = kWide, kS = 2 * kWide, kW = 3 * kWide;
constexpr int kReadoutBytes = 3 * kWide + kNarrow + static_cast<int>(sizeof(ReadoutShared));

// Decay and causal mask of the scores between 64 tokens and the 64 tokens from kTokens on, packed as the next product's a. `row` is the
// first token row.
template <int kTokens>
__device__ __forceinline__ void decay_and_pack(const float (&d)[32], int row, const float2* gate, uint32_t (&a)[8][4]) {
  const float2 gate0 = gate[row];
  const float2 gate8 = gate[row + 8];
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i % 4 == 0) asm volatile("" ::: "memory");  // else all the loads come first, and registers run out
    const int t = kTokens + 8 * i + 2 * q;
    const float2 e0 = gate[t];
    const float2 e1 = gate[t + 1];
    const float x00 = d[4 * i] * gate_between(gate0, e0, t <= row);
    const float x01 = d[4 * i + 1] * gate_between(gate0, e1, t + 1 <= row);
    const float x80 = d[4 * i + 2] * gate_between(gate8, e0, t <= row + 8);
    const float x81 = d[4 * i + 3] * gate_between(gate8, e1, t + 1 <= row + 8);
    a[kTokens / 16 + i / 2][i % 2 * 2] = pack_here(x00, x01);
    a[kTokens / 16 + i / 2][i % 2 * 2 + 1] = pack_here(x80, x81);
  }
}

// out = D * (x y^T) W + a (x s^T) for this warpgroup's 64 rows; from_state is the second term. x, y, s and W lie in the four regions.
// after_y and after_x are called when this warpgroup is done with y, and with x and s.
template <typename AfterY, typename AfterX>
__device__ __forceinline__ void gated_read(uint32_t place, int group, int row, const float2* gate, float (&out)[64],
                                           uint32_t (&from_state)[8][4], const AfterY& after_y, const AfterX& after_x) {
  const uint32_t place_of_rows = place + group * (64 * kRowBytes >> 4);
  uint32_t a[8][4];
  const auto half = [&](auto tokens) {
    constexpr int kTokens = decltype(tokens)::value;
    float pairs[32];
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kD / 16; ++kk) {
      wgmma<0>(pairs, columns_of(place_of_rows, 0, 16 * kk), columns_of(place, kK + kTokens * kRowBytes, 16 * kk), kk > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    decay_and_pack<kTokens>(pairs, row, gate, a);
  };
  half(std::integral_constant<int, 0>());
  if (group == 1) {
    half(std::integral_constant<int, 64>());
  } else {  // all of these tokens come later
#pragma unroll
    for (int kk = 4; kk < 8; ++kk) {
#pragma unroll
      for (int c = 0; c < 4; ++c) a[kk][c] = 0;
    }
  }
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kD / 16; ++kk) wgmma<0>(out, columns_of(place_of_rows, 0, 16 * kk), columns_of(place, kS, 16 * kk), kk > 0);
  wgmma_commit();
  after_y();
  wgmma_wait<0>();
  after_x();
  scale_rows(out, power_of_2(gate[row].x), power_of_2(gate[row + 8].x));
  pack_rows(out, from_state);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(out, a[kk], rows_of(place, kW, 16 * kk), 1);
  wgmma_commit();
  wgmma_wait<0>();
}

// The complex pairs of a 64 x 128 accumulator turned by sign * clock of their rows.
__device__ __forceinline__ void rotate(const float (&d)[64], uint32_t turn0, uint32_t turn8, float sign, float (&out)[64]) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float s0, c0, s8, c8;
    phase(turn0, 4 * i + q, s0, c0);
    phase(turn8, 4 * i + q, s8, c8);
    s0 *= sign;
    s8 *= sign;
    out[4 * i] = d[4 * i] * c0 - d[4 * i + 1] * s0;
    out[4 * i + 1] = d[4 * i] * s0 + d[4 * i + 1] * c0;
    out[4 * i + 2] = d[4 * i + 2] * c8 - d[4 * i + 3] * s8;
    out[4 * i + 3] = d[4 * i + 2] * s8 + d[4 * i + 3] * c8;
  }
}

// X(x, d) of both rows, without the factor 2 pi / m, and <x, d>, with x from a tile; this thread's share.
struct Products {
  float slope0 = 0.0F, slope8 = 0.0F, dot0 = 0.0F, dot8 = 0.0F;

  __device__ __forceinline__ Products(uint32_t tile, int row, const float (&d)[64]) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 x0 = unpack(load_shared(tile + piece_offset(kC, row, i) + 4 * q));
      const float2 x8 = unpack(load_shared(tile + piece_offset(kC, row + 8, i) + 4 * q));
      const float j = static_cast<float>(4 * i + q);
      slope0 = fmaf(j, x0.x * d[4 * i + 1] - x0.y * d[4 * i], slope0);
      slope8 = fmaf(j, x8.x * d[4 * i + 3] - x8.y * d[4 * i + 2], slope8);
      dot0 = fmaf(x0.x, d[4 * i], fmaf(x0.y, d[4 * i + 1], dot0));
      dot8 = fmaf(x8.x, d[4 * i + 2], fmaf(x8.y, d[4 * i + 3], dot8));
    }
  }
};

// In place: softmax of the rows' 127 logits.
__device__ __forceinline__ void softmax_rows(float (&d)[64]) {
  if (threadIdx.x % 4 == 3) d[61] = d[63] = -INFINITY;  // slot m does not exist
  float top0 = -INFINITY;
  float top8 = -INFINITY;
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    top0 = fmaxf(top0, fmaxf(d[i], d[i + 1]));
    top8 = fmaxf(top8, fmaxf(d[i + 2], d[i + 3]));
  }
#pragma unroll
  for (int x = 1; x < 4; x *= 2) {
    top0 = fmaxf(top0, __shfl_xor_sync(0xFFFFFFFF, top0, x));
    top8 = fmaxf(top8, __shfl_xor_sync(0xFFFFFFFF, top8, x));
  }
  float sum0 = 0.0F;
  float sum8 = 0.0F;
  constexpr float kLog2e = 1.4426950408889634F;
  top0 *= kLog2e;
  top8 *= kLog2e;
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    d[i] = power_of_2(fmaf(d[i], kLog2e, -top0));
    d[i + 1] = power_of_2(fmaf(d[i + 1], kLog2e, -top0));
    d[i + 2] = power_of_2(fmaf(d[i + 2], kLog2e, -top8));
    d[i + 3] = power_of_2(fmaf(d[i + 3], kLog2e, -top8));
    sum0 += d[i] + d[i + 1];
    sum8 += d[i + 2] + d[i + 3];
  }
  scale_rows(d, 1.0F / quad_sum(sum0), 1.0F / quad_sum(sum8));
}

// d = a table, or a table^T: a [64, 128] in registers, or rows of a tile; the table as high and low part.
__device__ __forceinline__ void times_table(float (&d)[64], const uint32_t (&a)[8][4], uint32_t place) {
  wgmma_fence();
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(d, a[kk], rows_of(place, part * kNarrow, 16 * kk), part + kk > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

template <int kRows>
__device__ __forceinline__ void times_table_transposed(float (&d)[64], uint32_t place_of_rows, uint32_t place) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) {
      wgmma<0>(d, columns_of(place_of_rows, kRows, 16 * kk), columns_of(place, part * kNarrow, 16 * kk), part + kk > 0);
    }
  }
  wgmma_commit();
}

__global__ void __launch_bounds__(kThreads, 1)
    cyclic_flow_backward_readout_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  extern __shared__ __align__(1024) char raw[];
  ReadoutShared& s = *reinterpret_cast<ReadoutShared*>(raw + 3 * kWide + kNarrow);
  const int H = p.in.H;
  const int h = blockIdx.x % H;
  const int blocks = gridDim.x / H;
  const int64_t wide = static_cast<int64_t>(H) * kD;  // distance of tokens
  const int64_t narrow = static_cast<int64_t>(H) * kM;
  const bf16* table = static_cast<const bf16*>(p.in.table) + static_cast<int64_t>(h) * 2 * kM * kM;
  const int group = threadIdx.x / 128;
  const int lane = threadIdx.x % 32;
  s.row[threadIdx.x] = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;

  const auto load_queries = [&](const Tile& tile, uint32_t at_q) {
    load_tile<kC, kD / 8, kThreads>(at_q, static_cast<const bf16*>(p.d_q) + tile.token * wide + h * kD, wide, tile.tokens);
    load_tile<kC, kM / 8, kThreads>(at_q + kW, w.writes + tile.token * wide + h * kD, wide, tile.tokens);
    copy_async_commit();
  };
  if (static_cast<int>(blockIdx.x) / H < p.in.tiles) load_queries(p.in.tile[blockIdx.x / H], shared_address(raw));
  for (int tile_index = blockIdx.x / H; tile_index < p.in.tiles; tile_index += blocks) {
    const Tile tile = p.in.tile[tile_index];
    const Tile next = p.in.tile[min(tile_index + blocks, p.in.tiles - 1)];
    // Anew in each tile, or the addresses of every product are kept in registers from tile to tile.
    const uint32_t at_row = shared_address(&s.row[threadIdx.x]);
    const int row = static_cast<int>(load_shared(at_row));  // and row + 8
    const uint32_t at_q = anew(shared_address(raw));
    const uint32_t at_k = at_q + kK;
    const uint32_t at_s = at_q + kS;
    const uint32_t at_z = at_k;  // and dX, p, dL: narrow tiles
    const uint32_t at_d_x = at_k + kNarrow;
    const uint32_t at_probs = at_s;
    const uint32_t at_d_logits = at_s + kNarrow;
    const uint32_t place = at_q >> 4;  // of operands of products, beside a constant distance
    const uint32_t place_of_rows = place + group * (64 * kRowBytes >> 4);
    const uint32_t place_of_columns = place + group * (kC * kRowBytes >> 4);
    load_tile<kC, kD / 8, kThreads>(at_k, static_cast<const bf16*>(p.d_k) + tile.token * wide + h * kD, wide, tile.tokens);
    load_tile<kM, kD / 8, kThreads>(at_s, w.states + tile_state(p, tile_index, h, kKeys), kD, kM);
    copy_async_commit();
    load_gates(s.gate, w, p, tile, h);
    if (threadIdx.x < kC)
      s.turn[threadIdx.x] = static_cast<int>(threadIdx.x) < tile.tokens ? w.turn[h * p.in.T + tile.token + threadIdx.x] : 0;
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();

    // Regions take their next content as soon as both warpgroups are done with them.
    const auto load_values = [&] {
      __syncthreads();
      load_tile<kC, kD / 8, kThreads>(at_k, static_cast<const bf16*>(p.in.v) + tile.token * p.in.v_stride + h * kD, p.in.v_stride,
                                      tile.tokens);
    };
    const auto load_gradients = [&] {
      __syncthreads();
      load_tile<kC, kD / 8, kThreads>(at_q, static_cast<const bf16*>(p.grad_o) + tile.token * wide + h * kD, wide, tile.tokens);
      load_tile<kM, kD / 8, kThreads>(at_s, w.states + tile_state(p, tile_index, h, kValues), kD, kM);
      copy_async_commit();
    };
    const auto load_tables = [&] {
      __syncthreads();
#pragma unroll
      for (int part = 0; part < 2; ++part) load_tile<kM, kM / 8, kThreads>(at_q + part * kNarrow, table + part * kM * kM, kM, kM);
      copy_async_commit();
    };
    uint32_t from_state[8][4] = {};
    uint32_t kept[8][4] = {};  // Z until a region is free
    const bool has_rows = group == 0 || tile.tokens > 64;
    if (has_rows) {
      float scores[64];
      gated_read(place, group, row, s.gate, scores, from_state, load_values, load_gradients);
      float turned_scores[64];
      rotate(scores, anew(s.turn[row]), anew(s.turn[row + 8]), 1.0F, turned_scores);
      pack_rows(turned_scores, kept);
    } else {
      load_values();
      load_gradients();
    }
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    uint32_t turned[8][4] = {};  // dX
    if (has_rows) {
      float d_weights[64];
      // The row anew, or the masks' predicates are kept.
      gated_read(
          place, group, static_cast<int>(load_shared(at_row)), s.gate, d_weights, from_state, [] {}, load_tables);
      float turned_d_weights[64];
      rotate(d_weights, anew(s.turn[row]), anew(s.turn[row + 8]), 1.0F, turned_d_weights);
      pack_rows(turned_d_weights, turned);
    } else {
      load_tables();
    }
    put_rows(at_z, anew(row), kept);
    put_rows(at_d_x, anew(row), turned);
    copy_async_wait<0>();
    fence_async_proxy();
    __syncthreads();

    uint32_t packed_logits[8][4];
    float2 clock;
    {
      uint32_t packed_probs[8][4];
      {
        float prob[64];
        float d_prob[64];
        wgmma_fence();
        times_table_transposed<kK>(prob, place_of_rows, place);
        times_table_transposed<kK + kNarrow>(d_prob, place_of_rows, place);
        wgmma_wait<1>();
        softmax_rows(prob);
        wgmma_wait<0>();
        float mean0 = 0.0F;
        float mean8 = 0.0F;
#pragma unroll
        for (int i = 0; i < 64; i += 4) {
          mean0 = fmaf(prob[i], d_prob[i], fmaf(prob[i + 1], d_prob[i + 1], mean0));
          mean8 = fmaf(prob[i + 2], d_prob[i + 2], fmaf(prob[i + 3], d_prob[i + 3], mean8));
        }
        mean0 = quad_sum(mean0);
        mean8 = quad_sum(mean8);
#pragma unroll
        for (int i = 0; i < 64; i += 4) {
          d_prob[i] = prob[i] * (d_prob[i] - mean0);
          d_prob[i + 1] = prob[i + 1] * (d_prob[i + 1] - mean0);
          d_prob[i + 2] = prob[i + 2] * (d_prob[i + 2] - mean8);
          d_prob[i + 3] = prob[i + 3] * (d_prob[i + 3] - mean8);
        }
        pack_rows(prob, packed_probs);
        pack_rows(d_prob, packed_logits);
      }
      put_rows(at_probs, anew(row), packed_probs);
      put_rows(at_d_logits, anew(row), packed_logits);

      float mixture[64];
      times_table(mixture, packed_probs, place);
      const Products products(at_d_x, anew(row), mixture);
      clock = make_float2(products.slope0, products.slope8);  // X(dX, p A) = -X(p A, dX) = -X(U, dU)
      float turned_mixture[64];
      rotate(mixture, anew(s.turn[row]), anew(s.turn[row + 8]), -1.0F, turned_mixture);
      float read0 = 0.0F;
      float read8 = 0.0F;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float2 x0 = unpack(from_state[i / 2][i % 2 * 2]);
        const float2 x8 = unpack(from_state[i / 2][i % 2 * 2 + 1]);
        read0 = fmaf(x0.x, turned_mixture[4 * i], fmaf(x0.y, turned_mixture[4 * i + 1], read0));
        read8 = fmaf(x8.x, turned_mixture[4 * i + 2], fmaf(x8.y, turned_mixture[4 * i + 3], read8));
      }
      read0 = quad_sum(read0);
      read8 = quad_sum(read8);
      float* read = w.read[kValues] + h * p.in.T + tile.token;
      if (lane % 4 == 0 && row < tile.tokens) read[row] = read0;
      if (lane % 4 == 0 && row + 8 < tile.tokens) read[row + 8] = read8;
      bf16* to = w.weights + (tile.token + row) * wide + h * kD;
      store_rows(turned_mixture, to, to + 8 * wide, row < tile.tokens, row + 8 < tile.tokens);
    }
    {
      float d_scores[64];
      times_table(d_scores, packed_logits, place);
      const Products products(at_z, anew(row), d_scores);
      clock.x = kTurn * quad_sum(clock.x + products.slope0);
      clock.y = kTurn * quad_sum(clock.y + products.slope8);
      const float along0 = quad_sum(products.dot0);
      const float along8 = quad_sum(products.dot8);
      const int64_t scalars = h * p.in.T + tile.token + row;
      if (lane % 4 == 0 && row < tile.tokens) {
        w.turned[2][scalars] = clock.x;
        w.along[scalars] = along0;
      }
      if (lane % 4 == 0 && row + 8 < tile.tokens) {
        w.turned[2][scalars + 8] = clock.y;
        w.along[scalars + 8] = along8;
      }
      float turned_d_scores[64];
      rotate(d_scores, anew(s.turn[row]), anew(s.turn[row + 8]), -1.0F, turned_d_scores);
      bf16* to = w.d_scores + (tile.token + row) * narrow + h * kM;
      store_rows(turned_d_scores, to, to + 8 * narrow, row < tile.tokens, row + 8 < tile.tokens);
    }
    {
      float sum[64];  // [64 slots, M] of dA
      float4* d_table = w.d_tables + static_cast<int64_t>(blockIdx.x) * (kM * kM / 4) + anew(threadIdx.x);
      const bool first = tile_index < blocks;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float4 x = first ? make_float4(0.0F, 0.0F, 0.0F, 0.0F) : d_table[i * kThreads];
        sum[4 * i] = x.x;
        sum[4 * i + 1] = x.y;
        sum[4 * i + 2] = x.z;
        sum[4 * i + 3] = x.w;
      }
      fence_async_proxy();
      __syncthreads();
      if (tile_index + blocks < p.in.tiles) load_queries(next, at_q);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kC / 16; ++kk) {
        wgmma<1, 1>(sum, rows_of(place_of_columns, kS + kNarrow, 16 * kk), rows_of(place, kK, 16 * kk), 1);
        wgmma<1, 1>(sum, rows_of(place_of_columns, kS, 16 * kk), rows_of(place, kK + kNarrow, 16 * kk), 1);
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 16; ++i) d_table[i * kThreads] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t backward_readout(const Sm90BackwardParams& p, cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(cyclic_flow_backward_readout_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, kReadoutBytes);
  if (status != cudaSuccess) return status;
  cyclic_flow_backward_readout_sm90<<<readout_blocks_of_head(p) * p.in.H, kThreads, kReadoutBytes, stream>>>(p, workspace_of(p));
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
