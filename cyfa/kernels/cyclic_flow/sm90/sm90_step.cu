// The decoding step of cyclic_flow on Hopper (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout) for any supported size: one launch, in
// which a cluster of 1, 2, 4 or 8 thread blocks steps one head. The published sizes have their own kernel (sm90_step_held.cu); step_cuda
// chooses. Called by cyclic_flow_step (cyfa/ops/cyclic_flow/step_sm90.cc) and by the decoding engine (cyfa/engine/sm90/decode_step.cc).
// Overwrites state_k, state_v, clock and o; with a mixer also its past and, if it is written, gate.
//
// The step is memory-bound: each state is read and written once, 512 KB per head at K = V = 256, M = 128 in fp32.
//   1  q and k after their norms, the clock's rotations and the write vector: computed redundantly by every block.
//   2  state_k, its rows split over the cluster: S = alpha S + k w^T, partial sums of S^T q.
//   3  exchange of the partial sums through distributed shared memory, then the readout, redundantly in every block.
//   4  state_v, its columns split over the cluster: S = alpha S + w v^T, o = S^T u.
//
// A thread owns one float4 column of a state and processes groups of four rows. The sum over each group goes to shared memory, and groups
// are added in an order that depends only on the shape, so results do not depend on the cluster size or the batch, bit for bit.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_held.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_mixer.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_readout.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_states.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_vectors.cuh"
#include "cyfa/kernels/rowwise/vector.cuh"
#include "cyfa/kernels/sm90/launch.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::cyclic_flow {
namespace {

namespace cg = cooperative_groups;
using namespace step;
using sm90::let_next_launch_begin;
using sm90::prefetch_bulk;
using sm90::wait_for_earlier_launch;

constexpr int kMaxSharedBytes = 225 * 1024;  // of the 227 KB per multiprocessor; static shared memory comes on top
constexpr int kFreeSharedBytes = 46 * 1024;  // of the 48 KB that need no opt-in; likewise

// Clusters grow until the grid has this many blocks.
constexpr int kWantedBlocks = 64;
constexpr int kManyHeads = 256;            // heads from which each has one block, if two such blocks fit on a multiprocessor
constexpr int kAhead = 2;                  // groups of rows that a thread loads ahead of their use
constexpr int kPrefetchBytes = 64 * 1024;  // of state_v, per block: two blocks per multiprocessor prefetch a third of the L2 cache

// Offsets into shared memory in floats, all multiples of 4.
struct Layout {
  int q, k, trig, write, scores, read, slices, partial, total;
};

__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }

__host__ __device__ constexpr Layout shared_layout(int K, int V, int M, int blocks) {
  Layout at{};
  at.q = 0;
  at.k = at.q + K;
  at.trig = at.k + K;
  at.write = at.trig + M;
  at.scores = at.write + M;
  at.read = at.scores + M;
  at.slices = at.read + M;
  at.partial = at.slices + kSlices * M;
  const int key_pass = ceil_div(K / kGroupRows, blocks) * M;
  const int value_pass = M / kGroupRows * ceil_div(V / 4, blocks) * 4;
  at.total = at.partial + max_of(max_of(key_pass, value_pass), kWarps * (M + 2));
  return at;
}

