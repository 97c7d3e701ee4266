// Forward of cyclic_flow on Hopper (eq:app-cyfa-key-chunk, eq:cyfa-two-pass, eq:app-cyfa-value-chunk) in three launches:
//   prepare   clocks and gate sums of every token (one block a sequence and head)
//   states    walks a sequence and stores both states at every tile's start (one block a sequence, head and state)
//   outputs   everything else, tile by tile, with no dependence between blocks
// Overwrites o, the final states and the workspace.
#include <cuda_runtime.h>

#include "cyfa/kernels/cyclic_flow/sm90_forward.h"
#include "cyfa/kernels/hopper/wgmma.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace hopper;

constexpr int kC = kTileTokens;  // tokens of a tile
constexpr int kM = 128;          // stored slots
constexpr int kD = 256;          // widths of keys and values
constexpr int kThreads = 256;    // two warpgroups
constexpr int kHalf = 64;        // tokens that the states kernel takes at a time
constexpr float kRadians = 1.4629180792671596e-9F;  // 2 pi / 2^32

struct Workspace {
  uint32_t* turn;  // [H, T] clock modulo m in units of m / 2^32: a product with j wraps just as the angle does
  float2* gate;    // [H, T] sum of log_alpha from the tile's start, as high and low part
  bf16* states;    // [tiles, H, 2, M, D] at the tile's start: keys, values; slots by columns
};

__host__ __device__ int64_t align_up(int64_t x) { return (x + 1023) / 1024 * 1024; }

__host__ __device__ Workspace workspace_of(const Sm90ForwardParams& p) {
  char* base = static_cast<char*>(p.workspace);
  Workspace w;
  w.turn = reinterpret_cast<uint32_t*>(base);
  base += align_up(p.T * p.H * 4);
  w.gate = reinterpret_cast<float2*>(base);
  base += align_up(p.T * p.H * 8);
  w.states = reinterpret_cast<bf16*>(base);
  return w;
}

__device__ __forceinline__ bf16* tile_state(const Workspace& w, const Sm90ForwardParams& p, int tile, int h, int which) {
  return w.states + ((static_cast<int64_t>(tile) * p.H + h) * 2 + which) * kM * kD;
}

// Inclusive sum over the block's threads; `total` is the sum of all.
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
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += shared[i];
    total += shared[i];
  }
  return x + before;
}

__global__ void __launch_bounds__(kThreads) cyclic_flow_forward_prepare_sm90(const __grid_constant__ Sm90ForwardParams p) {
  __shared__ double sums[kThreads / 32];
  const Workspace w = workspace_of(p);
  const int h = blockIdx.x % p.H;
  const int n = blockIdx.x / p.H;
  const int first = p.first_tile[n];
  const int last = p.first_tile[n + 1];
  double clock = p.initial_clock != nullptr ? p.initial_clock[n * p.H + h] : 0.0;
  const double m = p.M - 1;
  // Two tiles at a time: half a block each for the gates, whole blocks for the clock.
  for (int t = first; t < last; t += kThreads / kC) {
    const int mine = t + threadIdx.x / kC;
    const int i = threadIdx.x % kC;
    const bool real = mine < last && i < p.tile[min(mine, last - 1)].tokens;
    const int64_t token = real ? p.tile[mine].token + i : 0;
    const double delta = real ? static_cast<double>(p.delta[token * p.H + h]) : 0.0;
    const float given = real ? p.log_alpha[token * p.H + h] : 0.0F;
    const double gate = given < -1000.0F ? -1000.0 : static_cast<double>(given);  // exp is 0 there; a NaN stays one
    double total;
    const double now = clock + block_scan(delta, sums, total);
    clock += total;
    double unused;
    double sum = block_scan(gate, sums, unused);
    // The second tile's sums start anew.
    __syncthreads();
    if (threadIdx.x == kC - 1) sums[0] = sum;
    __syncthreads();
    if (threadIdx.x >= kC) sum -= sums[0];
    if (real) {
      const double turns = now / m;
      w.turn[h * p.T + token] = static_cast<uint32_t>(static_cast<uint64_t>((turns - floor(turns)) * 4294967296.0));
      const float high = static_cast<float>(sum);
      w.gate[h * p.T + token] = make_float2(high, static_cast<float>(sum - static_cast<double>(high)));
    }
  }
  if (threadIdx.x == 0) p.final_clock[n * p.H + h] = clock;
}

