// cyfa doctor: what this build and this machine can do, which backend would run and why another would not, and one small check.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/doctor_model.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step.h"
#include "cyfa/ops/cases/accuracy.h"
#include "cyfa/ops/cases/op_case.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::app {
namespace {

using namespace cases;

struct BackendReport {
  std::string op, device;
  std::vector<ops::BackendOffer> offers;
};

// One path on one device, judged by the reference.
struct Check {
  std::string op, device, backend;
  std::vector<TensorError> errors;

  bool pass() const {
    return std::all_of(errors.begin(), errors.end(), [](const TensorError& e) { return e.pass; });
  }
};

struct Report {
  std::vector<Gpu> gpus = app::gpus();
  std::vector<BackendReport> backends;
  std::vector<Check> checks;

  bool healthy() const {
    return std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.pass(); });
  }
};

// What a device is asked to take: a GPU the widths and the type of the published models, for which its kernels are made.
struct Sample {
  at::Device device;
  OpShape shape;
  at::ScalarType dtype;

  explicit Sample(at::Device where) : device(where), shape{.B = 1, .T = 96, .H = 2, .K = 64, .V = 64, .M = 64}, dtype(at::kFloat) {
    if (!device.is_cuda()) return;
    shape.K = shape.V = 256;
    shape.M = 128;
    dtype = at::kBFloat16;
  }

  Tensors inputs(Op op) const { return moved_to(make_inputs(layer_case(op, shape, dtype)), device); }
  Tensors gradient(Op op) const { return {{"o", make_output_gradients(layer_case(op, shape, dtype)).at("o").to(device)}}; }
};

const char* step_kernel() { return cyclic_flow::isa_name(cyclic_flow::best_isa()); }

// Every backend that takes the sample, against the reference; the outputs alone where a backend gives no gradients.
void examine_op(Op op, const Sample& sample, Report& report) {
  const Tensors inputs = sample.inputs(op), gradient = sample.gradient(op);
  const std::string device = sample.device.str();
  const Tensors truth = run_op(op, inputs, gradient, {.backend = ops::Backend::kReference});
  const auto judge = [&](const std::string& name, const std::vector<ops::BackendOffer>& offers, const auto& run) {
    report.backends.push_back({name, device, offers});
    for (const ops::BackendOffer& offer : offers) {
      if (!offer.refusal.empty() || offer.backend == ops::Backend::kReference) continue;
      const Tensors actual = run(offer.backend);
      const Tensors expected = actual.contains("d_q") ? truth : without_gradients(truth);
      report.checks.push_back({name, device, ops::backend_name(offer.backend), compare_all(actual, expected, sample.dtype)});
    }
  };
  judge(op_name(op), op_backends(op, inputs), [&](ops::Backend backend) {
    return run_op(op, inputs, gradient_refusal(op, inputs, backend).empty() ? gradient : Tensors(), {.backend = backend});
  });
  if (op != Op::kCyclicFlow) return;
  judge("cyclic_flow_step", ops::cyclic_flow_step_backends(step_inputs(inputs, 0), first_state(inputs)),
        [&](ops::Backend backend) { return run_steps(op, inputs, {.backend = backend}); });
}

void examine_device(const Sample& sample, Report& report) {
  for (const Op op : all_ops()) examine_op(op, sample, report);
}

Report examine() {
  Report report;
  examine_device(Sample(at::kCPU), report);
  if (!report.gpus.empty()) examine_device(Sample(at::Device(at::kCUDA, 0)), report);
  return report;
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : " ") + word;
  return all.empty() ? "none" : all;
}

const TensorError& worst(const std::vector<TensorError>& errors) {
  return *std::max_element(errors.begin(), errors.end(),
                           [](const TensorError& a, const TensorError& b) { return !(a.rel_l2 >= b.rel_l2); });
}

