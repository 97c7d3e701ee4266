// Stage 6 of docs/operator.md on Hopper: walks every sequence and stores both states at every tile's start.
//   local     where a sequence is cut into segments: the walk over each segment but the last, from nothing
//   combine   the states at the segments' ends, one after another
//   walk      every segment from its first state; stores the states
// A block has two warpgroups that produce, 64 tokens each in turn, and two that hold the state in registers, 64 slots x 256 columns each.
// It walks keys or values of one head, or both one after the other. Overwrites states, rate and carried of the workspace and the final
// states.
//
// Shared memory, 211 KB: four stages of 64 keys or values (32 KB) and their write vectors (16 KB); a corner of 2 KB a warp. At a walk's end
// the stages hold the final state on its way to memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "cyfa/kernels/cyclic_flow/sm90_parts.cuh"
#include "cyfa/kernels/hopper/tma.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace hopper;

constexpr int kHalf = 64;  // tokens of a stage
constexpr int kStages = 4;
constexpr int kStageBytes = kHalf * kD * 2;
constexpr int kStageWrites = kHalf * kM * 2;
constexpr int kProducers = 2;
constexpr int kCornerBytes = 16 * kRowBytes;  // where a warp turns its rows of the state into whole lines
constexpr int kHolders = 256;                 // threads that hold the state
constexpr int kThreads = kProducers * 128 + kHolders;

struct StatesParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap k, v;
  int passes;  // 2: a block walks keys and values one after the other; 1: one of them
};

struct Shared {
  uint64_t loaded[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float whole[kStages];        // decay over the tile
  float rate[kStages][kHalf];  // of keys
  int walk[7];  // Walk and Halves: each role finds them here, since what is kept from before the roles part is kept in memory
  alignas(16) float weight[kD];  // what columns of the stored states are multiplied by
};

constexpr int kStagesBytes = kStages * (kStageBytes + kStageWrites);
constexpr int kSharedBytes = kStagesBytes + kHolders / 32 * kCornerBytes + static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes <= 227 * 1024);
static_assert(kStagesBytes >= kD * (kM + 4) * 4 && kStagesBytes >= kM * (kD + 8) * 4, "the stages hold a final state");

// What is done about the norm of keys. The cheapest is to leave them as they are, put their rates on the write vectors and the norm's
// weight on the states that are stored; a given initial state, which has the weight already, forbids it.
enum class Way { kNothing, kRates, kNormalise };

struct Walk {
  int n, segment, segments;
  int first, tiles;
};

// The walk at a place; past the sequence's segments where there is none. By the whole block.
__device__ Walk walk_at(const Sm90ForwardParams& p, int place) {
  int low = -1;  // the last sequence whose first place is not behind this one
  for (int n = 0; n < p.N; n += kThreads) {
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

// In place: RMSNorm of keys, rows from `real` on become zero. A warp takes 8 rows at a time, a lane one panel of a row: no bank is hit
// twice at once.
__device__ __forceinline__ void normalise_keys(char* tile, const float* weight, float eps, int real, float* rates) {
  const int lane = threadIdx.x % 32;
  const int panel = lane / 8;
#pragma unroll 1
  for (int row = threadIdx.x / 32 % 4 * 8 + lane % 8; row < kHalf; row += 32) {
    // Twice through the row: to keep it would cost registers that the holders need.
    float sum = 0.0F;
#pragma unroll 4
    for (int i = 0; i < 8; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(tile + piece_offset(kHalf, row, 8 * panel + i));
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 f = unpack(pairs[c]);
        sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
      }
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 8);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 16);
    const float rate = rsqrtf(sum / kD + eps);
    if (rates != nullptr && panel == 0 && row < real) rates[row] = rate;
#pragma unroll 2
    for (int i = 0; i < 8; ++i) {
      uint4* at = reinterpret_cast<uint4*>(tile + piece_offset(kHalf, row, 8 * panel + i));
      const uint4 x = *at;
      const float* w = weight + kPanelColumns * panel + 8 * i;
      const float2 f0 = unpack(x.x);
      const float2 f1 = unpack(x.y);
      const float2 f2 = unpack(x.z);
      const float2 f3 = unpack(x.w);
      uint4 y = make_uint4(pack(f0.x * rate * w[0], f0.y * rate * w[1]), pack(f1.x * rate * w[2], f1.y * rate * w[3]),
                           pack(f2.x * rate * w[4], f2.y * rate * w[5]), pack(f3.x * rate * w[6], f3.y * rate * w[7]));
      if (row >= real) y = make_uint4(0, 0, 0, 0);
      *at = y;
    }
  }
}

// 1 / rms of keys.
__device__ __forceinline__ void key_rates(const char* tile, float eps, float* rates) {
  const int lane = threadIdx.x % 32;
  const int panel = lane / 8;
#pragma unroll
  for (int first = 0; first < kHalf; first += 32) {
    const int row = first + threadIdx.x / 32 % 4 * 8 + lane % 8;
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(tile + piece_offset(kHalf, row, 8 * panel + i));
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 f = unpack(pairs[c]);
        sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
      }
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 8);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 16);
    if (panel == 0) rates[row] = rsqrtf(sum / kD + eps);
  }
}

__device__ __forceinline__ void clear_rows(char* tile, int from) {
  for (int i = from * (kD / 8) + threadIdx.x % 128; i < kHalf * (kD / 8); i += 128) {
    *reinterpret_cast<uint4*>(tile + piece_offset(kHalf, i / (kD / 8), i % (kD / 8))) = make_uint4(0, 0, 0, 0);
  }
}

__device__ __forceinline__ Way way_of(const Sm90ForwardParams& p, bool keys) {
  return !keys || p.k_norm_weight == nullptr ? Way::kNothing : p.initial_k == nullptr ? Way::kRates : Way::kNormalise;
}

// Parity of a stage's barriers at a half, after a pass of `before` halves.
__device__ __forceinline__ int parity_of(int half, int before) {
  return half / kStages + (before - half % kStages + kStages - 1) / kStages & 1;
}

// Asks for the keys or values of a stage.
__device__ __forceinline__ void load(const StatesParams& params, const Halves& halves, int h, bool keys, int half, char* tiles, Shared& s) {
  const int stage = half % kStages;
  barrier_expect(&s.loaded[stage], kStageBytes);
#pragma unroll
  for (int panel = 0; panel < kD / kPanelColumns; ++panel) {
    copy_box(shared_address(tiles + stage * kStageBytes + panel * kHalf * kRowBytes), keys ? &params.k : &params.v,
             h * kD + panel * kPanelColumns, halves.token(half), &s.loaded[stage]);
  }
}

// Fills every second stage: keys or values, and the write vectors with their decay to the tile's end.
template <bool kLocal>
__device__ __forceinline__ void produce(const StatesParams& params, const Workspace& w, const Halves& halves, int h, bool keys, int before,
                                        char* tiles, char* writes, Shared& s) {
  const Sm90ForwardParams& p = params.p;
  const Way way = way_of(p, keys);
  const int thread = threadIdx.x % 128;
  const int row = thread % kHalf;
  const int piece0 = 8 * (thread / kHalf);
  struct Row {
    uint32_t turn;
    float2 gate, end;
    float beta;
  };
  const auto fetch = [&](int half) {
    Row r = {0, make_float2(0.0F, 0.0F), make_float2(0.0F, 0.0F), 0.0F};
    if (half < halves.count) {
      const int64_t token = halves.token(half) + row;
      r.end = w.gate[h * p.T + halves.last_of_tile(half)];
      if (row < halves.real(half)) {
        r.turn = w.turn[h * p.T + token];
        r.gate = w.gate[h * p.T + token];
        r.beta = p.beta[token * p.H + h];
      }
    }
    return r;
  };
  const int own = threadIdx.x / 128;
  if (thread == 0) {
    for (int half = own; half < min(halves.count, kStages); half += kProducers) load(params, halves, h, keys, half, tiles, s);
  }
  Row now = fetch(own);
  for (int half = own; half < halves.count; half += kProducers) {
    const int stage = half % kStages;
    const int real = halves.real(half);
    char* tile = tiles + stage * kStageBytes;
    float factor = now.beta * gate_between(now.end, now.gate);
    const float whole = exp_fast(now.end.x + now.end.y);
    const uint32_t turn = now.turn;
    asm volatile("" : "+f"(factor)::"memory");  // the next loads come after: a wait for the last ones would be a wait for them too
    now = fetch(half + 2);
    barrier_wait(&s.loaded[stage], parity_of(half, before));  // so the stage's last use is over
    if (way == Way::kRates) {
      key_rates(tile, p.norm_eps, s.rate[stage]);
      named_barrier(1 + own, 128);
      const float rate = s.rate[stage][row];
      if (row < real) factor *= rate;
      if (!kLocal && thread < real) w.rate[h * p.T + halves.token(half) + row] = rate;
    } else if (way == Way::kNormalise) {
      normalise_keys(tile, p.k_norm_weight, p.norm_eps, real, kLocal ? nullptr : w.rate + h * p.T + halves.token(half));
    } else if (!kLocal && keys && thread < real) {
      w.rate[h * p.T + halves.token(half) + thread] = 1.0F;
    }
    if (real < kHalf && way != Way::kNormalise) clear_rows(tile, real);
    char* to = writes + stage * kStageWrites;
#pragma unroll 2
    for (int piece = piece0; piece < piece0 + 8; ++piece) {
      *reinterpret_cast<uint4*>(to + piece_offset(kHalf, row, piece)) = write_piece(turn, factor, piece);
    }
    if (thread == 0) s.whole[stage] = whole;
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
  }
}

// Where register i of a thread's state lies in memory, from the thread's first place on: [K, M] for keys, [M, V] for values.
__device__ constexpr int key_place(int i) { return (8 * (i / 4) + i % 2) * kM + 8 * (i / 2 % 2); }
__device__ constexpr int value_place(int i) { return 8 * (i / 2 % 2) * kD + 8 * (i / 4) + i % 2; }

// The warp's 16 rows of a 64 x 128 accumulator, its columns times their weights, to rows of a stored state, whole lines at a time.
__device__ __forceinline__ void store_weighted(const float (&d)[64], const float* weight, char* corner, bf16* to) {
  const int lane = threadIdx.x % 32;
  const uint32_t at = shared_address(corner) + lane % 16 * kRowBytes;
#pragma unroll
  for (int panel = 0; panel < 2; ++panel) {
    __syncwarp();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      uint32_t a[4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int i = 8 * panel + 2 * kk + n;
        const float2 c = *reinterpret_cast<const float2*>(weight + 8 * i + 2 * (lane % 4));
        a[2 * n] = pack(d[4 * i] * c.x, d[4 * i + 1] * c.y);
        a[2 * n + 1] = pack(d[4 * i + 2] * c.x, d[4 * i + 3] * c.y);
      }
      store_blocks(at + (((2 * kk + lane / 16) ^ (lane & 7)) << 4), a[0], a[1], a[2], a[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + lane / 8;
      const uint4 x = *reinterpret_cast<const uint4*>(corner + row * kRowBytes + ((lane % 8 ^ (row & 7)) << 4));
      *reinterpret_cast<uint4*>(to + row * kD + panel * kPanelColumns + 8 * (lane % 8)) = x;
    }
  }
}

template <bool kLocal>
__global__ void __launch_bounds__(kThreads, 1) cyclic_flow_forward_states_sm90(const __grid_constant__ StatesParams params) {
  extern __shared__ __align__(1024) char tiles[];
  const Sm90ForwardParams& p = params.p;
  char* writes = tiles + kStages * kStageBytes;
  char* corners = writes + kStages * kStageWrites;
  Shared& s = *reinterpret_cast<Shared*>(corners + kHolders / 32 * kCornerBytes);
  const Workspace& w = params.w;
  const int pair = params.passes == 2 ? blockIdx.x : blockIdx.x / 2;
  const int h = pair % p.H;
  const int place = pair / p.H;
  {
    const Walk walk = walk_at(p, place);
    if (walk.segment >= walk.segments || (kLocal && walk.segment + 1 == walk.segments)) return;
    if (threadIdx.x == 0) {
      const Halves halves(p, walk);
      const int kept[7] = {walk.n, walk.segment, walk.segments, walk.first, halves.count, halves.begin, halves.end};
      for (int i = 0; i < 7; ++i) s.walk[i] = kept[i];
    }
  }
  if (threadIdx.x < kStages) {
    barrier_init(&s.loaded[threadIdx.x], 1);
    barrier_init(&s.full[threadIdx.x], 128);
    barrier_init(&s.empty[threadIdx.x], kHolders / 32);
    fence_barrier_init();
  }
  __syncthreads();
  // Half of the blocks begin with keys and half with values: keys take longer, values ask more of the memory.
  const auto keys_at = [&](int pass) { return (blockIdx.x + pass) % 2 == 0; };

  if (threadIdx.x < kProducers * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    const Halves halves(s.walk);
#pragma unroll 1
    for (int pass = 0; pass < params.passes; ++pass) {
      produce<kLocal>(params, w, halves, h, keys_at(pass), pass * halves.count, tiles, writes, s);
      named_barrier(kProducers + 2, kThreads);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
    const Halves halves(s.walk);
    const Walk walk = {s.walk[0], s.walk[1], s.walk[2], s.walk[3], halves.count / 2};
    const int thread = static_cast<int>(threadIdx.x) - kProducers * 128;
    const int group = thread / 128;
    const int lane = thread % 32;
    const int slot = 64 * group + 16 * (thread / 32 % 4) + lane / 4;  // and slot + 8
    const int column0 = 2 * (lane % 4);
    const int64_t base = (static_cast<int64_t>(walk.n) * p.H + h) * kM * kD;
    const bool begun = walk.segment > 0 || !starts_from_nothing(p);
#pragma unroll 1
    for (int pass = 0; pass < params.passes; ++pass) {
      const bool keys = keys_at(pass);
      const Way way = way_of(p, keys);
      const float q_weight = keys && p.q_norm_weight != nullptr ? p.q_norm_weight[thread] : 1.0F;
      s.weight[thread] = way == Way::kRates ? q_weight * p.k_norm_weight[thread] : q_weight;
      named_barrier(kProducers + 1, kHolders);
      const int64_t mine = base + (keys ? column0 * kM + slot : slot * kD + column0);
      float state[2][64];  // [64 slots, 2 x 128 columns] of this warpgroup
      if (walk.segment > 0 && !kLocal) {
        const float* from = carried_state(w, p, place - 1, h, keys ? 0 : 1) + thread;
#pragma unroll
        for (int i = 0; i < 128; ++i) state[i / 64][i % 64] = from[i * kHolders];
      } else if (walk.segment == 0 && keys && p.initial_k != nullptr) {
#pragma unroll
        for (int i = 0; i < 128; ++i) state[i / 64][i % 64] = p.initial_k[mine + key_place(i)];
      } else if (walk.segment == 0 && !keys && p.initial_v != nullptr) {
#pragma unroll
        for (int i = 0; i < 128; ++i) state[i / 64][i % 64] = p.initial_v[mine + value_place(i)];
      } else {
#pragma unroll
        for (int i = 0; i < 128; ++i) state[i / 64][i % 64] = 0.0F;
      }

#pragma unroll 1
      for (int half = 0; half < halves.count; ++half) {
        const int stage = half % kStages;
        const int parity = parity_of(half, pass * halves.count);
        if (!kLocal && (half & 1) == 0 && (half > 0 || begun)) {
          bf16* to = tile_state(w, p, walk.first + half / 2, h, keys ? 0 : 1) + thread / 32 * 16 * kD;
          char* corner = corners + thread / 32 * kCornerBytes;
          store_weighted(state[0], s.weight, corner, to);
          store_weighted(state[1], s.weight + 128, corner, to + 128);
        }
        barrier_wait(&s.full[stage], parity);
        if ((half & 1) == 0) {
          const float whole = s.whole[stage];
#pragma unroll
          for (int i = 0; i < 128; ++i) state[i / 64][i % 64] *= whole;
        }
        const uint32_t at_x = shared_address(tiles + stage * kStageBytes);
        const uint32_t at_w = shared_address(writes + stage * kStageWrites);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < kHalf / 16; ++kk) {
          wgmma<1, 1>(state[0], along_rows(at_w, kHalf, 16 * kk, 64 * group), along_rows(at_x, kHalf, 16 * kk, 0), 1);
          wgmma<1, 1>(state[1], along_rows(at_w, kHalf, 16 * kk, 64 * group), along_rows(at_x, kHalf, 16 * kk, 128), 1);
        }
        wgmma_commit();
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(&s.empty[stage]);
        if (thread == 0 && half + kStages < halves.count) {
          barrier_wait(&s.empty[stage], parity);
          load(params, halves, h, keys, half + kStages, tiles, s);
        }
        __syncwarp();
      }
      if (kLocal) {
        float* to = carried_state(w, p, place, h, keys ? 0 : 1) + thread;
#pragma unroll
        for (int i = 0; i < 128; ++i) to[i * kHolders] = state[i / 64][i % 64];
      } else if (walk.segment + 1 == walk.segments) {
        // By way of the stages, which nothing uses any more: rows of memory, a little apart so that no bank is hit twice at once.
        float* rows = reinterpret_cast<float*>(tiles);
        const int width = keys ? kM : kD;
        const int pitch = width + (keys ? 4 : 8);
        named_barrier(kProducers + 1, kHolders);
        s.weight[thread] = way == Way::kRates ? p.k_norm_weight[thread] : 1.0F;
        named_barrier(kProducers + 1, kHolders);
        if (keys) {
#pragma unroll
          for (int i = 0; i < 128; ++i) {
            const int column = column0 + 8 * (i / 4) + i % 2;
            rows[column * pitch + slot + 8 * (i / 2 % 2)] = state[i / 64][i % 64] * s.weight[column];
          }
        } else {
#pragma unroll
          for (int i = 0; i < 128; i += 2) {
            *reinterpret_cast<float2*>(rows + (slot + 8 * (i / 2 % 2)) * pitch + column0 + 8 * (i / 4)) =
                make_float2(state[i / 64][i % 64], state[i / 64][i % 64 + 1]);
          }
        }
        named_barrier(kProducers + 1, kHolders);
        float* to = (keys ? p.final_k : p.final_v) + base;
        for (int i = 4 * thread; i < kM * kD; i += 4 * kHolders) {
          *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(rows + i / width * pitch + i % width);
        }
      }
      fence_async_proxy();  // what comes next into the stages comes by copies
      named_barrier(kProducers + 2, kThreads);
    }
  }
}

constexpr int kCombineThreads = 256;

// One float4 of a state a thread: S <- decay S + local, over the segments of a sequence but its last. The first is whole already.
__global__ void __launch_bounds__(kCombineThreads) cyclic_flow_forward_combine_sm90(const __grid_constant__ Sm90ForwardParams p) {
  const Workspace w = workspace_of(p);
  const int which = blockIdx.x % 2;
  const int h = blockIdx.x / 2 % p.H;
  const int n = blockIdx.x / 2 / p.H;
  const int first = p.first_tile[n];
  const int segments = segments_of(p.first_tile[n + 1] - first);
  if (segments == 1) return;
  const int place = first / kSegmentTiles + n;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x;
  const auto state = [&](int segment) { return reinterpret_cast<float4*>(carried_state(w, p, place + segment, h, which)) + at; };
  __shared__ float decay[kCombineThreads];
  float4 sum = *state(0);
  for (int begin = 1; begin + 1 < segments; begin += kCombineThreads) {
    const int mine = begin + static_cast<int>(threadIdx.x);
    __syncthreads();
    if (mine + 1 < segments) {
      float gates = 0.0F;
      for (int t = first + mine * kSegmentTiles; t < first + (mine + 1) * kSegmentTiles; ++t) {
        const float2 end = w.gate[h * p.T + p.tile[t].token + p.tile[t].tokens - 1];
        gates += end.x + end.y;
      }
      decay[threadIdx.x] = exp_fast(gates);
    }
    __syncthreads();
#pragma unroll 4
    for (int segment = begin; segment < min(begin + kCombineThreads, segments - 1); ++segment) {
      const float factor = decay[segment - begin];
      const float4 local = *state(segment);
      sum = make_float4(fmaf(factor, sum.x, local.x), fmaf(factor, sum.y, local.y), fmaf(factor, sum.z, local.z),
                        fmaf(factor, sum.w, local.w));
      *state(segment) = sum;
    }
  }
}

template <bool kLocal>
cudaError_t launch(const StatesParams& params, cudaStream_t stream) {
  const auto kernel = &cyclic_flow_forward_states_sm90<kLocal>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  kernel<<<segment_places(params.p) * params.p.H*(params.passes == 2 ? 1 : 2), kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

// Keys and values in one block where that takes no more waves: the blocks then end together.
cudaError_t choose_passes(StatesParams& params) {
  int device = 0;
  int blocks = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const int walks = params.p.H * (has_segments(params.p) ? std::max(params.p.N, params.p.tiles / kSegmentTiles) : params.p.N);
  params.passes = 2 * ((walks + blocks - 1) / blocks) <= (2 * walks + blocks - 1) / blocks ? 2 : 1;
  return cudaSuccess;
}

}  // namespace

cudaError_t sm90_forward_states(const Sm90ForwardParams& p, cudaStream_t stream) {
  StatesParams params = {p, workspace_of(p), {}, {}, 1};
  cudaError_t status = choose_passes(params);
  if (status != cudaSuccess) return status;
  if (p.tiles > 0) {
    status = make_tensor_map(params.k, p.k, p.T, static_cast<int64_t>(p.H) * kD, p.k_stride, kHalf);
    if (status == cudaSuccess) status = make_tensor_map(params.v, p.v, p.T, static_cast<int64_t>(p.H) * kD, p.v_stride, kHalf);
    if (status != cudaSuccess) return status;
  }
  if (has_segments(p)) {
    status = launch<true>(params, stream);
    if (status != cudaSuccess) return status;
    cyclic_flow_forward_combine_sm90<<<dim3(p.N * p.H * 2, kM * kD / 4 / kCombineThreads), kCombineThreads, 0, stream>>>(p);
  }
  return launch<false>(params, stream);
}

}  // namespace cyfa::cyclic_flow
