// Causal softmax attention with a KV cache, over all previous tokens (the cache grows) or over the last `window` tokens (a ring buffer).
// Used by the attention mixers.
//   o_t = sum over i of softmax_i(scale q_t k_i) v_i
// Groups of query heads share a key and value head (grouped-query attention). Whole sequences use torch's scaled_dot_product_attention; on
// a CPU the decode step has its own loops, so that its bits do not depend on the rest of the batch.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

// The KV cache of N sequences. Token p is stored at place p, or at p modulo the window. Places that a sequence has not reached contain
// zeros and are never read.
struct AttentionCache {
  at::Tensor k, v;    // [N, places, G, D]: G key and value heads
  at::Tensor tokens;  // [N] int64: tokens seen so far
};

// Arguments of attention.
struct AttentionInputs {
  at::Tensor q;                           // [B, T, H, D]
  at::Tensor k, v;                        // [B, T, G, D]; H is a multiple of G
  std::optional<AttentionCache> initial;  // absent: nothing seen; not modified
  std::optional<at::Tensor> cu_seqlens;   // [N + 1] boundaries of packed sequences (B = 1)
  int64_t window = 0;                     // tokens that a query sees, including its own; 0: all
};

// Results of attention.
struct AttentionOutput {
  at::Tensor o;          // [B, T, H, D]
  AttentionCache cache;  // after the last token
};

// Attention over whole sequences. Differentiable in q, k, v and the initial cache. The scale is D^-0.5.
AttentionOutput attention(const AttentionInputs& inputs);

// One decode step, q [B, H, D] and k, v [B, G, D]: returns o [B, H, D] and adds the token to the cache, in place if there is room,
// otherwise with new, larger tensors. No autograd.
at::Tensor attention_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionCache& cache, int64_t window);

}  // namespace cyfa::ops