// kMixer: computes q, k, v and the gates from the projections; blocks after the heads' blocks write the output gate.
template <class T, class S, bool kMixer>
__global__ void __launch_bounds__(kThreads, 2)
    cyclic_flow_step_fused_sm90(const __grid_constant__ StepCudaParams p, const __grid_constant__ StepMixer s) {
  using Packed = typename Quad<S>::Packed;
  extern __shared__ float4 shared4[];
  float* shared = reinterpret_cast<float*>(shared4);
  const cg::cluster_group cluster = cg::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int K = static_cast<int>(p.K);
  const int V = static_cast<int>(p.V);
  const int M = static_cast<int>(p.M);
  const int H = static_cast<int>(p.H);
  const int tid = static_cast<int>(threadIdx.x);
  const int pair = static_cast<int>(blockIdx.x) / blocks;
  const int head = pair % H;
  const int64_t row = pair;  // 64 bits, for products that may overflow 32
  if constexpr (kMixer) {
    const int past_heads = static_cast<int>(blockIdx.x) - static_cast<int>(p.B) * H * blocks;
    if (past_heads >= 0) {
      const int first = past_heads * kGateRows + tid / 32 * dense::kTileRows;
      write_gate(s, p.B, first, H * V, ProjectionLayout{H, K, V, static_cast<int>(s.rank)}.gate());
      return;
    }
  }
  const Layout at = shared_layout(K, V, M, blocks);
  S* const state_k = static_cast<S*>(p.state_k) + row * K * M;
  S* const state_v = static_cast<S*>(p.state_v) + row * M * V;

  // This block's slices of state_k, as groups of rows, and this thread's part of them.
  const int key_groups = K / kGroupRows;
  const int slice_begin = rank * (kSlices / blocks);
  const int slice_end = slice_begin + kSlices / blocks;
  const int group_begin = part_begin(key_groups, slice_begin, kSlices);
  const int group_end = part_begin(key_groups, slice_end, kSlices);

  if (kMixer) let_next_launch_begin();
  auto others_began = cluster.barrier_arrive();  // its completion allows writes to their shared memory
  Vectors<T> vectors;
  float log_alpha, beta;
  double clock;
  if constexpr (kMixer) {
    vectors.load_weights(p, K, tid);
    clock = p.clock[row];
  } else {
    wait_for_earlier_launch();
    let_next_launch_begin();
    vectors.load(p, K, row, tid);
    log_alpha = p.log_alpha[row];
    beta = p.beta[row];
    clock = p.clock[row] + static_cast<double>(p.delta[row]);
  }

  float* q = shared + at.q;
  float* k = shared + at.k;
  float2* trig = reinterpret_cast<float2*>(shared + at.trig);
  float2* write = reinterpret_cast<float2*>(shared + at.write);
  float2* scores = reinterpret_cast<float2*>(shared + at.scores);
  float2* weights = reinterpret_cast<float2*>(shared + at.read);
  float* slices = shared + at.slices;
  float* partial = shared + at.partial;
  float4* partial4 = reinterpret_cast<float4*>(partial);

  const int key_columns = M / 4;
  const int key_runs = kThreads / key_columns;
  const int key_column = tid % key_columns;
  Share<S> keys;
  keys.column = reinterpret_cast<Packed*>(state_k) + key_column;
  keys.row_stride = key_columns;
  keys.first = group_begin + tid / key_columns;
  keys.step = key_runs;
  keys.end = tid / key_columns < key_runs ? group_end : 0;

  // This block's columns of state_v, in all rows, and this thread's part of them.
  const int column_begin = part_begin(V / 4, rank, blocks);
  const int value_columns = part_begin(V / 4, rank + 1, blocks) - column_begin;
  const int value_runs = value_columns > 0 ? kThreads / value_columns : 0;
  const int value_column = value_columns > 0 ? tid % value_columns : 0;
  const int value_run = value_columns > 0 ? tid / value_columns : 0;
  Share<S> values;
  values.column = reinterpret_cast<Packed*>(state_v) + column_begin + value_column;
  values.row_stride = V / 4;
  values.first = value_run;
  values.step = value_runs;
  values.end = value_run < value_runs ? M / kGroupRows : 0;
  const OfHead of_head{pair / H, head, H, K, V, 4 * column_begin, 4 * value_columns};
  std::conditional_t<kMixer, MixerInputs, NoMixerInputs> in(s, of_head);
  float4 v4 = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (!kMixer && values.end > 0) {
    const int64_t from = row * V + 4 * (column_begin + value_column);
    v4 = make_float4(load_float<T>(p.v, from), load_float<T>(p.v, from + 1), load_float<T>(p.v, from + 2), load_float<T>(p.v, from + 3));
  }

  Ahead<S, kAhead> first_keys(keys);

  __shared__ float4 own_columns[kMixer ? kThreads / 4 : 1];  // of v, then of o
  if constexpr (kMixer) {
    wait_for_earlier_launch();
    if (tid < K) {
      vectors.q = in.q.value();
      vectors.k = in.k.value();
      if (blocks == 1) in.move_keys_on();
    }
    if (tid < 4 * value_columns) {
      reinterpret_cast<float*>(own_columns)[tid] = in.v.value();
      in.v.move_on();
    }
    log_alpha = in.gates.log_alpha();
    beta = in.gates.beta();
    clock += static_cast<double>(in.gates.delta());
  }
  const float alpha = expf(log_alpha);
  vectors.normalise(p, K, row, q, k);
  temporal_write(M, clock, beta, trig, write);
  __syncthreads();

  if constexpr (kMixer) v4 = own_columns[value_column];
  const float4 write4 = reinterpret_cast<const float4*>(write)[key_column];
  const float* write1 = reinterpret_cast<const float*>(write);
  first_keys.update_and_read(keys, alpha, write4, k, q, partial4 + key_column, group_begin, key_columns);
  Ahead<S, kAhead> first_values(values);
  {  // memory would be idle during the readout
    const int first = part_begin(M, rank, blocks), last = part_begin(M, rank + 1, blocks);
    const int bytes = min((last - first) * V * static_cast<int>(sizeof(S)), kPrefetchBytes);
    if (tid == 0 && bytes > 0) prefetch_bulk(state_v + static_cast<int64_t>(first) * V, bytes);
  }
  __syncthreads();

  cluster.barrier_wait(std::move(others_began));
  for (int i = tid; i < (slice_end - slice_begin) * M; i += kThreads) {
    const int slice = slice_begin + i / M;
    float sum = 0.0F;
    for (int group = part_begin(key_groups, slice, kSlices); group < part_begin(key_groups, slice + 1, kSlices); ++group) {
      sum += partial[(group - group_begin) * M + i % M];
    }
    for (int block = 0; block < blocks; ++block) cluster.map_shared_rank(slices, block)[slice_begin * M + i] = sum;
  }
  cluster.sync();

  // Every block of the cluster has read the clock and the convolutions' past inputs, and all slices have arrived.
  if (rank == 0 && tid == 0) p.clock[row] = clock;
  if (tid < M / 2) {
    float2 sum = make_float2(0.0F, 0.0F);
    for (int slice = 0; slice < kSlices; ++slice) sum = add2(sum, reinterpret_cast<const float2*>(slices + slice * M)[tid]);
    scores[tid] = rotated(sum, trig[tid]);
  }
  __syncthreads();

  read_out(p.readout_table + static_cast<int64_t>(head) * M * M, M, reinterpret_cast<const float*>(scores), trig, partial4, weights);

  const float* read1 = reinterpret_cast<const float*>(weights);
  first_values.update_and_read(values, alpha, v4, write1, read1, partial4 + value_column, 0, value_columns);
  GatedNorm gated;
  if (kMixer && s.gate_second == nullptr) gated.load(s, of_head);
  __syncthreads();

  for (int i = tid; i < 4 * value_columns; i += kThreads) {
    float sum = 0.0F;
#pragma unroll 8
    for (int group = 0; group < M / kGroupRows; ++group) sum += partial[group * 4 * value_columns + i];
    const T narrow = static_cast<T>(sum);
    if (kMixer && s.gate_second == nullptr) {
      reinterpret_cast<float*>(own_columns)[i] = static_cast<float>(narrow);
    } else {
      static_cast<T*>(p.o)[row * V + 4 * column_begin + i] = narrow;
    }
  }
  if constexpr (kMixer) {
    if (blocks > 1 && rank == 0 && tid < K) {  // loaded again because of register pressure
      MixerInputs again(s, of_head);
      again.q.value();
      again.k.value();
      again.move_keys_on();
    }
    if (s.gate_second != nullptr) return;
    float* const o = reinterpret_cast<float*>(own_columns);
    cluster.sync();
    const auto eight = [&](int column) { return cluster.map_shared_rank(o, column / (V / blocks)) + column % (V / blocks); };
    gated.write(s, of_head, o[min(tid, 4 * value_columns - 1)], eight, static_cast<__nv_bfloat16*>(p.o));
    cluster.sync();  // no block may exit before the others have read its columns
  }
}

