// Sampling on a GPU (sample_cuda.h). A row of logits stays in the caches, so every pass reads it again rather than keeping candidates.
#include "cyfa/kernels/sampling/sample_cuda.h"

namespace cyfa::sampling {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;  // of a digit of 11 bits

// A number of tokens or a sum of weights, counted in bins by native 32-bit atomics.
struct Histogram {
  uint32_t low[kBins], high[kBins];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) low[i] = high[i] = 0;
  }
  __device__ void add(uint32_t bin, uint64_t amount) {
    const auto part = static_cast<uint32_t>(amount);
    const uint32_t before = atomicAdd(&low[bin], part);
    const auto rest = static_cast<uint32_t>(amount >> 32) + (before + part < before ? 1U : 0U);
    if (rest != 0) atomicAdd(&high[bin], rest);
  }
  __device__ uint64_t sum(uint32_t bin) const { return (static_cast<uint64_t>(high[bin]) << 32) | low[bin]; }
};

struct Shared {
  Histogram histogram;
  uint64_t of_warp[kWarps];
  uint32_t own_rank[kThreads];  // of the largest logit that each thread has seen
  float best[kWarps];
  int best_id[kWarps];
  uint32_t bin;
  uint64_t before, in_bin;
  int found;
};

// The tokens that come before `key`, and those at `key` with an id of at most `last`.
struct Cut {
  uint32_t key = ~0U;
  int last = 0x7FFFFFFF;

  __device__ bool keeps(uint32_t k, int id) const { return k < key || (k == key && id <= last); }
};

// The sum of x over this thread and those before it; *all receives the sum over the block.
__device__ uint64_t inclusive_sum(uint64_t x, Shared& s, uint64_t* all) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(~0U, x, step);
    if (lane >= step) x += other;
  }
  __syncthreads();
  if (lane == 31) s.of_warp[warp] = x;
  __syncthreads();
  *all = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) x += s.of_warp[w];
    *all += s.of_warp[w];
  }
  return x;
}

// One row and the cuts made so far.
struct Row {
  const SampleCuda& p;
  const float* logits;
  const uint8_t* seen;
  float best = 0;
  Cut by_logit, by_distance;

  __device__ float logit(int id) const { return adjusted(logits[id], seen != nullptr && seen[id] != 0, p.rule.penalty); }
  // Smaller for larger logits.
  static __device__ uint32_t rank(float logit) {
    const uint32_t bits = __float_as_uint(logit);
    return (bits >> 31) != 0 ? bits : ~bits & 0x7FFFFFFFU;
  }
  __device__ uint32_t distance(float logit) const { return sampling::distance(best, logit, p.rule.scale); }
  // The weight of a token, 0 if a cut leaves it out.
  __device__ uint64_t weight(int id) const {
    const float x = logit(id);
    if (!by_logit.keeps(rank(x), id)) return 0;
    const uint32_t d = distance(x);
    return by_distance.keeps(d, id) ? sampling::weight(d) : 0;
  }
};

// Calls visit(id) for all tokens.
template <class Visit>
__device__ void for_all(int vocab, const Visit& visit) {
#pragma unroll 4
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kThreads) visit(id);
}

// The largest logit and its smallest id.
__device__ int find_best(Row& row, int vocab, Shared& s) {
  float best = -INFINITY;
  int best_id = 0x7FFFFFFF;
  const auto take = [&](float x, int id) {
    if (x > best || (x == best && id < best_id)) {
      best = x;
      best_id = id;
    }
  };
  for_all(vocab, [&](int id) { take(row.logit(id), id); });
  s.own_rank[threadIdx.x] = Row::rank(best);
  for (int step = 16; step > 0; step /= 2) take(__shfl_xor_sync(~0U, best, step), __shfl_xor_sync(~0U, best_id, step));
  if (threadIdx.x % 32 == 0) {
    s.best[threadIdx.x / 32] = best;
    s.best_id[threadIdx.x / 32] = best_id;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) take(s.best[w], s.best_id[w]);
  row.best = best;
  return best_id;
}

// The cut after which amount(id), summed over tokens in the order of key(id) and then id, first reaches `target`, which the sum over all
// does. Tokens of key k have the amount each(k), or 0 if they are left out. Radix selection by digits of 11, 11 and 10 bits.
template <class Key, class Amount, class Each>
__device__ Cut find_cut(int vocab, uint64_t target, const Key& key, const Amount& amount, const Each& each, Shared& s) {
  uint32_t prefix = 0, known = 0;
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
    const uint32_t digit = shift == 0 ? 1023 : 2047;
    __syncthreads();
    s.histogram.clear();
    __syncthreads();
    for_all(vocab, [&](int id) {
      const uint32_t k = key(id);
      if ((k & known) != prefix) return;
      const uint64_t a = amount(id);
      if (a != 0) s.histogram.add((k >> shift) & digit, a);
    });
    __syncthreads();
    const uint32_t bin = 2 * threadIdx.x;
    const uint64_t first = s.histogram.sum(bin), second = s.histogram.sum(bin + 1);
    uint64_t all = 0;
    const uint64_t end = inclusive_sum(first + second, s, &all), begin = end - first - second;
    if (begin < target && target <= end) {
      const bool in_first = target <= begin + first;
      s.bin = in_first ? bin : bin + 1;
      s.before = in_first ? begin : begin + first;
      s.in_bin = in_first ? first : second;
    }
    __syncthreads();
    prefix |= s.bin << shift;
    known |= digit << shift;
    target -= s.before;
  }
  Cut cut{prefix};
  if (target + each(prefix) > s.in_bin) return cut;  // all tokens of this key
  uint64_t before = 0;
  for (int begin = 0;; begin += kThreads) {  // among equal keys: by id
    const int id = begin + static_cast<int>(threadIdx.x);
    const uint64_t a = id < vocab && key(id) == prefix ? amount(id) : 0;
    uint64_t all = 0;
    const uint64_t end = before + inclusive_sum(a, s, &all);
    if (end - a < target && target <= end && a != 0) s.found = id;
    before += all;
    if (before >= target) break;
  }
  __syncthreads();
  cut.last = s.found;
  return cut;
}

// Sums of the weights of kWarps equal ranges of ids, in s.of_warp; returns the sum of all.
__device__ uint64_t weigh(const Row& row, int vocab, int range, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int end = min(vocab, (warp + 1) * range);
  uint64_t sum = 0;
#pragma unroll 4
  for (int id = warp * range + lane; id < end; id += 32) sum += row.weight(id);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  __syncthreads();
  if (lane == 0) s.of_warp[warp] = sum;
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < kWarps; ++w) total += s.of_warp[w];
  return total;
}

__device__ int draw(Row& row, int vocab, uint64_t position, Shared& s) {
  const Rule& rule = row.p.rule;
  const int range = (vocab + kWarps - 1) / kWarps;
  if (rule.top_k > 0 && rule.top_k < vocab) {
    // At least k logits are as large as the k-th of the threads' largest ones. Smaller ones need not be counted.
    const auto k = static_cast<uint64_t>(rule.top_k);
    const auto one = [](uint32_t) { return uint64_t{1}; };
    const auto own_rank = [&](int thread) { return s.own_rank[thread]; };
    const uint32_t bound = k <= kThreads ? find_cut(kThreads, k, own_rank, one, one, s).key : ~0U;
    const auto rank = [&](int id) { return Row::rank(row.logit(id)); };
    const auto counted = [&](int id) { return uint64_t{rank(id) <= bound ? 1U : 0U}; };
    row.by_logit = find_cut(vocab, k, rank, counted, one, s);
  }
  row.by_distance.key = rule.farthest;
  uint64_t total = weigh(row, vocab, range, s);
  if (rule.top_p < 1) {
    const auto distance = [&](int id) { return row.distance(row.logit(id)); };
    const auto weight = [&](int id) { return row.weight(id); };
    row.by_distance = find_cut(
        vocab, top_p_target(rule.top_p, total), distance, weight, [](uint32_t d) { return sampling::weight(d); }, s);
    total = weigh(row, vocab, range, s);
  }
  const uint64_t point = drawn_point(rule, position, total);
  uint64_t before = 0;
  int place = 0;
  for (; before + s.of_warp[place] <= point; ++place) before += s.of_warp[place];
  for (int begin = place * range;; begin += kThreads) {
    const int id = begin + static_cast<int>(threadIdx.x);
    const uint64_t w = id < min(vocab, (place + 1) * range) ? row.weight(id) : 0;
    uint64_t all = 0;
    const uint64_t end = before + inclusive_sum(w, s, &all);
    if (end - w <= point && point < end) s.found = id;
    before += all;
    if (before > point) break;
  }
  __syncthreads();
  return s.found;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(SampleCuda p) {
  __shared__ Shared s;
  const auto at = static_cast<int64_t>(blockIdx.x);
  const int vocab = static_cast<int>(p.vocab);
  Row row{p, p.logits + at * p.vocab, p.seen == nullptr ? nullptr : p.seen + at * p.vocab};
  int id = find_best(row, vocab, s);
  const bool finite = isfinite(row.best);
  if (finite && !p.rule.greedy) id = draw(row, vocab, p.positions[at], s);
  if (threadIdx.x != 0) return;
  p.ids[at] = finite ? id : 0;
  p.drawn[at] = finite ? id : -1;
  ++p.positions[at];
  if (p.seen != nullptr && finite) p.seen[at * p.vocab + id] = 1;
}

}  // namespace

cudaError_t sample_cuda(const SampleCuda& p, cudaStream_t stream) {
  if (p.rows < 1 || p.vocab < 1 || p.vocab >= int64_t{1} << 24) return cudaErrorInvalidValue;
  sample_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace cyfa::sampling
