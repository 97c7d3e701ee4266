// Causal softmax attention with a cache of keys and values: all tokens before (the cache grows), or the last `window` of them (a ring).
// o_t = sum over i of softmax_i(scale q_t k_i) v_i. Query heads in groups share a key and value head. Whole sequences go through torch's
// scaled_dot_product_attention; a step has loops of its own on a CPU, so that its bits do not depend on what else is in the batch.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

// Keys and values that N sequences have seen. Token p lies at place p, or p modulo the window; the places that a shorter sequence has not
// reached hold zeros and are never read.
struct AttentionCache {
  at::Tensor k, v;    // [N, places, G, D]: G key and value heads
  at::Tensor tokens;  // [N] int64: tokens seen so far
};

struct AttentionInputs {
  at::Tensor q;                           // [B, T, H, D]
  at::Tensor k, v;                        // [B, T, G, D], H a multiple of G
  std::optional<AttentionCache> initial;  // absent: nothing seen; never changed
  std::optional<at::Tensor> cu_seqlens;   // [N + 1] borders of packed sequences (B = 1)
  int64_t window = 0;                     // tokens that a query sees, itself included; 0: all
};

struct AttentionOutput {
  at::Tensor o;  // [B, T, H, D]
  AttentionCache cache;
};

// Differentiable in q, k, v and the initial cache. The scale is D^-0.5.
AttentionOutput attention(const AttentionInputs& inputs);

// One token a sequence, q [B, H, D] and k, v [B, G, D]: returns [B, H, D] and adds the token to the cache, in place where it has a place
// for it, otherwise with new tensors of more places. Without autograd.
at::Tensor attention_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionCache& cache, int64_t window);

}  // namespace cyfa::ops
