// Scalar-decay linear attention on one segment of chunks (eq:app-scalar-chunk). scalar_gated_la runs this pass once, cyclic_flow twice.
// Everything is batched over n = lanes * heads and g chunks: q, k are [n, g, C, K], v, o are [n, g, C, V].
#pragma once

#include <torch/types.h>

namespace cyfa::ops {

// The forget gates of a segment, as the decay factors of the chunk-wise form. Sums and differences of log_alpha are computed in double, so
// that a gate of -1e5 does not cancel the low bits of its neighbours. Every exponent is a difference that is at most 0.
struct ChunkDecay {
  at::Tensor from_start;  // [n, g, C, 1] a_t = alpha_1 .. alpha_t, with indices inside the chunk
  at::Tensor to_end;      // [n, g, C, 1] b_t = alpha_{t+1} .. alpha_C
  at::Tensor whole;       // [n, g, 1, 1] alpha_1 .. alpha_C
  at::Tensor between;     // [n, g, C, C] Gamma (eq:app-chunk-decay): alpha_{s+1} .. alpha_r for r >= s, else 0

  // log_alpha [n, g, C] in double.
  ChunkDecay(const at::Tensor& log_alpha, at::ScalarType dtype);
};

// Contributions to the gradient of the gates, accumulated over the passes that share a ChunkDecay and reduced once by log_alpha(). No term
// is a difference of large numbers: a pair (t, i) contributes to the gates s with i < s <= t and to no others.
struct DecayGradient {
  at::Tensor pairs;       // [n, g, C, C] from pairs (t, i) inside the chunk, strictly lower triangle
  at::Tensor from_start;  // [n, g, C] from token t reading the state at the chunk's start
  at::Tensor to_end;      // [n, g, C] from token i in the state at the chunk's end
  at::Tensor whole;       // [n, g] from the state at the chunk's start in the state at its end

  at::Tensor log_alpha() const;  // the gradient of log_alpha, [n, g, C]
};

// Returns o [n, g, C, V]. `state` [n, K, V] is advanced in place from the segment's start to its end. If `chunk_states` [n, g, K, V] is
// defined, the state at each chunk's start is written there.
at::Tensor gated_pass_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay,
                              const at::Tensor& state, const at::Tensor& chunk_states);

// Computes only the states, for a backward that needs the chunk states but not the outputs.
void gated_pass_states(const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay, const at::Tensor& state,
                       const at::Tensor& chunk_states);

// Gradients of the inputs of a pass.
struct GatedPassGradient {
  at::Tensor q, k, v;
};

// `grad_state` [n, K, V] is propagated in place from the segment's end to its start. Contributions to the gates are added to `gates`.
GatedPassGradient gated_pass_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay,
                                      const at::Tensor& chunk_states, const at::Tensor& grad_o, const at::Tensor& grad_state,
                                      DecayGradient& gates);

}  // namespace cyfa::ops
