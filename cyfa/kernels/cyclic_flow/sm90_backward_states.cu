// The reverse walk of cyclic_flow's backward on Hopper, over tiles of 128 tokens (docs/operator.md, "Chunks"):
//   dS_K = gamma dS_K' + (a dY~)^T q      dS_V = gamma dS_V' + (a U)^T dO
//   local     where a sequence is cut into segments: the walk over each segment but the first, from nothing
//   combine   the gradients at the segments' starts, from the last on
//   walk      every segment from its end; stores dS', the gradient of the state at each tile's end, <S, dS'> and X(S, dS')
// As the walk of forward (sm90_walk.cuh): a block walks keys or values of one head, or both one after the other, whole states or parts
// of them. The last of the producers does not produce: it sums <S, dS'> and X(S, dS') of what the holders have stored, since a walk that
// waited for S would leave the memory idle. The holders' last 128 columns are still in their corners; others come back from the L2 cache.
// Overwrites d_q and d_v (or spare), whole and carried of the workspace and the gradients of the initial states.
//
// Shared memory, up to 227 KB: four stages of 64 rows of q or dO (32 KB) and of dY~ or U (16 KB, of half of the slots 8); a corner of 4 KB
// a warp that holds.
#include "cyfa/kernels/cyclic_flow/sm90_backward_device.cuh"
#include "cyfa/kernels/cyclic_flow/sm90_walk.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

// A tile whose gates sum to less than this, as log2, is taken to keep nothing of the state: what pairs of its tokens give to the gates is
// then so much more that fp32 would not show it. One token has no pairs: there as a gate of -60.
constexpr float kNothing = -24.0F;
constexpr float kNothingOfOne = -86.56F;
constexpr int kStored = 2;  // the holders are at most a tile ahead of the sums

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
  uint64_t stored[kStored];  // dS' of a tile is in memory
  uint64_t passed[kStored];  // and the corners have been read
  float whole[kStages];      // decay over the tile
  int walk[7];               // Walk and Halves: each role finds them here, since what is kept from before the roles part is kept in memory
  alignas(16) float weight[kD];
  alignas(16) float both[kD];  // norms' weights multiplied
};

template <int kParts>
constexpr int kWalkBytes = WalkShape<kParts>::kBytes + static_cast<int>(sizeof(WalkShared));
static_assert(kWalkBytes<1> <= 227 * 1024);

// The halves of a walk in its order.
__device__ __forceinline__ int half_at(const Halves& halves, int step) { return halves.count - 1 - step; }

// Asks for the rows of a stage.
template <int kParts>
__device__ __forceinline__ void load(const WalkParams& params, const Halves& halves, const WalkShare& share, bool keys, int step,
                                     char* wide, char* narrow, WalkShared& s) {
  using Shape = WalkShape<kParts>;
  constexpr int kNarrowPanels = Shape::kSlots / kPanelColumns;
  constexpr int kWidePanels = Shape::kSpans * 128 / kPanelColumns;
  const int stage = step % kStages;
  const int token = halves.token(half_at(halves, step));
  barrier_expect(&s.loaded[stage], (kWidePanels + kNarrowPanels) * kHalf * kRowBytes);
#pragma unroll
  for (int i = 0; i < kNarrowPanels; ++i) {
    copy_box(shared_address(narrow + stage * Shape::kStageNarrow + i * kHalf * kRowBytes), &params.narrow,
             share.h * kD + (keys ? 0 : kM) + (share.slots * kNarrowPanels + i) * kPanelColumns, token, &s.loaded[stage]);
  }
#pragma unroll
  for (int i = 0; i < kWidePanels; ++i) {
    const int panel = share.span * kWidePanels + i;
    copy_box(shared_address(wide + stage * kStageBytes + panel * kHalf * kRowBytes), keys ? &params.q : &params.grad_o,
             share.h * kD + panel * kPanelColumns, token, &s.loaded[stage]);
  }
}

