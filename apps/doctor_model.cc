// cyfa doctor MODEL: which engine decodes and which trains a model on this machine, why others do not, and a check of what was chosen.
#include "apps/doctor_model.h"

#include <iostream>

#include "apps/amounts.h"
#include "apps/checkpoint_folder.h"
#include "apps/machine.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/provided.h"
#include "apps/step_check.h"
#include "cyfa/engine/engine.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

Json to_json(const std::vector<EngineOffer>& offers) {
  Json rows = Json::array();
  for (const EngineOffer& offer : offers) {
    rows.push_back({{"engine", offer.name}, {"available", offer.refusal.empty()}, {"refusal", offer.refusal}});
  }
  return rows;
}

void print_offers(const char* what, const Json& offers) {
  std::cout << what << '\n';
  for (const Json& offer : offers) {
    const auto refusal = offer["refusal"].get<std::string>();
    std::cout << text("  %-10s %s\n", offer["engine"].get<std::string>().c_str(), refusal.empty() ? "yes" : ("no: " + refusal).c_str());
  }
}

}  // namespace

int run_doctor_model(const DoctorModelOptions& options) {
  const at::Device device = parse_device(options.device);
  const std::filesystem::path path = model_path(options.model);
  const bool folder = std::filesystem::is_directory(path);
  std::optional<at::ScalarType> asked;
  if (!options.dtype.empty()) asked = parse_dtype(options.dtype);
  CausalLM model = folder ? load_checkpoint(checkpoint_folder(path), {asked, device, false}) : CausalLM(ModelConfig::read(path));
  if (!folder) model.initialise(1, asked.value_or(device.is_cuda() ? at::kBFloat16 : at::kFloat), device);
  const at::ScalarType dtype = model.parameters()[model.head_weight()].scalar_type();
  const std::string type = dtype == at::kBFloat16 ? "bf16" : dtype == at::kFloat ? "fp32" : "fp64";

  Json row = {{"model", options.model}, {"model_type", model.config().kind->model_type}, {"device", machine_name(device)},
              {"dtype", type},          {"parameters", model.table().numel()},           {"layer_types", model.config().layer_types}};
  row["decoding"] = to_json(step_engines(model));
  row["recording_refusal"] = recording_refusal(model);
  // A run trains parameters in fp32, with matrices in `dtype`.
  {
    CausalLM trained(model.config());
    for (size_t id = 0; id < trained.parameters().size(); ++id) {
      trained.parameters()[id] = at::empty({0}, at::TensorOptions(at::kFloat).device(device));
    }
    row["training"] = to_json(train_engines(trained, dtype == at::kBFloat16 ? std::optional(at::kBFloat16) : std::nullopt));
  }
  const std::shared_ptr<StepEngine> engine = prepare_steps(model, {.engine = options.engine});
  row["engine"] = engine->name();
  row["steps"] = Json::array();
  at::manual_seed(1);
  bool healthy = true;
  for (const int64_t B : device.is_cuda() ? std::vector<int64_t>{1, 16, 64, 128} : std::vector<int64_t>{1, 8}) {
    ModelState state = model.initial_state(B);
    const double error = step_error(*engine, state);
    const bool pass = error <= step_error_limit(dtype);  // false for NaN
    healthy = healthy && pass;
    row["steps"].push_back({{"B", B}, {"path", engine->path(B)}, {"rel_l2", error}, {"limit", step_error_limit(dtype)}, {"pass", pass}});
  }
  row["notes"] = engine->notes();
  row["healthy"] = healthy;
  if (prints_text(options.json)) {
    std::cout << text("%s: %s, %s parameters, %s on %s\n\n", options.model.c_str(), model.config().kind->model_type.c_str(),
                      count_text(static_cast<double>(model.table().numel())).c_str(), type.c_str(), machine_name(device).c_str());
    print_offers("decoding: engines, fastest first; the first that serves the model runs it", row["decoding"]);
    const auto refusal = row["recording_refusal"].get<std::string>();
    std::cout << text("  %-10s %s\n", "+graph", refusal.empty() ? "yes" : ("no: " + refusal).c_str());
    print_offers("training: engines", row["training"]);
    std::cout << "\nself-check of engine " << engine->name() << ": logits after four steps against the forward pass, relative L2\n";
    for (const Json& step : row["steps"]) {
      std::cout << text("  batch %-4lld %-28s %.1e, limit %.0e: %s\n", static_cast<long long>(step["B"].get<int64_t>()),
                        step["path"].get<std::string>().c_str(), step["rel_l2"].get<double>(), step["limit"].get<double>(),
                        step["pass"].get<bool>() ? "ok" : "FAILED");
    }
    for (const std::string& note : engine->notes()) std::cout << "  note: " << note << '\n';
    std::cout << (healthy ? "\nhealthy\n" : "\nNOT HEALTHY: steps disagree with the forward pass\n");
  }
  write_rows(options.json, Json::array({row}));
  return healthy ? 0 : 1;
}

}  // namespace cyfa::app
