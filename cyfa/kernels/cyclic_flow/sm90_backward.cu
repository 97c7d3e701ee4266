// Backward of cyclic_flow on Hopper (docs/operator.md, "Chunks" and "The gate's gradient"): its small stages and the order of all.
//   readout      U, dY, the table's gradient                   sm90_backward_readout.cu
//   states       dS' at tile ends                              sm90_backward_states.cu
//   values, keys dV, dK, dQ, scalars of the tokens             sm90_backward_values.cu, sm90_backward_keys.cu
//   sums         dlog_alpha, ddelta and dbeta from these, tile by tile; the gradients of the table and of the norms' weights, over blocks
// With two sections of slots the readout goes in launches of its own (sm90_backward_sections.cu), then states and passes a section at a
// time; the sums are over both. Where rows are normalised first (sm90_norms.cu), the kernels see no norm, and its adjoint comes before the
// sums. No stage adds with atomics: equal runs give equal bits.
#include "cyfa/kernels/cyclic_flow/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow {
namespace sm90_backward_stages {
namespace {

// Inclusive sum over the lanes of a warp.
__device__ __forceinline__ double warp_scan(double x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double y = __shfl_up_sync(0xFFFFFFFF, x, d);
    if (lane >= d) x += y;
  }
  return x;
}

// Sum over each group of kLanes lanes.
template <int kLanes>
__device__ __forceinline__ double lanes_sum(double x) {
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, d);
  return x;
}

// Sums over both sections, where there are two: the second's workspace lies `next` floats after the first's.
__device__ __forceinline__ double over_sections(const float* x, int64_t at, int64_t next) {
  return next > 0 ? static_cast<double>(x[at]) + x[at + next] : static_cast<double>(x[at]);
}

// Of tile `tile_index`, this thread's token: what it has of X(W, dW) from the tile's end state, both passes.
__device__ __forceinline__ double crossing_of(const Sm90BackwardParams& p, const Workspace& w, int tile_index, int h, int64_t next) {
  const Tile tile = p.in.tile[tile_index];
  const int i = static_cast<int>(threadIdx.x) % kC;
  const int64_t at = h * p.in.T + tile.token + i;
  return i < tile.tokens ? over_sections(w.crossing[kKeys], at, next) + over_sections(w.crossing[kValues], at, next) : 0.0;
}

// <S, dS'> and X(S, dS') of what passes through a whole tile, by 16 lanes.
__device__ __forceinline__ double2 passing(const Sm90BackwardParams& p, const Workspace& w, int tile_index, int h, int64_t next) {
  static_assert(kWholeParts == 16);
  const Tile tile = p.in.tile[tile_index];
  const float4* parts = reinterpret_cast<const float4*>(w.whole + (static_cast<int64_t>(tile_index) * p.in.H + h) * 2 * kWholeParts);
  const float4 two = parts[threadIdx.x % 16];
  double2 sum = make_double2(static_cast<double>(two.x) + two.z, static_cast<double>(two.y) + two.w);
  if (next > 0) {
    const float4 more = parts[threadIdx.x % 16 + next / 4];
    sum = make_double2(sum.x + more.x + more.z, sum.y + more.y + more.w);
  }
  const double decay = power_of_2(w.gate[h * p.in.T + tile.token + tile.tokens - 1].x);
  return make_double2(decay * lanes_sum<16>(sum.x), decay * lanes_sum<16>(sum.y) * w.slots.turn);
}