__device__ __forceinline__ float slot_norm(int slot) {
  constexpr float m = kM - 1;
  return slot == 0 ? rsqrtf(m) : slot == 1 ? 0.0F : rsqrtf(0.5F * m);
}

__device__ __forceinline__ float gate_between(float2 later, float2 earlier) {
  return __expf((later.x - earlier.x) + (later.y - earlier.y));
}

// Rows of a [rows, D] bf16 tile from memory, 16 bytes a thread and time; rows from `real` on become zero.
template <int kRows, int kBy = kThreads>
__device__ __forceinline__ void load_rows(uint32_t tile, const bf16* from, int64_t stride, int real) {
#pragma unroll 4
  for (int i = 0; i < kRows * (kD / 8) / kBy; ++i) {
    const int index = i * kBy + threadIdx.x;
    const int row = index / (kD / 8);
    const int piece = index % (kD / 8);
    const bool valid = row < real;
    copy_async_16(tile + piece_offset(kRows, row, piece), from + (valid ? row * stride + piece * 8 : 0), valid);
  }
}

// In place: RMSNorm of a tile's rows, times weight and factor. A warp takes 8 rows, a lane one panel of a row: no bank is hit twice at once.
template <int kRows, int kBy = kThreads>
__device__ __forceinline__ void normalise_rows(char* tile, const float* weight, float eps, float factor) {
  const int lane = threadIdx.x % 32;
  const int panel = lane / 8;
#pragma unroll 1
  for (int row = threadIdx.x / 32 * 8 + lane % 8; row < kRows; row += kBy / 4) {
    // Twice through the row, a few pieces at a time: to keep it would cost registers that the kernels do not have.
    float sum = 0.0F;
#pragma unroll 2
    for (int i = 0; i < 8; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(tile + piece_offset(kRows, row, 8 * panel + i));
      const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 f = __bfloat1622float2(pairs[c]);
        sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
      }
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 8);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 16);
    const float rate = weight != nullptr ? factor * rsqrtf(sum / kD + eps) : factor;
#pragma unroll 2
    for (int i = 0; i < 8; ++i) {
      uint4* at = reinterpret_cast<uint4*>(tile + piece_offset(kRows, row, 8 * panel + i));
      uint4 x = *at;
      __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&x);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float2 w = make_float2(1.0F, 1.0F);
        if (weight != nullptr) w = __ldg(reinterpret_cast<const float2*>(weight) + (8 * panel + i) * 4 + c);
        const float2 f = __bfloat1622float2(pairs[c]);
        pairs[c] = __floats2bfloat162_rn(f.x * rate * w.x, f.y * rate * w.y);
      }
      *at = x;
    }
  }
}

// The four lanes of a quad hold two columns each of four neighbouring 8-column blocks; afterwards lane q holds the eight columns of block q.
__device__ __forceinline__ uint4 gather_quad(uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
  const int q = threadIdx.x % 4;
  uint32_t x = __shfl_xor_sync(0xFFFFFFFF, (q & 1) ? v0 : v1, 1);
  uint32_t y = __shfl_xor_sync(0xFFFFFFFF, (q & 1) ? v2 : v3, 1);
  if (q & 1) { v0 = x; v2 = y; } else { v1 = x; v3 = y; }
  x = __shfl_xor_sync(0xFFFFFFFF, (q & 2) ? v0 : v2, 2);
  y = __shfl_xor_sync(0xFFFFFFFF, (q & 2) ? v1 : v3, 2);
  if (q & 2) { v0 = x; v1 = y; } else { v2 = x; v3 = y; }
  return make_uint4(v0, v1, v2, v3);
}

