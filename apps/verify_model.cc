// cyfa verify model: runs a checkpoint through every path of the model and compares with the results stored beside it.
#include <c10/util/Exception.h>

#include <cmath>
#include <iostream>
#include <unordered_map>

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

constexpr const char* kExpected = "expected.safetensors";
constexpr double kLimit = 1e-4;
constexpr int64_t kGreedyPrompt = 20;  // tokens of `greedy` that are the prompt
// A small file must not ask for any amount of time or memory.
constexpr int64_t kMostTokens = 1 << 16;               // of a tensor of ids
constexpr int64_t kMostStateBytes = int64_t{1} << 32;  // of the sequences of a batch

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
  std::string folder, model_type;    // no model_type: the checkpoint could not be loaded
  std::vector<TensorError> tensors;  // checked so far
  std::string error;                 // why no further ones were checked; empty: all were

  bool pass() const {
    return error.empty() && std::all_of(tensors.begin(), tensors.end(), [](const TensorError& e) { return e.pass; });
  }
};

class Verifier {
 public:
  // Writes to `result` as it goes, so that what was finished before an exception is kept.
  Verifier(const LoadOptions& load, double limit, Result& result)
      : folder_(result.folder), load_(load), limit_(limit), expected_(folder_ / kExpected), result_(result) {}

  void run() {
    CausalLM model = load_checkpoint(folder_, load_);
    result_.model_type = model.config().kind->model_type;
    check_logits(model);
    check_steps(model);
    check_greedy(model);
    check_loss();
    check_training();
    if (result_.tensors.empty()) fail("holds nothing that this program can check");
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw io::FileError(folder_ / kExpected, message); }
  bool has(const char* name) const { return expected_.contains(name); }
  bool steps() const { return load_.dtype != at::kDouble; }  // decode steps have no fp64
  at::Tensor tensor(const std::string& name) const { return expected_.copy(name); }

  // Ids [B, T] or, for training, [steps, B, T]. Every element is backed by data, so the work is bounded by the file.
  at::Tensor ids(const char* name, int64_t rank, const CausalLM& model) const {
    const at::Tensor ids = tensor(name);
    const char* wanted = rank == 2 ? "[B, T]" : "[steps, B, T]";
    if (ids.dim() != rank || ids.numel() == 0 || ids.numel() > kMostTokens || at::isFloatingType(ids.scalar_type())) {
      fail(std::string(name) + " is " + c10::str(ids.sizes(), " of ", ids.scalar_type()) + "; wanted integers " + wanted +
           ", at least one and at most " + std::to_string(kMostTokens));
    }
    if (ids.size(-2) > kMostStateBytes / std::max<int64_t>(model.state_bytes(), 1))
      fail(std::string(name) + " has " + std::to_string(ids.size(-2)) + " sequences, whose states would take more than 4 GiB");
    return ids.to(at::kLong);
  }
  void expect_shape(const char* name, at::IntArrayRef wanted) const {
    const std::vector<int64_t>& shape = expected_.file().at(name).shape;
    if (wanted != at::IntArrayRef(shape))
      fail(std::string(name) + " is " + c10::str(at::IntArrayRef(shape)) + "; wanted " + c10::str(wanted));
  }

  void add(const std::string& name, const at::Tensor& actual, const at::Tensor& wanted) {
    if (actual.sizes() != wanted.sizes()) fail(name + " has another shape than the model gives");
    TensorError e = compare(name, actual, wanted, limit_);
    if (name == "loss" || name == "train_loss") e.pass = e.pass && e.max_abs <= e.limit;  // each of them, not their norm
    result_.tensors.push_back(e);
  }

  // The ids whose logits are stored, if they are.
  at::Tensor ids_of_logits(const CausalLM& model) const {
    const at::Tensor input = ids("input_ids", 2, model);
    for (const char* name : {"logits", "train_logits"}) {
      if (has(name)) expect_shape(name, {input.size(0), input.size(1), model.config().vocab_size});
    }
    return input;
  }

  void check_logits(const CausalLM& model) {
    if (!has("input_ids") || !has("logits")) return;
    const at::NoGradGuard no_grad;
    const Weights w = model.weights();
    const at::Tensor logits = model.head(w, model.forward(w, ids_of_logits(model)).hidden);
    add("logits", logits, tensor("logits"));
    if (has("train_logits")) add("train_logits", logits, tensor("train_logits"));
  }

  // The same tokens by decode steps.
  void check_steps(CausalLM& model) {
    if (!has("input_ids") || !has("logits") || !steps()) return;
    const at::Tensor input = ids_of_logits(model);
    const std::unique_ptr<StepEngine> engine = prepare_steps(model);
    ModelState state = model.initial_state(input.size(0));
    std::vector<at::Tensor> logits;
    for (int64_t t = 0; t < input.size(1); ++t) logits.push_back(engine->step(input.select(1, t), state).clone());
    add("logits by steps", at::stack(logits, 1), tensor("logits"));
  }

