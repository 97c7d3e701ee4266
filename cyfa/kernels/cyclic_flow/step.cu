// The decoding step of cyclic_flow on sm_90 (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout): one launch, in which a cluster of
// 1, 2, 4 or 8 blocks steps one head. Called by the sm90 backend of the op. Overwrites state_k, state_v, clock and o.
//
// Each state is read and written once, which is all the time the step should take: 512 KB a head at K = V = 256, M = 128.
//   1  q, k after their norms, the clock's rotations and the write vector: by every block for itself, all of it small.
//   2  state_k, its rows split over the cluster: S = alpha S + k w^T, partial sums of S^T q.
//   3  the partial sums of all blocks through distributed shared memory, then the readout: by every block for itself.
//   4  state_v, its columns split over the cluster: S = alpha S + w v^T, o = S^T u.
//
// A thread owns one float4 column of a state and takes groups of four rows; the sum over each group goes to shared memory, and the
// groups are added up in an order that only the shape fixes. So the cluster's size, and with it the batch, changes no bit.
#include "cyfa/kernels/cyclic_flow/step_cuda.h"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "cyfa/kernels/hopper/tma.cuh"

namespace cyfa::cyclic_flow {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupRows = 4;  // rows of a state whose products a thread sums before they go to shared memory
constexpr int kSlices = 8;     // runs of groups of state_k that are summed apart; the largest cluster has one each
constexpr int kMaxSlots = 256;
static_assert(kMaxSlots / 2 <= kThreads, "a thread takes at most one frequency");
constexpr int kMaxSharedBytes = 226 * 1024;  // of the 227 KB of a multiprocessor; normalise has a little of its own
constexpr int kFreeSharedBytes = 47 * 1024;  // of 48 KB that need no leave, likewise
constexpr int kLineBytes = 128;

// H200, K = V = 256, M = 128, H = 4, us a launch by blocks of a cluster (1, 2, 4, 8): batch 8 takes 20.6, 15.2, 14.6, 21.9; batch
// 16 23.1, 18.5, 25.5, 33.5; batch 32 28.8, 27.7, 39.5, 56.1; batch 64 44.9, 50.5, 65.5, 101. Three blocks on each multiprocessor ask for
// 25 MB of state_v before the readout: half the L2 cache. With the table in shared memory two blocks must fit: it saves 4 to 7% where
// clusters are at work.
constexpr int kWantedBlocks = 128;
constexpr int kPrefetchBytes = 64 * 1024;
constexpr int kMaxTableBytes = 112 * 1024;

// First of `count` things that belong to part `index` of `parts`.
__host__ __device__ constexpr int part_begin(int count, int index, int parts) {
  return static_cast<int>(static_cast<int64_t>(count) * index / parts);
}

// Offsets into shared memory, in floats; all multiples of 4.
struct Layout {
  int q, k, trig, write, scores, probs, read, slices, partial, table, total;
};

__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

__host__ __device__ constexpr Layout shared_layout(int K, int V, int M, int blocks, bool has_table) {
  Layout at{};
  at.q = 0;
  at.k = at.q + K;
  at.trig = at.k + K;
  at.write = at.trig + M;
  at.scores = at.write + M;
  at.probs = at.scores + M;
  at.read = at.probs + M;
  at.slices = at.read + M;
  at.partial = at.slices + kSlices / blocks * M;
  const int key_pass = ceil_div(K / kGroupRows, blocks) * M;
  const int value_pass = M / kGroupRows * ceil_div(V / 4, blocks) * 4;
  at.table = at.partial + max_of(max_of(key_pass, value_pass), kThreads * 4);
  at.total = at.table + (has_table ? M * M : 0);
  return at;
}

template <class T>
__device__ float load_float(const void* base, int64_t index) {
  return static_cast<float>(static_cast<const T*>(base)[index]);
}

__device__ float4 fma4(float a, float4 b, float4 c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
__device__ float4 scaled(float a, float4 b) { return make_float4(a * b.x, a * b.y, a * b.z, a * b.w); }
__device__ float dot4(float4 a, float4 b, float c) { return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, c)))); }
__device__ float2 add2(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

// (x.x + i x.y) (unit.x + i unit.y)
__device__ float2 rotated(float2 x, float2 unit) { return make_float2(x.x * unit.x - x.y * unit.y, x.x * unit.y + x.y * unit.x); }

__device__ float warp_sum(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, lane);
  return x;
}

