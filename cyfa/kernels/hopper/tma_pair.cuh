// Boxes that hold rows of two matrices which lie one behind the other, as tma.cuh has them of one.
#pragma once

#include "cyfa/kernels/hopper/tma.cuh"

namespace cyfa::hopper {

// Describes two row-major matrices of 16-bit numbers, `rows` rows each, in boxes of 64 columns and `box_rows` rows of the first, then the
// same rows of the second: one panel of a tile. The thread has its context: make_tensor_map has been called.
inline cudaError_t make_pair_map(CUtensorMap& map, const void* matrices, int64_t rows, int64_t columns, int box_rows) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                   const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static void* const encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr;
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), 2};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(columns * 2), static_cast<cuuint64_t>(rows * columns * 2)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kPanelColumns), static_cast<cuuint32_t>(box_rows), 2};
  const cuuint32_t step[3] = {1, 1, 1};
  const CUresult result = reinterpret_cast<Encode>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void*>(matrices), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

__device__ __forceinline__ void copy_pair_box(uint32_t to, const CUtensorMap* map, int column, int row, uint64_t* barrier,
                                              uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
          to),
      "l"(map), "r"(column), "r"(row), "r"(0), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Asks for the description itself, which its first copy would wait for.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

}  // namespace cyfa::hopper
