// cyfa verify op: stored vectors of the operator through each backend.
#include <c10/util/Exception.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/verify_op_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/ops/cases/accuracy.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::app {
namespace {

using namespace cases;

struct Options {
  std::vector<std::string> files;
  std::string backend = "all";
  std::string dtype = "fp32";
  std::string device = "cpu";
  double limit = 0;  // 0: by precision
  std::string json;
};

struct Result {
  std::string file, backend, dtype;
  std::string no_gradients;  // why the backend gave none; empty: it did, or none were expected
  std::vector<TensorError> tensors;
  std::string error;  // why the file could not be checked; then no backend has run, or the last one failed

  bool pass() const {
    return error.empty() && std::all_of(tensors.begin(), tensors.end(), [](const TensorError& e) { return e.pass; });
  }
};

void print(const Result& result) {
  std::cout << text("%s  backend %s  %s\n", result.file.c_str(), result.backend.c_str(), result.dtype.c_str());
  if (!result.no_gradients.empty()) std::cout << "  outputs only: " << result.no_gradients << '\n';
  std::cout << text("  %-18s %10s %10s %10s\n", "tensor", "rel_l2", "max_abs", "limit");
  for (const TensorError& e : result.tensors) {
    std::cout << text("  %-18s %10.2e %10.2e %10.0e  %s\n", e.name.c_str(), e.rel_l2, e.max_abs, e.limit, e.pass ? "PASS" : "FAIL");
  }
}

Json to_json(const Result& result) {
  Json tensors = Json::array();
  for (const TensorError& e : result.tensors) {
    tensors.push_back({{"name", e.name}, {"rel_l2", e.rel_l2}, {"max_abs", e.max_abs}, {"limit", e.limit}, {"pass", e.pass}});
  }
  Json row = {{"file", result.file}, {"backend", result.backend}, {"dtype", result.dtype}, {"tensors", tensors}, {"pass", result.pass()}};
  if (!result.no_gradients.empty()) row["no_gradients"] = result.no_gradients;
  if (!result.error.empty()) return {{"file", result.file}, {"error", result.error}, {"pass", false}};
  return row;
}

// The backends to run: the one asked for, or every one that does not refuse; refusals are said.
std::vector<ops::Backend> chosen_backends(const std::string& file, const Tensors& inputs, const Options& options) {
  if (options.backend != "all") return {ops::parse_backend(options.backend)};
  std::vector<ops::Backend> chosen;
  for (const ops::BackendOffer& offer : op_backends(Op::kCyclicFlow, inputs)) {
    if (offer.refusal.empty()) {
      chosen.push_back(offer.backend);
    } else if (prints_text(options.json)) {
      std::cout << text("%s  backend %s  not run: %s\n", file.c_str(), ops::backend_name(offer.backend), offer.refusal.c_str());
    }
  }
  return chosen;
}

// Adds a result for each backend.
void run_backends(const std::string& path, const Options& options, at::Device device, std::vector<Result>& results) {
  const OpFile file = read_op_file(path);
  const at::ScalarType dtype = parse_dtype(options.dtype);
  const Tensors inputs = converted(file.inputs, dtype, device), gradients = converted(file.gradients, dtype, device);
  for (const ops::Backend backend : chosen_backends(path, inputs, options)) {
    RunOptions run = file.options;
    run.backend = backend;
    const std::string no_gradients = gradients.empty() ? "" : gradient_refusal(Op::kCyclicFlow, inputs, backend);
    const Tensors actual = run_op(Op::kCyclicFlow, inputs, no_gradients.empty() ? gradients : Tensors(), run);
    NamedTensors expected = file.expected;
    if (!no_gradients.empty()) std::erase_if(expected, [](const auto& x) { return x.first.starts_with("d_"); });
    Result result;
    result.file = path;
    result.backend = ops::backend_name(backend);
    result.dtype = options.dtype;
    result.no_gradients = no_gradients;
    result.tensors = compare_all(actual, expected, dtype, options.limit);
    if (prints_text(options.json)) print(result);
    results.push_back(std::move(result));
  }
}

// The same. Whatever goes wrong with the file is a last result: the other files are checked all the same. What a file holds can be out of
// the operator's range (a gate above 0, borders that fall).
void verify_file(const std::string& path, const Options& options, at::Device device, std::vector<Result>& results) {
  std::string error;
  try {
    return run_backends(path, options, device, results);
  } catch (const io::FileError& e) {
    error = e.what();
  } catch (const c10::Error& e) {
    error = path + ": " + e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = path + ": " + e.what();
  }
  std::cout.flush();
  std::cerr << "cyfa: error: " << error << '\n';
  Result result;
  result.file = path;
  result.error = std::move(error);
  results.push_back(std::move(result));
}

int run_verify(const Options& options) {
  const at::Device device = parse_device(options.device);
  std::vector<Result> results;
  for (const std::string& path : options.files) verify_file(path, options, device, results);
  const auto unusable = std::count_if(results.begin(), results.end(), [](const Result& r) { return !r.error.empty(); });
  const auto failed = std::count_if(results.begin(), results.end(), [](const Result& r) { return r.error.empty() && !r.pass(); });
  Json rows = Json::array();
  for (const Result& result : results) rows.push_back(to_json(result));
  write_rows(options.json, rows);
  if (prints_text(options.json)) {
    std::cout << text("%zu runs, %lld failed%s\n", results.size() - static_cast<size_t>(unusable), static_cast<long long>(failed),
                      unusable == 0 ? "" : "; some files could not be used");
  }
  if (unusable > 0) return kBadInput;
  return failed == 0 ? kDone : kCheckFailed;
}

}  // namespace

void add_verify_op(CLI::App& verify, Action& action) {
  CLI::App* command = verify.add_subcommand("op", "Compare each backend's outputs and gradients with results stored in files.");
  auto options = std::make_shared<Options>();
  command->add_option("files", options->files, "Files of stored results (.safetensors); docs/cli.md gives the format")
      ->required()
      ->type_name("FILE");
  command->add_option("--backend", options->backend, "Backend to run; all for every one that accepts the inputs")
      ->check(CLI::IsMember({"all", "auto", "reference", "portable", "sm90"}))
      ->capture_default_str();
  add_dtype(command, &options->dtype, "q, k and v", {"fp32", "fp64", "bf16"});
  add_device(command, &options->device);
  command->add_option("--limit", options->limit, "Largest relative L2 error of a tensor")
      ->check(CLI::PositiveNumber)
      ->default_str("by type and tensor");
  add_json(command, &options->json);
  command->footer("Exit status: 0 all tensors are within their limits, 1 a tensor is above its limit, 2 a file cannot be used.");
  command->callback([&action, options] { action = [options] { return run_verify(*options); }; });
}

}  // namespace cyfa::app