// The gates' and the clocks' gradients of two tiles of a head each. Half a block a tile.
// Gate s has its share of: pairs and reads of the state that end at s or later and begin before it, writes that come before it and reach
// the tile's end, and what passes through the whole tile.
// ddelta of a token is the sum of dclock from it on, which is the sum over all pairs that it parts. At a tile's end that is known from its
// end state alone, so no error is carried from tile to tile; and what a tile's own sum misses at its start, known from the tile before, is
// taken back evenly. Where a sequence starts from nothing, nothing is parted at its start (Proposition 6).
__device__ __forceinline__ void token_gradients(const Sm90BackwardParams& p, const Workspace& w, int block, int64_t next) {
  constexpr int kHalf = kWarps / 2;
  // Of the warps: sums of what is scanned, and of what crosses the tile's end, its start and the sequence's end. Of the halves: what passes
  // through the tile, the one before and the sequence's last.
  __shared__ double scanned[3][kWarps];
  __shared__ double crossing[3][kWarps];
  __shared__ double2 through[3][2];
  const int half = static_cast<int>(threadIdx.x) / kC;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = 2 * block + half;
  const bool some = unit < p.in.tiles * p.in.H;
  const int h = unit % p.in.H;
  const int tile_index = some ? unit / p.in.H : 0;
  const Tile tile = p.in.tile[tile_index];
  const int i = static_cast<int>(threadIdx.x) % kC;
  const bool real = some && i < tile.tokens;
  const bool first = p.in.first_tile[tile.sequence] == tile_index;
  const int last = p.in.first_tile[tile.sequence + 1] - 1;
  const bool given = p.grad_final_k != nullptr || p.grad_final_v != nullptr;
  const int64_t at = h * p.in.T + tile.token + i;
  const int64_t to = (tile.token + i) * p.in.H + h;
  double later = 0.0;
  double written = 0.0;
  double clock = 0.0;
  double beta = 0.0;
  bool shut = false;
  if (real) {
    const auto sum = [&](const float* x) { return over_sections(x, at, next); };
    later = (sum(w.later[0]) - sum(w.earlier[0])) + (sum(w.later[1]) - sum(w.earlier[1])) + sum(w.read[0]) + sum(w.read[1]);
    written = sum(w.written[0]) + sum(w.written[1]);
    clock = sum(w.turned[2]) - sum(w.turned[0]) - sum(w.turned[1]);
    beta = sum(w.beta[0]) + sum(w.beta[1]);
    // The gradient has a factor alpha, which the sums show only up to their rounding.
    shut = p.in.log_alpha[to] < -60.0F;
  }
  const double at_end_part = crossing_of(p, w, tile_index, h, next);
  const double at_start_part = first ? 0.0 : crossing_of(p, w, tile_index - 1, h, next);
  const double at_last_part = given ? crossing_of(p, w, last, h, next) : 0.0;
  if (warp % kHalf == 0) {
    const bool before = lane >= 16 && !first;
    const double2 x = passing(p, w, tile_index - (before ? 1 : 0), h, next);
    if (lane % 16 == 0) through[lane / 16][half] = x;
  } else if (warp % kHalf == 1 && given) {
    const double2 x = passing(p, w, last, h, next);
    if (lane == 0) through[2][half] = x;
  }
  double written_to = warp_scan(written);
  double later_to = warp_scan(later);
  double clock_to = warp_scan(clock);
  const double at_end_warp = lanes_sum<32>(at_end_part);
  const double at_start_warp = lanes_sum<32>(at_start_part);
  const double at_last_warp = given ? lanes_sum<32>(at_last_part) : 0.0;
  if (lane == 31) {
    scanned[0][warp] = written_to;
    scanned[1][warp] = later_to;
    scanned[2][warp] = clock_to;
    crossing[0][warp] = at_end_warp;
    crossing[1][warp] = at_start_warp;
    crossing[2][warp] = at_last_warp;
  }
  __syncthreads();
  if (!real) return;
  double all_later = 0.0;
  double all_clocks = 0.0;
  double at_end = 0.0;
  double at_start = 0.0;
  double at_last = 0.0;
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    const int other = half * kHalf + j;
    if (other < warp) {
      written_to += scanned[0][other];
      later_to += scanned[1][other];
      clock_to += scanned[2][other];
    }
    all_later += scanned[1][other];
    all_clocks += scanned[2][other];
    at_end += crossing[0][other];
    at_start += crossing[1][other];
    at_last += crossing[2][other];
  }
  p.d_log_alpha[to] = shut ? 0.0F : static_cast<float>((all_later - later_to + later) + (written_to - written) + through[0][half].x);
  p.d_beta[to] = static_cast<float>(beta);

  // What comes in through the final state is not parted: no clock turns it later.
  double final_clock = p.grad_final_clock != nullptr ? p.grad_final_clock[tile.sequence * p.in.H + h] : 0.0;
  if (given) final_clock -= at_last + through[2][half].y;
  at_end += through[0][half].y;
  double parted = at_end + (all_clocks - clock_to + clock);
  if (!first || p.in.initial_k == nullptr) {
    if (!first) at_start += through[1][half].y;
    const double missed = at_end + all_clocks - at_start;
    parted -= missed * (tile.tokens - i) / tile.tokens;
  }
  p.d_delta[to] = static_cast<float>(parted + final_clock);
  if (first && i == 0 && p.d_initial_clock != nullptr) p.d_initial_clock[tile.sequence * p.in.H + h] = parted + final_clock;
}

constexpr int kWeightColumns = 32;  // of the norms' weights that a block sums

// Gradients of the norms' weights over all rows: eight threads a column. Only the product of both weights matters to the loss, so that one
// sum of the key pass serves both, times the other weight.
__device__ __forceinline__ void sum_weights(const Sm90BackwardParams& p, const Workspace& w, int block, int64_t rows, int64_t next) {
  __shared__ float sums[kWarps][kWeightColumns];
  const int which = block / (kD / kWeightColumns);
  float* to = which == 0 ? p.d_k_norm_weight : p.d_q_norm_weight;
  if (to == nullptr) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = block % (kD / kWeightColumns) * kWeightColumns + lane;
  const float* from = w.d_weights + (normalises_first(p.in) ? which * rows * kD : 0) + column;
  float sum = 0.0F;
#pragma unroll 16
  for (int64_t i = warp; i < rows; i += kWarps) sum += from[i * kD];
  if (next > 0 && !normalises_first(p.in)) {
    for (int64_t i = warp; i < rows; i += kWarps) sum += from[next + i * kD];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0) return;
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  const float* other = normalises_first(p.in) ? nullptr : which == 0 ? p.in.q_norm_weight : p.in.k_norm_weight;
  to[column] = other != nullptr ? sum * other[column] : sum;
}

// The blocks' sums of a quarter of the table (all of it, with one section), each in the order of its threads and their registers
// (hopper/wgmma.cuh): four registers of all threads a block here.
__device__ __forceinline__ void sum_tables(const Sm90BackwardParams& p, const Workspace& w, int unit, int i4, int blocks, int quarters) {
  const int thread = static_cast<int>(threadIdx.x);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 8
  for (int b = 0; b < blocks; ++b) {
    const float4 x = w.d_tables[(static_cast<int64_t>(b) * p.in.H * quarters + unit) * (kM * kM / 4) + i4 * kThreads + thread];
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  }
  const int h = unit / quarters;
  const int pitch = quarters == 4 ? 2 * kM : kM;
  const int row = unit % quarters / 2 * kM + 16 * (thread / 32) + thread % 32 / 4;
  const int column = unit % quarters % 2 * kM + 8 * i4 + 2 * (thread % 4);
  float* to = p.d_table + (static_cast<int64_t>(h) * pitch + row) * pitch + column;
  *reinterpret_cast<float2*>(to) = make_float2(sum.x, sum.y);
  *reinterpret_cast<float2*>(to + 8 * pitch) = make_float2(sum.z, sum.w);
}

constexpr int kTableParts = kM * kM / 4 / kThreads;
constexpr int kWeightBlocks = 2 * kD / kWeightColumns;

// What follows the passes and does not depend on one another, by ranges of blocks: the table; the norms' weights; two tiles of a head each.
__global__ void __launch_bounds__(kThreads)
    cyclic_flow_backward_sums_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w, int blocks,
                                   int quarters, int64_t weight_rows, int64_t next) {
  int block = static_cast<int>(blockIdx.x);
  if (block == 0 && p.d_initial_clock != nullptr) {  // of sequences without tokens
    for (int i = static_cast<int>(threadIdx.x); i < p.in.N * p.in.H; i += kThreads) {
      const int n = i / p.in.H;
      if (p.in.first_tile[n] == p.in.first_tile[n + 1]) p.d_initial_clock[i] = p.grad_final_clock != nullptr ? p.grad_final_clock[i] : 0.0;
    }
  }
  if (block < p.in.H * quarters * kTableParts) {
    sum_tables(p, w, block / kTableParts, block % kTableParts, blocks, quarters);
    return;
  }
  block -= p.in.H * quarters * kTableParts;
  if (block < kWeightBlocks) {
    sum_weights(p, w, block, weight_rows, next);
    return;
  }
  token_gradients(p, w, block - kWeightBlocks, next);
}

}  // namespace

cudaError_t backward_sums(const Sm90BackwardParams& p, cudaStream_t stream) {
  const Workspace w = workspace_of(p);
  const int quarters = quarters_of_table(p);
  const int sums = p.in.H * quarters * kTableParts + kWeightBlocks + (p.in.tiles * p.in.H + 1) / 2;
  const int64_t next = p.in.M > kM ? w.bytes / static_cast<int64_t>(sizeof(float)) : 0;
  cyclic_flow_backward_sums_sm90<<<sums, kThreads, 0, stream>>>(p, w, table_blocks(p), quarters, weight_rows(p), next);
  return cudaGetLastError();
}

}  // namespace sm90_backward_stages

using namespace sm90_backward_stages;

int64_t sm90_backward_workspace(const Sm90BackwardParams& p) {
  const int64_t bytes = workspace_of(p).bytes;
  return p.in.M > kM ? 2 * bytes + 3 * room_of_gradient(p) : bytes;
}

const char* sm90_backward_refusal(const Sm90BackwardParams& p) { return sm90_forward_refusal(p.in); }

cudaError_t sm90_backward(const Sm90BackwardParams& p, cudaStream_t stream) {
  if (sm90_backward_refusal(p) != nullptr || p.in.tiles == 0) return cudaErrorInvalidValue;
  const sm90_backward_stages::Workspace w = workspace_of(p);
  const bool two = p.in.M > kM;
  Sm90BackwardParams sections[2] = {section_of(p, 0), two ? section_of(p, 1) : p};
  cudaError_t status = cudaSuccess;
  if (normalises_first(p.in)) {
    status = sm90_normalise_rows(p.in, w.rows[0], w.rows[1], stream);
    for (Sm90BackwardParams& r : sections) {
      r.in = with_normalised_rows(r.in, w.rows[0], w.rows[1]);
      r.d_k_norm_weight = r.d_q_norm_weight = nullptr;
    }
  }
  if (status == cudaSuccess) status = two ? backward_readout_of_sections(sections, stream) : backward_readout(sections[0], stream);
  for (int section = 0; section < (two ? 2 : 1); ++section) {
    if (status == cudaSuccess) status = backward_states(sections[section], stream);
    if (status == cudaSuccess) status = backward_passes(sections[section], stream);
  }
  if (status == cudaSuccess && two) status = backward_join(sections, stream);
  if (status == cudaSuccess && normalises_first(p.in)) status = backward_norms(p, stream);
  return status == cudaSuccess ? backward_sums(p, stream) : status;
}

}  // namespace cyfa::cyclic_flow
