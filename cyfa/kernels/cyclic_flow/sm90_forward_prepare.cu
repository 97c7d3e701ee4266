// What the other launches of the Hopper forward need of every token: clocks and sums of gates (advance where a sequence is long, then
// prepare, one block a tile and head each), and the readout table in half precision; and that table itself, R Phi, from a readout.
// Overwrites turn, gate, advance, weight, table and table_unit of the workspace and the final clocks.
#include <cuda_runtime.h>

#include "cyfa/kernels/cyclic_flow/sm90_parts.cuh"
#include "cyfa/kernels/hopper/launch.cuh"

namespace cyfa::cyclic_flow {
namespace {

// Inclusive sum over the block's kC threads; `total` is the sum of all.
__device__ double block_scan(double x, double& total) {
  __shared__ double sums[kC / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double y = __shfl_up_sync(0xFFFFFFFF, x, d);
    if (lane >= d) x += y;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = x;
  __syncthreads();
  double before = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kC / 32; ++i) {
    if (i < warp) before += sums[i];
    total += sums[i];
  }
  return x + before;
}

__device__ double load_delta(const Sm90ForwardParams& p, const Tile& tile, int h) {
  const int i = static_cast<int>(threadIdx.x);
  return i < tile.tokens ? static_cast<double>(p.delta[(tile.token + i) * p.H + h]) : 0.0;
}

__global__ void __launch_bounds__(kC) cyclic_flow_forward_advance_sm90(const __grid_constant__ Sm90ForwardParams p) {
  const int h = blockIdx.x % p.H;
  const int tile = blockIdx.x / p.H;
  double total;
  block_scan(load_delta(p, p.tile[tile], h), total);
  if (threadIdx.x == 0) workspace_of(p).advance[static_cast<int64_t>(h) * p.tiles + tile] = total;
}

__device__ void prepare_tile(const Sm90ForwardParams& p, const Workspace& w, int index, int h) {
  const Tile tile = p.tile[index];
  const int first = p.first_tile[tile.sequence];
  const int i = static_cast<int>(threadIdx.x);
  const bool real = i < tile.tokens;
  const double delta = load_delta(p, tile, h);
  const float given = real ? p.log_alpha[(tile.token + i) * p.H + h] : 0.0F;
  double passed = 0.0;
  if (p.first_tile[tile.sequence + 1] - first > kSumTiles) {
    for (int t = first + i; t < index; t += kC) passed += w.advance[static_cast<int64_t>(h) * p.tiles + t];
  } else {  // few enough to be added up again, which saves a launch
#pragma unroll 8
    for (int t = first; t < index; ++t)
      passed += static_cast<double>(p.delta[(tile.token - static_cast<int64_t>(index - t) * kC + i) * p.H + h]);
  }
  double before, during, unused;
  block_scan(passed, before);
  if (p.initial_clock != nullptr) before += p.initial_clock[tile.sequence * p.H + h];
  const double clock = before + block_scan(delta, during);
  const double gate = block_scan(given < -1000.0F ? -1000.0 : static_cast<double>(given), unused);  // exp is 0 there; a NaN stays one
  if (real) {
    const int64_t at = h * p.T + tile.token + i;
    const double turns = clock / (p.M - 1);
    w.turn[at] = static_cast<uint32_t>(static_cast<uint64_t>((turns - floor(turns)) * 4294967296.0));
    const double doublings = gate * 1.4426950408889634;
    const float high = static_cast<float>(doublings);
    w.gate[at] = make_float2(high, static_cast<float>(doublings - static_cast<double>(high)));
  }
  if (i == 0 && index + 1 == p.first_tile[tile.sequence + 1]) p.final_clock[tile.sequence * p.H + h] = before + during;
}

// A power of two above the table's largest entry is taken out, so that half precision serves tables of any size.
template <int kP>
__device__ void prepare_table(const Sm90ForwardParams& p, const Workspace& w, int h) {
  constexpr int kPieces = kP * kP / 8;
  __shared__ float tops[kC / 32];
  const uint4* high = static_cast<const uint4*>(p.table) + static_cast<int64_t>(h) * 2 * kPieces;
  // Eight entries of the table from their high and low parts.
  const auto entries = [&](int piece, float(&x)[8]) {
    const uint4 a = high[piece];
    const uint4 b = high[kPieces + piece];
    const uint32_t parts[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 large = hopper::unpack(parts[0][i]);
      const float2 small = hopper::unpack(parts[1][i]);
      x[2 * i] = large.x + small.x;
      x[2 * i + 1] = large.y + small.y;
    }
  };
  float top = 0.0F;
#pragma unroll 8
  for (int piece = threadIdx.x; piece < kPieces; piece += kC) {
    float x[8];
    entries(piece, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(x[i]));
  }
#pragma unroll
  for (int d = 1; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, d));
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kC / 32; ++i) top = fmaxf(top, tops[i]);
  const int exponent = top > 1e-30F && top < 1e30F ? ilogbf(top) + 1 : 0;
  const float inverse = exp2f(static_cast<float>(-exponent));
#pragma unroll 8
  for (int piece = threadIdx.x; piece < kPieces; piece += kC) {
    float x[8];
    entries(piece, x);
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = hopper::pack_half(x[2 * i] * inverse, x[2 * i + 1] * inverse);
    reinterpret_cast<uint4*>(w.table)[h * kPieces + piece] = make_uint4(y[0], y[1], y[2], y[3]);
  }
  if (threadIdx.x == 0) w.table_unit[h] = exp2f(static_cast<float>(exponent));
}

