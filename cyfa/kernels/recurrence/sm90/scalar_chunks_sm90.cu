// See scalar_chunks_sm90.h. A block has one chunk of one group and goes through (a part of) its heads, 64 columns of values at a time.
// Products run on tensor cores in tiles of 16 x 16 (wmma); what lies between them is done on fp32 tiles in shared memory. These launches
// move 24 KB per chunk and head forward and 56 KB backward, which is what bounds them.
#include <cuda_bf16.h>
#include <mma.h>

#include <algorithm>
#include <type_traits>

#include "cyfa/kernels/recurrence/sm90/scalar_chunks_sm90.h"
#include "cyfa/kernels/recurrence/sm90/walk_sm90.h"

namespace cyfa::recurrence {
namespace {

using namespace nvcuda;
using bf16 = __nv_bfloat16;

constexpr int kC = static_cast<int>(kWalkChunk);
constexpr int kTile = 64;           // columns of values at a time
constexpr int kNarrow = kTile + 8;  // row strides in shared memory: no bank conflicts between the rows of a matrix tile
constexpr int kFloats = kTile + 4;
constexpr int kMostPer = 128;        // heads of a group
constexpr int kParts = 4;            // into which the heads of a group are divided
constexpr double kDeadGate = -1000;  // its exp is 0; larger sums would lose the neighbours' bits

template <int kK>
constexpr int kWide = kK + 8;  // row stride of keys in shared memory

// The chunk and group of a block.
struct Place {
  int64_t chunk;  // of all chunks: n * g + ..
  int64_t first;  // the chunk's first token
  int tokens;     // 0 .. kC
  int group, per;

