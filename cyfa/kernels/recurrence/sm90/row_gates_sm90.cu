// See row_gates_sm90.h. A block of the pair kernels has 256 threads and works on 64 columns of a chunk at a time. In element-wise work
// thread i owns column i % 64 of the tokens 16 (i / 64) .. + 15, in registers; in products (mma.sync, 16 x 8 x 16) warp w owns rows 16 (w %
// 4) .. + 15.
#include "cyfa/kernels/recurrence/sm90/row_gates_sm90.h"
#include "cyfa/kernels/recurrence/sm90/walk_sm90.h"
#include "cyfa/kernels/sm90/tile.cuh"

namespace cyfa::recurrence {
namespace {

using sm90::bf16;

constexpr int kC = static_cast<int>(kWalkChunk);
constexpr int kColumns = 64;
constexpr int kScoresOwn = 16;            // tokens of a thread; 256 threads
constexpr int kGradientOwn = 8;           // 512 threads; 256 threads with 16 tokens each took 0.80 ms at B8 T2048 H4 K256 on an H200
constexpr int kPitch = kColumns + 8;      // bf16 numbers between rows in shared memory, so that ldmatrix has no bank conflicts
constexpr int kWidePitch = kColumns + 2;  // the same for fp32 numbers

using Tile = bf16[kC][kPitch];
using WideTile = float[kC][kWidePitch];

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Operand a, 16 x 16: rows row .., columns column .. of a tile; and of its transpose.
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const Tile& tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  sm90::load_blocks(a, sm90::shared_address(&tile[row + lane % 16][column + lane / 16 * 8]));
}
__device__ __forceinline__ void load_a_transposed(uint32_t (&a)[4], const Tile& tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  sm90::load_blocks_transposed(a, sm90::shared_address(&tile[column + lane / 16 * 8 + lane % 8][row + lane / 8 % 2 * 8]));
}
// Operand b, 16 x 16 as two of 16 x 8: tile^T, so b[k][n] = tile[column n + ..][k] (load_b_rows), or the tile itself (load_b).
// The first product takes b[0] and b[1], the second b[2] and b[3].
__device__ __forceinline__ void load_b_rows(uint32_t (&b)[4], const Tile& tile, int k, int n) {
  const int lane = threadIdx.x % 32;
  sm90::load_blocks(b, sm90::shared_address(&tile[n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]));
}
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const Tile& tile, int k, int n) {
  const int lane = threadIdx.x % 32;
  sm90::load_blocks_transposed(b, sm90::shared_address(&tile[k + lane % 16][n + lane / 16 * 8]));
}

// The level of a pair of different tokens is the highest bit in which they differ.
__device__ __forceinline__ bool at_level(int t, int s, int h) { return ((t ^ s) & h) != 0 && ((t ^ s) & ~(2 * h - 1)) == 0; }

// Threads of a block, and groups of tokens.
template <int kOwn>
constexpr int kThreads = kC / kOwn* kColumns;
template <int kOwn>
using Wholes = float[kC / kOwn][kColumns];

// This thread's column of a [C, K] array.
template <int kOwn>
struct Column {
  int token, k;
  int64_t at;  // of its first token
  int64_t K;

  __device__ Column(int64_t chunk, int64_t width, int column) : token(threadIdx.x / kColumns * kOwn), k(threadIdx.x % kColumns), K(width) {
    at = (chunk * kC + token) * K + column + k;
  }
  __device__ __forceinline__ void load(float (&to)[kOwn], const float* from) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i] = from[at + i * K];
  }
  __device__ __forceinline__ void add(float* to, const float (&x)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[at + i * K] += x[i];
  }
};

// Calls f(group) for the other groups of this thread's half of a block of 2 h tokens that lie between it and the middle, nearest the middle
// first; or, if not `inner`, for those that lie beyond it, the outermost first. Halves have at least one group.
template <int h, int kOwn, class F>
__device__ __forceinline__ void over_groups(int token, bool inner, const F& f) {
  constexpr int kHalf = h / kOwn;  // groups
  const int group = token / kOwn;
  const int middle = (token & ~(2 * h - 1)) / kOwn + kHalf;
  const bool second = (token & h) != 0;
  const int place = second ? group - middle : middle - 1 - group;  // 0 is next to the middle
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const int other = inner ? i : kHalf - 1 - i;
    if (inner ? other < place : other > place) f(second ? middle + other : middle - 1 - other);
  }
}

