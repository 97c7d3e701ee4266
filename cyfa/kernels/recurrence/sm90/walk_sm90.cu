// See walk_sm90.h. A block walks 64 columns of one state. One warpgroup keeps them in registers, K / 64 accumulators of 64 x 64, and does
// all products; one more warp loads the operands of the next chunks by TMA.
//
// Shared memory: rings of `kEarly` places for what a chunk needs first (read, base) and `kLate` places for what it needs last (write,
// write2, x2); S in bf16. x replaces base in its place, from which it is both an operand and the source of its TMA store.
#include <type_traits>

#include "cyfa/kernels/recurrence/sm90/walk_sm90.h"
#include "cyfa/kernels/sm90/tma.cuh"
#include "cyfa/kernels/sm90/wgmma.cuh"

namespace cyfa::recurrence {
namespace {

using sm90::bf16;

constexpr int kChunk = static_cast<int>(kWalkChunk);
constexpr int kColumns = 64;                          // of V, per block
constexpr int kWorkers = 128;                         // threads of the warpgroup
constexpr int kThreads = kWorkers + 32;               // and of the loading warp
constexpr int kTileBytes = kChunk * sm90::kRowBytes;  // 64 x 64 numbers
constexpr int kEarly = 2;
constexpr int kMaxSharedBytes = 227 * 1024 - 1024;  // the tiles are aligned to 1024 bytes

struct Maps {
  CUtensorMap read, base, write, write2, x2, states, x;
};

struct Sizes {
  int g, V;
  bool backward;
  const float* decay;
  float* state;
};

// Shared memory of a kernel for K = 64 kPanels.
template <int kPanels, bool kReads, bool kTwo>
struct Layout {
  static constexpr int kWide = kPanels * kTileBytes;                          // a [C, K] tile
  static constexpr int kEarlyBytes = (kReads ? kWide : 0) + kTileBytes;       // read, base
  static constexpr int kLateBytes = kWide + (kTwo ? kWide + kTileBytes : 0);  // write, write2, x2
  static constexpr int kStateBytes = kWide;                                   // [K, 64]
  static constexpr int kOnce = kEarly * kEarlyBytes + kStateBytes;
  static constexpr int kLate = kOnce + 2 * kLateBytes <= kMaxSharedBytes ? 2 : 1;
  static constexpr int kBytes = kOnce + kLate * kLateBytes;
};

struct Ring {
  int place = 0, parity = 0;
  __device__ void advance(int places) {
    if (++place == places) {
      place = 0;
      parity ^= 1;
    }
  }
};

// Address of the rows that this lane gives to store_blocks and load_blocks, for the 16 x 16 numbers at (row, column 16 j) of a panel.
__device__ __forceinline__ uint32_t block_address(uint32_t panel, int row, int j) {
  const int lane = threadIdx.x % 32;
  const int block = lane / 8;
  const int at = row + (block & 1) * 8 + lane % 8;
  const int piece = 2 * j + (block >> 1);
  return panel + at * sm90::kRowBytes + ((piece ^ (at & 7)) << 4);
}

// An accumulator of 64 x 64, rounded to bf16, to rows row .. row + 63 of a panel.
__device__ __forceinline__ void put(const float (&d)[32], uint32_t panel, int row) {
  const int warp_row = row + 16 * (threadIdx.x / 32);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sm90::store_blocks(block_address(panel, warp_row, j), sm90::pack(d[8 * j], d[8 * j + 1]), sm90::pack(d[8 * j + 2], d[8 * j + 3]),
                       sm90::pack(d[8 * j + 4], d[8 * j + 5]), sm90::pack(d[8 * j + 6], d[8 * j + 7]));
  }
}

// The inverse of put.
__device__ __forceinline__ void take(float (&d)[32], uint32_t panel) {
  const int warp_row = 16 * (threadIdx.x / 32);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[4];
    sm90::load_blocks(a, block_address(panel, warp_row, j));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = sm90::unpack(a[i]);
      d[8 * j + 2 * i] = two.x;
      d[8 * j + 2 * i + 1] = two.y;
    }
  }
}

