// Backward of cyclic_flow on Hopper (docs/operator.md, "Chunks" and "The gate's gradient"): the sequence of launches, and the last of them.
//   readout      U, dY, the table's gradient                    sm90_backward_readout.cu
//   states       dS' at tile ends                               sm90_backward_states.cu
//   through      <S, dS'> of tiles that retain part of S        sm90_backward_through.cu
//   values, keys dV, dK, dQ, per-token scalars                  sm90_backward_values.cu, sm90_backward_keys.cu
//   sums         dlog_alpha, ddelta and dbeta from the scalars, per tile; the gradients of the readout and of the norm weights, summed
//                over thread blocks
// With two sections of slots, the readout is a series of launches (sm90_backward_sections.cu), and states, through and the passes run once
// per section; sums adds both. With normalise_first (sm90_norms.cu) the kernels see no norm, and its adjoint runs before sums. No launch
// uses atomics: identical calls give bitwise identical results.
//
// Called by cyfa/ops/cyclic_flow/sm90.cc. Overwrites all gradients and the workspace; d_q, d_k and d_v hold intermediates in between.
#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_device.cuh"

namespace cyfa::cyclic_flow {
namespace sm90_backward_stages {
namespace {

// Inclusive prefix sum over the lanes of a warp.
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

// <S, dS'> and X(S, dS') of what passes through a whole tile, by 16 lanes. `last` is the index of the tile's last token in [H, T].
template <int kSections>
__device__ __forceinline__ double2 passing(const Workspace& w, int64_t tile_and_head, int64_t last, int64_t next) {
  static_assert(kWholeParts == 16);
  const float4* parts = reinterpret_cast<const float4*>(w.whole + tile_and_head * 2 * kWholeParts) + threadIdx.x % 16;
  double2 sum = make_double2(0.0, 0.0);
#pragma unroll
  for (int section = 0; section < kSections; ++section) {
    const float4 two = parts[section * next / 4];
    sum = make_double2(sum.x + (static_cast<double>(two.x) + two.z), sum.y + (static_cast<double>(two.y) + two.w));
  }
  const double decay = power_of_2(w.gate[last].x);
  return make_double2(decay * lanes_sum<16>(sum.x), decay * lanes_sum<16>(sum.y) * w.slots.turn);
}

__device__ __forceinline__ void copy_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

constexpr int kHeads = 4;                // heads per block: a token's heads are adjacent in memory
constexpr int kTiles = kWarps / kHeads;  // tiles per block: a warp takes one tile of one head, a lane four tokens
constexpr int kPitch = kC + 8;           // pitch of a head's tokens in shared memory: the heads use different banks
static_assert(kC == 4 * 32);

// Loads four adjacent tokens' values of each of N arrays, zeros from `real` on. All loads are issued before the first use.
template <int N>
__device__ __forceinline__ void load_tokens(float (&x)[N][4], const float* const (&from)[N], int64_t at, int real) {
  if (real >= 4 && at % 4 == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 four = *reinterpret_cast<const float4*>(from[n] + at);
      x[n][0] = four.x, x[n][1] = four.y, x[n][2] = four.z, x[n][3] = four.w;
    }
  } else {
    at += anew(0);  // otherwise the addresses of both branches are computed before the branch
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = i < real ? from[n][at + i] : 0.0F;
    }
  }
}

// Index in [T, H] of a thread's k-th element of a block: half a tile of four heads at a time.
struct Place {
  int head, i;
  int64_t at;
  bool some;

