#include "cyfa/engine/engine.h"

#include <stdexcept>

#include "cyfa/engine/portable.h"
#include "cyfa/engine/recorded.h"
#include "cyfa/engine/sm90/sm90.h"
#include "cyfa/io/nearest_name.h"

namespace cyfa {
namespace {

using Compute = std::optional<at::ScalarType>;

struct EngineKind {
  const char* name;
  std::string (*step_refusal)(const CausalLM&, Compute);
  std::unique_ptr<StepEngine> (*prepare_steps)(CausalLM&, const StepOptions&);
  std::string (*train_refusal)(const CausalLM&, Compute);
  std::unique_ptr<TrainEngine> (*prepare_training)(CausalLM&, const TrainOptions&);
};

// Fastest first. To add an engine for another GPU, add a folder next to sm90 and a line here.
const std::vector<EngineKind> kEngines = {
    {"sm90", fused::step_refusal, fused::prepare_steps, fused::train_refusal, fused::prepare_training},
    {"portable", portable::refusal, portable::prepare_steps, portable::refusal, portable::prepare_training},
};

std::vector<EngineOffer> offers(std::string (*EngineKind::*refusal)(const CausalLM&, Compute), const CausalLM& model, Compute compute) {
  std::vector<EngineOffer> list;
  for (const EngineKind& kind : kEngines) list.push_back({kind.name, (kind.*refusal)(model, compute)});
  return list;
}

const EngineKind& chosen(const std::string& what, const std::string& name, const std::vector<EngineOffer>& list) {
  std::string known = "auto";
  for (size_t i = 0; i < list.size(); ++i) {
    known += ", " + list[i].name;
    const bool taken = name == "auto" ? list[i].refusal.empty() : name == list[i].name;
    if (!taken) continue;
    if (!list[i].refusal.empty()) throw std::invalid_argument(what + ": engine " + name + " refuses: " + list[i].refusal);
    return kEngines[i];
  }
  throw std::invalid_argument(what + ": no engine is called " + name + "; wanted one of " + known + io::did_you_mean(name, engine_names()));
}

}  // namespace

LmOutput StepEngine::forward(const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens, const ModelState* initial) {
  const at::NoGradGuard no_grad;
  return model().forward(weights(), ids, cu_seqlens, initial);
}

bool TrainEngine::read_late(std::function<void(ParameterId)>) { return false; }

void TrainEngine::complete_early(std::function<void(ParameterId)>) {}

std::vector<std::string> engine_names() {
  std::vector<std::string> names = {"auto"};
  for (const EngineKind& kind : kEngines) names.emplace_back(kind.name);
  return names;
}

std::vector<EngineOffer> step_engines(const CausalLM& model, Compute compute) { return offers(&EngineKind::step_refusal, model, compute); }
std::vector<EngineOffer> train_engines(const CausalLM& model, Compute compute) {
  return offers(&EngineKind::train_refusal, model, compute);
}

std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options) {
  const EngineKind& kind = chosen("decoding", options.engine, step_engines(model, options.compute));
  std::unique_ptr<StepEngine> engine = kind.prepare_steps(model, options);
  if (!options.record || !recording_refusal(model).empty()) return engine;
  return record_steps(std::move(engine));
}

std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options) {
  const EngineKind& kind = chosen("training", options.engine, train_engines(model, options.compute));
  return kind.prepare_training(model, options);
}

}  // namespace cyfa