// Fills a producer's share of the stages: the decay from the tile's start goes on the narrow rows.
template <int kProducers, int kParts>
__device__ __forceinline__ void produce(const WalkParams& params, const Halves& halves, const WalkShare& share, bool keys, int before,
                                        char* wide, char* narrow, WalkShared& s) {
  constexpr int kPieces = WalkShape<kParts>::kSlots / 8;  // of a row; a thread has half of them
  const Sm90ForwardParams& p = params.p.in;
  const float2* gate = params.w.gate + share.h * p.T;
  const int thread = threadIdx.x % 128;
  const int row = thread % kHalf;
  const int piece0 = kPieces / 2 * (thread / kHalf);
  const int own = threadIdx.x / 128;
  if (thread == 0) {
    for (int step = own; step < min(halves.count, kStages); step += kProducers) {
      load<kParts>(params, halves, share, keys, step, wide, narrow, s);
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
    asm volatile("" : "+f"(factor)::"memory");  // the next loads come after: a wait for the last ones would be a wait for them too
    now = fetch(step + kProducers);
    wait_loaded<kProducers>(s, stage, parity_of(step, before));
    char* rows = narrow + stage * WalkShape<kParts>::kStageNarrow;
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
    if (real < kHalf) clear_rows(wide + stage * kStageBytes, real);
    if (thread == 0) s.whole[stage] = whole;
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
    // Where a part of the state is held, producers have the time to wait until the stage is free again; else the holders ask.
    if (kParts > 1 && thread == 0 && step + kStages < halves.count) {
      barrier_wait(&s.empty[stage], parity_of(step, before));
      load<kParts>(params, halves, share, keys, step + kStages, wide, narrow, s);
    }
    __syncwarp();
  }
}

// Where dS' of a step's tile goes; as from p.in.tile, without a wait for memory.
__device__ __forceinline__ StatePlace place_of_tile(const Sm90BackwardParams& p, const Workspace& w, const Halves& halves, int step, int n,
                                                    int h, bool keys) {
  const int token = halves.token(half_at(halves, step) & ~1);
  return d_state_at(p, w, {token, min(kC, halves.end - token), n}, h, keys ? kKeys : kValues);
}

// d += a b with b [8 slots, 16 columns], both as they lie in memory.
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// <S, dS'> and X(S, dS') / (2 pi / m) of 16 slots and 128 columns by a warp, as the diagonal of dS' S^T and what lies beside it. A lane has
// eight columns of every 32 of two rows, from `state` on: which of the columns they are is all the same to the product. d_state(r, i) gives
// those of row 8 r and the i-th 32 columns.
template <typename Gradient>
__device__ __forceinline__ float2 passing_through(const bf16* state, const Gradient& d_state, const float* weight, int first_pair) {
  uint4 x[4][2], y[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      y[i][r] = __ldcs(reinterpret_cast<const uint4*>(state + 8 * r * kD + 32 * i));
      x[i][r] = d_state(r, i);
    }
  }
  float upper[4] = {}, lower[4] = {};  // slots of S: the first eight, and the others
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t a[2][4] = {{x[i][0].x, x[i][1].x, x[i][0].y, x[i][1].y}, {x[i][0].z, x[i][1].z, x[i][0].w, x[i][1].w}};
    if (weight != nullptr) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 f = unpack(a[c / 4][c % 4]);
        const float2 g = *reinterpret_cast<const float2*>(weight + 32 * i + c / 4 * 4 + c % 4 / 2 * 2);
        a[c / 4][c % 4] = pack(f.x * g.x, f.y * g.y);
      }
    }
    multiply_add(upper, a[0], y[i][0].x, y[i][0].y);
    multiply_add(lower, a[0], y[i][1].x, y[i][1].y);
    multiply_add(upper, a[1], y[i][0].z, y[i][0].w);
    multiply_add(lower, a[1], y[i][1].z, y[i][1].w);
  }
  // Rows lane / 4 of `upper`, and those + 8 of `lower`; columns 2 (lane % 4) and the next one.
  const int lane = threadIdx.x % 32;
  const bool odd = lane / 4 % 2 == 1;
  float2 sum = make_float2(0.0F, 0.0F);
  if (lane % 4 == lane / 8) {
    const float j = static_cast<float>(first_pair + lane / 8);
    sum.x = odd ? upper[1] + lower[3] : upper[0] + lower[2];
    sum.y = odd ? fmaf(j, upper[0], (j + 4.0F) * lower[2]) : -fmaf(j, upper[1], (j + 4.0F) * lower[3]);
  }
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFF, sum.x, bit);
    sum.y += __shfl_xor_sync(0xFFFFFFFF, sum.y, bit);
  }
  return sum;
}