  __device__ explicit Place(const ScalarChunks& p) {
    const int n = blockIdx.y;
    const ScalarLane lane = p.lane[n / p.groups];
    chunk = static_cast<int64_t>(n) * p.g + blockIdx.x;
    first = lane.first + static_cast<int64_t>(blockIdx.x) * kC;
    const int64_t left = lane.tokens - static_cast<int64_t>(blockIdx.x) * kC;
    tokens = static_cast<int>(left < 0 ? 0 : left > kC ? kC : left);
    group = n % p.groups;
    per = p.heads / p.groups;
  }
};

__device__ __forceinline__ const bf16* row_of(const HeadRows& x, int64_t token, int head) {
  return static_cast<const bf16*>(x.data) + token * x.token_stride + head * x.head_stride;
}

// sums[t] = log_alpha of the chunk's first t + 1 tokens, by one warp.
__device__ void sum_gates(const ScalarChunks& p, const Place& at, int head, double* sums) {
  const int lane = threadIdx.x % 32;
  const auto gate = [&](int t) {
    if (p.log_alpha == nullptr || t >= at.tokens) return 0.0;
    const double x = p.log_alpha[(at.first + t) * p.heads + head];
    return x < kDeadGate ? kDeadGate : x;  // NaN stays
  };
  const double x0 = gate(2 * lane);
  const double x1 = gate(2 * lane + 1);
  double sum = x0 + x1;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += before;
  }
  const double before = __shfl_up_sync(~0U, sum, 1);
  const double start = lane == 0 ? 0.0 : before;
  sums[2 * lane] = start + x0;
  sums[2 * lane + 1] = start + (x0 + x1);
}

__device__ __forceinline__ float decay(double difference) { return expf(static_cast<float>(difference)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

__device__ __forceinline__ uint4 scaled(uint4 x, float factor) {
  auto* pair = reinterpret_cast<__nv_bfloat162*>(&x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __bfloat1622float2(pair[i]);
    pair[i] = __floats2bfloat162_rn(f.x * factor, f.y * factor);
  }
  return x;
}

constexpr int kCopyThreads = 256;

__global__ void __launch_bounds__(kCopyThreads) recurrence_scalar_keys_sm90(const __grid_constant__ ScalarChunks p, const HeadRows q,
                                                                            const HeadRows k, bf16* q_chunks, bf16* k_chunks) {
  const Place at(p);
  const int pieces = p.K / 8;
  for (int i = threadIdx.x; i < 2 * kC * pieces; i += kCopyThreads) {
    const bool keys = i >= kC * pieces;
    const int j = keys ? i - kC * pieces : i;
    const int row = j / pieces;
    const int piece = j % pieces;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row < at.tokens) x = reinterpret_cast<const uint4*>(row_of(keys ? k : q, at.first + row, at.group))[piece];
    reinterpret_cast<uint4*>((keys ? k_chunks : q_chunks) + (at.chunk * kC + row) * p.K)[piece] = x;
  }
}

__global__ void __launch_bounds__(kCopyThreads)
    recurrence_scalar_scaled_sm90(const __grid_constant__ ScalarChunks p, bool to_end, const HeadRows x, bf16* chunks, float* whole) {
  __shared__ float factors[kMostPer][kC];
  __shared__ float decays[kMostPer];
  __shared__ double sums[kCopyThreads / 32][kC];
  const Place at(p);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int h = warp; h < at.per; h += kCopyThreads / 32) {
    sum_gates(p, at, at.group * at.per + h, sums[warp]);
    __syncwarp();
    const double last = sums[warp][kC - 1];
    for (int t = lane; t < kC; t += 32) factors[h][t] = to_end ? decay(last - sums[warp][t]) : p.scale * decay(sums[warp][t]);
    if (lane == 0) decays[h] = decay(last);
    __syncwarp();
  }
  __syncthreads();
  const int width = at.per * p.V;
  const int pieces = width / 8;
  for (int i = threadIdx.x; i < kC * pieces; i += kCopyThreads) {
    const int row = i / pieces;
    const int piece = i % pieces;
    const int h = piece * 8 / p.V;
    uint4 y = make_uint4(0, 0, 0, 0);
    if (row < at.tokens) {
      const uint4* from = reinterpret_cast<const uint4*>(row_of(x, at.first + row, at.group * at.per + h));
      y = scaled(from[piece - h * p.V / 8], factors[h][row]);
    }
    reinterpret_cast<uint4*>(chunks + (at.chunk * kC + row) * width)[piece] = y;
  }
  if (whole == nullptr) return;
  for (int i = threadIdx.x; i < width; i += kCopyThreads) whole[at.chunk * width + i] = decays[i / p.V];
}

using FragmentA = wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major>;
using FragmentAT = wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::col_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major>;
using FragmentBT = wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major>;
using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// sum += tile (row, column), in units of 16, of A B with kInner steps of 16. Each operand is stored as it is (A [rows, inner], B [inner,
// columns]) or, for ...T, transposed.
template <class A, class B, int kInner>
__device__ __forceinline__ void multiply(Sum& sum, const bf16* a, int a_stride, int row, const bf16* b, int b_stride, int column) {
#pragma unroll 2
  for (int i = 0; i < kInner; ++i) {
    A x;
    B y;
    const bf16* from_a = std::is_same_v<A, FragmentA> ? a + 16 * row * a_stride + 16 * i : a + 16 * i * a_stride + 16 * row;
    const bf16* from_b = std::is_same_v<B, FragmentB> ? b + 16 * i * b_stride + 16 * column : b + 16 * column * b_stride + 16 * i;
    wmma::load_matrix_sync(x, from_a, a_stride);
    wmma::load_matrix_sync(y, from_b, b_stride);
    wmma::mma_sync(sum, x, y, sum);
  }
}

__device__ __forceinline__ void put(const Sum& sum, float* tile, int stride, int row, int column) {
  wmma::store_matrix_sync(tile + 16 * row * stride + 16 * column, sum, stride, wmma::mem_row_major);
}

// Starts to copy `rows` rows of `columns` numbers at a distance of `stride` to shared memory; zeros from row `filled` on.
template <int kThreads>
__device__ __forceinline__ void load_rows(bf16* to, int to_stride, const bf16* from, int64_t stride, int rows, int columns, int filled) {
  const int pieces = columns / 8;
  for (int i = threadIdx.x; i < rows * pieces; i += kThreads) {
    const int row = i / pieces;
    const int piece = i % pieces;
    const bool there = row < filled;
    const auto place = static_cast<unsigned>(__cvta_generic_to_shared(to + row * to_stride + 8 * piece));
    const bf16* source = there ? from + row * stride + 8 * piece : from;  // a copy of 0 bytes needs a valid address too
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(source), "r"(there ? 16 : 0) : "memory");
  }
}

// Waits until the block's copies have arrived.
__device__ __forceinline__ void wait_rows() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