void print(const Report& report) {
  const auto line = [](const char* key, const std::string& value) { std::cout << text("%-14s %s\n", key, value.c_str()); };
  line("cyfa", text("%s (commit %s)", CYFA_VERSION, commit().c_str()));
  line("compiler", compiler());
  line("torch", text("%s, built against %s%s", runtime_torch().c_str(), build_torch().c_str(), at::hasCUDA() ? "" : "; no CUDA"));
  line("cpu", cpu_model());
  line("instructions", joined(cpu_features()));
  line("step kernel", step_kernel());
  line("threads", std::to_string(at::get_num_threads()));
  if (report.gpus.empty()) line("gpu", at::hasCUDA() ? "none seen" : "none (this torch has no CUDA)");
  for (const Gpu& gpu : report.gpus) {
    line("gpu", gpu.name.empty() ? "one, not examined (built without CUDA)" : gpu.name + ", compute capability " + gpu.capability);
  }
  std::cout << "\nbackends, fastest first; the first that takes the inputs runs\n";
  for (const BackendReport& b : report.backends) {
    for (const ops::BackendOffer& offer : b.offers) {
      std::cout << text("  %-23s %-7s %-10s %s\n", b.op.c_str(), b.device.c_str(), ops::backend_name(offer.backend),
                        offer.refusal.empty() ? "yes" : ("no: " + offer.refusal).c_str());
    }
  }
  std::cout << "\nself-check against the reference: relative L2 of the worst of outputs and gradients\n";
  for (const Check& check : report.checks) {
    const TensorError& e = worst(check.errors);
    std::cout << text("  %-23s %-7s %-10s %.1e (%s), limit %.0e: %s\n", check.op.c_str(), check.device.c_str(), check.backend.c_str(),
                      e.rel_l2, e.name.c_str(), e.limit, check.pass() ? "ok" : "FAILED");
  }
  std::cout << (report.healthy() ? "\nhealthy\n" : "\nNOT HEALTHY: a path disagrees with the reference\n");
}

Json to_json(const Report& report) {
  Json gpus = Json::array();
  for (const Gpu& gpu : report.gpus) gpus.push_back({{"name", gpu.name}, {"capability", gpu.capability}});
  Json backends = Json::array();
  for (const BackendReport& b : report.backends) {
    for (const ops::BackendOffer& offer : b.offers) {
      backends.push_back({{"op", b.op},
                          {"device", b.device},
                          {"backend", ops::backend_name(offer.backend)},
                          {"available", offer.refusal.empty()},
                          {"refusal", offer.refusal}});
    }
  }
  Json checks = Json::array();
  for (const Check& check : report.checks) {
    const TensorError& e = worst(check.errors);
    checks.push_back({{"op", check.op},
                      {"device", check.device},
                      {"backend", check.backend},
                      {"worst", e.name},
                      {"rel_l2", e.rel_l2},
                      {"limit", e.limit},
                      {"pass", check.pass()}});
  }
  return {{"version", CYFA_VERSION},
          {"commit", commit()},
          {"compiler", compiler()},
          {"torch", {{"runtime", runtime_torch()}, {"build", build_torch()}, {"cuda", at::hasCUDA()}}},
          {"cpu", {{"model", cpu_model()}, {"features", cpu_features()}, {"threads", at::get_num_threads()}}},
          {"step_kernel", step_kernel()},
          {"gpus", gpus},
          {"backends", backends},
          {"checks", checks},
          {"healthy", report.healthy()}};
}

int run_doctor(const std::string& json) {
  const Report report = examine();
  if (prints_text(json)) print(report);
  write_rows(json, Json::array({to_json(report)}));
  return report.healthy() ? kDone : kCheckFailed;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* doctor = app.add_subcommand("doctor", "Say what this build and machine can do, which backends run, and check one small case.");
  auto options = std::make_shared<DoctorModelOptions>();
  doctor
      ->add_option("model", options->model,
                   "Model to report on instead, by name, config file or checkpoint directory: which engine runs it, and why")
      ->type_name("MODEL");
  add_device(doctor, &options->device);
  add_dtype(doctor, &options->dtype, "the weights", {"fp32", "bf16"});
  add_engine(doctor, &options->engine);
  add_json(doctor, &options->json);
  doctor->callback([&action, options] {
    action = [options] { return options->model.empty() ? run_doctor(options->json) : run_doctor_model(*options); };
  });
}

}  // namespace cyfa::app