  void check_greedy(CausalLM& model) {
    if (!has("greedy") || !steps()) return;
    const at::NoGradGuard no_grad;
    const at::Tensor wanted = ids("greedy", 2, model);
    const int64_t given = std::min(kGreedyPrompt, wanted.size(1));
    const std::unique_ptr<StepEngine> engine = prepare_steps(model);
    LmOutput out = model.forward(engine->weights(), wanted.narrow(1, 0, given));
    at::Tensor logits = model.head_step(engine->weights(), out.hidden.select(1, given - 1));
    std::vector<at::Tensor> tokens = {wanted.narrow(1, 0, given)};
    for (int64_t t = given; t < wanted.size(1); ++t) {
      const at::Tensor next = logits.argmax(-1).to(at::kCPU);
      tokens.push_back(next.unsqueeze(1));
      if (t + 1 < wanted.size(1)) logits = engine->step(next, out.final_state);
    }
    const at::Tensor differ = at::cat(tokens, 1).ne(wanted);
    const auto count = static_cast<double>(differ.sum().item<int64_t>());
    result_.tensors.push_back({"greedy", count, count, 0, count == 0});  // tokens that differ
  }

  // One loss and its gradients, as stored for the baselines.
  void check_loss() {
    if (!has("loss")) return;
    CausalLM model = trainable();
    const at::Tensor loss = model.next_token_loss(model.weights(), ids("input_ids", 2, model));
    loss.backward();
    if (tensor("loss").numel() != 1) fail("loss is not a single number");
    add("loss", loss.reshape({}), tensor("loss").reshape({}));
    const Gradients gradients = gradients_of(model);
    for (const std::string& name : expected_.file().names()) {
      if (name.starts_with("grad.")) add(name, gradient(gradients, name.substr(5)), tensor(name));
    }
  }

  void check_training() {
    if (!has("train_ids")) return;
    CausalLM model = trainable();
    const at::Tensor batches = ids("train_ids", 3, model);
    for (const char* name : {"train_loss", "train_grad_norm"}) {
      if (has(name)) expect_shape(name, {batches.size(0)});
    }
    Optimizer optimizer(model, stored_recipe());
    std::vector<double> losses, norms;
    for (int64_t i = 0; i < batches.size(0); ++i) {
      const at::Tensor loss = model.next_token_loss(model.weights(), batches[i]);
      loss.backward();
      losses.push_back(loss.item<double>());
      if (i == 0) check_first_gradients(model);
      const at::Tensor norm = optimizer.gradient_norm(optimizer.gradients());
      norms.push_back(norm.item<double>());
      optimizer.step(optimizer.gradients(), kStoredRate, kStoredClip, norm, loss.detach().to(at::kDouble));
    }
    if (has("train_loss")) add("train_loss", at::tensor(losses), tensor("train_loss"));
    if (has("train_grad_norm")) add("train_grad_norm", at::tensor(norms), tensor("train_grad_norm"));
  }

  void check_first_gradients(const CausalLM& model) {
    if (!fs::exists(folder_ / "first_grad.safetensors")) return;
    const TensorFile file(folder_ / "first_grad.safetensors");
    const Gradients gradients = gradients_of(model);
    for (const std::string& name : file.file().names()) add("grad." + name, gradient(gradients, name), file.copy(name));
  }

  CausalLM trainable() {
    CausalLM model = load_checkpoint(folder_, load_);
    for (at::Tensor& p : model.parameters()) p.requires_grad_();
    return model;
  }

  using Gradients = std::unordered_map<std::string, at::Tensor>;  // by the names of the parameters
  static Gradients gradients_of(const CausalLM& model) {
    Gradients all;
    for (size_t id = 0; id < model.parameters().size(); ++id) all[model.table().specs()[id].name] = model.parameters()[id].grad();
    return all;
  }
  at::Tensor gradient(const Gradients& all, const std::string& name) const {
    const auto found = all.find(name);
    if (found == all.end())
      throw io::FileError(folder_, "has a stored gradient of " + io::printable(name) + ", which is no parameter of the model");
    if (!found->second.defined())
      throw io::FileError(folder_, "has a stored gradient of " + io::printable(name) + ", which the loss does not depend on");
    return found->second;
  }

  fs::path folder_;
  LoadOptions load_;
  double limit_;
  TensorFile expected_;
  Result& result_;
};

// Checks one folder. Whatever goes wrong with it is part of the result: the other folders are checked all the same.
Result verify(const std::string& folder, const LoadOptions& load, double limit) {
  Result result;
  result.folder = folder;
  try {
    Verifier(load, limit, result).run();
  } catch (const io::FileError& e) {
    result.error = e.what();
  } catch (const c10::Error& e) {
    result.error = folder + ": " + e.what_without_backtrace();
  } catch (const std::exception& e) {
    result.error = folder + ": " + e.what();
  }
  return result;
}

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
  Json row = {{"folder", result.folder}, {"model_type", result.model_type}, {"tensors", tensors}, {"pass", result.pass()}};
  if (!result.error.empty()) row["error"] = result.error;
  return row;
}

int run_verify(const Options& options) {
  LoadOptions load;
  load.dtype = parse_dtype(options.dtype);
  load.device = parse_device(options.device);
  load.writable = true;
  Json rows = Json::array();
  size_t failed = 0, unusable = 0;
  for (const std::string& folder : options.folders) {
    const Result result = verify(folder, load, options.limit);
    rows.push_back(to_json(result));
    if (prints_text(options.json) && !result.tensors.empty()) print(result, options.all);
    if (!result.error.empty()) {
      ++unusable;
      std::cout.flush();
      std::cerr << "cyfa: error: " << result.error << '\n';
    } else if (!result.pass()) {
      ++failed;
    }
  }
  write_rows(options.json, rows);
  if (prints_text(options.json)) {
    const std::string others = unusable == 0 ? "" : text("; %zu could not be checked, or only in part", unusable);
    std::cout << text("%zu models, %zu failed%s\n", rows.size(), failed, others.c_str());
  }
  if (unusable > 0) return kBadInput;
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
