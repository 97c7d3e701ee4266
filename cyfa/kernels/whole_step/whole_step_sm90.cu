// One cooperative launch of a block per multiprocessor; see whole_step_sm90.h, and whole_step_plan.h for who does what. Eight warps
// compute, one computes gates and clock, and one thread feeds the ring of weights, through all layers, as far ahead as shared memory
// allows.
//
// A layer takes six exchanges between blocks:
//   x -> projections -> y; y -> blocks of keys -> scores; y, scores -> blocks of values -> o; o -> output projection, residual -> x
//   between; x between -> gate, up, SwiGLU -> hidden units; hidden units -> down, residual -> x.
// Every word carries the epoch of its step and layer, so nothing needs to be cleared. Epochs follow from `tickets`, which each block
// increments when it starts: all blocks of a launch get numbers of one range, also after a launch that was given up.
//
// The residual stream is in fp32, in the block that owns its rows, and is rounded to bf16 on its way to the others. Sums have an order that
// depends on the sizes and the number of blocks only, so equal steps give equal bits.
#include "cyfa/kernels/whole_step/whole_step_sm90.h"

#include <algorithm>
#include <iterator>

#include "cyfa/kernels/whole_step/whole_step_mixer.cuh"

namespace cyfa::whole_step {
namespace {

constexpr int kMaxSharedBytes = 227 * 1024;

__host__ __device__ constexpr int ring_stages(const Sizes& n) {
  const int fit = (kMaxSharedBytes - kSharedBytes) / n.stage_bytes();
  return fit < kMaxStages ? fit : kMaxStages;
}

// The thread that fills the ring, in the order in which consumers take from it.
class Feeder {
 public:
  __device__ explicit Feeder(Block& b) : b_(b), read_once_(sm90::evict_first()), read_again_(sm90::evict_last()) {}

  __device__ void put(const void* from, int bytes, bool again = false) {
    const char* bytes_from = static_cast<const char*>(from);
#pragma unroll 1
    for (int done = 0; done < bytes; done += b_.stage_bytes) {
      const int now = min(b_.stage_bytes, bytes - done);
      begin(now);
      sm90::copy_bulk(place(), bytes_from + done, now, &b_.s.full[b_.stage], again ? read_again_ : read_once_);
      b_.step_on();
    }
  }
  // Half a stage from each.
  __device__ void put_halves(const void* first, const void* second) {
    const int half = b_.stage_bytes / 2;
    begin(2 * half);
    sm90::copy_bulk(place(), first, half, &b_.s.full[b_.stage], read_once_);
    sm90::copy_bulk(place() + half, second, half, &b_.s.full[b_.stage], read_once_);
    b_.step_on();
  }
  __device__ void put_tiles(const void* weight, const Part& part, int in, int rows) {
    const auto* from = static_cast<const __nv_bfloat16*>(weight);
#pragma unroll 1
    for (int t = part.first; t < part.first + part.count; ++t) {
      put(from + static_cast<int64_t>(t) * kTileRows * in, 2 * in * min(kTileRows, rows - t * kTileRows));
    }
  }

 private:
  __device__ char* place() const { return b_.ring + b_.stage * b_.stage_bytes; }
  __device__ void begin(int bytes) {
    b_.wait(&b_.s.empty[b_.stage], b_.round ^ 1, kRoom);
    sm90::barrier_expect(&b_.s.full[b_.stage], bytes);
  }

  Block& b_;
  uint64_t read_once_, read_again_;
};

__device__ void feed(Block& b, const Role& role) {
  const Params& p = b.p;
  const Sizes& n = p.n;
  const int block = static_cast<int>(blockIdx.x);
  const Part of_y = projection_part(n, block), of_rows = row_part(n, block), of_hidden = hidden_part(n, block);
  Feeder feeder(b);
  for (; b.layer < n.layers; ++b.layer) {
    const Layer& layer = p.layer[b.layer];
    feeder.put_tiles(layer.projection, of_y, n.D, n.projections());
    if (role.kind == RoleKind::kValues) {
      const int row = role.head * n.V + role.part * n.value_columns();
      feeder.put(static_cast<const __nv_bfloat16*>(layer.gate_second) + static_cast<int64_t>(row) * n.rank(),
                 2 * n.value_columns() * n.rank());
      feeder.put(layer.readout_table + static_cast<int64_t>(role.head) * n.M * n.M, 4 * n.M * n.M, true);
    }
    feeder.put_tiles(layer.o_proj, of_rows, n.H * n.V, n.D);
    const auto* gate = static_cast<const __nv_bfloat16*>(layer.gate_and_up);
#pragma unroll 1
    for (int t = of_hidden.first; t < of_hidden.first + of_hidden.count; ++t) {
      const auto* from = gate + static_cast<int64_t>(t) * (kTileRows / 2) * n.D;
      feeder.put_halves(from, from + static_cast<int64_t>(n.F) * n.D);
    }
    feeder.put_tiles(layer.down, of_rows, n.F, n.D);
  }
  feeder.put_tiles(p.head, head_part(n, block), n.D, n.vocab);
}

// kWide: units of D and of H V per warp. kHidden: of F.
template <int kWide, int kHidden, int kShare>
__device__ void compute(Block& b, const Role& role) {
  constexpr int kTiles = 6 / kWide, kRowTiles = kWide;  // in registers
  const Params& p = b.p;
  const Sizes& n = p.n;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, block = static_cast<int>(blockIdx.x);
  const Part of_y = projection_part(n, block), of_rows = row_part(n, block), of_hidden = hidden_part(n, block),
             of_head = head_part(n, block);
  int64_t id = *p.id;
  if (id < 0 || id >= n.vocab) {
    b.report(kId);
    id = 0;
  }
  const auto* const embedding = static_cast<const __nv_bfloat16*>(p.embeddings) + id * n.D;
  const int own_row = kTileRows * of_rows.first + min(tid, kTileRows * of_rows.count - 1);
  float residual = of_rows.count > 0 ? __bfloat162float(embedding[own_row]) : 0.0F;  // of one row, in the first threads

  // value(i) for i = 0 .. count - 1, of the first threads, as pairs of bf16 to the words from `word` on.
  const auto send_pairs = [&](int word, int count, const auto& value) {
    if (32 * warp >= count) return;
    const float own = tid < count ? value(tid) : 0.0F, next = __shfl_down_sync(0xFFFFFFFFU, own, 1);
    if (tid < count && tid % 2 == 0) send(b.to(word + tid / 2), b.epoch(), pack(own, next));
  };
  const auto add_to_residual = [&](const Sums& sums) {
    return [&residual, sums](int i) {
      residual += sums.at(i);
      return residual;
    };
  };
  for (; b.layer < n.layers; ++b.layer) {
    const Layer& layer = p.layer[b.layer];
    product<kWide, kTiles>(b, of_y.count, n.D, 0,
                           NormedRow<kWide>(b, layer.mixer_norm, b.words.x, b.layer == 0 ? embedding : nullptr, kInput),
                           [&](const Sums& sums) {
                             const float rate = sums.rate();
                             send_pairs(b.words.y + kTileRows * (of_y.first + sums.first) / 2, kTileRows * sums.count,
                                        [&](int i) { return rate * sums.at(i); });
                           });
    if (role.kind == RoleKind::kKeys) {
      step_keys<kShare>(b, role);
    } else if (role.kind == RoleKind::kValues) {
      step_values<kShare>(b, role);
    }
    product<kWide, kRowTiles>(b, of_rows.count, n.H * n.V, 8, HeadsRow<kWide>(b), [&](const Sums& sums) {
      send_pairs(b.words.between + kTileRows * of_rows.first / 2, kTileRows * sums.count, add_to_residual(sums));
    });
    product<kWide, kTiles>(b, of_hidden.count, n.D, 11, NormedRow<kWide>(b, layer.mlp_norm, b.words.between, nullptr, kBetween),
                           [&](const Sums& sums) {
                             const float rate = sums.rate();
                             constexpr int kOfTile = kTileRows / 2;
                             send_pairs(b.words.hidden + kOfTile * (of_hidden.first + sums.first) / 2, kOfTile * sums.count, [&](int i) {
                               const int row = i / kOfTile * kTileRows + i % kOfTile;
                               const float gate = rate * sums.at(row), up = rate * sums.at(row + kOfTile);
                               return gate * rowwise::sigmoid(gate) * up;
                             });
                           });
    product<kHidden, kHidden <= 3 ? 1 : 0>(b, of_rows.count, n.F, 14, PlainRow<kHidden>(b), [&](const Sums& sums) {
      ++b.layer;  // these words are the next layer's
      send_pairs(b.words.x + kTileRows * of_rows.first / 2, kTileRows * sums.count, add_to_residual(sums));
      --b.layer;
    });
  }
  product<kWide, kTiles>(b, of_head.count, n.D, 0, NormedRow<kWide>(b, p.final_norm, b.words.x, nullptr, kLast), [&](const Sums& sums) {
    const int row = kTileRows * (of_head.first + sums.first) + tid;
    if (tid >= kTileRows * sums.count || row >= n.vocab) return;
    const bool aborted = *static_cast<volatile int*>(&b.s.aborted) != 0;
    p.logits[row] = aborted ? __int_as_float(0x7FFFFFFF) : sums.rate() * sums.at(tid);
  });
}

template <int kWide, int kHidden, int kShare>
__global__ void __launch_bounds__(kThreads, 1) decode_whole_step_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int stages = ring_stages(p.n), tid = static_cast<int>(threadIdx.x);
  if (tid == 0) {
    s.aborted = 0;
    const unsigned long long launch = atomicAdd(p.tickets, 1ULL) / gridDim.x;
    s.base = static_cast<unsigned>(launch * static_cast<unsigned long long>(p.n.layers + 1) + 1);
  } else if (tid == kFeeder) {
    for (int i = 0; i < stages; ++i) {
      sm90::barrier_init(&s.full[i], 1);
      sm90::barrier_init(&s.empty[i], kWarps);
    }
    sm90::fence_barrier_init();
    sm90::fence_async_proxy();
  }
  __syncthreads();
  Block b(p, s, raw + kSharedBytes, stages);
  const Role role = role_of(p.n, static_cast<int>(blockIdx.x));
  if (tid < kConsumers) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    compute<kWide, kHidden, kShare>(b, role);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    if (tid < kFeeder) {
      prefetch_layer(p, p.layer[0], role);
      for (; b.layer < p.n.layers; ++b.layer) help(b, role);
    } else if (tid == kFeeder) {
      feed(b, role);
    }
  }
}

using Kernel = void (*)(Params);

// The smallest kernel whose registers hold the rows.
Kernel kernel_for(const Sizes& n) {
  const auto units = [](int columns) { return (columns + kUnitColumns * kWarps - 1) / (kUnitColumns * kWarps); };
  const int wide = std::max(units(n.D), units(n.H * n.V)), hidden = units(n.F);
  if (wide <= 1 && hidden <= 3 && n.share == 1) return decode_whole_step_sm90<1, 3, 1>;
  if (wide <= 1 && hidden <= 3) return decode_whole_step_sm90<1, 3, 2>;
  if (wide <= 2 && hidden <= 6 && n.share == 2) return decode_whole_step_sm90<2, 6, 2>;
  return nullptr;
}

constexpr const char* kAwaited[] = {"nothing",
                                    "a layer's input",
                                    "the projections",
                                    "the projections of gates and clock",
                                    "the scores",
                                    "the outputs of the heads",
                                    "the input of the SwiGLU",
                                    "the hidden units",
                                    "the last layer's output",
                                    "weights",
                                    "room for weights",
                                    "an id within the vocabulary"};

}  // namespace

const char* whole_step_refusal(Sizes* n) {
  if (n->layers < 1 || n->layers > kMaxLayers) return "the model has more than 64 layers";
  if (n->D < 64 || n->D % 64 != 0 || n->F < 64 || n->F % 64 != 0) return "hidden_size or intermediate_size is not a multiple of 64";
  if (n->V != 64 && n->V != 128 && n->V != 256) return "the heads' value width is not 64, 128 or 256";
  if (n->K < 32 || n->K > kMaxWidth || n->K % 32 != 0) return "the heads' key width is not a multiple of 32 up to 256";
  if (n->M < 16 || n->M > kMaxSlots || n->M % 16 != 0) return "num_slots is not a multiple of 16 up to 128";
  if (n->taps < 1 || n->taps > kMaxPast + 1) return "a convolution has not 1 to 4 taps";
  if (n->H < 1 || n->vocab < 1) return "there are no heads or no vocabulary";
  int device = 0, cooperative = 0, shared = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&n->blocks, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    return "the device does not say what it has";
  }
  if (cooperative == 0) return "the device has no cooperative launches";
  if (shared < kMaxSharedBytes) return "the device has less than 227 KB of shared memory";
  const auto fits = [&](int share) {
    n->share = share;
    return n->roles() <= n->blocks && kernel_for(*n) != nullptr;
  };
  if (!fits(1) && !fits(2)) return "rows are wider than 2,048, hidden units more than 6,144, or heads too many for the multiprocessors";
  const int most = std::max({2 * kTileRows * n->F, 2 * kTileRows * n->H * n->V, 4 * n->M * n->M});
  if (n->stages_of(most) > ring_stages(*n)) return "eight rows of a matrix are larger than shared memory";
  return nullptr;
}

cudaError_t whole_step(const Params& p, cudaStream_t stream) {
  const auto kernel = kernel_for(p.n);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int bytes = kSharedBytes + ring_stages(p.n) * p.n.stage_bytes();
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.n.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p);
}

Error whole_step_error(int code) {
  const int awaited = code & 0xFF;
  return {awaited < static_cast<int>(std::size(kAwaited)) ? kAwaited[awaited] : "something unknown", code >> 8 & 0xFF, code >> 16 & 0xFFFF};
}

const char* const* whole_step_marks() {
  static constexpr const char* kNames[kMarks] = {"projections: weights ready",
                                                 "projections: wait for x",
                                                 "projections: product, send",
                                                 "mixer: ready",
                                                 "mixer: wait for y (values: and gate)",
                                                 "mixer: scores sent (values: table ready)",
                                                 "mixer: wait for scores",
                                                 "mixer: o sent",
                                                 "output: weights ready",
                                                 "output: wait for o",
                                                 "output: product, send",
                                                 "SwiGLU: weights ready",
                                                 "SwiGLU: wait for x",
                                                 "SwiGLU: product, send",
                                                 "down: weights ready",
                                                 "down: wait for hidden units",
                                                 "down: product, send"};
  return kNames;
}

}  // namespace cyfa::whole_step