// Rows of a fp32 tile, rounded, to rows of bf16.
template <int kThreads>
__device__ __forceinline__ void store_rows(bf16* to, int64_t stride, const float* from, int from_stride, int rows, int columns) {
  const int pieces = columns / 8;
  for (int i = threadIdx.x; i < rows * pieces; i += kThreads) {
    const int row = i / pieces;
    const int piece = i % pieces;
    const float* x = from + row * from_stride + 8 * piece;
    uint4 y;
    auto* pair = reinterpret_cast<__nv_bfloat162*>(&y);
#pragma unroll
    for (int j = 0; j < 4; ++j) pair[j] = __floats2bfloat162_rn(x[2 * j], x[2 * j + 1]);
    reinterpret_cast<uint4*>(to + row * stride)[piece] = y;
  }
}

// Heads of a group that part `part` of kParts goes through.
struct Heads {
  int begin, end;
  __device__ Heads(int per, int part, int parts) {
    const int each = (per + parts - 1) / parts;
    begin = min(per, part * each);
    end = min(per, begin + each);
  }
};

constexpr int kOutputThreads = 256;

template <int kK>
struct OutputTiles {
  double sums[kC];
  bf16 q[kC * kWide<kK>];
  float scores[kC * kFloats];
  bf16 query[kC * kWide<kK>];  // scale a q
  bf16 pairs[kC * kNarrow];    // scale D (q k^T)
  bf16 v[kC * kNarrow];
  union {
    bf16 k[kC * kWide<kK>];
    bf16 state[kK * kNarrow];
    float o[kC * kFloats];
  };
};

template <int kK>
__global__ void __launch_bounds__(kOutputThreads, 2)
    recurrence_scalar_outputs_sm90(const __grid_constant__ ScalarChunks p, const bf16* q_chunks, const bf16* k_chunks, const HeadRows v,
                                   const bf16* states, bf16* o) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<OutputTiles<kK>*>(memory);
  const Place at(p);
  if (at.tokens == 0) return;
  const int warp = threadIdx.x / 32;
  const int row = warp % 4;
  const int column = warp / 4 * 2;  // and the next one
  load_rows<kOutputThreads>(s.q, kWide<kK>, q_chunks + at.chunk * kC * kK, kK, kC, kK, kC);
  load_rows<kOutputThreads>(s.k, kWide<kK>, k_chunks + at.chunk * kC * kK, kK, kC, kK, kC);
  wait_rows();
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    Sum sum;
    wmma::fill_fragment(sum, 0.0F);
    multiply<FragmentA, FragmentBT, kK / 16>(sum, s.q, kWide<kK>, row, s.k, kWide<kK>, column + j);
    put(sum, s.scores, kFloats, row, column + j);
  }
  const int64_t width = static_cast<int64_t>(at.per) * p.V;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.V;
  const Heads mine(at.per, blockIdx.z, gridDim.z);
  for (int h = mine.begin; h < mine.end; ++h) {
    const int head = at.group * at.per + h;
    __syncthreads();
    if (warp == 0) sum_gates(p, at, head, s.sums);
    __syncthreads();
    for (int i = threadIdx.x; i < kC * kC; i += kOutputThreads) {
      const int t = i / kC;
      const int u = i % kC;
      const float pair = u <= t ? s.scores[t * kFloats + u] * (p.scale * decay(s.sums[t] - s.sums[u])) : 0.0F;
      s.pairs[t * kNarrow + u] = __float2bfloat16_rn(pair);
    }
    for (int i = threadIdx.x; i < kC * kK / 8; i += kOutputThreads) {
      const int t = i / (kK / 8);
      const int piece = i % (kK / 8);
      const uint4 x = *reinterpret_cast<const uint4*>(s.q + t * kWide<kK> + 8 * piece);
      *reinterpret_cast<uint4*>(s.query + t * kWide<kK> + 8 * piece) = scaled(x, p.scale * decay(s.sums[t]));
    }
    for (int first = 0; first < p.V; first += kTile) {
      load_rows<kOutputThreads>(s.v, kNarrow, row_of(v, at.first, head) + first, v.token_stride, kC, kTile, at.tokens);
      load_rows<kOutputThreads>(s.state, kNarrow, states + at.chunk * kK * width + h * p.V + first, width, kK, kTile, kK);
      wait_rows();
      Sum sum[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        wmma::fill_fragment(sum[j], 0.0F);
        multiply<FragmentA, FragmentB, kK / 16>(sum[j], s.query, kWide<kK>, row, s.state, kNarrow, column + j);
        multiply<FragmentA, FragmentB, kC / 16>(sum[j], s.pairs, kNarrow, row, s.v, kNarrow, column + j);
      }
      __syncthreads();  // the outputs overwrite the state
#pragma unroll
      for (int j = 0; j < 2; ++j) put(sum[j], s.o, kFloats, row, column + j);
      __syncthreads();
      store_rows<kOutputThreads>(o + at.first * stride + static_cast<int64_t>(head) * p.V + first, stride, s.o, kFloats, at.tokens, kTile);
      __syncthreads();
    }
  }
}

