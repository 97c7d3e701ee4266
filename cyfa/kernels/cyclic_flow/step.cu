// The decoding step of cyclic_flow on sm_90 (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout): one launch, in which a cluster of
// 1, 2, 4 or 8 blocks steps one head. Called by the sm90 backend of the op. Overwrites state_k, state_v, clock and o.
//
// Each state is read and written once, which is all the time the step should take: 512 KB a head at K = V = 256, M = 128.
//   1  q, k after their norms, the clock's rotations and the write vector: by every block for itself, all of it small.
//   2  state_k, its rows split over the cluster: S = alpha S + k w^T, partial sums of S^T q.
//   3  the partial sums of all blocks to every block's shared memory, then the readout: by every block for itself.
//   4  state_v, its columns split over the cluster: S = alpha S + w v^T, o = S^T u.
//
// A thread owns one float4 column of a state and takes groups of four rows; the sum over each group goes to shared memory, and the
// groups are added up in an order that only the shape fixes. So the cluster's size, and with it the batch, changes no bit.
#include "cyfa/kernels/cyclic_flow/step_cuda.h"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cyfa/kernels/cyclic_flow/step_readout.cuh"
#include "cyfa/kernels/cyclic_flow/step_states.cuh"
#include "cyfa/kernels/cyclic_flow/step_streams.cuh"
#include "cyfa/kernels/hopper/launch.cuh"
#include "cyfa/kernels/hopper/tma.cuh"
#include "cyfa/kernels/rows/vector.cuh"

namespace cyfa::cyclic_flow {
namespace {

namespace cg = cooperative_groups;
using namespace step;
using hopper::let_next_launch_begin;
using hopper::prefetch_bulk;
using hopper::wait_for_earlier_launch;
using rows::warp_sum;

constexpr int kSlices = 8;                   // runs of groups of state_k that are summed apart; the largest cluster has one each
constexpr int kMaxSharedBytes = 225 * 1024;  // of the 227 KB of a multiprocessor; what has a fixed size comes on top
constexpr int kMaxBox = 256;                 // rows or columns of a copy
constexpr int kFreeSharedBytes = 46 * 1024;  // of 48 KB that need no leave, likewise

// H200, K = V = 256, M = 128, H = 4, us a launch by blocks of a cluster (1, 2): batch 8 takes 14.1, 9.1; batch 16 16.5, 12.4; batch 32
// 22.9, 22.4; batch 64 39.7, 42.5; batch 256 148, 167. By blocks (4, 8), before states came by copies: batch 1 6.6, 5.1 (1, 2: 14.9, 9.1);
// batch 8 13.0, 17.6; batch 16 22.1, 27.8.
constexpr int kWantedBlocks = 64;
constexpr int kManyHeads = 256;
constexpr int kMultiprocessors = 132;
constexpr int kAhead = 2;                  // groups of rows that a thread has asked for ahead of their use
constexpr int kPrefetchBytes = 64 * 1024;  // of state_v, by a block: two on each multiprocessor ask for a third of the L2 cache

// Of a thread of a small batch with streams: beside such a block there is room for one of the launch before (dense/gemv_cuda.cu, 112
// registers a thread), so that it asks for its states while that one still runs.
constexpr int kRegistersBeside = 144;
constexpr int kGateRows = kWarps * dense::kTileRows;  // of the output's gate, by a block

// What the compiler knows of a launch; 0: only the launch does. Code that runs once waits for its instructions, and with the sizes known
// it is a third as long.
struct AnySizes {
  static constexpr int width = 0, slots = 0, blocks = 0, groups = 0;
};
template <int kBlocks>
struct PublishedSizes {  // of the paper's models
  static constexpr int width = 256, slots = 128, blocks = kBlocks;
  static constexpr int groups = width / kGroupRows * (slots / 4) / kThreads / blocks;  // of rows of either state, of a thread
};

// First of `count` things that belong to part `index` of `parts`, which is a power of two.
__host__ __device__ constexpr int part_begin(int count, int index, int parts) { return count * index / parts; }

// Offsets into shared memory, in floats; all multiples of 4, and what comes by copies begins at multiples of 128 bytes.
struct Layout {
  int q, k, trig, write, scores, read, slices, partial, table, keys, values, total;
};

__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

__host__ __device__ constexpr Layout shared_layout(int K, int V, int M, int blocks, bool has_table, int held_bytes) {
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
  const auto aligned = [](int floats) { return (floats + 31) / 32 * 32; };
  at.table = aligned(at.partial + max_of(max_of(key_pass, value_pass), kWarps * (M + 2)));
  at.keys = aligned(at.table + (has_table ? M * M : 0));
  at.values = aligned(at.keys + key_pass * held_bytes);  // four rows of M numbers a group: M floats for every byte of a number
  at.total = at.values + M * ceil_div(V / 4, blocks) * held_bytes;
  return at;
}

template <class T>
__device__ float load_float(const void* base, int64_t index) {
  return static_cast<float>(static_cast<const T*>(base)[index]);
}

// A thread's first elements of q, k and their norms' weights: asked for before the states, behind which they would have to wait.
template <class T>
struct Vectors {
  float q = 0.0F, k = 0.0F, q_weight = 1.0F, k_weight = 1.0F;

