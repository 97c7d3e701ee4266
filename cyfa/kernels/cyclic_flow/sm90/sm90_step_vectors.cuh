// Shared by both step kernels, sm90_step.cu and sm90_step_held.cu: how a head is divided into slices, and q and k with their norms. Writes
// shared memory only.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_states.cuh"
#include "cyfa/kernels/dense/gemv_sm90_tile.cuh"
#include "cyfa/kernels/rowwise/vector.cuh"

namespace cyfa::cyclic_flow::step {

using rowwise::warp_sum;

// Slices of a state's rows. Each is summed separately, then slices are added in order. In the largest cluster each block has one slice of
// state_k.
constexpr int kSlices = 8;
constexpr int kGateRows = kWarps * dense::kTileRows;  // rows of the output gate per block

// First of `count` items of part `index` of `parts`, a power of two.
__host__ __device__ constexpr int part_begin(int count, int index, int parts) { return count * index / parts; }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Blocks that write the output gate, rounded up to whole clusters.
inline int gate_blocks(const StepCudaParams& p, int blocks) {
  if (p.mixer == nullptr || p.mixer->gate_second == nullptr) return 0;
  return ceil_div(ceil_div(static_cast<int>(p.H * p.V), kGateRows), blocks) * blocks;
}

template <class T>
__device__ float load_float(const void* base, int64_t index) {
  return static_cast<float>(static_cast<const T*>(base)[index]);
}

// A thread's first elements of q, k and their norm weights, loaded before the states so that they need not wait behind them.
template <class T>
struct Vectors {
  float q = 0.0F, k = 0.0F, q_weight = 1.0F, k_weight = 1.0F;

  __device__ void load(const StepCudaParams& p, int K, int64_t row, int i) {
    if (i >= K) return;
    q = load_float<T>(p.q, row * K + i);
    k = load_float<T>(p.k, row * K + i);
    load_weights(p, K, i);
  }

  __device__ void load_weights(const StepCudaParams& p, int K, int i) {
    if (i >= K) return;
    if (p.q_norm_weight != nullptr) q_weight = p.q_norm_weight[i];
    if (p.k_norm_weight != nullptr) k_weight = p.k_norm_weight[i];
  }

  // Step 1: writes q and k, normalised if they have a weight, to shared memory.
  __device__ void normalise(const StepCudaParams& p, int K, int64_t row, float* to_q, float* to_k) {
    __shared__ float2 squares[kWarps];
    const int tid = static_cast<int>(threadIdx.x);
    float2 own = make_float2(q * q, k * k);
    for (int i = tid + kThreads; K > kThreads && i < K; i += kThreads) {
      const float2 more = make_float2(load_float<T>(p.q, row * K + i), load_float<T>(p.k, row * K + i));
      own = make_float2(fmaf(more.x, more.x, own.x), fmaf(more.y, more.y, own.y));
    }
    own = make_float2(warp_sum(own.x), warp_sum(own.y));
    if (tid % 32 == 0) squares[tid / 32] = own;
    __syncthreads();
    float2 sum = make_float2(0.0F, 0.0F);
    for (int i = 0; i < kWarps; ++i) sum = add2(sum, squares[i]);
    const float width = static_cast<float>(K);
    const float q_factor = p.scale * (p.q_norm_weight != nullptr ? rsqrtf(sum.x / width + p.norm_eps) : 1.0F);
    const float k_factor = p.k_norm_weight != nullptr ? rsqrtf(sum.y / width + p.norm_eps) : 1.0F;
    const auto put = [&](int i) {
      to_q[i] = q * (q_factor * q_weight);
      to_k[i] = k * (k_factor * k_weight);
    };
    if (tid < K) put(tid);
    for (int i = tid + kThreads; K > kThreads && i < K; i += kThreads) {
      load(p, K, row, i);
      put(i);
    }
  }
};

}  // namespace cyfa::cyclic_flow::step
