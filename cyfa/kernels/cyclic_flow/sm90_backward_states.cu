// The walks of cyclic_flow's backward on Hopper, over tiles of 128 tokens:
//   forward   S' = gamma S + (b W)^T [K, V]               stores S, the state at each tile's start
//   reverse   dS = gamma dS' + (a dY)^T Q, (a U)^T dO      stores dS', the gradient of the state at each tile's end, and <S_V, dS_V'>
// One block walks 64 slots by 128 columns of one state of one head and sequence. A producing warpgroup copies rows in and applies the decay
// factors; another holds the state in registers. Overwrites the workspace's states, or its d_states and the gradients of the initial
// state. 96 KB of shared memory: four stages of 64 tokens, so that two blocks share a multiprocessor.
// A long walk is cut into segments, so that a few sequences fill the chip: all but the last are walked from zero for their ends alone, then
// each from its true start, the sum of the ends before it under their decay. The cut depends on the sequence's own length alone.
#include "cyfa/kernels/cyclic_flow/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

constexpr int kHalf = 64;      // tokens a stage
constexpr int kColumns = 128;  // columns a block
constexpr int kSlots = 64;     // slots a block
constexpr int kParts = kM / kSlots * (kD / kColumns);
constexpr int kStages = 4;
constexpr int kLeftBytes = kHalf * kSlots * 2;
constexpr int kRightBytes = kHalf * kColumns * 2;
constexpr int kWalkThreads = 256;

struct WalkShared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float whole[kStages];  // decay over the tile
};

constexpr int kWalkBytes = kStages * (kLeftBytes + kRightBytes) + static_cast<int>(sizeof(WalkShared));

// The tokens of one segment of a walk in its order, half a tile at a time. All tiles of a sequence but its last are full.
template <bool kReverse>
struct Halves {
  int first;       // tile of the sequence
  int total;       // halves of the sequence
  int segments;    // of the walk
  int before;      // halves walked in earlier segments
  int count;       // halves of this segment; 0 where there is no such segment
  int64_t token0;  // of the sequence
  int tokens;      // of the sequence; a walk of more than 2^31 has no room in memory

  __device__ Halves(const Sm90BackwardParams& p, int n, int segment)
      : first(p.in.first_tile[n]), total(2 * (p.in.first_tile[n + 1] - first)), token0(0), tokens(0) {
    const int tiles = total / 2;
    segments = tiles <= kWalkTiles ? 1 : (tiles + kSegmentTiles - 1) / kSegmentTiles;
    before = 2 * kSegmentTiles * segment;
    count = segment >= segments ? 0 : segments == 1 ? total : min(2 * kSegmentTiles, total - before);
    if (tiles == 0) return;
    const Tile last = p.in.tile[first + tiles - 1];
    token0 = p.in.tile[first].token;
    tokens = static_cast<int>(last.token - token0) + last.tokens;
  }
  __device__ int half(int step) const { return kReverse ? total - 1 - before - step : before + step; }
  __device__ int tile_index(int step) const { return first + half(step) / 2; }
  __device__ int64_t token(int step) const { return token0 + half(step) * kHalf; }
  __device__ int real(int step) const { return max(0, min(kHalf, tokens - half(step) * kHalf)); }
  __device__ int64_t last_of_tile(int step) const { return token0 + min(half(step) / 2 * kC + kC, tokens) - 1; }
};

// In place: two 16-byte pieces of a row of a stage's left operand times a factor.
__device__ __forceinline__ void scale_pieces(char* tile, int row, int piece0, float factor) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint4* at = reinterpret_cast<uint4*>(tile + piece_offset(kHalf, row, piece0 + i));
    uint4 x = *at;
    uint32_t* pairs = reinterpret_cast<uint32_t*>(&x);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 f = unpack(pairs[c]);
      pairs[c] = pack(f.x * factor, f.y * factor);
    }
    *at = x;
  }
}

template <bool kReverse>
__device__ __forceinline__ void produce(const Sm90BackwardParams& p, const Workspace& w, const Halves<kReverse>& halves, int h, int pass,
                                        int slot0, int column0, char* left, char* right, WalkShared& s) {
  const bf16* slots = kReverse ? (pass == kKeys ? w.d_scores : w.weights) : w.writes;
  const int slots_width = kReverse && pass == kKeys ? kM : kD;  // W and U lie in rows of d_v
  const void* rows = pass == kKeys ? (kReverse ? p.d_q : p.d_k) : (kReverse ? p.grad_o : p.in.v);
  const int64_t stride = pass == kValues && !kReverse ? p.in.v_stride : static_cast<int64_t>(p.in.H) * kD;
  const int64_t slots_stride = static_cast<int64_t>(p.in.H) * slots_width;
  const auto load = [&](int step) {
    if (step < halves.count) {
      const int64_t token = halves.token(step);
      const int real = halves.real(step);
      const int stage = step % kStages;
      load_tile<kHalf, kSlots / 8, 128>(shared_address(left + stage * kLeftBytes), slots + token * slots_stride + h * slots_width + slot0,
                                        slots_stride, real);
      load_tile<kHalf, kColumns / 8, 128>(shared_address(right + stage * kRightBytes),
                                          static_cast<const bf16*>(rows) + token * stride + h * kD + column0, stride, real);
    }
    copy_async_commit();
  };
  const int lane = threadIdx.x % 32;
  const int row = 16 * (threadIdx.x / 32) + lane % 8;  // and row + 8
  // Gates are fetched a step before they are used.
  struct Gates {
    float2 row0, row8, end;
  };
  const float2* gate = w.gate + h * p.in.T;
  const auto fetch = [&](int step) {
    const float2 zero = make_float2(0.0F, 0.0F);
    Gates g = {zero, zero, zero};
    if (step < halves.count) {
      g.end = gate[halves.last_of_tile(step)];
      if (row < halves.real(step)) g.row0 = gate[halves.token(step) + row];
      if (row + 8 < halves.real(step)) g.row8 = gate[halves.token(step) + row + 8];
    }
    return g;
  };
  const auto factor = [](float2 of_row, float2 end) {
    return kReverse ? gate_between(of_row, make_float2(0.0F, 0.0F)) : gate_between(end, of_row);
  };
  for (int step = 0; step < kStages - 1; ++step) load(step);
  Gates now = fetch(0);
  for (int step = 0; step < halves.count; ++step) {
    const int stage = step % kStages;
    const Gates next = fetch(step + 1);
    if (threadIdx.x == 0) s.whole[stage] = power_of_2(now.end.x);
    copy_async_wait<kStages - 2>();
    named_barrier(1, 128);
    scale_pieces(left + stage * kLeftBytes, row, 2 * (lane / 8), factor(now.row0, now.end));
    scale_pieces(left + stage * kLeftBytes, row + 8, 2 * (lane / 8), factor(now.row8, now.end));
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
    if (step >= 1) barrier_wait(&s.empty[(step - 1) % kStages], (step - 1) / kStages & 1);
    load(step + kStages - 1);
    now = next;
  }
}

// Where register i of a thread's state lies in memory, from the thread's first place on: [K, M] for keys, [M, V] for values.
__device__ constexpr int key_place(int i) { return (8 * (i / 4) + i % 2) * kM + 8 * (i / 2 % 2); }
__device__ constexpr int value_place(int i) { return 8 * (i / 2 % 2) * kD + 8 * (i / 4) + i % 2; }

// This thread's pieces of two rows of 128 columns of a state in memory, as store_rows has them.
struct StateRows {
  uint4 row0[4], row8[4];

  __device__ __forceinline__ void fetch(const bf16* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row0[i] = fetch_blocks(from, 4 * i, true);
      row8[i] = fetch_blocks(from + 8 * kD, 4 * i, true);
    }
  }
};

__device__ __forceinline__ float dot(const uint4& x, const uint4& y) {
  const uint32_t a[4] = {x.x, x.y, x.z, x.w};
  const uint32_t b[4] = {y.x, y.y, y.z, y.w};
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(unpack(a[i]).x, unpack(b[i]).x, fmaf(unpack(a[i]).y, unpack(b[i]).y, sum));
  return sum;
}

