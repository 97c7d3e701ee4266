// Scalar-decay linear attention on one segment of chunks (eq:app-scalar-chunk): the pass that scalar_gated_la makes once and
// cyclic_flow twice. Everything is batched over n = lanes * heads and g chunks: q, k are [n, g, C, K], v, o are [n, g, C, V].
#pragma once

#include <torch/types.h>

namespace cyfa::ops {

// The forget gates of a segment, as the factors that the chunk-wise form needs. Sums and differences of log_alpha are taken in
// double: a gate of -1e5 must not cost its neighbours their low bits. Every exponent is a difference that is at most 0.
struct ChunkDecay {
  at::Tensor from_start;  // [n, g, C, 1] a_t = alpha_1 .. alpha_t, counted inside the chunk
  at::Tensor to_end;      // [n, g, C, 1] b_t = alpha_{t+1} .. alpha_C
  at::Tensor whole;       // [n, g, 1, 1] alpha_1 .. alpha_C
  at::Tensor between;     // [n, g, C, C] Gamma (eq:app-chunk-decay): alpha_{s+1} .. alpha_r for r >= s, else 0

  // log_alpha [n, g, C] in double.
  ChunkDecay(const at::Tensor& log_alpha, at::ScalarType dtype);
};

// Where the gates' gradient comes from; collected over the passes that share a ChunkDecay, then summed once. No term is a
// difference of large ones: a pair (t, i) with i < s <= t gives its share to gate s and to no other.
struct DecayGradient {
  at::Tensor pairs;       // [n, g, C, C] share of (t, i) inside the chunk, strictly lower triangle
  at::Tensor from_start;  // [n, g, C] share of reading the chunk's first state at t
  at::Tensor to_end;      // [n, g, C] share of token i in the chunk's last state
  at::Tensor whole;       // [n, g] share of the first state in the last

  at::Tensor log_alpha() const;  // [n, g, C]
};

// o [n, g, C, V]. `state` [n, K, V] goes from the segment's start to its end, in place. If `chunk_states` is given
// ([n, g, K, V]), the state at each chunk's start is written there.
at::Tensor gated_pass_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay,
                              const at::Tensor& state, const at::Tensor& chunk_states);

// The state's walk alone, for a backward that needs the chunk states and not the outputs.
void gated_pass_states(const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay, const at::Tensor& state,
                       const at::Tensor& chunk_states);

struct GatedPassGradient {
  at::Tensor q, k, v;
};

// `grad_state` [n, K, V] goes from the segment's end to its start, in place; `gates` takes the gates' shares on top of what it has.
GatedPassGradient gated_pass_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay,
                                      const at::Tensor& chunk_states, const at::Tensor& grad_o, const at::Tensor& grad_state,
                                      DecayGradient& gates);

}  // namespace cyfa::ops
