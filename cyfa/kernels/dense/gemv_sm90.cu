// Matrix product for up to 16 rows of x; see gemv_sm90.h.
// A thread block computes kTiles tiles of eight outputs, and its eight warps split the reduction: warp w takes the 32-column chunks w, w +
// 8, ... The block loads all of its weights into registers before griddepcontrol.wait. After the wait each block normalises the rows of x
// into its own shared memory, if the input has a norm, and the warps' partial sums are added in warp order.
#include "cyfa/kernels/dense/gemv_sm90.h"

#include "cyfa/kernels/dense/gemv_sm90_tile.cuh"
#include "cyfa/kernels/rowwise/vector.cuh"
#include "cyfa/kernels/sm90/launch.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::dense {
namespace {

using bf16 = __nv_bfloat16;
using rowwise::Eight;
using rowwise::kVector;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStepColumns = kWarps * kChunk;  // columns that the warps of a block take per step
// With this many outputs, blocks of four tiles still occupy most SMs, and leave resources for the blocks of the next launch.
constexpr int kManyOutputs = 3072;
// Bytes of staged rows that fit, together with the static arrays, in the 48 KB that need no opt-in.
constexpr int64_t kFreeSharedBytes = 24 * 1024;
constexpr int64_t kMostSharedBytes = 36 * 1024;  // largest size of staged rows: 16 of 1,024 columns or 8 of 2,048
constexpr float kSmallest = 1.17549435e-38F;

// Row stride of the staged rows, in vectors of eight. The odd multiple of 4 puts neighbouring rows half of the shared memory banks apart.
__host__ __device__ constexpr int64_t staged_stride(int64_t in) { return in / kVector | 4; }

// Writes RMSNorm(x) to `staged` as bf16, one warp per row; lane l holds the vectors l, l + 32, ... Without a gate the norm is over the
// whole row. With one it is over runs of `width` columns, and a run is held by a power of two of neighbouring lanes.
template <int kVectors, bool kGated>
__device__ void stage_normed(const GemvCuda& p, const float* weight, uint4* staged) {
  const int lane = threadIdx.x % 32, vectors = static_cast<int>(p.in / kVector), run = static_cast<int>(p.width / kVector);
  for (int row = threadIdx.x / 32; row < p.rows; row += kWarps) {
    const int64_t from = static_cast<int64_t>(row) * vectors;
    rowwise::Packed<bf16> x[kVectors] = {}, gate[kVectors];
    float sum[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = lane + 32 * i;
      if (at < vectors) x[i] = rowwise::load_packed(static_cast<const bf16*>(p.x), from + at);
      if (kGated && at < vectors) gate[i] = rowwise::load_packed(static_cast<const bf16*>(p.gate), from + at);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Eight wide = rowwise::unpack(x[i]);
      sum[i] = 0;
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum[i] += wide.at[e] * wide.at[e];
    }
    if constexpr (kGated) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) sum[i] += __shfl_xor_sync(0xffffffffU, sum[i], distance);
      }
    } else {
#pragma unroll
      for (int i = 1; i < kVectors; ++i) sum[0] += sum[i];
      sum[0] = rowwise::warp_sum(sum[0]);
    }
    uint4* to = staged + row * staged_stride(p.in);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = lane + 32 * i;
      if (at >= vectors) break;
      const float rate = rsqrtf(fmaxf(sum[kGated ? i : 0] / static_cast<float>(p.width) + p.eps, kSmallest));
      Eight wide = rowwise::unpack(x[i]);
      const Eight by_column = rowwise::load(weight, at % run);
#pragma unroll
      for (int e = 0; e < kVector; ++e) wide.at[e] *= rate * by_column.at[e];
      if constexpr (kGated) {
        const Eight by = rowwise::unpack(gate[i]);
#pragma unroll
        for (int e = 0; e < kVector; ++e) wide.at[e] *= rowwise::sigmoid(by.at[e]);
      }
      rowwise::store(reinterpret_cast<bf16*>(to), at, wide);
    }
  }
  __syncthreads();
}

// First row of the output and of the weights of this block's tile `tile`. With SwiGLU the upper half of a block's tiles are the rows of u
// that belong to the rows of g in the lower half.
template <int kTiles>
__device__ int64_t first_output(const GemvCuda& p, int tile) {
  const int tiles = p.output == GemvOutput::kSwiglu ? kTiles / 2 : kTiles;
  return (static_cast<int64_t>(blockIdx.x) * tiles + tile % tiles) * kTileRows;
}
template <int kTiles>
__device__ int64_t first_weight(const GemvCuda& p, int tile) {
  return first_output<kTiles>(p, tile) + (p.output == GemvOutput::kSwiglu && tile >= kTiles / 2 ? p.out : 0);
}