// The fp32 state in global memory; each thread reads and writes the numbers that its accumulators hold.
template <int kPanels, class F>
__device__ __forceinline__ void over_state(float (&s)[kPanels][32], float* state, int V, const F& f) {
  const int lane = threadIdx.x % 32;
  const int row = 16 * (threadIdx.x / 32) + lane / 4;
#pragma unroll
  for (int b = 0; b < kPanels; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2* at = reinterpret_cast<float2*>(state + static_cast<int64_t>(64 * b + row + 8 * h) * V + 8 * i + 2 * (lane % 4));
        f(s[b][4 * i + 2 * h], s[b][4 * i + 2 * h + 1], at);
      }
    }
  }
}

// The factors of a chunk's decay that concern this thread's numbers.
template <int kPanels, WalkDecay kDecays>
struct Factors {
  static constexpr int kCount = kDecays == WalkDecay::kRow ? 2 * kPanels : kDecays == WalkDecay::kColumn ? 16 : 1;
  float f[kCount];

  __device__ __forceinline__ void load(const float* decay, int64_t chunk, int column, int V) {
    const int lane = threadIdx.x % 32;
    if constexpr (kDecays == WalkDecay::kState) f[0] = decay[chunk];
    if constexpr (kDecays == WalkDecay::kRow) {
      const float* rows = decay + chunk * 64 * kPanels + 16 * (threadIdx.x / 32) + lane / 4;
#pragma unroll
      for (int i = 0; i < kCount; ++i) f[i] = rows[64 * (i / 2) + 8 * (i % 2)];
    }
    if constexpr (kDecays == WalkDecay::kColumn) {
      const float* columns = decay + chunk * V + column + 2 * (lane % 4);
#pragma unroll
      for (int i = 0; i < kCount; ++i) f[i] = columns[8 * (i / 2) + i % 2];
    }
  }

  __device__ __forceinline__ void apply(float (&s)[kPanels][32]) const {
    if constexpr (kDecays != WalkDecay::kNone) {
#pragma unroll
      for (int b = 0; b < kPanels; ++b) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int which = kDecays == WalkDecay::kRow ? 2 * b + i / 2 % 2 : kDecays == WalkDecay::kColumn ? i / 4 * 2 + i % 2 : 0;
          s[b][i] *= f[which];
        }
      }
    }
  }
};

template <int kPanels, bool kReads, bool kTwo>
__device__ void load_operands(const Maps& maps, const Sizes& p, unsigned char* tiles, uint64_t* full, uint64_t* empty, int sequence,
                              int column) {
  using L = Layout<kPanels, kReads, kTwo>;
  const uint32_t start = sm90::shared_address(tiles);
  Ring early, late;
  for (int step = 0; step < p.g; ++step) {
    const int chunk = sequence * p.g + (p.backward ? p.g - 1 - step : step);
    const int row = chunk * kChunk;
    uint64_t* ready = full + early.place;
    sm90::barrier_wait(empty + early.place, early.parity ^ 1);
    sm90::barrier_expect(ready, L::kEarlyBytes);
    uint32_t to = start + early.place * L::kEarlyBytes;
    if constexpr (kReads) {
#pragma unroll
      for (int i = 0; i < kPanels; ++i, to += kTileBytes) sm90::copy_box(to, &maps.read, 64 * i, row, ready);
    }
    sm90::copy_box(to, &maps.base, column, row, ready);
    early.advance(kEarly);

    ready = full + kEarly + late.place;
    sm90::barrier_wait(empty + kEarly + late.place, late.parity ^ 1);
    sm90::barrier_expect(ready, L::kLateBytes);
    to = start + L::kOnce + late.place * L::kLateBytes;
#pragma unroll
    for (int i = 0; i < kPanels; ++i, to += kTileBytes) sm90::copy_box(to, &maps.write, 64 * i, row, ready);
    if constexpr (kTwo) {
#pragma unroll
      for (int i = 0; i < kPanels; ++i, to += kTileBytes) sm90::copy_box(to, &maps.write2, 64 * i, row, ready);
      sm90::copy_box(to, &maps.x2, column, row, ready);
    }
    late.advance(L::kLate);
  }
}

// s[b] += rows 64 b .. 64 b + 63 of write^T x, for tiles write [C, K] and x [C, 64].
template <int kPanels>
__device__ __forceinline__ void add_written(float (&s)[kPanels][32], uint32_t write, uint32_t x) {
#pragma unroll
  for (int b = 0; b < kPanels; ++b) {
#pragma unroll
    for (int i = 0; i < kChunk / 16; ++i) {
      sm90::wgmma<1, 1>(s[b], sm90::along_rows(write, kChunk, 16 * i, 64 * b), sm90::along_rows(x, kChunk, 16 * i, 0), 1);
    }
  }
}

