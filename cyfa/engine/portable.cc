#include "cyfa/engine/portable.h"

#include <stdexcept>

namespace cyfa::portable {
namespace {

class PortableStep final : public StepEngine {
 public:
  PortableStep(const CausalLM& model, std::optional<at::ScalarType> compute) : model_(model) {
    const at::NoGradGuard no_grad;
    weights_ = model.weights(compute);
  }

  std::string name() const override { return "portable"; }
  const CausalLM& model() const override { return model_; }
  const Weights& weights() const override { return weights_; }
  at::Tensor step(const at::Tensor& ids, ModelState& state) override { return model_.step(weights_, ids, state); }
  std::string path(int64_t) const override { return "one operation after another"; }

 private:
  const CausalLM& model_;
  Weights weights_;
};

class PortableTraining final : public TrainEngine {
 public:
  PortableTraining(const CausalLM& model, std::optional<at::ScalarType> compute, bool recompute)
      : model_(model), compute_(compute), recompute_(recompute) {}

  std::string name() const override { return "portable"; }
  void begin_step(std::optional<uint64_t> noise) override {
    weights_ = model_.weights(compute_, arrive_);
    noise_ = noise;
    losses_ = 0;
  }
  bool read_late(std::function<void(ParameterId)> arrive) override {
    arrive_ = std::move(arrive);
    return true;
  }
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens) override {
    const Weights all = cut_ ? weights_.with_cut(cut_) : weights_;
    const Weights w = noise_ ? all.with_noise(mixed_seed(*noise_, losses_++)) : all;
    return model_.loss(w, inputs, targets, cu_seqlens, recompute_);
  }
  void cut(std::shared_ptr<const SequenceCut> cut) override { cut_ = std::move(cut); }

 private:
  const CausalLM& model_;
  std::optional<at::ScalarType> compute_;
  bool recompute_;
  std::shared_ptr<const SequenceCut> cut_;
  std::function<void(ParameterId)> arrive_;
  Weights weights_;
  std::optional<uint64_t> noise_;
  uint64_t losses_ = 0;  // since begin_step()
};

}  // namespace

std::string refusal(const CausalLM&, std::optional<at::ScalarType>) { return {}; }

std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options) {
  return std::make_unique<PortableStep>(model, options.compute);
}

std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options) {
  if (options.recompute_rows || options.recompute_mlp) {
    throw std::invalid_argument("training: engine portable recomputes whole layers only; wanted recompute_rows and recompute_mlp = false");
  }
  return std::make_unique<PortableTraining>(model, options.compute, options.recompute);
}

}  // namespace cyfa::portable
