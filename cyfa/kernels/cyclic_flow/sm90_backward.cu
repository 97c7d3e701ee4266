// Backward of cyclic_flow on Hopper (docs/operator.md, "Chunks" and "The gate's gradient"): its small stages and the order of all.
//   prepare      clocks and gate sums of every token
//   rows         normalised q and k into d_q and d_k, the write vectors W into d_v
//   states       S at tile starts                              sm90_backward_states.cu
//   readout      U, dY, the table's gradient                   sm90_backward_readout.cu
//   d_states     dS' at tile ends                              sm90_backward_states.cu
//   keys, values dK, dQ, dV, scalars of the tokens             sm90_backward_passes.cu
//   sums         dlog_alpha and dbeta from these, tile by tile; the table's gradient, and parts of the norm weights', over blocks
//   clocks       ddelta, a reverse sum over each sequence; the norm weights' gradients
// No stage adds with atomics: equal runs give equal bits.
#include "cyfa/kernels/cyclic_flow/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow {
namespace sm90_backward_stages {
namespace {

// Inclusive sum over the block's threads; `total` is the sum of all.
template <int kBlock>
__device__ double block_scan(double x, double* shared, double& total) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double y = __shfl_up_sync(0xFFFFFFFF, x, d);
    if (lane >= d) x += y;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = x;
  __syncthreads();
  double before = 0;
  total = 0;
  for (int i = 0; i < kBlock / 32; ++i) {
    if (i < warp) before += shared[i];
    total += shared[i];
  }
  return x + before;
}

__global__ void __launch_bounds__(kThreads)
    cyclic_flow_backward_prepare_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  __shared__ double sums[kThreads / 32];
  const int h = blockIdx.x % p.in.H;
  const int n = blockIdx.x / p.in.H;
  const int first = p.in.first_tile[n];
  const int last = p.in.first_tile[n + 1];
  double clock = p.in.initial_clock != nullptr ? p.in.initial_clock[n * p.in.H + h] : 0.0;
  constexpr double m = kM - 1;
  // Two tiles at a time: half a block each for the gates, whole blocks for the clock.
  for (int t = first; t < last; t += kThreads / kC) {
    const int mine = t + static_cast<int>(threadIdx.x) / kC;
    const int i = static_cast<int>(threadIdx.x) % kC;
    const bool real = mine < last && i < p.in.tile[min(mine, last - 1)].tokens;
    const int64_t token = real ? p.in.tile[mine].token + i : 0;
    const double delta = real ? static_cast<double>(p.in.delta[token * p.in.H + h]) : 0.0;
    const float given = real ? p.in.log_alpha[token * p.in.H + h] : 0.0F;
    const double gate = given < -1000.0F ? -1000.0 : static_cast<double>(given);  // exp is 0 there; a NaN stays one
    double total;
    const double now = clock + block_scan<kThreads>(delta, sums, total);
    clock += total;
    double unused;
    double sum = block_scan<kThreads>(gate, sums, unused);
    // The second tile's sums start anew.
    __syncthreads();
    if (threadIdx.x == kC - 1) sums[0] = sum;
    __syncthreads();
    if (threadIdx.x >= kC) sum -= sums[0];
    if (real) {
      const double turns = now / m;
      w.turn[h * p.in.T + token] = static_cast<uint32_t>(static_cast<uint64_t>((turns - floor(turns)) * 4294967296.0));
      sum *= 1.4426950408889634;
      const float high = static_cast<float>(sum);
      w.gate[h * p.in.T + token] = make_float2(high, static_cast<float>(sum - static_cast<double>(high)));
    }
  }
}

// One row of q or k by a warp: 1 / rms where there is a weight, and the row times factor, that and the weight.
__device__ __forceinline__ void normalise_row(uint4 x, bf16* to, const float* weight, float eps, float factor, float* rate) {
  const int lane = threadIdx.x % 32;
  uint32_t* pairs = reinterpret_cast<uint32_t*>(&x);
  if (weight != nullptr) {
    float sum = 0.0F;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 f = unpack(pairs[c]);
      sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
    }
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, bit);
    const float inverse = rsqrtf(sum / kD + eps);
    if (lane == 0) *rate = inverse;
    factor *= inverse;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float2 f = unpack(pairs[c]);
    const float2 g = weight != nullptr ? __ldg(reinterpret_cast<const float2*>(weight) + 4 * lane + c) : make_float2(1.0F, 1.0F);
    pairs[c] = pack(f.x * factor * g.x, f.y * factor * g.y);
  }
  reinterpret_cast<uint4*>(to)[lane] = x;
}

