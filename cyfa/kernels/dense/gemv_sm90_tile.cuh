// Eight rows of bf16 weights times eight or sixteen rows of x by one warp. A chunk is 32 columns: of a chunk a lane holds eight neighbours
// of one row, of the weights as of x, and gives them to two products in an order of columns that is the same for both.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cyfa::dense {

constexpr int kTileRows = 8;
constexpr int kChunk = 32;

// Which row (of weights or of x; of the latter also the eighth after it) and which eight columns of a chunk are a lane's.
__device__ __forceinline__ int tile_row() { return static_cast<int>(threadIdx.x % 32) / 4; }
__device__ __forceinline__ int tile_quarter() { return static_cast<int>(threadIdx.x % 32) % 4; }

// Weights are read once; volatile, so that they are asked for where it is written, before a wait.
__device__ __forceinline__ uint4 load_weights(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

// sums.x, .y += x[tile_row] . w[2 tile_quarter], w[2 tile_quarter + 1] over a chunk; sums.z, .w the same of `high`, x[tile_row + 8].
__device__ __forceinline__ void multiply_chunk(float4& sums, const uint4& x, const uint4& high, const uint4& w) {
  const auto product = [&](unsigned x0, unsigned x1, unsigned high0, unsigned high1, unsigned w0, unsigned w1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)
                 : "r"(x0), "r"(high0), "r"(x1), "r"(high1), "r"(w0), "r"(w1));
  };
  product(x.x, x.y, high.x, high.y, w.x, w.y);
  product(x.z, x.w, high.z, high.w, w.z, w.w);
}

}  // namespace cyfa::dense