__device__ void prepare_rest(const Sm90ForwardParams& p, const Workspace& w) {
  for (int i = threadIdx.x; i < kD; i += kC) {
    w.weight[i] = (p.q_norm_weight != nullptr ? p.q_norm_weight[i] : 1.0F) * (p.k_norm_weight != nullptr ? p.k_norm_weight[i] : 1.0F);
  }
  for (int section = 0; section < sm90_sections(p.M); ++section) {
    const int64_t states = static_cast<int64_t>(p.tiles) * p.H * 2;
    uint4* zeros = reinterpret_cast<uint4*>(w.states + (section * (states + 1) + states) * kM * kD);
    for (int i = threadIdx.x; i < kM * kD / 8; i += kC) zeros[i] = make_uint4(0, 0, 0, 0);
  }
  for (int i = threadIdx.x; i < p.N * p.H; i += kC) {
    const int n = i / p.H;
    if (p.first_tile[n] == p.first_tile[n + 1]) p.final_clock[i] = p.initial_clock != nullptr ? p.initial_clock[i] : 0.0;
  }
}

// Begins while the table is made: only its own blocks wait for that, and all where the sums of delta come from the launch before.
__global__ void __launch_bounds__(kC) cyclic_flow_forward_prepare_sm90(const __grid_constant__ Sm90ForwardParams p) {
  const Workspace w = workspace_of(p);
  const int block = static_cast<int>(blockIdx.x);
  if (longest_of(p) > kSumTiles || (block > 0 && block <= p.H)) hopper::wait_for_earlier_launch();
  if (block == 0) {
    prepare_rest(p, w);
  } else if (block <= p.H) {
    if (p.M <= kM) {
      prepare_table<kM>(p, w, block - 1);
    } else {
      prepare_table<2 * kM>(p, w, block - 1);
    }
  } else {
    prepare_tile(p, w, (block - 1 - p.H) / p.H, (block - 1 - p.H) % p.H);
  }
}

// A row of R Phi a block, a stored coordinate a thread, as high and low part; zeros up to P rows and coordinates. Phi of slot s and
// frequency j is a cosine or sine of s j / m turns, so m values of each are all there are.
__global__ void cyclic_flow_forward_table_sm90(const float* readout, int m, bf16* table) {
  hopper::let_next_launch_begin();
  const int P = static_cast<int>(blockDim.x);
  extern __shared__ float shared[];
  float* row = shared;
  float2* turned = reinterpret_cast<float2*>(shared + m + 1);
  const int h = static_cast<int>(blockIdx.x) / P;
  const int r = static_cast<int>(blockIdx.x) % P;
  const int c = static_cast<int>(threadIdx.x);
  if (c < m) {
    double sine, cosine;
    sincospi(2.0 * c / m, &sine, &cosine);
    turned[c] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
    row[c] = r < m ? readout[(static_cast<int64_t>(h) * m + r) * m + c] : 0.0F;
  }
  __syncthreads();
  const int j = c / 2;
  float sum = 0.0F;
  for (int s = 0, at = 0; s < m; ++s) {
    sum = fmaf(row[s], c % 2 == 0 ? turned[at].x : turned[at].y, sum);
    at = at + j < m ? at + j : at + j - m;
  }
  // Coordinate 1 is the sine of frequency 0: nothing.
  const float entry = c <= m ? sum * static_cast<float>(sqrt((j == 0 ? 1.0 : 2.0) / m)) : 0.0F;
  const bf16 high = __float2bfloat16(entry);
  bf16* to = table + (static_cast<int64_t>(h) * 2 * P + r) * P + c;
  to[0] = high;
  to[P * P] = __float2bfloat16(entry - __bfloat162float(high));
}

}  // namespace

cudaError_t sm90_readout_table(const float* readout, int32_t H, int32_t M, void* table, cudaStream_t stream) {
  const int P = static_cast<int>(sm90_filled_slots(M));
  cyclic_flow_forward_table_sm90<<<H * P, P, M * 12, stream>>>(readout, M - 1, static_cast<bf16*>(table));
  return cudaGetLastError();
}

cudaError_t sm90_forward_prepare(const Sm90ForwardParams& p, cudaStream_t stream) {
  if (longest_of(p) > kSumTiles) cyclic_flow_forward_advance_sm90<<<p.tiles * p.H, kC, 0, stream>>>(p);
  return hopper::launch_early(&cyclic_flow_forward_prepare_sm90, 1 + p.H + p.tiles * p.H, kC, 0, stream, p);
}

}  // namespace cyfa::cyclic_flow
