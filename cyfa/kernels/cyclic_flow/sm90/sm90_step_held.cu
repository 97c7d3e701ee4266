// The decoding step of cyclic_flow on Hopper for the published sizes, K = V = 256 and M = 128 (eq:cyfa-absolute-recurrence,
// eq:cyfa-absolute-readout; sm90_step.cu lists the steps and handles other sizes). Called by step_cuda. Overwrites state_k, state_v, clock
// and o; with a mixer also its past and, if it is written, gate.
//
// States move only by bulk copies (TMA): from global to shared memory, updated and read there, and back. A head's key rows and value slots
// are divided into eight slices, shared by the blocks of a cluster. kBlocks warps of a block form a team, which owns one slice of each
// state and waits for no other team's data. With two buffers (kPlaces) a block requests keys and values at once. With one, values are
// requested when the keys have left, and two blocks fit on a multiprocessor, except for fp32 states with one block per head, which only
// tests use. The readout table is in registers.
//
// With several blocks per head, a slice's partial sums are sent by st.async, which signals an mbarrier of the receiving block: those of the
// scores to all blocks, since each computes the readout; those of the output to the block that owns the columns, or to all if the gated
// norm follows. Summation order: within a slice, groups of four rows sequentially, groups as a binary tree; then slices in order. Results
// therefore do not depend on the cluster size or the batch, bit for bit.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_held.h"

#include <cooperative_groups.h>

#include <type_traits>
#include <utility>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_mixer.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_readout.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_vectors.cuh"
#include "cyfa/kernels/sm90/launch.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::cyclic_flow {
namespace {

namespace cg = cooperative_groups;
using namespace step;

constexpr int kWidth = 256, kSlots = 128;
constexpr int kMultiprocessors = 132;
constexpr int kRows = kSlots / kWarps;  // rows of the table per warp

// A slice of a state: key rows of M columns, or value slots of V columns. Each warp of a team has a part of the columns; if that needs
// fewer than 32 lanes, the other lanes take other groups of rows.
template <int kBlocks, int kRowsOfSlice, int kColumns>
struct Slice {
  static constexpr int kGroups = kRowsOfSlice / kGroupRows;
  static constexpr int kOfWarp = kColumns / kBlocks;  // columns per warp
  static constexpr int kLanes = kOfWarp / 4 < 32 ? kOfWarp / 4 : 32;
  static constexpr int kQuads = kOfWarp / 4 / kLanes;          // float4 columns per lane
  static constexpr int kGroupsOfLane = kGroups * kLanes / 32;  // row groups per lane, for each of them
  static constexpr int kNumbers = kRowsOfSlice * kColumns;
};
template <int kBlocks>
using Keys = Slice<kBlocks, kWidth / kSlices, kSlots>;
template <int kBlocks>
using Values = Slice<kBlocks, kSlots / kSlices, kWidth>;
constexpr int kNumbers = Keys<1>::kNumbers;
static_assert(kNumbers == Values<1>::kNumbers);

template <class S, int kBlocks, int kPlaces>
struct HeldShared {
  static constexpr int kTeams = kSlices / kBlocks, kColumns = kWidth / kBlocks;
  alignas(128) S places[kPlaces][kTeams][kNumbers];
  float q[kWidth], k[kWidth], v[kWidth];
  float2 trig[kSlots / 2], write[kSlots / 2], read[kSlots / 2];
  float scores[kSlices][kSlots];  // partial sums of each slice, from all blocks
  float mixed[kWarps][kSlots];    // partial sums of the readout, per warp
  float2 scales[kWarps];
  float sums[kSlices][kWidth];  // partial sums of the output: of the block's columns, or of all if it applies the norm
  float o[kWidth];
  MixerInputs::Aside pasts;
  uint64_t keys_here[kTeams], values_here[kTeams], scores_here, sums_here;
};

// Registers per thread. Few enough for two blocks per multiprocessor if shared memory allows it. With a mixer at a small batch, few enough
// that a block of the preceding launch fits next to this one, which requests its states while that one still runs (dense/gemv_sm90.cu: 112
// registers per thread for up to 8 rows of up to 1,024 columns; wider ones leave no room).
template <class S, int kBlocks, int kPlaces, bool kMixer>
constexpr int kRegisters = kPlaces == 1 && 2 * sizeof(HeldShared<S, kBlocks, kPlaces>) <= 225 * 1024 ? 65536 / kThreads / 2
                           : kMixer                                                                  ? 144
                                                                                                     : 255;

__device__ __forceinline__ float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 of_lane(float4 x, int distance) {
  return make_float4(__shfl_xor_sync(0xFFFFFFFFU, x.x, distance), __shfl_xor_sync(0xFFFFFFFFU, x.y, distance),
                     __shfl_xor_sync(0xFFFFFFFFU, x.z, distance), __shfl_xor_sync(0xFFFFFFFFU, x.w, distance));
}

// Updates, stores and reads one group of four rows, `row_stride` apart, of which the lane has four columns.
template <class S>
__device__ __forceinline__ float4 pass_group(typename Quad<S>::Packed* at, int row_stride, float alpha, float4 x, float4 a, float4 b) {
  Rows<S> rows;
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) rows.x[i] = at[i * row_stride];
  update(rows, alpha, x, a);
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) at[i * row_stride] = rows.x[i];
  return read(rows, b);
}

// Sum of each(group) over kGroups adjacent groups as a binary tree.
template <int kGroups, class Each>
__device__ __forceinline__ float4 tree(int first, const Each& each) {
  if constexpr (kGroups == 1) {
    return each(first);
  } else {
    const float4 lower = tree<kGroups / 2>(first, each);
    return add4(lower, tree<kGroups / 2>(first + kGroups / 2, each));
  }
}

// S = alpha S + a x^T for the warp's columns of a slice, then each(column, sum of b S) in the lanes that hold a sum. x is indexed by
// column, a and b by row of the slice; `part` is the warp's part of the columns.
template <class S, class Slice, class Each>
__device__ __forceinline__ void pass_slice(S* slice, int part, float alpha, const float* x, const float* a, const float* b,
                                           const Each& each) {
  using Packed = typename Quad<S>::Packed;
  const int lane = threadIdx.x % 32;
  const int row_stride = Slice::kNumbers / (Slice::kGroups * kGroupRows) / 4;
#pragma unroll
  for (int quad = 0; quad < Slice::kQuads; ++quad) {
    const int column = part * Slice::kOfWarp + 4 * (32 * quad + lane % Slice::kLanes);
    const float4 x4 = *reinterpret_cast<const float4*>(x + column);
    Packed* const at = reinterpret_cast<Packed*>(slice) + column / 4;
    float4 sum = tree<Slice::kGroupsOfLane>(lane / Slice::kLanes * Slice::kGroupsOfLane, [&](int group) {
      return pass_group<S>(at + group * kGroupRows * row_stride, row_stride, alpha, x4, group_of(a, group), group_of(b, group));
    });
#pragma unroll
    for (int distance = Slice::kLanes; distance < 32; distance *= 2) sum = add4(sum, of_lane(sum, distance));
    if (lane < Slice::kLanes) each(column, sum);
  }
}

// The warp's rows of the readout table (warp, warp + 8, ...), four columns per lane.
struct Table {
  float4 rows[kRows];

  __device__ __forceinline__ void load(const float* table) {
    const float4* from = reinterpret_cast<const float4*>(table) + threadIdx.x / 32 * (kSlots / 4) + threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kRows; ++n) rows[n] = __ldg(from + n * kWarps * (kSlots / 4));
  }

  // Logits of the warp's rows; lanes 2 n and 2 n + 1 receive that of row n.
  __device__ __forceinline__ float logit(float4 scores) const {
    const int lane = threadIdx.x % 32;
    float sum[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) sum[n] = dot4(rows[n], scores, 0.0F);
#pragma unroll
    for (int level = 1; (kRows >> level) > 0; ++level) {  // each lane of a pair keeps half of the rows
      const int half = kRows >> level;
      const bool upper = (lane & 2 * half) != 0;
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        if (i >= half) break;
        const float given = __shfl_xor_sync(0xFFFFFFFFU, upper ? sum[i] : sum[i + half], 2 * half);
        sum[i] = (upper ? sum[i + half] : sum[i]) + given;
      }
    }
    sum[0] += __shfl_xor_sync(0xFFFFFFFFU, sum[0], 1);
    return threadIdx.x / 32 + lane / 2 * kWarps < kSlots - 1 ? sum[0] : -INFINITY;
  }
};

// Maximum over a warp. Floats compare like integers once the low 31 bits of negative numbers are inverted.
__device__ __forceinline__ float greatest(float x) {
  const auto turned = [](int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); };
  return __int_as_float(turned(__reduce_max_sync(0xFFFFFFFFU, turned(__float_as_int(x)))));
}

// Step 3: read = U(-clock) table^T softmax(table scores) over the m active rows. Each warp computes its rows' logits, their exponentials
// relative to the warp's maximum, and the weighted sum of the rows; then the warps' sums are rescaled and added in order. `read` is visible
// to the whole block on return.
template <class Shared>
__device__ __forceinline__ void read_out(Shared& s, const Table& table) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 sums = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) sums = add4(sums, reinterpret_cast<const float4*>(s.scores[slice])[lane]);
  const float2 low = rotated(make_float2(sums.x, sums.y), s.trig[2 * lane]);
  const float2 high = rotated(make_float2(sums.z, sums.w), s.trig[2 * lane + 1]);
  const float logit = table.logit(make_float4(low.x, low.y, high.x, high.y));
  const float top = greatest(logit);
  const float power = expf(logit - top);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int n = 0; n < kRows; ++n) sum = fma4(__shfl_sync(0xFFFFFFFFU, power, 2 * n), table.rows[n], sum);
  reinterpret_cast<float4*>(s.mixed[warp])[lane] = sum;
  float total = power;
#pragma unroll
  for (int distance = 16; distance > 1; distance /= 2) total += __shfl_xor_sync(0xFFFFFFFFU, total, distance);
  if (lane == 0) s.scales[warp] = make_float2(top, total);
  __syncthreads();
  if (warp < kSlots / 2 / 32) {
    const int j = static_cast<int>(threadIdx.x);
    const float2 scale = s.scales[lane % kWarps];
    const float factor = expf(scale.x - greatest(scale.x));  // each lane computes the factor of one warp
    float2 mixed = make_float2(0.0F, 0.0F);
    float whole = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float of_warp = __shfl_sync(0xFFFFFFFFU, factor, w);
      const float2 part = reinterpret_cast<const float2*>(s.mixed[w])[j];
      mixed = make_float2(fmaf(of_warp, part.x, mixed.x), fmaf(of_warp, part.y, mixed.y));
      whole = fmaf(of_warp, __shfl_sync(0xFFFFFFFFU, scale.y, w), whole);
    }
    const float inverse = __fdividef(1.0F, whole);
    const float2 unit = s.trig[j];
    s.read[j] = rotated(make_float2(mixed.x * inverse, mixed.y * inverse), make_float2(unit.x, -unit.y));
  }
  __syncthreads();
}

template <class Shared>
__device__ __forceinline__ float sum_of_slices(const Shared& s, int column) {
  float sum = 0.0F;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) sum += s.sums[slice][column];
  return sum;
}

// T: type of activations, S: of states. kPlaces: state buffers (above). kMixer: computes q, k, v and the gates from the projections; blocks
// after the heads' blocks write the output gate.
template <class T, class S, int kBlocks, int kPlaces, bool kMixer>
__global__ void __maxnreg__((kRegisters<S, kBlocks, kPlaces, kMixer>))
    cyclic_flow_step_held_sm90(const __grid_constant__ StepCudaParams p, const __grid_constant__ StepMixer mixer) {
  using Shared = HeldShared<S, kBlocks, kPlaces>;
  constexpr int kTeams = Shared::kTeams, kColumns = Shared::kColumns;
  constexpr int kBytes = kNumbers * static_cast<int>(sizeof(S));
  extern __shared__ __align__(128) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int H = static_cast<int>(p.H);
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int pair = static_cast<int>(blockIdx.x) / kBlocks;
  if constexpr (kMixer) {
    const int past_heads = static_cast<int>(blockIdx.x) - static_cast<int>(p.B) * H * kBlocks;
    if (past_heads >= 0) {
      write_gate(mixer, p.B, past_heads * kGateRows + warp * dense::kTileRows, H * kWidth,
                 ProjectionLayout{H, kWidth, kWidth, static_cast<int>(mixer.rank)}.gate());
      return;
    }
    sm90::let_next_launch_begin();
  }

  const int team = warp / kBlocks, of_team = warp % kBlocks;
  const bool norms = kMixer && mixer.gate_second == nullptr;
  const bool leads = tid % (32 * kBlocks) == 0;
  const int slice = rank * kTeams + team;
  S* const keys = s.places[0][team];
  S* const values = s.places[kPlaces - 1][team];
  S* const keys_home = static_cast<S*>(p.state_k) + (static_cast<int64_t>(pair) * kSlices + slice) * kNumbers;
  S* const values_home = static_cast<S*>(p.state_v) + (static_cast<int64_t>(pair) * kSlices + slice) * kNumbers;
  const uint64_t pass_on = sm90::evict_first();  // a state is not needed again before the next token
  const auto ask = [&](S* place, const S* home, uint64_t* here) {
    sm90::barrier_expect(here, kBytes);
    sm90::copy_bulk(place, home, kBytes, here, pass_on);
  };
  const auto give_back = [&](const S* place, S* home) {
    sm90::store_bulk(home, sm90::shared_address(place), kBytes, pass_on);
    sm90::commit_stores();
  };
  const auto team_meets = [&] {
    if constexpr (kBlocks == 1) {
      __syncwarp();
    } else {
      sm90::named_barrier(1 + team, 32 * kBlocks);
    }
  };
  // A single block per head only needs its own barrier.
  const auto send = [&](float* to, uint64_t* here, int block, float4 sum) {
    if constexpr (kBlocks == 1) {
      *reinterpret_cast<float4*>(to) = sum;
    } else {
      sm90::store_remote(sm90::shared_address(to), here, block, sum);
    }
  };
  const auto wait_for_sums = [&](uint64_t* here) {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      sm90::barrier_wait(here, 0);
    }
  };
  if (leads) {
    sm90::barrier_init(&s.keys_here[team], 1);
    sm90::barrier_init(&s.values_here[team], 1);
    if (team == 0) {
      sm90::barrier_init(&s.scores_here, 1);
      sm90::barrier_init(&s.sums_here, 1);
    }
    sm90::fence_barrier_init();
    if (team == 0) {
      sm90::barrier_expect(&s.scores_here, sizeof(s.scores));
      sm90::barrier_expect(&s.sums_here, sizeof(s.sums) / (norms ? 1 : kBlocks));
    }
    // The preceding launch may still write the state, so it must not be read yet, but it can be prefetched into the L2 cache. Only keys:
    // values would delay the keys of other blocks.
    if (!kMixer) sm90::prefetch_bulk(keys_home, kBytes);
  }
  __syncthreads();
  auto others_began = cluster.barrier_arrive();  // its completion allows writes to their shared memory
  const auto ask_for_states = [&] {
    if (!leads) return;
    ask(keys, keys_home, &s.keys_here[team]);
    if (kPlaces == 2) {
      ask(values, values_home, &s.values_here[team]);
    } else {
      sm90::prefetch_bulk(values_home, kBytes);
    }
  };
  const OfHead all_columns{pair / H, pair % H, H, kWidth, kWidth, 0, kWidth};
  const OfHead own_columns{pair / H, pair % H, H, kWidth, kWidth, rank * kColumns, kColumns};
  const float* const table_home = p.readout_table + static_cast<int64_t>(pair % H) * (kSlots * kSlots);
  Vectors<T> vectors;
  Table table;
  float log_alpha, beta, v;
  double clock;
  std::conditional_t<kMixer, MixerInputs, NoMixerInputs> in(mixer, all_columns);
  if constexpr (kMixer) {
    ask_for_states();
    vectors.load_weights(p, kWidth, tid);
    clock = p.clock[pair];
    if (kPlaces == 2) table.load(table_home);
    sm90::wait_for_earlier_launch();
    vectors.q = in.q.value();
    vectors.k = in.k.value();
    v = in.v.value();
    in.put_aside(s.pasts);
    log_alpha = in.gates.log_alpha();
    beta = in.gates.beta();
    clock += static_cast<double>(in.gates.delta());
  } else {
    sm90::wait_for_earlier_launch();
    if (kPlaces == 1) sm90::let_next_launch_begin();
    vectors.load(p, kWidth, pair, tid);
    v = load_float<T>(p.v, static_cast<int64_t>(pair) * kWidth + tid);
    log_alpha = p.log_alpha[pair];
    beta = p.beta[pair];
    clock = p.clock[pair] + static_cast<double>(p.delta[pair]);
    ask_for_states();
  }
  const float alpha = expf(log_alpha);
  s.v[tid] = v;
  vectors.normalise(p, kWidth, pair, s.q, s.k);
  temporal_write(kSlots, clock, beta, s.trig, s.write);
  __syncthreads();
  if (!kMixer || kPlaces == 1) table.load(table_home);

  const float* const write = reinterpret_cast<const float*>(s.write);
  const float* const read = reinterpret_cast<const float*>(s.read);
  sm90::barrier_wait(&s.keys_here[team], 0);
  cluster.barrier_wait(std::move(others_began));
  pass_slice<S, Keys<kBlocks>>(keys, of_team, alpha, write, s.k + slice * (kWidth / kSlices), s.q + slice * (kWidth / kSlices),
                               [&](int column, float4 sum) {
#pragma unroll
                                 for (int block = 0; block < kBlocks; ++block) send(&s.scores[slice][column], &s.scores_here, block, sum);
                               });
  sm90::fence_async_proxy();
  team_meets();
  if (leads) {
    give_back(keys, keys_home);
    if (kPlaces == 1) {
      sm90::wait_stores_read();
      ask(values, values_home, &s.values_here[team]);
    }
  }
  if (!kMixer && kPlaces == 2) sm90::let_next_launch_begin();  // earlier, the next launch's keys would compete with these values
  __syncwarp();
  wait_for_sums(&s.scores_here);

  // All slices have arrived, so every block of the cluster has read the clock and the convolutions' past inputs.
  if (rank == 0 && tid == 0) p.clock[pair] = clock;
  if constexpr (kMixer) {
    if (rank == 0) in.move_on_from(s.pasts);
  }
  read_out(s, table);

  sm90::barrier_wait(&s.values_here[team], 0);
  pass_slice<S, Values<kBlocks>>(values, of_team, alpha, s.v, write + slice * (kSlots / kSlices), read + slice * (kSlots / kSlices),
                                 [&](int column, float4 sum) {
#pragma unroll
                                   for (int block = 0; block < kBlocks; ++block) {
                                     if (norms || block == of_team) send(&s.sums[slice][column], &s.sums_here, block, sum);
                                   }
                                 });
  sm90::fence_async_proxy();
  team_meets();
  if (leads) give_back(values, values_home);
  if (norms) {
    GatedNorm gated;
    gated.load(mixer, own_columns);
    wait_for_sums(&s.sums_here);
    s.o[tid] = static_cast<float>(static_cast<T>(sum_of_slices(s, tid)));
    __syncthreads();
    gated.write(
        mixer, own_columns, s.o[own_columns.first_value + tid % kColumns], [&](int column) { return s.o + column; },
        static_cast<__nv_bfloat16*>(p.o));
  } else if (tid < kColumns) {
    wait_for_sums(&s.sums_here);
    const int column = own_columns.first_value + tid;
    static_cast<T*>(p.o)[static_cast<int64_t>(pair) * kWidth + column] = static_cast<T>(sum_of_slices(s, column));
  }
  sm90::copies_read();
}

template <class T, class S, int kBlocks, int kPlaces, bool kMixer>
cudaError_t launch(const StepCudaParams& p, cudaStream_t stream) {
  const auto kernel = &cyclic_flow_step_held_sm90<T, S, kBlocks, kPlaces, kMixer>;
  constexpr int kShared = static_cast<int>(sizeof(HeldShared<S, kBlocks, kPlaces>));
  static_assert(kShared <= 227 * 1024);
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  return sm90::launch_cluster_early(kernel, static_cast<int>(p.B * p.H) * kBlocks + gate_blocks(p, kBlocks), kBlocks, kThreads, kShared,
                                    stream, p, kMixer ? *p.mixer : StepMixer{});
}

template <class S, int kBlocks, int kPlaces>
cudaError_t launch(const StepCudaParams& p, cudaStream_t stream) {
  if (p.mixer != nullptr) return launch<__nv_bfloat16, S, kBlocks, kPlaces, true>(p, stream);
  return p.dtype == StepDtype::kBFloat16 ? launch<__nv_bfloat16, S, kBlocks, kPlaces, false>(p, stream)
                                         : launch<float, S, kBlocks, kPlaces, false>(p, stream);
}

template <class S>
cudaError_t launch(const StepCudaParams& p, int blocks, cudaStream_t stream) {
  if (blocks == 8) return launch<S, 8, 2>(p, stream);
  if (blocks == 4) return launch<S, 4, 2>(p, stream);
  if (blocks == 1) return launch<S, 1, 1>(p, stream);
  return 2 * p.B * p.H <= kMultiprocessors ? launch<S, 2, 2>(p, stream) : launch<S, 2, 1>(p, stream);
}

}  // namespace

bool step_held_serves(const StepCudaParams& p) { return p.K == kWidth && p.V == kWidth && p.M == kSlots; }

cudaError_t step_held(const StepCudaParams& p, int blocks, cudaStream_t stream) {
  return p.state_dtype == StepDtype::kBFloat16 ? launch<__nv_bfloat16>(p, blocks, stream) : launch<float>(p, blocks, stream);
}

}  // namespace cyfa::cyclic_flow
