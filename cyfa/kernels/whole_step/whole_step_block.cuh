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
constexpr int kWatch = kConsumers + 64;     // the thread that ends waits which take too long
constexpr int kRound = 16;                  // tiles whose sums over warps are taken together
constexpr int kMaxSlots = 128, kMaxWidth = 256, kMaxChunks = 6;
constexpr long long kPatience = 4'000'000'000;  // clock cycles, about two seconds

enum Awaited : int { kNothing, kInput, kProjections, kClock, kScores, kHeads, kBetween, kHidden, kLast, kWeights, kRoom, kId };

// The products of a layer, and the head.
enum Phase : int { kProjection, kOutput, kGateAndUp, kDown, kHead, kPhases };

// What a block does in a phase.
struct Work {
  int tiles, in;
  int from, to;   // words of the row, and of the block's first result
  int marks;      // the first of its five marks
  float inverse;  // of `in`
};

struct Shared {
  float part[2][kRound * kTileRows][kWarps];  // sums of products over the columns of a warp
  float squares[2][kWarps];
  uint4 row[kWarps][kMaxChunks][kUnitColumns / 8];  // a warp's units of the row, in bf16
  // The readout: weighted sums of the table's rows, and maximum and total of the weights, over the rows of a warp.
  float mixed[kWarps][kMaxSlots];
  float4 powers[kWarps][kMaxSlots / kWarps / 4];
  float4 scales[kWarps / 2];
  float slots[2][kWarps][16];  // sums over the key rows of a warp
  float4 norms[2][kWarps];     // |q|^2, |k|^2, q k
  float out[kWarps][32];
  float v[2][32];
  float2 trig[2][kMaxSlots / 2];
  float2 write[2][kMaxSlots / 2];
  float alpha[2];
  Work work[kPhases];
  Words words;
  Role role;
  uint64_t full[16], empty[16];
  long long marks[kMarks];
  unsigned base;  // epoch of layer 0
  int progress;   // of the consumers: phase and layer
  int awaited;    // by whoever had to wait last
  int aborted;    // 0: no; 1: words are not waited for; 2: weights neither
};

// Bytes of shared memory before the ring, which bulk copies want aligned.
constexpr int kSharedBytes = (static_cast<int>(sizeof(Shared)) + 127) / 128 * 128;
constexpr int kMaxSharedBytes = 227 * 1024;
constexpr int kStages = (kMaxSharedBytes - kSharedBytes) / kStageBytes, kRingBytes = kStages * kStageBytes;
static_assert(kStages >= 9 && kStages <= 16);

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

// Asked anew each time: the compiler would otherwise keep the answer in a predicate through the whole kernel, and there are too few.
__device__ __forceinline__ bool is_first_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread == 0;
}

// A thread's view of its block. What is only done after a wait that did not end at once is little: code that is not executed takes part in
// the transport of code that is.
struct Block {
  const Params& p;
  Shared& s;
  char* const ring;
  const Words& words;
  uint64_t* here;  // the words of this layer's parity
  unsigned base;
  // Where this thread's warp is in the ring, and how often it has been around, modulo 2.
  int stage = 0, round = 0;
  int layer = 0;
  int turn = 0;  // which half of `part` is next

  __device__ Block(const Params& params, Shared& shared, char* memory)
      : p(params), s(shared), ring(memory), words(shared.words), here(params.words), base(shared.base) {}

  __device__ unsigned epoch() const { return base + static_cast<unsigned>(layer); }
  __device__ const uint64_t* from(int word) const { return here + word; }
  __device__ uint64_t* to(int word) const { return here + word; }
  __device__ uint64_t* of_next_layer(int word) const { return p.words + ((layer + 1) & 1) * words.of_layer + word; }

  __device__ void report(int what, int at_layer) const {
    *static_cast<volatile int*>(&s.aborted) = *static_cast<volatile int*>(&s.aborted) + 1;
    if (*static_cast<volatile int*>(p.error) != 0) return;
    *static_cast<volatile int*>(p.error) = what | at_layer << 8 | static_cast<int>(blockIdx.x) << 16;
  }
  // Called in each turn of a waiting loop: whether to stop waiting. Weights come from memory and not from other blocks: waits for them go
  // on at first, since ring and copies stay in step that way.
  __device__ __forceinline__ bool given_up(Awaited what) const {
    if (what != kNothing && what != kRoom) *static_cast<volatile int*>(&s.awaited) = what;
    return *static_cast<volatile int*>(&s.aborted) > (what == kWeights || what == kRoom ? 1 : 0);
  }
  __device__ __forceinline__ bool is_complete(uint64_t* barrier, int parity) const {
    int done;
    asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.s32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(sm90::shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
  }

  // Waits until all of the warp's words have arrived.
  template <class Word, int kCount>
  __device__ __forceinline__ void receive(Word (&x)[kCount], const uint64_t* const (&at)[kCount], Awaited what) const {
    const unsigned wanted = epoch();
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) load_word(at[i], x[i]);
      const bool stop = given_up(what);  // while the words are on their way
      bool all = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i) all = all && is_of(x[i], wanted);
      if (__all_sync(0xFFFFFFFFU, all)) return;
      if (__any_sync(0xFFFFFFFFU, stop)) return;
    }
  }

  // Waits for the bytes of the next `count` stages of the ring, each lane for one; at most 32.
  __device__ __forceinline__ void take(int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, at = stage + lane;
    const bool wrapped = at >= kStages, has = lane < count;
    uint64_t* const barrier = &s.full[wrapped ? at - kStages : at];
#pragma unroll 1
    while (true) {
      const bool done = !has || is_complete(barrier, wrapped ? round ^ 1 : round);
      if (__all_sync(0xFFFFFFFFU, done) || __any_sync(0xFFFFFFFFU, given_up(kWeights))) break;
    }
    __syncwarp();  // each lane now has seen what all have
  }
  // Hands them back, when the whole warp has read them, and moves on.
  __device__ __forceinline__ void give_back(int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32, at = stage + lane;
    __syncwarp();
    if (lane < count) sm90::barrier_arrive(&s.empty[at < kStages ? at : at - kStages]);
    step_on(count);
  }
  __device__ __forceinline__ void step_on(int count) {
    stage += count;
    if (stage >= kStages) {
      stage -= kStages;
      round ^= 1;
    }
  }
  // Sixteen bytes that begin `offset` bytes after the start of this stage, around the ring.
  __device__ __forceinline__ uint4 read(int offset) const {
    const int at = stage * kStageBytes + offset;
    return *reinterpret_cast<const uint4*>(ring + (at < kRingBytes ? at : at - kRingBytes));
  }

  __device__ __forceinline__ void mark(int index) const {
    if (p.marks != nullptr && is_first_thread()) s.marks[index] = clock64();
  }
  __device__ __forceinline__ void next_layer() {
    here = of_next_layer(0);
    ++layer;
  }
  // Stores the layer's marks in global memory.
  __device__ __forceinline__ void store_marks() const {
    if (p.marks == nullptr || !is_first_thread()) return;
    long long* const to = p.marks + (static_cast<int64_t>(blockIdx.x) * (p.n.layers + 1) + layer) * kMarks;
#pragma unroll 1
    for (int i = 0; i < kMarks; ++i) {
      to[i] = s.marks[i];
      s.marks[i] = 0;
    }
  }

  __device__ void consumers_meet() const { sm90::named_barrier(1, kConsumers); }
  __device__ void all_but_feeder_meet() const { sm90::named_barrier(2, kConsumers + 32); }
};

}  // namespace cyfa::whole_step
