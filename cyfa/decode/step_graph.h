// A model's decoding step on a GPU as one launch: its many small kernels are recorded once and replayed, since at small batches
// launching them takes longer than they do. Elsewhere and for models whose step cannot be recorded (CausalLM::recordable) it is
// CausalLM::step itself.
#pragma once

#include <memory>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

class StepGraph {
 public:
  // Both must outlive it.
  StepGraph(const CausalLM& model, const Weights& weights);
  ~StepGraph();

  // As CausalLM::step. The first step of a state runs as it is, the second is recorded, the others are replayed; another state's tensors
  // begin anew. On a GPU the logits are overwritten by the next call.
  at::Tensor step(const at::Tensor& ids, ModelState& state);

  bool recorded() const { return recording_ != nullptr; }

 private:
  struct Recording;

  const CausalLM& model_;
  const Weights& weights_;
  ModelState held_;  // the last step's tensors, held so that no others come to lie where they do
  std::unique_ptr<Recording> recording_;
  bool refused_;  // some op of the model cannot be recorded
};

}  // namespace cyfa
