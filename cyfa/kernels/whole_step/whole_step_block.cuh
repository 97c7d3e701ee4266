// What the parts of the whole step share: the memory of a thread block, waits that end, the words in which blocks exchange results, and the
// ring of shared memory through which all weights of a block pass in the order of their use. Included by whole_step_sm90.cu only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cyfa/kernels/rowwise/vector.cuh"
#include "cyfa/kernels/sm90/tma.cuh"
#include "cyfa/kernels/whole_step/whole_step_sm90.h"

namespace cyfa::whole_step {

constexpr int kConsumers = 32 * kWarps;     // threads that compute
constexpr int kHelper = kConsumers;         // first thread of the warp that computes gates and clock and prefetches into the L2
constexpr int kFeeder = kConsumers + 32;    // first thread of the warp that fills the ring
constexpr int kThreads = kConsumers + 128;  // a whole warpgroup beside the consumers', to hand registers to them
constexpr int kRound = 16;                  // tiles whose sums over warps are taken together
constexpr int kMaxSlots = 128, kMaxWidth = 256;
constexpr long long kPatience = 4'000'000'000;  // clock cycles, about two seconds

enum Awaited : int { kNothing, kInput, kProjections, kClock, kScores, kHeads, kBetween, kHidden, kLast, kWeights, kRoom, kId };

struct Shared {
  float part[2][kWarps][kRound * kTileRows];  // sums of products over the columns of a warp
  float squares[2][kWarps];
  // The readout: weighted sums of the table's rows, and maximum and total of the weights, over the rows of a warp.
  float mixed[kWarps][kMaxSlots];
  float2 scales[kWarps];
  float slots[2][kWarps][16];  // sums over the key rows of a warp
  float4 norms[2][kWarps];     // |q|^2, |k|^2, q k
  float out[kWarps][32];
  float v[2][32];
  float2 trig[2][kMaxSlots / 2];
  float2 write[2][kMaxSlots / 2];
  float alpha[2];
  uint64_t full[kMaxStages], empty[kMaxStages];
  unsigned base;  // epoch of layer 0
  int aborted;
};

// Bytes of shared memory before the ring, which bulk copies want aligned.
constexpr int kSharedBytes = (static_cast<int>(sizeof(Shared)) + 127) / 128 * 128;

__device__ __forceinline__ uint64_t load_word(const uint64_t* from) {
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ void load_word(const uint64_t* from, uint64_t& x) { x = load_word(from); }
// Two neighbouring words, each of which is consistent.
__device__ __forceinline__ void load_word(const uint64_t* from, ulonglong2& x) {
  uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
  x = make_ulonglong2(a, b);
}
__device__ __forceinline__ bool is_of(uint64_t x, unsigned epoch) { return static_cast<unsigned>(x >> 32) == epoch; }
__device__ __forceinline__ bool is_of(ulonglong2 x, unsigned epoch) { return is_of(x.x, epoch) && is_of(x.y, epoch); }
__device__ __forceinline__ void send(uint64_t* to, unsigned epoch, unsigned value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(static_cast<uint64_t>(epoch) << 32 | value) : "memory");
}
__device__ __forceinline__ unsigned low(uint64_t x) { return static_cast<unsigned>(x); }
__device__ __forceinline__ float low_float(uint64_t x) { return __uint_as_float(low(x)); }

// A thread's view of its block.
struct Block {
  const Params& p;
  Shared& s;
  char* const ring;
  const Words words;
  const int stage_bytes, stages;
  // Where this thread's warp is in the ring, and how often it has been around, modulo 2.
  int stage = 0, round = 0;
  int layer = 0;
  int turn = 0;  // which half of `part` is next

  __device__ Block(const Params& params, Shared& shared, char* memory, int ring_stages)
      : p(params), s(shared), ring(memory), words(words_of(params.n)), stage_bytes(params.n.stage_bytes()), stages(ring_stages) {}

  __device__ unsigned epoch() const { return s.base + static_cast<unsigned>(layer); }
  __device__ const uint64_t* from(int word) const { return p.words + (layer & 1) * words.of_layer + word; }
  __device__ uint64_t* to(int word) const { return p.words + (layer & 1) * words.of_layer + word; }

  __device__ void report(Awaited what) const {
    if (atomicExch(&s.aborted, 1) != 0 || *static_cast<volatile int*>(p.error) != 0) return;
    *static_cast<volatile int*>(p.error) = what | layer << 8 | static_cast<int>(blockIdx.x) << 16;
  }
  // Called in each turn of a waiting loop, with since = 0 at first: whether to stop waiting.
  __device__ bool give_up(long long& since, Awaited what) const {
    const long long now = clock64();
    if (since == 0) since = now;
    if (now - since > kPatience) report(what);
    return *static_cast<volatile int*>(&s.aborted) != 0;
  }
  __device__ void wait(uint64_t* barrier, int parity, Awaited what) const {
    long long since = 0;
    while (true) {
      int done;
      asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.s32 %0, 1, 0, done;\n}"
                   : "=r"(done)
                   : "r"(sm90::shared_address(barrier)), "r"(parity)
                   : "memory");
      if (done != 0 || give_up(since, what)) return;
    }
  }

  // Waits until all of the warp's words have arrived. Null is no word.
  template <class Word, int kCount>
  __device__ __forceinline__ void receive(Word (&x)[kCount], const uint64_t* const (&at)[kCount], Awaited what) const {
    const unsigned wanted = epoch();
    long long since = 0;
    bool here[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = {};
      here[i] = at[i] == nullptr;
    }
    while (true) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!here[i]) load_word(at[i], x[i]);
      }
      bool all = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        here[i] = here[i] || is_of(x[i], wanted);
        all = all && here[i];
      }
      if (__all_sync(0xFFFFFFFFU, all)) return;
      if (__any_sync(0xFFFFFFFFU, give_up(since, what))) return;
    }
  }

  // The next `count` stages of the ring, when their bytes are there; returns where they begin. A thing in the ring may go on at its start.
  __device__ int take(int count) const {
    int at = stage, parity = round;
    for (int i = 0; i < count; ++i) {
      wait(&s.full[at], parity, kWeights);
      if (++at == stages) {
        at = 0;
        parity ^= 1;
      }
    }
    return stage * stage_bytes;
  }
  // Hands them back, when the whole warp has read them, and moves on.
  __device__ void give_back(int count) {
    __syncwarp();
    for (int i = 0; i < count; ++i) {
      if (threadIdx.x % 32 == 0) sm90::barrier_arrive(&s.empty[stage]);
      step_on();
    }
  }
  __device__ void step_on() {
    if (++stage == stages) {
      stage = 0;
      round ^= 1;
    }
  }
  // Sixteen bytes of the ring; `offset` is less than twice its size.
  __device__ uint4 read(int offset) const {
    const int size = stages * stage_bytes;
    return *reinterpret_cast<const uint4*>(ring + (offset < size ? offset : offset - size));
  }

  __device__ void mark(int index) const {
    if (p.marks == nullptr || threadIdx.x != 0) return;
    p.marks[(static_cast<int64_t>(blockIdx.x) * (p.n.layers + 1) + layer) * kMarks + index] = clock64();
  }

  __device__ void consumers_meet() const { sm90::named_barrier(1, kConsumers); }
  __device__ void all_but_feeder_meet() const { sm90::named_barrier(2, kConsumers + 32); }
};

}  // namespace cyfa::whole_step
