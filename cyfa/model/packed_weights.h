// What a training step on a GPU computes with (cyfa/engine/sm90/packed.h): the table's packs as bf16 copies in one array and their
// gradients, in another, as fp32. The parameters themselves stay where they are.
#pragma once

#include "cyfa/model/causal_lm.h"

namespace cyfa {

class PackedWeights {
 public:
  // The model's parameters are fp32 on a device of which ops::packs_on is true, and stay the same tensors.
  explicit PackedWeights(CausalLM& model);

  // For the parts of one step: the parameters as they are now, matrices in bf16. Gradients of the packs are zero and are the parameters'
  // grad() already; those of all others come through autograd.
  Weights begin_step();

 private:
  CausalLM& model_;
  at::Tensor copies_, sums_;
  std::vector<at::Tensor> from_, to_;  // matrices of the packs, and their copies
  std::vector<at::Tensor> grads_;      // by ParameterId; undefined where not in a pack
  std::vector<ops::Summed> packed_;
};

}  // namespace cyfa
