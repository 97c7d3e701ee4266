// cyfa doctor: what this build and this machine can do, which backend would run and why another would not, and one small check.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/doctor_model.h"
#include "apps/limits.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/threads.h"
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

// Ops by name, or how many there are if they are most.
std::string ops_text(const std::vector<std::string>& names, size_t all) {
  if (names.size() == all) return text("all %zu operators", all);
  if (2 * names.size() > all) return text("%zu of %zu operators", names.size(), all);
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// One line for each backend of a device with the ops that it takes. A backend that takes none has one line with its first reason, another
// one line for each op that it refuses; the reference, which runs on request only, has no such lines.
void print_backends(const Report& report) {
  std::vector<std::string> devices;
  const auto add = [](std::vector<std::string>& list, const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const BackendReport& b : report.backends) add(devices, b.device);
  for (const std::string& device : devices) {
    std::cout << text("\nbackends on %s; the first that takes the inputs runs\n", device.c_str());
    std::vector<std::string> backends;
    for (const BackendReport& b : report.backends) {
      for (const ops::BackendOffer& offer : b.offers) add(backends, ops::backend_name(offer.backend));
    }
    std::string refusals;
    for (const std::string& backend : backends) {
      std::vector<std::string> taken, refused;
      size_t all = 0;
      for (const BackendReport& b : report.backends) {
        if (b.device != device) continue;
        ++all;
        for (const ops::BackendOffer& offer : b.offers) {
          if (ops::backend_name(offer.backend) != backend) continue;
          (offer.refusal.empty() ? taken : refused).push_back(offer.refusal.empty() ? b.op : b.op + ": " + offer.refusal);
        }
      }
      const bool on_request = backend == ops::backend_name(ops::Backend::kReference);
      if (taken.empty() && !refused.empty()) {
        refusals += text("  not used: %s (%s)\n", backend.c_str(), refused[0].substr(refused[0].find(": ") + 2).c_str());
      } else if (!taken.empty()) {
        std::cout << text("  %-11s %s%s\n", backend.c_str(), ops_text(taken, all).c_str(),
                          on_request ? ", on request: the definition" : "");
        for (const std::string& reason : refused)
          refusals += on_request ? "" : text("  not used: %s for %s\n", backend.c_str(), reason.c_str());
      }
    }
    std::cout << refusals;
  }
}

// One line for each device and backend that agrees with the reference, with its worst result, and one for each check that fails.
void print_checks(const Report& report) {
  std::cout << "\nself-check against the reference: relative L2 of outputs and gradients\n";
  std::vector<const Check*> first;  // of each device and backend
  for (const Check& check : report.checks) {
    const auto same = [&](const Check* c) { return c->device == check.device && c->backend == check.backend; };
    if (std::none_of(first.begin(), first.end(), same)) first.push_back(&check);
  }
  for (const Check* one : first) {
    const Check* closest = nullptr;  // to its limit
    size_t passed = 0, all = 0;
    for (const Check& check : report.checks) {
      if (check.device != one->device || check.backend != one->backend) continue;
      ++all;
      passed += check.pass() ? 1 : 0;
      const TensorError& e = worst(check.errors);
      if (!check.pass()) {
        std::cout << text("  %-7s %-10s %s: %s %.1e, limit %.0e: FAILED\n", check.device.c_str(), check.backend.c_str(), check.op.c_str(),
                          e.name.c_str(), e.rel_l2, e.limit);
      } else if (closest == nullptr || e.rel_l2 > worst(closest->errors).rel_l2) {
        closest = &check;
      }
    }
    if (closest == nullptr) continue;
    const TensorError& e = worst(closest->errors);
    std::cout << text("  %-7s %-10s %zu of %zu operators agree; the largest error is %.1e (%s of %s), limit %.0e\n", one->device.c_str(),
                      one->backend.c_str(), passed, all, e.rel_l2, e.name.c_str(), closest->op.c_str(), e.limit);
  }
}

void print(const Report& report) {
  const auto line = [](const char* key, const std::string& value) { std::cout << text("%-14s %s\n", key, value.c_str()); };
  line("cyfa", text("%s (commit %s)", CYFA_VERSION, commit().c_str()));
  line("compiler", compiler());
  line("torch", text("%s, built against %s%s", runtime_torch().c_str(), build_torch().c_str(), at::hasCUDA() ? "" : "; no CUDA"));
  line("cpu", cpu_model());
  line("instructions", joined(cpu_features()));
  line("step kernel", step_kernel());
  line("threads", text("%d of %d CPUs; waiting threads %s", at::get_num_threads(), usable_cpus(), wait_policy().c_str()));
  const FreeMemory memory = free_memory();
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / double{1 << 30}; };
  line("memory", text("%.1f GiB, %.1f free (limited by %s)", gib(machine_memory()), gib(memory.bytes), memory.limited_by.c_str()));
  if (report.gpus.empty()) line("gpu", at::hasCUDA() ? "none seen" : "none (this torch has no CUDA)");
  for (const Gpu& gpu : report.gpus) {
    line("gpu", gpu.name.empty() ? "one, not examined (built without CUDA)" : gpu.name + ", compute capability " + gpu.capability);
  }
  print_backends(report);
  print_checks(report);
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
  const FreeMemory memory = free_memory();
  return {{"version", CYFA_VERSION},
          {"commit", commit()},
          {"compiler", compiler()},
          {"torch", {{"runtime", runtime_torch()}, {"build", build_torch()}, {"cuda", at::hasCUDA()}}},
          {"cpu",
           {{"model", cpu_model()},
            {"features", cpu_features()},
            {"threads", at::get_num_threads()},
            {"usable", usable_cpus()},
            {"wait_policy", wait_policy()}}},
          {"memory", {{"bytes", machine_memory()}, {"free_bytes", memory.bytes}, {"limited_by", memory.limited_by}}},
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
