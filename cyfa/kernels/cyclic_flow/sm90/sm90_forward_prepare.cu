// The first launch of the Hopper forward: the clock and cumulative gate of every token (thread blocks of eight tiles and four heads), and
// the readout table R Phi in half precision (thread blocks of eight rows). For long sequences a launch of its own (advance) first sums
// delta over each tile. Called by sm90_forward.cu. Overwrites turn, gate, advance, weight, table, table_unit and the zero state of the
// workspace, and the final clocks.
//
// There is little arithmetic here, and code that runs once is limited by instruction fetch, so loops off the critical path stay rolled.
#include <cuda_runtime.h>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_parts.cuh"

namespace cyfa::cyclic_flow {
namespace {

constexpr int kHeads = 4;  // heads per block: a token's heads are adjacent in memory
constexpr int kGroup = 8;  // tiles per block, counted from the sequence's first tile, so a sequence's summation order is its own
constexpr int kThreads = 32 * kGroup * kHeads;
constexpr int kWarps = kThreads / 32;
constexpr int kAtOnce = kThreads / (kC * kHeads);  // tiles that the block reads at a time
constexpr int kPitch = kC + 8;                     // pitch of a head's tokens in shared memory: the heads use different banks
static_assert(kC == 4 * 32 && kWarps == 32);       // a warp sums one tile of one head, four tokens per lane
constexpr int kTableRows = 8;

__device__ __forceinline__ double shuffled(double x, int bit) { return __shfl_xor_sync(0xFFFFFFFF, x, bit); }

// Block-wide sums for each of four heads; thread x holds token x / 4 and head x % 4.
struct HeadSums {
  double parts[kWarps][kHeads];

  __device__ __forceinline__ void put(double x) {
#pragma unroll
    for (int bit = kHeads; bit < 32; bit *= 2) x += shuffled(x, bit);
    if (threadIdx.x % 32 < kHeads) parts[threadIdx.x / 32][threadIdx.x % 32] = x;
  }
  // Called by whole warps, after a block barrier.
  __device__ __forceinline__ double of(int head) const {
    double x = parts[threadIdx.x % 32][head];
#pragma unroll
    for (int bit = 1; bit < kWarps; bit *= 2) x += shuffled(x, bit);
    return x;
  }
};

// Exclusive prefix sum over the lanes; `total` is the sum over all.
__device__ __forceinline__ double warp_sum_before(double x, double& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double y = __shfl_up_sync(0xFFFFFFFF, x, d);
    if (lane >= d) x += y;
  }
  total = __shfl_sync(0xFFFFFFFF, x, 31);
  const double before = __shfl_up_sync(0xFFFFFFFF, x, 1);
  return lane > 0 ? before : 0.0;
}

__global__ void __launch_bounds__(kThreads) cyclic_flow_forward_advance_sm90(const __grid_constant__ Sm90ForwardParams p) {
  __shared__ HeadSums sums;
  const int index = static_cast<int>(blockIdx.x);
  const int heads = static_cast<int>(blockIdx.y) * kHeads;
  const int i = static_cast<int>(threadIdx.x) / kHeads;
  const int h = heads + static_cast<int>(threadIdx.x) % kHeads;
  const Tile tile = p.tile[index];
  sums.put(i < tile.tokens && h < p.H ? static_cast<double>(p.delta[(tile.token + i) * p.H + h]) : 0.0);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= kHeads || heads + warp >= p.H) return;
  const double sum = sums.of(warp);
  if (threadIdx.x % 32 == 0) workspace_of(p).advance[static_cast<int64_t>(heads + warp) * p.tiles + index] = sum;
}

struct TileShared {
  float given[2][kGroup][kHeads][kPitch];
  HeadSums passed;
  double during[kGroup][kHeads];
};