__global__ void __launch_bounds__(kThreads)
    cyclic_flow_backward_rows_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;  // token * H + h
  if (unit >= p.in.T * p.in.H) return;
  const int64_t token = unit / p.in.H;
  const int h = static_cast<int>(unit % p.in.H);
  const int lane = threadIdx.x % 32;
  const int64_t scalar = h * p.in.T + token;
  const uint32_t turn = w.turn[scalar];
  const float beta = p.in.beta[unit];
  const uint4 k = reinterpret_cast<const uint4*>(static_cast<const bf16*>(p.in.k) + token * p.in.k_stride + h * kD)[lane];
  const uint4 q = reinterpret_cast<const uint4*>(static_cast<const bf16*>(p.in.q) + token * p.in.q_stride + h * kD)[lane];
  normalise_row(k, static_cast<bf16*>(p.d_k) + unit * kD, p.in.k_norm_weight, p.in.norm_eps, 1.0F, w.rate[0] + scalar);
  normalise_row(q, static_cast<bf16*>(p.d_q) + unit * kD, p.in.q_norm_weight, p.in.norm_eps, p.in.scale, w.rate[1] + scalar);
  const float norm = beta * rsqrtf(0.5F * (kM - 1));
  uint2 packed;
  float sine, cosine;
  phase(turn, 2 * lane, sine, cosine);
  packed.x = lane == 0 ? pack(beta * rsqrtf(static_cast<float>(kM - 1)), 0.0F) : pack(norm * cosine, -norm * sine);
  phase(turn, 2 * lane + 1, sine, cosine);
  packed.y = pack(norm * cosine, -norm * sine);
  reinterpret_cast<uint2*>(w.writes + unit * kD)[lane] = packed;
}

// Inclusive sum over each half of the block; `total` is the sum of the half.
__device__ double half_scan(double x, double* shared, double& total) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double y = __shfl_up_sync(0xFFFFFFFF, x, d);
    if (lane >= d) x += y;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = x;
  __syncthreads();
  double before = 0;
  total = 0;
  for (int i = warp / 4 * 4; i < warp / 4 * 4 + 4; ++i) {
    if (i < warp) before += shared[i];
    total += shared[i];
  }
  return x + before;
}

// Inside a tile, gate s has its share of: pairs and reads of the state that end at s or later and begin before it, writes that come before
// it and reach the tile's end, and what passes through the whole tile. Half a block a tile of one head.
__device__ __forceinline__ void gate_gradients(const Sm90BackwardParams& p, const Workspace& w, int block) {
  __shared__ double sums[kWarps];
  const int unit = 2 * block + static_cast<int>(threadIdx.x) / kC;
  const bool some = unit < p.in.tiles * p.in.H;
  const int h = unit % p.in.H;
  const int tile_index = some ? unit / p.in.H : 0;
  const Tile tile = p.in.tile[tile_index];
  const int i = static_cast<int>(threadIdx.x) % kC;
  const bool real = some && i < tile.tokens;
  const int64_t at = h * p.in.T + tile.token + i;
  double later = 0.0;
  double written = 0.0;
  if (real) {
    later = (static_cast<double>(w.later[0][at]) - w.earlier[0][at]) + (static_cast<double>(w.later[1][at]) - w.earlier[1][at]) +
            w.read[0][at] + w.read[1][at];
    written = static_cast<double>(w.written[0][at]) + w.written[1][at];
    w.clock[at] = w.turned[2][at] - w.turned[0][at] - w.turned[1][at];
  }
  double total;
  const double before = half_scan(written, sums, total) - written;
  __syncthreads();
  const double up_to = half_scan(later, sums, total);
  if (!real) return;
  const int64_t state = static_cast<int64_t>(tile_index) * p.in.H + h;
  double whole = w.whole[kKeys][state];
  for (int part = 0; part < kWholeParts; ++part) whole += w.whole[kValues][state * kWholeParts + part];
  const double through = static_cast<double>(power_of_2(w.gate[h * p.in.T + tile.token + tile.tokens - 1].x)) * whole;
  const int64_t to = (tile.token + i) * p.in.H + h;
  // The gradient has a factor alpha, which the sums above show only up to their rounding.
  const bool shut = p.in.log_alpha[to] < -60.0F;
  p.d_log_alpha[to] = shut ? 0.0F : static_cast<float>((total - up_to + later) + before + through);
  p.d_beta[to] = w.beta[0][at] + w.beta[1][at];
}

