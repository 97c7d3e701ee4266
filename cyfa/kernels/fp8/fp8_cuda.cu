// Matrices in fp8 (fp8_cuda.h). Both kernels are bound by memory bandwidth. largest_kernel reads the rows from the last to the first, and
// cast_kernel from the first to the last, so that each begins with what the kernel before it left in the L2 cache.
#include <cuda_fp8.h>

#include "cyfa/kernels/fp8/fp8_cuda.h"

namespace cyfa::fp8 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kVector = 8;              // bf16 elements of a 16-byte load
constexpr int kTile = 128;              // rows and columns of a block of cast_kernel
constexpr int kRuns = kTile / kVector;  // vectors in a row of a tile
constexpr int kPasses = kTile * kRuns / kThreads;
constexpr int kPassRows = kTile / kPasses;  // 16
static_assert(kPassRows == kFill);

constexpr uint32_t kNotFinite = 0x7f80;  // a bf16's absolute value from here on is infinite or NaN

// The maximum over the block, in every thread.
__device__ __forceinline__ uint32_t block_max(uint32_t x) {
  __shared__ uint32_t warps[kWarps];
  x = __reduce_max_sync(0xffffffffU, x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  for (const uint32_t other : warps) x = max(x, other);
  return x;
}

// The bits of a non-negative bf16 are ordered as their values are, with infinity and then NaN above all.
__global__ void __launch_bounds__(kThreads) largest_kernel(CastCuda p) {
  const int lane = threadIdx.x % 32, vectors = static_cast<int>(p.width / kVector);
  const auto* x = static_cast<const uint16_t*>(p.x);
  uint32_t most = 0;  // two maxima of 16 bits
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  for (int64_t row = p.rows - 1 - first; row >= 0; row -= kParts * kWarps) {
    const auto* from = reinterpret_cast<const uint4*>(x + row * p.stride);
#pragma unroll 4
    for (int at = lane; at < vectors; at += 32) {
      const uint4 v = from[at];
      most = __vmaxu2(most, __vmaxu2(__vmaxu2(v.x & 0x7fff7fffU, v.y & 0x7fff7fffU), __vmaxu2(v.z & 0x7fff7fffU, v.w & 0x7fff7fffU)));
    }
  }
  most = block_max(max(most & 0xffffU, most >> 16));
  if (threadIdx.x == 0) p.parts[blockIdx.x] = most;
}

__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23); }

struct Scale {
  float by, inverse;
};

// From the bits of the largest absolute value, a bf16. Both formats end at 1.75 times a power of two.
template <Format kFormat>
__device__ __forceinline__ Scale scale_of(uint32_t most) {
  if (most >= kNotFinite) return {__uint_as_float(0x7fffffffU), __uint_as_float(0x7fffffffU)};
  if (most == 0) return {1, 1};
  const int exponent = max(static_cast<int>(most >> 7), 1) - 127, top = kFormat == Format::kE4M3 ? 8 : 15;
  const int by = min(top - exponent - ((most & 0x7fU) > 0x60U ? 1 : 0), 126);
  return {power_of_two(by), power_of_two(-by)};
}

template <Format kFormat>
__device__ __forceinline__ uint32_t two_codes(uint32_t pair, float scale) {
  const float2 x = {__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xffff0000U) * scale};
  return __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, kFormat == Format::kE4M3 ? __NV_E4M3 : __NV_E5M2);
}

template <Format kFormat>
__device__ __forceinline__ uint2 eight_codes(const uint4& v, float scale) {
  return {two_codes<kFormat>(v.x, scale) | two_codes<kFormat>(v.y, scale) << 16,
          two_codes<kFormat>(v.z, scale) | two_codes<kFormat>(v.w, scale) << 16};
}

// Transposes a block of 4 x 4 bytes, of which each word is a row.
__device__ __forceinline__ void transpose_bytes(const uint32_t* rows, uint32_t* columns) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

// A block converts a tile of x. Its transpose goes through shared memory: threads write eight codes of a row and read 16 rows of four
// columns. The words of row r are rotated by 4 (r / 16), so that the 8 x 4 words that a warp reads at a time are in different banks.
template <Format kFormat>
__global__ void __launch_bounds__(kThreads, 4) cast_kernel(CastCuda p) {
  __shared__ alignas(16) uint2 tile[kTile * kRuns];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile, first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int run = thread % kRuns, in_pass = thread / kRuns;
  const int64_t column = first_column + run * kVector;
  const auto* x = static_cast<const uint16_t*>(p.x);
  uint4 values[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int64_t row = first_row + i * kPassRows + in_pass;
    values[i] = uint4{};
    if (row < p.rows && column < p.width) values[i] = *reinterpret_cast<const uint4*>(x + row * p.stride + column);
  }
  uint32_t most = 0;
  for (int i = thread; i < kParts; i += kThreads) most = max(most, p.parts[i]);
  const Scale scale = scale_of<kFormat>(block_max(most));
  if (blockIdx.x == 0 && blockIdx.y == 0 && thread == 0) *p.inverse = scale.inverse;

  const int64_t filled_width = filled(p.width);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int64_t row = first_row + i * kPassRows + in_pass;
    uint2 codes = eight_codes<kFormat>(values[i], scale.by);
    if (p.codes != nullptr && row < p.rows && column < filled_width) {
      *reinterpret_cast<uint2*>(static_cast<uint8_t*>(p.codes) + row * filled_width + column) = codes;
    }
    if (row >= p.transposed_rows) codes = uint2{};
    tile[(i * kPassRows + in_pass) * kRuns + (run + 2 * i) % kRuns] = codes;
  }
  if (p.transposed == nullptr) return;
  __syncthreads();
  constexpr int kGroups = kTile / kFill, kWords = kTile / 4;
  const int group = thread % kGroups, word = thread / kGroups;  // rows 16 group ..., columns 4 word ...
  const auto* words = reinterpret_cast<const uint32_t*>(tile) + group * kFill * kWords + (word + 4 * group) % kWords;
  uint32_t turned[kFill / 4][4];  // [rows 4 i ..., column]
#pragma unroll
  for (int i = 0; i < kFill / 4; ++i) {
    uint32_t rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = words[(4 * i + r) * kWords];
    transpose_bytes(rows, turned[i]);
  }
  const int64_t filled_rows = filled(p.rows), row = first_row + group * kFill;
  if (row >= filled_rows) return;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int64_t to = first_column + 4 * word + c;
    if (to >= p.width) break;
    *reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.transposed) + to * filled_rows + row) =
        uint4{turned[0][c], turned[1][c], turned[2][c], turned[3][c]};
  }
}

bool aligned(const CastCuda& p) {
  return p.width % kVector == 0 && p.stride % kVector == 0 && p.stride >= p.width && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
}

}  // namespace

cudaError_t largest_cuda(const CastCuda& p, cudaStream_t stream) {
  if (!aligned(p)) return cudaErrorInvalidValue;
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  largest_kernel<<<kParts, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t cast_cuda(const CastCuda& p, cudaStream_t stream) {
  if (!aligned(p)) return cudaErrorInvalidValue;
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>((p.width + kTile - 1) / kTile), static_cast<unsigned>((p.rows + kTile - 1) / kTile));
  if (p.format == Format::kE4M3) {
    cast_kernel<Format::kE4M3><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    cast_kernel<Format::kE5M2><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace cyfa::fp8
