// RMSNorm of q and k as separate launches. Usually the Hopper kernels apply the norms themselves; with an initial state, or a gradient of
// the final state, rows are normalised before all other launches and the norm's adjoint is taken last. One warp per row; narrow heads leave
// lanes idle. Called by sm90_forward.cu and sm90_backward.cu. Overwrites the rows passed in; in backward d_k and d_q (in place) and
// d_weights.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace sm90;

constexpr int kWarps = 8;
constexpr int kColumns = kD / 32;  // columns per lane

__device__ __forceinline__ bool has_columns(int width) { return kColumns * static_cast<int>(threadIdx.x % 32) < width; }

__device__ __forceinline__ void load_row(const bf16* row, int width, float (&x)[kColumns]) {
  const uint4 packed = has_columns(width) ? reinterpret_cast<const uint4*>(row)[threadIdx.x % 32] : make_uint4(0, 0, 0, 0);
  const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = unpack(pairs[i]);
    x[2 * i] = f.x;
    x[2 * i + 1] = f.y;
  }
}

__device__ __forceinline__ void store_row(bf16* row, int width, const float (&x)[kColumns]) {
  if (!has_columns(width)) return;
  reinterpret_cast<uint4*>(row)[threadIdx.x % 32] = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

__device__ __forceinline__ float warp_dot(const float (&x)[kColumns], const float (&y)[kColumns]) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sum = fmaf(x[i], y[i], sum);
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, bit);
  return sum;
}

__device__ __forceinline__ void load_weight(const float* weight, int width, float (&x)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) x[i] = has_columns(width) ? weight[kColumns * (threadIdx.x % 32) + i] : 0.0F;
}

__global__ void __launch_bounds__(32 * kWarps) cyclic_flow_normalise_sm90(const __grid_constant__ Sm90ForwardParams p, bf16* k, bf16* q) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;  // token * H + h
  if (unit >= p.T * p.H) return;
  const bool keys = blockIdx.y == 0;
  const float* weight = keys ? p.k_norm_weight : p.q_norm_weight;
  float x[kColumns];
  load_row(static_cast<const bf16*>(keys ? p.k : p.q) + unit / p.H * (keys ? p.k_stride : p.q_stride) + unit % p.H * p.K, p.K, x);
  if (weight != nullptr) {
    float w[kColumns];
    load_weight(weight, p.K, w);
    const float rate = rsqrtf(warp_dot(x, x) / static_cast<float>(p.K) + p.norm_eps);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] *= rate * w[i];
  }
  store_row((keys ? k : q) + unit * p.K, p.K, x);
}

}  // namespace

cudaError_t sm90_normalise_rows(const Sm90ForwardParams& p, bf16* k, bf16* q, cudaStream_t stream) {
  cyclic_flow_normalise_sm90<<<dim3(static_cast<unsigned>((p.T * p.H + kWarps - 1) / kWarps), 2), 32 * kWarps, 0, stream>>>(p, k, q);
  return cudaGetLastError();
}

Sm90ForwardParams with_normalised_rows(const Sm90ForwardParams& p, bf16* k, bf16* q) {
  Sm90ForwardParams r = p;
  r.k = k;
  r.q = q;
  r.k_stride = r.q_stride = static_cast<int64_t>(p.H) * p.K;
  r.k_norm_weight = r.q_norm_weight = nullptr;
  return r;
}

namespace sm90_backward_stages {
namespace {

// Turns the gradients of the normalised rows in d_k and d_q into those of k and q, in place. Each warp sums its rows' contributions to the
// weight gradient.
__global__ void __launch_bounds__(kThreads)
    cyclic_flow_backward_norms_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w, int64_t parts) {
  const int which = blockIdx.y;  // 0: keys, 1: queries
  const float* weight = which == 0 ? p.in.k_norm_weight : p.in.q_norm_weight;
  if (weight == nullptr) return;
  const bf16* from = static_cast<const bf16*>(which == 0 ? p.in.k : p.in.q);
  const int64_t stride = which == 0 ? p.in.k_stride : p.in.q_stride;
  bf16* gradient = static_cast<bf16*>(which == 0 ? p.d_k : p.d_q);
  const int64_t part = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  float g[kColumns];
  const int K = p.in.K;
  load_weight(weight, K, g);
  float sum[kColumns] = {};
  for (int64_t unit = part; unit < p.in.T * p.in.H; unit += parts) {
    float x[kColumns];
    float d[kColumns];
    load_row(from + unit / p.in.H * stride + unit % p.in.H * K, K, x);
    load_row(gradient + unit * K, K, d);
    const float rate = rsqrtf(warp_dot(x, x) / static_cast<float>(K) + p.in.norm_eps);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sum[i] = fmaf(d[i] * rate, x[i], sum[i]);
      d[i] *= g[i];
    }
    const float along = warp_dot(x, d) * rate * rate / static_cast<float>(K);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) d[i] = rate * (d[i] - x[i] * along);
    store_row(gradient + unit * K, K, d);
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (has_columns(K)) w.d_weights[(which * parts + part) * K + kColumns * (threadIdx.x % 32) + i] = sum[i];
  }
}

}  // namespace

cudaError_t backward_norms(const Sm90BackwardParams& p, cudaStream_t stream) {
  const int64_t parts = weight_rows(p);
  cyclic_flow_backward_norms_sm90<<<dim3(static_cast<unsigned>(parts / kWarps), 2), kThreads, 0, stream>>>(p, workspace_of(p), parts);
  return cudaGetLastError();
}

}  // namespace sm90_backward_stages
}  // namespace cyfa::cyclic_flow