// The products of gates that a level needs, for this thread's tokens: from the middle of the block to t where t is in a second half, from t
// to the middle where it is in a first half. `wholes` holds the product of all gates of each group.
template <int h, int kOwn>
__device__ __forceinline__ void level_gates(float (&gates)[kOwn], const float (&alpha)[kOwn], const Wholes<kOwn>& wholes,
                                            const Column<kOwn>& c) {
  if constexpr (h < kOwn) {
#pragma unroll
    for (int block = 0; block < kOwn; block += 2 * h) {
      float product = 1;
#pragma unroll
      for (int i = block + h; i < block + 2 * h; ++i) gates[i] = product *= alpha[i];
      product = 1;
#pragma unroll
      for (int i = block + h - 1; i >= block; --i) {
        gates[i] = product;
        product *= alpha[i];
      }
    }
  } else {
    float product = 1;
    over_groups<h, kOwn>(c.token, true, [&](int group) { product *= wholes[group][c.k]; });
    if ((c.token & h) != 0) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) gates[i] = product *= alpha[i];
    } else {
#pragma unroll
      for (int i = kOwn - 1; i >= 0; --i) {
        gates[i] = product;
        product *= alpha[i];
      }
    }
  }
}

template <int kOwn>
__device__ __forceinline__ void share_wholes(Wholes<kOwn>& wholes, const float (&alpha)[kOwn], const Column<kOwn>& c) {
  float product = 1;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) product *= alpha[i];
  wholes[c.token / kOwn][c.k] = product;
}

// x (or y) times the level's gates, rounded, where the token is in a second (first) half; zeros elsewhere.
template <int h, int kOwn>
__device__ __forceinline__ void put_scaled(Tile& to, const float (&x)[kOwn], const float (&gates)[kOwn], bool second,
                                           const Column<kOwn>& c) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool mine = (((c.token + i) & h) != 0) == second;
    to[c.token + i][c.k] = __float2bfloat16_rn(mine ? x[i] * gates[i] : 0.0F);
  }
}

// --- scores ---

struct ScoresMemory {
  Tile query[2], key;
  Wholes<kScoresOwn> wholes;
};

// Products of a level. Warp w has rows 16 (w % 4) .. + 15 of the scores of x[w / 4]. Levels of 8 and more fall on whole 16 x 8 tiles and
// are added to `sums`; smaller ones also give pairs of other levels, so each has its own sums of the two tiles on the diagonal.
template <int h>
__device__ __forceinline__ void level_scores(float (&sums)[8][4], float (&diagonal)[4][2][4], const ScoresMemory& m, bool two) {
  const int warp = threadIdx.x / 32;
  const int row = 16 * (warp % 4);
  if (warp >= 4 && !two) return;
  if (h >= 16 && (row & h) == 0) return;
  const Tile& query = m.query[warp / 4];
#pragma unroll
  for (int k = 0; k < kColumns; k += 16) {
    uint32_t a[4], b[4];
    load_a(a, query, row, k);
    if constexpr (h >= 16) {
      const int first = row & ~(2 * h - 1);
#pragma unroll
      for (int n = 0; n < h; n += 16) {
        load_b_rows(b, m.key, k, first + n);
#pragma unroll
        for (int tile = 0; tile < 8; tile += 2) {  // a constant index keeps the sums in registers
          if (8 * tile != first + n) continue;
          mma(sums[tile], a, b[0], b[1]);
          mma(sums[tile + 1], a, b[2], b[3]);
        }
      }
    } else {
      load_b_rows(b, m.key, k, row);
      constexpr int kLevel = h == 4 ? 0 : h == 2 ? 1 : h == 1 ? 2 : 3;  // 8 has keys in the first tile only
      mma(diagonal[kLevel][0], a, b[0], b[1]);
      if constexpr (h != 8) mma(diagonal[kLevel][1], a, b[2], b[3]);
    }
  }
}

