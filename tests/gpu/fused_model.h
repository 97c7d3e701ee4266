// Small models with layers that the sm90 engine fuses, for the tests of training on a GPU.
#pragma once

#include "cyfa/train/trainer.h"
#include "tests/gpu/on_gpu.h"
#include "tests/model/small_model.h"

namespace cyfa::test {

inline Json fusable_config(const Json& keys) {
  Json config = {{"model_type", "cyclic_flow_attention"},
                 {"hidden_size", 256},
                 {"num_hidden_layers", 2},
                 {"num_heads", 4},
                 {"head_dim", 64},
                 {"num_slots", 64},
                 {"vocab_size", 1000},
                 {"intermediate_size", 344},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config.update(keys);
  return config;
}

inline CausalLM model_on_gpu(const Json& config) {
  CausalLM m = small_model(config);
  for (at::Tensor& p : m.parameters()) p = p.mul(p.dim() >= 2 ? 0.3 : 1.0).to(at::kCUDA).requires_grad_();
  return m;
}

inline double distance(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got - wanted).to(at::kDouble).norm() / wanted.to(at::kDouble).norm().clamp_min(1e-30)).item<double>();
}

struct Training {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
};

// Trains such a model as the recipe says, on the sm90 engine, in two parts a step that are always the same batch: the loss must fall.
inline Training trained_by_heart(const Json& config, Recipe r) {
  CausalLM m = model_on_gpu(config);
  for (at::Tensor& p : m.parameters()) p = p.detach();
  r.model = "small";
  r.accumulate = 2;
  r.rate = 1e-3;
  r.device = "cuda";
  const BatchSource batches = [&](int64_t) {
    const at::Tensor ids = random_ids(m, {r.batch / 2, r.context + 1}, 9);
    return TrainBatch{ids.narrow(1, 0, r.context), ids.narrow(1, 1, r.context), std::nullopt};
  };
  Trainer trainer(m, r, batches, {}, nullptr);
  EXPECT_EQ(trainer.engine().name(), "sm90");
  Training out;
  trainer.on_step = [&](const Json& row) { out.losses.push_back(row.at("loss").get<double>()); };
  trainer.run();
  out.parameters = m.parameters();
  EXPECT_LT(out.losses.back(), out.losses.front());
  return out;
}

}  // namespace cyfa::test
