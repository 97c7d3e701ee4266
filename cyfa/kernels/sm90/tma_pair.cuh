// TMA copies of boxes that hold the same rows of two matrices which are contiguous in memory, such as the g and u halves of SwiGLU's
// weights. Used by dense/gemm64_sm90.cu.
#pragma once

#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::sm90 {

// Tensor map of two row-major matrices of 16-bit numbers, `rows` rows each, the second directly after the first. A box has 64 columns,
// `box_rows` rows of the first matrix and then the same rows of the second: one panel of a tile.
inline cudaError_t make_pair_map(CUtensorMap& map, const void* matrices, int64_t rows, int64_t columns, int box_rows) {
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), 2};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(columns * 2), static_cast<cuuint64_t>(rows * columns * 2)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kPanelColumns), static_cast<cuuint32_t>(box_rows), 2};
  return detail::encode_tensor_map(map, matrices, size, stride, box);
}

// Copies the box at (column, row) of both matrices to shared memory address `to`; its bytes are counted at `barrier`.
__device__ __forceinline__ void copy_pair_box(uint32_t to, const CUtensorMap* map, int column, int row, uint64_t* barrier,
                                              uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::
          "r"(to),
      "l"(map), "r"(column), "r"(row), "r"(0), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Prefetches the tensor map itself, which its first copy would otherwise wait for.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

}  // namespace cyfa::sm90