template <int h>
__device__ __forceinline__ void scores_at(float (&sums)[8][4], float (&diagonal)[4][2][4], ScoresMemory& m,
                                          const float (&alpha)[kScoresOwn], const float (&x0)[kScoresOwn], const float (&x1)[kScoresOwn],
                                          const float (&y)[kScoresOwn], bool two, const Column<kScoresOwn>& c) {
  float gates[kScoresOwn];
  level_gates<h, kScoresOwn>(gates, alpha, m.wholes, c);
  __syncthreads();
  put_scaled<h, kScoresOwn>(m.query[0], x0, gates, true, c);
  if (two) put_scaled<h, kScoresOwn>(m.query[1], x1, gates, true, c);
  put_scaled<h, kScoresOwn>(m.key, y, gates, false, c);
  __syncthreads();
  level_scores<h>(sums, diagonal, m, two);
}

__global__ void __launch_bounds__(kThreads<kScoresOwn>) recurrence_gated_scores_sm90(const GatedScores p) {
  __shared__ __align__(16) ScoresMemory m;
  const int64_t chunk = blockIdx.x;
  const bool two = p.x[1] != nullptr;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = 16 * (warp % 4);
  float sums[8][4] = {};
  float diagonal[4][2][4] = {};
  float self[2][kScoresOwn] = {};  // scores of tokens with themselves: this thread's columns
  for (int column = 0; column < p.K; column += kColumns) {
    const Column<kScoresOwn> c(chunk, p.K, column);
    float alpha[kScoresOwn], x0[kScoresOwn], x1[kScoresOwn], y[kScoresOwn];
    c.load(alpha, p.alpha);
    c.load(x0, p.x[0]);
    c.load(y, p.y);
    if (two) c.load(x1, p.x[1]);
#pragma unroll
    for (int i = 0; i < kScoresOwn; ++i) {
      self[0][i] += x0[i] * y[i];
      if (two) self[1][i] += x1[i] * y[i];
    }
    __syncthreads();
    share_wholes<kScoresOwn>(m.wholes, alpha, c);
    __syncthreads();
    scores_at<32>(sums, diagonal, m, alpha, x0, x1, y, two, c);
    scores_at<16>(sums, diagonal, m, alpha, x0, x1, y, two, c);
    scores_at<8>(sums, diagonal, m, alpha, x0, x1, y, two, c);
    scores_at<4>(sums, diagonal, m, alpha, x0, x1, y, two, c);
    scores_at<2>(sums, diagonal, m, alpha, x0, x1, y, two, c);
    scores_at<1>(sums, diagonal, m, alpha, x0, x1, y, two, c);
  }
  // The diagonal: sum over the columns, which are spread over two warps.
  __syncthreads();
  float* selfs = reinterpret_cast<float*>(&m);  // [2][C][2]
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int i = 0; i < kScoresOwn; ++i) {
      float sum = self[which][i];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane == 0) selfs[(which * kC + threadIdx.x / kColumns * kScoresOwn + i) * 2 + warp % 2] = sum;
    }
  }
  __syncthreads();
  if (warp >= 4 && !two) return;
  float* out = (warp < 4 ? p.scores[0] : p.scores[1]) + chunk * kC * kC;
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + lane / 4 + 8 * half;
      float two_scores[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int s = 8 * tile + 2 * (lane % 4) + i;
        float sum = sums[tile][2 * half + i];
        if (8 * tile >= row && 8 * tile < row + 16) {
          const int which = tile % 2;
          const int at = 2 * half + i;
          sum = s == t              ? selfs[(warp / 4 * kC + t) * 2] + selfs[(warp / 4 * kC + t) * 2 + 1]
                : at_level(t, s, 8) ? diagonal[3][which][at]
                : at_level(t, s, 4) ? diagonal[0][which][at]
                : at_level(t, s, 2) ? diagonal[1][which][at]
                                    : diagonal[2][which][at];
        }
        two_scores[i] = s <= t ? sum : 0.0F;
      }
      *reinterpret_cast<float2*>(out + t * kC + 8 * tile + 2 * (lane % 4)) = make_float2(two_scores[0], two_scores[1]);
    }
  }
}

// --- adjoint of scores, and apply ---

struct GradientMemory {
  Tile weights;  // of pairs with s < t
  Tile query, key;
  WideTile grad_query, grad_key;
  Wholes<kGradientOwn> wholes, totals;  // of groups: products of gates, sums of shares
  float self[kC];                       // weights of tokens with themselves
};

