// Which backend of an op takes which inputs, for Python: JSON [{"backend", "refusal"}], fastest first. An empty refusal means that it takes
// them, and the first of those is what backend='auto' runs.
#include <torch/library.h>

#include <nlohmann/json.hpp>

#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::python {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::string as_json(const std::vector<ops::BackendOffer>& offers) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ops::BackendOffer& offer : offers) {
    all.push_back({{"backend", ops::backend_name(offer.backend)}, {"refusal", offer.refusal}});
  }
  return all.dump();
}

std::string cyclic_flow_backends(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const Tensor& delta,
                                 const Tensor& beta, const Tensor& readout, const OptionalTensor& q_norm_weight,
                                 const OptionalTensor& k_norm_weight, const OptionalTensor& initial_k, const OptionalTensor& initial_v,
                                 const OptionalTensor& initial_clock, const OptionalTensor& cu_seqlens) {
  ops::CyclicFlowInputs in{q, k, v, log_alpha, delta, beta, readout, q_norm_weight, k_norm_weight, std::nullopt, cu_seqlens};
  if (initial_k || initial_v || initial_clock) {
    in.initial_state = ops::CyclicFlowState{initial_k.value_or(Tensor()), initial_v.value_or(Tensor()), initial_clock.value_or(Tensor())};
  }
  return as_json(ops::cyclic_flow_backends(in));
}

std::string recurrence_backends(c10::string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                                const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens) {
  return as_json(ops::recurrence_backends(ops::recurrence_of(std::string_view(op.data(), op.size())),
                                          {q, k, v, log_alpha, beta, initial_state, cu_seqlens}));
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def(
      "cyclic_flow_backends(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor delta, Tensor beta, Tensor readout, *, Tensor? "
      "q_norm_weight=None, Tensor? k_norm_weight=None, Tensor? initial_k=None, Tensor? initial_v=None, Tensor? initial_clock=None, "
      "Tensor? cu_seqlens=None) -> str",
      cyclic_flow_backends);
  library.def(
      "recurrence_backends(str op, Tensor q, Tensor k, Tensor v, *, Tensor? log_alpha=None, Tensor? beta=None, Tensor? "
      "initial_state=None, Tensor? cu_seqlens=None) -> str",
      recurrence_backends);
}

}  // namespace
}  // namespace cyfa::python
