// Stage 6 of docs/operator.md on Hopper: scans every sequence and stores both states at every tile start.
//   local     only for split sequences: the scan over each segment except the last, from a zero state
//   combine   the states at the ends of the segments, sequentially
//   walk      every segment from its initial state; stores the states
// A thread block (sm90_walk.cuh) scans keys or values of one head, or both one after the other, for a whole state or a part of it. Called
// by sm90_forward.cu. Overwrites states, rate[0] and carried of the workspace, and the final states.
//
// Shared memory, up to 227 KB: four pipeline stages, each with 64 keys or values (32 KB, less for narrow heads) and their write vectors (16
// KB, or 8 KB for half of the slots), and a 4 KB staging buffer per holder warp. At the end of a scan the stages hold the final state on
// its way to global memory.
#include <cuda_runtime.h>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_walk.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace sm90;

struct StatesParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap k, v;
  WalkPlan plan;
};

struct Shared {
  uint64_t loaded[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float whole[kStages];          // decay over the whole tile
  float rate[kStages][kHalf];    // 1 / rms of keys
  int walk[7];                   // Walk and Halves, shared with all roles: registers live across the role split would be spilled
  alignas(16) float weight[kD];  // factors of the final state's columns
};

template <typename Shape>
constexpr int kSharedBytes = Shape::kBytes + static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes<WalkShape<1, 4>> <= 227 * 1024);

// 1 / rms of the stage's keys.
template <int kPanels>
__device__ __forceinline__ void key_rates(const char* tile, float eps, float* rates) {
  constexpr int kLanes = kPanels == 4 ? 4 : 2;  // lanes per row
  constexpr int kRows = 32 / kLanes;            // rows per warp at a time
  constexpr int kPieces = 8 * kPanels / kLanes;
  const int lane = threadIdx.x % 32;
  const int part = lane / kRows;
#pragma unroll
  for (int first = 0; first < kHalf; first += 4 * kRows) {
    const int row = first + threadIdx.x / 32 % 4 * kRows + lane % kRows;
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(tile + piece_offset(kHalf, row, kPieces * part + i));
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 f = unpack(pairs[c]);
        sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
      }
    }
#pragma unroll
    for (int lanes = kRows; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
    if (part == 0) rates[row] = rsqrtf(sum / (kPanels * kPanelColumns) + eps);
  }
}

// Issues the TMA copies of a stage's keys or values. Of keys always all columns, since 1 / rms needs them.
template <typename Shape>
__device__ __forceinline__ void load(const StatesParams& params, const Halves& halves, const WalkShare& share, bool keys, int half,
                                     char* tiles, Shared& s) {
  constexpr int kAll = Shape::kWidth / kPanelColumns;
  constexpr int kOwn = Shape::kSpans * Shape::kNumbers * 2 / kPanelColumns;
  const int stage = half % kStages;
  const int first = keys ? 0 : share.span * kOwn;
  const int panels = keys ? kAll : kOwn;
  barrier_expect(&s.loaded[stage], panels * kHalf * kRowBytes);
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    if (i < panels) {
      copy_box(shared_address(tiles + stage * Shape::kStageBytes + (first + i) * kHalf * kRowBytes), keys ? &params.k : &params.v,
               share.h * Shape::kWidth + (first + i) * kPanelColumns, halves.token(half), &s.loaded[stage], evict_last());
    }
  }
}

