// What passes through whole tiles in the Hopper backward: <S, dS'> for the gates and X(S, dS') for the clocks, with S the state at a tile's
// start and dS' the gradient of the state at its end. Only tiles that retain part of S are processed. Models have heads that forget within
// a tile next to heads that do not, so this launch balances the work over all heads; a scan would wait for its slowest head. A block takes
// adjacent tiles and heads, a warp 16 slots of each. Called by sm90_backward.cu. Overwrites `whole` of the workspace.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

// Threshold on the tile's cumulative gate (log2), below which nothing of the state is retained: the tile's own pairs contribute about 2^16
// times as much, and the rounding of their bf16 operands 2^7 times. A tile of one token has no pairs; its threshold is a gate of -60.
constexpr float kNothing = -16.0F;
constexpr float kNothingOfOne = -86.56F;

constexpr int kBlocks = 2 * kReadoutBlocks;  // two per multiprocessor
static_assert(kWarps * 16 == kM && kWholeParts == 2 * kWarps);

// Nothing passes through a sequence's first tile without an initial state, nor through its last without a gradient of the final state.
__device__ __forceinline__ bool passes_through(const Sm90BackwardParams& p, const Workspace& w, int t, int h, int pass) {
  const Tile tile = p.in.tile[t];
  if (p.in.first_tile[tile.sequence] == t && starts_from_nothing(p.in)) return false;
  if (p.in.first_tile[tile.sequence + 1] == t + 1 && (pass == kKeys ? p.grad_final_k : p.grad_final_v) == nullptr) return false;
  return w.gate[h * p.in.T + tile.token + tile.tokens - 1].x >= (tile.tokens == 1 ? kNothingOfOne : kNothing);
}

// d += a b^T with b [8 slots, 16 columns]; both operands in memory order.
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// <S, dS'> and X(S, dS') / (2 pi / m) of 16 slots and 128 columns (or 64) by one warp: the diagonal of dS' S^T and its neighbours. A lane
// loads eight of every 32 columns of two rows, starting at `state` and `d_state`. Which columns it has does not matter, as both operands
// use the same order.
template <int kPieces>
__device__ __forceinline__ float2 sum_through(const bf16* state, int state_stride, const bf16* d_state, int stride, const float* weight,
                                              int first_pair) {
  uint4 x[kPieces][2], y[kPieces][2];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      y[i][r] = __ldcs(reinterpret_cast<const uint4*>(state + 8 * r * state_stride + 32 * i));
      x[i][r] = __ldcg(reinterpret_cast<const uint4*>(d_state + 8 * r * stride + 32 * i));  // the passes read it next
    }
  }
  float upper[4] = {}, lower[4] = {};  // slots of S: first eight, other eight
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    uint32_t a[2][4] = {{x[i][0].x, x[i][1].x, x[i][0].y, x[i][1].y}, {x[i][0].z, x[i][1].z, x[i][0].w, x[i][1].w}};
    if (weight != nullptr) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 f = unpack(a[c / 4][c % 4]);
        const float2 g = *reinterpret_cast<const float2*>(weight + 32 * i + c / 4 * 4 + c % 4 / 2 * 2);
        a[c / 4][c % 4] = pack(f.x * g.x, f.y * g.y);
      }
    }
    multiply_add(upper, a[0], y[i][0].x, y[i][0].y);
    multiply_add(lower, a[0], y[i][1].x, y[i][1].y);
    multiply_add(upper, a[1], y[i][0].z, y[i][0].w);
    multiply_add(lower, a[1], y[i][1].z, y[i][1].w);
  }
  // A lane holds row lane / 4 of `upper` and row lane / 4 + 8 of `lower`, columns 2 (lane % 4) and the next.
  const int lane = threadIdx.x % 32;
  const bool odd = lane / 4 % 2 == 1;
  float2 sum = make_float2(0.0F, 0.0F);
  if (lane % 4 == lane / 8) {
    const float j = static_cast<float>(first_pair + lane / 8);
    sum.x = odd ? upper[1] + lower[3] : upper[0] + lower[2];
    sum.y = odd ? fmaf(j, upper[0], (j + 4.0F) * lower[2]) : -fmaf(j, upper[1], (j + 4.0F) * lower[3]);
  }
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFF, sum.x, bit);
    sum.y += __shfl_xor_sync(0xFFFFFFFF, sum.y, bit);
  }
  return sum;
}

// kWide: K = V = 256.
template <bool kWide>
__global__ void __launch_bounds__(kThreads, 2)
    cyclic_flow_backward_through_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w) {
  __shared__ float weight[kD];
  static_assert(kThreads == kD);
  if (kWide || threadIdx.x < p.in.K) weight[threadIdx.x] = w.weight[threadIdx.x];
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t items = static_cast<int64_t>(p.in.tiles) * p.in.H * 2;
  const int64_t end = items * (blockIdx.x + 1) / gridDim.x;
#pragma unroll 1
  for (int64_t begin = items * blockIdx.x / gridDim.x; begin < end; begin += 32) {
    // Each lane checks one of the next 32 states.
    const int64_t mine = begin + lane;
    bool any = false;
    if (mine < end) {
      any = passes_through(p, w, static_cast<int>(mine / 2 / p.in.H), static_cast<int>(mine / 2 % p.in.H), static_cast<int>(mine % 2));
      if (!any) *reinterpret_cast<float4*>(w.whole + mine * kWholeParts + 2 * warp) = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
#pragma unroll 1
    for (uint32_t left = __ballot_sync(0xFFFFFFFF, any); left != 0; left &= left - 1) {
      const int64_t item = begin + __ffs(static_cast<int>(left)) - 1;
      const int h = static_cast<int>(item / 2 % p.in.H);
      const int pass = static_cast<int>(item % 2);
      const StatePlace place = d_state_at(p, w, p.in.tile[item / 2 / p.in.H], h, pass);
      const int row = 16 * warp + lane / 4;
      const int width = kWide ? kD : pass == kKeys ? p.in.K : p.in.V;
      const int state_stride = kWide ? kD : state_width(p.in);
#pragma unroll(kWide ? 2 : 1)
      for (int span = 0; span < 2; ++span) {
        const int column = 128 * span + 8 * (lane % 4);
        const auto sum_of = [&](auto panels) {
          return sum_through<2 * decltype(panels)::value>(w.states + (item * kM + row) * state_stride + column, state_stride,
                                                          place.at + row * place.stride + column, static_cast<int>(place.stride),
                                                          pass == kKeys ? weight + column : nullptr, w.slots.first_pair + 8 * warp);
        };
        float2 sum = make_float2(0.0F, 0.0F);
        if (kWide || width >= 128 * (span + 1)) {
          sum = sum_of(Panels<2>());
        } else if (width > 128 * span) {
          sum = sum_of(Panels<1>());
        }
        if (lane == 0) w.whole[item * kWholeParts + 2 * warp + span] = sum;
      }
    }
  }
}

}  // namespace

cudaError_t backward_through(const Sm90BackwardParams& p, cudaStream_t stream) {
  const int64_t items = static_cast<int64_t>(p.in.tiles) * p.in.H * 2;
  const auto kernel = p.in.K == kD && p.in.V == kD ? &cyclic_flow_backward_through_sm90<true> : &cyclic_flow_backward_through_sm90<false>;
  kernel<<<static_cast<int>(items < kBlocks ? items : kBlocks), kThreads, 0, stream>>>(p, workspace_of(p));
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