constexpr int kGradientThreads = 512;
constexpr int kGradientWarps = kGradientThreads / 32;

template <int kK>
struct GradientTiles {
  double sums[kC];
  float from_start[kC], to_end[kC];   // scale a, b
  float read[2][kC], written[2][kC];  // the gates' gradients from reads of S, and from writes to the next state; per half row
  float rows[2][kC], columns[kC];     // and from pairs of tokens: sums over rows, per half row, and columns
  float parts[kGradientWarps];        // of <S, dS>
  bf16 q[kC * kWide<kK>], k[kC * kWide<kK>];
  float scores[kC * kFloats], between[kC * kFloats];  // q k^T, scale D
  float grad_scores[kC * kFloats];                    // of q k^T, summed over heads
  union {
    struct {
      float first[kC * kFloats], second[kC * kFloats], third[kC * kFloats];
    };
    float wide[kC * (kK + 4)];
  };
  bf16 v[kC * kNarrow], grad_o[kC * kNarrow];
  bf16 upstream[kC * kNarrow], value[kC * kNarrow];  // scale a dO, bV
  bf16 pairs[kC * kNarrow];                          // P = scale D (q k^T); at last dP
  bf16 state[kK * kNarrow], grad_state[kK * kNarrow];
};
static_assert(sizeof(GradientTiles<128>) <= 227 * 1024);

// Writes a head's gate gradients from what its tiles have summed. A pair (t, u) contributes to the gates after u up to t: the sum over
// tokens from the gate's on of what a token reads of earlier ones, minus what later ones read of it.
template <int kK>
__device__ void put_gate_gradients(const GradientTiles<kK>& s, const Place& at, int heads, int head, float* to) {
  const int lane = threadIdx.x;
  const auto later = [&](int t) { return s.rows[0][t] + s.rows[1][t] - s.columns[t] + s.read[0][t] + s.read[1][t]; };
  const auto earlier = [&](int t) { return s.written[0][t] + s.written[1][t]; };
  float whole = 0;
  for (int i = 0; i < kGradientWarps; ++i) whole += s.parts[i];
  whole *= decay(s.sums[kC - 1]);
  const float y0 = later(2 * lane);
  const float y1 = later(2 * lane + 1);
  const float z0 = earlier(2 * lane);
  const float z1 = earlier(2 * lane + 1);
  float from = y0 + y1;
  float up_to = z0 + z1;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float next = __shfl_down_sync(~0U, from, step);
    const float previous = __shfl_up_sync(~0U, up_to, step);
    if (lane + step < 32) from += next;
    if (lane >= step) up_to += previous;
  }
  float after = __shfl_down_sync(~0U, from, 1);
  float before = __shfl_up_sync(~0U, up_to, 1);
  if (lane == 31) after = 0;
  if (lane == 0) before = 0;
  const float second = after + y1;
  const int t = 2 * lane;
  if (t < at.tokens) to[(at.first + t) * heads + head] = second + y0 + before + whole;
  if (t + 1 < at.tokens) to[(at.first + t + 1) * heads + head] = second + (before + z0) + whole;
}