// Fills a producer's stages: keys or values, and the write vectors of the block's slots, decayed to the tile's end.
template <bool kLocal, typename Shape>
__device__ __forceinline__ void produce(const StatesParams& params, const Workspace& w, const Halves& halves, const WalkShare& share,
                                        bool keys, int before, char* tiles, char* writes, Shared& s) {
  constexpr int kProducers = Shape::kProducers;
  constexpr int kPieces = Shape::kSlots / 8;  // pieces of a write vector; a thread computes half of them
  const Sm90ForwardParams& p = params.p;
  const int h = share.h;
  const bool first_part = share.slots == 0 && share.span == 0;
  const bool norm = keys && p.k_norm_weight != nullptr;
  const int thread = threadIdx.x % 128;
  const int row = thread % kHalf;
  const int piece0 = kPieces / 2 * (thread / kHalf);
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
    for (int half = own; half < min(halves.count, kStages); half += kProducers) load<Shape>(params, halves, share, keys, half, tiles, s);
  }
  Row now = fetch(own);
  for (int half = own; half < halves.count; half += kProducers) {
    const int stage = half % kStages;
    const int real = halves.real(half);
    char* tile = tiles + stage * Shape::kStageBytes;
    float factor = now.beta * gate_between(now.end, now.gate);
    const float whole = exp2_fast(now.end.x + now.end.y);
    const uint32_t turn = now.turn;
    asm volatile("" : "+f"(factor)::"memory");  // issue the next loads only now: waiting for the previous ones would wait for them too
    now = fetch(half + kProducers);
    wait_loaded<kProducers>(s, stage, parity_of(half, before));
    if (norm) {
      key_rates<Shape::kWidth / kPanelColumns>(tile, p.norm_eps, s.rate[stage]);
      named_barrier(1 + own, 128);
      const float rate = s.rate[stage][row];
      if (row < real) factor *= rate;
      if (!kLocal && first_part && thread < real) w.rate[0][h * p.T + halves.token(half) + row] = rate;
    } else if (!kLocal && keys && first_part && thread < real) {
      w.rate[0][h * p.T + halves.token(half) + thread] = 1.0F;
    }
    if (real < kHalf) clear_rows<Shape::kWidth>(tile, real);
    char* to = writes + stage * Shape::kStageNarrow;
#pragma unroll 2
    for (int piece = piece0; piece < piece0 + kPieces / 2; ++piece) {
      *reinterpret_cast<uint4*>(to + piece_offset(kHalf, row, piece)) = write_piece(turn, factor, share.slots * kPieces + piece, w.slots);
    }
    if (thread == 0) s.whole[stage] = whole;
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
    // With three producers, one has time to wait until the stage is free; with two, the holders issue the copies.
    if (kProducers == 3 && thread == 0 && half + kStages < halves.count) {
      barrier_wait(&s.empty[stage], parity_of(half, before));
      load<Shape>(params, halves, share, keys, half + kStages, tiles, s);
    }
    __syncwarp();
  }
}

