// The portable backend of cyclic_flow for fp32 and bf16 on a CPU: the same segments, tasks and saved tensors as on other devices
// (portable.cc, which calls it), with the kernels of cyfa/kernels/cyclic_flow/cpu/cpu_chunks.h in place of ATen.
#pragma once

#include "cyfa/kernels/cyclic_flow/cpu/cpu_chunks.h"
#include "cyfa/ops/cyclic_flow/impl.h"

namespace cyfa::ops {

// What forward saves, empty where nothing is kept.
struct SavedTensors {
  at::Tensor k, v;    // [rows, H, K, M], [rows, H, M, V]: states at segment starts
  at::Tensor clock;   // [B * T, H] fp64, after each token
  at::Tensor scores;  // [B * T, H, M], or empty if backward computes them again

  explicit SavedTensors(at::TensorList all) : k(all[0]), v(all[1]), clock(all[2]), scores(all[3]) {}
};

// The inputs of a call as the kernels take them.
class CpuInputs {
 public:
  // table: [H, M, M].
  CpuInputs(const CyclicFlowInputs& in, const CyclicFlowShape& shape, const CyclicFlowSettings& settings, const at::Tensor& table);

  // Computes the heads of a task; `state` holds the running states, contiguous.
  void forward(const WalkTask& task, const CyclicFlowState& state, const SavedTensors& saved, const at::Tensor& o) const;

  // Per head and token, contiguous [H, B * T]; written by the tasks of backward.
  struct GateGradients {
    at::Tensor log_alpha, beta;  // fp32
    at::Tensor delta;            // fp64
  };
  GateGradients empty_gate_gradients() const;
  // Into the gradients of the caller's layout.
  void put(const GateGradients& gates, const CyclicFlowGradients& out) const;

  // [tokens, H, X] in fp32 or bf16 with contiguous rows: x itself if it is so.
  static at::Tensor rows(const at::Tensor& x);

  // grad_o: of rows(). `running` holds the running gradients of the states, contiguous. The sums over the task's tokens go to grad_table
  // [heads, M, M], grad_q_weight and grad_k_weight [K], which are zero before.
  void backward(const WalkTask& task, const CyclicFlowState& initial, const SavedTensors& saved, const at::Tensor& grad_o,
                const CyclicFlowState& running, const GateGradients& gates, const CyclicFlowGradients& out, const at::Tensor& grad_table,
                const at::Tensor& grad_q_weight, const at::Tensor& grad_k_weight) const;

 private:
  cyclic_flow::HeadParams head_params(int64_t head) const;
  cyclic_flow::SegmentTokens tokens(int64_t head, int64_t first, int64_t count, const double* clock) const;
  cyclic_flow::ChunkSizes sizes(const Segment& segment) const;

  CyclicFlowShape shape_;
  CyclicFlowSettings settings_;
  at::Tensor table_;
  at::Tensor q_, k_, v_;                 // [B * T, H, X], fp32 or bf16, with contiguous rows
  at::Tensor log_alpha_, delta_, beta_;  // [H, B * T] contiguous, in fp64, fp64 and fp32
  at::Tensor q_weight_, k_weight_;       // [K], that of q times the scale; undefined without a norm
};

}  // namespace cyfa::ops