// The gradient of queries or keys of the chunk, [kC, kK].
template <int kK>
__device__ void put_keys(GradientTiles<kK>& s, const Sum (&sum)[kK / 64], const ScalarChunks& p, const Place& at, int64_t tokens,
                         void* to) {
  constexpr int kStride = kK + 4;
  const int warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kK / 64; ++j) put(sum[j], s.wide, kStride, warp / 4, warp % 4 + 4 * j);
  __syncthreads();
  const int64_t stride = static_cast<int64_t>(p.groups) * kK;
  const int64_t offset = at.first * stride + static_cast<int64_t>(at.group) * kK;
  if (gridDim.z == 1) {
    store_rows<kGradientThreads>(static_cast<bf16*>(to) + offset, stride, s.wide, kStride, at.tokens, kK);
    return;
  }
  float* part = static_cast<float*>(to) + blockIdx.z * tokens * stride + offset;
  for (int i = threadIdx.x; i < at.tokens * kK; i += kGradientThreads) part[i / kK * stride + i % kK] = s.wide[i / kK * kStride + i % kK];
}

template <int kK>
__global__ void __launch_bounds__(kGradientThreads, 1)
    recurrence_scalar_gradients_sm90(const __grid_constant__ ScalarChunks p, const __grid_constant__ ScalarGradients grad) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<GradientTiles<kK>*>(memory);
  const Place at(p);
  if (at.tokens == 0) return;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int row = warp / 4;
  const int column = warp % 4;
  const auto product = [&](auto& sum, float* to) { put(sum, to, kFloats, row, column); };
  load_rows<kGradientThreads>(s.q, kWide<kK>, static_cast<const bf16*>(grad.q_chunks) + at.chunk * kC * kK, kK, kC, kK, kC);
  load_rows<kGradientThreads>(s.k, kWide<kK>, static_cast<const bf16*>(grad.k_chunks) + at.chunk * kC * kK, kK, kC, kK, kC);
  wait_rows();
  {
    Sum sum;
    wmma::fill_fragment(sum, 0.0F);
    multiply<FragmentA, FragmentBT, kK / 16>(sum, s.q, kWide<kK>, row, s.k, kWide<kK>, column);
    product(sum, s.scores);
  }
  Sum grad_q[kK / 64], grad_k[kK / 64];
#pragma unroll
  for (int j = 0; j < kK / 64; ++j) {
    wmma::fill_fragment(grad_q[j], 0.0F);
    wmma::fill_fragment(grad_k[j], 0.0F);
  }
  const int inner = threadIdx.x % kTile;
  for (int i = threadIdx.x; i < kC * kFloats; i += kGradientThreads) s.grad_scores[i] = 0;
  const int half = warp % 2;
  const int64_t width = static_cast<int64_t>(at.per) * p.V;
  const int64_t stride = static_cast<int64_t>(p.heads) * p.V;
  const Heads mine(at.per, blockIdx.z, gridDim.z);
  for (int h = mine.begin; h < mine.end; ++h) {
    const int head = at.group * at.per + h;
    __syncthreads();  // the last head is done
    if (warp == 0) sum_gates(p, at, head, s.sums);
    __syncthreads();
    for (int t = threadIdx.x; t < kC; t += kGradientThreads) {
      s.from_start[t] = p.scale * decay(s.sums[t]);
      s.to_end[t] = decay(s.sums[kC - 1] - s.sums[t]);
      s.columns[t] = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) s.read[i][t] = s.written[i][t] = s.rows[i][t] = 0;
    }
