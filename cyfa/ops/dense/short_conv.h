// ShortConv: a causal depthwise convolution over the last few tokens of a sequence, before a mixer's recurrence.
// y_t = sum over w of weight[:, W - 1 - w] x_{t - w}, + bias; tokens before the sequence's first come from its state.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

struct ShortConvOutput {
  at::Tensor y;            // [B, T, D]
  at::Tensor final_state;  // [N, W - 1, D]: the last W - 1 tokens of each sequence, oldest first; type of x
};

// Differentiable in x, weight, bias and the initial state. x [B, T, D]; weight [D, 1, W] as checkpoints hold it; initial_state
// [N, W - 1, D], absent: zeros, never changed; cu_seqlens [N + 1] borders of packed sequences (B = 1), on the CPU or beside x: no tap
// crosses them. A sequence may be shorter than W, or empty.
ShortConvOutput short_conv(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& initial_state, const std::optional<at::Tensor>& cu_seqlens);

// One token a sequence, x [B, D]: returns y [B, D] and moves `state` [B, W - 1, D] on by one, in place. Without autograd.
at::Tensor short_conv_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& state);

}  // namespace cyfa::ops