// Clocks and cumulative gates of the group of tiles that starts with tile `index`. A sequence's tiles are consecutive; all but the last
// are full.
__device__ __forceinline__ void prepare_tiles(const Sm90ForwardParams& p, const Workspace& w, TileShared& s, int index, int heads,
                                              double frequency) {
  const Tile start = p.tile[index];
  const int first = p.first_tile[start.sequence];
  const int end = p.first_tile[start.sequence + 1];
  const auto tokens_of = [&](int j) {
    const Tile tile = p.tile[min(index + j, p.tiles - 1)];
    return index + j < p.tiles && tile.sequence == start.sequence ? tile.tokens : 0;
  };
  {
    const int i = static_cast<int>(threadIdx.x) / kHeads;
    const int head = static_cast<int>(threadIdx.x) % kHeads;
    const int h = heads + head;
    const int step = kAtOnce * kC * p.H;
    const int64_t at = (start.token + i) * p.H + h;
    float delta[kGroup / kAtOnce];
    float gate[kGroup / kAtOnce];
#pragma unroll
    for (int j = 0; j < kGroup / kAtOnce; ++j) {
      const bool real = h < p.H && i % kC < tokens_of(j * kAtOnce + i / kC);
      delta[j] = real ? p.delta[at + j * step] : 0.0F;
      gate[j] = real ? p.log_alpha[at + j * step] : 0.0F;
    }
    double passed = 0.0;
    if (h < p.H && end - first > kSumTiles) {
#pragma unroll 1
      for (int t = first + i; t < index; t += kAtOnce * kC) passed += w.advance[static_cast<int64_t>(h) * p.tiles + t];
    } else if (h < p.H) {  // few enough tiles to sum again, which saves a launch
      constexpr int kLoads = 12;
      const float* from = p.delta + at - static_cast<int64_t>((index - first) / kAtOnce) * step;
#pragma unroll 1
      for (int left = (index - first) / kAtOnce; left > 0; left -= kLoads) {
        float x[kLoads];
#pragma unroll
        for (int t = 0; t < kLoads; ++t, from += step) x[t] = t < left ? *from : 0.0F;
#pragma unroll
        for (int t = 0; t < kLoads; ++t) passed += static_cast<double>(x[t]);
      }
    }
#pragma unroll
    for (int j = 0; j < kGroup / kAtOnce; ++j) {
      const int tile = j * kAtOnce + i / kC;
      s.given[0][tile][head][i % kC] = delta[j];
      s.given[1][tile][head][i % kC] = gate[j] < -1000.0F ? -1000.0F : gate[j];  // exp is 0 there; a NaN stays NaN
    }
    s.passed.put(passed);
  }
  __syncthreads();
  const int j = static_cast<int>(threadIdx.x) / 32 / kHeads;
  const int head = static_cast<int>(threadIdx.x) / 32 % kHeads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int h = heads + head;
  float* mine[2] = {s.given[0][j][head], s.given[1][j][head]};
  // Inclusive sums over the lane's four tokens.
  double clock[4];
  double gate[4];
  const auto sums_of = [&](const float* from, double(&x)[4]) {
    const float4 four = *reinterpret_cast<const float4*>(from + 4 * lane);
    x[0] = static_cast<double>(four.x);
    x[1] = x[0] + static_cast<double>(four.y);
    x[2] = x[1] + static_cast<double>(four.z);
    x[3] = x[2] + static_cast<double>(four.w);
  };
  sums_of(mine[0], clock);
  sums_of(mine[1], gate);
  double total, unused;
  const double clock_before = warp_sum_before(clock[3], total);
  const double gate_before = warp_sum_before(gate[3], unused);
  double before = s.passed.of(head);
  if (lane == 0) s.during[j][head] = total;
  __syncthreads();
  const int tokens = tokens_of(j);
  if (h >= p.H || tokens == 0) return;
  if (p.initial_clock != nullptr) before += p.initial_clock[start.sequence * p.H + h];
#pragma unroll 1
  for (int i = 0; i < j; ++i) before += s.during[i][head];
  if (lane == 0 && index + j + 1 == end) p.final_clock[start.sequence * p.H + h] = before + total;
  // Reordered by token through the shared memory that held the tile's inputs, for coalesced stores.
  uint32_t turn[4];
  float high[4];
  float low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Avoids slow conversions: after adding 2^20, the low 32 bits of a double are the fraction in units of 2^-32; and a double with its low
    // 29 mantissa bits cleared is exactly a float.
    const double turns = (before + clock_before + clock[i]) * frequency;
    turn[i] = static_cast<uint32_t>(__double2loint((turns - floor(turns)) + 1048576.0));
    const double doublings = (gate_before + gate[i]) * 1.4426950408889634;
    const double upper = __hiloint2double(__double2hiint(doublings), __double2loint(doublings) & ~0x1FFFFFFF);
    high[i] = static_cast<float>(upper);
    low[i] = static_cast<float>(doublings - upper);
  }
  const auto in_order = [&](float* place, auto(&x)[4]) {
    __syncwarp();
    *reinterpret_cast<float4*>(place + 4 * lane) = *reinterpret_cast<const float4*>(x);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const std::remove_reference_t<decltype(x[i])>*>(place + 32 * i + lane);
  };
  in_order(mine[0], turn);
  in_order(mine[1], high);
  in_order(mine[0], low);
  const int64_t at = h * p.T + start.token + j * kC + lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (32 * i + lane < tokens) {
      w.turn[at + 32 * i] = turn[i];
      w.gate[at + 32 * i] = make_float2(high[i], low[i]);
    }
  }
}

