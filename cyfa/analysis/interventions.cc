#include "cyfa/analysis/interventions.h"

#include <cmath>
#include <map>
#include <stdexcept>

namespace cyfa::analysis {
namespace {

enum class Setting { kOriginal, kMean, kShifted, kOne };
constexpr std::pair<Setting, const char*> kSettings[] = {
    {Setting::kOriginal, "original"}, {Setting::kMean, "mean"}, {Setting::kShifted, "shifted"}, {Setting::kOne, "one"}};

void compare(InterventionLoss& changed, const InterventionLoss& original) {
  const auto n = static_cast<double>(changed.losses.size());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < changed.losses.size(); ++i) {
    const double change = changed.losses[i] - original.losses[i];
    changed.mean += changed.losses[i] / n;
    sum += change;
    squares += change * change;
    if (change > 0) ++changed.worse;
  }
  changed.change = sum / n;
  const double variance = (squares - sum * sum / n) / (n - 1);
  changed.error = n > 1 ? std::sqrt(std::max(0.0, variance) / n) : std::nan("");
}

}  // namespace

std::vector<InterventionLoss> intervene(const CausalLM& model, const Weights& w, const at::Tensor& ids, const InterventionPlan& plan,
                                        const Progress& progress) {
  const at::NoGradGuard no_grad;
  if (plan.shift % (ids.size(1) - 1) == 0) {
    throw std::invalid_argument("a shift by " + std::to_string(plan.shift) + " tokens moves nothing in sequences of " +
                                std::to_string(ids.size(1) - 1) + " tokens; wanted a shift that is no multiple of that");
  }
  // For each layer with a clock, which of its heads are replaced, and by which means: [H].
  std::map<size_t, std::pair<at::Tensor, at::Tensor>> by_layer;
  for (const ClockLayer& layer : clock_layers(model)) {
    const at::Tensor chosen = at::zeros({layer.heads}, at::kBool), means = at::zeros({layer.heads}, at::kDouble);
    for (int64_t h = 0; h < layer.heads; ++h) {
      chosen[h].fill_(static_cast<bool>(plan.heads.at(static_cast<size_t>(layer.first + h))));
      means[h].fill_(plan.means.at(static_cast<size_t>(layer.first + h)));
    }
    by_layer[layer.layer] = {chosen.to(model.device()), means.to(model.device())};
  }
  std::vector<InterventionLoss> out;
  for (const auto& [setting, name] : kSettings) out.push_back({.name = name, .losses = {}});
  const int64_t N = ids.size(0);
  for (int64_t n = 0; n < N; ++n) {
    std::map<size_t, at::Tensor> original;  // by layer: its increments of this sequence in the unchanged model
    for (size_t s = 0; s < out.size(); ++s) {
      const auto hook = [&, kind = kSettings[s].first](const ClockLayer& layer, const at::Tensor& delta) {
        const auto& [chosen, means] = by_layer.at(layer.layer);
        at::Tensor other;
        switch (kind) {
          case Setting::kOriginal: original[layer.layer] = delta; return delta;
          case Setting::kMean: other = means.to(delta.scalar_type()).expand_as(delta); break;
          case Setting::kShifted: other = original.at(layer.layer).roll(plan.shift, 1); break;
          case Setting::kOne: other = at::ones_like(delta); break;
        }
        return at::where(chosen, other, delta);
      };
      out[s].losses.push_back(sequence_losses(model, w, ids.narrow(0, n, 1), hook)[0]);
      if (progress) progress(n * static_cast<int64_t>(out.size()) + static_cast<int64_t>(s) + 1, N * static_cast<int64_t>(out.size()));
    }
  }
  for (InterventionLoss& one : out) compare(one, out[0]);
  return out;
}

}  // namespace cyfa::analysis
