// Small models with layers that the sm90 engine fuses, for the tests of training on a GPU.
#pragma once

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "tests/model/small_model.h"

namespace cyfa::test {

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device, or a torch without CUDA";
  }
};

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

}  // namespace cyfa::test