// Prefetches this block's share of p.ahead into the L2 cache.
__device__ void ask_ahead(const GemvCuda& p) {
  if (p.ahead == nullptr) return;
  constexpr int64_t kUnit = 16;
  const int64_t units = p.ahead_bytes / kUnit, begin = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
  const auto bytes = static_cast<int>((end - begin) * kUnit);
  if (bytes > 0) sm90::prefetch_bulk(static_cast<const char*>(p.ahead) + begin * kUnit, bytes);
}

// Computes and stores output `index` of the block's [kTiles, kRows, kTileRows], adding the warps' sums in warp order.
template <int kTiles, int kRows>
__device__ void write_output(const GemvCuda& p, const float (&sums)[kWarps][kTiles][kRows][kTileRows], int index) {
  const int tile = index / (kRows * kTileRows), row = index / kTileRows % kRows, at = index % kTileRows;
  const auto sum_of = [&](int of) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][of][row][at];
    return sum;
  };
  const bool swiglu = p.output == GemvOutput::kSwiglu;
  if (tile >= (swiglu ? kTiles / 2 : kTiles) || row >= p.rows) return;
  const int64_t output = first_output<kTiles>(p, tile) + at;
  if (output >= p.out) return;
  const int64_t place = row * p.out + output;
  const float y = sum_of(tile);
  bf16* const to = static_cast<bf16*>(p.y) + place;
  switch (p.output) {
    case GemvOutput::kStore: *to = __float2bfloat16_rn(y); break;
    case GemvOutput::kFloat: static_cast<float*>(p.y)[place] = y; break;
    case GemvOutput::kAdd: *to = __float2bfloat16_rn(__bfloat162float(*to) + y); break;
    case GemvOutput::kSwiglu:
      if constexpr (kTiles > 1) *to = __float2bfloat16_rn(y * rowwise::sigmoid(y) * sum_of(tile + kTiles / 2));
      break;
  }
}

// kRows (8 or 16): rows of x that the block computes. kSteps: chunks per warp, rounded up.
template <int kTiles, int kSteps, GemvInput kInput, int kRows>
__global__ void __launch_bounds__(kThreads, kSteps* kRows <= 96 && kSteps != 8 ? 2 : 1)
    decode_gemv_sm90(const __grid_constant__ GemvCuda p) {
  extern __shared__ uint4 staged[];
  __shared__ float sums[kWarps][kTiles][kRows][kTileRows];
  const int warp = threadIdx.x / 32, chunks = static_cast<int>(p.in / kChunk);
  const int64_t vectors = p.in / kVector, of_rows = p.output == GemvOutput::kSwiglu ? 2 * p.out : p.out;
  uint4 held[kTiles][kSteps];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t row = min(first_weight<kTiles>(p, tile) + tile_row(), of_rows - 1);  // rows past the end are clamped here and not stored
    const uint4* from = static_cast<const uint4*>(p.weight) + row * vectors + tile_quarter();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = warp + kWarps * step;
      if (chunk < chunks) held[tile][step] = load_weights(from + 4 * chunk);
    }
  }
  sm90::let_next_launch_begin();
  if (threadIdx.x == 0) ask_ahead(p);
  constexpr bool kNormed = kInput != GemvInput::kPlain;
  __shared__ float4 norm_weight[kNormed ? kSteps * kStepColumns / 4 : 1];
  if constexpr (kNormed) {
    for (int i = threadIdx.x; i < p.width / 4; i += kThreads) norm_weight[i] = reinterpret_cast<const float4*>(p.norm_weight)[i];
    __syncthreads();
  }
  sm90::wait_for_earlier_launch();

  const uint4* x = static_cast<const uint4*>(p.x);
  int64_t stride = vectors;
  if constexpr (kNormed) {
    stage_normed<kSteps, kInput == GemvInput::kGatedNorm>(p, reinterpret_cast<const float*>(norm_weight), staged);
    x = staged;
    stride = staged_stride(p.in);
  }
  x += tile_row() * stride + tile_quarter();
  constexpr int kHalves = kRows / kTileRows;
  uint4 of_x[2][kSteps] = {};  // all loads are issued before the first use
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = warp + kWarps * step;
      if (tile_row() + half * kTileRows < p.rows && chunk < chunks) of_x[half][step] = x[half * kTileRows * stride + 4 * chunk];
    }
  }
  // Each mma of a chain waits for the one before it; several chains hide this latency. With kNorm the tiles are already independent chains.
  constexpr int kChains = kInput == GemvInput::kNorm ? 1 : 4;
  float4 tile_sums[kTiles][kChains] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (warp + kWarps * step >= chunks) break;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      multiply_chunk(tile_sums[tile][step % kChains], of_x[0][step], of_x[1][step], held[tile][step]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float* to = &sums[warp][tile][tile_row()][2 * tile_quarter()];
    float4 sum = tile_sums[tile][0];
#pragma unroll
    for (int chain = 1; chain < kChains; ++chain) {
      const float4 more = tile_sums[tile][chain];
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    *reinterpret_cast<float2*>(to) = make_float2(sum.x, sum.y);
    if (kHalves > 1) *reinterpret_cast<float2*>(to + kTileRows * kTileRows) = make_float2(sum.z, sum.w);
  }
  __syncthreads();

#pragma unroll
  for (int i = threadIdx.x; i < kTiles * kRows * kTileRows; i += kThreads) write_output(p, sums, i);
}

