// The value pass of the Hopper backward, one tile of one head at a time (notation of sm90_backward_pass.cuh, rows s, columns t >= s):
//   dV = beta (D * (phi U^T)) dO + beta b (phi dS_V')
// and the pass's per-token scalars. The four panels of v share three buffers, one of which is filled twice per tile; the fourth buffer
// stages the results. Panels of narrower heads have a buffer each. The warpgroups swap halves from tile to tile, since the first half has
// more pairs.
//
// Called by backward_passes (sm90_backward_keys.cu). Overwrites d_v, which held dS_V' (a tile's data is all in shared memory before its
// first gradient is stored), and the value pass's scalars of the workspace.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_pairs.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

constexpr int kColumns = kX + 2;  // buffer for the warps' column sums, after v has been consumed
constexpr int kCorner = kX + 3;
constexpr int kStripFloats = 16 * kRowBytes / 4;

// Issues copies in the order in which buffers become free.
template <int kPanels>
__device__ __forceinline__ void feed_copies(const PassParams& params, PassShared& s) {
  const Sm90BackwardParams& p = params.p;
  const Share share(p);
  const int column = share.h * kPanels * kPanelColumns;
  int parity = 1;
#pragma unroll 1
  for (int t = share.first; t < p.in.tiles; t += share.step, parity ^= 1) {
    const int token = static_cast<int>(p.in.tile[t].token);
#pragma unroll 1
    for (int i = 0; i < (kPanels == 4 ? 3 : kPanels); ++i)
      feed_panel(s, kX + i, kPanels == 4 && i == 0 ? 1 : parity, &params.x, column + i * kPanelColumns, token);
#pragma unroll 1
    for (int i = 0; i < kM / kPanelColumns; ++i) feed_panel(s, kZ + i, parity, &params.z, share.h * 2 * kM + kM + i * kPanelColumns, token);
#pragma unroll 1
    for (int i = 0; i < kPanels; ++i) {
      feed_panel(s, kY + i, parity, &params.y, column + i * kPanelColumns, token);
      feed_d_state<kPanels>(params, s, t, share.h, kValues, i, parity);
    }
    if (kPanels == 4) feed_panel(s, kX, 0, &params.x, column + 3 * kPanelColumns, token);
  }
}

__device__ __forceinline__ void feed(const PassParams& params, PassShared& s) {
  const Sm90BackwardParams& p = params.p;
  const Share share(p);
  const float* columns = reinterpret_cast<const float*>(s.ring + kColumns * kPanelBytes);
  int parity = 0;
#pragma unroll 1
  for (int t = share.first; t < p.in.tiles; t += share.step, parity ^= 1) {
    const int tokens = p.in.tile[t].tokens;
    const int64_t base = share.h * p.in.T + p.in.tile[t].token;
    feed_tokens(params.w, s, base, tokens, parity ^ 1);
    barrier_wait(&s.columns_full, parity);
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) - 32; row < tokens; row += kFeeders) {
      params.w.later[kValues][base + row] = sum_columns(columns, kStripFloats, row);
    }
    fence_async_proxy();
    barrier_arrive(&s.empty[kColumns]);
  }
}

// dV of a half tile, 64 columns at a time. `token` and `tokens` become those of the next tile.
template <bool kFirst, int kPanels>
__device__ __forceinline__ void values_of_half(const HalfTile<kValues, kFirst, kPanels>& tile, int& token, int& tokens) {
  const Sm90BackwardParams& p = tile.params.p;
  PassShared& s = tile.s;
  const int strip = tile.strip;
  Pairs found;
  if (kPanels < 4) barrier_wait(&s.empty[kColumns], (tile.n() & 1) ^ 1);  // with four panels, waiting for v implies this
  float* columns = reinterpret_cast<float*>(s.ring + kColumns * kPanelBytes) + strip * kStripFloats + column_of_lane();
  tile.pairs(found, [&](int i, float sum) { columns[32 * i] = sum; });
  tile.release(kZ);
  tile.release(kZ + 1);
  barrier_arrive(&s.columns_full);
  Share(p).tile(p, tile.n() + 1, token, tokens);  // load now, use in the next tile
#pragma unroll 1
  for (int panel = 0; panel < kPanels; ++panel) {
    float d[32];
    tile.multiply(d, found, panel);
    copies_read();  // the previous panel's results have left the staging buffer
    wgmma_wait<0>();
    tile.release(kY + panel);
    tile.release(kS + panel);
    uint32_t out[4][4];
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i / 4][i % 4] = pack(d[2 * i], d[2 * i + 1]);
    const int column = panel * kPanelColumns;
    put_strip(out, tile.panel_at(kCorner), strip);
    store_strip(tile.panel_at(kCorner), strip, &tile.params.out, tile.h() * tile.kWidth + column, tile.token() + 16 * strip,
                static_cast<bf16*>(p.d_v) + tile.first_row() + column, static_cast<int64_t>(p.in.H) * tile.kWidth,
                tile.tokens() - 16 * strip);
  }
}

template <bool kFirst, int kPanels>
__global__ void __launch_bounds__(kPassThreads, 1) cyclic_flow_backward_values_sm90(const __grid_constant__ PassParams params) {
  extern __shared__ __align__(1024) char raw[];
  PassShared& s = *reinterpret_cast<PassShared*>(raw);
  let_next_launch_begin();
  if (threadIdx.x == 0) init_barriers(s, kColumns);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      feed_copies<kPanels>(params, s);
    } else if (threadIdx.x >= 32) {
      feed(params, s);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    int token, tokens;
    Share(params.p).tile(params.p, 0, token, tokens);
    int n = 0;
#pragma unroll 1
    while (tokens > 0) {
      const int group = static_cast<int>(threadIdx.x) / 128 - 1;
      const HalfTile<kValues, kFirst, kPanels> tile(params, s, token, tokens, n, __shfl_sync(0xFFFFFFFF, (group + n) % 2, 0));
      values_of_half(tile, token, tokens);
      n = tile.n() + 1;
    }
    copies_read();
  }
}

}  // namespace

cudaError_t backward_values(const Sm90BackwardParams& p, cudaStream_t stream) {
  if (p.in.section > 0) return launch_pass(&cyclic_flow_backward_values_sm90<false, 4>, p, kValues, stream);
  return with_panel_count(p.in.V / kPanelColumns, [&](auto panels) {
    return launch_pass(&cyclic_flow_backward_values_sm90<true, decltype(panels)::value>, p, kValues, stream);
  });
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