#pragma unroll 1
    for (int t = threadIdx.x / kTile; t < kC; t += kGradientThreads / kTile) {
      const float between = inner <= t ? p.scale * decay(s.sums[t] - s.sums[inner]) : 0.0F;
      s.between[t * kFloats + inner] = between;
      s.pairs[t * kNarrow + inner] = __float2bfloat16_rn(s.scores[t * kFloats + inner] * between);
    }
    float whole = 0;
    for (int first = 0; first < p.V; first += kTile) {
      const int64_t states = at.chunk * kK * width + h * p.V + first;
      load_rows<kGradientThreads>(s.v, kNarrow, row_of(grad.v, at.first, head) + first, grad.v.token_stride, kC, kTile, at.tokens);
      load_rows<kGradientThreads>(s.grad_o, kNarrow, row_of(grad.grad_o, at.first, head) + first, grad.grad_o.token_stride, kC, kTile,
                                  at.tokens);
      load_rows<kGradientThreads>(s.state, kNarrow, static_cast<const bf16*>(grad.states) + states, width, kK, kTile, kK);
      load_rows<kGradientThreads>(s.grad_state, kNarrow, static_cast<const bf16*>(grad.grad_states) + states, width, kK, kTile, kK);
      wait_rows();
      {
        Sum sum;
        wmma::fill_fragment(sum, 0.0F);
        multiply<FragmentA, FragmentBT, kTile / 16>(sum, s.grad_o, kNarrow, row, s.v, kNarrow, column);  // dO V^T
        product(sum, s.first);
        wmma::fill_fragment(sum, 0.0F);
        multiply<FragmentA, FragmentB, kK / 16>(sum, s.k, kWide<kK>, row, s.grad_state, kNarrow, column);  // K dS
        product(sum, s.second);
        wmma::fill_fragment(sum, 0.0F);
        multiply<FragmentA, FragmentB, kK / 16>(sum, s.q, kWide<kK>, row, s.state, kNarrow, column);  // Q S
        product(sum, s.third);
      }
      __syncthreads();
#pragma unroll 1  // more spills registers
      for (int t = threadIdx.x / kTile; t < kC; t += kGradientThreads / kTile) {
        const int tile = t * kFloats + inner;
        const int narrow = t * kNarrow + inner;
        const float grad_score = s.first[tile] * s.between[tile];
        s.grad_scores[tile] += grad_score;
        const float pair = inner < t ? grad_score * s.scores[tile] : 0.0F;
        s.first[tile] = pair;
        const float value = __bfloat162float(s.v[narrow]);
        const float upstream = __bfloat162float(s.grad_o[narrow]) * s.from_start[t];
        const float written = s.second[tile] * s.to_end[t];
        s.upstream[narrow] = __float2bfloat16_rn(upstream);
        s.value[narrow] = __float2bfloat16_rn(value * s.to_end[t]);
        s.second[tile] = written;
        const float of_row = warp_sum(pair);
        const float of_read = warp_sum(upstream * s.third[tile]);
        const float of_written = warp_sum(value * written);
        if (lane == 0) {
          s.rows[half][t] += of_row;
          s.read[half][t] += of_read;
          s.written[half][t] += of_written;
        }
      }
#pragma unroll 1  // more spills registers
      for (int i = threadIdx.x; i < kK * kTile; i += kGradientThreads) {
        const int at_state = i / kTile * kNarrow + i % kTile;
        whole += __bfloat162float(s.state[at_state]) * __bfloat162float(s.grad_state[at_state]);
      }
      __syncthreads();
      {
        Sum sum;
        wmma::load_matrix_sync(sum, s.second + 16 * row * kFloats + 16 * column, kFloats, wmma::mem_row_major);
        multiply<FragmentAT, FragmentB, kC / 16>(sum, s.pairs, kNarrow, row, s.grad_o, kNarrow, column);  // + P^T dO
        product(sum, s.third);
      }
#pragma unroll
      for (int j = 0; j < kK / 64; ++j) {
        multiply<FragmentA, FragmentBT, kTile / 16>(grad_q[j], s.upstream, kNarrow, row, s.state, kNarrow, column + 4 * j);
        multiply<FragmentA, FragmentBT, kTile / 16>(grad_k[j], s.value, kNarrow, row, s.grad_state, kNarrow, column + 4 * j);
      }
      if (threadIdx.x < kC) {
        float sum = 0;
        for (int t = 0; t < kC; ++t) sum += s.first[t * kFloats + threadIdx.x];
        s.columns[threadIdx.x] += sum;
      }
      __syncthreads();
      store_rows<kGradientThreads>(static_cast<bf16*>(grad.d_v) + at.first * stride + static_cast<int64_t>(head) * p.V + first, stride,
                                   s.third, kFloats, at.tokens, kTile);
    }
    whole = warp_sum(whole);
    if (lane == 0) s.parts[warp] = whole;
    __syncthreads();
    if (warp == 0 && grad.d_log_alpha != nullptr) put_gate_gradients(s, at, p.heads, head, grad.d_log_alpha);
  }
  __syncthreads();
  for (int t = threadIdx.x / kTile; t < kC; t += kGradientThreads / kTile) {
    s.pairs[t * kNarrow + inner] = __float2bfloat16_rn(s.grad_scores[t * kFloats + inner]);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kK / 64; ++j) {
    multiply<FragmentA, FragmentB, kC / 16>(grad_q[j], s.pairs, kNarrow, row, s.k, kWide<kK>, column + 4 * j);
    multiply<FragmentAT, FragmentB, kC / 16>(grad_k[j], s.pairs, kNarrow, row, s.q, kWide<kK>, column + 4 * j);
  }
  put_keys<kK>(s, grad_q, p, at, grad.tokens, grad.d_q);
  put_keys<kK>(s, grad_k, p, at, grad.tokens, grad.d_k);
}