template <int kTiles, int kSteps, GemvInput kInput, int kRows = kTileRows>
cudaError_t launch(const GemvCuda& p, cudaStream_t stream) {
  if constexpr (kRows == kTileRows && kSteps != 8 && kSteps != 24) {
    if (p.rows > kRows) return launch<kTiles, kSteps, kInput, 2 * kRows>(p, stream);
  }
  const int64_t outputs = kTileRows * (p.output == GemvOutput::kSwiglu ? kTiles / 2 : kTiles);
  const int64_t bytes = kInput == GemvInput::kPlain ? 0 : p.rows * staged_stride(p.in) * static_cast<int64_t>(sizeof(uint4));
  const auto kernel = &decode_gemv_sm90<kTiles, kSteps, kInput, kRows>;
  if (bytes > kFreeSharedBytes) {  // always the maximum: launches of other threads may interleave
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
    if (status != cudaSuccess) return status;
  }
  return sm90::launch_early(kernel, static_cast<int>((p.out + outputs - 1) / outputs), kThreads, static_cast<int>(bytes), stream, p);
}

}  // namespace

const char* gemv_refusal(const GemvCuda& p) {
  const bool plain = p.input == GemvInput::kPlain;
  if (p.rows < 0 || p.rows > kMaxGemvRows) return "the product has more than 16 rows";
  if (p.in < kChunk || p.in % kChunk != 0) return "the rows' width is not a multiple of 32";
  if (p.in > (plain ? 24 : 8) * kStepColumns) return plain ? "rows are wider than 6,144" : "rows are wider than 2,048";
  // Wider rows of more than one tile take too many registers and too much shared memory.
  if (p.rows > kTileRows && p.in > (plain ? 12 : 4) * kStepColumns)
    return plain ? "more than 8 rows are wider than 3,072" : "more than 8 rows are wider than 1,024";
  if (p.output == GemvOutput::kSwiglu && p.input != GemvInput::kNorm) return "SwiGLU takes normed rows only";
  if (p.out <= 0) return "the product has no outputs";
  if (plain) return nullptr;
  if (p.input == GemvInput::kNorm) return p.width == p.in ? nullptr : "the norm is not as wide as the rows";
  const int64_t run = p.width / kVector;
  const bool good = run > 0 && run <= 32 && (run & (run - 1)) == 0 && p.width == run * kVector && p.in % p.width == 0;
  return good ? nullptr : "the gated norm's width is not a power of two from 8 to 256 that divides the rows' width";
}

cudaError_t gemv_cuda(const GemvCuda& p, cudaStream_t stream) {
  if (gemv_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  const bool few = p.in <= 4 * kStepColumns;
  switch (p.input) {
    case GemvInput::kPlain:
      return p.in <= 12 * kStepColumns ? launch<1, 12, GemvInput::kPlain>(p, stream) : launch<1, 24, GemvInput::kPlain>(p, stream);
    case GemvInput::kGatedNorm:
      return few ? launch<1, 4, GemvInput::kGatedNorm>(p, stream) : launch<1, 8, GemvInput::kGatedNorm>(p, stream);
    case GemvInput::kNorm: break;
  }
  const int64_t outputs = p.output == GemvOutput::kSwiglu ? 2 * p.out : p.out;
  if (few && outputs >= kManyOutputs) return launch<4, 4, GemvInput::kNorm>(p, stream);
  return few ? launch<2, 4, GemvInput::kNorm>(p, stream) : launch<2, 8, GemvInput::kNorm>(p, stream);
}

}  // namespace cyfa::dense