// Stores rows `row` and `row + 8` of a 64 x N accumulator as bf16 rows of `width` columns.
template <int N>
__device__ __forceinline__ void store_rows(const float (&d)[N], bf16* row0, bf16* row8, bool valid0, bool valid8) {
#pragma unroll
  for (int i = 0; i < N / 4; i += 4) {
    uint32_t low[4];
    uint32_t high[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      low[b] = pack(d[4 * (i + b)], d[4 * (i + b) + 1]);
      high[b] = pack(d[4 * (i + b) + 2], d[4 * (i + b) + 3]);
    }
    const uint4 x = gather_quad(low[0], low[1], low[2], low[3]);
    const uint4 y = gather_quad(high[0], high[1], high[2], high[3]);
    const int column = 8 * (i + threadIdx.x % 4);
    if (valid0) *reinterpret_cast<uint4*>(row0 + column) = x;
    if (valid8) *reinterpret_cast<uint4*>(row8 + column) = y;
  }
}

constexpr int kStages = 3;
constexpr int kStageBytes = kHalf * kD * 2;
constexpr int kStageWrites = kHalf * kM * 2;
constexpr int kStatesThreads = 384;  // a producing warpgroup and two that hold the state

struct StatesShared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float whole[kStages];  // decay over the tile
};

constexpr int kStatesBytes = kStages * (kStageBytes + kStageWrites) + 1024 + static_cast<int>(sizeof(StatesShared));

// The tokens of one walk, half a tile at a time.
struct Halves {
  const Sm90ForwardParams& p;
  int first, count;

  __device__ Tile tile(int half) const { return p.tile[first + half / 2]; }
  __device__ int64_t token(int half) const { return tile(half).token + (half & 1) * kHalf; }
  __device__ int real(int half) const { return max(0, min(kHalf, tile(half).tokens - (half & 1) * kHalf)); }
};