constexpr int kClockThreads = 1024;

// Each quarter of the block sums a quarter of the parts, then these are added up.
__device__ __forceinline__ void sum_weight_parts(const Sm90BackwardParams& p, const Workspace& w, int which) {
  __shared__ float sums[kClockThreads];
  float* to = which == 0 ? p.d_k_norm_weight : p.d_q_norm_weight;
  if (to == nullptr) return;
  constexpr int kQuarter = kWeightParts / (kClockThreads / kD);
  const int column = static_cast<int>(threadIdx.x) % kD;
  const int first = static_cast<int>(threadIdx.x) / kD * kQuarter;
  float sum = 0.0F;
#pragma unroll 16
  for (int i = first; i < first + kQuarter; ++i) sum += w.d_weight_parts[(which * kWeightParts + i) * kD + column];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kD) to[column] = (sums[column] + sums[column + kD]) + (sums[column + 2 * kD] + sums[column + 3 * kD]);
}

// ddelta of a token is the sum of dclock from it on. From an empty memory the clock's origin changes nothing (Proposition 6), so the sum
// over a sequence is zero but for rounding; that error is taken back evenly. Two more blocks finish the norm weights.
__global__ void __launch_bounds__(kClockThreads)
    cyclic_flow_backward_clocks_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  __shared__ double sums[kClockThreads / 32];
  if (static_cast<int>(blockIdx.x) >= p.in.N * p.in.H) {
    sum_weight_parts(p, w, static_cast<int>(blockIdx.x) - p.in.N * p.in.H);
    return;
  }
  const int h = blockIdx.x % p.in.H;
  const int n = blockIdx.x / p.in.H;
  const int first = p.in.first_tile[n];
  const int last = p.in.first_tile[n + 1];
  const int64_t begin = first < last ? p.in.tile[first].token : 0;
  const int64_t tokens = first < last ? p.in.tile[last - 1].token + p.in.tile[last - 1].tokens - begin : 0;
  double sum = p.grad_final_clock != nullptr ? p.grad_final_clock[n * p.in.H + h] : 0.0;
  for (int64_t start = 0; start < tokens; start += kClockThreads) {
    const int64_t i = tokens - 1 - start - threadIdx.x;
    const double x = i >= 0 ? static_cast<double>(w.clock[h * p.in.T + begin + i]) : 0.0;
    double total;
    const double mine = sum + block_scan<kClockThreads>(x, sums, total);
    if (i >= 0) p.d_delta[(begin + i) * p.in.H + h] = static_cast<float>(mine);
    sum += total;
  }
  if (p.d_initial_clock != nullptr && threadIdx.x == 0) p.d_initial_clock[n * p.in.H + h] = sum;
  const bool no_origin =
      p.in.initial_k == nullptr && p.grad_final_k == nullptr && p.grad_final_v == nullptr && p.grad_final_clock == nullptr;
  if (no_origin) {
    for (int64_t i = tokens - 1 - threadIdx.x; i >= 0; i -= kClockThreads) {
      p.d_delta[(begin + i) * p.in.H + h] -= static_cast<float>(sum * static_cast<double>(tokens - i) / static_cast<double>(tokens));
    }
  }
}

