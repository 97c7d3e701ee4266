// Stage 6 of docs/operator.md on Hopper: walks every sequence and stores both states at every tile's start (one block a walk, head and state).
//   local     where a sequence is cut into segments: the walk over each segment but the last, from nothing
//   combine   the states at the segments' ends, one after another
//   walk      every segment from its first state; stores the states
// A block has two warpgroups that produce, 64 tokens each in turn, and two that hold the state in registers, 64 slots x 256 columns each. Overwrites
// states, rate and carried of the workspace and the final states.
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
constexpr int kHolders = 256;  // threads that hold the state
constexpr int kThreads = kProducers * 128 + kHolders;

struct StatesParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap k, v;
};

struct Shared {
  uint64_t loaded[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float whole[kStages];  // decay over the tile
  float rate[kStages][kHalf];  // of keys
  float weight[kD];      // of k's norm
};

constexpr int kSharedBytes = kStages * (kStageBytes + kStageWrites) + static_cast<int>(sizeof(Shared));

// What is done about the norm of keys. The cheapest is to leave them as they are, put their rates on the write vectors and the norm's weight on the
// states that are stored; a given initial state, which has the weight already, forbids it.
enum class Way { kNothing, kRates, kNormalise };

struct Walk {
  int n, segment, segments;
  int first, tiles;
};

// The walk at a place; without tiles and past the sequence's segments where there is none.
__device__ Walk walk_at(const Sm90ForwardParams& p, int place) {
  int low = 0;
  int high = p.N - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.first_tile[middle] / kSegmentTiles + middle <= place) low = middle; else high = middle - 1;
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
  int64_t begin, end;  // tokens of the walk

  __device__ Halves(const Sm90ForwardParams& p, const Walk& walk) : count(2 * walk.tiles), begin(0), end(0) {
    if (count == 0) return;
    const Tile last = p.tile[walk.first + walk.tiles - 1];
    begin = p.tile[walk.first].token;
    end = last.token + last.tokens;
  }
  __device__ int64_t token(int half) const { return begin + half * kHalf; }
  __device__ int real(int half) const { return static_cast<int>(max(int64_t{0}, min(int64_t{kHalf}, end - token(half)))); }
  __device__ int64_t last_of_tile(int half) const { return min(begin + (half / 2 + 1) * kC, end) - 1; }
};

// In place: RMSNorm of keys, rows from `real` on become zero. A warp takes 8 rows at a time, a lane one panel of a row: no bank is hit twice at once.
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
    const float4* weights = reinterpret_cast<const float4*>(weight) + 16 * panel;
#pragma unroll 2
    for (int i = 0; i < 8; ++i) {
      uint4* at = reinterpret_cast<uint4*>(tile + piece_offset(kHalf, row, 8 * panel + i));
      const uint4 x = *at;
      const float4 w0 = __ldg(weights + 2 * i);
      const float4 w1 = __ldg(weights + 2 * i + 1);
      const float2 f0 = unpack(x.x);
      const float2 f1 = unpack(x.y);
      const float2 f2 = unpack(x.z);
      const float2 f3 = unpack(x.w);
      uint4 y = make_uint4(pack(f0.x * rate * w0.x, f0.y * rate * w0.y), pack(f1.x * rate * w0.z, f1.y * rate * w0.w),
                           pack(f2.x * rate * w1.x, f2.y * rate * w1.y), pack(f3.x * rate * w1.z, f3.y * rate * w1.w));
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

// Asks for the keys or values of a stage.
__device__ __forceinline__ void load(const StatesParams& params, const Halves& halves, int h, bool keys, int half, char* tiles, Shared& s) {
  const int stage = half % kStages;
  barrier_expect(&s.loaded[stage], kStageBytes);
#pragma unroll
  for (int panel = 0; panel < kD / kPanelColumns; ++panel) {
    copy_box(shared_address(tiles + stage * kStageBytes + panel * kHalf * kRowBytes), keys ? &params.k : &params.v, h * kD + panel * kPanelColumns,
             static_cast<int>(halves.token(half)), &s.loaded[stage]);
  }
}

// Fills every second stage: keys or values, and the write vectors with their decay to the tile's end.
template <bool kLocal>
__device__ __forceinline__ void produce(const StatesParams& params, const Workspace& w, const Halves& halves, int h, bool keys, Way way, char* tiles,
                                        char* writes, Shared& s) {
  const Sm90ForwardParams& p = params.p;
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
    const Row next = fetch(half + 2);
    const int real = halves.real(half);
    char* tile = tiles + stage * kStageBytes;
    float factor = now.beta * gate_between(now.end, now.gate);
    if (half >= kStages) barrier_wait(&s.empty[stage], half / kStages - 1 & 1);
    barrier_wait(&s.loaded[stage], half / kStages & 1);
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
      *reinterpret_cast<uint4*>(to + piece_offset(kHalf, row, piece)) = write_piece(now.turn, factor, piece);
    }
    if (thread == 0) s.whole[stage] = exp_fast(now.end.x + now.end.y);
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
    now = next;
  }
}

// Where register i of a thread's state lies in memory, from the thread's first place on: [K, M] for keys, [M, V] for values.
__device__ constexpr int key_place(int i) { return (8 * (i / 4) + i % 2) * kM + 8 * (i / 2 % 2); }
__device__ constexpr int value_place(int i) { return 8 * (i / 2 % 2) * kD + 8 * (i / 4) + i % 2; }

// The warp's 16 rows of a 64 x 128 accumulator, its columns times their weights, as bf16.
__device__ __forceinline__ void store_weighted(const float (&d)[64], const float* weight, bf16* to) {
#pragma unroll
  for (int i = 0; i < 16; i += 8) {
    float x[32];
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const float2 c = *reinterpret_cast<const float2*>(weight + 8 * (i + b) + 2 * (threadIdx.x % 4));
      x[4 * b] = d[4 * (i + b)] * c.x;
      x[4 * b + 1] = d[4 * (i + b) + 1] * c.y;
      x[4 * b + 2] = d[4 * (i + b) + 2] * c.x;
      x[4 * b + 3] = d[4 * (i + b) + 3] * c.y;
    }
    store_rows(x, to + 8 * i, kD, 16);
  }
}

template <bool kLocal>
__global__ void __launch_bounds__(kThreads, 1) cyclic_flow_forward_states_sm90(const __grid_constant__ StatesParams params) {
  extern __shared__ __align__(1024) char tiles[];
  const Sm90ForwardParams& p = params.p;
  char* writes = tiles + kStages * kStageBytes;
  Shared& s = *reinterpret_cast<Shared*>(writes + kStages * kStageWrites);
  const Workspace& w = params.w;
  const bool keys = blockIdx.x % 2 == 0;
  const int h = blockIdx.x / 2 % p.H;
  const int place = blockIdx.x / 2 / p.H;
  const Walk walk = walk_at(p, place);
  if (walk.segment >= walk.segments || (kLocal && walk.segment + 1 == walk.segments)) return;
  const Halves halves(p, walk);
  const Way way = !keys || p.k_norm_weight == nullptr ? Way::kNothing : p.initial_k == nullptr ? Way::kRates : Way::kNormalise;
  for (int i = threadIdx.x; i < kD; i += kThreads) s.weight[i] = way == Way::kRates ? p.k_norm_weight[i] : 1.0F;
  if (threadIdx.x < kStages) {
    barrier_init(&s.loaded[threadIdx.x], 1);
    barrier_init(&s.full[threadIdx.x], 128);
    barrier_init(&s.empty[threadIdx.x], kHolders / 32);
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < kProducers * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    produce<kLocal>(params, w, halves, h, keys, way, tiles, writes, s);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    const int thread = static_cast<int>(threadIdx.x) - kProducers * 128;
    const int group = thread / 128;
    const int lane = thread % 32;
    const int slot = 64 * group + 16 * (thread / 32 % 4) + lane / 4;  // and slot + 8
    const int column0 = 2 * (lane % 4);
    const int64_t base = (static_cast<int64_t>(walk.n) * p.H + h) * kM * kD;
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

    const bool begun = walk.segment > 0 || !starts_from_nothing(p);
    for (int half = 0; half < halves.count; ++half) {
      const int stage = half % kStages;
      if (!kLocal && (half & 1) == 0 && (half > 0 || begun)) {
        bf16* to = tile_state(w, p, walk.first + half / 2, h, keys ? 0 : 1) + thread / 32 * 16 * kD;
        store_weighted(state[0], s.weight, to);
        store_weighted(state[1], s.weight + 128, to + 128);
      }
      barrier_wait(&s.full[stage], half / kStages & 1);
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
        barrier_wait(&s.empty[stage], half / kStages & 1);
        load(params, halves, h, keys, half + kStages, tiles, s);
      }
      __syncwarp();
    }
    if (kLocal) {
      float* to = carried_state(w, p, place, h, keys ? 0 : 1) + thread;
#pragma unroll
      for (int i = 0; i < 128; ++i) to[i * kHolders] = state[i / 64][i % 64];
    } else if (walk.segment + 1 == walk.segments) {
      if (keys) {
#pragma unroll
        for (int i = 0; i < 128; ++i) p.final_k[mine + key_place(i)] = state[i / 64][i % 64] * s.weight[column0 + 8 * (i / 4) + i % 2];
      } else {
#pragma unroll
        for (int i = 0; i < 128; ++i) p.final_v[mine + value_place(i)] = state[i / 64][i % 64];
      }
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
      sum = make_float4(fmaf(factor, sum.x, local.x), fmaf(factor, sum.y, local.y), fmaf(factor, sum.z, local.z), fmaf(factor, sum.w, local.w));
      *state(segment) = sum;
    }
  }
}

template <bool kLocal>
cudaError_t launch(const StatesParams& params, cudaStream_t stream) {
  const auto kernel = &cyclic_flow_forward_states_sm90<kLocal>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  kernel<<<segment_places(params.p) * params.p.H * 2, kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sm90_forward_states(const Sm90ForwardParams& p, cudaStream_t stream) {
  StatesParams params = {p, workspace_of(p), {}, {}};
  if (p.tiles > 0) {
    cudaError_t status = make_tensor_map(params.k, p.k, p.T, static_cast<int64_t>(p.H) * kD, p.k_stride, kHalf);
    if (status == cudaSuccess) status = make_tensor_map(params.v, p.v, p.T, static_cast<int64_t>(p.H) * kD, p.v_stride, kHalf);
    if (status != cudaSuccess) return status;
  }
  if (has_segments(p)) {
    const cudaError_t status = launch<true>(params, stream);
    if (status != cudaSuccess) return status;
    cyclic_flow_forward_combine_sm90<<<dim3(p.N * p.H * 2, kM * kD / 4 / kCombineThreads), kCombineThreads, 0, stream>>>(p);
  }
  return launch<false>(params, stream);
}

}  // namespace cyfa::cyclic_flow
