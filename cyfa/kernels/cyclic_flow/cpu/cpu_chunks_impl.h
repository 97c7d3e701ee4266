// What the forward and the backward of cpu_chunks.h share: the workspace, one chunk's inputs, and matrix products. Included only by
// cpu_chunks.cc and cpu_chunks_backward.cc.
#pragma once

#include "cyfa/kernels/cyclic_flow/cpu/cpu_chunks.h"
#include "cyfa/kernels/dense/product.h"

namespace cyfa::cyclic_flow {

// Row-major arrays of one chunk of up to C tokens, and of backward's segment. Each begins at a cache line.
struct ChunkWorkspace::Arrays {
  // One chunk's inputs.
  float *q, *k, *v;                            // [C, K], [C, K], [C, V], after norm and scale
  float *trig, *addresses, *writes, *decayed;  // [C, M]: phases, U(-clock) b, W = beta times that, b W
  chunk::Decay decay;
  double* sums;  // [C]

  // The stages of forward; backward computes most of them again.
  float* pairs_k;  // [C, C] P, and its gradient's side in backward
  float* pairs_v;  // [C, C] P'
  float* slots;    // [C, M] scores Y, then Z in place
  float* probs;    // [C, M] logits, then p
  float* reads;    // [C, M] U
  float* o;        // [C, V] o, or its gradient

  // Backward only.
  float *q_raw, *q_unit, *k_unit, *rate_q, *rate_k;   // rms_norm's, [C, K] and [C]
  float *grad_q, *grad_k, *grad_v;                    // [C, K], [C, K], [C, V]
  float *grad_slots, *grad_reads, *grad_probs;        // [C, M] dZ then dY; dU then dX; dp then dL
  float *grad_writes, *grad_decayed, *decayed_reads;  // [C, M] dW; its part through the states; a U or a dY
  float *grad_pairs, *gate_pairs;                     // [C, C] dP; contributions of pairs to the gates
  float *read_gates, *written_gates, *turn, *dots;    // [C]
  float* rates;                                       // [M / 2] 2 pi j / m
  float *weight_q, *weight_k;                         // [K] the segment's gradients of the norm weights
  float *grad_state_k, *grad_state_v;                 // [M, K], [V, M] gradients of the states, transposed
  float *states_k, *states_v;                         // [g, M, K], [g, V, M] states at chunk starts, transposed
  float* scores;                                      // [tokens, M] if forward has not kept them
};

namespace chunk {

inline dense::MatrixView matrix(const float* data, int64_t width) { return {data, width, 1}; }

// c [m, n] = a b.
void multiply(int64_t m, int64_t n, int64_t k, dense::MatrixView a, dense::MatrixView b, float* c,
              dense::Triangle triangle = dense::Triangle::kNone);
// c [m, n] += a b.
void multiply_add(int64_t m, int64_t n, int64_t k, dense::MatrixView a, dense::MatrixView b, float* c,
                  dense::Triangle triangle = dense::Triangle::kNone);
// next [m, n] = keep before + a b; next may be before.
void advance(int64_t m, int64_t n, int64_t k, dense::MatrixView a, dense::MatrixView b, float keep, const float* before, float* next);
// to [columns, rows] = from [rows, columns] transposed.
void transpose(int64_t rows, int64_t columns, const float* from, float* to);

// Tokens first .. first + n - 1 of a segment.
struct Range {
  int64_t first, n;
};
inline Range chunk_at(int64_t index, int64_t C, int64_t count) {
  const int64_t first = index * C;
  return {first, count - first < C ? count - first : C};
}

// Keys, values, write vectors and the decay factors a, b, gamma of a chunk, with D if `pairs`.
void load_writes(const SegmentTokens& in, const HeadParams& head, const ChunkSizes& s, Range r, bool pairs, bool for_backward,
                 ChunkWorkspace::Arrays& x);
void load_queries(const SegmentTokens& in, const HeadParams& head, const ChunkSizes& s, Range r, bool for_backward,
                  ChunkWorkspace::Arrays& x);

}  // namespace chunk
}  // namespace cyfa::cyclic_flow
