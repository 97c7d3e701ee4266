// Writes tests/vectors/model_tiny: an fp32 checkpoint and its outputs in double. Run it manually when the format changes:
//   make_model_vectors tests/vectors/model_tiny
#include <iostream>

#include "cyfa/model/checkpoint.h"
#include "cyfa/model/tensor_file.h"
#include "tests/model/small_model.h"

int main(int argc, char** argv) {
  using namespace cyfa;
  if (argc != 2) {
    std::cerr << "usage: make_model_vectors FOLDER\n";
    return 2;
  }
  const Json config = {{"model_type", "cyclic_flow_attention"},
                       {"hidden_size", 16},
                       {"num_hidden_layers", 2},
                       {"num_heads", 2},
                       {"head_dim", 8},
                       {"num_slots", 8},
                       {"vocab_size", 24},
                       {"intermediate_size", 24},
                       {"bos_token_id", 1},
                       {"eos_token_id", 2},
                       {"pad_token_id", 2}};
  const CausalLM model = test::small_model(config, 1);
  save_checkpoint(model, argv[1]);
  CausalLM exact(model.config());
  for (size_t id = 0; id < model.parameters().size(); ++id)
    exact.parameters()[id] = model.parameters()[id].to(at::kDouble).requires_grad_();
  const Weights w = exact.weights();
  const at::Tensor ids = test::random_ids(model, {2, 30}), prompt = test::random_ids(model, {1, 20}, 9);
  NamedTensors expected = {{"input_ids", ids}};
  at::Tensor greedy = prompt;
  {
    const at::NoGradGuard no_grad;
    expected.emplace_back("logits", exact.head(w, exact.forward(w, ids).hidden).to(at::kFloat));
    for (int i = 0; i < 12; ++i) {
      const at::Tensor logits = exact.head(w, exact.forward(w, greedy).hidden.narrow(1, greedy.size(1) - 1, 1));
      greedy = at::cat({greedy, logits.argmax(-1)}, 1);
    }
  }
  expected.emplace_back("greedy", greedy);
  const at::Tensor loss = exact.next_token_loss(w, ids);
  loss.backward();
  expected.emplace_back("loss", loss.detach().to(at::kFloat));
  for (size_t id = 0; id < exact.parameters().size(); ++id) {
    expected.emplace_back("grad." + exact.table().specs()[id].name, exact.parameters()[id].grad().to(at::kFloat));
  }
  std::stable_sort(expected.begin(), expected.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  write_tensor_file(std::filesystem::path(argv[1]) / "expected.safetensors", expected,
                    {{"source", "the model in double, tests/model/make_model_vectors.cc"}});
}
