// Building blocks for Hopper kernels: bf16 tiles in shared memory, wgmma descriptors for them, fences, mbarriers, cp.async, ldmatrix and
// stmatrix. Used by the kernels of cyclic_flow/sm90 and by dense/gemm64_sm90.
//
// A tile is stored in panels of 64 columns (rows of 128 bytes): panel p holds columns 64 p .. 64 p + 63 of all rows, row after row. Within
// a row the eight 16-byte pieces are permuted by the row index modulo 8 (the 128-byte swizzle), so that wgmma reads without bank conflicts.
// A panel starts at a multiple of 1024 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace cyfa::sm90 {

using bf16 = __nv_bfloat16;

constexpr int kPanelColumns = 64;
constexpr int kRowBytes = 128;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Byte offset of the 16-byte piece with columns 8 piece .. 8 piece + 7 of `row`, in a tile of `rows` rows.
__device__ __forceinline__ int piece_offset(int rows, int row, int piece) {
  const int panel = piece >> 3;
  return panel * rows * kRowBytes + row * kRowBytes + (((piece & 7) ^ (row & 7)) << 4);
}

// wgmma descriptor of an operand with the 128-byte swizzle. The leading and the stride offsets are in bytes.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

// Operand whose reduction (K) dimension is the columns of the tile: 16 columns from `column` on, rows from `row` (a multiple of 8) on.
__device__ __forceinline__ uint64_t along_columns(uint32_t tile, int tile_rows, int row, int column) {
  const uint32_t address = tile + (column >> 6) * tile_rows * kRowBytes + row * kRowBytes + (column & 63) * 2;
  return descriptor(address, 16, 1024);
}

// Operand whose reduction (K) dimension is the rows of the tile: 16 rows from `row` on, columns from `column` (a multiple of 64) on.
__device__ __forceinline__ uint64_t along_rows(uint32_t tile, int tile_rows, int row, int column) {
  const uint32_t address = tile + (column >> 6) * tile_rows * kRowBytes + row * kRowBytes;
  return descriptor(address, tile_rows * kRowBytes, 1024);
}

// The same for tiles of 128 rows that start `offset` bytes after a base address. `place` is the base address / 16 and `offset` a
// compile-time constant, so that a descriptor costs one addition.
__device__ __forceinline__ uint64_t along_columns_128(uint32_t place, int offset, int column) {
  const int at = offset + (column >> 6) * 128 * kRowBytes + (column & 63) * 2;
  return static_cast<uint64_t>(1U << 30 | 1024 >> 4) << 32 | (place + (at >> 4 | 16 >> 4 << 16));
}
__device__ __forceinline__ uint64_t along_rows_128(uint32_t place, int offset, int row) {
  const int at = offset + row * kRowBytes;
  return static_cast<uint64_t>(1U << 30 | 1024 >> 4) << 32 | (place + (at >> 4 | 128 * kRowBytes >> 4 << 16));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Makes this thread's ordinary writes to shared memory visible to wgmma and TMA (the async proxy). A barrier must follow before another
// thread issues the wgmma or the copy that reads them.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barrier `id` for `threads` threads of the block; others do not take part.
__device__ __forceinline__ void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Groups of cp.async.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// mbarriers in shared memory.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for the barrier's phase of the given parity to complete; the first phase has parity 0.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nCYFA_AGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra CYFA_DONE_%=;\nbra "
      "CYFA_AGAIN_%=;\nCYFA_DONE_%=:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Two floats rounded to bf16, `low` in the low half of the register.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(x);
}

// The same, not moved by the compiler: left to itself it converts where the result is used, and keeps twice as many registers live until
// then.
__device__ __forceinline__ uint32_t pack_here(float low, float high) {
  uint32_t x;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

// Two floats rounded to IEEE half precision; values out of range saturate to the largest finite number.
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  uint32_t x;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

// The two floats of a register of pack and of pack_half.
__device__ __forceinline__ float2 unpack(uint32_t x) { return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000U)); }

__device__ __forceinline__ float2 unpack_half(uint32_t x) { return __half22float2(reinterpret_cast<const __half2&>(x)); }

// ldmatrix: loads four 8 x 8 blocks of bf16 into the register layout of wgmma's operand a. Lanes 8 b .. 8 b + 7 give the addresses of the
// rows of block b.
__device__ __forceinline__ void load_blocks(uint32_t (&a)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

// The same, each block transposed.
__device__ __forceinline__ void load_blocks_transposed(uint32_t (&a)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

// stmatrix, the inverse of load_blocks: from the register layout of wgmma's operand a to rows in shared memory.
__device__ __forceinline__ void store_blocks(uint32_t address, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a0), "r"(a1), "r"(a2), "r"(a3)
               : "memory");
}

}  // namespace cyfa::sm90
