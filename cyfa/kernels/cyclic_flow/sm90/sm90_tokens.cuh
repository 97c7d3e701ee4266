// Shared by the tile-wise launches, forward (outputs, values) and backward (readout, weights): the assignment of tiles to thread blocks,
// and the token warps, which turn gates and clocks into write vectors and decay factors in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_parts.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::cyclic_flow {

using sm90::kRowBytes;

constexpr int kPanelBytes = kC * kRowBytes;
constexpr int kFeeders = 96;  // threads of the token warps, which compute write vectors
constexpr int kBlock = 16;    // tokens whose decay factors share one origin

// Per-token values of a tile, in shared memory.
struct Tokens {
  float gate_high[kC];
  float fade[kC];  // decay from the token to the end of its block of kBlock tokens
  float rate[kC];  // 1 / rms of keys; in backward, the clock's bits (turn())
  bf16 gate_low[kC];
  int token;  // first token of the tile
  int tokens;

  __device__ uint32_t turn(int row) const { return __float_as_uint(rate[row]); }
  __device__ float2 gate(int row) const { return make_float2(gate_high[row], __bfloat162float(gate_low[row])); }
};

// The thread block's head and tiles. Tiles run from last to first, since the states stored last are still in the L2 cache. Each role
// constructs its own: a value that is live across the role split is spilled to local memory.
struct Share {
  int h, last, step;

  __device__ explicit Share(const Sm90ForwardParams& p) {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    h = block % p.H;
    last = p.tiles - 1 - block / p.H;
    step = gridDim.x / p.H;
  }
};

// Thread blocks per head, so that the grid has one block per multiprocessor and every block stays with one head.
inline cudaError_t blocks_of_head(const Sm90ForwardParams& p, int& blocks) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  blocks = std::min(p.tiles, std::max(1, multiprocessors / p.H));
  return status;
}

// Masks the logits of padding slots, from m on, out of the softmax. With kAll, m is kM - 1.
template <bool kAll>
__device__ __forceinline__ void mask_slots(float (&d)[64], int m) {
  const int q = static_cast<int>(threadIdx.x % 4);
  if constexpr (kAll) {
    if (q == 3) d[61] = d[63] = -INFINITY;
  } else {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      if (8 * (i / 4) + i % 2 >= m - 2 * q) d[i] = -INFINITY;
    }
  }
}

// Cosine and sine of frequency j at a clock.
__device__ __forceinline__ float2 rotation(uint32_t turn, uint32_t j) {
  float sine, cosine;
  __sincosf(static_cast<float>(static_cast<int32_t>(turn * j)) * kRadians, &sine, &cosine);
  return make_float2(cosine, sine);
}

// Applies decay, causal mask and row factors to a 64 x 128 accumulator of token-token products and converts it to the next product's A
// operand. The warp's rows are strip .. strip + 15. With kKeys it also applies 1 / rms of the keys and uses half precision, as the write
// vectors are. Left of the strip, the decay from token j to row i is split at the end of j's block and at the strip's first row into three
// factors, none above 1.
template <bool kKeys>
__device__ __forceinline__ void decay_and_pack(const float (&d)[64], int strip, float factor0, float factor8, const Tokens& s,
                                               uint32_t (&a)[8][4]) {
  const auto packed_pair = [](float x, float y) { return kKeys ? sm90::pack_half(x, y) : sm90::pack(x, y); };
  const int q = threadIdx.x % 4;
  const int row = strip + threadIdx.x % 32 / 4;
  const float2 gate0 = s.gate(row);
  const float2 gate8 = s.gate(row + 8);
  const float2 origin = s.gate(strip);
  const float row0 = factor0 * gate_between(gate0, origin);
  const float row8 = factor8 * gate_between(gate8, origin);
  float own[8];  // the diagonal block, whose index is not a compile-time constant
#pragma unroll
  for (int b = 0; b < 8; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[b][i] = 0;
    if (kBlock * b < strip) {
      const float between = gate_between(origin, s.gate(kBlock * b + kBlock - 1));
      const float e0 = row0 * between;
      const float e8 = row8 * between;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int t = kBlock * b + 8 * n + 2 * q;
        float2 c = *reinterpret_cast<const float2*>(&s.fade[t]);
        if (kKeys) {
          const float2 rate = *reinterpret_cast<const float2*>(&s.rate[t]);
          c = make_float2(c.x * rate.x, c.y * rate.y);
        }
        const float* x = d + 8 * b + 4 * n;
        a[b][2 * n] = packed_pair(x[0] * (e0 * c.x), x[1] * (e0 * c.y));
        a[b][2 * n + 1] = packed_pair(x[2] * (e8 * c.x), x[3] * (e8 * c.y));
      }
    }
    if (kBlock * b == strip) {
#pragma unroll
      for (int i = 0; i < 8; ++i) own[i] = d[8 * b + i];
    }
  }
  uint32_t packed[4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int t = strip + 8 * n + 2 * q;
    const float2 from0 = s.gate(t);
    const float2 from1 = s.gate(t + 1);
    float2 rate = make_float2(1.0F, 1.0F);
    if (kKeys) rate = *reinterpret_cast<const float2*>(&s.rate[t]);
    const float* x = own + 4 * n;
    const float x00 = t <= row ? x[0] * factor0 * rate.x * gate_between(gate0, from0) : 0.0F;
    const float x01 = t + 1 <= row ? x[1] * factor0 * rate.y * gate_between(gate0, from1) : 0.0F;
    const float x80 = t <= row + 8 ? x[2] * factor8 * rate.x * gate_between(gate8, from0) : 0.0F;
    const float x81 = t + 1 <= row + 8 ? x[3] * factor8 * rate.y * gate_between(gate8, from1) : 0.0F;
    packed[2 * n] = packed_pair(x00, x01);
    packed[2 * n + 1] = packed_pair(x80, x81);
  }
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    if (kBlock * b == strip) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[b][i] = packed[i];
    }
  }
}

