// The reverse state scan of the Hopper backward, over tiles of 128 tokens (docs/operator.md, "Chunks"):
//   dS_K = gamma dS_K' + (a dY~)^T q      dS_V = gamma dS_V' + (a U)^T dO
//   local     only for split sequences: the scan over each segment except the first, from zero
//   combine   the gradients at the starts of the segments, sequentially from the last
//   walk      every segment from its end; stores dS', the gradient of the state at each tile's end
// Thread blocks work as in forward's scan (sm90_walk.cuh): keys or values of one head, or both one after the other, for a whole state or a
// part of it. Called by sm90_backward.cu. Overwrites d_q and d_v (or spare) with dS', carried of the workspace, and the gradients of the
// initial states.
//
// Shared memory, up to 227 KB: four pipeline stages, each with 64 rows of q or dO (32 KB, less for narrow heads) and of dY~ or U (16 KB, or
// 8 KB for half of the slots), and a 4 KB staging buffer per holder warp.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_device.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_walk.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

struct WalkParams {
  Sm90BackwardParams p;
  Workspace w;
  CUtensorMap q, grad_o, narrow;
  WalkPlan plan;
};

struct WalkShared {
  uint64_t loaded[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float whole[kStages];  // decay over the whole tile
  int walk[7];           // Walk and Halves, shared with all roles: registers live across the role split would be spilled
  alignas(16) float weight[kD];
};

template <typename Shape>
constexpr int kWalkBytes = Shape::kBytes + static_cast<int>(sizeof(WalkShared));
static_assert(kWalkBytes<WalkShape<1, 4>> <= 227 * 1024);

// The half tiles of a scan in scan order, from the last.
__device__ __forceinline__ int half_at(const Halves& halves, int step) { return halves.count - 1 - step; }

// Issues the TMA copies of a stage.
template <typename Shape>
__device__ __forceinline__ void load(const WalkParams& params, const Halves& halves, const WalkShare& share, bool keys, int step,
                                     char* wide, char* narrow, WalkShared& s) {
  constexpr int kNarrowPanels = Shape::kSlots / kPanelColumns;
  constexpr int kWidePanels = Shape::kSpans * Shape::kNumbers * 2 / kPanelColumns;
  const int stage = step % kStages;
  const int token = halves.token(half_at(halves, step));
  barrier_expect(&s.loaded[stage], (kWidePanels + kNarrowPanels) * kHalf * kRowBytes);
#pragma unroll
  for (int i = 0; i < kNarrowPanels; ++i) {
    copy_box(shared_address(narrow + stage * Shape::kStageNarrow + i * kHalf * kRowBytes), &params.narrow,
             share.h * 2 * kM + (keys ? 0 : kM) + (share.slots * kNarrowPanels + i) * kPanelColumns, token, &s.loaded[stage]);
  }
#pragma unroll
  for (int i = 0; i < kWidePanels; ++i) {
    const int panel = share.span * kWidePanels + i;
    copy_box(shared_address(wide + stage * Shape::kStageBytes + panel * kHalf * kRowBytes), keys ? &params.q : &params.grad_o,
             share.h * Shape::kWidth + panel * kPanelColumns, token, &s.loaded[stage]);
  }
}

// Completes a producer's stages: multiplies the rows of dY~ or U by the decay from the tile's start.
template <typename Shape>
__device__ __forceinline__ void produce(const WalkParams& params, const Halves& halves, const WalkShare& share, bool keys, int before,
                                        char* wide, char* narrow, WalkShared& s) {
  constexpr int kProducers = Shape::kProducers;
  constexpr int kPieces = Shape::kSlots / 8;  // pieces of a row; a thread handles half of them
  const Sm90ForwardParams& p = params.p.in;
  const float2* gate = params.w.gate + share.h * p.T;
  const int thread = threadIdx.x % 128;
  const int row = thread % kHalf;
  const int piece0 = kPieces / 2 * (thread / kHalf);
  const int own = threadIdx.x / 128;
  if (thread == 0) {
    for (int step = own; step < min(halves.count, kStages); step += kProducers) {
      load<Shape>(params, halves, share, keys, step, wide, narrow, s);
    }
  }
  struct Gates {
    float of_row, of_end;
  };
  const auto fetch = [&](int step) {
    Gates g = {0.0F, 0.0F};
    if (step < halves.count) {
      const int half = half_at(halves, step);
      g.of_end = gate[halves.last_of_tile(half)].x;
      if (row < halves.real(half)) g.of_row = gate[halves.token(half) + row].x;
    }
    return g;
  };
  Gates now = fetch(own);
  for (int step = own; step < halves.count; step += kProducers) {
    const int stage = step % kStages;
    const int real = halves.real(half_at(halves, step));
    float factor = exp2_fast(now.of_row);
    const float whole = exp2_fast(now.of_end);
    asm volatile("" : "+f"(factor)::"memory");  // issue the next loads only now: waiting for the previous ones would wait for them too
    now = fetch(step + kProducers);
    wait_loaded<kProducers>(s, stage, parity_of(step, before));
    char* rows = narrow + stage * Shape::kStageNarrow;
#pragma unroll 4
    for (int piece = piece0; piece < piece0 + kPieces / 2; ++piece) {
      uint4* at = reinterpret_cast<uint4*>(rows + piece_offset(kHalf, row, piece));
      uint4 x = *at;
      uint32_t* pairs = reinterpret_cast<uint32_t*>(&x);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 f = unpack(pairs[c]);
        pairs[c] = row < real ? pack(f.x * factor, f.y * factor) : 0U;
      }
      *at = x;
    }
    if (real < kHalf) clear_rows<Shape::kWidth>(wide + stage * Shape::kStageBytes, real);
    if (thread == 0) s.whole[stage] = whole;
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
    // If the block holds a part of the state, producers have time to wait until the stage is free; otherwise the holders issue the copies.
    if (Shape::kParts > 1 && thread == 0 && step + kStages < halves.count) {
      barrier_wait(&s.empty[stage], parity_of(step, before));
      load<Shape>(params, halves, share, keys, step + kStages, wide, narrow, s);
    }
    __syncwarp();
  }
}