dim3 grid_of(const ScalarChunks& p, int parts = 1) {
  return {static_cast<unsigned>(p.g), static_cast<unsigned>(p.lanes * p.groups), static_cast<unsigned>(parts)};
}

bool fits(const ScalarChunks& p) {
  return scalar_chunks_refusal(p) == nullptr && p.lanes <= ScalarChunks::kMostLanes && p.lanes * p.groups <= 65535;
}

template <class Kernel>
cudaError_t with_shared(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <int kK>
cudaError_t outputs(const ScalarChunks& p, const void* q_chunks, const void* k_chunks, const HeadRows& v, const void* states, void* o,
                    cudaStream_t stream) {
  const auto kernel = recurrence_scalar_outputs_sm90<kK>;
  constexpr size_t kBytes = sizeof(OutputTiles<kK>);
  if (const cudaError_t status = with_shared(kernel, kBytes); status != cudaSuccess) return status;
  kernel<<<grid_of(p, scalar_chunks_parts(p)), kOutputThreads, kBytes, stream>>>(p, static_cast<const bf16*>(q_chunks),
                                                                                 static_cast<const bf16*>(k_chunks), v,
                                                                                 static_cast<const bf16*>(states), static_cast<bf16*>(o));
  return cudaGetLastError();
}

template <int kK>
cudaError_t gradients(const ScalarChunks& p, const ScalarGradients& grad, cudaStream_t stream) {
  const auto kernel = recurrence_scalar_gradients_sm90<kK>;
  constexpr size_t kBytes = sizeof(GradientTiles<kK>);
  if (const cudaError_t status = with_shared(kernel, kBytes); status != cudaSuccess) return status;
  kernel<<<grid_of(p, scalar_chunks_parts(p)), kGradientThreads, kBytes, stream>>>(p, grad);
  return cudaGetLastError();
}

}  // namespace

const char* scalar_chunks_refusal(const ScalarChunks& p) {
  if (p.K != 64 && p.K != 128) return "the width of keys is not 64 or 128";
  if (p.V % kTile != 0) return "the width of values is not a multiple of 64";
  if (p.groups < 1 || p.heads % p.groups != 0) return "the number of heads is not a multiple of the number of groups";
  if (p.heads / p.groups > kMostPer) return "more than 128 heads share keys";
  return nullptr;
}

// By the sizes of a group alone, so that sums have the same order in every batch.
int scalar_chunks_parts(const ScalarChunks& p) { return std::min(kParts, p.heads / p.groups); }

cudaError_t scalar_chunks_of_keys_sm90(const ScalarChunks& p, const HeadRows& q, const HeadRows& k, void* q_chunks, void* k_chunks,
                                       cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  recurrence_scalar_keys_sm90<<<grid_of(p), kCopyThreads, 0, stream>>>(p, q, k, static_cast<bf16*>(q_chunks), static_cast<bf16*>(k_chunks));
  return cudaGetLastError();
}

cudaError_t scalar_chunks_scaled_sm90(const ScalarChunks& p, ScalarFactor factor, const HeadRows& x, void* chunks, float* whole,
                                      cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  recurrence_scalar_scaled_sm90<<<grid_of(p), kCopyThreads, 0, stream>>>(p, factor == ScalarFactor::kToEnd, x, static_cast<bf16*>(chunks),
                                                                         whole);
  return cudaGetLastError();
}

cudaError_t scalar_chunks_outputs_sm90(const ScalarChunks& p, const void* q_chunks, const void* k_chunks, const HeadRows& v,
                                       const void* states, void* o, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.K == 64 ? outputs<64>(p, q_chunks, k_chunks, v, states, o, stream) : outputs<128>(p, q_chunks, k_chunks, v, states, o, stream);
}

cudaError_t scalar_chunks_gradients_sm90(const ScalarChunks& p, const ScalarGradients& grad, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.K == 64 ? gradients<64>(p, grad, stream) : gradients<128>(p, grad, stream);
}

}  // namespace cyfa::recurrence