struct TableShared {
  float4 folded[kM][kTableRows / 2 + 1];  // per slot s and pair of rows: R[s] + R[m - s] of both rows, then R[s] - R[m - s]
  float4 parts[kThreads];
  unsigned tops[kWarps];
};

// kTableRows rows of one head's R Phi, divided by a power of two above max |R| so that half precision covers tables of any magnitude. Rows
// of R Phi have the same norm as rows of R, so every scaled row has a norm below sqrt(m), which backward's products with it rely on, and
// the largest entry is above 2^-6. Phi at slot s and frequency j is the cosine or sine of s j / m turns; slots s and m - s share both up to
// the sine's sign.
__device__ __forceinline__ void prepare_table(const Sm90ForwardParams& p, const Workspace& w, TableShared& shared, int h, int strip) {
  const int m = p.M - 1;
  const int wide = sm90_sections(p.M) - 1;  // 1 with two sections, else 0
  const int thread = static_cast<int>(threadIdx.x);
  const float* readout = p.readout + static_cast<int64_t>(h) * m * m;
  {
    constexpr int kStep = kThreads / kTableRows;  // the largest number of slots after folding
    static_assert(kStep == kM);
    const int r = thread / kStep;
    const int s = thread % kStep;
    const bool real = strip * kTableRows + r < m && s < p.M / 2;
    const float* row = readout + (strip * kTableRows + r) * m;
    const float x = real ? row[s] : 0.0F;
    const float y = real && s > 0 ? row[m - s] : 0.0F;
    unsigned top = 0;
#pragma unroll 1
    for (int i = thread; i < m * m; i += 8 * kThreads) {
#pragma unroll
      for (int k = 0; k < 8 * kThreads; k += kThreads) top = max(top, i + k < m * m ? __float_as_uint(readout[i + k]) << 1 : 0);
    }
    top = __reduce_max_sync(0xFFFFFFFF, top);
    if (thread % 32 == 0) shared.tops[thread / 32] = top;
    float* to = &shared.folded[s][r / 2].x + r % 2;
    to[0] = x + y;
    to[2] = x - y;
  }
  __syncthreads();
  const float top = __uint_as_float(__reduce_max_sync(0xFFFFFFFF, shared.tops[thread % 32]) >> 1);
  const int exponent = top > 1e-30F && top < 1e30F ? ilogbf(top) + 1 : 0;
  if (strip == 0 && thread == 0) w.table_unit[h] = exp2f(static_cast<float>(exponent));

  // Each thread computes one frequency of two rows over a part of the slots: one of four parts, or of two with two sections, which have
  // twice as many frequencies.
  const int pairs = kM / 2 << wide;
  const int j = thread & (pairs - 1);
  const int pair = thread / (kM / 2) >> wide & (kTableRows / 2 - 1);
  const int part = thread / (kM / 2 * kTableRows / 2) >> wide;
  constexpr int kSlots = kM / 8;  // slots per part; four times as many with two sections
  const int slots = kSlots << 2 * wide;
  static_assert(kSlots * 4 == kM / 2);
  const float turn = 2.0F / static_cast<float>(m);
  float sine, cosine, sine1, cosine1;
  sincospif(turn * static_cast<float>(j), &sine1, &cosine1);
  sincospif(turn * static_cast<float>(part * slots * j % m), &sine, &cosine);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 4
  for (int s = part * slots; s < (part + 1) * slots; ++s) {
    const float4 x = shared.folded[s][pair];
    sum.x = fmaf(x.x, cosine, sum.x);
    sum.y = fmaf(x.y, cosine, sum.y);
    sum.z = fmaf(x.z, sine, sum.z);
    sum.w = fmaf(x.w, sine, sum.w);
    const float next = cosine * cosine1 - sine * sine1;
    sine = sine * cosine1 + cosine * sine1;
    cosine = next;
  }
  shared.parts[thread] = sum;
  __syncthreads();
  if (part > 0) return;
#pragma unroll 1
  for (int i = thread + (pairs * kTableRows / 2); i < kThreads; i += pairs * kTableRows / 2) {
    const float4 x = shared.parts[i];
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
  }
  const float factor = exp2f(static_cast<float>(-exponent)) * (j == 0 ? w.slots.constant : w.slots.paired);
  const bool stored = 2 * j < p.M;
  uint32_t* to = reinterpret_cast<uint32_t*>(w.table) + (static_cast<int64_t>(h) * 2 * pairs + strip * kTableRows + 2 * pair) * pairs + j;
  to[0] = stored ? sm90::pack_half(sum.x * factor, sum.z * factor) : 0;
  to[pairs] = stored ? sm90::pack_half(sum.y * factor, sum.w * factor) : 0;
}

