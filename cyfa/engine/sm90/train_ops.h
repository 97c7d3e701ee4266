// Training ops of the sm90 engine on fused weights, with matrices in bf16. The matrix products of backward accumulate weight gradients in
// fp32, directly in the buffers that the optimizer reads. They bypass autograd, which would round them to bf16, convert them back and
// accumulate them in separate launches. Activation gradients go through autograd.
#pragma once

#include <functional>
#include <optional>

#include "cyfa/engine/sm90/fused_weights.h"

namespace cyfa::fused {

// Normed rows as backward computes them again instead of keeping them: the norm of `sum`, which is kept anyway. Undefined: they are kept.
struct NormAgain {
  at::Tensor sum, weight;
  double eps = 0;
};

// x w^T, with x [..., in] and w [out, in].
at::Tensor linear(const at::Tensor& x, const Accumulated& w, const NormAgain& again = {});

// silu(gate) * up of y [..., 2 F] = [gate, up].
at::Tensor swiglu_halves(const at::Tensor& y);
// linear(swiglu_halves(y), w), which keeps y alone.
at::Tensor swiglu_linear(const at::Tensor& y, const Accumulated& w);
// swiglu_linear(linear(x, gate_and_up, again), down), which keeps x alone, or what `again` keeps of it, and computes the first product
// again.
at::Tensor mlp(const at::Tensor& x, const Accumulated& gate_and_up, const Accumulated& down, const NormAgain& again);

// The residual stream x + plus and its RMSNorm; with an undefined `plus`, those of x. Backward calls `completed`, if there is one, when it
// has written the weight's gradient; all that was computed from the results has its gradients by then.
struct AddedNorm {
  at::Tensor sum, normed;
};
AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& plus, const Accumulated& weight, double eps,
                       const std::function<void()>& completed = {});

// rms_norm(x) * sigmoid(gate), with x and gate [..., H, V]. The gate includes a bias [H * V]; the bias's gradient is added to bias_grad.
at::Tensor gated_rms_norm(const at::Tensor& x, const Accumulated& weight, double eps, const at::Tensor& gate, const at::Tensor& bias_grad);

// linear(gated_rms_norm(x, ...), w) over all heads [..., out], which keeps neither the gate, `again` gives it, nor the gated rows.
at::Tensor gated_rms_norm_linear(const at::Tensor& x, const Accumulated& weight, double eps, const at::Tensor& gate,
                                 const std::function<at::Tensor()>& again, const at::Tensor& bias_grad, const Accumulated& w);

// The inputs of the operator and the output gate, computed from the mixer's input x [B, T, D].
struct FlowProjections {
  at::Tensor q, k, v;                 // [B, T, width], convolved
  at::Tensor log_alpha, beta, delta;  // [B, T, H], fp32: -exp(A_log) softplus(a + dt_bias), sigmoid(b + b_bias), sigmoid(d + d_bias)
  at::Tensor gate;                    // [B, T, H V]
};
// `before`, if defined, is the convolutions' input before the first sequence, [1, taps - 1, layout.gate()] in bf16: columns q, k and v of
// the projection; before the other sequences there are zeros.
FlowProjections flow_projections(const at::Tensor& x, const FlowWeights& w, const std::optional<at::Tensor>& cu_seqlens,
                                 const at::Tensor& before = {});
// The same, where backward computes x again, and functions that give q, k and v [B, T, H, width] and the gate again, with the same bits and
// without autograd, so that they need not be kept.
struct FlowAgain {
  FlowProjections p;
  std::function<std::array<at::Tensor, 3>()> convolved;
  std::function<at::Tensor()> gate;
};
FlowAgain flow_projections_again(const at::Tensor& x, const FlowWeights& w, const std::optional<at::Tensor>& cu_seqlens,
                                 const at::Tensor& before, const NormAgain& again);
// The same without autograd, on the rows x [R, D] of all sequences: results [R, ...]. `tasks` is conv_tasks() of the sequences; `before`,
// if defined, are the rows before each sequence in bf16, [N, taps - 1, width].
struct FlowRows {
  at::Tensor y;  // the fused projection
  FlowProjections p;
};
FlowRows project_rows(const at::Tensor& x, const FlowWeights& w, const at::Tensor& tasks, const std::array<at::Tensor, 3>& before = {});
// The states that the convolutions of y leave for decode steps, fp32 [N, taps - 1, width]. `borders` [N + 1] is on the device; `before`, if
// defined, are the states before.
void conv_tails(const at::Tensor& y, const FlowWeights& w, const int64_t* borders, const std::array<at::Tensor, 3>& before,
                const std::array<at::Tensor, 3>& tails);
// The same for a decode step, x [B, D], without autograd: results [B, ...]. Updates the states of the convolutions, `tails`
// [B, taps - 1, width] in fp32.
FlowProjections flow_projections_step(const at::Tensor& x, const FlowWeights& w, const std::array<at::Tensor, 3>& tails);

// As in cyfa/ops/dense/cross_entropy.h.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Accumulated& weight, const at::Tensor& targets);

}  // namespace cyfa::fused