template <int kPanels, bool kReads, bool kTwo, WalkDecay kDecays>
__global__ void __launch_bounds__(kThreads) recurrence_walk_sm90(const __grid_constant__ Maps maps, const Sizes p) {
  using L = Layout<kPanels, kReads, kTwo>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[kEarly + 2], empty[kEarly + 2];
  unsigned char* tiles = memory + (1024 - sm90::shared_address(memory) % 1024) % 1024;
  const int sequence = blockIdx.y;
  const int column = blockIdx.x * kColumns;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kEarly + 2; ++i) {
      sm90::barrier_init(full + i, 1);
      sm90::barrier_init(empty + i, 1);
    }
    sm90::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kWorkers) {
    if (threadIdx.x == kWorkers) load_operands<kPanels, kReads, kTwo>(maps, p, tiles, full, empty, sequence, column);
    return;
  }

  const uint32_t start = sm90::shared_address(tiles);
  const uint32_t state_tile = start + kEarly * L::kEarlyBytes;
  float* state = p.state + static_cast<int64_t>(sequence) * 64 * kPanels * p.V + column;
  float s[kPanels][32];
  over_state(s, state, p.V, [](float& low, float& high, const float2* at) {
    low = at->x;
    high = at->y;
  });
  Ring early, late;
  for (int step = 0; step < p.g; ++step) {
    const int chunk = sequence * p.g + (p.backward ? p.g - 1 - step : step);
    Factors<kPanels, kDecays> factors;
    factors.load(p.decay, chunk, column, p.V);

    // The state on entering the chunk, as an operand and as a result.
#pragma unroll
    for (int b = 0; b < kPanels; ++b) put(s[b], state_tile, 64 * b);
    sm90::fence_async_proxy();
    sm90::named_barrier(1, kWorkers);
    if (threadIdx.x == 0) {
      sm90::store_box(&maps.states, column, chunk * 64 * kPanels, state_tile);
      sm90::commit_stores();
    }

    sm90::barrier_wait(full + early.place, early.parity);
    const uint32_t read = start + early.place * L::kEarlyBytes;
    const uint32_t x = read + (kReads ? L::kWide : 0);
    if constexpr (kReads) {
      float d[32];
      take(d, x);
      sm90::settle(d);
      sm90::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4 * kPanels; ++i) {
        sm90::wgmma<1, 0>(d, sm90::along_columns(read, kChunk, 0, 16 * i), sm90::along_rows(state_tile, 64 * kPanels, 16 * i, 0), 1);
      }
      sm90::wgmma_commit();
      sm90::wgmma_wait<0>();
      sm90::settle(d);
      put(d, x, 0);
      sm90::fence_async_proxy();
      sm90::named_barrier(1, kWorkers);
      if (threadIdx.x == 0) {
        sm90::store_box(&maps.x, column, chunk * kChunk, x);
        sm90::commit_stores();
      }
    }

    factors.apply(s);
    sm90::barrier_wait(full + kEarly + late.place, late.parity);
    const uint32_t write = start + L::kOnce + late.place * L::kLateBytes;
#pragma unroll
    for (int b = 0; b < kPanels; ++b) sm90::settle(s[b]);
    sm90::wgmma_fence();
    add_written(s, write, x);
    if constexpr (kTwo) add_written(s, write + L::kWide, write + 2 * L::kWide);
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kPanels; ++b) sm90::settle(s[b]);

    // All tiles of the chunk may be overwritten once the stores have read theirs.
    if (threadIdx.x == 0) sm90::wait_stores_read();
    sm90::named_barrier(1, kWorkers);
    if (threadIdx.x == 0) {
      sm90::barrier_arrive(empty + early.place);
      sm90::barrier_arrive(empty + kEarly + late.place);
    }
    early.advance(kEarly);
    late.advance(L::kLate);
  }
  over_state(s, state, p.V, [](float low, float high, float2* at) { *at = make_float2(low, high); });
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

constexpr int kDotThreads = 256;