// Run by the token warps (threads 32 to 127). Fills `writes` and `tokens` of shared memory for every tile of the block, synchronised by the
// barriers tokens_full and tokens_empty. Lane i of a warp loads the scalars of the warp's i-th pair of rows (64 pairs over three warps);
// then, pair by pair, each half warp writes one token's write vector, 16 pieces of 8 slots. With kKeyRates, `rate` gets 1 / rms of the
// keys; without, it gets the clocks, and query_rate gets 1 / rms of the queries. Writes kSections sections, starting with the launch's own.
template <bool kKeyRates, int kSections = 1, typename Shared>
__device__ __forceinline__ void feed_tokens(const Sm90ForwardParams& p, const Workspace& w, Shared& s, const Share& share) {
  const int h = share.h;
  constexpr int kWarps = kFeeders / 32;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 - 1;
  int row = 2 * (warp + kWarps * lane);
  int parity = 1;
  int next_token = static_cast<int>(p.tile[share.last].token);
  int next_tokens = p.tile[share.last].tokens;
  for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
    if constexpr (!kKeyRates) asm volatile("" : "+r"(row));  // recompute what depends on it in every tile: register pressure
    const int token = kKeyRates ? next_token : static_cast<int>(p.tile[t].token);
    const int tokens = kKeyRates ? next_tokens : p.tile[t].tokens;
    if (kKeyRates && t >= share.step) {
      next_token = static_cast<int>(p.tile[t - share.step].token);
      next_tokens = p.tile[t - share.step].tokens;
    }
    const int64_t base = h * p.T + token;
    uint32_t turn[2] = {0, 0};
    float beta[2] = {0.0F, 0.0F};
    float rate[2] = {0.0F, 0.0F};
    float2 gate[2];
    float fade[2];
    if (row < kC) {
      const float2 end = w.gate[base + min(row / kBlock * kBlock + kBlock, tokens) - 1];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        gate[i] = end;
        if (row + i < tokens) {
          turn[i] = w.turn[base + row + i];
          beta[i] = p.beta[static_cast<int64_t>(token + row + i) * p.H + h];
          rate[i] = w.rate[kKeyRates ? 0 : 1][base + row + i];
          gate[i] = w.gate[base + row + i];
        } else if (row >= tokens) {
          gate[i] = w.gate[base + tokens - 1];
        }
        fade[i] = row < tokens ? gate_between(end, gate[i]) : 1.0F;
      }
    }
    sm90::barrier_wait(&s.tokens_empty, parity);
    if (row < kC) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s.tokens.gate_high[row + i] = gate[i].x;
        s.tokens.gate_low[row + i] = __float2bfloat16(gate[i].y);
        s.tokens.fade[row + i] = fade[i];
        if constexpr (kKeyRates) {
          s.tokens.rate[row + i] = rate[i];
        } else {
          s.tokens.rate[row + i] = __uint_as_float(turn[i]);
          s.query_rate[1 - parity][row + i] = rate[i];
        }
      }
    }
    if (threadIdx.x == 32) {
      s.tokens.token = token;
      s.tokens.tokens = tokens;
    }
    const int piece = lane % 16;
#pragma unroll(kKeyRates ? 2 : 1)
    for (int i = 0; warp + kWarps * i < kC / 2; ++i) {
      const uint32_t turn0 = __shfl_sync(0xFFFFFFFF, turn[0], i);
      const uint32_t turn1 = __shfl_sync(0xFFFFFFFF, turn[1], i);
      const float beta0 = __shfl_sync(0xFFFFFFFF, beta[0], i);
      const float beta1 = __shfl_sync(0xFFFFFFFF, beta[1], i);
      const int to = 2 * (warp + kWarps * i) + lane / 16;
#pragma unroll
      for (int section = 0; section < kSections; ++section) {
        Slots slots = w.slots;
        slots.first_pair += section * (kM / 2);
        *reinterpret_cast<uint4*>(s.writes + section * kC * kM * 2 + sm90::piece_offset(kC, to, piece)) =
            write_piece<true>(lane < 16 ? turn0 : turn1, lane < 16 ? beta0 : beta1, piece, slots);
      }
    }
    sm90::fence_async_proxy();
    sm90::barrier_arrive(&s.tokens_full);
  }
}

}  // namespace cyfa::cyclic_flow
