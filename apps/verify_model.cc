// cyfa verify model: runs a checkpoint through every path of the model and compares with the results stored beside it.
#include <cmath>
#include <iostream>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "cyfa/engine/engine.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/model/tensor_file.h"
#include "cyfa/ops/cases/accuracy.h"
#include "cyfa/train/optimizer.h"

namespace cyfa::app {
namespace {

using cases::compare;
using cases::TensorError;

namespace fs = std::filesystem;

constexpr double kLimit = 1e-4;
constexpr int64_t kGreedyPrompt = 20;  // tokens of `greedy` that are the prompt

struct Options {
  std::vector<std::string> folders;
  std::string dtype = "fp32";
  std::string device = "cpu";
  double limit = kLimit;
  bool all = false;
  std::string json;
};

// How the stored training runs were made: AdamW, learning rate 1e-3, betas .9 and .95, no weight decay, clipping at norm 1.
constexpr double kStoredRate = 1e-3, kStoredClip = 1;
Recipe stored_recipe() {
  Recipe recipe;
  recipe.beta1 = 0.9;
  recipe.beta2 = 0.95;
  recipe.eps = 1e-8;
  recipe.weight_decay = 0;
  return recipe;
}

struct Result {
  std::string folder, model_type;
  std::vector<TensorError> tensors;

  bool pass() const {
    return std::all_of(tensors.begin(), tensors.end(), [](const TensorError& e) { return e.pass; });
  }
};

class Verifier {
 public:
  Verifier(const fs::path& folder, const Options& options)
      : folder_(folder), options_(options), expected_(folder / "expected.safetensors") {
    load_.dtype = parse_dtype(options.dtype);
    load_.device = parse_device(options.device);
    load_.writable = true;
  }

  Result run() {
    CausalLM model = load_checkpoint(folder_, load_);
    result_ = {folder_.string(), model.config().kind->model_type, {}};
    check_logits(model);
    check_steps(model);
    check_greedy(model);
    check_loss();
    check_training();
    if (result_.tensors.empty()) throw io::FileError(folder_ / "expected.safetensors", "holds nothing that this program can check");
    return result_;
  }

 private:
  bool has(const char* name) const { return expected_.contains(name); }
  at::Tensor tensor(const std::string& name) const { return expected_.copy(name); }
  void add(const std::string& name, const at::Tensor& actual, const at::Tensor& wanted) {
    if (actual.sizes() != wanted.sizes()) {
      throw io::FileError(folder_ / "expected.safetensors", name + " has another shape than the model gives");
    }
    TensorError e = compare(name, actual, wanted, options_.limit);
    if (name == "loss" || name == "train_loss") e.pass = e.pass && e.max_abs <= e.limit;  // each of them, not their norm
    result_.tensors.push_back(e);
  }

  void check_logits(const CausalLM& model) {
    if (!has("input_ids") || !has("logits")) return;
    const at::NoGradGuard no_grad;
    const Weights w = model.weights();
    add("logits", model.head(w, model.forward(w, tensor("input_ids")).hidden), tensor("logits"));
    if (has("train_logits")) add("train_logits", model.head(w, model.forward(w, tensor("input_ids")).hidden), tensor("train_logits"));
  }

  // The same tokens by decode steps.
  void check_steps(CausalLM& model) {
    if (!has("input_ids") || !has("logits") || parse_dtype(options_.dtype) == at::kDouble) return;
    const std::unique_ptr<StepEngine> engine = prepare_steps(model);
    const at::Tensor ids = tensor("input_ids");
    ModelState state = model.initial_state(ids.size(0));
    std::vector<at::Tensor> logits;
    for (int64_t t = 0; t < ids.size(1); ++t) logits.push_back(engine->step(ids.select(1, t), state).clone());
    add("logits by steps", at::stack(logits, 1), tensor("logits"));
  }

  void check_greedy(CausalLM& model) {
    if (!has("greedy") || parse_dtype(options_.dtype) == at::kDouble) return;
    const at::NoGradGuard no_grad;
    const at::Tensor wanted = tensor("greedy");
    const int64_t given = std::min(kGreedyPrompt, wanted.size(1));
    const std::unique_ptr<StepEngine> engine = prepare_steps(model);
    LmOutput out = model.forward(engine->weights(), wanted.narrow(1, 0, given));
    at::Tensor logits = model.head_step(engine->weights(), out.hidden.select(1, given - 1));
    std::vector<at::Tensor> ids = {wanted.narrow(1, 0, given)};
    for (int64_t t = given; t < wanted.size(1); ++t) {
      const at::Tensor next = logits.argmax(-1).to(at::kCPU);
      ids.push_back(next.unsqueeze(1));
      if (t + 1 < wanted.size(1)) logits = engine->step(next, out.final_state);
    }
    const at::Tensor differ = at::cat(ids, 1).ne(wanted);
    const auto count = static_cast<double>(differ.sum().item<int64_t>());
    result_.tensors.push_back({"greedy", count, count, 0, count == 0});  // tokens that differ
  }

  // One loss and its gradients, as stored for the baselines.
  void check_loss() {
    if (!has("loss")) return;
    CausalLM model = trainable();
    const at::Tensor loss = model.next_token_loss(model.weights(), tensor("input_ids"));
    loss.backward();
    add("loss", loss.reshape({}), tensor("loss").reshape({}));
    for (const std::string& name : expected_.file().names()) {
      if (name.starts_with("grad.")) add(name, gradient(model, name.substr(5)), tensor(name));
    }
  }

  void check_training() {
    if (!has("train_ids")) return;
    CausalLM model = trainable();
    Optimizer optimizer(model, stored_recipe());
    const at::Tensor ids = tensor("train_ids");
    std::vector<double> losses, norms;
    for (int64_t i = 0; i < ids.size(0); ++i) {
      const at::Tensor loss = model.next_token_loss(model.weights(), ids[i]);
      loss.backward();
      losses.push_back(loss.item<double>());
      if (i == 0) check_first_gradients(model);
      const at::Tensor norm = optimizer.gradient_norm();
      norms.push_back(norm.item<double>());
      optimizer.step(kStoredRate, kStoredClip, norm, loss.detach().to(at::kDouble));
    }
    if (has("train_loss")) add("train_loss", at::tensor(losses), tensor("train_loss"));
    if (has("train_grad_norm")) add("train_grad_norm", at::tensor(norms), tensor("train_grad_norm"));
  }

  void check_first_gradients(const CausalLM& model) {
    if (!fs::exists(folder_ / "first_grad.safetensors")) return;
    const TensorFile file(folder_ / "first_grad.safetensors");
    for (const std::string& name : file.file().names()) add("grad." + name, gradient(model, name), file.copy(name));
  }

  CausalLM trainable() {
    CausalLM model = load_checkpoint(folder_, load_);
    for (at::Tensor& p : model.parameters()) p.requires_grad_();
    return model;
  }

  at::Tensor gradient(const CausalLM& model, const std::string& name) const {
    for (size_t id = 0; id < model.parameters().size(); ++id) {
      if (model.table().specs()[id].name == name) return model.parameters()[id].grad();
    }
    throw io::FileError(folder_, "has a stored gradient of " + io::printable(name) + ", which is no parameter of the model");
  }

  fs::path folder_;
  Options options_;
  LoadOptions load_;
  TensorFile expected_;
  Result result_;
};

void print(const Result& result, bool all) {
  std::cout << text("%s  %s\n  %-44s %10s %10s %10s\n", result.folder.c_str(), result.model_type.c_str(), "tensor", "rel_l2", "max_abs",
                    "limit");
  const auto line = [](const TensorError& e) {
    std::cout << text("  %-44s %10.2e %10.2e %10.0e  %s\n", e.name.c_str(), e.rel_l2, e.max_abs, e.limit, e.pass ? "PASS" : "FAIL");
  };
  size_t gradients = 0;
  const TensorError* worst = nullptr;
  for (const TensorError& e : result.tensors) {
    if (all || !e.name.starts_with("grad.") || !e.pass) {
      line(e);
    } else {
      ++gradients;
      if (worst == nullptr || e.rel_l2 > worst->rel_l2) worst = &e;
    }
  }
  if (worst != nullptr) {
    std::cout << text("  %zu gradients pass, the worst of them:\n", gradients);
    line(*worst);
  }
}

Json to_json(const Result& result) {
  Json tensors = Json::array();
  for (const TensorError& e : result.tensors) {
    tensors.push_back({{"name", e.name}, {"rel_l2", e.rel_l2}, {"max_abs", e.max_abs}, {"limit", e.limit}, {"pass", e.pass}});
  }
  return {{"folder", result.folder}, {"model_type", result.model_type}, {"tensors", tensors}, {"pass", result.pass()}};
}

int run_verify(const Options& options) {
  Json rows = Json::array();
  size_t failed = 0;
  bool readable = true;
  for (const std::string& folder : options.folders) {
    try {
      const Result result = Verifier(folder, options).run();
      if (!result.pass()) ++failed;
      rows.push_back(to_json(result));
      if (prints_text(options.json)) print(result, options.all);
    } catch (const io::FileError& e) {
      std::cout.flush();
      std::cerr << "cyfa: error: " << e.what() << '\n';
      readable = false;
    }
  }
  write_rows(options.json, rows);
  if (prints_text(options.json)) {
    std::cout << text("%zu models, %zu failed%s\n", rows.size(), failed, readable ? "" : "; some folders could not be used");
  }
  if (!readable) return kBadInput;
  return failed == 0 ? kDone : kCheckFailed;
}

}  // namespace

void add_verify_model(CLI::App& verify, Action& action) {
  CLI::App* command = verify.add_subcommand(
      "model", "Check models against results stored beside them: logits, decode steps, greedy text, losses, gradients.");
  auto options = std::make_shared<Options>();
  command->add_option("folders", options->folders, "Checkpoint directories with expected.safetensors; docs/cli.md gives the format")
      ->required()
      ->type_name("DIR");
  add_dtype(command, &options->dtype, "the weights", {"fp32", "fp64"});
  add_device(command, &options->device);
  command->add_option("--limit", options->limit, "Largest relative L2 error of a tensor")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--all", options->all, "Print every gradient, not only the worst");
  add_json(command, &options->json);
  command->footer("Exit status: 0 all tensors are within the limit, 1 a tensor is above it, 2 a folder cannot be used.");
  command->callback([&action, options] { action = [options] { return run_verify(*options); }; });
}

}  // namespace cyfa::app
