// Small models for the tests: every mixer there is, with sizes of no pattern.
#pragma once

#include <filesystem>

#include "cyfa/model/causal_lm.h"

namespace cyfa::test {

inline Json small_config(int64_t layers = 2) {
  return {{"model_type", "cyclic_flow_attention"}, {"hidden_size", 48}, {"num_hidden_layers", layers}, {"num_heads", 3}, {"head_dim", 16},
          {"num_slots", 10}, {"vocab_size", 61}, {"intermediate_size", 80}, {"bos_token_id", 1}, {"eos_token_id", 2}};
}

// Initialised, then moved off its initial values, so that an ignored parameter shows.
inline CausalLM small_model(const Json& config, uint64_t seed = 3, at::ScalarType dtype = at::kFloat) {
  CausalLM model(ModelConfig::parse(config));
  model.initialise(seed, dtype);
  const at::NoGradGuard no_grad;
  at::manual_seed(seed);
  for (at::Tensor& p : model.parameters()) p.add_(at::randn(p.sizes()).mul_(0.15).to(dtype));
  return model;
}

inline at::Tensor random_ids(const CausalLM& model, at::IntArrayRef sizes, uint64_t seed = 5) {
  at::manual_seed(seed);
  return at::randint(3, model.config().vocab_size, sizes, at::kLong);
}

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "cyfa-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace cyfa::test