  __device__ __forceinline__ Place(const Sm90BackwardParams& p, int first_tile, int heads, int k) {
    static_assert(kThreads == kC / 2 * kHeads);
    head = static_cast<int>(threadIdx.x) % kHeads;
    i = k % 2 * (kC / 2) + static_cast<int>(threadIdx.x) / kHeads;
    const Tile tile = p.in.tile[min(first_tile + k / 2, p.in.tiles - 1)];
    at = (tile.token + i) * p.in.H + heads + head;
    some = first_tile + k / 2 < p.in.tiles && heads + head < p.in.H && i < tile.tokens;
  }
};

__device__ __forceinline__ double sum_of(const float (&x)[4]) {
  return (static_cast<double>(x[0]) + static_cast<double>(x[1])) + (static_cast<double>(x[2]) + static_cast<double>(x[3]));
}

// Gradients of gates and clocks for two tiles of four heads.
//
// Gate s receives the contributions of pairs and of state reads that end at s or later and start before s, of writes before s that reach
// the tile's end, and of what passes through the whole tile.
//
// ddelta of token u is the sum of dclock from u on, which equals the sum over all pairs (s, t) with s < u <= t. At a tile's end that sum
// follows from the end state alone, so no error accumulates from tile to tile. The residual of a tile's own sum at its start, which is
// known from the previous tile, is distributed evenly over the tile. At the start of a sequence without initial state the sum is zero
// (Proposition 6).
template <int kSections>
__device__ __forceinline__ void token_gradients(const Sm90BackwardParams& p, const Workspace& w, int block, int64_t next) {
  __shared__ float results[kTiles][4][kHeads][kPitch];  // gradients of log_alpha, delta and beta; log_alpha
  const int groups = (p.in.H + kHeads - 1) / kHeads;
  const int heads = block % groups * kHeads;
  const int first_of_block = block / groups * kTiles;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int h = heads + warp % kHeads;
  const int tile_index = first_of_block + warp / kHeads;
#pragma unroll
  for (int k = 0; k < kTiles * 2; ++k) {  // needed last: the copies overlap the rest
    const Place place(p, first_of_block, heads, k);
    if (place.some) copy_async_4(shared_address(&results[k / 2][3][place.head][place.i]), p.in.log_alpha + place.at);
  }
  if (h < p.in.H && tile_index < p.in.tiles) {
    const bool first = p.in.first_tile[p.in.tile[tile_index].sequence] == tile_index;
    const float2* whole = w.whole + (static_cast<int64_t>(tile_index) * p.in.H + h) * 2 * kWholeParts;  // for passing()
    asm volatile("prefetch.global.L2 [%0];" ::"l"(whole + lane));
    float* to = &results[warp / kHeads][0][warp % kHeads][4 * lane];
    double later[4] = {};
    double written[4] = {};
    double clock[4] = {};
    // What crosses the tile's end and its start: X(W, dW) with respect to the end state, both passes.
    double at_end = 0.0;
    double at_start = 0.0;
    {
      const Tile tile = p.in.tile[tile_index];
      const int64_t at = h * p.in.T + tile.token + 4 * lane;
      const int real = tile.tokens - 4 * lane;
      double beta[4] = {};
#pragma unroll 1
      for (int section = 0; section < kSections; ++section) {
        const int64_t there = at + section * next;
        const auto sum = [](float x, float y) { return static_cast<double>(x) + static_cast<double>(y); };
        {
          float x[6][4];
          load_tokens(x, {w.later[0], w.earlier[0], w.later[1], w.earlier[1], w.read[0], w.read[1]}, there, real);
#pragma unroll
          for (int i = 0; i < 4; ++i) later[i] += sum(x[0][i], -x[1][i]) + sum(x[2][i], -x[3][i]) + sum(x[4][i], x[5][i]);
        }
        {
          float x[4][4];
          load_tokens(x, {w.beta[0], w.beta[1], w.written[0], w.written[1]}, there, real);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            beta[i] += sum(x[0][i], x[1][i]);
            written[i] += sum(x[2][i], x[3][i]);
          }
        }
        float x[5][4];
        load_tokens(x, {w.turned[2], w.turned[0], w.turned[1], w.crossing[0], w.crossing[1]}, there, real);
#pragma unroll
        for (int i = 0; i < 4; ++i) clock[i] += sum(x[0][i], -x[1][i]) - static_cast<double>(x[2][i]);
        at_end += sum_of(x[3]) + sum_of(x[4]);
      }
      *reinterpret_cast<float4*>(to + 2 * kHeads * kPitch) =
          make_float4(static_cast<float>(beta[0]), static_cast<float>(beta[1]), static_cast<float>(beta[2]), static_cast<float>(beta[3]));
    }
    const Tile tile = p.in.tile[anew(tile_index)];  // read again to save registers
    const int64_t start = h * p.in.T + tile.token;
    const int real = tile.tokens - 4 * lane;
    const auto crossing_of = [&](int64_t first_token, int tokens) {
      double sum = 0.0;
#pragma unroll
      for (int section = 0; section < kSections; ++section) {
        float x[2][4];
        load_tokens(x, {w.crossing[0], w.crossing[1]}, first_token + 4 * lane + section * next, tokens - 4 * lane);
        sum += sum_of(x[0]) + sum_of(x[1]);
      }
      return sum;
    };
    if (!first) at_start = crossing_of(start - kC, kC);
    at_end = lanes_sum<32>(at_end);
    at_start = lanes_sum<32>(at_start);
    const bool before = lane >= 16 && !first;  // lanes for what passes through the previous tile
    const double2 through =
        passing<kSections>(w, (tile_index - (before ? 1 : 0)) * int64_t{p.in.H} + h, before ? start - 1 : start + tile.tokens - 1, next);
    at_end += __shfl_sync(0xFFFFFFFF, through.y, 0);
    if (!first) at_start += __shfl_sync(0xFFFFFFFF, through.y, 16);
    const double through_gates = __shfl_sync(0xFFFFFFFF, through.x, 0);
    // What enters through the final state is not a pair: no later clock rotates it.
    double final_clock = p.grad_final_clock != nullptr ? p.grad_final_clock[tile.sequence * p.in.H + h] : 0.0;
    if (p.grad_final_k != nullptr || p.grad_final_v != nullptr) {
      const int last_index = p.in.first_tile[tile.sequence + 1] - 1;
      const Tile last = p.in.tile[last_index];
      const int64_t last_start = h * p.in.T + last.token;
      final_clock -= lanes_sum<32>(crossing_of(last_start, last.tokens));
      final_clock -= passing<kSections>(w, last_index * int64_t{p.in.H} + h, last_start + last.tokens - 1, next).y;
    }
    // Exclusive prefix sums over the lanes.
    const auto before_lane = [](const double(&x)[4], double& all) {
      const double mine = (x[0] + x[1]) + (x[2] + x[3]);
      const double sum = warp_scan(mine);
      all = __shfl_sync(0xFFFFFFFF, sum, 31);
      return sum - mine;
    };
    double all_written, all_later, all_clocks;
    double written_before = before_lane(written, all_written);
    double later_from = before_lane(later, all_later);
    double clocks_from = before_lane(clock, all_clocks);
    later_from = all_later - later_from;
    clocks_from = all_clocks - clocks_from;
    const double missed = !first || p.in.initial_k == nullptr ? (at_end + all_clocks - at_start) / tile.tokens : 0.0;
    float x[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[0][i] = static_cast<float>(later_from + written_before + through_gates);
      written_before += written[i];
      later_from -= later[i];
      const double parted = at_end + clocks_from - missed * (real - i) + final_clock;
      clocks_from -= clock[i];
      x[1][i] = static_cast<float>(parted);
      if (first && lane == 0 && i == 0 && p.d_initial_clock != nullptr) p.d_initial_clock[tile.sequence * p.in.H + h] = parted;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) *reinterpret_cast<float4*>(to + n * kHeads * kPitch) = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kTiles * 2; ++k) {
    const Place place(p, anew(first_of_block), heads, k);
    if (!place.some) continue;
    const auto& x = results[k / 2];
    // The gradient has a factor alpha, which the sums reproduce only up to rounding.
    p.d_log_alpha[place.at] = x[3][place.head][place.i] < -60.0F ? 0.0F : x[0][place.head][place.i];
    p.d_delta[place.at] = x[1][place.head][place.i];
    p.d_beta[place.at] = x[2][place.head][place.i];
  }
}

constexpr int kWeightColumns = 8;  // columns of the norm weights that a block sums
__host__ __device__ inline int weight_parts(const Sm90BackwardParams& p) { return p.in.K / kWeightColumns; }

// Gradients of the norm weights over all rows, 32 threads per column. Only the product of both weights affects the loss, so one sum from
// the key pass, times the other weight, serves both. With normalise_first each weight has its own sum.
__device__ __forceinline__ void sum_weights(const Sm90BackwardParams& p, const Workspace& w, int block, int64_t rows, int64_t next) {
  __shared__ float sums[kWarps][kWeightColumns];
  const bool apart = normalises_first(p.in);
  const int64_t K = p.in.K;
  const int which = block / weight_parts(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = block % weight_parts(p) * kWeightColumns + lane % kWeightColumns;
  constexpr int kStep = kThreads / kWeightColumns;
  const float* from = w.d_weights + which * rows * K + column;
  float sum = 0.0F;
#pragma unroll 16
  for (int64_t i = threadIdx.x / kWeightColumns; i < rows; i += kStep) sum += from[i * K];
  if (next > 0 && !apart) {
    for (int64_t i = threadIdx.x / kWeightColumns; i < rows; i += kStep) sum += from[next + i * K];
  }
#pragma unroll
  for (int bit = kWeightColumns; bit < 32; bit *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, bit);
  if (lane < kWeightColumns) sums[warp][lane] = sum;
  __syncthreads();
  if (threadIdx.x >= kWeightColumns) return;
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  if (p.d_k_norm_weight != nullptr && (!apart || which == 0)) {
    p.d_k_norm_weight[column] = apart || p.in.q_norm_weight == nullptr ? sum : sum * p.in.q_norm_weight[column];
  }
  if (p.d_q_norm_weight != nullptr && (!apart || which == 1)) {
    p.d_q_norm_weight[column] = apart || p.in.k_norm_weight == nullptr ? sum : sum * p.in.k_norm_weight[column];
  }
}

constexpr int kStripRows = 8;  // rows of the table's gradient per block: four, and the four that are eight further on

// The readout's gradient dR = dA Phi^T for a strip of rows. First sums the thread blocks' partial dA, which are stored in the register
// order of the accumulators (sm90/wgmma.cuh), one quarter of the table at a time (with one section, all of it). Then multiplies by Phi^T:
// slots s and m - s share the cosines, and the sines up to sign.
template <int kSections>
__device__ __forceinline__ void readout_gradient(const Sm90BackwardParams& p, const Workspace& w, int h, int strip, int blocks) {
  __shared__ float4 table[kM][kStripRows / 2];  // per frequency: cosine and sine of a row, then of the row eight further on
  const int thread = static_cast<int>(threadIdx.x);
  const int m = p.in.M - 1;
  const int in_warp = strip % 2 * 16 + thread % 16;
  const int from = thread / 16 * kThreads + strip / 2 % kWarps * 32 + in_warp;
#pragma unroll 1
  for (int section = 0; section < kSections; ++section) {
    const int unit = (h * kSections + strip / (2 * kWarps)) * kSections + section;
    const float4* parts = w.d_tables + static_cast<int64_t>(unit) * (kM * kM / 4) + from;
    const int64_t step = static_cast<int64_t>(p.in.H) * kSections * kSections * (kM * kM / 4);
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 11
    for (int b = 0; b < blocks; ++b) {
      const float4 x = parts[b * step];
      sum.x += x.x;
      sum.y += x.y;
      sum.z += x.z;
      sum.w += x.w;
    }
    table[section * (kM / 2) + thread / 16 * 4 + thread % 4][thread % 16 / 4] = sum;
  }
  __syncthreads();
  const int pair = thread / (kM / 2);
  const int row = strip / 2 * 16 + strip % 2 * 4 + pair;
  const float scale = w.slots.paired;
  float* to = p.d_readout + (static_cast<int64_t>(h) * m + row) * m;
  for (int s = thread % (kM / 2); s < p.in.M / 2; s += kM / 2) {
    float sine1, cosine1;
    sincospif(2.0F * static_cast<float>(s) / static_cast<float>(m), &sine1, &cosine1);
    float sine = sine1;
    float cosine = cosine1;
    const float4 constant = table[0][pair];
    float2 even = make_float2(constant.x * w.slots.constant, constant.z * w.slots.constant);
    float2 odd = make_float2(0.0F, 0.0F);
#pragma unroll 4
    for (int j = 1; j < p.in.M / 2; ++j) {
      const float4 x = table[j][pair];
      even.x = fmaf(x.x * scale, cosine, even.x);
      even.y = fmaf(x.z * scale, cosine, even.y);
      odd.x = fmaf(x.y * scale, sine, odd.x);
      odd.y = fmaf(x.w * scale, sine, odd.y);
      const float turned = cosine * cosine1 - sine * sine1;
      sine = sine * cosine1 + cosine * sine1;
      cosine = turned;
    }
    const auto store = [&](float* at, float x, float y) {
      at[s] = x + y;
      if (s > 0) at[m - s] = x - y;
    };
    if (row < m) store(to, even.x, odd.x);
    if (row + 8 < m) store(to + 8 * m, even.y, odd.y);
  }
}

// The independent reductions after the passes, assigned to ranges of blocks, longest first: the readout's gradient, the norm weights'
// gradients, and the token gradients (two tiles and four heads per block).
template <int kSections>
__global__ void __launch_bounds__(kThreads, kSections == 1 ? 3 : 2)
    cyclic_flow_backward_sums_sm90(const __grid_constant__ Sm90BackwardParams p, const __grid_constant__ Workspace w, int blocks,
                                   int64_t weight_rows, int64_t next) {
  int block = static_cast<int>(blockIdx.x);
  if (block == 0 && p.d_initial_clock != nullptr) {  // sequences without tokens
    for (int i = static_cast<int>(threadIdx.x); i < p.in.N * p.in.H; i += kThreads) {
      const int n = i / p.in.H;
      if (p.in.first_tile[n] == p.in.first_tile[n + 1]) p.d_initial_clock[i] = p.grad_final_clock != nullptr ? p.grad_final_clock[i] : 0.0;
    }
  }
  const int readout_blocks = p.in.H * kSections * kM / kStripRows;
  if (block < readout_blocks) {
    readout_gradient<kSections>(p, w, block % p.in.H, block / p.in.H, blocks);
    return;
  }
  block -= readout_blocks;
  const int weight_blocks = (normalises_first(p.in) ? 2 : 1) * weight_parts(p);
  if (block < weight_blocks) {
    sum_weights(p, w, block, weight_rows, next);
    return;
  }
  token_gradients<kSections>(p, w, block - weight_blocks, next);
}

}  // namespace

cudaError_t backward_sums(const Sm90BackwardParams& p, cudaStream_t stream) {
  const Workspace w = workspace_of(p);
  const int sections = sm90_sections(p.in.M);
  const int sums = p.in.H * sections * kM / kStripRows + (normalises_first(p.in) ? 2 : 1) * weight_parts(p) +
                   (p.in.tiles + kTiles - 1) / kTiles * ((p.in.H + kHeads - 1) / kHeads);
  const int64_t next = sections > 1 ? w.bytes / static_cast<int64_t>(sizeof(float)) : 0;
  const auto kernel = sections == 1 ? cyclic_flow_backward_sums_sm90<1> : cyclic_flow_backward_sums_sm90<2>;
  kernel<<<sums, kThreads, 0, stream>>>(p, w, table_blocks(p), weight_rows(p), next);
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
    if (status == cudaSuccess) status = backward_through(sections[section], stream);
    if (status == cudaSuccess) status = backward_passes(sections[section], stream);
  }
  if (status == cudaSuccess && two) status = backward_join(sections, stream);
  if (status == cudaSuccess && normalises_first(p.in)) status = backward_norms(p, stream);
  return status == cudaSuccess ? backward_sums(p, stream) : status;
}

}  // namespace cyfa::cyclic_flow