// A block for each chunk. kRow: a warp sums a row. kState: the warps' rows are summed in the order of the warps. kColumn: a thread sums two
// columns over every kParts-th row, then the parts are summed in order.
template <WalkDecay kDecays>
__global__ void __launch_bounds__(kDotThreads)
    recurrence_decay_gradient_sm90(const bf16* states, const bf16* grads, const float* decay, float* out, int K, int V) {
  __shared__ float2 parts[kDotThreads];
  const int64_t chunk = blockIdx.x;
  const auto* s = reinterpret_cast<const __nv_bfloat162*>(states + chunk * K * V);
  const auto* d = reinterpret_cast<const __nv_bfloat162*>(grads + chunk * K * V);
  const int pairs = V / 2;
  if constexpr (kDecays == WalkDecay::kColumn) {
    // The width is a multiple of 64, so a group of 32 threads has 64 columns.
    for (int first = 0; first < pairs; first += 32) {
      const int pair = first + threadIdx.x % 32;
      float2 sum = make_float2(0, 0);
      for (int row = threadIdx.x / 32; row < K; row += kDotThreads / 32) {
        const float2 a = __bfloat1622float2(s[row * pairs + pair]);
        const float2 b = __bfloat1622float2(d[row * pairs + pair]);
        sum.x += a.x * b.x;
        sum.y += a.y * b.y;
      }
      parts[threadIdx.x] = sum;
      __syncthreads();
      if (threadIdx.x < 32) {
        for (int i = 1; i < kDotThreads / 32; ++i) {
          sum.x += parts[32 * i + threadIdx.x].x;
          sum.y += parts[32 * i + threadIdx.x].y;
        }
        const int64_t at = chunk * V + 2 * pair;
        out[at] = decay[at] * sum.x;
        out[at + 1] = decay[at + 1] * sum.y;
      }
      __syncthreads();
    }
  } else {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float total = 0;
    for (int row = warp; row < K; row += kDotThreads / 32) {
      float sum = 0;
      for (int pair = lane; pair < pairs; pair += 32) {
        const float2 a = __bfloat1622float2(s[row * pairs + pair]);
        const float2 b = __bfloat1622float2(d[row * pairs + pair]);
        sum += a.x * b.x + a.y * b.y;
      }
      if constexpr (kDecays == WalkDecay::kRow) {
        sum = warp_sum(sum);
        if (lane == 0) out[chunk * K + row] = decay[chunk * K + row] * sum;
      } else {
        total += sum;
      }
    }
    if constexpr (kDecays == WalkDecay::kState) {
      total = warp_sum(total);
      if (lane == 0) parts[warp].x = total;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int i = 1; i < kDotThreads / 32; ++i) total += parts[i].x;
        out[chunk] = decay[chunk] * total;
      }
    }
  }
}

// A thread computes one column of the inverse by forward substitution, x_i = e_i - sum over k < i of A_ik x_k. Above the diagonal its
// numbers are exact zeros.
__global__ void __launch_bounds__(kChunk) recurrence_unit_lower_inverse_sm90(const float* a, float* inverse) {
  __shared__ __align__(16) float rows[kChunk][kChunk];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk * kChunk;
  const int column = threadIdx.x;
  for (int i = column; i < kChunk * kChunk / 4; i += kChunk) {
    reinterpret_cast<float4*>(&rows[0][0])[i] = reinterpret_cast<const float4*>(a + first)[i];
  }
  __syncthreads();
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sum = i == column ? 1.0F : 0.0F;
#pragma unroll
    for (int k = 0; k < i; ++k) sum -= rows[i][k] * x[k];
    x[i] = sum;
    inverse[first + i * kChunk + column] = sum;
  }
}

template <int kPanels, bool kReads, bool kTwo, WalkDecay kDecays>
cudaError_t launch(const Maps& maps, const Sizes& sizes, const Walk& w, cudaStream_t stream) {
  constexpr int kBytes = Layout<kPanels, kReads, kTwo>::kBytes + 1024;
  const auto kernel = recurrence_walk_sm90<kPanels, kReads, kTwo, kDecays>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(w.V / kColumns), static_cast<unsigned>(w.n));
  kernel<<<grid, kThreads, kBytes, stream>>>(maps, sizes);
  return cudaGetLastError();
}

