// ShortConv: a causal depthwise convolution over the last W tokens of a sequence, before a mixer's recurrence. Used by the mixers.
//   y_t = sum over w of weight[:, W - 1 - w] x_{t - w}, + bias
// Tokens before the first one come from the sequence's state.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

// Results of short_conv.
struct ShortConvOutput {
  at::Tensor y;            // [B, T, D]
  at::Tensor final_state;  // [N, W - 1, D]: the last W - 1 tokens of each sequence, oldest first; type of x
};

// Convolution of whole sequences. Differentiable in x, weight, bias and the initial state. x [B, T, D]; weight [D, 1, W] as in checkpoints;
// initial_state [N, W - 1, D] is not modified, absent: zeros; cu_seqlens [N + 1] are boundaries of packed sequences (B = 1), on the CPU or
// on x's device, and no tap crosses them. A sequence may be shorter than W, or empty.
ShortConvOutput short_conv(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& initial_state, const std::optional<at::Tensor>& cu_seqlens);

// One decode step, x [B, D]: returns y [B, D] and shifts x into `state` [B, W - 1, D], in place. No autograd.
at::Tensor short_conv_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& state);

}  // namespace cyfa::ops