template <bool kLocal, typename Shape>
__global__ void __launch_bounds__(kWalkThreads, 1) cyclic_flow_forward_states_sm90(const __grid_constant__ StatesParams params) {
  constexpr int kProducers = Shape::kProducers;
  constexpr int N = Shape::kNumbers;
  extern __shared__ __align__(1024) char tiles[];
  const Sm90ForwardParams& p = params.p;
  char* writes = tiles + kStages * Shape::kStageBytes;
  char* corners = tiles + Shape::kStagesBytes;
  Shared& s = *reinterpret_cast<Shared*>(tiles + Shape::kBytes);
  const Workspace& w = params.w;
  const int passes = params.plan.passes;
  {
    const Walk walk = walk_at(p, WalkShare::of_block<Shape::kParts>(params.plan, p.H).place);
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
    barrier_init(&s.empty[threadIdx.x], Shape::kHolders / 32);
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < kProducers * 128) {
    if constexpr (kProducers == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if constexpr (kProducers == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    const Halves halves(s.walk);
    const WalkShare share = WalkShare::of_block<Shape::kParts>(params.plan, p.H);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      produce<kLocal, Shape>(params, w, halves, share, share.keys(pass), pass * halves.count, tiles, writes, s);
      named_barrier(kBlockBarrier, kWalkThreads);
    }
  } else {
    if constexpr (kProducers == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    if constexpr (kProducers == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Halves halves(s.walk);
    const Walk walk = {s.walk[0], s.walk[1], s.walk[2], s.walk[3], halves.count / 2};
    const WalkShare share = WalkShare::of_block<Shape::kParts>(params.plan, p.H);
    const int h = share.h;
    const int thread = static_cast<int>(threadIdx.x) - kProducers * 128;
    const int of_state = share.slots * Shape::kHolders + thread;  // index within kStateThreads
    const int group = thread / 128;
    const int lane = thread % 32;
    const bool begun = walk.segment > 0 || !starts_from_nothing(p);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      const bool keys = share.keys(pass);
      const int column = share.span * 128 + holder_column(of_state);
      const int slot = holder_slot(of_state);
      const int64_t mine = given_state(p, walk.n, h, keys) + (keys ? column * p.M + slot : slot * Shape::kWidth + column);
      float state[Shape::kSpans][N];  // [64 slots, kSpans x 2 N columns] of this warpgroup
      const float* given = walk.segment > 0 ? nullptr : keys ? p.initial_k : p.initial_v;
      const auto carried = [&](int place) {
        return carried_state(w, p, place, h, keys ? 0 : 1) + share.span * 64 * kStateThreads + of_state;
      };
      get_state<Shape::kWidth>(state, !kLocal && walk.segment > 0 ? carried(share.place - 1) : nullptr,
                               given != nullptr ? given + mine : nullptr, keys, slot, p);

#pragma unroll 1
      for (int half = 0; half < halves.count; ++half) {
        const int stage = half % kStages;
        const int parity = parity_of(half, pass * halves.count);
        const bool new_tile = (half & 1) == 0;
        if (!kLocal && new_tile && (half > 0 || begun)) {
          const int stride = Shape::kWidth == kD ? kD : state_width(p);
          bf16* to = tile_state(w, p, walk.first + half / 2, h, keys ? 0 : 1) + of_state / 32 * 16 * stride + share.span * 128;
          store_state(state, corners + thread / 32 * kCornerBytes,
                      [&](int row, int column, uint4 x) { *reinterpret_cast<uint4*>(to + row * stride + column) = x; });
        }
        barrier_wait(&s.full[stage], parity);
        if (new_tile) {
          const float whole = s.whole[stage];
#pragma unroll
          for (int i = 0; i < Shape::kSpans * N; ++i) state[i / N][i % N] *= whole;
        }
        multiply_stage(state, writes + stage * Shape::kStageNarrow,
                       tiles + stage * Shape::kStageBytes + share.span * 128 / kPanelColumns * kHalf * kRowBytes, group);
        // Meanwhile, refill the previous stage once all holder warps have released it.
        if (kProducers < 3 && thread == 0 && half > 0 && half - 1 + kStages < halves.count) {
          barrier_wait(&s.empty[(half - 1) % kStages], parity_of(half - 1, pass * halves.count));
          load<Shape>(params, halves, share, keys, half - 1 + kStages, tiles, s);
        }
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(&s.empty[stage]);
        __syncwarp();
      }
      if (kLocal) {
        carry_state(state, carried(share.place));
      } else if (walk.segment + 1 == walk.segments && p.final_v != nullptr) {
        named_barrier(kHoldersBarrier, Shape::kHolders);
        for (int i = thread; i < Shape::kWidth; i += Shape::kHolders) {
          s.weight[i] = keys && p.k_norm_weight != nullptr ? p.k_norm_weight[i] : 1.0F;
        }
        put_state<Shape>(state, keys, share, s.weight, reinterpret_cast<float*>(tiles),
                         (keys ? p.final_k : p.final_v) + given_state(p, walk.n, h, keys), p);
      }
      fence_async_proxy();  // TMA writes the stages next
      named_barrier(kBlockBarrier, kWalkThreads);
    }
  }
}

__global__ void __launch_bounds__(kCombineThreads) cyclic_flow_forward_combine_sm90(const __grid_constant__ Sm90ForwardParams p) {
  const Workspace w = workspace_of(p);
  combine_segments<false>(p, w.gate, w.carried);
}

template <bool kLocal>
cudaError_t launch(const StatesParams& params, int panels, cudaStream_t stream) {
  return with_shape(params.plan.parts, panels, [&](auto shape) {
    using Shape = decltype(shape);
    const auto kernel = &cyclic_flow_forward_states_sm90<kLocal, Shape>;
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Shape>);
    if (status != cudaSuccess) return status;
    kernel<<<blocks_of(params.plan, params.p), kWalkThreads, kSharedBytes<Shape>, stream>>>(params);
    return cudaGetLastError();
  });
}

template <bool kLocal>
cudaError_t launch_all(StatesParams params, cudaStream_t stream) {
  return for_widths(params.p, [&](int panels, int only) {
    const cudaError_t status = plan_walks(params.p, panels, only, params.plan);
    return status != cudaSuccess ? status : launch<kLocal>(params, panels, stream);
  });
}

}  // namespace

cudaError_t sm90_forward_states(const Sm90ForwardParams& p, cudaStream_t stream) {
  StatesParams params = {p, workspace_of(p), {}, {}, {}};
  cudaError_t status = cudaSuccess;
  if (p.tiles > 0) {
    status = make_tensor_map(params.k, p.k, p.T, static_cast<int64_t>(p.H) * p.K, p.k_stride, kHalf);
    if (status == cudaSuccess) status = make_tensor_map(params.v, p.v, p.T, static_cast<int64_t>(p.H) * p.V, p.v_stride, kHalf);
    if (status != cudaSuccess) return status;
  }
  if (has_segments(p)) {
    status = launch_all<true>(params, stream);
    if (status != cudaSuccess) return status;
    const dim3 blocks(p.N * p.H * 2, kM * state_width(p) / 4 / kCombineThreads);
    cyclic_flow_forward_combine_sm90<<<blocks, kCombineThreads, 0, stream>>>(p);
  }
  return launch_all<false>(params, stream);
}

}  // namespace cyfa::cyclic_flow
