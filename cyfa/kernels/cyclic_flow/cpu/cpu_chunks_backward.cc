// Backward of one head's segment (cpu_chunks.h), by the formulas of docs/operator.md, "Chunks". Overwrites the gradients and the workspace.
//
// States and their gradients are kept transposed, S_K^T [M, K] and S_V^T [V, M]: most products then read them by rows.
#include <algorithm>
#include <numbers>

#include "cyfa/kernels/cyclic_flow/cpu/cpu_chunks.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_chunks_impl.h"
#include "cyfa/kernels/rowwise/rowwise.h"

namespace cyfa::cyclic_flow {
namespace {

using namespace chunk;
using dense::Triangle;

using Arrays = ChunkWorkspace::Arrays;

void start(const float* state, int64_t rows, int64_t columns, float* transposed) {
  if (state == nullptr) {
    std::fill_n(transposed, rows * columns, 0.0F);
  } else {
    transpose(rows, columns, state, transposed);
  }
}

// Computes the states at the start of every chunk, and the scores if forward has not kept them.
void recompute(const SegmentTokens& in, const HeadParams& head, const SegmentGradients& grad, const ChunkSizes& s, Arrays& x) {
  const bool scores = grad.scores.data == nullptr;
  const int64_t chunks = (in.count + s.C - 1) / s.C;
  start(grad.state_k, s.K, s.M, x.states_k);
  start(grad.state_v, s.M, s.V, x.states_v);
  for (int64_t c = 0; c < chunks; ++c) {
    const Range r = chunk_at(c, s.C, in.count);
    const float* state_k = x.states_k + c * s.M * s.K;
    const float* state_v = x.states_v + c * s.V * s.M;
    const bool last = c + 1 == chunks;
    if (last && !scores) break;
    load_writes(in, head, s, r, scores, false, x);
    if (scores) {
      float* y = x.scores + r.first * s.M;
      load_queries(in, head, s, r, false, x);
      multiply(r.n, r.n, s.K, matrix(x.q, s.K), matrix(x.k, s.K).transposed(), x.pairs_k, Triangle::kLowerResult);
      apply_decay(r.n, x.decay.between, x.pairs_k);
      multiply(r.n, s.M, s.K, matrix(x.q, s.K), matrix(state_k, s.K).transposed(), y);
      scale_rows(r.n, s.M, x.decay.from_start, y, y);
      multiply_add(r.n, s.M, r.n, matrix(x.pairs_k, r.n), matrix(x.writes, s.M), y, Triangle::kLowerLeft);
    }
    if (last) break;
    advance(s.M, s.K, r.n, matrix(x.decayed, s.M).transposed(), matrix(x.k, s.K), x.decay.whole, state_k, x.states_k + (c + 1) * s.M * s.K);
    advance(s.V, s.M, r.n, matrix(x.v, s.V).transposed(), matrix(x.decayed, s.M), x.decay.whole, state_v, x.states_v + (c + 1) * s.V * s.M);
  }
}

// Z, p and U of a chunk.
void read_slots(const SegmentGradients& grad, const HeadParams& head, const ChunkSizes& s, Range r, Arrays& x) {
  const TokenRows kept = grad.scores.data != nullptr ? grad.scores : TokenRows{x.scores, s.M, false};
  load_rows(kept, r.first, r.n, s.M, x.slots);
  rotate(r.n, s.M, x.trig, x.slots);
  multiply(r.n, s.M, s.M, matrix(x.slots, s.M), matrix(head.table, s.M).transposed(), x.probs);
  softmax(r.n, s.M, x.probs);
  multiply(r.n, s.M, s.M, matrix(x.probs, s.M), matrix(head.table, s.M), x.reads);
  rotate_back(r.n, s.M, x.trig, x.reads);
}

// From dO: dV, dU, and this pass's parts of dW and of the gates; dS_V is moved to the chunk's start. x.turn gets X(U, dU). Returns the part
// of the gates in the carried state.
double value_pass(const ChunkSizes& s, int64_t n, const float* state_v, Arrays& x) {
  multiply(n, n, s.M, matrix(x.reads, s.M), matrix(x.writes, s.M).transposed(), x.pairs_v, Triangle::kLowerResult);  // P'
  multiply(n, n, s.V, matrix(x.o, s.V), matrix(x.v, s.V).transposed(), x.grad_pairs, Triangle::kLowerResult);        // dP'
  apply_decay_backward(n, x.decay.between, x.pairs_v, x.grad_pairs, x.gate_pairs, false);

  multiply(n, s.M, s.V, matrix(x.o, s.V), matrix(state_v, s.M), x.grad_reads);  // dU
  scale_rows(n, s.M, x.decay.from_start, x.grad_reads, x.grad_reads);
  rowwise::dot(n, s.M, x.grad_reads, s.M, x.reads, s.M, x.read_gates);
  multiply_add(n, s.M, n, matrix(x.grad_pairs, n), matrix(x.writes, s.M), x.grad_reads, Triangle::kLowerLeft);
  rowwise::turn_dot(n, s.M / 2, x.reads, x.grad_reads, x.rates, x.turn);

  multiply(n, s.V, s.M, matrix(x.decayed, s.M), matrix(x.grad_state_v, s.M).transposed(), x.grad_v);  // dV
  multiply_add(n, s.V, n, matrix(x.pairs_v, n).transposed(), matrix(x.o, s.V), x.grad_v, Triangle::kUpperLeft);

  multiply(n, s.M, s.V, matrix(x.v, s.V), matrix(x.grad_state_v, s.M), x.grad_decayed);  // dW
  multiply(n, s.M, n, matrix(x.grad_pairs, n).transposed(), matrix(x.reads, s.M), x.grad_writes, Triangle::kUpperLeft);

  const double carried = dot(s.V * s.M, state_v, x.grad_state_v);
  scale_rows(n, s.M, x.decay.from_start, x.reads, x.decayed_reads);
  advance(s.V, s.M, n, matrix(x.o, s.V).transposed(), matrix(x.decayed_reads, s.M), x.decay.whole, x.grad_state_v, x.grad_state_v);
  return carried;
}

// From dU: dY, and the chunk's part of dA. x.turn loses X(Z, dZ), which equals X(Y, dY).
void readout(const HeadParams& head, const ChunkSizes& s, int64_t n, float* grad_table, Arrays& x) {
  rotate(n, s.M, x.trig, x.grad_reads);                                                                  // dX
  multiply(n, s.M, s.M, matrix(x.grad_reads, s.M), matrix(head.table, s.M).transposed(), x.grad_probs);  // dp
  softmax_backward(n, s.M, x.probs, x.grad_probs);                                                       // dL
  multiply_add(s.M, s.M, n, matrix(x.grad_probs, s.M).transposed(), matrix(x.slots, s.M), grad_table);   // dA
  multiply_add(s.M, s.M, n, matrix(x.probs, s.M).transposed(), matrix(x.grad_reads, s.M), grad_table);
  multiply(n, s.M, s.M, matrix(x.grad_probs, s.M), matrix(head.table, s.M), x.grad_slots);  // dZ
  rowwise::turn_dot(n, s.M / 2, x.slots, x.grad_slots, x.rates, x.dots);
  for (int64_t t = 0; t < n; ++t) x.turn[t] -= x.dots[t];
  rotate_back(n, s.M, x.trig, x.grad_slots);  // dY
}

// From dY: dQ, dK, the rest of dW and of the gates; dS_K is moved to the chunk's start. Returns the part of the gates in the carried state.
double key_pass(const ChunkSizes& s, int64_t n, const float* state_k, Arrays& x) {
  multiply(n, n, s.K, matrix(x.q, s.K), matrix(x.k, s.K).transposed(), x.pairs_k, Triangle::kLowerResult);                   // P
  multiply(n, n, s.M, matrix(x.grad_slots, s.M), matrix(x.writes, s.M).transposed(), x.grad_pairs, Triangle::kLowerResult);  // dP
  apply_decay_backward(n, x.decay.between, x.pairs_k, x.grad_pairs, x.gate_pairs, true);

  scale_rows(n, s.M, x.decay.from_start, x.grad_slots, x.decayed_reads);
  multiply(n, s.K, s.M, matrix(x.decayed_reads, s.M), matrix(state_k, s.K), x.grad_q);  // dQ
  rowwise::dot(n, s.K, x.grad_q, s.K, x.q, s.K, x.dots);
  add(n, x.dots, x.read_gates);
  multiply_add(n, s.K, n, matrix(x.grad_pairs, n), matrix(x.k, s.K), x.grad_q, Triangle::kLowerLeft);

  multiply(n, s.K, s.M, matrix(x.decayed, s.M), matrix(x.grad_state_k, s.K), x.grad_k);  // dK
  multiply_add(n, s.K, n, matrix(x.grad_pairs, n).transposed(), matrix(x.q, s.K), x.grad_k, Triangle::kUpperLeft);

  multiply_add(n, s.M, s.K, matrix(x.k, s.K), matrix(x.grad_state_k, s.K).transposed(), x.grad_decayed);  // dW
  scale_rows(n, s.M, x.decay.to_end, x.grad_decayed, x.grad_decayed);
  rowwise::dot(n, s.M, x.grad_decayed, s.M, x.writes, s.M, x.written_gates);
  add(n * s.M, x.grad_decayed, x.grad_writes);
  multiply_add(n, s.M, n, matrix(x.pairs_k, n).transposed(), matrix(x.grad_slots, s.M), x.grad_writes, Triangle::kUpperLeft);

  const double carried = dot(s.M * s.K, state_k, x.grad_state_k);
  advance(s.M, s.K, n, matrix(x.decayed_reads, s.M).transposed(), matrix(x.q, s.K), x.decay.whole, x.grad_state_k, x.grad_state_k);
  return carried;
}

}  // namespace

void backward_segment(const SegmentTokens& in, const HeadParams& head, const SegmentGradients& grad, const ChunkWorkspace& workspace) {
  const ChunkSizes& s = workspace.sizes();
  Arrays x = workspace.arrays();
  for (int64_t j = 0; j < s.M / 2; ++j) {
    x.rates[j] = static_cast<float>(static_cast<double>(j) * 2 * std::numbers::pi / static_cast<double>(s.M - 1));
  }
  std::fill_n(x.weight_q, s.K, 0.0F);
  std::fill_n(x.weight_k, s.K, 0.0F);
  transpose(s.K, s.M, grad.running_k, x.grad_state_k);
  transpose(s.M, s.V, grad.running_v, x.grad_state_v);
  recompute(in, head, grad, s, x);

  for (int64_t c = (in.count + s.C - 1) / s.C - 1; c >= 0; --c) {
    const Range r = chunk_at(c, s.C, in.count);
    const int64_t n = r.n;
    load_queries(in, head, s, r, true, x);
    load_writes(in, head, s, r, true, true, x);
    read_slots(grad, head, s, r, x);
    load_rows(grad.o, r.first, n, s.V, x.o);
    double carried = value_pass(s, n, x.states_v + c * s.V * s.M, x);
    readout(head, s, n, grad.table, x);
    carried += key_pass(s, n, x.states_k + c * s.M * s.K, x);

    gate_gradient(n, x.gate_pairs, x.read_gates, x.written_gates, x.decay.whole * carried, x.dots, grad.log_alpha + r.first);
    rowwise::dot(n, s.M, x.grad_writes, s.M, x.addresses, s.M, grad.beta + r.first);
    rowwise::turn_dot(n, s.M / 2, x.writes, x.grad_writes, x.rates, x.dots);
    for (int64_t t = n - 1; t >= 0; --t) {
      *grad.running_clock += static_cast<double>(x.turn[t] + x.dots[t]);
      grad.delta[r.first + t] = *grad.running_clock;
    }
    store_rows(grad.v, r.first, n, s.V, x.grad_v);
    if (head.q_norm_weight != nullptr) {
      rowwise::rms_norm_backward(n, s.K, x.q_unit, x.rate_q, head.q_norm_weight, x.grad_q, x.weight_q);
    } else if (head.scale != 1.0F) {
      scale(n * s.K, head.scale, x.grad_q);
    }
    if (head.k_norm_weight != nullptr) {
      rowwise::rms_norm_backward(n, s.K, x.k_unit, x.rate_k, head.k_norm_weight, x.grad_k, x.weight_k);
    }
    store_rows(grad.q, r.first, n, s.K, x.grad_q);
    store_rows(grad.k, r.first, n, s.K, x.grad_k);
  }
  if (head.q_norm_weight != nullptr) add(s.K, x.weight_q, grad.q_norm_weight);
  if (head.k_norm_weight != nullptr) add(s.K, x.weight_k, grad.k_norm_weight);
  transpose(s.M, s.K, x.grad_state_k, grad.running_k);
  transpose(s.V, s.M, x.grad_state_v, grad.running_v);
}

}  // namespace cyfa::cyclic_flow
