// One warp's product of eight rows of bf16 weights and eight or sixteen rows of x, by mma.sync; used by gemv_sm90.cu and by the decode
// step of cyclic_flow. A chunk is 32 columns. Each lane loads 16 bytes of a chunk, eight neighbouring columns of one row, for the weights
// and for x alike, and passes them to two mma instructions. The columns are thereby permuted within the chunk, in the same way for both
// operands, which leaves the sum unchanged.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cyfa::dense {

constexpr int kTileRows = 8;
constexpr int kChunk = 32;

// The lane's row of a tile (for x also the row eight further down), and which eight columns of a chunk it loads.
__device__ __forceinline__ int tile_row() { return static_cast<int>(threadIdx.x % 32) / 4; }
__device__ __forceinline__ int tile_quarter() { return static_cast<int>(threadIdx.x % 32) % 4; }

// Loads weights without allocating them in the L1 cache, since they are read once. Volatile, so that the load is issued where it is
// written, before a griddepcontrol.wait.
__device__ __forceinline__ uint4 load_weights(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

// Adds a chunk's products: sums.x and .y += x[tile_row] . w[2 tile_quarter] and . w[2 tile_quarter + 1]; sums.z and .w the same for `high`,
// which holds x[tile_row + 8].
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
