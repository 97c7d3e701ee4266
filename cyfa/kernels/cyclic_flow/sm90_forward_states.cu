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

#include "cyfa/kernels/cyclic_flow/sm90_walk.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace hopper;

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
  alignas(16) float weight[kD];  // what columns of the final state are multiplied by
};

constexpr int kStagesBytes = kStages * (kStageBytes + kStageNarrow);
constexpr int kSharedBytes = kStagesBytes + kHolders / 32 * kCornerBytes + static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes <= 227 * 1024);
static_assert(kStagesBytes >= kD * (kM + 4) * 4 && kStagesBytes >= kM * (kD + 8) * 4, "the stages hold a final state");

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
  const bool norm = keys && p.k_norm_weight != nullptr;
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
    const float whole = exp2_fast(now.end.x + now.end.y);
    const uint32_t turn = now.turn;
    asm volatile("" : "+f"(factor)::"memory");  // the next loads come after: a wait for the last ones would be a wait for them too
    now = fetch(half + 2);
    barrier_wait(&s.loaded[stage], parity_of(half, before));  // so the stage's last use is over
    if (norm) {
      key_rates(tile, p.norm_eps, s.rate[stage]);
      named_barrier(1 + own, 128);
      const float rate = s.rate[stage][row];
      if (row < real) factor *= rate;
      if (!kLocal && thread < real) w.rate[0][h * p.T + halves.token(half) + row] = rate;
    } else if (!kLocal && keys && thread < real) {
      w.rate[0][h * p.T + halves.token(half) + thread] = 1.0F;
    }
    if (real < kHalf) clear_rows(tile, real);
    char* to = writes + stage * kStageNarrow;
#pragma unroll 2
    for (int piece = piece0; piece < piece0 + 8; ++piece) {
      *reinterpret_cast<uint4*>(to + piece_offset(kHalf, row, piece)) = write_piece(turn, factor, piece, w.slots);
    }
    if (thread == 0) s.whole[stage] = whole;
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
  }
}

template <bool kLocal>
__global__ void __launch_bounds__(kWalkThreads, 1) cyclic_flow_forward_states_sm90(const __grid_constant__ StatesParams params) {
  extern __shared__ __align__(1024) char tiles[];
  const Sm90ForwardParams& p = params.p;
  char* writes = tiles + kStages * kStageBytes;
  char* corners = writes + kStages * kStageNarrow;
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
  // Half of the blocks begin with keys and half with values: keys take longer, values ask more of the memory. All heads of a sequence begin
  // with the same, since their rows are neighbours.
  const auto keys_at = [&](int pass) { return ((params.passes == 2 ? blockIdx.x / p.H : blockIdx.x) + pass) % 2 == 0; };

  if (threadIdx.x < kProducers * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    const Halves halves(s.walk);
#pragma unroll 1
    for (int pass = 0; pass < params.passes; ++pass) {
      produce<kLocal>(params, w, halves, h, keys_at(pass), pass * halves.count, tiles, writes, s);
      named_barrier(kProducers + 2, kWalkThreads);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
    const Halves halves(s.walk);
    const Walk walk = {s.walk[0], s.walk[1], s.walk[2], s.walk[3], halves.count / 2};
    const int thread = static_cast<int>(threadIdx.x) - kProducers * 128;
    const int group = thread / 128;
    const int lane = thread % 32;
    const bool begun = walk.segment > 0 || !starts_from_nothing(p);
#pragma unroll 1
    for (int pass = 0; pass < params.passes; ++pass) {
      const bool keys = keys_at(pass);
      const int64_t mine = given_state(p, walk.n, h, keys);
      float state[2][64];  // [64 slots, 2 x 128 columns] of this warpgroup
      const float* given = walk.segment > 0 ? nullptr : keys ? p.initial_k : p.initial_v;
      get_state(state, !kLocal && walk.segment > 0 ? carried_state(w, p, place - 1, h, keys ? 0 : 1) + thread : nullptr,
                given != nullptr ? given + mine : nullptr, keys, p);

#pragma unroll 1
      for (int half = 0; half < halves.count; ++half) {
        const int stage = half % kStages;
        const int parity = parity_of(half, pass * halves.count);
        if (!kLocal && (half & 1) == 0 && (half > 0 || begun)) {
          bf16* to = tile_state(w, p, walk.first + half / 2, h, keys ? 0 : 1) + thread / 32 * 16 * kD;
          store_state(state, corners + thread / 32 * kCornerBytes,
                      [&](int row, int column, uint4 x) { *reinterpret_cast<uint4*>(to + row * kD + column) = x; });
        }
        barrier_wait(&s.full[stage], parity);
        if ((half & 1) == 0) {
          const float whole = s.whole[stage];
#pragma unroll
          for (int i = 0; i < 128; ++i) state[i / 64][i % 64] *= whole;
        }
        const uint32_t at_x = shared_address(tiles + stage * kStageBytes);
        const uint32_t at_w = shared_address(writes + stage * kStageNarrow);
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
        carry_state(state, carried_state(w, p, place, h, keys ? 0 : 1) + thread);
      } else if (walk.segment + 1 == walk.segments) {
        named_barrier(kProducers + 1, kHolders);
        s.weight[thread] = keys && p.k_norm_weight != nullptr ? p.k_norm_weight[thread] : 1.0F;
        put_state(state, keys, s.weight, reinterpret_cast<float*>(tiles), (keys ? p.final_k : p.final_v) + given_state(p, walk.n, h, keys),
                  p);
      }
      fence_async_proxy();  // what comes next into the stages comes by copies
      named_barrier(kProducers + 2, kWalkThreads);
    }
  }
}

__global__ void __launch_bounds__(kCombineThreads) cyclic_flow_forward_combine_sm90(const __grid_constant__ Sm90ForwardParams p) {
  const Workspace w = workspace_of(p);
  combine_segments<false>(p, w.gate, w.carried);
}

template <bool kLocal>
cudaError_t launch(const StatesParams& params, cudaStream_t stream) {
  const auto kernel = &cyclic_flow_forward_states_sm90<kLocal>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  kernel<<<segment_places(params.p) * params.p.H*(params.passes == 2 ? 1 : 2), kWalkThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sm90_forward_states(const Sm90ForwardParams& p, cudaStream_t stream) {
  StatesParams params = {p, workspace_of(p), {}, {}, 1};
  cudaError_t status = choose_passes(p, params.passes);
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