  __device__ void load(const StepCudaParams& p, int K, int64_t row, int i) {
    if (i >= K) return;
    q = load_float<T>(p.q, row * K + i);
    k = load_float<T>(p.k, row * K + i);
    load_weights(p, K, i);
  }

  __device__ void load_weights(const StepCudaParams& p, int K, int i) {
    if (i >= K) return;
    if (p.q_norm_weight != nullptr) q_weight = p.q_norm_weight[i];
    if (p.k_norm_weight != nullptr) k_weight = p.k_norm_weight[i];
  }

  // Step 1: q and k, normalised if they have a weight, to shared memory.
  __device__ void normalise(const StepCudaParams& p, int K, int64_t row, float* to_q, float* to_k) {
    __shared__ float2 squares[kWarps];
    const int tid = static_cast<int>(threadIdx.x);
    float2 own = make_float2(q * q, k * k);
    for (int i = tid + kThreads; K > kThreads && i < K; i += kThreads) {
      const float2 more = make_float2(load_float<T>(p.q, row * K + i), load_float<T>(p.k, row * K + i));
      own = make_float2(fmaf(more.x, more.x, own.x), fmaf(more.y, more.y, own.y));
    }
    own = make_float2(warp_sum(own.x), warp_sum(own.y));
    if (tid % 32 == 0) squares[tid / 32] = own;
    __syncthreads();
    float2 sum = make_float2(0.0F, 0.0F);
    for (int i = 0; i < kWarps; ++i) sum = add2(sum, squares[i]);
    const float width = static_cast<float>(K);
    const float q_factor = p.scale * (p.q_norm_weight != nullptr ? rsqrtf(sum.x / width + p.norm_eps) : 1.0F);
    const float k_factor = p.k_norm_weight != nullptr ? rsqrtf(sum.y / width + p.norm_eps) : 1.0F;
    const auto put = [&](int i) {
      to_q[i] = q * (q_factor * q_weight);
      to_k[i] = k * (k_factor * k_weight);
    };
    if (tid < K) put(tid);
    for (int i = tid + kThreads; K > kThreads && i < K; i += kThreads) {
      load(p, K, row, i);
      put(i);
    }
  }
};

// kTable: the readout table is copied to shared memory. kHold: so are the block's parts of the states, at once, and go back from there;
// otherwise threads read and write them, state_v after the readout. kStreams: q, k, v and the gates are made here; blocks past the
// heads' write the output's gate.
template <class T, class S, class Sizes, bool kTable, bool kHold, bool kStreams>
__global__ void __maxnreg__(kHold ? (kStreams ? kRegistersBeside : 255) : 65536 / kThreads / 2)
    cyclic_flow_step_fused_sm90(const __grid_constant__ StepCudaParams p, const __grid_constant__ StepStreams s,
                                const __grid_constant__ CUtensorMap boxes_of_v) {
  using Packed = typename Quad<S>::Packed;
  extern __shared__ __align__(128) float4 shared4[];
  float* shared = reinterpret_cast<float*>(shared4);
  const cg::cluster_group cluster = cg::this_cluster();
  const int blocks = Sizes::blocks != 0 ? Sizes::blocks : static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int K = Sizes::width != 0 ? Sizes::width : static_cast<int>(p.K);
  const int V = Sizes::width != 0 ? Sizes::width : static_cast<int>(p.V);
  const int M = Sizes::slots != 0 ? Sizes::slots : static_cast<int>(p.M);
  const int H = static_cast<int>(p.H);
  const int tid = static_cast<int>(threadIdx.x);
  const int pair = static_cast<int>(blockIdx.x) / blocks;
  const int head = pair % H;
  const int64_t row = pair;  // in products that 32 bits may not hold
  if constexpr (kStreams) {
    const int past_heads = static_cast<int>(blockIdx.x) - static_cast<int>(p.B) * H * blocks;
    if (past_heads >= 0) {
      const int first = past_heads * kGateRows + tid / 32 * dense::kTileRows;
      write_gate(s, p.B, first, H * V, H * (2 * K + V));
      return;
    }
  }
  const Layout at = shared_layout(K, V, M, blocks, kTable, kHold ? static_cast<int>(sizeof(S)) : 0);
  S* const state_k = static_cast<S*>(p.state_k) + row * K * M;
  S* const state_v = static_cast<S*>(p.state_v) + row * M * V;

  // This block's slices of state_k, as groups of rows, and this thread's share of them.
  const int key_groups = K / kGroupRows;
  const int slice_begin = rank * (kSlices / blocks);
  const int slice_end = slice_begin + kSlices / blocks;
  const int group_begin = part_begin(key_groups, slice_begin, kSlices);
  const int group_end = part_begin(key_groups, slice_end, kSlices);
  const int key_bytes = (group_end - group_begin) * kGroupRows * M * static_cast<int>(sizeof(S));
  S* const own_keys = state_k + static_cast<int64_t>(group_begin) * kGroupRows * M;

  if (kStreams) let_next_launch_begin();
  auto others_began = cluster.barrier_arrive();  // their shared memory is written to later
  __shared__ uint64_t table_here, keys_here, values_here;
  if (kTable || kHold) {
    if (tid == 0) {
      for (uint64_t* barrier : {&table_here, &keys_here, &values_here}) hopper::barrier_init(barrier, 1);
      hopper::fence_barrier_init();
      if (kHold) hopper::prefetch_map(&boxes_of_v);
    }
    __syncthreads();
  }
  // What the launch before this one may still be writing must not be read yet, but it can be brought to the L2 cache; not by so many blocks
  // that they push each other's out.
  if (!kStreams && kHold && tid == 0 && key_bytes > 0) prefetch_bulk(own_keys, key_bytes);
  Vectors<T> vectors;
  float log_alpha, beta;
  double clock;
  if constexpr (kStreams) {
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

  const float* table = p.readout_table + head * M * M;
  if ((kTable || kHold) && tid == 0) {
    if (kHold) {
      hopper::barrier_expect(&keys_here, key_bytes);
      if (key_bytes > 0) hopper::copy_bulk(shared + at.keys, own_keys, key_bytes, &keys_here);
    }
    if (kTable) {
      hopper::barrier_expect(&table_here, M * M * 4);
      hopper::copy_bulk(shared + at.table, table, M * M * 4, &table_here);
    }
    if (kHold) {
      hopper::barrier_expect(&values_here, M * (V / blocks) * static_cast<int>(sizeof(S)));
      hopper::copy_box(hopper::shared_address(shared + at.values), &boxes_of_v, rank * (V / blocks), pair * M, &values_here);
    }
  }
  if (kTable) table = shared + at.table;
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
  Share<S, Sizes::groups> keys;
  keys.column = reinterpret_cast<Packed*>(state_k) + key_column;
  keys.row_stride = key_columns;
  keys.first = group_begin + tid / key_columns;
  keys.step = key_runs;
  keys.end = tid / key_columns < key_runs ? group_end : 0;

  // This block's columns of state_v, in all its rows, and this thread's share of them.
  const int column_begin = part_begin(V / 4, rank, blocks);
  const int value_columns = part_begin(V / 4, rank + 1, blocks) - column_begin;
  const int value_runs = value_columns > 0 ? kThreads / value_columns : 0;
  const int value_column = value_columns > 0 ? tid % value_columns : 0;
  const int value_run = value_columns > 0 ? tid / value_columns : 0;
  Share<S, Sizes::groups> values;
  values.column = reinterpret_cast<Packed*>(state_v) + column_begin + value_column;
  values.row_stride = V / 4;
  values.first = value_run;
  values.step = value_runs;
  values.end = value_run < value_runs ? M / kGroupRows : 0;
  const Held<S, Sizes::groups> held_keys{reinterpret_cast<Packed*>(shared + at.keys) + key_column, key_columns, group_begin};
  const Held<S, Sizes::groups> held_values{reinterpret_cast<Packed*>(shared + at.values) + value_column, value_columns, 0};
  const OfHead of_head{pair / H, head, H, K, V, 4 * column_begin, 4 * value_columns};
  std::conditional_t<kStreams, StreamInputs, NoStreamInputs> in(s, of_head);
  float4 v4 = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (!kStreams && values.end > 0) {
    const int64_t from = row * V + 4 * (column_begin + value_column);
    v4 = make_float4(load_float<T>(p.v, from), load_float<T>(p.v, from + 1), load_float<T>(p.v, from + 2), load_float<T>(p.v, from + 3));
  }

  using FirstOf = std::conditional_t<kHold, Nothing, Ahead<S, Sizes::groups, kAhead>>;
  FirstOf first_keys(keys);

  __shared__ float4 own_columns[kStreams ? kThreads / 4 : 1];  // of v, then of o
  if constexpr (kStreams) {
    wait_for_earlier_launch();
    if (tid < K) {
      vectors.q = in.q.value();
      vectors.k = in.k.value();
      if (!kHold && blocks == 1) in.move_keys_on();
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

  if constexpr (kStreams) v4 = own_columns[value_column];
  const float4 write4 = reinterpret_cast<const float4*>(write)[key_column];
  const float* write1 = reinterpret_cast<const float*>(write);
  if constexpr (kHold) {
    hopper::barrier_wait(&keys_here, 0);
    held_keys.update_and_read(keys, alpha, write4, k, q, partial4 + key_column);
    hopper::fence_async_proxy();
  } else {
    first_keys.update_and_read(keys, alpha, write4, k, q, partial4 + key_column, group_begin, key_columns);
  }
  FirstOf first_values(values);
  if (!kHold) {  // the memory has nothing to do during the readout unless it is asked now
    const int first = part_begin(M, rank, blocks), last = part_begin(M, rank + 1, blocks);
    const int bytes = min((last - first) * V * static_cast<int>(sizeof(S)), kPrefetchBytes);
    if (tid == 0 && bytes > 0) prefetch_bulk(state_v + static_cast<int64_t>(first) * V, bytes);
  }
  __syncthreads();
  if (kHold && tid == 0 && key_bytes > 0) {
    hopper::store_bulk(own_keys, hopper::shared_address(shared + at.keys), key_bytes);
    hopper::commit_stores();
  }

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

  // Every block of the cluster has read the clock and the convolutions' pasts, and all slices are here.
  if (rank == 0 && tid == 0) p.clock[row] = clock;
  if constexpr (kStreams && kHold) {
    if (rank == 0 && tid < K) in.move_keys_on();
  }
  if (tid < M / 2) {
    float2 sum = make_float2(0.0F, 0.0F);
    for (int slice = 0; slice < kSlices; ++slice) sum = add2(sum, reinterpret_cast<const float2*>(slices + slice * M)[tid]);
    scores[tid] = rotated(sum, trig[tid]);
  }
  __syncthreads();

  if (kTable) hopper::barrier_wait(&table_here, 0);
  read_out<kHold && kTable ? 16 : 4>(table, M, reinterpret_cast<const float*>(scores), trig, partial4, weights);

  const float* read1 = reinterpret_cast<const float*>(weights);
  if constexpr (kHold) {
    hopper::barrier_wait(&values_here, 0);
    held_values.update_and_read(values, alpha, v4, write1, read1, partial4 + value_column);
    hopper::fence_async_proxy();
  } else {
    first_values.update_and_read(values, alpha, v4, write1, read1, partial4 + value_column, 0, value_columns);
  }
  GatedNorm gated;
  if (kStreams && s.gate_up == nullptr) gated.load(s, of_head);
  __syncthreads();
  if (kHold && tid == 0) {
    hopper::store_box(&boxes_of_v, rank * (V / blocks), pair * M, hopper::shared_address(shared + at.values));
    hopper::commit_stores();
  }

  for (int i = tid; i < 4 * value_columns; i += kThreads) {
    float sum = 0.0F;
#pragma unroll 8
    for (int group = 0; group < M / kGroupRows; ++group) sum += partial[group * 4 * value_columns + i];
    const T narrow = static_cast<T>(sum);
    if (kStreams && s.gate_up == nullptr) {
      reinterpret_cast<float*>(own_columns)[i] = static_cast<float>(narrow);
    } else {
      static_cast<T*>(p.o)[row * V + 4 * column_begin + i] = narrow;
    }
  }
  if (kHold && tid < 32) hopper::copies_read();
  if constexpr (kStreams) {
    if (!kHold && blocks > 1 && rank == 0 && tid < K) {  // read anew: there were no registers to keep them
      StreamInputs again(s, of_head);
      again.q.value();
      again.k.value();
      again.move_keys_on();
    }
    if (s.gate_up != nullptr) return;
    gated.write(cluster, s, of_head, blocks, reinterpret_cast<float*>(own_columns), static_cast<__nv_bfloat16*>(p.o));
  }
}

bool aligned_to_16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

int state_bytes(const StepCudaParams& p) { return p.state_dtype == StepDtype::kBFloat16 ? 2 : 4; }

int shared_bytes(const StepCudaParams& p, int blocks, bool has_table, bool holds) {
  const Layout at =
      shared_layout(static_cast<int>(p.K), static_cast<int>(p.V), static_cast<int>(p.M), blocks, has_table, holds ? state_bytes(p) : 0);
  return at.total * static_cast<int>(sizeof(float));
}

bool fits(const StepCudaParams& p, int blocks) {
  return shared_bytes(p, blocks, false, false) <= kMaxSharedBytes && ceil_div(static_cast<int>(p.V / 4), blocks) <= kThreads;
}

// What a launch keeps in shared memory: its states where all of its blocks are at work at once, since they need most of a multiprocessor's;
// the table where a cluster is at work and two blocks still fit.
struct Keep {
  bool table, states;
};

// Blocks that write the output's gate: whole clusters.
int gate_blocks(const StepCudaParams& p, int blocks) {
  if (p.streams == nullptr || p.streams->gate_up == nullptr) return 0;
  return ceil_div(ceil_div(static_cast<int>(p.H * p.V), kGateRows), blocks) * blocks;
}

Keep keep_of(const StepCudaParams& p, int blocks) {
  const bool alone = p.B * p.H * blocks + gate_blocks(p, blocks) <= kMultiprocessors;
  Keep keep{};
  const bool boxes = p.V % (16 / state_bytes(p) * blocks) == 0 && p.V / blocks <= kMaxBox && p.M <= kMaxBox;
  keep.states = alone && boxes && shared_bytes(p, blocks, false, true) <= kMaxSharedBytes;
  keep.table = blocks > 1 && shared_bytes(p, blocks, true, keep.states) <= (alone ? kMaxSharedBytes : kMaxSharedBytes / 2 - 1024);
  return keep;
}

// A block's columns of all slots, of state_v as a matrix of B H M rows.
cudaError_t describe_values(CUtensorMap& map, const StepCudaParams& p, int blocks) {
  const auto type = p.state_dtype == StepDtype::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return hopper::describe_boxes(map, {p.state_v, type, p.B * p.H * p.M, p.V, p.V * state_bytes(p), static_cast<int>(p.M),
                                      static_cast<int>(p.V) / blocks, CU_TENSOR_MAP_SWIZZLE_NONE});
}

template <class T, class S, class Sizes, bool kTable, bool kHold, bool kStreams>
cudaError_t launch(const StepCudaParams& p, int blocks, cudaStream_t stream) {
  const int bytes = shared_bytes(p, blocks, kTable, kHold);
  const auto kernel = &cyclic_flow_step_fused_sm90<T, S, Sizes, kTable, kHold, kStreams>;
  if (bytes > kFreeSharedBytes) {  // always for the most: another thread's launch may come between
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.B * p.H * blocks + gate_blocks(p, blocks)));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  CUtensorMap boxes = {};
  const cudaError_t status = kHold ? describe_values(boxes, p, blocks) : cudaSuccess;
  return status != cudaSuccess ? status : cudaLaunchKernelEx(&config, kernel, p, kStreams ? *p.streams : StepStreams{}, boxes);
}

template <class T, class S, bool kStreams>
cudaError_t launch(const StepCudaParams& p, cudaStream_t stream) {
  const int blocks = step_cuda_cluster(p);
  const Keep keep = keep_of(p, blocks);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    using Sizes = PublishedSizes<1>;
    if (p.K == Sizes::width && p.V == Sizes::width && p.M == Sizes::slots) {
      const bool all = keep.table && keep.states;
      if (blocks == 1 && !keep.table && !keep.states) return launch<T, S, PublishedSizes<1>, false, false, kStreams>(p, blocks, stream);
      if (blocks == 2 && keep.table && !keep.states) return launch<T, S, PublishedSizes<2>, true, false, kStreams>(p, blocks, stream);
      if (blocks == 2 && all) return launch<T, S, PublishedSizes<2>, true, true, kStreams>(p, blocks, stream);
      if (blocks == 4 && all) return launch<T, S, PublishedSizes<4>, true, true, kStreams>(p, blocks, stream);
      if (blocks == 8 && all) return launch<T, S, PublishedSizes<8>, true, true, kStreams>(p, blocks, stream);
    }
  }
  using Sizes = AnySizes;
  if (keep.states && keep.table) return launch<T, S, Sizes, true, true, kStreams>(p, blocks, stream);
  if (keep.states) return launch<T, S, Sizes, false, true, kStreams>(p, blocks, stream);
  return keep.table ? launch<T, S, Sizes, true, false, kStreams>(p, blocks, stream)
                    : launch<T, S, Sizes, false, false, kStreams>(p, blocks, stream);
}

template <class T, bool kStreams = false>
cudaError_t launch(const StepCudaParams& p, cudaStream_t stream) {
  return p.state_dtype == StepDtype::kBFloat16 ? launch<T, __nv_bfloat16, kStreams>(p, stream) : launch<T, float, kStreams>(p, stream);
}

const char* streams_refusal(const StepCudaParams& p) {
  const StepStreams& s = *p.streams;
  if (p.dtype != StepDtype::kBFloat16) return "streams are in bf16";
  if (p.K > kThreads || p.V > kThreads || p.V % 64 != 0) return "with streams K is at most 256, V a multiple of 64 up to 256";
  if (s.taps < 1 || s.taps > StepStreams::kMaxTaps) return "a convolution has more than 4 taps";
  if (s.stride % 8 != 0 || p.H * p.K % 4 != 0) return "rows of the projections are not aligned to 16 bytes";
  if (s.gate_up == nullptr) return nullptr;
  if (p.B > StepStreams::kMaxGateRows) return "the output's gate is written for batches of at most 16";
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
  if (const char* reason = p.streams != nullptr ? streams_refusal(p) : nullptr; reason != nullptr) return reason;
  if (p.cluster != 0 && p.cluster != 1 && p.cluster != 2 && p.cluster != 4 && p.cluster != 8) return "cluster is not 0, 1, 2, 4 or 8";
  if (!fits(p, p.cluster != 0 ? p.cluster : kSlices)) return "K * M or V * M is too large for the shared memory of the cluster";
  return nullptr;
}

int step_cuda_cluster(const StepCudaParams& p) {
  if (step_cuda_refusal(p) != nullptr) return 0;
  if (p.cluster != 0) return p.cluster;
  int blocks = p.B * p.H < kManyHeads ? 2 : 1;
  while (blocks < kSlices && (p.B * p.H * blocks < kWantedBlocks || !fits(p, blocks))) blocks *= 2;
  return blocks;
}

cudaError_t step_cuda(const StepCudaParams& p, cudaStream_t stream) {
  if (step_cuda_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.B * p.H == 0) return cudaSuccess;
  if (p.streams != nullptr) return launch<__nv_bfloat16, true>(p, stream);
  return p.dtype == StepDtype::kBFloat16 ? launch<__nv_bfloat16>(p, stream) : launch<float>(p, stream);
}

}  // namespace cyfa::cyclic_flow