// Fills the stages: keys (normalised) or values, and the write vectors with their decay to the tile's end.
__device__ __forceinline__ void produce_states(const Sm90ForwardParams& p, const Workspace& w, const Halves& halves, int h, bool keys, char* tiles,
                                               char* writes, StatesShared& s) {
  const bf16* x = static_cast<const bf16*>(keys ? p.k : p.v) + h * kD;
  const int64_t stride = keys ? p.k_stride : p.v_stride;
  const auto load = [&](int half) {
    if (half < halves.count) {
      load_rows<kHalf, 128>(shared_address(tiles + half % kStages * kStageBytes), x + halves.token(half) * stride, stride, halves.real(half));
    }
    copy_async_commit();
  };
  const int row = threadIdx.x / 2;
  const int piece0 = 8 * (threadIdx.x % 2);
  struct Row {
    uint32_t turn;
    float2 gate, end;
    float beta;
  };
  const auto fetch = [&](int half) {
    Row r = {0, make_float2(0.0F, 0.0F), make_float2(0.0F, 0.0F), 0.0F};
    if (half < halves.count) {
      const Tile tile = halves.tile(half);
      const int64_t token = halves.token(half) + row;
      r.end = w.gate[h * p.T + tile.token + tile.tokens - 1];
      if (row < halves.real(half)) {
        r.turn = w.turn[h * p.T + token];
        r.gate = w.gate[h * p.T + token];
        r.beta = p.beta[token * p.H + h];
      }
    }
    return r;
  };
  load(0);
  load(1);
  Row now = fetch(0);
  for (int half = 0; half < halves.count; ++half) {
    const int stage = half % kStages;
    if (half >= 1) barrier_wait(&s.empty[(half + 2) % kStages], (half - 1) / kStages & 1);
    load(half + 2);
    const Row next = fetch(half + 1);
    const float factor = now.beta * gate_between(now.end, now.gate);
    const float norm = factor * slot_norm(2);
    char* to = writes + stage * kStageWrites;
#pragma unroll 1
    for (int piece = piece0; piece < piece0 + 8; ++piece) {
      uint32_t packed[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float sine, cosine;
        __sincosf(static_cast<float>(static_cast<int32_t>(now.turn * static_cast<uint32_t>(4 * piece + c))) * kRadians, &sine, &cosine);
        packed[c] = pack(norm * cosine, -norm * sine);
      }
      if (piece == 0) packed[0] = pack(factor * slot_norm(0), 0.0F);
      *reinterpret_cast<uint4*>(to + piece_offset(kHalf, row, piece)) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
    if (threadIdx.x == 0) s.whole[stage] = __expf(now.end.x);
    copy_async_wait<2>();
    named_barrier(1, 128);
    if (keys && p.k_norm_weight != nullptr) normalise_rows<kHalf, 128>(tiles + stage * kStageBytes, p.k_norm_weight, p.norm_eps, 1.0F);
    fence_async_proxy();
    barrier_arrive(&s.full[stage]);
    now = next;
  }
}

// Where register i of a thread's state lies in memory, from the thread's first place on: [K, M] for keys, [M, V] for values.
__device__ constexpr int key_place(int i) { return (8 * (i / 4) + i % 2) * kM + 8 * (i / 2 % 2); }
__device__ constexpr int value_place(int i) { return 8 * (i / 2 % 2) * kD + 8 * (i / 4) + i % 2; }

__global__ void __launch_bounds__(kStatesThreads, 1) cyclic_flow_forward_states_sm90(const __grid_constant__ Sm90ForwardParams p) {
  extern __shared__ char raw[];
  char* tiles = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  char* writes = tiles + kStages * kStageBytes;
  StatesShared& s = *reinterpret_cast<StatesShared*>(writes + kStages * kStageWrites);
  const Workspace w = workspace_of(p);
  const bool keys = blockIdx.y == 0;
  const int h = blockIdx.x % p.H;
  const int n = blockIdx.x / p.H;
  const int first = p.first_tile[n];
  const Halves halves = {p, first, 2 * (p.first_tile[n + 1] - first)};
  if (threadIdx.x < kStages) {
    barrier_init(&s.full[threadIdx.x], 128);
    barrier_init(&s.empty[threadIdx.x], 256);
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 120;");
    produce_states(p, w, halves, h, keys, tiles, writes, s);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
    const int group = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    const int slot = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and slot + 8
    const int column0 = 2 * (lane % 4);
    const int64_t base = (static_cast<int64_t>(n) * p.H + h) * kM * kD;
    const int64_t mine = base + (keys ? column0 * kM + slot : slot * kD + column0);
    float state[128];  // [64 slots, 256 columns] of this warpgroup
#pragma unroll
    for (int i = 0; i < 128; ++i) state[i] = 0.0F;
    if (keys && p.initial_k != nullptr) {
#pragma unroll
      for (int i = 0; i < 128; ++i) state[i] = p.initial_k[mine + key_place(i)];
    }
    if (!keys && p.initial_v != nullptr) {
#pragma unroll
      for (int i = 0; i < 128; ++i) state[i] = p.initial_v[mine + value_place(i)];
    }

    for (int half = 0; half < halves.count; ++half) {
      const int stage = half % kStages;
      if ((half & 1) == 0) {
        bf16* to = tile_state(w, p, first + half / 2, h, keys ? 0 : 1);
        store_rows(state, to + slot * kD, to + (slot + 8) * kD, true, true);
      }
      barrier_wait(&s.full[stage], half / kStages & 1);
      if ((half & 1) == 0) {
        const float whole = s.whole[stage];
#pragma unroll
        for (int i = 0; i < 128; ++i) state[i] *= whole;
      }
      const uint32_t at_x = shared_address(tiles + stage * kStageBytes);
      const uint32_t at_w = shared_address(writes + stage * kStageWrites);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kHalf / 16; ++kk) {
        wgmma<1, 1>(state, along_rows(at_w, kHalf, 16 * kk, 64 * group), along_rows(at_x, kHalf, 16 * kk, 0), 1);
      }
      wgmma_commit();
      wgmma_wait<0>();
      barrier_arrive(&s.empty[stage]);
    }
    if (keys) {
#pragma unroll
      for (int i = 0; i < 128; ++i) p.final_k[mine + key_place(i)] = state[i];
    } else {
#pragma unroll
      for (int i = 0; i < 128; ++i) p.final_v[mine + value_place(i)] = state[i];
    }
  }
}

constexpr int kRegion = kC * kD * 2;      // 64 KB: q then the tables; k then v; the key state then the value state
constexpr int kWriteBytes = kC * kM * 2;  // 32 KB