// The readout blocks' sums, each in the order of its threads and their registers (hopper/wgmma.cuh): four registers of all threads a block
// here.
__device__ __forceinline__ void sum_tables(const Sm90BackwardParams& p, const Workspace& w, int h, int i4, int blocks) {
  const int thread = static_cast<int>(threadIdx.x);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 8
  for (int b = 0; b < blocks; ++b) {
    const float4 x = w.d_tables[(static_cast<int64_t>(b) * p.in.H + h) * (kM * kM / 4) + i4 * kThreads + thread];
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  }
  const int row = 16 * (thread / 32) + thread % 32 / 4;
  const int column = 8 * i4 + 2 * (thread % 4);
  float* to = p.d_table + (static_cast<int64_t>(h) * kM + row) * kM + column;
  *reinterpret_cast<float2*>(to) = make_float2(sum.x, sum.y);
  *reinterpret_cast<float2*>(to + 8 * kM) = make_float2(sum.z, sum.w);
}

// Gradients of the norm weights, a column a thread: kWeightParts sums of every so many rows, then (below) their sum.
__device__ __forceinline__ void sum_weight_rows(const Workspace& w, int which, int part, int64_t rows) {
  const float* from = w.d_weights + which * rows * kD + threadIdx.x;
  float sum = 0.0F;
#pragma unroll 8
  for (int64_t i = part; i < rows; i += kWeightParts) sum += from[i * kD];
  w.d_weight_parts[(which * kWeightParts + part) * kD + threadIdx.x] = sum;
}

// What follows the passes and does not depend on one another, by ranges of blocks: two tiles of a head each; the table; the weights' parts.
__global__ void __launch_bounds__(kThreads)
    cyclic_flow_backward_sums_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w, int blocks) {
  static_assert(kThreads == kD);
  constexpr int kTableParts = kM * kM / 4 / kThreads;
  const int tiles = p.in.tiles * p.in.H;
  int block = static_cast<int>(blockIdx.x);
  if (block < p.in.H * kTableParts) {
    sum_tables(p, w, block / kTableParts, block % kTableParts, blocks);
    return;
  }
  block -= p.in.H * kTableParts;
  if (block < 2 * kWeightParts) {
    if ((block < kWeightParts ? p.d_k_norm_weight : p.d_q_norm_weight) != nullptr) {
      sum_weight_rows(w, block / kWeightParts, block % kWeightParts, static_cast<int64_t>(tiles) * kWarps);
    }
    return;
  }
  gate_gradients(p, w, block - 2 * kWeightParts);
}

}  // namespace
}  // namespace sm90_backward_stages

using namespace sm90_backward_stages;

int64_t sm90_backward_workspace(const Sm90BackwardParams& p) { return workspace_of(p).bytes; }

const char* sm90_backward_refusal(const Sm90BackwardParams& p) {
  if (p.in.K != kD || p.in.V != kD) return "head sizes other than 256 have no sm90 kernel yet";
  if (p.in.M != kM) return "slot counts other than 128 have no sm90 kernel yet";
  return nullptr;
}

cudaError_t sm90_backward(const Sm90BackwardParams& p, cudaStream_t stream) {
  if (sm90_backward_refusal(p) != nullptr || p.in.tiles == 0) return cudaErrorInvalidValue;
  const Workspace w = workspace_of(p);
  const int walks = p.in.N * p.in.H;
  const int tiles = p.in.tiles * p.in.H;
  cyclic_flow_backward_prepare_sm90<<<walks, kThreads, 0, stream>>>(p, w);
  cyclic_flow_backward_rows_sm90<<<static_cast<unsigned>((p.in.T * p.in.H + kWarps - 1) / kWarps), kThreads, 0, stream>>>(p, w);
  cudaError_t status = backward_states(p, false, stream);
  if (status == cudaSuccess) status = backward_readout(p, stream);
  if (status == cudaSuccess) status = backward_states(p, true, stream);
  if (status == cudaSuccess) status = backward_passes(p, stream);
  if (status != cudaSuccess) return status;
  const int sums = p.in.H * (kM * kM / 4 / kThreads) + 2 * kWeightParts + (tiles + 1) / 2;
  cyclic_flow_backward_sums_sm90<<<sums, kThreads, 0, stream>>>(p, w, readout_blocks_of_head(p));
  cyclic_flow_backward_clocks_sm90<<<walks + 2, kClockThreads, 0, stream>>>(p, w);
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow
