// The state scan, shared by forward (states) and backward (gradients of states): the scan over a sequence's tiles that names in the code
// call a walk. Defines which tokens a thread block scans, how the state in its registers is loaded and stored, and how segments are
// combined.
//
// Of the four warpgroups of a block, one or two hold the state in their accumulators, 64 slots each (the holders); the others are
// producers, which prepare 64 tokens each in turn. Several blocks may share a state by slots and by columns (WalkPlan). Every element is
// accumulated in the same order in every plan, so results do not depend on the plan, bit for bit. One launch scans keys and values if K =
// V; otherwise each has its own launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_parts.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::cyclic_flow {

using namespace sm90;

constexpr int kHalf = 64;  // tokens per pipeline stage
constexpr int kStages = 4;
constexpr int kCornerPanels = 2;
constexpr int kCornerBytes = kCornerPanels * 16 * kRowBytes;  // a warp's staging buffer, to store full lines of the state
constexpr int kStateThreads = kM * 2;  // threads over which the slots of a state are distributed, in one block or two
constexpr int kWalkThreads = 512;
constexpr int kHoldersBarrier = 4, kBlockBarrier = 5;  // lower ids belong to the producers

// Compile-time shape of a block that holds one of `kParts` parts of a state of `kPanels` panels of 64 columns: the whole state (1), 64
// slots (2), or 128 columns of 64 slots (4).
template <int kPartsOf, int kPanels>
struct WalkShape {
  static constexpr int kParts = kPartsOf;
  static_assert(kParts < 4 || kPanels == 4);
  static constexpr int kWidth = kPanels * kPanelColumns;
  static constexpr int kGroups = kPartsOf == 1 ? 2 : 1;  // holder warpgroups
  static constexpr int kSlots = kGroups * 64;
  static constexpr int kSpans = kPanels == 4 && kParts < 4 ? 2 : 1;  // spans of 128 columns (64 if the state has no more)
  static constexpr int kNumbers = kPanels == 1 ? 32 : 64;            // registers per thread and span
  static constexpr int kHolders = kGroups * 128;
  static constexpr int kProducers = kWalkThreads / 128 - kGroups;
  static constexpr int kStageBytes = kHalf * kWidth * 2;
  static constexpr int kStageNarrow = kHalf * kSlots * 2;
  static constexpr int kStagesBytes = kStages * (kStageBytes + kStageNarrow);
  static constexpr int kBytes = kStagesBytes + kHolders / 32 * kCornerBytes;
  static_assert(kProducers < kHoldersBarrier);
};

// Assignment of scans to thread blocks.
struct WalkPlan {
  int passes;     // 2: a block scans keys and values one after the other; 1: one of them
  int parts;      // parts that a state is divided into
  int only = -1;  // 0: the launch scans keys, 1: values, -1: both
};

// What a block scans. Each role constructs its own: a value that is live across the role split is spilled to local memory.
struct WalkShare {
  int first, h, place;
  int slots, span;  // which part of the slots and of the columns

  template <int kParts>
  static __device__ __forceinline__ WalkShare of_block(const WalkPlan& plan, int H) {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int part = block % kParts;
    block /= kParts;
    const bool one_of_two = plan.passes == 1 && plan.only < 0;
    const int pair = one_of_two ? block / 2 : block;
    return {plan.only >= 0 ? plan.only : one_of_two ? block : pair / H, pair % H, pair / H, part % 2, part / 2};
  }
  // Half of the blocks start with keys and half with values: keys take longer, values need more memory bandwidth. All heads of a sequence
  // start with the same, since their rows are adjacent in memory.
  __device__ bool keys(int pass) const { return (first + pass) % 2 == 0; }
};
inline int blocks_of(const WalkPlan& plan, const Sm90ForwardParams& p) {
  return segment_places(p) * p.H * (plan.only < 0 ? 2 / plan.passes : 1) * plan.parts;
}

struct Walk {
  int n, segment, segments;
  int first, tiles;
};