// Keeps the weights of one level in an operand a of the weights or of their transpose.
template <int h>
__device__ __forceinline__ void keep_level(uint32_t (&a)[4], int row, int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + lane / 4 + i % 2 * 8;
    const int k = column + 2 * (lane % 4) + i / 2 * 8;
    if (!at_level(r, k, h)) a[i] &= 0xFFFF0000U;
    if (!at_level(r, k + 1, h)) a[i] &= 0x0000FFFFU;
  }
}

// grad_query = weights key and grad_key = weights^T query at one level. Warp w has rows 16 (w % 4) .. + 15 and
// columns 16 (w / 4) .. + 15.
template <int h, bool kApply>
__device__ __forceinline__ void level_gradients(GradientMemory& m) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = 16 * (warp % 4);
  const int column = 16 * (warp / 4);
  const int begin = h >= 16 ? (row & ~(2 * h - 1)) : row;  // the block of 2 h tokens that contains the rows, in steps of 16
  const int end = begin + (h >= 16 ? 2 * h : 16);
  const auto store = [&](WideTile& to, const float(&sums)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(&to[row + lane / 4 + 8 * half][column + 8 * n + 2 * (lane % 4)]) =
            make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    }
  };
  const auto accumulate = [&](float(&sums)[2][4], const uint32_t(&a)[4], const Tile& tile, int k) {
    uint32_t b[4];
    load_b(b, tile, k, column);
    mma(sums[0], a, b[0], b[1]);
    mma(sums[1], a, b[2], b[3]);
  };
  if (h < 16 || (row & h) != 0) {  // rows of queries
    float sums[2][4] = {};
    for (int k = begin; k < end; k += 16) {
      uint32_t a[4];
      load_a(a, m.weights, row, k);
      keep_level<h>(a, row, k);
      accumulate(sums, a, m.key, k);
    }
    store(m.grad_query, sums);
  }
  if (!kApply && (h < 16 || (row & h) == 0)) {  // rows of keys
    float sums[2][4] = {};
    for (int k = begin; k < end; k += 16) {
      uint32_t a[4];
      load_a_transposed(a, m.weights, row, k);
      keep_level<h>(a, row, k);
      accumulate(sums, a, m.query, k);
    }
    store(m.grad_key, sums);
  }
}

// This thread's numbers.
struct Own {
  float alpha[kGradientOwn], x[kGradientOwn], y[kGradientOwn];
  float grad_x[kGradientOwn], grad_y[kGradientOwn], grad_log[kGradientOwn];
};

template <int h, bool kApply>
__device__ __forceinline__ void gradients_at(GradientMemory& m, Own& own, const Column<kGradientOwn>& c) {
  float gates[kGradientOwn];
  level_gates<h, kGradientOwn>(gates, own.alpha, m.wholes, c);
  __syncthreads();
  put_scaled<h, kGradientOwn>(m.key, own.y, gates, false, c);
  if constexpr (!kApply) put_scaled<h, kGradientOwn>(m.query, own.x, gates, true, c);
  __syncthreads();
  level_gradients<h, kApply>(m);
  __syncthreads();

  float shares[kGradientOwn];  // d(loss)/d(log of the token's gates at this level)
#pragma unroll
  for (int i = 0; i < kGradientOwn; ++i) {
    const int t = c.token + i;
    shares[i] = 0;
    if ((t & h) != 0) {
      const float grad = m.grad_query[t][c.k];
      own.grad_x[i] += grad * gates[i];
      if constexpr (!kApply) shares[i] = grad * own.x[i] * gates[i];
    } else if constexpr (!kApply) {
      const float grad = m.grad_key[t][c.k];
      own.grad_y[i] += grad * gates[i];
      shares[i] = grad * own.y[i] * gates[i];
    }
  }
  if constexpr (!kApply) {
    // The gate of token u gets the shares of the tokens t >= u of its second half, or of the tokens s < u of its first half.
    if constexpr (h < kGradientOwn) {
#pragma unroll
      for (int block = 0; block < kGradientOwn; block += 2 * h) {
        float sum = 0;
#pragma unroll
        for (int i = block + 2 * h - 1; i >= block + h; --i) own.grad_log[i] += sum += shares[i];
        sum = 0;
#pragma unroll
        for (int i = block; i < block + h; ++i) {
          own.grad_log[i] += sum;
          sum += shares[i];
        }
      }
    } else {
      float carried = 0;
      if constexpr (h > kGradientOwn) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < kGradientOwn; ++i) total += shares[i];
        m.totals[c.token / kGradientOwn][c.k] = total;
        __syncthreads();
        over_groups<h, kGradientOwn>(c.token, false, [&](int group) { carried += m.totals[group][c.k]; });
      }
      if ((c.token & h) != 0) {
#pragma unroll
        for (int i = kGradientOwn - 1; i >= 0; --i) own.grad_log[i] += carried += shares[i];
      } else {
#pragma unroll
        for (int i = 0; i < kGradientOwn; ++i) {
          own.grad_log[i] += carried;
          carried += shares[i];
        }
      }
    }
  }
}

// Also apply, as the gradient of x alone: grad_x is z, written and not added to.
template <bool kApply>
__global__ void __launch_bounds__(kThreads<kGradientOwn>, 1) recurrence_gated_gradient_sm90(const GatedScoresGradient p) {
  extern __shared__ __align__(16) unsigned char memory[];
  GradientMemory& m = *reinterpret_cast<GradientMemory*>(memory);
  const int64_t chunk = blockIdx.y;
  const Column<kGradientOwn> c(chunk, p.K, static_cast<int>(blockIdx.x) * kColumns);
  Own own = {};
  c.load(own.alpha, p.alpha);
  c.load(own.y, p.y);
  if constexpr (!kApply) c.load(own.x, p.x);
  const float* weights = p.weights + chunk * kC * kC;
  for (int i = threadIdx.x; i < kC * kC; i += kThreads<kGradientOwn>) {
    const int t = i / kC, s = i % kC;
    const float w = s <= t ? weights[i] : 0.0F;
    m.weights[t][s] = __float2bfloat16_rn(s < t ? w : 0.0F);
    if (s == t) m.self[t] = w;
  }
  share_wholes<kGradientOwn>(m.wholes, own.alpha, c);
  __syncthreads();
  gradients_at<32, kApply>(m, own, c);
  gradients_at<16, kApply>(m, own, c);
  gradients_at<8, kApply>(m, own, c);
  gradients_at<4, kApply>(m, own, c);
  gradients_at<2, kApply>(m, own, c);
  gradients_at<1, kApply>(m, own, c);
#pragma unroll
  for (int i = 0; i < kGradientOwn; ++i) {
    const float w = m.self[c.token + i];
    own.grad_x[i] += w * own.y[i];
    if constexpr (!kApply) own.grad_y[i] += w * own.x[i];
  }
  if constexpr (kApply) {
#pragma unroll
    for (int i = 0; i < kGradientOwn; ++i) p.grad_x[c.at + i * c.K] = own.grad_x[i];
  } else {
    if (p.grad_x != nullptr) c.add(p.grad_x, own.grad_x);
    c.add(p.grad_y, own.grad_y);
    c.add(p.grad_log, own.grad_log);
  }
}

// --- gates from the chunk's start and to its end: a thread for each column ---

__global__ void recurrence_gated_sm90(GateSide side, int64_t K, const float* alpha, const float* x, float* out) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= K) return;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kC * K + column;
  float product = 1;
  if (side == GateSide::kFromStart) {
#pragma unroll 16
    for (int t = 0; t < kC; ++t) out[at + t * K] = x[at + t * K] * (product *= alpha[at + t * K]);
  } else {
#pragma unroll 16
    for (int t = kC - 1; t >= 0; --t) {
      out[at + t * K] = x[at + t * K] * product;
      product *= alpha[at + t * K];
    }
  }
}

__global__ void recurrence_gated_backward_sm90(GateSide side, int64_t K, const float* alpha, const float* grad, const float* out,
                                               float* grad_x, float* grad_log) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= K) return;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kC * K + column;
  float product = 1, sum = 0;
  const bool from_start = side == GateSide::kFromStart;
  // The products run along the gates' side, the sums of shares against it.
#pragma unroll 8
  for (int i = 0; i < kC; ++i) {
    const int64_t t = at + (from_start ? i : kC - 1 - i) * K;
    const float gate = alpha[t];
    if (from_start) product *= gate;
    grad_x[t] += grad[t] * product;
    if (!from_start) product *= gate;
  }
