// Matrix product for up to 64 rows of x by TMA and wgmma; see gemm64_sm90.h.
// The rows of x are the M = 64 rows of wgmma. A cluster computes kWidth columns of the product (rows of the weights). Its kSplit thread
// blocks split the reduction (split-K), and inside a block warpgroup ("team") t takes the 64-column panels t, t + kTeams, ... Every panel
// has its own buffer in shared memory, so no buffer is reused: the TMA loads of all weight panels are issued before griddepcontrol.wait,
// those of x after it. Warp w of a warpgroup holds the sums of strip w (rows 16 w .. 16 w + 15) and sends them through distributed shared
// memory to the block that finishes this strip. That block adds the partial sums in the order of blocks and warpgroups.
#include "cyfa/kernels/dense/gemm64_sm90.h"

#include <cooperative_groups.h>

#include "cyfa/kernels/dense/gemm64_sm90_wgmma.cuh"
#include "cyfa/kernels/rowwise/vector.cuh"
#include "cyfa/kernels/sm90/launch.cuh"
#include "cyfa/kernels/sm90/tma_pair.cuh"
#include "cyfa/kernels/sm90/wgmma.cuh"

namespace cyfa::dense {
namespace {

namespace cg = cooperative_groups;
using bf16 = __nv_bfloat16;
using sm90::kPanelColumns;
using sm90::kRowBytes;

constexpr int kRows = 64;
constexpr int kTeamThreads = 128;
constexpr int kStrips = 4;  // of kRows; one per warp of a warpgroup
constexpr int kStripRows = kRows / kStrips;
constexpr int kMaxPanels = 32;  // of a block: each lane of one warp issues the copies of one panel
constexpr int kMaxParts = 64;   // partial sums of squares of a row
constexpr int kMaxSharedBytes = 227 * 1024;
constexpr int kPanelBytes = kRows * kRowBytes;  // of a panel of x
constexpr float kSmallest = 1.17549435e-38F;

// Tile shape of a kernel. kSplit: thread blocks of a cluster, which split the reduction.
template <int kWidth_, int kSplit_, int kTeams_, Gemm64Output kOutput_>
struct Shape {
  static constexpr int kWidth = kWidth_, kSplit = kSplit_, kTeams = kTeams_;
  static constexpr Gemm64Output kOutput = kOutput_;
  static constexpr bool kPairs = kOutput == Gemm64Output::kSwiglu;  // g and u, the two halves of kSwiglu's weights, are multiplied together
  static constexpr int kOutputs = kPairs ? kWidth / 2 : kWidth;
  static constexpr int kThreads = kTeams * kTeamThreads, kWarps = kThreads / 32;
  static constexpr int kQuads = kWidth / 8;  // groups of 8 columns; a thread holds four sums of each: two neighbouring columns of two rows
  static constexpr int kOwnStrips = kStrips / kSplit;  // strips that a block finishes
  static constexpr int kOwnRows = kOwnStrips * kStripRows;
  static constexpr int kPanelStride = kPanelBytes + kWidth * kRowBytes;
  static constexpr int kSquareGroups = kThreads / kOwnRows;  // groups of threads that add up squares of the same rows

