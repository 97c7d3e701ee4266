#include "apps/step_check.h"

namespace cyfa::app {

double step_error(StepEngine& engine, ModelState& state, bool begun) {
  const at::NoGradGuard no_grad;
  const CausalLM& model = engine.model();
  const at::Tensor ids = at::randint(0, model.config().vocab_size, {state.sequences(), kCheckTokens}, at::kLong);
  const std::optional<ModelState> before = begun ? std::optional(state.clone()) : std::nullopt;
  at::Tensor logits;
  for (int64_t t = 0; t < kCheckTokens; ++t) logits = engine.step(ids.select(1, t).contiguous(), state);
  const Weights& w = engine.weights();
  const at::Tensor hidden = model.forward(w, ids, std::nullopt, before ? &*before : nullptr).hidden;
  const at::Tensor expected = model.head(w, hidden.select(1, kCheckTokens - 1)).to(logits.scalar_type());
  return (at::linalg_vector_norm(logits - expected) / at::linalg_vector_norm(expected)).item<double>();
}

double step_error_limit(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 5e-2 : 1e-4; }

}  // namespace cyfa::app
