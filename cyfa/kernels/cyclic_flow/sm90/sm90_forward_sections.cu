// Stages 4 and 5 of docs/operator.md on Hopper for two sections of slots: the outputs, from U (written by sm90_readout.cu) and the value
// states of both sections, one tile at a time. Roles are those of sm90_forward_outputs.cu: a persistent block stays with one head, thread 0
// issues TMA copies, three token warps compute write vectors, two warpgroups own 64 tokens each. Called by sm90_forward.cu. Overwrites o.
//
// Shared memory, 163 KB:
//   ring    6 buffers of one panel, [128 rows, 64 columns]. A tile has 12 panels, two per buffer: for each half of the columns the value
//           states of both sections (4), then v (2)
//   writes  the tile's write vectors of both sections
//   tokens  gates and decay factors of the tile's tokens
#include <cuda_runtime.h>

#include <cstddef>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_sections.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace sm90;

constexpr int kThreads = 384;
constexpr int kConsumerWarps = 8;
constexpr int kPlaces = 6;  // panels for each half of the columns

struct ValuesParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap v, states;
};

struct Shared {
  char ring[kPlaces * kPanelBytes];
  char writes[2 * kC * kM * 2];
  Tokens tokens;
  uint64_t full[kPlaces];
  uint64_t empty[kPlaces];
  uint64_t tokens_full, tokens_empty;
};
static_assert(sizeof(Shared) <= 227 * 1024);
constexpr int kWrites = offsetof(Shared, writes);

__device__ __forceinline__ void feed_copies(const ValuesParams& params, Shared& s, const Share& share) {
  const Sm90ForwardParams& p = params.p;
  for (int t = share.last; t >= 0; t -= share.step) {
    const int token = static_cast<int>(p.tile[t].token);
    const int state = state_row(p, t, share.h, 1);
    const int section_rows = (p.tiles * p.H * 2 + 1) * kM;
    for (int item = 0; item < 2 * kPlaces; ++item) {
      const int place = item % kPlaces;
      const int half = item / kPlaces;
      const int column = (2 * half + place % 2) * kPanelColumns;
      barrier_wait(&s.empty[place], 1 - half);
      barrier_expect(&s.full[place], kPanelBytes);
      if (place < 4) {
        copy_box(shared_address(s.ring + place * kPanelBytes), &params.states, column, state + place / 2 * section_rows, &s.full[place]);
      } else {
        copy_box(shared_address(s.ring + place * kPanelBytes), &params.v, share.h * kD + column, token, &s.full[place]);
      }
    }
  }
}

// One half tile: the warpgroup's 64 tokens, of which this warp owns strip .. strip + 15.
__device__ __forceinline__ void values_of_half(const Sm90ForwardParams& p, const Workspace& w, Shared& s, int strip, int h, int parity,
                                               int token, int tokens) {
  const int lane = threadIdx.x % 32;
  const int row = strip + lane / 4;  // and row + 8
  uint32_t base = shared_address(&s) >> 4;
  asm volatile("" : "+r"(base));  // otherwise operand descriptors are kept across tiles and registers spill
  uint32_t u[16][4];
  {
    const int64_t pitch = static_cast<int64_t>(p.H) * two_sections::kP;
    const __half* from = w.weights + (token + row) * pitch + h * two_sections::kP;
    two_sections::load_rows(u, from, from + 8 * pitch, row < tokens, row + 8 < tokens);
  }
  barrier_wait(&s.tokens_full, parity);
  float between[64];
  settle(u);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < 16; ++kk) {
    wgmma_half<0>(between, u[kk], along_columns_128(base, kWrites + kk / 8 * kC * kM * 2, 16 * (kk % 8)), kk > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  uint32_t a[8][4];
  decay_and_pack<false>(between, strip, 1.0F, 1.0F, s.tokens, a);
  // U times the decay from the tile's start, in bf16, for the product with the states.
  const float start0 = exp2_fast(s.tokens.gate(row).x);
  const float start8 = exp2_fast(s.tokens.gate(row + 8).x);
#pragma unroll
  for (int kk = 0; kk < 16; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack_half(u[kk][i]);
      const float start = i % 2 == 0 ? start0 : start8;
      u[kk][i] = pack(x.x * start, x.y * start);
    }
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(&s.tokens_empty);
  settle(a);
  settle(u);
  bf16* to = static_cast<bf16*>(p.o) + (static_cast<int64_t>(token + strip) * p.H + h) * kD;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    float o[64];
#pragma unroll
    for (int i = 0; i < 4; ++i) barrier_wait(&s.full[i], half);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 16; ++kk) wgmma<1>(o, u[kk], along_rows_128(base, kk / 8 * 2 * kPanelBytes, 16 * (kk % 8)), kk > 0);
    wgmma_commit();
#pragma unroll
    for (int i = 4; i < kPlaces; ++i) barrier_wait(&s.full[i], half);
    if (tokens < kC) {
      // Rows past the tile's end hold another sequence's values. Their weights are zero, but 0 * inf is NaN, so they are cleared.
      for (int i = tokens * 16 + threadIdx.x % 128; i < kC * 16; i += 128) {
        *reinterpret_cast<uint4*>(s.ring + 4 * kPanelBytes + piece_offset(kC, i / 16, i % 16)) = make_uint4(0, 0, 0, 0);
      }
      fence_async_proxy();
      named_barrier(threadIdx.x / 128, 128);
    }
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(o, a[kk], along_rows_128(base, 4 * kPanelBytes, 16 * kk), 1);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      if (lane == 0) barrier_arrive(&s.empty[i]);
    }
    store_rows(o, to + 128 * half, p.H * kD, tokens - strip);
  }
}

__global__ void __launch_bounds__(kThreads, 1) cyclic_flow_forward_values_sm90(const __grid_constant__ ValuesParams params) {
  extern __shared__ __align__(1024) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const Sm90ForwardParams& p = params.p;
  const Workspace& w = params.w;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumerWarps);
    }
    barrier_init(&s.tokens_full, kFeeders);
    barrier_init(&s.tokens_empty, kConsumerWarps);
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    const Share share(p);
    if (threadIdx.x == 0) {
      feed_copies(params, s, share);
    } else if (threadIdx.x >= 32) {
      feed_tokens<true, 2>(p, w, s, share);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const Share share(p);
    const int strip = static_cast<int>(__shfl_sync(0xFFFFFFFF, 16 * (threadIdx.x / 32 - 4), 0));
    int parity = 0;
    for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
      values_of_half(p, w, s, strip, share.h, parity, static_cast<int>(p.tile[t].token), p.tile[t].tokens);
    }
  }
}

}  // namespace

cudaError_t sm90_forward_values(const Sm90ForwardParams& p, cudaStream_t stream) {
  ValuesParams params = {p, workspace_of(p), {}, {}};
  const int64_t states = 2 * (static_cast<int64_t>(p.tiles) * p.H * 2 + 1);
  cudaError_t status = make_tensor_map(params.v, p.v, p.T, static_cast<int64_t>(p.H) * kD, p.v_stride, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.states, params.w.states, states * kM, kD, kD, kM);
  int blocks = 1;
  if (status == cudaSuccess) status = blocks_of_head(p, blocks);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(cyclic_flow_forward_values_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(Shared)));
  }
  if (status != cudaSuccess) return status;
  cyclic_flow_forward_values_sm90<<<blocks * p.H, kThreads, sizeof(Shared), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow
