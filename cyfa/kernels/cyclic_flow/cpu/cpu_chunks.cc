// Forward of one head's segment (cpu_chunks.h), and what its backward shares with it. Numbers in comments are the steps of
// docs/operator.md, "Chunks". Overwrites the outputs and the workspace.
#include "cyfa/kernels/cyclic_flow/cpu/cpu_chunks.h"

#include "cyfa/kernels/cyclic_flow/cpu/cpu_chunks_impl.h"
#include "cyfa/kernels/rowwise/rowwise.h"

namespace cyfa::cyclic_flow {
namespace {

constexpr int64_t kAlign = 16;  // floats of a cache line

// Gives out consecutive parts of an array, or only counts if there is none.
class Parts {
 public:
  explicit Parts(float* base) : base_(base) {}
  float* take(int64_t count) {
    float* part = base_ == nullptr ? nullptr : base_ + taken_;
    taken_ += (count + kAlign - 1) / kAlign * kAlign;
    return part;
  }
  int64_t taken() const { return taken_; }

 private:
  float* base_;
  int64_t taken_ = 0;
};

void lay_out(const ChunkSizes& s, int64_t tokens, Parts& parts, ChunkWorkspace::Arrays& x) {
  const auto take = [&](int64_t count, std::initializer_list<float**> arrays) {
    for (float** array : arrays) *array = parts.take(count);
  };
  take(s.C * s.K, {&x.q, &x.k, &x.q_raw});
  take(s.C * s.V, {&x.v, &x.o});
  take(s.C * s.M, {&x.trig, &x.addresses, &x.writes, &x.decayed, &x.slots, &x.probs, &x.reads});
  take(s.C * s.C, {&x.decay.between, &x.pairs_k, &x.pairs_v});
  take(s.C, {&x.decay.from_start, &x.decay.to_end, &x.rate_q, &x.rate_k});
  if (tokens == 0) return;
  const int64_t chunks = (tokens + s.C - 1) / s.C;
  take(s.C * s.K, {&x.q_unit, &x.k_unit, &x.grad_q, &x.grad_k});
  take(s.C * s.V, {&x.grad_v});
  take(s.C * s.M, {&x.grad_slots, &x.grad_reads, &x.grad_probs, &x.grad_writes, &x.grad_decayed, &x.decayed_reads});
  take(s.C * s.C, {&x.grad_pairs, &x.gate_pairs});
  take(s.C, {&x.read_gates, &x.written_gates, &x.turn, &x.dots});
  take(s.M, {&x.rates});
  take(s.K, {&x.weight_q, &x.weight_k});
  take(s.M * s.K, {&x.grad_state_k});
  take(s.V * s.M, {&x.grad_state_v});
  take(chunks * s.M * s.K, {&x.states_k});
  take(chunks * s.V * s.M, {&x.states_v});
  take(tokens * s.M, {&x.scores});
}

void normalise(const TokenRows& from, const float* weight, float factor, float eps, chunk::Range r, int64_t width, float* raw, float* rate,
               float* unit, float* to) {
  if (weight == nullptr) {
    chunk::load_rows(from, r.first, r.n, width, to);
    if (factor != 1.0F) chunk::scale(r.n * width, factor, to);
    return;
  }
  const float* x = raw;
  if (from.bf16) {
    chunk::load_rows(from, r.first, r.n, width, raw);
  } else {
    x = static_cast<const float*>(from.data) + r.first * from.stride;
  }
  rowwise::rms_norm(r.n, width, x, from.bf16 ? width : from.stride, weight, eps, rate, unit, to);
}

}  // namespace

ChunkWorkspace::ChunkWorkspace(const ChunkSizes& sizes, int64_t tokens) : sizes_(sizes), arrays_(std::make_unique<Arrays>()) {
  Parts count(nullptr);
  lay_out(sizes, tokens, count, *arrays_);
  auto room = static_cast<size_t>(count.taken() + kAlign) * sizeof(float);
  floats_ = std::make_unique_for_overwrite<float[]>(room / sizeof(float));
  doubles_ = std::make_unique_for_overwrite<double[]>(static_cast<size_t>(sizes.C));
  void* base = floats_.get();
  Parts parts(static_cast<float*>(std::align(kAlign * sizeof(float), static_cast<size_t>(count.taken()) * sizeof(float), base, room)));
  lay_out(sizes, tokens, parts, *arrays_);
  arrays_->sums = doubles_.get();
}

ChunkWorkspace::~ChunkWorkspace() = default;

namespace chunk {
namespace {

cpu::Isa isa() {
  static const cpu::Isa best = cpu::best_isa();
  return best;
}

}  // namespace

void multiply(int64_t m, int64_t n, int64_t k, dense::MatrixView a, dense::MatrixView b, float* c, dense::Triangle triangle) {
  dense::product({.m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .c_row = n, .triangle = triangle}, isa());
}

void multiply_add(int64_t m, int64_t n, int64_t k, dense::MatrixView a, dense::MatrixView b, float* c, dense::Triangle triangle) {
  dense::product({.m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .c_row = n, .keep = 1, .base = c, .triangle = triangle}, isa());
}

void advance(int64_t m, int64_t n, int64_t k, dense::MatrixView a, dense::MatrixView b, float keep, const float* before, float* next) {
  dense::product({.m = m, .n = n, .k = k, .a = a, .b = b, .c = next, .c_row = n, .keep = keep, .base = before}, isa());
}

void transpose(int64_t rows, int64_t columns, const float* from, float* to) { dense::transpose(rows, columns, from, to, isa()); }

void load_writes(const SegmentTokens& in, const HeadParams& head, const ChunkSizes& s, Range r, bool pairs, bool for_backward,
                 ChunkWorkspace::Arrays& x) {
  normalise(in.k, head.k_norm_weight, 1.0F, head.norm_eps, r, s.K, x.q_raw, x.rate_k, for_backward ? x.k_unit : nullptr, x.k);
  load_rows(in.v, r.first, r.n, s.V, x.v);
  decay_factors(r.n, in.log_alpha + r.first, pairs, x.sums, x.decay);
  phases(r.n, s.M, in.clock + r.first, x.trig);
  write_vectors(r.n, s.M, x.trig, in.beta + r.first, x.addresses, x.writes);
  scale_rows(r.n, s.M, x.decay.to_end, x.writes, x.decayed);
}

void load_queries(const SegmentTokens& in, const HeadParams& head, const ChunkSizes& s, Range r, bool for_backward,
                  ChunkWorkspace::Arrays& x) {
  normalise(in.q, head.q_norm_weight, head.scale, head.norm_eps, r, s.K, x.q_raw, x.rate_q, for_backward ? x.q_unit : nullptr, x.q);
}

}  // namespace chunk

void forward_segment(const SegmentTokens& in, const HeadParams& head, const SegmentOutputs& out, const ChunkWorkspace& workspace) {
  using namespace chunk;
  using dense::Triangle;
  const ChunkSizes& s = workspace.sizes();
  ChunkWorkspace::Arrays x = workspace.arrays();
  for (int64_t first = 0; first < in.count; first += s.C) {
    const Range r = chunk_at(first / s.C, s.C, in.count);
    const int64_t n = r.n;
    load_queries(in, head, s, r, false, x);
    load_writes(in, head, s, r, true, false, x);

    multiply(n, n, s.K, matrix(x.q, s.K), matrix(x.k, s.K).transposed(), x.pairs_k, Triangle::kLowerResult);  // 1
    apply_decay(n, x.decay.between, x.pairs_k);
    multiply(n, s.M, s.K, matrix(x.q, s.K), matrix(out.state_k, s.M), x.slots);  // 2
    scale_rows(n, s.M, x.decay.from_start, x.slots, x.slots);
    multiply_add(n, s.M, n, matrix(x.pairs_k, n), matrix(x.writes, s.M), x.slots, Triangle::kLowerLeft);
    if (out.scores.data != nullptr) store_rows(out.scores, r.first, n, s.M, x.slots);
    advance(s.K, s.M, n, matrix(x.k, s.K).transposed(), matrix(x.decayed, s.M), x.decay.whole, out.state_k, out.state_k);  // 6

    rotate(n, s.M, x.trig, x.slots);  // 3
    multiply(n, s.M, s.M, matrix(x.slots, s.M), matrix(head.table, s.M).transposed(), x.probs);
    softmax(n, s.M, x.probs);
    multiply(n, s.M, s.M, matrix(x.probs, s.M), matrix(head.table, s.M), x.reads);
    rotate_back(n, s.M, x.trig, x.reads);

    multiply(n, n, s.M, matrix(x.reads, s.M), matrix(x.writes, s.M).transposed(), x.pairs_v, Triangle::kLowerResult);  // 4
    apply_decay(n, x.decay.between, x.pairs_v);
    scale_rows(n, s.M, x.decay.from_start, x.reads, x.reads);
    multiply(n, s.V, s.M, matrix(x.reads, s.M), matrix(out.state_v, s.V), x.o);  // 5
    multiply_add(n, s.V, n, matrix(x.pairs_v, n), matrix(x.v, s.V), x.o, Triangle::kLowerLeft);
    store_rows(out.o, r.first, n, s.V, x.o);
    advance(s.M, s.V, n, matrix(x.decayed, s.M).transposed(), matrix(x.v, s.V), x.decay.whole, out.state_v, out.state_v);  // 6
  }
}

}  // namespace cyfa::cyclic_flow