// Location of dS' for a step's tile: what p.in.tile would give, without the memory latency.
__device__ __forceinline__ StatePlace place_of_tile(const Sm90BackwardParams& p, const Workspace& w, const Halves& halves, int step, int n,
                                                    int h, bool keys) {
  const int token = halves.token(half_at(halves, step) & ~1);
  return d_state_at(p, w, {token, min(kC, halves.end - token), n}, h, keys ? kKeys : kValues);
}

template <bool kLocal, typename Shape>
__global__ void __launch_bounds__(kWalkThreads, 1) cyclic_flow_backward_states_sm90(const __grid_constant__ WalkParams params) {
  constexpr int kParts = Shape::kParts;
  constexpr int N = Shape::kNumbers;
  constexpr int kFirstHolder = Shape::kProducers * 128;
  extern __shared__ __align__(1024) char wide[];
  const Sm90BackwardParams& p = params.p;
  const Workspace& w = params.w;
  char* narrow = wide + kStages * Shape::kStageBytes;
  char* corners = wide + Shape::kStagesBytes;
  WalkShared& s = *reinterpret_cast<WalkShared*>(wide + Shape::kBytes);
  const int passes = params.plan.passes;
  {
    const Walk walk = walk_at(p.in, WalkShare::of_block<kParts>(params.plan, p.in.H).place);
    if (walk.segment >= walk.segments || (kLocal && walk.segment == 0)) return;
    if (threadIdx.x == 0) {
      const Halves halves(p.in, walk);
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

  if (threadIdx.x < kFirstHolder) {
    if constexpr (kParts == 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if constexpr (kParts > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    const Halves halves(s.walk);
    const WalkShare share = WalkShare::of_block<kParts>(params.plan, p.in.H);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      produce<Shape>(params, halves, share, share.keys(pass), pass * halves.count, wide, narrow, s);
      named_barrier(kBlockBarrier, kWalkThreads);
    }
  } else {
    if constexpr (kParts == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    if constexpr (kParts > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Halves halves(s.walk);
    const Walk walk = {s.walk[0], s.walk[1], s.walk[2], s.walk[3], halves.count / 2};
    const WalkShare share = WalkShare::of_block<kParts>(params.plan, p.in.H);
    const int H = p.in.H;
    const int h = share.h;
    const int thread = static_cast<int>(threadIdx.x) - kFirstHolder;
    const int of_state = share.slots * Shape::kHolders + thread;  // index within kStateThreads
    const int group = thread / 128;
    const int warp = of_state / 32;  // index among the warps of a state
    const int lane = thread % 32;
    const auto carried = [&](int of_place, bool keys) {
      return w.carried + ((static_cast<int64_t>(of_place) * H + h) * 2 + (keys ? kKeys : kValues)) * kM * state_width(p.in) +
             share.span * 64 * kStateThreads + of_state;
    };
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      const bool keys = share.keys(pass);
      const bool last = walk.segment + 1 == walk.segments;
      const int column = share.span * 128 + holder_column(of_state);
      const int slot = holder_slot(of_state);
      const int64_t mine = given_state(p.in, s.walk[0], h, keys) + (keys ? column * p.in.M + slot : slot * Shape::kWidth + column);
      float state[Shape::kSpans][N];
      const float* given = !last ? nullptr : keys ? p.grad_final_k : p.grad_final_v;
      get_state<Shape::kWidth>(state, !kLocal && !last ? carried(share.place + 1, keys) : nullptr,
                               given != nullptr ? given + mine : nullptr, keys, slot, p.in);

#pragma unroll 1
      for (int step = 0; step < halves.count; ++step) {
        const int stage = step % kStages;
        const int parity = parity_of(step, pass * halves.count);
        const bool new_tile = (step & 1) == 0;
        if (!kLocal && new_tile) {
          const StatePlace to = place_of_tile(p, w, halves, step, walk.n, h, keys);
          bf16* rows = to.at + warp * 16 * to.stride + share.span * 128;
          const int stride = static_cast<int>(to.stride);
          store_state(state, corners + thread / 32 * kCornerBytes, [&](int row, int column, uint4 x) {
            // An explicit global store: the compiler cannot infer the address space.
            __stcg(reinterpret_cast<uint4*>(rows + row * stride + column), x);
          });
        }
        barrier_wait(&s.full[stage], parity);
        if (new_tile) {
          const float kept = s.whole[stage];
#pragma unroll
          for (int i = 0; i < Shape::kSpans * N; ++i) state[i / N][i % N] *= kept;
        }
        multiply_stage(state, narrow + stage * Shape::kStageNarrow,
                       wide + stage * Shape::kStageBytes + share.span * 128 / kPanelColumns * kHalf * kRowBytes, group);
        // Meanwhile, refill the previous stage once all holder warps have released it.
        if (kParts == 1 && thread == 0 && step > 0 && step - 1 + kStages < halves.count) {
          barrier_wait(&s.empty[(step - 1) % kStages], parity_of(step - 1, pass * halves.count));
          load<Shape>(params, halves, share, keys, step - 1 + kStages, wide, narrow, s);
        }
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(&s.empty[stage]);
        __syncwarp();
      }
      if (kLocal) {
        carry_state(state, carried(share.place, keys));
      } else if (walk.segment == 0 && p.d_initial_v != nullptr) {
        named_barrier(kHoldersBarrier, Shape::kHolders);
        for (int i = thread; i < Shape::kWidth; i += Shape::kHolders) {
          s.weight[i] = keys && p.in.q_norm_weight != nullptr ? p.in.q_norm_weight[i] : 1.0F;
        }
        put_state<Shape>(state, keys, share, s.weight, reinterpret_cast<float*>(wide),
                         (keys ? p.d_initial_k : p.d_initial_v) + given_state(p.in, s.walk[0], h, keys), p.in);
      }
      fence_async_proxy();  // TMA writes the stages next
      named_barrier(kBlockBarrier, kWalkThreads);
    }
  }
}

__global__ void __launch_bounds__(kCombineThreads)
    cyclic_flow_backward_combine_sm90(const __grid_constant__ Sm90ForwardParams p, const float2* gate, float* carried) {
  combine_segments<true>(p, gate, carried);
}

template <bool kLocal>
cudaError_t launch(WalkParams params, cudaStream_t stream) {
  return for_widths(params.p.in, [&](int panels, int only) {
    const cudaError_t planned = plan_walks(params.p.in, panels, only, params.plan);
    if (planned != cudaSuccess) return planned;
    return with_shape(params.plan.parts, panels, [&](auto shape) {
      using Shape = decltype(shape);
      const auto kernel = &cyclic_flow_backward_states_sm90<kLocal, Shape>;
      const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWalkBytes<Shape>);
      if (status != cudaSuccess) return status;
      kernel<<<blocks_of(params.plan, params.p.in), kWalkThreads, kWalkBytes<Shape>, stream>>>(params);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t backward_states(const Sm90BackwardParams& p, cudaStream_t stream) {
  WalkParams params = {p, workspace_of(p), {}, {}, {}, {}};
  const int64_t H = p.in.H;
  cudaError_t status = make_tensor_map(params.q, p.in.q, p.in.T, H * p.in.K, p.in.q_stride, kHalf);
  if (status == cudaSuccess) status = make_tensor_map(params.grad_o, p.grad_o, p.in.T, H * p.in.V, H * p.in.V, kHalf);
  if (status == cudaSuccess) status = make_tensor_map(params.narrow, params.w.d_scores, p.in.T, H * 2 * kM, H * 2 * kM, kHalf);
  if (status != cudaSuccess) return status;
  if (has_segments(p.in)) {
    status = launch<true>(params, stream);
    if (status != cudaSuccess) return status;
    const dim3 blocks(p.in.N * p.in.H * 2, kM * state_width(p.in) / 4 / kCombineThreads);
    cyclic_flow_backward_combine_sm90<<<blocks, kCombineThreads, 0, stream>>>(p.in, params.w.gate, params.w.carried);
  }
  return launch<false>(params, stream);
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
