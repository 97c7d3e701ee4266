// The readout over two sections of slots on Hopper (docs/operator.md, stage 3): p = softmax(Z A^T) and U = unrot(p A), from the rotated
// scores. A persistent block stays with one head, keeps its table in shared memory (128 KB) and takes every (gridDim.x / H)-th tile. Called
// by sm90_forward.cu and sm90_backward_sections.cu. Forward writes U to `weights` of the workspace in half precision. Backward writes p to
// `probs` in half precision, and U in bf16 to where the scan and the passes of each section read it.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_sections.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace two_sections;
using sm90_backward_stages::pack_here;
using sm90_backward_stages::rotate;
using sm90_backward_stages::scale_rows;
using sm90_backward_stages::softmax_rows;

struct ReadoutParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap table;
  __half* probs;     // [T, H, P]
  bf16* weights[2];  // per section, U in rows of kD elements
};

struct Shared {
  char table[kTableBytes];
  uint64_t full;
};

template <bool kForward>
__global__ void __launch_bounds__(kRowsThreads, 1) cyclic_flow_readout_sm90(const __grid_constant__ ReadoutParams params) {
  extern __shared__ __align__(1024) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const Sm90ForwardParams& p = params.p;
  const Workspace& w = params.w;
  const Share share(p);
  const int h = share.h;
  if (threadIdx.x == 0) {
    barrier_init(&s.full, 1);
    fence_barrier_init();
    copy_table(s.table, &params.table, h, &s.full);
  }
  __syncthreads();
  const int strip = 16 * static_cast<int>(threadIdx.x / 32);
  const int row = strip + static_cast<int>(threadIdx.x) % 32 / 4;  // and row + 8
  const float unit = w.table_unit[h];
  const int64_t pitch = static_cast<int64_t>(p.H) * kP;  // stride between tokens
  barrier_wait(&s.full, 0);
  for (int t = share.last; t >= 0; t -= share.step) {
    const int64_t token = p.tile[t].token;
    const int tokens = p.tile[t].tokens;
    const bool valid0 = row < tokens;
    const bool valid8 = row + 8 < tokens;
    uint32_t table = shared_address(s.table) >> 4;
    asm volatile("" : "+r"(table));  // otherwise operand descriptors are kept across tiles
    const int64_t at = (token + row) * pitch + h * kP;
    uint32_t a[16][4];
    load_rows(a, w.scores + at, w.scores + at + 8 * pitch, valid0, valid8);
    if (t >= share.step) {
      const Tile& next = p.tile[t - share.step];
      ask_for_rows(reinterpret_cast<const char*>(w.scores + (next.token + strip) * pitch + h * kP), 2 * pitch, next.tokens - strip);
    }
    const uint32_t turn0 = valid0 ? w.turn[h * p.T + token + row] : 0;
    const uint32_t turn8 = valid8 ? w.turn[h * p.T + token + row + 8] : 0;
    {
      float logits[2][64];
      settle(a);
      times_transposed(logits, a, table);
      wgmma_wait<0>();
      softmax_rows(logits, kScoreUnit * unit, p.M - 1);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float* x = &logits[i / 16][i % 16 * 4];
        a[i / 2][i % 2 * 2] = pack_half(x[0], x[1]);
        a[i / 2][i % 2 * 2 + 1] = pack_half(x[2], x[3]);
      }
    }
    float mixed[2][64];
    settle(a);
    times(mixed[0], a, table, 0);
    times(mixed[1], a, table, 1);
    if (!kForward) store_rows(a, params.probs + at, params.probs + at + 8 * pitch, valid0, valid8);
#pragma unroll
    for (int section = 0; section < 2; ++section) {
      float(&d)[64] = mixed[section];
      if (section == 0) {
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      scale_rows(d, unit, unit);
      rotate<-1>(d, turn0, turn8, section * (kM / 2));
      uint32_t u[8][4];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        u[i / 2][i % 2 * 2] = kForward ? pack_half(d[4 * i], d[4 * i + 1]) : pack_here(d[4 * i], d[4 * i + 1]);
        u[i / 2][i % 2 * 2 + 1] = kForward ? pack_half(d[4 * i + 2], d[4 * i + 3]) : pack_here(d[4 * i + 2], d[4 * i + 3]);
      }
      if constexpr (kForward) {
        __half* to = w.weights + at + section * kM;
        store_rows(u, to, to + 8 * pitch, valid0, valid8);
      } else {
        bf16* to = params.weights[section] + ((token + row) * p.H + h) * kD;
        store_rows(u, to, to + int64_t{8} * p.H * kD, valid0, valid8);
      }
    }
  }
}

template <bool kForward>
cudaError_t launch(ReadoutParams& params, cudaStream_t stream) {
  const Sm90ForwardParams& p = params.p;
  const auto kernel = &cyclic_flow_readout_sm90<kForward>;
  cudaError_t status = make_table_map(params.table, params.w.table, p.H);
  int blocks = 1;
  if (status == cudaSuccess) status = blocks_of_head(p, blocks);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  }
  if (status != cudaSuccess) return status;
  kernel<<<blocks * p.H, kRowsThreads, sizeof(Shared), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sm90_forward_readout(const Sm90ForwardParams& p, cudaStream_t stream) {
  ReadoutParams params = {p, workspace_of(p), {}, nullptr, {nullptr, nullptr}};
  return launch<true>(params, stream);
}

cudaError_t sm90_readout_again(const Sm90ForwardParams& p, __half* probs, bf16* weights0, bf16* weights1, cudaStream_t stream) {
  ReadoutParams params = {p, workspace_of(p), {}, probs, {weights0, weights1}};
  return launch<false>(params, stream);
}

}  // namespace cyfa::cyclic_flow