bool aligned_to_16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

int shared_bytes(const StepCudaParams& p, int blocks) {
  const Layout at = shared_layout(static_cast<int>(p.K), static_cast<int>(p.V), static_cast<int>(p.M), blocks);
  return at.total * static_cast<int>(sizeof(float));
}

bool fits(const StepCudaParams& p, int blocks) {
  return shared_bytes(p, blocks) <= kMaxSharedBytes && ceil_div(static_cast<int>(p.V / 4), blocks) <= kThreads;
}

template <class T, class S, bool kMixer>
cudaError_t launch(const StepCudaParams& p, cudaStream_t stream) {
  const int blocks = step_cuda_cluster(p);
  const int bytes = shared_bytes(p, blocks);
  const auto kernel = &cyclic_flow_step_fused_sm90<T, S, kMixer>;
  if (bytes > kFreeSharedBytes) {  // always the maximum: another host thread may launch in between
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    if (status != cudaSuccess) return status;
  }
  return sm90::launch_cluster_early(kernel, static_cast<int>(p.B * p.H) * blocks + gate_blocks(p, blocks), blocks, kThreads, bytes, stream,
                                    p, kMixer ? *p.mixer : StepMixer{});
}

template <class T, bool kMixer = false>
cudaError_t launch(const StepCudaParams& p, cudaStream_t stream) {
  return p.state_dtype == StepDtype::kBFloat16 ? launch<T, __nv_bfloat16, kMixer>(p, stream) : launch<T, float, kMixer>(p, stream);
}