  using Sums = float4[kOwnStrips][kQuads][32];
  struct Fixed {                                        // shared memory after the panels
    Sums sums[kSplit > 1 ? (kSplit - 1) * kTeams : 1];  // sums received from the other blocks
    float squares[kSquareGroups][kOwnRows];
    uint64_t here[kMaxPanels], sums_here;
  };
  // Panels of a block, rounded up, and its dynamic shared memory for `in` columns of x.
  static constexpr int64_t panels(int64_t in) { return (in / kPanelColumns + kSplit - 1) / kSplit; }
  static constexpr int64_t shared_bytes(int64_t in) { return panels(in) * kPanelStride + static_cast<int64_t>(sizeof(Fixed)); }
};

// d = a warpgroup's panels of x times the weights, in the order of panels. `here` are the panels' mbarriers.
template <class S>
__device__ void multiply(float (&d)[S::kWidth / 2], uint32_t panels, int team, int count, uint64_t* here) {
#pragma unroll
  for (int i = 0; i < S::kWidth / 2; ++i) d[i] = 0;
  sm90::settle(d);
  for (int p = team; p < count; p += S::kTeams) {
    sm90::barrier_wait(here + p, 0);
    sm90::wgmma_fence();
    const uint32_t x = panels + p * S::kPanelStride, weights = x + kPanelBytes;
#pragma unroll
    for (int column = 0; column < kPanelColumns; column += 16) {
      wgmma(d, sm90::along_columns(x, kRows, 0, column), sm90::along_columns(weights, S::kWidth, 0, column), 1);
    }
    sm90::wgmma_commit();
  }
  sm90::wgmma_wait<0>();
  sm90::settle(d);
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// The sums of squares of a block's rows for a fused RMSNorm. load() issues the reads while x is in flight, put() reduces them after the
// products, and rate() is 1 / rms of one row of the block.
template <class S>
struct Squares {
  static constexpr int kHeld = kMaxParts / S::kSquareGroups;
  float held[kHeld] = {};
  __device__ void load(const Gemm64& p, int first_row) {
    const int row = first_row + threadIdx.x % S::kOwnRows, group = threadIdx.x / S::kOwnRows;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int part = group + i * S::kSquareGroups;
      if (part < p.parts) held[i] = p.squares[part * kRows + row];
    }
  }
  __device__ void put(typename S::Fixed& shared) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum += held[i];
    shared.squares[threadIdx.x / S::kOwnRows][threadIdx.x % S::kOwnRows] = sum;
  }
  static __device__ float rate(const Gemm64& p, const typename S::Fixed& shared, int row) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < S::kSquareGroups; ++i) sum += shared.squares[i][row];
    return rsqrtf(fmaxf(sum / static_cast<float>(p.in) + p.eps, kSmallest));
  }
};

// Stores two neighbouring columns, `column` and the next; adds the bias.
template <Gemm64Output kOutput>
__device__ __forceinline__ void store_two(const Gemm64& p, int row, int64_t column, float2 y) {
  if (row >= p.rows || column >= p.out) return;
  const int64_t at = row * p.out + column;
  if (kOutput == Gemm64Output::kStore && p.bias != nullptr) {
    const float2 bias = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(static_cast<const bf16*>(p.bias) + column));
    y = make_float2(y.x + bias.x, y.y + bias.y);
  }
  *reinterpret_cast<__nv_bfloat162*>(static_cast<bf16*>(p.y) + at) = __floats2bfloat162_rn(y.x, y.y);
}

// The residual stream that kAdd adds to: a thread's two neighbouring columns of rows `row` and `row` + 8.
struct Residual {
  int row;
  int64_t column;
  bool own;  // the thread holds columns of the output
  float2 weight = {}, x[2] = {};

  __device__ void load_weight(const Gemm64& p) {
    if (own) weight = *reinterpret_cast<const float2*>(p.next_weight + column);
  }
  __device__ void load(const Gemm64& p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!own || row + 8 * h >= p.rows) continue;
      const auto* from = static_cast<const bf16*>(p.y) + (row + 8 * h) * p.out + column;
      x[h] = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
    }
  }
  // Stores the sum for row + 8 h, writes it to p.next times the norm's weight, and returns the sum of squares of the two columns.
  __device__ float add(const Gemm64& p, int h, float2 y) const {
    if (!own || row + 8 * h >= p.rows) return 0;
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(x[h].x + y.x, x[h].y + y.y);
    const float2 wide = __bfloat1622float2(rounded);
    const int64_t at = (row + 8 * h) * p.out + column;
    *reinterpret_cast<__nv_bfloat162*>(static_cast<bf16*>(p.y) + at) = rounded;
    *reinterpret_cast<__nv_bfloat162*>(static_cast<bf16*>(p.next.scaled) + at) =
        __floats2bfloat162_rn(wide.x * weight.x, wide.y * weight.y);
    return wide.x * wide.x + wide.y * wide.y;
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads) decode_gemm64_sm90(const __grid_constant__ Gemm64 p, const __grid_constant__ CUtensorMap x,
                                                                  const __grid_constant__ CUtensorMap weight) {
  constexpr Gemm64Output kOutput = S::kOutput;
  constexpr bool kAdds = kOutput == Gemm64Output::kAdd;
  static_assert(!kAdds || (S::kOwnStrips == 1 && S::kQuads <= S::kWarps), "a thread has one quad");
  using Shared = typename S::Fixed;
  extern __shared__ __align__(1024) unsigned char panels[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / kStrips, strip = warp % kStrips;
  const int rank = S::kSplit == 1 ? 0 : static_cast<int>(cg::this_cluster().block_rank());
  const int tile = static_cast<int>(blockIdx.x) / S::kSplit, all = static_cast<int>(p.in) / kPanelColumns;
  const int first_panel = all * rank / S::kSplit, count = all * (rank + 1) / S::kSplit - first_panel;
  Shared& shared = *reinterpret_cast<Shared*>(panels + (all + S::kSplit - 1) / S::kSplit * S::kPanelStride);
  const uint32_t base = sm90::shared_address(panels);
  const int64_t first_output = static_cast<int64_t>(tile) * S::kOutputs;

  if (warp == 0) {
    if (lane < count) sm90::barrier_init(shared.here + lane, 1);
    if (S::kSplit > 1 && lane == 0) sm90::barrier_init(&shared.sums_here, 1);
    sm90::fence_barrier_init();
    __syncwarp();
    if (S::kSplit > 1 && lane == 0) sm90::barrier_expect(&shared.sums_here, static_cast<int>(sizeof(shared.sums)));
    if (lane < count) {
      sm90::barrier_expect(shared.here + lane, S::kPanelStride);
      const uint32_t to = base + lane * S::kPanelStride + kPanelBytes;
      const int column = (first_panel + lane) * kPanelColumns;
      if constexpr (S::kPairs) {
        sm90::copy_pair_box(to, &weight, column, tile * S::kOutputs, shared.here + lane, sm90::evict_first());
      } else {
        sm90::copy_box(to, &weight, column, tile * S::kOutputs, shared.here + lane, sm90::evict_first());
      }
    }
    if (lane == 0) sm90::prefetch_map(&x);
  }
  sm90::let_next_launch_begin();
  if constexpr (S::kSplit > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  const int64_t column = first_output + 8 * warp + 2 * (lane % 4);
  Residual residual{rank * kStripRows + lane / 4, column, warp < S::kQuads && column < p.out};
  if constexpr (kAdds) residual.load_weight(p);
  __syncthreads();  // the mbarriers are initialised
  sm90::wait_for_earlier_launch();

  if (warp == 0 && lane < count) {
    sm90::copy_box(base + lane * S::kPanelStride, &x, (first_panel + lane) * kPanelColumns, 0, shared.here + lane);
  }
  if constexpr (kAdds) residual.load(p);
  Squares<S> squares;
  const bool normed = !kAdds && p.squares != nullptr;
  if (normed) squares.load(p, rank * S::kOwnRows);

  float d[S::kWidth / 2];
  multiply<S>(d, base, team, count, shared.here);

  if constexpr (S::kSplit == 1) {
    static_assert(S::kTeams == 1);
#pragma unroll
    for (int i = 0; i < S::kQuads; ++i) {
      const int row = strip * kStripRows + lane / 4;
      const int64_t at = first_output + 8 * i + 2 * (lane % 4);
      store_two<kOutput>(p, row, at, make_float2(d[4 * i], d[4 * i + 1]));
      store_two<kOutput>(p, row + 8, at, make_float2(d[4 * i + 2], d[4 * i + 3]));
    }
  } else {
    if (normed) squares.put(shared);
    __syncthreads();  // all products are complete: the block's own sums overwrite the panels
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // every block of the cluster has initialised its mbarriers
    typename S::Sums* const own = reinterpret_cast<typename S::Sums*>(panels);
    // Index of the first sums of another block in `shared`.
    const auto place = [&](int block) { return (block - (block > rank ? 1 : 0)) * S::kTeams; };
    const int to = strip / S::kOwnStrips;
    // Index of this block's sums in block `to`.
    const int there = (rank - (rank > to ? 1 : 0)) * S::kTeams + team;
#pragma unroll
    for (int i = 0; i < S::kQuads; ++i) {
      const float4 sum = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
      if (to == rank) {
        own[team][strip % S::kOwnStrips][i][lane] = sum;
      } else {
        sm90::store_remote(sm90::shared_address(&shared.sums[there][strip % S::kOwnStrips][i][lane]), &shared.sums_here, to, sum);
      }
    }
    __syncthreads();
    sm90::barrier_wait(&shared.sums_here, 0);
    const auto sum_of = [&](int of_strip, int i, int of_lane) {
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int block = 0; block < S::kSplit; ++block) {
        const typename S::Sums* from = block == rank ? own : shared.sums + place(block);
#pragma unroll
        for (int t = 0; t < S::kTeams; ++t) sum = plus(sum, from[t][of_strip][i][of_lane]);
      }
      return sum;
    };
    if constexpr (kAdds) {
      const float4 y = warp < S::kQuads ? sum_of(0, warp, lane) : make_float4(0, 0, 0, 0);
      float square[2] = {residual.add(p, 0, make_float2(y.x, y.y)), residual.add(p, 1, make_float2(y.z, y.w))};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        square[h] += __shfl_xor_sync(0xffffffffU, square[h], 1);
        square[h] += __shfl_xor_sync(0xffffffffU, square[h], 2);
        if (lane % 4 == 0 && warp < S::kQuads) shared.squares[warp][lane / 4 + 8 * h] = square[h];
      }
      __syncthreads();
      if (threadIdx.x < kStripRows) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < S::kQuads; ++w) sum += shared.squares[w][threadIdx.x];
        p.next.squares[tile * kRows + rank * kStripRows + threadIdx.x] = sum;
      }
    } else {
      constexpr int kOutputQuads = (S::kOutputs + 7) / 8;
      float rate[S::kOwnStrips][2];
#pragma unroll
      for (int s = 0; s < S::kOwnStrips; ++s) {
#pragma unroll
        for (int h = 0; h < 2; ++h) rate[s][h] = normed ? Squares<S>::rate(p, shared, s * kStripRows + lane / 4 + 8 * h) : 1.0F;
      }
#pragma unroll
      for (int s = 0; s < S::kOwnStrips; ++s) {
        const float low = rate[s][0], high = rate[s][1];
        for (int i = warp; i < kOutputQuads; i += S::kWarps) {
          float4 y = sum_of(s, i, lane);
          y = make_float4(y.x * low, y.y * low, y.z * high, y.w * high);
          const int64_t at = first_output + 8 * i + 2 * (lane % 4);
          if constexpr (S::kPairs) {
            // u's columns follow g's at a distance of kOutputs, which is 4 modulo 8. So the u of a column pair is held by lane ^ 2, of the
            // quad kOutputs / 8 further on or of the next one.
            static_assert(S::kOutputs % 8 == 4);
            if (8 * i + 2 * (lane % 4) >= S::kOutputs) continue;
            const float4 u = sum_of(s, i + S::kOutputs / 8 + (lane % 4 >= 2 ? 1 : 0), lane ^ 2);
            y = make_float4(y.x * rowwise::sigmoid(y.x) * u.x * low, y.y * rowwise::sigmoid(y.y) * u.y * low,
                            y.z * rowwise::sigmoid(y.z) * u.z * high, y.w * rowwise::sigmoid(y.w) * u.w * high);
          }
          const int row = rank * S::kOwnRows + s * kStripRows + lane / 4;
          store_two<kOutput>(p, row, at, make_float2(y.x, y.y));
          store_two<kOutput>(p, row + 8, at, make_float2(y.z, y.w));
        }
      }
    }
  }
}