template <int kPanels>
cudaError_t launch(const Maps& maps, const Sizes& sizes, const Walk& w, cudaStream_t stream) {
  const bool reads = w.read != nullptr;
  const bool two = w.write2 != nullptr;
  if (two && !reads) return cudaErrorInvalidValue;  // write2 serves the delta rules' backward only
  const auto with = [&](auto decays) {
    constexpr WalkDecay kDecays = decltype(decays)::value;
    if (two) return launch<kPanels, true, true, kDecays>(maps, sizes, w, stream);
    if (reads) return launch<kPanels, true, false, kDecays>(maps, sizes, w, stream);
    return launch<kPanels, false, false, kDecays>(maps, sizes, w, stream);
  };
  switch (w.decays) {
    case WalkDecay::kNone: return with(std::integral_constant<WalkDecay, WalkDecay::kNone>());
    case WalkDecay::kState: return with(std::integral_constant<WalkDecay, WalkDecay::kState>());
    case WalkDecay::kRow: return with(std::integral_constant<WalkDecay, WalkDecay::kRow>());
    case WalkDecay::kColumn: break;
  }
  if (reads) return cudaErrorInvalidValue;  // no delta rule has gates of columns
  return launch<kPanels, false, false, WalkDecay::kColumn>(maps, sizes, w, stream);
}

}  // namespace

const char* walk_refusal(int64_t K, int64_t V) {
  if (K != 64 && K != 128 && K != 256) return "the width of keys is not 64, 128 or 256";
  if (V % kColumns != 0) return "the width of values is not a multiple of 64";
  return nullptr;
}

cudaError_t walk_sm90(const Walk& w, cudaStream_t stream) {
  if (walk_refusal(w.K, w.V) != nullptr) return cudaErrorInvalidValue;
  if (w.n == 0 || w.g == 0) return cudaSuccess;
  constexpr int64_t kMostRows = int64_t{1} << 31;  // of a tensor map
  if (w.n > 65535 || w.n * w.g * w.K >= kMostRows) return cudaErrorInvalidValue;
  Maps maps;
  const auto map = [](CUtensorMap& to, const void* from, int64_t rows, int64_t columns, int box_rows) {
    return from == nullptr ? cudaSuccess : sm90::make_tensor_map(to, from, rows, columns, columns, box_rows);
  };
  const int64_t tokens = w.n * w.g * kWalkChunk;
  cudaError_t status = map(maps.read, w.read, tokens, w.K, kChunk);
  if (status == cudaSuccess) status = map(maps.base, w.base, tokens, w.V, kChunk);
  if (status == cudaSuccess) status = map(maps.write, w.write, tokens, w.K, kChunk);
  if (status == cudaSuccess) status = map(maps.write2, w.write2, tokens, w.K, kChunk);
  if (status == cudaSuccess) status = map(maps.x2, w.x2, tokens, w.V, kChunk);
  if (status == cudaSuccess) status = map(maps.x, w.x, tokens, w.V, kChunk);
  if (status == cudaSuccess) status = map(maps.states, w.states, w.n * w.g * w.K, w.V, static_cast<int>(w.K));
  if (status != cudaSuccess) return status;
  const Sizes sizes{static_cast<int>(w.g), static_cast<int>(w.V), w.backward, w.decay, w.state};
  switch (w.K) {
    case 64: return launch<1>(maps, sizes, w, stream);
    case 128: return launch<2>(maps, sizes, w, stream);
    default: return launch<4>(maps, sizes, w, stream);
  }
}

cudaError_t walk_decay_gradient_sm90(const WalkDecayGradient& p, cudaStream_t stream) {
  if (p.chunks == 0) return cudaSuccess;
  const auto with = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(p.chunks), kDotThreads, 0, stream>>>(static_cast<const bf16*>(p.states),
                                                                        static_cast<const bf16*>(p.grads), p.decay, p.out,
                                                                        static_cast<int>(p.K), static_cast<int>(p.V));
    return cudaGetLastError();
  };
  switch (p.decays) {
    case WalkDecay::kState: return with(recurrence_decay_gradient_sm90<WalkDecay::kState>);
    case WalkDecay::kRow: return with(recurrence_decay_gradient_sm90<WalkDecay::kRow>);
    case WalkDecay::kColumn: return with(recurrence_decay_gradient_sm90<WalkDecay::kColumn>);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t unit_lower_inverse_sm90(int64_t count, const float* a, float* inverse, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  recurrence_unit_lower_inverse_sm90<<<static_cast<unsigned>(count), kChunk, 0, stream>>>(a, inverse);
  return cudaGetLastError();
}

}  // namespace cyfa::recurrence
