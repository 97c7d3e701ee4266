// Shared by the launches over two sections of slots (sm90_readout.cu, sm90_forward_sections.cu, sm90_backward_sections.cu): one head's
// readout table in shared memory, [256, 256] in half precision, products with it, and rows of 256 slots in registers. A warpgroup owns 64
// tokens; a thread owns rows `row` and `row + 8` of the tile (sm90/wgmma.cuh).
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_readout.cuh"

namespace cyfa::cyclic_flow::two_sections {

using namespace sm90;

constexpr int kP = 2 * kM;
constexpr int kTableBytes = kP * kP * 2;
constexpr int kRowsThreads = 256;  // two warpgroups

// Eight panels of [128 rows, 64 columns]: four of table rows 0 to 127, then four of rows 128 to 255.
inline cudaError_t make_table_map(CUtensorMap& map, const __half* table, int H) {
  return make_tensor_map(map, table, static_cast<int64_t>(H) * kP, kP, kP, kM);
}
__device__ __forceinline__ void copy_table(char* to, const CUtensorMap* map, int h, uint64_t* full) {
  barrier_expect(full, kTableBytes);
  for (int i = 0; i < kTableBytes / kPanelBytes; ++i) {
    copy_box(shared_address(to + i * kPanelBytes), map, i % 4 * kPanelColumns, h * kP + i / 4 * kM, full);
  }
}

// d = a A^T, and d = a A for the coordinates of one section. `table` is the table's shared memory address / 16.
__device__ __forceinline__ void times_transposed(float (&d)[2][64], const uint32_t (&a)[16][4], uint32_t table) {
  wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int kk = 0; kk < kP / 16; ++kk) wgmma_half<0>(d[half], a[kk], along_columns_128(table, half * 4 * kPanelBytes, 16 * kk), kk > 0);
  }
  wgmma_commit();
}
__device__ __forceinline__ void times(float (&d)[64], const uint32_t (&a)[16][4], uint32_t table, int section) {
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kP / 16; ++kk) {
    wgmma_half<1>(d, a[kk], along_rows_128(table, (kk / 8 * 4 + section * 2) * kPanelBytes, 16 * (kk % 8)), kk > 0);
  }
  wgmma_commit();
}

// Loads 16 N columns of both rows of an array of 16-bit numbers as an A operand, with zeros for invalid rows; and stores them.
template <int N>
__device__ __forceinline__ void load_rows(uint32_t (&a)[N][4], const void* row0, const void* row8, bool valid0, bool valid8) {
  const int q = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    uint4 x = make_uint4(0, 0, 0, 0);
    uint4 y = x;
    if (valid0) x = static_cast<const uint4*>(row0)[2 * i + q];
    if (valid8) y = static_cast<const uint4*>(row8)[2 * i + q];
    a[i][0] = x.x, a[i][2] = x.y, a[i + 1][0] = x.z, a[i + 1][2] = x.w;
    a[i][1] = y.x, a[i][3] = y.y, a[i + 1][1] = y.z, a[i + 1][3] = y.w;
  }
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const uint4 x = gather_quad(a[i][0], a[i][2], a[i + 1][0], a[i + 1][2]);
    const uint4 y = gather_quad(a[i][1], a[i][3], a[i + 1][1], a[i + 1][3]);
    a[i][0] = x.x, a[i][2] = x.y, a[i + 1][0] = x.z, a[i + 1][2] = x.w;
    a[i][1] = y.x, a[i][3] = y.y, a[i + 1][1] = y.z, a[i + 1][3] = y.w;
  }
}
template <int N>
__device__ __forceinline__ void store_rows(const uint32_t (&a)[N][4], void* row0, void* row8, bool valid0, bool valid8) {
  const int q = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const uint4 x = gather_quad(a[i][0], a[i][2], a[i + 1][0], a[i + 1][2]);
    const uint4 y = gather_quad(a[i][1], a[i][3], a[i + 1][1], a[i + 1][3]);
    if (valid0) static_cast<uint4*>(row0)[2 * i + q] = x;
    if (valid8) static_cast<uint4*>(row8)[2 * i + q] = y;
  }
}

// Prefetches a warp's next rows, of 512 bytes each, into the L2 cache.
__device__ __forceinline__ void ask_for_rows(const char* first, int64_t stride, int rows) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 8 * i + lane / 4;
    if (row < rows) asm volatile("prefetch.global.L2 [%0];" ::"l"(first + row * stride + 128 * (lane % 4)));
  }
}

}  // namespace cyfa::cyclic_flow::two_sections
