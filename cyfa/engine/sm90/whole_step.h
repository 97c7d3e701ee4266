// A decode step of one sequence as one launch: embedding, all layers and the head (cyfa/kernels/whole_step). The launch occupies every
// multiprocessor, and its thread blocks exchange results through memory of this object, so steps of one engine must be on one stream.
#pragma once

#include "cyfa/engine/sm90/step_layer.h"

namespace cyfa::fused {

class WholeStep {
 public:
  // timed: each step also reads the clock where it waits and where it has computed.
  WholeStep(const CausalLM& model, const Weights& weights, const std::vector<StepLayer>& layers, bool timed);
  ~WholeStep();

  // Why this model has no such step, in words; empty if it has.
  const std::string& refusal() const { return refusal_; }
  // Why this state cannot be stepped; null if it can. Requires that the model is not refused.
  const char* state_refusal(const ModelState& state) const;
  // As StepEngine::step(), for one sequence whose state is not refused.
  at::Tensor step(const at::Tensor& ids, const ModelState& state);

  // Throws std::runtime_error if a step was given up since the last call: its thread blocks waited for something that did not come within
  // two seconds. The logits are then NaN and the state is lost.
  void check();
  // With `timed`, the last step's times by kind of thread block, as a table in lines.
  std::vector<std::string> timings() const;

  // The memory of the exchange, whose contents do not matter between steps, and the counter of thread blocks. For tests.
  const at::Tensor& words() const { return words_; }
  const at::Tensor& tickets() const { return tickets_; }

 private:
  struct Arguments;  // of the kernel

  const std::vector<StepLayer>& layers_;
  std::unique_ptr<Arguments> arguments_;
  at::Device device_;
  std::string refusal_;
  at::Tensor words_, tickets_, error_, marks_;
  std::vector<at::Tensor> kept_;  // weights whose addresses the arguments hold
};

}  // namespace cyfa::fused
