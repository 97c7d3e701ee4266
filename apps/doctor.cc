// cyfa doctor: what this build and this machine can do, which backend would run and why another would not, and one small check.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <iostream>

#include "apps/accuracy.h"
#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/op_case.h"
#include "apps/output.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::app {
namespace {

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

  ops::CyclicFlowInputs cyclic_flow() const { return random_cyclic_flow(shape, dtype, device); }
  ops::RecurrenceInputs recurrence(const ops::Recurrence& r) const { return random_recurrence(r, shape, dtype, device); }
  at::Tensor gradient() const { return random_normal({shape.B, shape.T, shape.H, shape.V}, dtype, device, 2); }
};

const char* step_kernel() { return cyclic_flow::isa_name(cyclic_flow::best_isa()); }

Check check_recurrence(const ops::Recurrence& r, const Sample& sample) {
  const ops::RecurrenceInputs in = sample.recurrence(r);
  ops::RecurrenceOptions reference;
  reference.backend = ops::Backend::kReference;
  ops::RecurrenceOptions portable;
  portable.backend = ops::Backend::kPortable;
  const NamedTensors truth = run_recurrence(r, in, sample.gradient(), reference);
  return {r.op, sample.device.str(), "portable", compare_all(run_recurrence(r, in, sample.gradient(), portable), truth, sample.dtype)};
}

// Every backend that takes the sample, against the reference; the outputs alone where a backend gives no gradients.
void examine_device(const Sample& sample, Report& report) {
  const ops::CyclicFlowInputs in = sample.cyclic_flow();
  const std::string device = sample.device.str();
  CyclicFlowUpstream upstream;
  upstream.o = sample.gradient();
  ops::CyclicFlowOptions options;
  options.backend = ops::Backend::kReference;
  const NamedTensors truth = run_cyclic_flow(in, upstream, options);
  const auto judge = [&](const char* op, const std::string& backend, const NamedTensors& actual) {
    const bool gradients = std::any_of(actual.begin(), actual.end(), [](const auto& entry) { return entry.first == "d_q"; });
    report.checks.push_back({op, device, backend, compare_all(actual, gradients ? truth : outputs_of(truth), sample.dtype)});
  };
  const auto takes = [](const ops::BackendOffer& offer) { return offer.refusal.empty() && offer.backend != ops::Backend::kReference; };

  report.backends.push_back({"cyclic_flow", device, ops::cyclic_flow_backends(in)});
  for (const ops::BackendOffer& offer : report.backends.back().offers) {
    if (!takes(offer)) continue;
    options.backend = offer.backend;
    judge("cyclic_flow", ops::backend_name(offer.backend),
          run_cyclic_flow(in, gradient_refusal(in, offer.backend).empty() ? upstream : CyclicFlowUpstream(), options));
  }
  report.backends.push_back({"cyclic_flow_step", device, ops::cyclic_flow_step_backends(step_inputs(in, 0), first_state(in))});
  for (const ops::BackendOffer& offer : report.backends.back().offers) {
    if (!takes(offer)) continue;
    options.backend = offer.backend;
    judge("cyclic_flow_step", ops::backend_name(offer.backend), run_steps(in, options));
  }
  for (const ops::Recurrence& r : ops::recurrences()) {
    report.backends.push_back({r.op, device, ops::recurrence_backends(r, sample.recurrence(r))});
    report.checks.push_back(check_recurrence(r, sample));
  }
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

int run_doctor(bool json) {
  const Report report = examine();
  if (json) {
    std::cout << dump(to_json(report), 2) << '\n';
  } else {
    print(report);
  }
  return report.healthy() ? kDone : kCheckFailed;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* doctor = app.add_subcommand("doctor", "Say what this build and machine can do, which backends run, and check one small case.");
  auto json = std::make_shared<bool>(false);
  doctor->add_flag("--json", *json, "Print JSON");
  doctor->callback([&action, json] { action = [json] { return run_doctor(*json); }; });
}

}  // namespace cyfa::app
