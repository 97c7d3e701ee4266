// A mixer from outside the library, by the public interface alone: a leaky mean of the tokens so far. Everything that a model can do works
// for it: sequences, packed sequences, steps, states, gradients, checkpoints, engines, training and text.
#include <gtest/gtest.h>

#include <filesystem>

#include "cyfa/decode/generator.h"
#include "cyfa/mixers/call.h"
#include "cyfa/mixers/registry.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/train/trainer.h"

namespace {

using cyfa::Json;

// S_t = a S_{t-1} + v_t with one learned a = sigmoid(decay) for each head; y = W_o S_t.
class LeakyMean final : public cyfa::Mixer {
 public:
  LeakyMean(int64_t heads, const cyfa::BackboneShape& backbone, const cyfa::ParameterScope& scope) : heads_(heads) {
    const int64_t D = backbone.hidden_size;
    v_proj_ = scope.matrix("v_proj.weight", {D, D}, cyfa::Init::normal(backbone.initializer_range));
    decay_ = scope.other("decay", {heads}, cyfa::Init::constant(2));
    o_proj_ = scope.matrix("o_proj.weight", {D, D}, cyfa::Init::normal(backbone.initializer_range));
    memory_ = keep_memory({heads, 1, D / heads});
  }

  at::Tensor mix(cyfa::Call& call) const override {
    const at::Tensor y = call.linear(call.x(), v_proj_);
    std::vector<int64_t> shape = y.sizes().vec();
    shape.back() = heads_;
    shape.push_back(-1);
    const at::Tensor v = y.view(shape), one = at::ones_like(v.narrow(-1, 0, 1));
    cyfa::ops::RecurrenceOptions options;
    options.scale = 1;
    const at::Tensor S = call.recurrence("fixed_scalar_gated_la", memory_,
                                         {.q = one, .k = one, .v = v, .log_alpha = at::log_sigmoid(call[decay_])}, options);
    return call.linear(S.flatten(-2), o_proj_);
  }

  double flops_per_token() const override { return 1; }

 private:
  int64_t heads_;
  cyfa::ParameterId v_proj_ = 0, decay_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

cyfa::MixerFactory read_leaky_mean(cyfa::ConfigReader& config, const cyfa::BackboneShape& backbone) {
  const int64_t heads = config.integer("num_heads", 4, 1, 64);
  if (backbone.hidden_size % heads != 0) config.fail("num_heads", "a divisor of hidden_size");
  return [heads, backbone](const cyfa::ParameterScope& scope) { return std::make_unique<LeakyMean>(heads, backbone, scope); };
}

cyfa::CausalLM toy_model(const Json& more = Json::object()) {
  static const bool registered = [] {
    cyfa::register_mixer(
        {"leaky_mean", "LeakyMeanForCausalLM", {}, read_leaky_mean, {"a toy", "S_t = a S_{t-1} + v_t", "D", "Low", "", ""}});
    return true;
  }();
  EXPECT_TRUE(registered);
  Json config = {{"model_type", "leaky_mean"}, {"hidden_size", 32}, {"num_hidden_layers", 2}, {"vocab_size", 259},
                 {"intermediate_size", 48},    {"bos_token_id", 1}, {"eos_token_id", 2}};
  config.update(more);
  cyfa::CausalLM model(cyfa::ModelConfig::parse(config));
  model.initialise(1);
  return model;
}

at::Tensor tokens(at::IntArrayRef shape) {
  at::manual_seed(3);
  return at::randint(3, 259, shape, at::kLong);
}

double distance(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(ToyMixer, StepsPiecesAndPackedSequencesAgree) {
  const at::NoGradGuard no_grad;
  cyfa::CausalLM m = toy_model();
  const cyfa::Weights w = m.weights();
  const at::Tensor ids = tokens({2, 90});
  const cyfa::LmOutput all = m.forward(w, ids);
  const cyfa::LmOutput first = m.forward(w, ids.narrow(1, 0, 41));
  EXPECT_LT(distance(m.forward(w, ids.narrow(1, 41, 49), std::nullopt, &first.final_state).hidden, all.hidden.narrow(1, 41, 49)), 1e-5);
  const cyfa::LmOutput packed = m.forward(w, ids.reshape({1, -1}), at::tensor({0, 90, 180}, at::kLong));
  EXPECT_LT(distance(packed.hidden.view({2, 90, -1}), all.hidden), 1e-5);
  const auto engine = cyfa::prepare_steps(m);
  cyfa::ModelState state = first.final_state;
  at::Tensor logits;
  for (int64_t t = 41; t < 90; ++t) logits = engine->step(ids.select(1, t), state);
  EXPECT_LT(distance(logits, m.head(w, all.hidden).select(1, 89)), 1e-5);
}

TEST(ToyMixer, TrainsSavesLoadsAndWrites) {
  cyfa::CausalLM m = toy_model();
  cyfa::Recipe recipe;
  recipe.model = "toy";
  recipe.steps = 30;
  recipe.batch = 4;
  recipe.context = 24;
  recipe.warmup = 3;
  recipe.rate = 1e-2;
  const at::Tensor ids = tokens({4, 25});
  cyfa::Trainer trainer(
      m, recipe,
      [&](int64_t) {
        return cyfa::TrainBatch{ids.narrow(1, 0, 24), ids.narrow(1, 1, 24), std::nullopt};
      },
      {}, nullptr);
  std::vector<double> losses;
  trainer.on_step = [&](const Json& row) { losses.push_back(row.at("loss").get<double>()); };
  trainer.run();
  EXPECT_EQ(trainer.engine().name(), "portable");
  EXPECT_LT(losses.back(), losses.front() - 0.5);

  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("cyfa-toy-" + std::to_string(::getpid()));
  cyfa::save_checkpoint(m, folder);
  cyfa::CausalLM again = cyfa::load_checkpoint(folder);
  EXPECT_EQ(cyfa::fingerprint(again), cyfa::fingerprint(m));
  const auto tokenizer = cyfa::load_tokenizer("bytes");
  const auto engine = cyfa::prepare_steps(again);
  cyfa::Generator generator(*engine, *tokenizer);
  cyfa::GenerateOptions options;
  options.max_tokens = 5;
  options.ignore_eos = true;
  EXPECT_EQ(generator.run({{tokenizer->encode("toy"), std::nullopt}}, options)[0].ids.size(), 5U);
  std::filesystem::remove_all(folder);
}

TEST(ToyMixer, StandsBesideOtherMixers) {
  const at::NoGradGuard no_grad;
  const Json types = {"leaky_mean", "full_attention"};
  cyfa::CausalLM m = toy_model({{"layer_types", types}, {"layer_configs", {{"full_attention", {{"num_attention_heads", 4}}}}}});
  EXPECT_EQ(m.config().layer_types, (std::vector<std::string>{"leaky_mean", "full_attention"}));
  const cyfa::Weights w = m.weights();
  const at::Tensor ids = tokens({1, 20});
  cyfa::ModelState state = m.initial_state(1);
  at::Tensor logits;
  for (int64_t t = 0; t < 20; ++t) logits = m.step(w, ids.select(1, t), state);
  EXPECT_LT(distance(logits, m.head(w, m.forward(w, ids).hidden).select(1, 19)), 1e-5);
}

TEST(ToyMixer, ANameIsTakenOnce) {
  toy_model();
  EXPECT_THROW(cyfa::register_mixer({"leaky_mean", "", {}, read_leaky_mean, {}}), std::invalid_argument);
  EXPECT_THROW(cyfa::register_mixer({"llama", "", {}, read_leaky_mean, {}}), std::invalid_argument);
}

}  // namespace