struct OutputsShared {
  float2 gate[kC];
  uint32_t turn[kC];
};

constexpr int kOutputsBytes = 3 * kRegion + kWriteBytes + static_cast<int>(sizeof(OutputsShared)) + 1024;

// Rotates the complex pairs of a 64 x 128 accumulator by sign * clock of their rows and packs them as the next product's a.
__device__ __forceinline__ void rotate_and_pack(const float (&d)[64], uint32_t turn0, uint32_t turn8, float sign, uint32_t (&a)[8][4]) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t j = 4 * i + q;
    float s0, c0, s8, c8;
    __sincosf(static_cast<float>(static_cast<int32_t>(turn0 * j)) * kRadians, &s0, &c0);
    __sincosf(static_cast<float>(static_cast<int32_t>(turn8 * j)) * kRadians, &s8, &c8);
    s0 *= sign;
    s8 *= sign;
    a[i / 2][i % 2 * 2] = pack(d[4 * i] * c0 - d[4 * i + 1] * s0, d[4 * i] * s0 + d[4 * i + 1] * c0);
    a[i / 2][i % 2 * 2 + 1] = pack(d[4 * i + 2] * c8 - d[4 * i + 3] * s8, d[4 * i + 2] * s8 + d[4 * i + 3] * c8);
  }
}

// Decay and causal mask of a 64 x 128 block of scores between tokens, packed as the next product's a. `row` is the first token row.
__device__ __forceinline__ void decay_and_pack(const float (&d)[64], int row, const float2* gate, uint32_t (&a)[8][4]) {
  const float2 gate0 = gate[row];
  const float2 gate8 = gate[row + 8];
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (i % 4 == 0) asm volatile("" ::: "memory");  // else all the loads come first, and registers run out
    const int t = 8 * i + 2 * q;
    const float2 e0 = gate[t];
    const float2 e1 = gate[t + 1];
    const float x00 = t <= row ? d[4 * i] * gate_between(gate0, e0) : 0.0F;
    const float x01 = t + 1 <= row ? d[4 * i + 1] * gate_between(gate0, e1) : 0.0F;
    const float x80 = t <= row + 8 ? d[4 * i + 2] * gate_between(gate8, e0) : 0.0F;
    const float x81 = t + 1 <= row + 8 ? d[4 * i + 3] * gate_between(gate8, e1) : 0.0F;
    a[i / 2][i % 2 * 2] = pack(x00, x01);
    a[i / 2][i % 2 * 2 + 1] = pack(x80, x81);
  }
}

template <int N>
__device__ __forceinline__ void scale_rows(float (&d)[N], float a0, float a8) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    d[i] *= a0;
    d[i + 1] *= a0;
    d[i + 2] *= a8;
    d[i + 3] *= a8;
  }
}