template <class S>
cudaError_t launch(const Gemm64& p, cudaStream_t stream) {
  const auto kernel = &decode_gemm64_sm90<S>;
  CUtensorMap x, weight;
  cudaError_t status = sm90::make_tensor_map(x, p.x, p.rows, p.in, p.x_stride, kRows);
  if (status != cudaSuccess) return status;
  if constexpr (S::kPairs) {
    status = sm90::make_pair_map(weight, p.weight, p.out, p.in, S::kOutputs);
  } else {
    status = sm90::make_tensor_map(weight, p.weight, p.out, p.in, p.in, S::kOutputs);
  }
  if (status == cudaSuccess) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  if (status != cudaSuccess) return status;
  const int blocks = static_cast<int>((p.out + S::kOutputs - 1) / S::kOutputs) * S::kSplit;
  return sm90::launch_cluster_early(kernel, blocks, S::kSplit > 1 ? S::kSplit : 0, S::kThreads, static_cast<int>(S::shared_bytes(p.in)),
                                    stream, p, x, weight);
}

// Tile shapes. With one block per SM an H200 holds 30 clusters of four blocks or 66 of two; two blocks of more than 113 KB do not share an
// SM. Wide outputs therefore use clusters of two (clusters of four with 104 and 176 rows of weights take 6.1 and 11.0 us instead of 5.5 and
// 7.1, launched back to back). Long reductions use 26 clusters of 40 rows for 1,024 outputs (32 clusters of 32 rows take 8.0 us instead of
// 5.0).
using Narrow = Shape<8, 1, 1, Gemm64Output::kStore>;  // few input columns: one block computes the whole reduction
using Store = Shape<56, 2, 1, Gemm64Output::kStore>;
using Add = Shape<32, 4, 1, Gemm64Output::kAdd>;
using LongAdd = Shape<40, 4, 2, Gemm64Output::kAdd>;
using Swiglu = Shape<88, 2, 1, Gemm64Output::kSwiglu>;
constexpr int64_t kNarrowColumns = 256;
constexpr int64_t kLongColumns = 1536;