// The scan with segment index `place`; segment >= segments if the index is unused. Called by all threads of the block.
inline __device__ Walk walk_at(const Sm90ForwardParams& p, int place) {
  int low = place;
  if (has_segments(p)) {
    low = -1;  // becomes the last sequence whose first segment index is at most `place`
    for (int n = 0; n < p.N; n += kWalkThreads) {
      const int mine = n + static_cast<int>(threadIdx.x);
      low += __syncthreads_count(mine < p.N && first_place(p, mine, p.first_tile[min(mine, p.N - 1)]) <= place);
    }
  }
  Walk walk;
  walk.n = low;
  const int first = p.first_tile[low];
  const int tiles = p.first_tile[low + 1] - first;
  walk.segments = segments_of(tiles);
  walk.segment = place - first_place(p, low, first);
  walk.first = first + (walk.segments == 1 ? 0 : walk.segment * kSegmentTiles);
  walk.tiles = walk.segments == 1 ? tiles : min(kSegmentTiles, first + tiles - walk.first);
  return walk;
}

// The tokens of a scan in half tiles.
struct Halves {
  int count;
  int begin, end;  // token range of the scan

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

template <int kWidth>
__device__ __forceinline__ void clear_rows(char* tile, int from) {
  for (int i = from * (kWidth / 8) + threadIdx.x % 128; i < kHalf * (kWidth / 8); i += 128) {
    *reinterpret_cast<uint4*>(tile + piece_offset(kHalf, i / (kWidth / 8), i % (kWidth / 8))) = make_uint4(0, 0, 0, 0);
  }
}

// Parity of a stage's barriers for a half tile, if an earlier pass used the stages for `before` half tiles.
__device__ __forceinline__ int parity_of(int half, int before) {
  return half / kStages + (before - half % kStages + kStages - 1) / kStages & 1;
}

// Waits for the copies into a stage, and thereby for the end of the stage's previous use. If that use belonged to another producer, waits
// for its end explicitly first: a parity distinguishes a phase only from the next one.
template <int kProducers, typename Shared>
__device__ __forceinline__ void wait_loaded(Shared& s, int stage, int parity) {
  if constexpr (kStages % kProducers != 0) barrier_wait(&s.empty[stage], parity ^ 1);
  barrier_wait(&s.loaded[stage], parity);
}

// A thread's first slot (its other one is 8 further on) and first column; `thread` counts within kStateThreads.
__device__ __forceinline__ int holder_slot(uint32_t thread) {
  return 16 * static_cast<int>(thread / 32) + static_cast<int>(thread % 32 / 4);
}
__device__ __forceinline__ int holder_column(uint32_t thread) { return 2 * static_cast<int>(thread % 4); }

// Initialises the state in the holders' registers, [64 slots, kSpans x 2 N columns] per warpgroup: from the previous segment (`carried`),
// from a caller's state (`given`, at the thread's first slot and column; [K, M] for keys, [M, V] for values), or with zeros.
template <int kWidth, int kSpans, int N>
__device__ __forceinline__ void get_state(float (&state)[kSpans][N], const float* carried, const float* given, bool keys, int slot,
                                          const Sm90ForwardParams& p) {
  if (carried != nullptr) {
#pragma unroll
    for (int i = 0; i < kSpans * N; ++i) state[i / N][i % N] = carried[i * kStateThreads];
  } else if (given != nullptr) {
    const int next_column = keys ? p.M : 1;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const bool has = slot + 8 * lower < given_slots(p);
      const float* from = given + lower * (keys ? 8 : 8 * kWidth);
#pragma unroll
      for (int i = 2 * lower; i < kSpans * N; i += 4) {
        state[i / N][i % N] = has ? from[0] : 0.0F;
        state[i / N][i % N + 1] = has ? from[next_column] : 0.0F;
        from += 8 * next_column;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSpans * N; ++i) state[i / N][i % N] = 0.0F;
  }
}

template <int kSpans, int N>
__device__ __forceinline__ void carry_state(const float (&state)[kSpans][N], float* carried) {
#pragma unroll
  for (int i = 0; i < kSpans * N; ++i) carried[i * kStateThreads] = state[i / N][i % N];
}

// Stores the block's part of the state, with columns of keys multiplied by `weight`. The data is transposed through the pipeline stages,
// which are no longer in use; rows are padded against bank conflicts. `to` points to the section's first slot and the first column.
template <typename Shape, int kSpans, int N>
__device__ __forceinline__ void put_state(const float (&state)[kSpans][N], bool keys, const WalkShare& share, const float* weight,
                                          float* rows, float* to, const Sm90ForwardParams& p) {
  constexpr int kColumns = kSpans * 2 * N;
  static_assert(Shape::kStagesBytes >= kColumns * (Shape::kSlots + 4) * 4 && Shape::kStagesBytes >= Shape::kSlots * (kColumns + 8) * 4);
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // read again to reduce register pressure
  thread %= Shape::kHolders;
  const int slot = holder_slot(thread);
  const int column0 = holder_column(thread);
  const int width = keys ? Shape::kSlots : kColumns;
  const int pitch = width + (keys ? 4 : 8);
  weight += share.span * kColumns;
  named_barrier(kHoldersBarrier, Shape::kHolders);
  if (keys) {
#pragma unroll
    for (int i = 0; i < kSpans * N; ++i) {
      const int column = column0 + 8 * (i / 4) + i % 2;
      rows[column * pitch + slot + 8 * (i / 2 % 2)] = state[i / N][i % N] * weight[column];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSpans * N; i += 2) {
      *reinterpret_cast<float2*>(rows + (slot + 8 * (i / 2 % 2)) * pitch + column0 + 8 * (i / 4)) =
          make_float2(state[i / N][i % N], state[i / N][i % N + 1]);
    }
  }
  named_barrier(kHoldersBarrier, Shape::kHolders);
  const int first_slot = share.slots * Shape::kSlots;
  const int stride = keys ? p.M : Shape::kWidth;
  to += keys ? share.span * kColumns * p.M + first_slot : first_slot * Shape::kWidth + share.span * kColumns;
  for (int i = 4 * static_cast<int>(thread); i < Shape::kSlots * kColumns; i += 4 * Shape::kHolders) {
    const int row = i / width;
    const int column = i % width;
    if (first_slot + (keys ? column : row) < given_slots(p)) {
      *reinterpret_cast<float4*>(to + row * stride + column) = *reinterpret_cast<const float4*>(rows + row * pitch + column);
    }
  }
}

// Starts state += narrow^T wide over the tokens of a stage. The slot operand comes from registers, which saves the tensor cores a third of
// their shared memory reads; shared memory bandwidth limits the scan. `wide` is the panel of the first column.
template <int kSpans, int N>
__device__ __forceinline__ void multiply_stage(float (&state)[kSpans][N], const char* narrow, const char* wide, int group) {
  const int lane = threadIdx.x % 32;
  const int piece = 2 * static_cast<int>(threadIdx.x / 32 % 4) + lane / 8 % 2;
  const uint32_t from = shared_address(narrow) + group * kHalf * kRowBytes + piece_offset(kHalf, lane / 16 * 8 + lane % 8, piece);
  const uint32_t columns = shared_address(wide);
  uint32_t slots[kHalf / 16][4];
#pragma unroll
  for (int kk = 0; kk < kHalf / 16; ++kk) load_blocks_transposed(slots[kk], from + 16 * kk * kRowBytes);
  settle(slots);
  wgmma_fence();
#pragma unroll
  for (int span = 0; span < kSpans; ++span) {
#pragma unroll
    for (int kk = 0; kk < kHalf / 16; ++kk) wgmma<1>(state[span], slots[kk], along_rows(columns, kHalf, 16 * kk, 128 * span), 1);
  }
  wgmma_commit();
}

// Rounds a warp's 16 rows of the state to bf16 and passes them on in full lines: each(row, column, eight values from that column on).
template <int kSpans, int N, typename Each>
__device__ __forceinline__ void store_state(const float (&state)[kSpans][N], char* corner, const Each& each) {
  static_assert(kCornerPanels * kPanelColumns == 128);
  const int lane = threadIdx.x % 32;
  const uint32_t at = shared_address(corner) + lane % 16 * kRowBytes;
#pragma unroll
  for (int span = 0; span < kSpans; ++span) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      const float* d = state[span] + 8 * i;
      store_blocks(at + i / 4 * 16 * kRowBytes + (((2 * (i % 4) + lane / 16) ^ (lane & 7)) << 4), pack(d[0], d[1]), pack(d[2], d[3]),
                   pack(d[4], d[5]), pack(d[6], d[7]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      const int row = 4 * (i % 4) + lane / 8;
      each(row, 128 * span + i / 4 * kPanelColumns + 8 * (lane % 8),
           *reinterpret_cast<const uint4*>(corner + (i / 4 * 16 + row) * kRowBytes + ((lane % 8 ^ (row & 7)) << 4)));
    }
  }
}

constexpr int kCombineThreads = 256;

// Grid (2 N H, kM state_width / 4 / kCombineThreads), one float4 of a state per thread. Computes S <- decay S + local over a sequence's
// segments in scan order, except the last; the first is complete already.
template <bool kReverse>
__device__ __forceinline__ void combine_segments(const Sm90ForwardParams& p, const float2* gate, float* carried) {
  const int which = blockIdx.x % 2;
  const int h = blockIdx.x / 2 % p.H;
  const int n = blockIdx.x / 2 / p.H;
  const int first = p.first_tile[n];
  const int last = p.first_tile[n + 1];
  const int segments = segments_of(last - first);
  if (segments == 1) return;
  const int place = first_place(p, n, first);
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x;
  const auto segment_of = [&](int step) { return kReverse ? segments - 1 - step : step; };
  const int size = kM * state_width(p);
  const auto state = [&](int step) {
    return reinterpret_cast<float4*>(carried + ((static_cast<int64_t>(place + segment_of(step)) * p.H + h) * 2 + which) * size) + at;
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

// Chooses the plan with the shortest estimated time, in waves of blocks. One block scans both keys and values unless that takes more waves,
// since such blocks finish together. Splitting a state fills the GPU better, but reads keys and values repeatedly from the L2 cache.
inline cudaError_t plan_walks(const Sm90ForwardParams& p, int panels, int only, WalkPlan& plan) {
  // Time of a block with a half or a quarter of a state, relative to a whole one.
  constexpr float kTimeOfHalf = 0.6F, kTimeOfQuarter = 0.45F;
  int device = 0;
  int blocks = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const int walks = p.H * (has_segments(p) ? std::max(p.N, p.tiles / kSegmentTiles) : p.N);
  float least = INFINITY;
  const auto consider = [&](WalkPlan other, float time_of_block) {
    const int count = walks * (only < 0 ? 2 / other.passes : 1) * other.parts;
    const float time = time_of_block * static_cast<float>((count + blocks - 1) / blocks);
    if (time < least) plan = other;
    least = std::min(least, time);
  };
  if (only < 0) consider({2, 1}, 2.0F);
  consider({1, 1}, 1.0F);
  consider({1, 2}, kTimeOfHalf);
  if (panels == 4) consider({1, 4}, kTimeOfQuarter);
  plan.only = only;
  return cudaSuccess;
}

// Calls launch(WalkShape<kParts, kPanels>()) with compile-time constants.
template <typename Launch>
cudaError_t with_shape(int parts, int panels, const Launch& launch) {
  const auto with_panels = [&](auto count) {
    constexpr int kPanels = decltype(count)::value;
    if constexpr (kPanels == 4) {
      if (parts == 4) return launch(WalkShape<4, kPanels>());
    }
    return parts == 1 ? launch(WalkShape<1, kPanels>()) : launch(WalkShape<2, kPanels>());
  };
  return with_panel_count(panels, with_panels);
}

// Calls launch(panels, only) once for keys and values if they have the same width, otherwise once for each.
template <typename Launch>
cudaError_t for_widths(const Sm90ForwardParams& p, const Launch& launch) {
  if (p.K == p.V) return launch(p.K / kPanelColumns, -1);
  const cudaError_t status = launch(p.K / kPanelColumns, 0);
  return status != cudaSuccess ? status : launch(p.V / kPanelColumns, 1);
}

}  // namespace cyfa::cyclic_flow