#pragma unroll 8
  for (int i = 0; i < kC; ++i) {
    const int64_t t = at + (from_start ? kC - 1 - i : i) * K;
    const float share = grad[t] * out[t];
    if (from_start) sum += share;
    grad_log[t] += sum;
    if (!from_start) sum += share;
  }
}

bool takes(int64_t chunks, int64_t K) { return K > 0 && K % kColumns == 0 && chunks <= 65535LL * 65535; }

// Chunks are blockIdx.y, of which a launch has at most 65,535.
template <class F>
cudaError_t over_chunks(int64_t chunks, const F& launch) {
  constexpr int64_t kMost = 65535;
  for (int64_t first = 0; first < chunks; first += kMost) {
    launch(first, static_cast<unsigned>(chunks - first < kMost ? chunks - first : kMost));
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

constexpr int kColumnThreads = 64;

template <bool kApply>
cudaError_t launch_gradient(const GatedScoresGradient& p, cudaStream_t stream) {
  if (!takes(p.chunks, p.K)) return cudaErrorInvalidValue;
  const auto kernel = recurrence_gated_gradient_sm90<kApply>;
  constexpr int kBytes = sizeof(GradientMemory);
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  return over_chunks(p.chunks, [&](int64_t first, unsigned count) {
    GatedScoresGradient part = p;
    const int64_t rows = first * kC * p.K, pairs = first * kC * kC;
    const auto move = [](auto*& pointer, int64_t by) {
      if (pointer != nullptr) pointer += by;
    };
    move(part.weights, pairs);
    move(part.x, rows);
    move(part.grad_x, rows);
    move(part.alpha, rows);
    move(part.y, rows);
    move(part.grad_y, rows);
    move(part.grad_log, rows);
    kernel<<<dim3(static_cast<unsigned>(p.K / kColumns), count), kThreads<kGradientOwn>, kBytes, stream>>>(part);
  });
}

}  // namespace

cudaError_t gated_sm90(GateSide side, int64_t chunks, int64_t K, const float* alpha, const float* x, float* out, cudaStream_t stream) {
  if (!takes(chunks, K)) return cudaErrorInvalidValue;
  return over_chunks(chunks, [&](int64_t first, unsigned count) {
    const int64_t rows = first * kC * K;
    const dim3 grid(static_cast<unsigned>(K / kColumnThreads), count);
    recurrence_gated_sm90<<<grid, kColumnThreads, 0, stream>>>(side, K, alpha + rows, x + rows, out + rows);
  });
}

cudaError_t gated_backward_sm90(GateSide side, int64_t chunks, int64_t K, const float* alpha, const float* grad, const float* out,
                                float* grad_x, float* grad_log, cudaStream_t stream) {
  if (!takes(chunks, K)) return cudaErrorInvalidValue;
  return over_chunks(chunks, [&](int64_t first, unsigned count) {
    const int64_t rows = first * kC * K;
    const dim3 grid(static_cast<unsigned>(K / kColumnThreads), count);
    recurrence_gated_backward_sm90<<<grid, kColumnThreads, 0, stream>>>(side, K, alpha + rows, grad + rows, out + rows, grad_x + rows,
                                                                        grad_log + rows);
  });
}

cudaError_t gated_scores_sm90(const GatedScores& p, cudaStream_t stream) {
  if (!takes(p.chunks, p.K)) return cudaErrorInvalidValue;
  if (p.chunks == 0) return cudaSuccess;
  recurrence_gated_scores_sm90<<<static_cast<unsigned>(p.chunks), kThreads<kScoresOwn>, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t gated_scores_backward_sm90(const GatedScoresGradient& p, cudaStream_t stream) { return launch_gradient<false>(p, stream); }

cudaError_t gated_apply_sm90(int64_t chunks, int64_t K, const float* alpha, const float* weights, const float* y, float* z,
                             cudaStream_t stream) {
  GatedScoresGradient p;
  p.chunks = chunks;
  p.K = K;
  p.alpha = alpha;
  p.weights = weights;
  p.y = y;
  p.grad_x = z;
  return launch_gradient<true>(p, stream);
}

}  // namespace cyfa::recurrence
