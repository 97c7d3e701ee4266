// What the walks over the tiles of Hopper's cyclic_flow share, forward (states) and backward (their gradients): which tokens a block walks,
// how the state that it holds in registers comes and goes, and the combination of segments. A block has two warpgroups that produce, 64
// tokens each in turn, and two that hold the state, 64 slots x 256 columns each.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "cyfa/kernels/cyclic_flow/sm90_parts.cuh"
#include "cyfa/kernels/hopper/tma.cuh"

namespace cyfa::cyclic_flow {

using namespace hopper;

constexpr int kHalf = 64;  // tokens of a stage
constexpr int kStages = 4;
constexpr int kStageBytes = kHalf * kD * 2;
constexpr int kStageNarrow = kHalf * kM * 2;
constexpr int kProducers = 2;
constexpr int kCornerBytes = 16 * kRowBytes;  // where a warp turns its rows of the state into whole lines
constexpr int kHolders = 256;                 // threads that hold the state
constexpr int kWalkThreads = kProducers * 128 + kHolders;

struct Walk {
  int n, segment, segments;
  int first, tiles;
};

// The walk at a place; past the sequence's segments where there is none. By the whole block.
inline __device__ Walk walk_at(const Sm90ForwardParams& p, int place) {
  int low = -1;  // the last sequence whose first place is not behind this one
  for (int n = 0; n < p.N; n += kWalkThreads) {
    const int mine = n + static_cast<int>(threadIdx.x);
    low += __syncthreads_count(mine < p.N && p.first_tile[min(mine, p.N - 1)] / kSegmentTiles + mine <= place);
  }
  Walk walk;
  walk.n = low;
  const int first = p.first_tile[low];
  const int tiles = p.first_tile[low + 1] - first;
  walk.segments = segments_of(tiles);
  walk.segment = place - first / kSegmentTiles - low;
  walk.first = first + (walk.segments == 1 ? 0 : walk.segment * kSegmentTiles);
  walk.tiles = walk.segments == 1 ? tiles : min(kSegmentTiles, first + tiles - walk.first);
  return walk;
}

// The tokens of one walk, half a tile at a time.
struct Halves {
  int count;
  int begin, end;  // tokens of the walk

  __device__ explicit Halves(const int (&kept)[7]) : count(kept[4]), begin(kept[5]), end(kept[6]) {}
  __device__ Halves(const Sm90ForwardParams& p, const Walk& walk) : count(2 * walk.tiles), begin(0), end(0) {
    if (count == 0) return;
    const Tile last = p.tile[walk.first + walk.tiles - 1];
    begin = static_cast<int>(p.tile[walk.first].token);
    end = static_cast<int>(last.token) + last.tokens;
  }
  __device__ int token(int half) const { return begin + half * kHalf; }
  __device__ int real(int half) const { return max(0, min(kHalf, end - token(half))); }
  __device__ int last_of_tile(int half) const { return min(begin + (half / 2 + 1) * kC, end) - 1; }
};

__device__ __forceinline__ void clear_rows(char* tile, int from) {
  for (int i = from * (kD / 8) + threadIdx.x % 128; i < kHalf * (kD / 8); i += 128) {
    *reinterpret_cast<uint4*>(tile + piece_offset(kHalf, i / (kD / 8), i % (kD / 8))) = make_uint4(0, 0, 0, 0);
  }
}

// Parity of a stage's barriers at a half, after a pass of `before` halves.
__device__ __forceinline__ int parity_of(int half, int before) {
  return half / kStages + (before - half % kStages + kStages - 1) / kStages & 1;
}

// First slot (and that + 8) and first column of a holder.
__device__ __forceinline__ int holder_slot(uint32_t thread) {
  return 16 * static_cast<int>(thread / 32) + static_cast<int>(thread % 32 / 4);
}
__device__ __forceinline__ int holder_column(uint32_t thread) { return 2 * static_cast<int>(thread % 4); }

// The state of a block's holders, [64 slots, 2 x 128 columns] of each warpgroup: from where a segment before it left it, from `given` in
// the order of memory ([K, M] for keys, [M, V] for values, from the section's first slot on), or nothing.
__device__ __forceinline__ void get_state(float (&state)[2][64], const float* carried, const float* given, bool keys,
                                          const Sm90ForwardParams& p) {
  const int slot = holder_slot(threadIdx.x % kHolders);
  const int column0 = holder_column(threadIdx.x % kHolders);
  const auto has = [&](int i) { return slot + 8 * (i / 2 % 2) < given_slots(p); };
  if (carried != nullptr) {
#pragma unroll
    for (int i = 0; i < 128; ++i) state[i / 64][i % 64] = carried[i * kHolders];
  } else if (given != nullptr && keys) {
#pragma unroll
    for (int i = 0; i < 128; ++i)
      state[i / 64][i % 64] = has(i) ? given[(column0 + 8 * (i / 4) + i % 2) * p.M + slot + 8 * (i / 2 % 2)] : 0.0F;
  } else if (given != nullptr) {
#pragma unroll
    for (int i = 0; i < 128; ++i)
      state[i / 64][i % 64] = has(i) ? given[(slot + 8 * (i / 2 % 2)) * kD + column0 + 8 * (i / 4) + i % 2] : 0.0F;
  } else {
#pragma unroll
    for (int i = 0; i < 128; ++i) state[i / 64][i % 64] = 0.0F;
  }
}

__device__ __forceinline__ void carry_state(const float (&state)[2][64], float* carried) {
#pragma unroll
  for (int i = 0; i < 128; ++i) carried[i * kHolders] = state[i / 64][i % 64];
}

// The whole state to memory, as get_state finds it, columns of keys times their weights, by way of the stages, which nothing uses any more:
// rows of memory, a little apart so that no bank is hit twice at once.
__device__ __forceinline__ void put_state(const float (&state)[2][64], bool keys, const float* weight, float* rows, float* to,
                                          const Sm90ForwardParams& p) {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // found again: registers are short in between
  thread %= kHolders;
  const int slot = holder_slot(thread);
  const int column0 = holder_column(thread);
  const int width = keys ? kM : kD;
  const int pitch = width + (keys ? 4 : 8);
  named_barrier(kProducers + 1, kHolders);
  if (keys) {
#pragma unroll
    for (int i = 0; i < 128; ++i) {
      const int column = column0 + 8 * (i / 4) + i % 2;
      rows[column * pitch + slot + 8 * (i / 2 % 2)] = state[i / 64][i % 64] * weight[column];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
      *reinterpret_cast<float2*>(rows + (slot + 8 * (i / 2 % 2)) * pitch + column0 + 8 * (i / 4)) =
          make_float2(state[i / 64][i % 64], state[i / 64][i % 64 + 1]);
    }
  }
  named_barrier(kProducers + 1, kHolders);
  for (int i = 4 * static_cast<int>(thread); i < kM * kD; i += 4 * kHolders) {
    const int row = i / width;
    const int column = i % width;
    if ((keys ? column : row) < given_slots(p)) {
      *reinterpret_cast<float4*>(to + row * (keys ? p.M : kD) + column) = *reinterpret_cast<const float4*>(rows + row * pitch + column);
    }
  }
}

// Rounds a warp's 16 rows of the state and hands them on in whole lines: each(row, column, eight numbers from that column on).
template <typename Each>
__device__ __forceinline__ void store_state(const float (&state)[2][64], char* corner, const Each& each) {
  const int lane = threadIdx.x % 32;
  const uint32_t at = shared_address(corner) + lane % 16 * kRowBytes;
#pragma unroll
  for (int panel = 0; panel < 4; ++panel) {
    const float* d = state[panel / 2];
    __syncwarp();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      uint32_t a[4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int i = 8 * (panel % 2) + 2 * kk + n;
        a[2 * n] = pack(d[4 * i], d[4 * i + 1]);
        a[2 * n + 1] = pack(d[4 * i + 2], d[4 * i + 3]);
      }
      store_blocks(at + (((2 * kk + lane / 16) ^ (lane & 7)) << 4), a[0], a[1], a[2], a[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + lane / 8;
      each(row, panel * kPanelColumns + 8 * (lane % 8),
           *reinterpret_cast<const uint4*>(corner + row * kRowBytes + ((lane % 8 ^ (row & 7)) << 4)));
    }
  }
}

constexpr int kCombineThreads = 256;

// Blocks (2 N H, M D / 4 / kCombineThreads), one float4 of a state a thread: S <- decay S + local over a sequence's segments in the order
// of the walk, but its last. The first is whole already.
template <bool kReverse>
__device__ __forceinline__ void combine_segments(const Sm90ForwardParams& p, const float2* gate, float* carried) {
  const int which = blockIdx.x % 2;
  const int h = blockIdx.x / 2 % p.H;
  const int n = blockIdx.x / 2 / p.H;
  const int first = p.first_tile[n];
  const int last = p.first_tile[n + 1];
  const int segments = segments_of(last - first);
  if (segments == 1) return;
  const int place = first / kSegmentTiles + n;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x;
  const auto segment_of = [&](int step) { return kReverse ? segments - 1 - step : step; };
  const auto state = [&](int step) {
    return reinterpret_cast<float4*>(carried + ((static_cast<int64_t>(place + segment_of(step)) * p.H + h) * 2 + which) * kM * kD) + at;
  };
  __shared__ float decay[kCombineThreads];
  float4 sum = *state(0);
  for (int begin = 1; begin + 1 < segments; begin += kCombineThreads) {
    const int mine = begin + static_cast<int>(threadIdx.x);
    __syncthreads();
    if (mine + 1 < segments) {
      float gates = 0.0F;
      const int tile = first + segment_of(mine) * kSegmentTiles;
      for (int t = tile; t < min(tile + kSegmentTiles, last); ++t) {
        const float2 end = gate[h * p.T + p.tile[t].token + p.tile[t].tokens - 1];
        gates += end.x + end.y;
      }
      decay[threadIdx.x] = exp2_fast(gates);
    }
    __syncthreads();
#pragma unroll 4
    for (int step = begin; step < min(begin + kCombineThreads, segments - 1); ++step) {
      const float factor = decay[step - begin];
      const float4 local = *state(step);
      sum = make_float4(fmaf(factor, sum.x, local.x), fmaf(factor, sum.y, local.y), fmaf(factor, sum.z, local.z),
                        fmaf(factor, sum.w, local.w));
      *state(step) = sum;
    }
  }
}

// Keys and values in one block where that takes no more waves: the blocks then end together.
inline cudaError_t choose_passes(const Sm90ForwardParams& p, int& passes) {
  int device = 0;
  int blocks = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const int walks = p.H * (has_segments(p) ? std::max(p.N, p.tiles / kSegmentTiles) : p.N);
  passes = 2 * ((walks + blocks - 1) / blocks) <= (2 * walks + blocks - 1) / blocks ? 2 : 1;
  return cudaSuccess;
}

}  // namespace cyfa::cyclic_flow