// Calls f with the tile shape for p.
template <class F>
auto with_shape(const Gemm64& p, const F& f) {
  switch (p.output) {
    case Gemm64Output::kStore: return p.squares == nullptr && p.in <= kNarrowColumns ? f(Narrow()) : f(Store());
    case Gemm64Output::kAdd: return p.in <= kLongColumns ? f(Add()) : f(LongAdd());
    default: return f(Swiglu());
  }
}

// The Normable of x: one block of one warp per row, eight columns per lane and load.
__global__ void __launch_bounds__(32) decode_begin_sm90(const bf16* x, int vectors, const float* weight, Normable out) {
  sm90::let_next_launch_begin();
  sm90::wait_for_earlier_launch();
  const int64_t from = static_cast<int64_t>(blockIdx.x) * vectors;
  float sum = 0;
  for (int i = threadIdx.x; i < vectors; i += 32) {
    rowwise::Eight wide = rowwise::load(x, from + i);
    const rowwise::Eight by = rowwise::load(weight, i);
#pragma unroll
    for (int e = 0; e < rowwise::kVector; ++e) {
      sum += wide.at[e] * wide.at[e];
      wide.at[e] *= by.at[e];
    }
    rowwise::store(static_cast<bf16*>(out.scaled), from + i, wide);
  }
  sum = rowwise::warp_sum(sum);
  if (threadIdx.x == 0) out.squares[blockIdx.x] = sum;
}

}  // namespace

int64_t gemm64_parts(int64_t in, int64_t out) {
  const int64_t width = in <= kLongColumns ? Add::kWidth : LongAdd::kWidth;
  return (out + width - 1) / width;
}

const char* gemm64_refusal(const Gemm64& p) {
  if (p.rows < 0 || p.rows > kMaxGemm64Rows) return "the product has more than 64 rows";
  if (p.in <= 0 || p.in % kPanelColumns != 0) return "the rows' width is not a multiple of 64";
  if (p.out <= 0 || p.out % 8 != 0) return "the outputs are not a multiple of 8";
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  if (!aligned(p.x) || !aligned(p.weight) || p.x_stride < p.in || p.x_stride % 8 != 0) return "an operand is not aligned to 16 bytes";
  if (p.parts > kMaxParts) return "a norm's sums of squares are in more than 64 parts";
  return with_shape(p, [&]<class S>(S) -> const char* {
    if (p.in / kPanelColumns < S::kSplit) return "the rows are too narrow to be split over a cluster";
    if (S::panels(p.in) > kMaxPanels || S::shared_bytes(p.in) > kMaxSharedBytes) return "the rows are wider than shared memory holds";
    return nullptr;
  });
}

cudaError_t gemm64_cuda(const Gemm64& p, cudaStream_t stream) {
  if (gemm64_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return with_shape(p, [&]<class S>(S) { return launch<S>(p, stream); });
}

cudaError_t gemm64_begin(const void* x, int64_t rows, int64_t width, const float* weight, const Normable& out, cudaStream_t stream) {
  if (rows > kMaxGemm64Rows || width % rowwise::kVector != 0 || out.parts != 1) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  return sm90::launch_cluster_early(&decode_begin_sm90, static_cast<int>(rows), 0, 32, 0, stream, static_cast<const bf16*>(x),
                                    static_cast<int>(width / rowwise::kVector), weight, out);
}

}  // namespace cyfa::dense