// Two rows of a 64 x 128 accumulator to memory as bf16, and their product with what was there, summed over the warp.
__device__ __forceinline__ float replace_rows(const float (&d)[64], const StateRows& before, bf16* to) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* at = d + 16 * i;
    const uint4 x = transpose_quad(make_uint4(pack(at[0], at[1]), pack(at[4], at[5]), pack(at[8], at[9]), pack(at[12], at[13])));
    const uint4 y = transpose_quad(make_uint4(pack(at[2], at[3]), pack(at[6], at[7]), pack(at[10], at[11]), pack(at[14], at[15])));
    sum += dot(x, before.row0[i]) + dot(y, before.row8[i]);
    const int column = 8 * (4 * i + static_cast<int>(threadIdx.x % 4));
    *reinterpret_cast<uint4*>(to + column) = x;
    *reinterpret_cast<uint4*>(to + 8 * kD + column) = y;
  }
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, bit);
  return sum;
}

// kEnds: the first walk of a long sequence's segments, each from a zero state; it only keeps their ends.
template <bool kReverse, bool kEnds>
__device__ __forceinline__ void walk(const Sm90BackwardParams& p, const Workspace& w) {
  extern __shared__ __align__(1024) char raw[];
  char* left = raw;
  char* right = left + kStages * kLeftBytes;
  WalkShared& s = *reinterpret_cast<WalkShared*>(right + kStages * kRightBytes);
  // The parts of a state are neighbours, so that what they share comes from memory once.
  const int part = static_cast<int>(blockIdx.x) % kParts;
  const int pass = static_cast<int>(blockIdx.x) / kParts % 2;
  const int slot0 = part / (kD / kColumns) * kSlots;
  const int column0 = part % (kD / kColumns) * kColumns;
  const int h = static_cast<int>(blockIdx.x) / (2 * kParts) % p.in.H;
  const int n = static_cast<int>(blockIdx.x) / (2 * kParts) / p.in.H;
  const int segment = static_cast<int>(blockIdx.y);
  const Halves<kReverse> halves(p, n, segment);
  if (kEnds ? segment + 1 >= halves.segments : segment >= halves.segments) return;
  // Ends of segments, [places, H, 2, parts, 16, 128] in the order of the consuming threads.
  const auto ends = [&](int of_segment) {
    const int64_t at = halves.first / kSegmentTiles + n + of_segment;
    return w.ends + (((at * p.in.H + h) * 2 + pass) * kParts + part) * (16 * 128) + threadIdx.x % 128;
  };
  if (threadIdx.x < kStages) {
    barrier_init(&s.full[threadIdx.x], 128);
    barrier_init(&s.empty[threadIdx.x], 128);
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    produce<kReverse>(p, w, halves, h, pass, slot0, column0, left, right, s);
  } else {
    const int lane = threadIdx.x % 32;
    const int place = (slot0 + 16 * static_cast<int>(threadIdx.x / 32 % 4) + lane / 4) * kD +
                      column0;  // of this thread's slot, and slot + 8, in a tile's state
    // This thread's first place in a state in memory; computed again at the end, since registers are short in between.
    const auto first_place = [&] {
      const int at = anew(lane);
      const int column = column0 + 2 * (at % 4);
      const int at_slot = slot0 + 16 * static_cast<int>(threadIdx.x / 32 % 4) + at / 4;
      return (static_cast<int64_t>(n) * p.in.H + h) * kM * kD + (pass == kKeys ? column * kM + at_slot : at_slot * kD + column);
    };
    float state[64];  // [64 slots, 128 columns]
    const float* given = kReverse ? (pass == kKeys ? p.grad_final_k : p.grad_final_v) : (pass == kKeys ? p.in.initial_k : p.in.initial_v);
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = 0.0F;
    if (!kEnds && given != nullptr) {
      const int64_t mine = first_place();
#pragma unroll
      for (int i = 0; i < 64; ++i) state[i] = given[mine + (pass == kKeys ? key_place(i) : value_place(i))];
    }
    // Through the segments that come first.
#pragma unroll 1
    for (int j = 0; !kEnds && j < segment; ++j) {
      float decay = 0.0F;
      for (int i = 0; i < kSegmentTiles; ++i) decay += w.gate[h * p.in.T + halves.last_of_tile(2 * (kSegmentTiles * (j - segment) + i))].x;
      decay = power_of_2(decay);
      const float4* end = ends(j);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float4 x = end[i * 128];
        state[4 * i] = fmaf(decay, state[4 * i], x.x);
        state[4 * i + 1] = fmaf(decay, state[4 * i + 1], x.y);
        state[4 * i + 2] = fmaf(decay, state[4 * i + 2], x.z);
        state[4 * i + 3] = fmaf(decay, state[4 * i + 3], x.w);
      }
    }
    StateRows before;  // S_V of the tile to come
    if (kReverse && !kEnds && pass == kValues && halves.count > 0) {
      before.fetch(d_state(p, w, halves.tile_index(0), h, pass) + place);
    }
    for (int step = 0; step < halves.count; ++step) {
      const int stage = step % kStages;
      const bool new_tile = (step & 1) == 0;
      if (!kEnds && new_tile) {
        const int tile = halves.tile_index(step);
        bf16* to = (kReverse ? d_state(p, w, tile, h, pass) : w.states + tile_state(p, tile, h, pass)) + place;
        if (kReverse && pass == kValues) {  // dS' takes the place of S
          const float whole = replace_rows(state, before, to);
          const uint32_t thread = anew(threadIdx.x);
          const int64_t unit = static_cast<int64_t>(tile) * p.in.H + h;
          if (thread % 32 == 0) w.whole[kValues][unit * kWholeParts + 4 * (blockIdx.x % kParts) + thread / 32 % 4] = whole;
          if (step + 2 < halves.count) before.fetch(d_state(p, w, tile - 1, h, pass) + place);
        } else {
          store_rows(state, to, to + 8 * kD, true, true);
        }
      }
      barrier_wait(&s.full[stage], step / kStages & 1);
      if (new_tile) scale_rows(state, s.whole[stage], s.whole[stage]);
      const uint32_t at_left = shared_address(left + stage * kLeftBytes);
      const uint32_t at_right = shared_address(right + stage * kRightBytes);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kHalf / 16; ++kk) {
        wgmma<1, 1>(state, along_rows(at_left, kHalf, 16 * kk, 0), along_rows(at_right, kHalf, 16 * kk, 0), 1);
      }
      wgmma_commit();
      wgmma_wait<0>();
      barrier_arrive(&s.empty[stage]);
    }
    if constexpr (kEnds) {
      float4* to = ends(segment);
#pragma unroll
      for (int i = 0; i < 16; ++i) to[i * 128] = make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
    } else if (kReverse && halves.before + halves.count == halves.total) {
      float* to = pass == kKeys ? p.d_initial_k : p.d_initial_v;
      if (to != nullptr) {
        const int64_t mine = first_place();
#pragma unroll
        for (int i = 0; i < 64; ++i) to[mine + (pass == kKeys ? key_place(i) : value_place(i))] = state[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kWalkThreads, 2)
    cyclic_flow_backward_states_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  walk<false, false>(p, w);
}
__global__ void __launch_bounds__(kWalkThreads, 2)
    cyclic_flow_backward_state_ends_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  walk<false, true>(p, w);
}
__global__ void __launch_bounds__(kWalkThreads, 2)
    cyclic_flow_backward_d_states_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  walk<true, false>(p, w);
}
__global__ void __launch_bounds__(kWalkThreads, 2)
    cyclic_flow_backward_d_state_ends_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  walk<true, true>(p, w);
}

}  // namespace

cudaError_t backward_states(const Sm90BackwardParams& p, bool reverse, cudaStream_t stream) {
  const int longest = longest_walk(p);
  const int segments = longest <= kWalkTiles ? 1 : (longest + kSegmentTiles - 1) / kSegmentTiles;
  const auto launch = [&](auto* kernel) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWalkBytes);
    if (status != cudaSuccess) return status;
    kernel<<<dim3(2 * kParts * p.in.N * p.in.H, segments), kWalkThreads, kWalkBytes, stream>>>(p, workspace_of(p));
    return cudaGetLastError();
  };
  if (segments > 1) {
    const cudaError_t status = launch(reverse ? cyclic_flow_backward_d_state_ends_sm90 : cyclic_flow_backward_state_ends_sm90);
    if (status != cudaSuccess) return status;
  }
  return launch(reverse ? cyclic_flow_backward_d_states_sm90 : cyclic_flow_backward_states_sm90);
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