__device__ __forceinline__ void prepare_rest(const Sm90ForwardParams& p, const Workspace& w) {
#pragma unroll 1
  for (int i = threadIdx.x; i < p.K; i += kThreads) {
    w.weight[i] = (p.q_norm_weight != nullptr ? p.q_norm_weight[i] : 1.0F) * (p.k_norm_weight != nullptr ? p.k_norm_weight[i] : 1.0F);
  }
  for (int section = 0; section < sm90_sections(p.M); ++section) {
    const int64_t states = static_cast<int64_t>(p.tiles) * p.H * 2;
    const int size = kM * state_width(p);
    uint4* zeros = reinterpret_cast<uint4*>(w.states + (section * (states + 1) + states) * size);
#pragma unroll 1
    for (int i = threadIdx.x; i < size / 8; i += kThreads) zeros[i] = make_uint4(0, 0, 0, 0);
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < p.N * p.H; i += kThreads) {
    const int n = i / p.H;
    if (p.first_tile[n] == p.first_tile[n + 1]) p.final_clock[i] = p.initial_clock != nullptr ? p.initial_clock[i] : 0.0;
  }
}

__host__ __device__ int table_blocks(const Sm90ForwardParams& p) { return p.H * static_cast<int>(sm90_filled_slots(p.M)) / kTableRows; }
__host__ __device__ int head_groups(const Sm90ForwardParams& p) { return (p.H + kHeads - 1) / kHeads; }

__global__ void __launch_bounds__(kThreads)
    cyclic_flow_forward_prepare_sm90(const __grid_constant__ Sm90ForwardParams p, int candidates, double frequency) {
  __shared__ union Shared {
    __device__ Shared() {}
    TileShared tiles;
    TableShared table;
  } shared;
  const Workspace w = workspace_of(p);
  int block = static_cast<int>(blockIdx.x);
  if (block < table_blocks(p)) {
    prepare_table(p, w, shared.table, block % p.H, block / p.H);
    return;
  }
  block -= table_blocks(p);
  if (block == 0) {
    prepare_rest(p, w);
    return;
  }
  // Whether a candidate tile starts a group depends on first_tile[tile.sequence], a dependent load: the prefetch overlaps both latencies.
  if (static_cast<int>(threadIdx.x) * 32 <= p.N) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.first_tile + threadIdx.x * 32));
  const int first = (block - 1) / head_groups(p) * candidates;
  const int candidate = min(static_cast<int>(threadIdx.x) % 32, candidates - 1);
  const int tile = min(first + candidate, p.tiles - 1);
  const bool here = tile == first + candidate && (tile - p.first_tile[p.tile[tile].sequence]) % kGroup == 0;
  unsigned begins = __ballot_sync(0xFFFFFFFF, here) & ((1U << candidates) - 1);
#pragma unroll 1
  for (; begins != 0; begins &= begins - 1) {
    prepare_tiles(p, w, shared.tiles, first + __ffs(static_cast<int>(begins)) - 1, (block - 1) % head_groups(p) * kHeads, frequency);
    __syncthreads();
  }
}

}  // namespace

cudaError_t sm90_forward_prepare(const Sm90ForwardParams& p, cudaStream_t stream) {
  if (longest_of(p) > kSumTiles) {
    const dim3 blocks(static_cast<unsigned>(p.tiles), static_cast<unsigned>(head_groups(p)));
    cyclic_flow_forward_advance_sm90<<<blocks, kThreads, 0, stream>>>(p);
  }
  // A block searches as many tiles as a group has and finds one group start, unless sequences are short: then one tile.
  const int candidates = p.tiles < p.N * kGroup ? 1 : kGroup;
  const int blocks = table_blocks(p) + 1 + (p.tiles + candidates - 1) / candidates * head_groups(p);
  cyclic_flow_forward_prepare_sm90<<<blocks, kThreads, 0, stream>>>(p, candidates, 1.0 / (p.M - 1));
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow
