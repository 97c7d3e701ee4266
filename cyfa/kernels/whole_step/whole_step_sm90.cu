// One cooperative launch of a block per multiprocessor; see whole_step_sm90.h, and whole_step_plan.h for who does what. Eight warps
// compute, one computes gates and clock, one thread feeds the ring of weights, through all layers, as far ahead as shared memory allows,
// and one thread ends waits that take too long.
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

// The thread that fills the ring, in the order in which consumers take from it.
class Feeder {
 public:
  __device__ explicit Feeder(Block& b) : b_(b), read_once_(sm90::evict_first()), read_again_(sm90::evict_last()) {}

  __device__ void put(const void* from, int bytes, bool again = false) { put(from, bytes, bytes, again); }
  // Takes the stages of `room` bytes, of which there are only `bytes`.
  __device__ void put(const void* from, int bytes, int room, bool again) {
    const char* bytes_from = static_cast<const char*>(from);
#pragma unroll 1
    for (int done = 0; done < room; done += kStageBytes) {
      const int now = min(kStageBytes, max(bytes - done, 0));
      begin(now);
      if (now > 0) sm90::copy_bulk(place(), bytes_from + done, now, &b_.s.full[b_.stage], again ? read_again_ : read_once_);
      b_.step_on(1);
    }
  }
  // `half` bytes from each of two places.
  __device__ void put_halves(const void* first, const void* second, int half) {
    const char *upper = static_cast<const char*>(first), *lower = static_cast<const char*>(second) - half;
#pragma unroll 1
    for (int done = 0; done < 2 * half; done += kStageBytes) {
      const int end = min(done + kStageBytes, 2 * half), split = min(max(half, done), end);
      uint64_t* const full = &b_.s.full[b_.stage];
      begin(end - done);
      if (split > done) sm90::copy_bulk(place(), upper + done, split - done, full, read_once_);
      if (end > split) sm90::copy_bulk(place() + (split - done), lower + split, end - split, full, read_once_);
      b_.step_on(1);
    }
  }
  __device__ void put_tiles(const void* weight, const Part& part, int in, int rows) {
    const auto* from = static_cast<const __nv_bfloat16*>(weight) + static_cast<int64_t>(part.first) * kTileRows * in;
#pragma unroll 1
    for (int t = part.first; t < part.first + part.count; ++t) {
      put(from, 2 * in * min(kTileRows, rows - t * kTileRows), 2 * in * kTileRows, false);
      from += kTileRows * in;
    }
  }

 private:
  __device__ char* place() const { return b_.ring + b_.stage * kStageBytes; }
  __device__ void begin(int bytes) {
#pragma unroll 1
    while (!b_.is_complete(&b_.s.empty[b_.stage], b_.round ^ 1)) {
      if (b_.given_up(kRoom)) break;
    }
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
      constexpr int kHalf = kTileRows / 2;
      const auto* from = gate + static_cast<int64_t>(t) * kHalf * n.D;
      feeder.put_halves(from, from + static_cast<int64_t>(n.F) * n.D, 2 * kHalf * n.D);
    }
    feeder.put_tiles(layer.down, of_rows, n.F, n.D);
  }
  feeder.put_tiles(p.head, head_part(n, block), n.D, n.vocab);
}

// The thread that ends all waits of its block when the consumers have not moved on for too long.
__device__ void watch(const Block& b) {
  long long since = clock64();
  int last = 0;
#pragma unroll 1
  while (true) {
    const int now = *static_cast<volatile int*>(&b.s.progress);
    if (now < 0) return;
    if (now != last) {
      last = now;
      since = clock64();
    } else if (clock64() - since > kPatience) {
      b.report(*static_cast<volatile int*>(&b.s.awaited), (now - 1) / kPhases);
      since = clock64();
    }
    __nanosleep(1000);
  }
}

// kWide: chunks of D and of H V. kOfHidden: of F.
template <int kWide, int kOfHidden, int kShare>
__device__ void compute(Block& b, const Role& role) {
  const Params& p = b.p;
  const Sizes& n = p.n;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  int64_t id = *p.id;
  if (id < 0 || id >= n.vocab) {
    if (tid == 0) b.report(kId, 0);
    id = 0;
  }
  const auto* const embedding = static_cast<const __nv_bfloat16*>(p.embeddings) + id * n.D;
  const Part of_rows = row_part(n, static_cast<int>(blockIdx.x));
  const int own_row = kTileRows * of_rows.first + min(tid, kTileRows * of_rows.count - 1);
  float residual = of_rows.count > 0 ? __bfloat162float(embedding[own_row]) : 0.0F;  // of one row, in the first threads

  const auto sum_at = [&](int row) { return sum_of_warps(b.s.part[b.turn][min(row, kRound * kTileRows - 1)]); };
  // `value` of the first `count` threads, as pairs of bf16 to the words from `to` on.
  const auto send_pairs = [&](uint64_t* to, int count, float value, unsigned epoch) {
    const float next = __shfl_down_sync(0xFFFFFFFFU, value, 1);
    if (tid < count && tid % 2 == 0) send(to + tid / 2, epoch, pack(value, next));
  };
#pragma unroll 1
  for (int phase = kProjection;;) {
    const Layer& layer = p.layer[b.layer];
    if (is_first_thread()) *static_cast<volatile int*>(&b.s.progress) = kPhases * b.layer + phase + 1;
    const Work work = b.s.work[phase];
    float4 weight[kWide];
    if (phase != kOutput) {
      const float* const from = phase == kProjection ? layer.mixer_norm : phase == kGateAndUp ? layer.mlp_norm : p.final_norm;
#pragma unroll
      for (int c = 0; c < kWide; ++c) weight[c] = __ldg(reinterpret_cast<const float4*>(from + present_column(c, n.D)));
    }
    MixerInputs<kShare> inputs = {};  // or it would be kept from turn to turn
    if (phase == kProjection) {
      if (role.kind == RoleKind::kKeys) load_keys(b, layer, role, inputs);
      if (role.kind == RoleKind::kValues) load_values(b, layer, role, inputs);
    }
    if (work.tiles > 0) {
      product<kWide>(
          b, work,
          [&] {
            if (phase == kProjection) inputs.settle();
          },
          [&] {
            if (phase == kOutput) {
              store_heads<kWide>(b, work.in);
              return 0.0F;
            }
            uint2 row[kWide];
            if (phase == kProjection && b.layer == 0) {
#pragma unroll
              for (int c = 0; c < kWide; ++c) {
                row[c] = if_present(c, n.D, *reinterpret_cast<const uint2*>(embedding + present_column(c, n.D)));
              }
            } else {
              receive_row(b, work.from, work.in, phase == kProjection ? kInput : phase == kGateAndUp ? kBetween : kLast, row);
            }
            return store_normed(b, row, weight);
          },
          [&](int first, int count) {
            constexpr int kHalf = kTileRows / 2;
            const int of_tile = phase == kGateAndUp ? kHalf : kTileRows, results = of_tile * count;
            if (32 * warp >= results) return;
            if (phase == kOutput) {
              residual += sum_at(tid);
              send_pairs(b.to(work.to), results, residual, b.epoch());
              return;
            }
            const float rate = rsqrtf(fmaxf(fmaf(sum_of_warps(b.s.squares[b.turn]), work.inverse, p.eps), kSmallest));
            if (phase == kGateAndUp) {
              const int row = tid / kHalf * kTileRows + tid % kHalf;
              const float gate = rate * sum_at(row), up = rate * sum_at(row + kHalf);
              send_pairs(b.to(work.to + first * kHalf / 2), results, gate * rowwise::sigmoid(gate) * up, b.epoch());
              return;
            }
            const float value = rate * sum_at(tid);
            if (phase == kProjection) {
              send_pairs(b.to(work.to + first * kTileRows / 2), results, value, b.epoch());
            } else {
              const int row = work.to + kTileRows * first + tid;
              const bool aborted = *static_cast<volatile int*>(&b.s.aborted) != 0;
              if (tid < results && row < n.vocab) p.logits[row] = aborted ? __int_as_float(0x7FFFFFFF) : value;
            }
          });
    } else if (phase == kProjection) {
      inputs.settle();  // a block without rows of the projection may have a part of the mixer
    }
    if (phase == kHead) {
      b.store_marks();
      break;
    }
    if (phase == kProjection) {
      if (role.kind == RoleKind::kKeys) step_keys(b, layer, role, inputs);
      if (role.kind == RoleKind::kValues) step_values(b, layer, role, inputs);
    }
    if (phase != kGateAndUp) {
      ++phase;
      continue;
    }
    const Work down = b.s.work[kDown];
    if (is_first_thread()) *static_cast<volatile int*>(&b.s.progress) = kPhases * b.layer + kDown + 1;
    if (down.tiles > 0) {
      product<kOfHidden>(
          b, down, [] {},
          [&] {
            uint2 row[kOfHidden];
            receive_row(b, down.from, down.in, kHidden, row);
#pragma unroll
            for (int c = 0; c < kOfHidden; ++c) store_unit(b, c, row[c]);
            return 0.0F;
          },
          [&](int, int count) {
            const int results = kTileRows * count;
            if (32 * warp >= results) return;
            residual += sum_at(tid);
            send_pairs(b.of_next_layer(down.to), results, residual, b.epoch() + 1);
          });
    }
    b.store_marks();
    b.next_layer();
    phase = b.layer < n.layers ? kProjection : kHead;
  }
  if (is_first_thread()) *static_cast<volatile int*>(&b.s.progress) = -1;
}

// The work of all phases.
__device__ void plan(const Params& p, Shared& s) {
  const Sizes& n = p.n;
  const Words words = words_of(n);
  s.words = words;
  s.role = role_of(n, static_cast<int>(blockIdx.x));
  const int block = static_cast<int>(blockIdx.x);
  const Part of_y = projection_part(n, block), of_rows = row_part(n, block), of_hidden = hidden_part(n, block),
             of_head = head_part(n, block);
  s.work[kProjection] = {of_y.count, n.D, words.x, words.y + kTileRows / 2 * of_y.first, 0};
  s.work[kOutput] = {of_rows.count, n.H * n.V, words.o, words.between + kTileRows / 2 * of_rows.first, 10};
  s.work[kGateAndUp] = {of_hidden.count, n.D, words.between, words.hidden + kTileRows / 4 * of_hidden.first, 15};
  s.work[kDown] = {of_rows.count, n.F, words.hidden, words.x + kTileRows / 2 * of_rows.first, 20};
  s.work[kHead] = {of_head.count, n.D, words.x, kTileRows * of_head.first, 0};
  for (Work& work : s.work) work.inverse = 1.0F / static_cast<float>(work.in);
}

template <int kWide, int kOfHidden, int kShare>
__global__ void __launch_bounds__(kThreads, 1) decode_whole_step_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int tid = static_cast<int>(threadIdx.x);
  if (tid == 0) {
    s.aborted = 0;
    s.progress = 0;
    s.awaited = kNothing;
    for (int i = 0; i < kMarks; ++i) s.marks[i] = 0;
    const unsigned long long launch = atomicAdd(p.tickets, 1ULL) / gridDim.x;
    s.base = static_cast<unsigned>(launch * static_cast<unsigned long long>(p.n.layers + 1) + 1);
  } else if (tid == kHelper) {
    plan(p, s);
  } else if (tid == kFeeder) {
    for (int i = 0; i < kStages; ++i) {
      sm90::barrier_init(&s.full[i], 1);
      sm90::barrier_init(&s.empty[i], kWarps);
    }
    sm90::fence_barrier_init();
    sm90::fence_async_proxy();
  }
  __syncthreads();
  const Role& role = s.role;
  if (tid < kConsumers) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    Block b(p, s, raw + kSharedBytes);
    compute<kWide, kOfHidden, kShare>(b, role);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    Block b(p, s, raw + kSharedBytes);
    if (tid < kFeeder) {
      prefetch_layer(p, p.layer[0], role);
#pragma unroll 1
      for (; b.layer < p.n.layers; b.next_layer()) help(b, role);
    } else if (tid == kFeeder) {
      feed(b, role);
    } else if (tid == kWatch) {
      watch(b);
    }
  }
}

using Kernel = void (*)(Params);

// The smallest kernel whose registers hold the rows.
Kernel kernel_for(const Sizes& n) {
  const int wide = chunks_of(std::max(n.D, n.H * n.V)), hidden = chunks_of(n.F);
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
  return nullptr;
}

cudaError_t whole_step(const Params& p, cudaStream_t stream) {
  const auto kernel = kernel_for(p.n);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  constexpr int kBytes = kSharedBytes + kRingBytes;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.n.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(kBytes);
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
  static constexpr const char* kNames[kMarks] = {"projections: weights here",
                                                 "projections: weights in registers",
                                                 "projections: wait for x",
                                                 "projections: multiplied",
                                                 "projections: summed, sent",
                                                 "mixer: ready (values: table in registers)",
                                                 "mixer: wait for y (values: and gate)",
                                                 "mixer: scores sent (values: state updated)",
                                                 "mixer: wait for scores",
                                                 "mixer: o sent",
                                                 "output: weights here",
                                                 "output: weights in registers",
                                                 "output: wait for o",
                                                 "output: multiplied",
                                                 "output: summed, sent",
                                                 "SwiGLU: weights here",
                                                 "SwiGLU: weights in registers",
                                                 "SwiGLU: wait for x",
                                                 "SwiGLU: multiplied",
                                                 "SwiGLU: summed, sent",
                                                 "down: weights here",
                                                 "down: weights in registers",
                                                 "down: wait for hidden units",
                                                 "down: multiplied",
                                                 "down: summed, sent"};
  return kNames;
}

}  // namespace cyfa::whole_step