const char* mixer_refusal(const StepCudaParams& p) {
  const StepMixer& s = *p.mixer;
  if (p.dtype != StepDtype::kBFloat16) return "the fused mixer is in bf16";
  if (p.K > kThreads || p.V > kThreads || p.V % 64 != 0) return "with the fused mixer K is at most 256, V a multiple of 64 up to 256";
  if (s.taps < 1 || s.taps > StepMixer::kMaxTaps) return "a convolution has not 1 to 4 taps";
  if (s.stride % 8 != 0 || p.H * p.K % 4 != 0) return "rows of the projections are not aligned to 16 bytes";
  if (s.gate_second == nullptr) return nullptr;
  if (!aligned_to_16(s.gate_second) || !aligned_to_16(s.x)) return "the gate's weights or the projections are not aligned to 16 bytes";
  if (p.B > StepMixer::kMaxGateRows) return "the output's gate is written for batches of at most 16";
  if (s.rank < 1 || s.rank > kMaxRank || s.rank % dense::kChunk != 0) return "the gate's rank is not a multiple of 32 up to 256";
  return nullptr;
}

}  // namespace

const char* step_cuda_refusal(const StepCudaParams& p) {
  constexpr int64_t kMaxWidth = 4096;
  if (p.B < 0 || p.H < 0 || p.B * p.H > INT32_MAX / kSlices) return "B * H is negative or above 268435455";
  if (p.M < 4 || p.M > kMaxSlots || p.M % 4 != 0) return "M (num_slots) is not a multiple of 4 from 4 to 256";
  if (p.K < 4 || p.K > kMaxWidth || p.K % 4 != 0) return "K (head_dim of keys) is not a multiple of 4 from 4 to 4096";
  if (p.V < 4 || p.V > kMaxWidth || p.V % 4 != 0) return "V (head_dim of values) is not a multiple of 4 from 4 to 4096";
  if (p.state_dtype == StepDtype::kBFloat16 && p.V % 8 != 0) return "V is not a multiple of 8, which bf16 states need";
  if (!aligned_to_16(p.state_k) || !aligned_to_16(p.state_v)) return "state_k or state_v is not aligned to 16 bytes";
  if (!aligned_to_16(p.readout_table)) return "readout_table is not aligned to 16 bytes";
  if (const char* reason = p.mixer != nullptr ? mixer_refusal(p) : nullptr; reason != nullptr) return reason;
  if (p.cluster != 0 && p.cluster != 1 && p.cluster != 2 && p.cluster != 4 && p.cluster != 8) return "cluster is not 0, 1, 2, 4 or 8";
  if (!fits(p, p.cluster != 0 ? p.cluster : kSlices)) return "K * M or V * M is too large for the shared memory of the cluster";
  return nullptr;
}

int step_cuda_cluster(const StepCudaParams& p) {
  if (step_cuda_refusal(p) != nullptr) return 0;
  if (p.cluster != 0) return p.cluster;
  const bool one_fits_twice = !step_held_serves(p) || p.state_dtype == StepDtype::kBFloat16;
  int blocks = p.B * p.H >= kManyHeads && one_fits_twice ? 1 : 2;
  while (blocks < kSlices && (p.B * p.H * blocks < kWantedBlocks || !fits(p, blocks))) blocks *= 2;
  return blocks;
}

cudaError_t step_cuda(const StepCudaParams& p, cudaStream_t stream) {
  if (step_cuda_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.B * p.H == 0) return cudaSuccess;
  if (step_held_serves(p)) return step_held(p, step_cuda_cluster(p), stream);
  if (p.mixer != nullptr) return launch<__nv_bfloat16, true>(p, stream);
  return p.dtype == StepDtype::kBFloat16 ? launch<__nv_bfloat16>(p, stream) : launch<float>(p, stream);
}

}  // namespace cyfa::cyclic_flow