__global__ void __launch_bounds__(kThreads, 1) cyclic_flow_forward_outputs_sm90(const __grid_constant__ Sm90ForwardParams p) {
  extern __shared__ char raw[];
  char* region_q = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  char* region_k = region_q + kRegion;
  char* region_s = region_k + kRegion;
  char* writes = region_s + kRegion;
  OutputsShared& s = *reinterpret_cast<OutputsShared*>(writes + kWriteBytes);
  const uint32_t at_q = shared_address(region_q);
  const uint32_t at_k = shared_address(region_k);
  const uint32_t at_s = shared_address(region_s);
  const uint32_t at_w = shared_address(writes);
  const Workspace w = workspace_of(p);
  const int h = blockIdx.x % p.H;
  const int tile_index = blockIdx.x / p.H;
  const Tile tile = p.tile[tile_index];
  const bf16* table = static_cast<const bf16*>(p.table) + static_cast<int64_t>(h) * 2 * kM * kM;

  const auto rows_of = [&](const void* x, int64_t stride) { return static_cast<const bf16*>(x) + tile.token * stride + h * kD; };
  load_rows<kC>(at_q, rows_of(p.q, p.q_stride), p.q_stride, tile.tokens);
  load_rows<kC>(at_k, rows_of(p.k, p.k_stride), p.k_stride, tile.tokens);
  copy_async_commit();
  load_rows<kM>(at_s, tile_state(w, p, tile_index, h, 0), kD, kM);
  copy_async_commit();

  {
    const int i = threadIdx.x / 2;
    const bool real = i < tile.tokens;
    const int64_t at = h * p.T + tile.token + i;
    const uint32_t turn = real ? w.turn[at] : 0;
    const float beta = real ? p.beta[(tile.token + i) * p.H + h] : 0.0F;
    if (threadIdx.x % 2 == 0) {
      s.turn[i] = turn;
      s.gate[i] = w.gate[real ? at : h * p.T + tile.token + tile.tokens - 1];
    }
    // The tile's write vectors, half a row a thread.
    for (int piece = 8 * (threadIdx.x % 2); piece < 8 * (threadIdx.x % 2) + 8; ++piece) {
      uint32_t x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int slot = 8 * piece + 2 * c;
        float sine, cosine;
        __sincosf(static_cast<float>(static_cast<int32_t>(turn * static_cast<uint32_t>(slot / 2))) * kRadians, &sine, &cosine);
        const float norm = beta * slot_norm(slot == 0 ? 0 : 2);
        x[c] = pack(norm * cosine, slot == 0 ? 0.0F : -norm * sine);
      }
      *reinterpret_cast<uint4*>(writes + piece_offset(kC, i, piece)) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
  copy_async_wait<1>();
  __syncthreads();
  normalise_rows<kC>(region_q, p.q_norm_weight, p.norm_eps, p.scale);
  if (p.k_norm_weight != nullptr) normalise_rows<kC>(region_k, p.k_norm_weight, p.norm_eps, 1.0F);
  copy_async_wait<0>();
  fence_async_proxy();
  __syncthreads();

  const int group = threadIdx.x / 128;
  const int lane = threadIdx.x % 32;
  const int row = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and row + 8
  // Decay from the tile's start; asked for where it is used, since a register kept through the kernel is one too many.
  const auto start = [&](int r) { return __expf(s.gate[r].x); };
  uint32_t a[8][4];

  // Stages 1 and 2: scores of this warpgroup's 64 tokens.
  float scores[64];
  {
    float pairs[64];
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kD / 16; ++kk) {
      wgmma<0>(pairs, along_columns(at_q, kC, 64 * group, 16 * kk), along_columns(at_k, kC, 0, 16 * kk), kk > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int kk = 0; kk < kD / 16; ++kk) {
      wgmma<0>(scores, along_columns(at_q, kC, 64 * group, 16 * kk), along_columns(at_s, kM, 0, 16 * kk), kk > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    decay_and_pack(pairs, row, s.gate, a);
    wgmma_wait<0>();
  }
  __syncthreads();  // q, k and the key state are done with
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int i = 0; i < kM * kM / 8 / kThreads; ++i) {
      const int index = i * kThreads + threadIdx.x;
      const int r = index / (kM / 8);
      const int piece = index % (kM / 8);
      copy_async_16(at_q + part * kWriteBytes + piece_offset(kM, r, piece), table + part * kM * kM + r * kM + piece * 8, true);
    }
  }
  copy_async_commit();
  load_rows<kM>(at_s, tile_state(w, p, tile_index, h, 1), kD, kM);
  load_rows<kC>(at_k, rows_of(p.v, p.v_stride), p.v_stride, tile.tokens);
  copy_async_commit();

  scale_rows(scores, start(row), start(row + 8));
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(scores, a[kk], along_rows(at_w, kC, 16 * kk, 0), 1);
  wgmma_commit();
  wgmma_wait<0>();
  rotate_and_pack(scores, s.turn[row], s.turn[row + 8], 1.0F, a);

  // Stage 3: the readout.
  copy_async_wait<1>();
  fence_async_proxy();
  __syncthreads();
  wgmma_fence();
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma<0>(scores, a[kk], along_columns(at_q + part * kWriteBytes, kM, 0, 16 * kk), part + kk > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  {
    if (lane % 4 == 3) scores[61] = scores[63] = -INFINITY;  // slot m does not exist
    float top0 = -INFINITY;
    float top8 = -INFINITY;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      top0 = fmaxf(top0, fmaxf(scores[i], scores[i + 1]));
      top8 = fmaxf(top8, fmaxf(scores[i + 2], scores[i + 3]));
    }
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      top0 = fmaxf(top0, __shfl_xor_sync(0xFFFFFFFF, top0, d));
      top8 = fmaxf(top8, __shfl_xor_sync(0xFFFFFFFF, top8, d));
    }
    float sum0 = 0.0F;
    float sum8 = 0.0F;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      scores[i] = __expf(scores[i] - top0);
      scores[i + 1] = __expf(scores[i + 1] - top0);
      scores[i + 2] = __expf(scores[i + 2] - top8);
      scores[i + 3] = __expf(scores[i + 3] - top8);
      sum0 += scores[i] + scores[i + 1];
      sum8 += scores[i + 2] + scores[i + 3];
    }
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      sum0 += __shfl_xor_sync(0xFFFFFFFF, sum0, d);
      sum8 += __shfl_xor_sync(0xFFFFFFFF, sum8, d);
    }
    scale_rows(scores, 1.0F / sum0, 1.0F / sum8);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    a[i / 2][i % 2 * 2] = pack(scores[4 * i], scores[4 * i + 1]);
    a[i / 2][i % 2 * 2 + 1] = pack(scores[4 * i + 2], scores[4 * i + 3]);
  }
  wgmma_fence();
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(scores, a[kk], along_rows(at_q + part * kWriteBytes, kM, 16 * kk, 0), part + kk > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  rotate_and_pack(scores, s.turn[row], s.turn[row + 8], -1.0F, a);

  // Stages 4 and 5: the outputs.
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kM / 16; ++kk) wgmma<0>(scores, a[kk], along_columns(at_w, kC, 0, 16 * kk), kk > 0);
  wgmma_commit();
  wgmma_wait<0>();
  uint32_t b[8][4];
  int same_row = row;
  asm volatile("" : "+r"(same_row));  // the mask's predicates are to be computed again, not kept since stage 1
  decay_and_pack(scores, same_row, s.gate, b);
  copy_async_wait<0>();
  fence_async_proxy();
  __syncthreads();
  float o[128];
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(o, a[kk], along_rows(at_s, kM, 16 * kk, 0), kk > 0);
  wgmma_commit();
  wgmma_wait<0>();
  scale_rows(o, start(row), start(row + 8));
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(o, b[kk], along_rows(at_k, kC, 16 * kk, 0), 1);
  wgmma_commit();
  wgmma_wait<0>();
  bf16* to = static_cast<bf16*>(p.o) + ((tile.token + row) * p.H + h) * kD;
  store_rows(o, to, to + 8 * static_cast<int64_t>(p.H) * kD, row < tile.tokens, row + 8 < tile.tokens);
}

}  // namespace

int64_t sm90_forward_workspace(const Sm90ForwardParams& p) {
  return align_up(p.T * p.H * 4) + align_up(p.T * p.H * 8) + static_cast<int64_t>(p.tiles) * p.H * 2 * kM * kD * 2;
}

const char* sm90_forward_refusal(const Sm90ForwardParams& p) {
  if (p.K != kD || p.V != kD) return "head sizes other than 256 have no sm90 kernel yet";
  if (p.M != kM) return "slot counts other than 128 have no sm90 kernel yet";
  return nullptr;
}

cudaError_t sm90_forward(const Sm90ForwardParams& p, cudaStream_t stream) {
  if (sm90_forward_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.N == 0) return cudaSuccess;
  cudaError_t status = cudaFuncSetAttribute(cyclic_flow_forward_states_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, kStatesBytes);
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(cyclic_flow_forward_outputs_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, kOutputsBytes);
  if (status != cudaSuccess) return status;
  cyclic_flow_forward_prepare_sm90<<<p.N * p.H, kThreads, 0, stream>>>(p);
  cyclic_flow_forward_states_sm90<<<dim3(p.N * p.H, 2), kStatesThreads, kStatesBytes, stream>>>(p);
  if (p.tiles > 0) cyclic_flow_forward_outputs_sm90<<<p.tiles * p.H, kThreads, kOutputsBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow
