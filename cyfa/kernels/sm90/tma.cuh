// TMA copies between global memory and the tiles of tile.cuh. One thread issues a copy; an mbarrier counts the bytes that have arrived.
// Rows past the end of the matrix are read as zeros and not written. Used by the kernels of cyclic_flow/sm90 and by dense/.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cyfa/kernels/sm90/tile.cuh"

namespace cyfa::sm90 {

namespace detail {

// Encodes a tensor map with the 128-byte swizzle for 16-bit elements. Sizes, strides (in bytes) and boxes are listed from the innermost
// dimension on. cuTensorMapEncodeTiled is looked up at run time, so that nothing links against the driver library.
template <int kDimensions>
cudaError_t encode_tensor_map(CUtensorMap& map, const void* from, const cuuint64_t (&size)[kDimensions],
                              const cuuint64_t (&stride)[kDimensions - 1], const cuuint32_t (&box)[kDimensions]) {
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
  const cuuint32_t step[3] = {1, 1, 1};
  const auto describe = [&] {
    return reinterpret_cast<Encode>(encode)(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kDimensions, const_cast<void*>(from), size, stride, box,
                                            step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  if (describe() == CUDA_SUCCESS) return cudaSuccess;
  // Unlike the runtime API, the driver call does not create a context for a new thread, such as autograd's: cudaFree(nullptr) does.
  const cudaError_t status = cudaFree(nullptr);
  if (status != cudaSuccess) return status;
  return describe() == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace detail

// Tensor map of a row-major matrix of 16-bit numbers with `stride` elements between rows, in boxes of 64 columns and `box_rows` rows: one
// panel of a tile.
inline cudaError_t make_tensor_map(CUtensorMap& map, const void* matrix, int64_t rows, int64_t columns, int64_t stride, int box_rows) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(stride * 2)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kPanelColumns), static_cast<cuuint32_t>(box_rows)};
  return detail::encode_tensor_map(map, matrix, size, row_bytes, box);
}

// Arrives at the barrier once and adds `bytes` to the number of bytes that its phase waits for.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// L2 cache policies: evict_first for data that is not read again soon, evict_last for data that should outlive the rest.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies the box at (column, row) to shared memory address `to`; its bytes are counted at `barrier`. Boxes that cross the end are filled
// with zeros.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row, uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
               "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          to),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Copies `bytes` contiguous bytes to shared memory. The size and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}

// TMA stores from shared to global memory, of a box and of contiguous bytes. What threads wrote to shared memory must have passed
// fence_async_proxy and a barrier. commit_stores() closes a group; copies_read() must follow before the source is overwritten or the block
// ends.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column), "r"(row), "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_bulk(void* to, uint32_t from, int bytes, uint64_t policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to), "r"(from), "r"(bytes),
               "l"(policy)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Prefetches contiguous bytes into the L2 cache; size and address are multiples of 16.
__device__ __forceinline__ void prefetch_bulk(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

// Stores a warp's strip of 16 rows, rows 16 strip .. 16 strip + 15 of a tile of 128 rows and kPanels panels. `to` is the strip's first row
// in global memory and `rows` the number of rows to store. With at least 16, lane 0 issues TMA stores to (column, row) of `map`;
// copies_read() must follow. With fewer, the rows that follow in global memory belong to someone else and a box would overwrite them, so
// the lanes copy the valid rows themselves.
template <int kPanels = 1>
__device__ __forceinline__ void store_strip(uint32_t panel, int strip, const CUtensorMap* map, int column, int row, bf16* to,
                                            int64_t stride, int rows) {
  int lane;  // read again from its register: values derived from it are rarely needed, and the compiler would keep them live
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  const uint32_t from = panel + 16 * strip * kRowBytes;
  if (rows >= 16) {
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kPanels; ++i) store_box(map, column + i * kPanelColumns, row, from + i * 128 * kRowBytes);
      commit_stores();
    }
  } else {
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 8 * kPanels * rows; i += 32) {
      const int at_row = i / (8 * kPanels);
      const int piece = i % (8 * kPanels);
      uint4 x;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(from + piece_offset(128, at_row, piece))
                   : "memory");
      *reinterpret_cast<uint4*>(to + at_row * stride + 8 * piece) = x;
    }
    __syncwarp();
  }
}
// Waits until this thread's committed stores have read their source; copies_read() is for a warp whose lane 0 issued the stores.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void copies_read() {
  if (threadIdx.x % 32 == 0) wait_stores_read();
  __syncwarp();
}

// Stores four floats in the shared memory of thread block `block` of the cluster, at the location whose address in this block is `to`.
// Their bytes are counted at that block's copy of `barrier`.
__device__ __forceinline__ void store_remote(uint32_t to, const uint64_t* barrier, int block, float4 x) {
  asm volatile(
      "{\n.reg .b32 to, barrier;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 barrier, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [barrier];\n}" ::"r"(to),
      "r"(shared_address(barrier)), "r"(block), "r"(__float_as_uint(x.x)), "r"(__float_as_uint(x.y)), "r"(__float_as_uint(x.z)),
      "r"(__float_as_uint(x.w))
      : "memory");
}

// Makes barrier_init visible to TMA and the cluster. Called by the initialising thread before the barrier of the thread block.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

}  // namespace cyfa::sm90
