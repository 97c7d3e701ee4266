// Loads and stores of eight elements, fp32 or bf16 in memory and fp32 in registers, and small device functions. Used by the kernels of this
// folder, of dense/ and by the decode step of cyclic_flow.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cyfa/kernels/rowwise/rowwise_cuda.h"

namespace cyfa::rowwise {

constexpr int kVector = 8;  // elements per thread and load

struct Eight {
  float at[kVector];
};

// Eight elements in their memory format: bf16 takes half the registers until it is converted.
template <class T>
struct alignas(16) Packed {
  T at[kVector];
};

// Vector `index` of an array: elements 8 index .. 8 index + 7.
__device__ __forceinline__ Eight load(const float* from, int64_t index) {
  const float4 a = reinterpret_cast<const float4*>(from)[2 * index], b = reinterpret_cast<const float4*>(from)[2 * index + 1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ __forceinline__ Eight load(const __nv_bfloat16* from, int64_t index) {
  const uint4 packed = reinterpret_cast<const uint4*>(from)[index];
  const unsigned int words[4] = {packed.x, packed.y, packed.z, packed.w};
  Eight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.at[2 * i] = __uint_as_float(words[i] << 16);
    out.at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
  return out;
}

__device__ __forceinline__ Packed<float> load_packed(const float* from, int64_t index) {
  Packed<float> out;
  reinterpret_cast<float4*>(&out)[0] = reinterpret_cast<const float4*>(from)[2 * index];
  reinterpret_cast<float4*>(&out)[1] = reinterpret_cast<const float4*>(from)[2 * index + 1];
  return out;
}

__device__ __forceinline__ Packed<__nv_bfloat16> load_packed(const __nv_bfloat16* from, int64_t index) {
  Packed<__nv_bfloat16> out;
  *reinterpret_cast<uint4*>(&out) = reinterpret_cast<const uint4*>(from)[index];
  return out;
}

template <class T>
__device__ __forceinline__ Eight unpack(const Packed<T>& x) {
  return load(x.at, 0);
}

// x as it is after a store and a load: rounded to bf16 if T is bf16.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  return __bfloat162float(__float2bfloat16_rn(x));
}

__device__ __forceinline__ void store(float* to, int64_t index, const Eight& x) {
  reinterpret_cast<float4*>(to)[2 * index] = {x.at[0], x.at[1], x.at[2], x.at[3]};
  reinterpret_cast<float4*>(to)[2 * index + 1] = {x.at[4], x.at[5], x.at[6], x.at[7]};
}

__device__ __forceinline__ void store(__nv_bfloat16* to, int64_t index, const Eight& x) {
  unsigned int words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x.at[2 * i], x.at[2 * i + 1]);
    words[i] = *reinterpret_cast<const unsigned int*>(&pair);
  }
  reinterpret_cast<uint4*>(to)[index] = {words[0], words[1], words[2], words[3]};
}

// Accurate versions, for gates: log_alpha is summed and exponentiated later, which amplifies errors.
__device__ __forceinline__ float exact_sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))); }
// Fast version, for activations.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

// Calls f with a value of the element type.
template <class F>
cudaError_t with_type(RowType type, const F& f) {
  return type == RowType::kFloat32 ? f(float()) : f(__nv_bfloat16());
}

inline unsigned blocks_of(int64_t count, int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }

}  // namespace cyfa::rowwise