// The block's share of these sums, tile after tile behind the holders, by one warpgroup.
template <int kParts>
__device__ __forceinline__ void pass_through(const WalkParams& params, const Halves& halves, const WalkShare& share, bool keys, int before,
                                             const char* corners, WalkShared& s) {
  using Shape = WalkShape<kParts>;
  const Sm90BackwardParams& p = params.p;
  const Workspace& w = params.w;
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  // The first tile's number among those of states; the next ones are before it, 2 H apart.
  int state = ((s.walk[3] + halves.count / 2 - 1) * p.in.H + share.h) * 2 + (keys ? kKeys : kValues);
  // A sequence's first tile, where it starts from nothing, and its last, where nothing comes from behind, have nothing to pass.
  const int begin = s.walk[1] + 1 == s.walk[2] && (keys ? p.grad_final_k : p.grad_final_v) == nullptr ? 2 : 0;
  const int end = halves.count - (s.walk[1] == 0 && starts_from_nothing(p.in) ? 2 : 0);
  const auto passes = [&](int step) {
    if (step < begin || step >= end) return false;
    const int last = halves.last_of_tile(half_at(halves, step));
    return w.gate[share.h * p.in.T + last].x >= (last == halves.token(half_at(halves, step) - 1) ? kNothingOfOne : kNothing);
  };
#pragma unroll 1
  for (int step = 0; step < halves.count; step += 2) {
    const int count = (before + step) / 2;
    const bool any = passes(step);
    barrier_wait(&s.stored[count % kStored], count / kStored & 1);
    // The last span first, of both warpgroups that hold: then their corners are free.
#pragma unroll 1
    for (int i = 0; i < Shape::kGroups * Shape::kSpans; ++i) {
      const int holder = warp + i % Shape::kGroups * 4;
      const int own = Shape::kSpans - 1 - i / Shape::kGroups;  // span of the holder's
      const int row = 64 * share.slots + 16 * holder;
      const int column = 128 * (share.span + own);
      float2 sum = make_float2(0.0F, 0.0F);
      if (any) {
        const int from = column + 8 * (lane % 4);
        const bf16* of_state = w.states + (static_cast<int64_t>(state) * kM + row + lane / 4) * kD + from;
        const float* weight = keys ? s.both + from : nullptr;
        const int first_pair = w.slots.first_pair + row / 2;
        if (own == Shape::kSpans - 1) {
          const char* corner = corners + holder * kCornerBytes + lane / 4 * kRowBytes;
          const int swizzle = lane / 4;
          sum = passing_through(
              of_state,
              [&](int r, int at) {
                return *reinterpret_cast<const uint4*>(corner + (at / 2 * 16 + 8 * r) * kRowBytes +
                                                       (((at % 2 * 4 + lane % 4) ^ swizzle) << 4));
              },
              weight, first_pair);
        } else {
          const StatePlace to = place_of_tile(p, w, halves, step, s.walk[0], share.h, keys);
          const int stride = static_cast<int>(to.stride);
          const bf16* rows = to.at + (row + lane / 4) * stride + from;
          sum = passing_through(
              of_state, [&](int r, int at) { return __ldcg(reinterpret_cast<const uint4*>(rows + 8 * r * stride + 32 * at)); }, weight,
              first_pair);
        }
      }
      if (lane == 0) w.whole[static_cast<int64_t>(state) * kWholeParts + row / 8 + column / 128] = sum;
      if (i + 1 == Shape::kGroups) {
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.passed[count % kStored]);
      }
    }
    state -= 2 * p.in.H;
  }
}

template <bool kLocal, int kParts>
__global__ void __launch_bounds__(kWalkThreads, 1) cyclic_flow_backward_states_sm90(const __grid_constant__ WalkParams params) {
  using Shape = WalkShape<kParts>;
  constexpr int kFirstHolder = Shape::kProducers * 128;
  extern __shared__ __align__(1024) char wide[];
  const Sm90BackwardParams& p = params.p;
  const Workspace& w = params.w;
  char* narrow = wide + kStages * kStageBytes;
  char* corners = wide + Shape::kStagesBytes;
  WalkShared& s = *reinterpret_cast<WalkShared*>(wide + Shape::kBytes);
  const int passes = params.plan.passes;
  {
    const Walk walk = walk_at(p.in, WalkShare::of_block<kParts>(passes, p.in.H).place);
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
  if (threadIdx.x < kStored) {
    barrier_init(&s.stored[threadIdx.x], Shape::kHolders / 32);
    barrier_init(&s.passed[threadIdx.x], 4);
    fence_barrier_init();
  }
  if (threadIdx.x < kD) s.both[threadIdx.x] = w.weight[threadIdx.x];
  __syncthreads();

  if (threadIdx.x < kFirstHolder) {
    const auto each_pass = [&](const auto& work) {
      const Halves halves(s.walk);
      const WalkShare share = WalkShare::of_block<kParts>(passes, p.in.H);
#pragma unroll 1
      for (int pass = 0; pass < passes; ++pass) {
        work(halves, share, share.keys(pass), pass * halves.count);
        named_barrier(kBlockBarrier, kWalkThreads);
      }
    };
    constexpr int kProducers = Shape::kProducers - (kLocal ? 0 : 1);
    if (threadIdx.x < kProducers * 128) {
      if constexpr (kParts == 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
      if constexpr (kParts > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
      each_pass([&](const Halves& halves, const WalkShare& share, bool keys, int before) {
        produce<kProducers, kParts>(params, halves, share, keys, before, wide, narrow, s);
      });
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
      each_pass([&](const Halves& halves, const WalkShare& share, bool keys, int before) {
        pass_through<kParts>(params, halves, share, keys, before, corners, s);
      });
    }
  } else {
    if constexpr (kParts == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    if constexpr (kParts > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Halves halves(s.walk);
    const Walk walk = {s.walk[0], s.walk[1], s.walk[2], s.walk[3], halves.count / 2};
    const WalkShare share = WalkShare::of_block<kParts>(passes, p.in.H);
    const int H = p.in.H;
    const int h = share.h;
    const int thread = static_cast<int>(threadIdx.x) - kFirstHolder;
    const int of_state = share.slots * Shape::kHolders + thread;  // among the kStateThreads that hold a state
    const int group = thread / 128;
    const int warp = of_state / 32;  // of those of a state
    const int lane = thread % 32;
    const auto carried = [&](int of_place, bool keys) {
      return w.carried + ((static_cast<int64_t>(of_place) * H + h) * 2 + (keys ? kKeys : kValues)) * kM * kD +
             share.span * 64 * kStateThreads + of_state;
    };
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
      const bool keys = share.keys(pass);
      const bool last = walk.segment + 1 == walk.segments;
      const int column = share.span * 128 + holder_column(of_state);
      const int slot = holder_slot(of_state);
      const int64_t mine = given_state(p.in, s.walk[0], h, keys) + (keys ? column * p.in.M + slot : slot * kD + column);
      float state[Shape::kSpans][64];
      const float* given = !last ? nullptr : keys ? p.grad_final_k : p.grad_final_v;
      get_state(state, !kLocal && !last ? carried(share.place + 1, keys) : nullptr, given != nullptr ? given + mine : nullptr, keys, slot,
                p.in);

#pragma unroll 1
      for (int step = 0; step < halves.count; ++step) {
        const int stage = step % kStages;
        const int parity = parity_of(step, pass * halves.count);
        const bool new_tile = (step & 1) == 0;
        if (!kLocal && new_tile) {
          const int count = (pass * halves.count + step) / 2;
          if (count > 0) barrier_wait(&s.passed[(count - 1) % kStored], (count - 1) / kStored & 1);
          const StatePlace to = place_of_tile(p, w, halves, step, walk.n, h, keys);
          bf16* rows = to.at + warp * 16 * to.stride + share.span * 128;
          const int stride = static_cast<int>(to.stride);
          store_state(state, corners + thread / 32 * kCornerBytes, [&](int row, int column, uint4 x) {
            __stcg(reinterpret_cast<uint4*>(rows + row * stride + column), x);  // global memory, which the compiler cannot know
          });
          __syncwarp();
          if (lane == 0) barrier_arrive(&s.stored[count % kStored]);
        }
        barrier_wait(&s.full[stage], parity);
        if (new_tile) {
          const float kept = s.whole[stage];
#pragma unroll
          for (int i = 0; i < Shape::kSpans * 64; ++i) state[i / 64][i % 64] *= kept;
        }
        multiply_stage(state, narrow + stage * Shape::kStageNarrow,
                       wide + stage * kStageBytes + share.span * 128 / kPanelColumns * kHalf * kRowBytes, group);
        // While that is under way: what comes where all have done with the stage before.
        if (kParts == 1 && thread == 0 && step > 0 && step - 1 + kStages < halves.count) {
          barrier_wait(&s.empty[(step - 1) % kStages], parity_of(step - 1, pass * halves.count));
          load<kParts>(params, halves, share, keys, step - 1 + kStages, wide, narrow, s);
        }
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(&s.empty[stage]);
        __syncwarp();
      }
      if (kLocal) {
        carry_state(state, carried(share.place, keys));
      } else if (walk.segment == 0 && p.d_initial_v != nullptr) {
        named_barrier(kHoldersBarrier, Shape::kHolders);
        for (int i = thread; i < kD; i += Shape::kHolders) {
          s.weight[i] = keys && p.in.q_norm_weight != nullptr ? p.in.q_norm_weight[i] : 1.0F;
        }
        put_state<kParts>(state, keys, share, s.weight, reinterpret_cast<float*>(wide),
                          (keys ? p.d_initial_k : p.d_initial_v) + given_state(p.in, s.walk[0], h, keys), p.in);
      }
      fence_async_proxy();  // what comes next into the stages comes by copies
      named_barrier(kBlockBarrier, kWalkThreads);
    }
  }
}

__global__ void __launch_bounds__(kCombineThreads)
    cyclic_flow_backward_combine_sm90(const __grid_constant__ Sm90ForwardParams p, const float2* gate, float* carried) {
  combine_segments<true>(p, gate, carried);
}

template <bool kLocal>
cudaError_t launch(const WalkParams& params, cudaStream_t stream) {
  return with_parts(params.plan.parts, [&](auto parts) {
    constexpr int kParts = decltype(parts)::value;
    const auto kernel = &cyclic_flow_backward_states_sm90<kLocal, kParts>;
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWalkBytes<kParts>);
    if (status != cudaSuccess) return status;
    kernel<<<blocks_of(params.plan, params.p.in), kWalkThreads, kWalkBytes<kParts>, stream>>>(params);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t backward_states(const Sm90BackwardParams& p, cudaStream_t stream) {
  WalkParams params = {p, workspace_of(p), {}, {}, {}, {}};
  const int64_t width = static_cast<int64_t>(p.in.H) * kD;
  cudaError_t status = plan_walks(p.in, params.plan);
  if (status == cudaSuccess) status = make_tensor_map(params.q, p.in.q, p.in.T, width, p.in.q_stride, kHalf);
  if (status == cudaSuccess) status = make_tensor_map(params.grad_o, p.grad_o, p.in.T, width, width, kHalf);
  if (status == cudaSuccess) status = make_tensor_map(params.narrow, p.d_k, p.in.T, width, width, kHalf);
  if (status != cudaSuccess) return status;
  if (has_segments(p.in)) {
    status = launch<true>(params, stream);
    if (status != cudaSuccess) return status;
    cyclic_flow_backward_combine_sm90<<<dim3(p.in.N * p.in.H * 2, kM * kD / 4 / kCombineThreads), kCombineThreads, 0, stream>>>(
        p.in, params.w.gate, params.w.carried);
  }
  return launch<false>(params, stream);
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