__device__ float warp_max(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, lane));
  return x;
}

__device__ void prefetch_l2(const char* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

struct Rows {
  float4 x[kGroupRows];
};

// The groups of rows that a thread takes of one float4 column of a state.
struct Share {
  float4* column;  // row 0
  int row_stride;  // in float4
  int group;       // the first
  int step;
  int end;

  __device__ float4* at(int which) const { return column + static_cast<int64_t>(kGroupRows * which) * row_stride; }

  __device__ Rows load(int which) const {
    Rows rows = {};
    if (which < end) {
      const float4* from = at(which);
#pragma unroll
      for (int i = 0; i < kGroupRows; ++i) rows.x[i] = __ldcs(from + i * row_stride);
    }
    return rows;
  }
};

// S[r, :] = alpha S[r, :] + a[r] x in place and sum_r b[r] S[r, :] for the rows of each group; `rows` is the first group, loaded
// beforehand. The sum of group g goes to sums[(g - first) * columns].
__device__ void update_and_read(const Share& share, Rows rows, float alpha, float4 x, const float* a, const float* b, float4* sums,
                                int first, int columns) {
#pragma unroll 1
  for (int group = share.group; group < share.end; group += share.step) {
    const Rows ahead = share.load(group + share.step);
    float4* to = share.at(group);
    const float4 a4 = *reinterpret_cast<const float4*>(a + kGroupRows * group);
    const float4 b4 = *reinterpret_cast<const float4*>(b + kGroupRows * group);
    const float in[kGroupRows] = {a4.x, a4.y, a4.z, a4.w};
    const float out[kGroupRows] = {b4.x, b4.y, b4.z, b4.w};
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
    for (int i = 0; i < kGroupRows; ++i) {
      const float4 s = fma4(in[i], x, scaled(alpha, rows.x[i]));
      __stcs(to + i * share.row_stride, s);
      sum = fma4(out[i], s, sum);
    }
    sums[(group - first) * columns] = sum;
    rows = ahead;
  }
}

// Step 1: q and k, normalised if they have a weight, to shared memory.
template <class T>
__device__ void normalise(const StepCudaParams& p, int64_t row, float* q, float* k) {
  __shared__ float2 squares[kWarps];
  const int K = static_cast<int>(p.K);
  float2 own = make_float2(0.0F, 0.0F);
  for (int i = threadIdx.x; i < K; i += kThreads) {
    q[i] = load_float<T>(p.q, row * p.K + i);
    k[i] = load_float<T>(p.k, row * p.K + i);
    own = make_float2(fmaf(q[i], q[i], own.x), fmaf(k[i], k[i], own.y));
  }
  own = make_float2(warp_sum(own.x), warp_sum(own.y));
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = own;
  __syncthreads();
  float2 sum = make_float2(0.0F, 0.0F);
  for (int i = 0; i < kWarps; ++i) sum = add2(sum, squares[i]);
  const float width = static_cast<float>(K);
  const float q_factor = p.scale * (p.q_norm_weight != nullptr ? 1.0F / sqrtf(sum.x / width + p.norm_eps) : 1.0F);
  const float k_factor = p.k_norm_weight != nullptr ? 1.0F / sqrtf(sum.y / width + p.norm_eps) : 1.0F;
  for (int i = threadIdx.x; i < K; i += kThreads) {
    q[i] *= q_factor * (p.q_norm_weight != nullptr ? p.q_norm_weight[i] : 1.0F);
    k[i] *= k_factor * (p.k_norm_weight != nullptr ? p.k_norm_weight[i] : 1.0F);
  }
}

// Step 1: cos and sin of every frequency, and beta U(-clock) b. The clock is reduced modulo m, which is exact, and j clock / m to
// less than half a turn, in double: a clock of a million costs no accuracy.
__device__ void temporal_write(int M, double clock, float beta, float2* trig, float2* write) {
  const double m = static_cast<double>(M - 1);
  const double phase = (clock - m * floor(clock / m)) / m;
  const int j = static_cast<int>(threadIdx.x);
  if (j < M / 2) {
    const double turns = static_cast<double>(j) * phase;
    double sine;
    double cosine;
    sincospi(2.0 * (turns - rint(turns)), &sine, &cosine);
    const float2 unit = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
    const float amplitude = beta * sqrtf((j == 0 ? 1.0F : 2.0F) / static_cast<float>(M - 1));
    trig[j] = unit;
    write[j] = make_float2(amplitude * unit.x, j == 0 ? 0.0F : -amplitude * unit.y);
  }
}

// Step 3: read = U(-clock) table^T softmax(table scores) over the m active rows. Ends with all of read visible to the block.
__device__ void read_out(const float* table, int M, const float* scores, const float2* trig, float* probs, float4* partial, float2* read) {
  const int m = M - 1;
  const int columns = M / 4;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const float4* table4 = reinterpret_cast<const float4*>(table);
  const float4* scores4 = reinterpret_cast<const float4*>(scores);

  // A warp per row, four rows at a time: their loads and shuffles overlap. Row m is there, and zero; rows past it are not.
#pragma unroll 1
  for (int first = warp; first < m; first += 4 * kWarps) {
    float sum[4] = {};
#pragma unroll 1
    for (int c = lane; c < columns; c += 32) {
      const float4 score = scores4[c];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = dot4(table4[min(first + i * kWarps, m) * columns + c], score, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[i] = warp_sum(sum[i]);
      if (lane == 0 && first + i * kWarps < m) probs[first + i * kWarps] = sum[i];
    }
  }
  __syncthreads();

  if (warp == 0) {
    float logit[kMaxSlots / 32];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kMaxSlots / 32; ++i) {
      logit[i] = lane + 32 * i < m ? probs[lane + 32 * i] : -INFINITY;
      top = fmaxf(top, logit[i]);
    }
    top = warp_max(top);
    float total = 0.0F;
#pragma unroll
    for (int i = 0; i < kMaxSlots / 32; ++i) {
      logit[i] = expf(logit[i] - top);
      total += logit[i];
    }
    const float inverse = 1.0F / warp_sum(total);
#pragma unroll
    for (int i = 0; i < kMaxSlots / 32; ++i) {
      if (lane + 32 * i < m) probs[lane + 32 * i] = logit[i] * inverse;
    }
  }
  __syncthreads();

  const int runs = kThreads / columns;
  const int column = threadIdx.x % columns;
  const int run = threadIdx.x / columns;
  if (run < runs) {
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 8
    for (int r = run; r < m; r += runs) sum = fma4(probs[r], table4[r * columns + column], sum);
    partial[run * columns + column] = sum;
  }
  __syncthreads();

  const float2* partial2 = reinterpret_cast<const float2*>(partial);
  const int j = static_cast<int>(threadIdx.x);
  if (j < M / 2) {
    float2 sum = make_float2(0.0F, 0.0F);
    for (int i = 0; i < runs; ++i) sum = add2(sum, partial2[i * (M / 2) + j]);
    read[j] = rotated(sum, make_float2(trig[j].x, -trig[j].y));
  }
  __syncthreads();
}

template <class T, bool kTable>
__global__ void __launch_bounds__(kThreads, kTable ? 2 : 3) cyclic_flow_step_fused_sm90(const __grid_constant__ StepCudaParams p) {
  extern __shared__ float4 shared4[];
  float* shared = reinterpret_cast<float*>(shared4);
  const cg::cluster_group cluster = cg::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int K = static_cast<int>(p.K);
  const int V = static_cast<int>(p.V);
  const int M = static_cast<int>(p.M);
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x / blocks;
  const Layout at = shared_layout(K, V, M, blocks, kTable);
  const float* table = p.readout_table + row % p.H * p.M * p.M;
  __shared__ uint64_t table_here;
  if (kTable) {
    if (tid == 0) {
      hopper::barrier_init(&table_here, 1);
      hopper::fence_barrier_init();
      hopper::barrier_expect(&table_here, M * M * 4);
      hopper::copy_bulk(shared + at.table, table, M * M * 4, &table_here);
    }
    table = shared + at.table;
  }
  float* q = shared + at.q;
  float* k = shared + at.k;
  float2* trig = reinterpret_cast<float2*>(shared + at.trig);
  float2* write = reinterpret_cast<float2*>(shared + at.write);
  float2* scores = reinterpret_cast<float2*>(shared + at.scores);
  float2* read = reinterpret_cast<float2*>(shared + at.read);
  float* slices = shared + at.slices;
  float* partial = shared + at.partial;
  float4* partial4 = reinterpret_cast<float4*>(partial);

  // This block's slices of state_k, as groups of rows, and this thread's share of them.
  const int key_groups = K / kGroupRows;
  const int slice_begin = rank * (kSlices / blocks);
  const int slice_end = slice_begin + kSlices / blocks;
  const int group_begin = part_begin(key_groups, slice_begin, kSlices);
  const int key_columns = M / 4;
  const int key_runs = kThreads / key_columns;
  const int key_column = tid % key_columns;
  Share keys;
  keys.column = reinterpret_cast<float4*>(p.state_k + row * p.K * p.M) + key_column;
  keys.row_stride = key_columns;
  keys.group = group_begin + tid / key_columns;
  keys.step = key_runs;
  keys.end = tid / key_columns < key_runs ? part_begin(key_groups, slice_end, kSlices) : 0;
  const Rows first_keys = keys.load(keys.group);

  const float alpha = expf(p.log_alpha[row]);
  const double clock = p.clock[row] + static_cast<double>(p.delta[row]);
  normalise<T>(p, row, q, k);
  temporal_write(M, clock, p.beta[row], trig, write);
  __syncthreads();

  const float4 write4 = reinterpret_cast<const float4*>(write)[key_column];
  update_and_read(keys, first_keys, alpha, write4, k, q, partial4 + key_column, group_begin, key_columns);

  // This block's columns of state_v, in all its rows, and this thread's share of them. The memory has nothing to do during the readout
  // unless it is asked now: for the thread's first rows, into registers, and for a part of the rest, into the L2 cache.
  const int column_begin = part_begin(V / 4, rank, blocks);
  const int value_columns = part_begin(V / 4, rank + 1, blocks) - column_begin;
  const int value_runs = value_columns > 0 ? kThreads / value_columns : 0;
  const int value_column = value_columns > 0 ? tid % value_columns : 0;
  const int value_run = value_columns > 0 ? tid / value_columns : 0;
  Share values;
  values.column = reinterpret_cast<float4*>(p.state_v + row * p.M * p.V) + column_begin + value_column;
  values.row_stride = V / 4;
  values.group = value_run;
  values.step = value_runs;
  values.end = value_run < value_runs ? M / kGroupRows : 0;
  const Rows first_values = values.load(values.group);
  const int lines = static_cast<int>(p.M * p.V * 4 / kLineBytes);
  const int line_begin = part_begin(lines, rank, blocks);
  const int line_end = min(part_begin(lines, rank + 1, blocks), line_begin + kPrefetchBytes / kLineBytes);
  const char* value_bytes = reinterpret_cast<const char*>(p.state_v + row * p.M * p.V);
  for (int line = line_begin + tid; line < line_end; line += kThreads) prefetch_l2(value_bytes + static_cast<int64_t>(line) * kLineBytes);
  float4 v4 = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (values.end > 0) {
    const int64_t from = row * p.V + 4 * (column_begin + value_column);
    v4 = make_float4(load_float<T>(p.v, from), load_float<T>(p.v, from + 1), load_float<T>(p.v, from + 2), load_float<T>(p.v, from + 3));
  }
  __syncthreads();

  for (int i = tid; i < (slice_end - slice_begin) * M; i += kThreads) {
    const int slice = slice_begin + i / M;
    float sum = 0.0F;
    for (int group = part_begin(key_groups, slice, kSlices); group < part_begin(key_groups, slice + 1, kSlices); ++group) {
      sum += partial[(group - group_begin) * M + i % M];
    }
    slices[i] = sum;
  }
  cluster.sync();

  // Every block of the cluster has read the clock, and has its slices ready.
  if (rank == 0 && tid == 0) p.clock[row] = clock;
  if (tid < M / 2) {
    float2 sum = make_float2(0.0F, 0.0F);
    for (int slice = 0; slice < kSlices; ++slice) {
      const int owner = slice / (kSlices / blocks);
      const float* there = cluster.map_shared_rank(slices, owner) + (slice - owner * (kSlices / blocks)) * M;
      sum = add2(sum, reinterpret_cast<const float2*>(there)[tid]);
    }
    scores[tid] = rotated(sum, trig[tid]);
  }
  // From here this block reads no other's memory; it may not end before the others can say the same.
  auto others_done = cluster.barrier_arrive();
  __syncthreads();

  if (kTable) hopper::barrier_wait(&table_here, 0);
  read_out(table, M, reinterpret_cast<const float*>(scores), trig, shared + at.probs, partial4, read);

  const float* write1 = reinterpret_cast<const float*>(write);
  const float* read1 = reinterpret_cast<const float*>(read);
  update_and_read(values, first_values, alpha, v4, write1, read1, partial4 + value_column, 0, value_columns);
  __syncthreads();

  for (int i = tid; i < 4 * value_columns; i += kThreads) {
    float sum = 0.0F;
#pragma unroll 8
    for (int group = 0; group < M / kGroupRows; ++group) sum += partial[group * 4 * value_columns + i];
    static_cast<T*>(p.o)[row * p.V + 4 * column_begin + i] = static_cast<T>(sum);
  }
  cluster.barrier_wait(std::move(others_done));
}

bool aligned_to_16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

int shared_bytes(const StepCudaParams& p, int blocks, bool has_table) {
  const Layout at = shared_layout(static_cast<int>(p.K), static_cast<int>(p.V), static_cast<int>(p.M), blocks, has_table);
  return at.total * static_cast<int>(sizeof(float));
}

bool fits(const StepCudaParams& p, int blocks) {
  return shared_bytes(p, blocks, false) <= kMaxSharedBytes && ceil_div(static_cast<int>(p.V / 4), blocks) <= kThreads;
}

// Whether the blocks copy the readout table to shared memory first: where two of them still fit in a multiprocessor and a cluster is at
// work.
bool with_table(const StepCudaParams& p, int blocks) { return blocks > 1 && shared_bytes(p, blocks, true) <= kMaxTableBytes; }

template <class T, bool kTable>
cudaError_t launch(const StepCudaParams& p, int blocks, cudaStream_t stream) {
  const int bytes = shared_bytes(p, blocks, kTable);
  const auto kernel = &cyclic_flow_step_fused_sm90<T, kTable>;
  if (bytes > kFreeSharedBytes) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.B * p.H * blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace

const char* step_cuda_refusal(const StepCudaParams& p) {
  constexpr int64_t kMaxWidth = 4096;
  if (p.B < 0 || p.H < 0 || p.B * p.H > INT32_MAX / kSlices) return "B * H is negative or above 268435455";
  if (p.M < 4 || p.M > kMaxSlots || p.M % 4 != 0) return "M (num_slots) is not a multiple of 4 from 4 to 256";
  if (p.K < 4 || p.K > kMaxWidth || p.K % 4 != 0) return "K (head_dim of keys) is not a multiple of 4 from 4 to 4096";
  if (p.V < 4 || p.V > kMaxWidth || p.V % 4 != 0) return "V (head_dim of values) is not a multiple of 4 from 4 to 4096";
  if (!aligned_to_16(p.state_k) || !aligned_to_16(p.state_v)) return "state_k or state_v is not aligned to 16 bytes";
  if (!aligned_to_16(p.readout_table)) return "readout_table is not aligned to 16 bytes";
  if (p.cluster != 0 && p.cluster != 1 && p.cluster != 2 && p.cluster != 4 && p.cluster != 8) return "cluster is not 0, 1, 2, 4 or 8";
  if (!fits(p, p.cluster != 0 ? p.cluster : kSlices)) return "K * M or V * M is too large for the shared memory of the cluster";
  return nullptr;
}

int step_cuda_cluster(const StepCudaParams& p) {
  if (step_cuda_refusal(p) != nullptr) return 0;
  if (p.cluster != 0) return p.cluster;
  int blocks = 1;
  while (blocks < kSlices && (p.B * p.H * blocks < kWantedBlocks || !fits(p, blocks))) blocks *= 2;
  return blocks;
}

cudaError_t step_cuda(const StepCudaParams& p, cudaStream_t stream) {
  if (step_cuda_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.B * p.H == 0) return cudaSuccess;
  const int blocks = step_cuda_cluster(p);
  if (with_table(p, blocks)) {
    return p.dtype == StepDtype::kBFloat16 ? launch<__nv_bfloat16, true>(p, blocks, stream) : launch<float, true>(p, blocks, stream);
  }
  return p.dtype == StepDtype::kBFloat16 ? launch<__nv_bfloat16, false>(p, blocks, stream) : launch<float, false>(p, blocks, stream);
}

}  // namespace cyfa::cyclic_flow
