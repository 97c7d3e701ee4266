// cyfa bench op: checks an op on a short case of the same widths, then times it beside a yardstick of the same machine: a plain matrix
// product for the chunk-wise ops, a scaled copy of a large array for the decoding step.
#include "apps/bench_op.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/threads.h"
#include "apps/timing.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step.h"
#include "cyfa/ops/cases/accuracy.h"
#include "cyfa/ops/cases/op_case.h"

namespace cyfa::app {
namespace {

using namespace cases;

constexpr const char* kStep = "step";  // on the command line: one step of cyclic_flow

// Tokens of the check: two chunks and a bit, so that a state is carried twice and the last chunk is short.
constexpr int64_t kCheckTokens = 150;
constexpr int64_t kCheckSteps = 6;
constexpr int64_t kStepBatch = 64;

struct Context {
  const BenchOptions& options;
  at::Device device;
  at::ScalarType dtype;
  std::string backend;  // the one that runs

  // A forward that is timed alone keeps nothing for a backward, and may run where there is none.
  bool needs_gradients() const { return options.pass != "forward"; }

  // The short case: same widths, one or two sequences.
  OpShape check_shape(int64_t tokens) const {
    OpShape s = options.shape;
    s.B = std::min<int64_t>(s.B, 2);
    s.T = std::min(s.T, tokens);
    return s;
  }
};

RunOptions run_options(const BenchOptions& o) {
  return {.backend = ops::parse_backend(o.backend), .chunk = o.chunk, .segment_chunks = o.segment_chunks};
}

Op op_to_run(const BenchOptions& o) { return o.op == kStep ? Op::kCyclicFlow : op_of(o.op); }

Tensors inputs_on_device(const Context& c, const OpShape& shape) {
  return moved_to(make_inputs(layer_case(op_to_run(c.options), shape, c.dtype)), c.device);
}

at::Tensor gradient_of_o(const Context& c, const Tensors& inputs) { return random_normal(inputs.at("v").sizes(), c.dtype, c.device, 2); }

// The recurrences are always checked with their gradients.
std::vector<TensorError> check_op(const Context& c) {
  const Op op = op_to_run(c.options);
  const Tensors inputs = inputs_on_device(c, c.check_shape(kCheckTokens));
  const Tensors gradient = {{"o", gradient_of_o(c, inputs)}};
  const Tensors upstream = c.needs_gradients() || op != Op::kCyclicFlow ? gradient : Tensors();
  return compare_all(run_op(op, inputs, upstream, run_options(c.options)),
                     run_op(op, inputs, upstream, {.backend = ops::Backend::kReference}), c.dtype);
}

std::vector<TensorError> check_step(const Context& c) {
  OpShape shape = c.check_shape(kCheckSteps);
  shape.T = kCheckSteps;
  const Tensors inputs = inputs_on_device(c, shape);
  return compare_all(run_steps(Op::kCyclicFlow, inputs, run_options(c.options)),
                     run_op(Op::kCyclicFlow, inputs, {}, {.backend = ops::Backend::kReference}), c.dtype);
}

// A yardstick for arithmetic: 256 x 256 x 256 stays in a CPU's cache; a GPU wants more.
struct Gemm {
  at::Tensor a, b, out;
  double flops;

  Gemm(at::Device device, at::ScalarType dtype) {
    const int64_t n = device.is_cpu() ? 256 : 8192;
    // The portable path takes bf16 on a CPU to fp32.
    const at::ScalarType type = device.is_cpu() && dtype == at::kBFloat16 ? at::kFloat : dtype;
    a = random_normal({n, n}, type, device, 3);
    b = random_normal({n, n}, type, device, 4);
    out = at::empty_like(a);
    flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  }

  Task task() {
    return {[this] { at::mm_out(out, a, b); }, {}, a.is_cpu() ? 20 : 5};
  }
};

Json row_head(const Context& c, const char* pass) {
  const BenchOptions& o = c.options;
  const OpShape& s = o.shape;
  return {{"impl", "cyfa"},     {"op", o.op}, {"pass", pass}, {"dtype", o.dtype}, {"backend", c.backend},
          {"device", o.device}, {"B", s.B},   {"T", s.T},     {"H", s.H},         {"K", s.K},
          {"V", s.V},           {"M", s.M}};
}

void add_timing(Json& row, const Timing& t) {
  row["ms"] = t.median * 1e3;
  row["ms_p10"] = t.p10 * 1e3;
  row["ms_p90"] = t.p90 * 1e3;
  row["repeats"] = t.repeats;
}

void add_machine(Json& row, const std::vector<TensorError>& errors, at::Device device) {
  Json check = Json::object();
  for (const TensorError& e : errors) check[e.name] = e.rel_l2;
  row["check_rel_l2"] = check;
  row["threads"] = at::get_num_threads();
  row["commit"] = commit();
  row["date"] = utc_date();
  row["machine"] = machine_name(device);
  row["versions"] = {{"cyfa", CYFA_VERSION}, {"torch", runtime_torch()}, {"compiler", compiler()}};
}

// An op as the clock sees it.
struct Timed {
  std::function<void()> forward;   // keeps what backward needs, if there is to be one
  std::function<void()> backward;  // of the last forward
};

Timed timed_op(const Context& c) {
  struct Work {
    std::function<at::Tensor()> call;
    std::vector<at::Tensor> leaves, gradients;
    at::Tensor grad, o;
  };
  Tensors inputs = inputs_on_device(c, c.options.shape);
  if (c.needs_gradients()) inputs = with_gradients(inputs);
  auto w = std::make_shared<Work>();
  w->call = prepared_call(op_to_run(c.options), inputs, run_options(c.options));
  w->leaves = leaves(inputs);
  w->grad = gradient_of_o(c, inputs);
  return {[w] {
            w->o.reset();
            w->gradients.clear();
            w->o = w->call();
          },
          [w] { w->gradients = torch::autograd::grad({w->o}, w->leaves, {w->grad}); }};
}

Json bench_chunked(const Context& c) {
  Gemm gemm(c.device, c.dtype);
  gemm.task().run();
  reset_peak();
  const int64_t before = resident_bytes();
  const Timed timed = timed_op(c);
  const Flops flops = op_flops(op_to_run(c.options), c.options.shape);

  // The sweep over T wants the memory of the op alone: the first run of each pass, before the clock's own buffers are there.
  const std::string& pass = c.options.pass;
  timed.forward();
  if (pass != "forward") timed.backward();
  synchronize(c.device);
  const auto memory = static_cast<double>(peak_resident_bytes() - before);

  Json rows = Json::array();
  const auto add_row = [&](const char* name, const Task& task, double operations) {
    const std::vector<Task> tasks = {task, gemm.task()};
    const std::vector<Timing> t = measure(tasks, c.options.repeats, c.device);
    Json row = row_head(c, name);
    add_timing(row, t[0]);
    row["gflop"] = operations * 1e-9;
    row["gflop_per_s"] = operations / t[0].median * 1e-9;
    row["gemm_gflop_per_s"] = gemm.flops / t[1].median * 1e-9;
    row["share_of_gemm"] = operations / t[0].median / (gemm.flops / t[1].median);
    row["tokens_per_s"] = static_cast<double>(c.options.shape.B * c.options.shape.T) / t[0].median;
    row["peak_memory_mb"] = c.device.is_cpu() ? Json(memory / 1e6) : Json(nullptr);
    rows.push_back(row);
  };
  if (pass != "backward") add_row("forward", {timed.forward}, flops.forward);
  if (pass != "forward") add_row("backward", {timed.backward, timed.forward}, flops.backward);
  return rows;
}

Json bench_step(const Context& c) {
  OpShape one = c.options.shape;
  one.T = 1;
  const Tensors token = inputs_on_device(c, one);
  const ops::CyclicFlowState state = first_state(token);
  const ops::CyclicFlowStepInputs in = step_inputs(token, 0);
  const ops::CyclicFlowOptions step_options = run_options(c.options);
  const auto options = at::TensorOptions(c.device).dtype(at::kFloat);
  const at::Tensor from = at::ones({int64_t{256} << 18}, options);  // 256 MiB
  at::Tensor to = at::zeros_like(from);
  const at::Tensor factor = at::scalar_tensor(0.999, options);
  const std::vector<Task> tasks = {{[&] { ops::cyclic_flow_step(in, state, step_options); }, {}, c.device.is_cpu() ? 1 : 20},
                                   {[&] { at::mul_out(to, from, factor); }},
                                   {[&] { to.mul_(factor); }}};
  const std::vector<Timing> t = measure(tasks, c.options.repeats, c.device);
  const double copied = 2.0 * static_cast<double>(from.nbytes());
  const double bytes = step_bytes(c.options.shape);
  Json row = row_head(c, "step");
  row["T"] = 1;
  if (c.device.is_cpu()) row["kernel"] = cyclic_flow::isa_name(cyclic_flow::best_isa());
  add_timing(row, t[0]);
  row["state_mb"] = bytes / 2 * 1e-6;
  row["gb_per_s"] = bytes / t[0].median * 1e-9;
  row["copy_gb_per_s"] = copied / t[1].median * 1e-9;
  row["share_of_copy"] = bytes / t[0].median / (copied / t[1].median);
  row["scale_in_place_gb_per_s"] = copied / t[2].median * 1e-9;
  row["share_of_scale_in_place"] = bytes / t[0].median / (copied / t[2].median);
  row["tokens_per_s"] = static_cast<double>(c.options.shape.B) / t[0].median;
  return Json::array({row});
}

// Throws if the inputs and states alone are larger than the memory of this machine, before torch begins to fill it.
void check_memory(const Context& c) {
  if (!c.device.is_cpu()) return;
  const OpShape& s = c.options.shape;
  const auto n = [](int64_t size) { return static_cast<double>(size); };
  const double tokens = c.options.op == kStep ? 1 : n(s.T);
  const double numbers = n(s.B) * n(s.H) * (tokens * (2 * n(s.K) + 2 * n(s.V)) + n(s.M) * (n(s.K) + n(s.V)));
  const double wanted = numbers * (c.dtype == at::kDouble ? 8 : c.dtype == at::kFloat ? 4 : 2);
  const double memory = n(sysconf(_SC_PHYS_PAGES)) * n(sysconf(_SC_PAGESIZE));
  if (wanted <= memory) return;
  throw std::invalid_argument(
      text("these sizes take at least %.3g GB of memory, and this machine has %.3g GB; reduce --B, --T, --H, --K, --V or --M",
           wanted * 1e-9, memory * 1e-9));
}

// The backend that takes a token of these widths; throws with the reason if one that was forced refuses.
std::string running_backend(const Context& c) {
  OpShape one = c.options.shape;
  one.B = 1;
  one.T = 1;
  const Tensors inputs = inputs_on_device(c, one);
  const ops::Backend wanted = ops::parse_backend(c.options.backend);
  if (c.options.op == kStep) {
    const auto offers = ops::cyclic_flow_step_backends(step_inputs(inputs, 0), first_state(inputs));
    return ops::backend_name(ops::choose_backend("cyclic_flow_step", wanted, offers));
  }
  const auto offers = op_backends(op_to_run(c.options), c.needs_gradients() ? with_gradients(inputs) : inputs);
  return ops::backend_name(ops::choose_backend(c.options.op.c_str(), wanted, offers));
}

double value(const Json& row, const char* key) { return row.at(key).is_null() ? 0 : row.at(key).get<double>(); }

void print(const Json& rows) {
  for (const Json& row : rows) {
    std::cout << text("%-9s median %9.3f ms  p10 %9.3f  p90 %9.3f  (%d runs)\n", row.at("pass").get<std::string>().c_str(),
                      value(row, "ms"), value(row, "ms_p10"), value(row, "ms_p90"), row.at("repeats").get<int>());
    if (row.contains("gflop_per_s")) {
      std::cout << text("          %.3g GFLOP, %.1f GFLOP/s; plain matrix product %.1f GFLOP/s: share %.2f; %.0f tokens/s\n",
                        value(row, "gflop"), value(row, "gflop_per_s"), value(row, "gemm_gflop_per_s"), value(row, "share_of_gemm"),
                        value(row, "tokens_per_s"));
    } else {
      std::cout << text(
          "          state %.1f MB, %.2f GB/s; copy-and-scale of 256 MiB %.2f GB/s: share %.2f; in place %.2f GB/s: share %.2f; %.0f "
          "tokens/s\n",
          value(row, "state_mb"), value(row, "gb_per_s"), value(row, "copy_gb_per_s"), value(row, "share_of_copy"),
          value(row, "scale_in_place_gb_per_s"), value(row, "share_of_scale_in_place"), value(row, "tokens_per_s"));
    }
  }
  if (!rows.empty() && rows.front().contains("peak_memory_mb") && !rows.front().at("peak_memory_mb").is_null()) {
    std::cout << text("memory    %.0f MB at the peak, inputs and results included\n", value(rows.front(), "peak_memory_mb"));
  }
}

// The tensors that were compared, worst first; false if one is above its limit.
bool report_check(const std::vector<TensorError>& errors, bool quiet) {
  bool good = true;
  const TensorError* worst = &errors.front();
  for (const TensorError& e : errors) {
    good = good && e.pass;
    if (!(e.rel_l2 / e.limit <= worst->rel_l2 / worst->limit)) worst = &e;
    if (!e.pass) std::cerr << text("check: %s is off by %.2e (relative L2), limit %.0e\n", e.name.c_str(), e.rel_l2, e.limit);
  }
  if (good && !quiet) {
    std::cout << text("check     %zu tensors against the reference: worst %s %.1e, limit %.0e: ok\n", errors.size(), worst->name.c_str(),
                      worst->rel_l2, worst->limit);
  }
  return good;
}

int run_bench(BenchOptions options) {
  if (options.threads > 0) use_threads(options.threads, "--threads");
  if (options.shape.M % 2 != 0)
    throw std::invalid_argument("--M is " + std::to_string(options.shape.M) + "; wanted an even number of stored slots");
  const at::Device device = parse_device(options.device);
  options.shape.B = options.B.value_or(options.op == kStep ? kStepBatch : 1);
  const bool quiet = options.json == "-";
  if (options.scaling) {
    const Json rows = bench_scaling(options);
    if (!options.json.empty()) write_rows(options.json, rows);
    return kDone;
  }
  Context c{options, device, parse_dtype(options.dtype), ""};
  check_memory(c);
  c.backend = running_backend(c);
  const OpShape& s = options.shape;
  if (!quiet) {
    std::cout << text("%s  B%lld T%lld H%lld K%lld V%lld M%lld %s  backend %s, %s, %d threads\n", options.op.c_str(),
                      static_cast<long long>(s.B), static_cast<long long>(options.op == kStep ? 1 : s.T), static_cast<long long>(s.H),
                      static_cast<long long>(s.K), static_cast<long long>(s.V), static_cast<long long>(s.M), options.dtype.c_str(),
                      c.backend.c_str(), options.device.c_str(), at::get_num_threads())
              << std::flush;
  }
  const std::vector<TensorError> errors = options.op == kStep ? check_step(c) : check_op(c);
  if (!report_check(errors, quiet)) {
    std::cerr << "cyfa: error: the check failed, so nothing was timed\n";
    return kCheckFailed;
  }
  std::cout.flush();
  Json rows = options.op == kStep ? bench_step(c) : bench_chunked(c);
  for (Json& row : rows) add_machine(row, errors, device);
  if (!quiet) print(rows);
  if (!options.json.empty()) write_rows(options.json, rows);
  return kDone;
}

}  // namespace

void add_bench_op(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("op", "Check an operator against the reference, then time it beside a plain matrix product or copy.");
  auto o = std::make_shared<BenchOptions>();
  const auto size = CLI::Range(int64_t{1}, int64_t{1} << 24);
  std::vector<std::string> names;
  for (const Op op : all_ops()) names.push_back(op_name(op));
  names.emplace_back(kStep);
  command->add_option("--op", o->op, "Operator to time; step is one decode step of cyclic_flow")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command->add_option("--B", o->B, "Sequences in the batch")->check(size)->default_str("1, or 64 for step");
  command->add_option("--T", o->shape.T, "Tokens per sequence")->check(size)->capture_default_str();
  command->add_option("--H", o->shape.H, "Heads")->check(size)->capture_default_str();
  command->add_option("--K", o->shape.K, "Key width per head")->check(size)->capture_default_str();
  command->add_option("--V", o->shape.V, "Value width per head")->check(size)->capture_default_str();
  command->add_option("--M", o->shape.M, "Stored slots, an even number")->check(size)->capture_default_str();
  add_dtype(command, &o->dtype, "q, k and v", {"fp32", "fp64", "bf16"});
  command->add_option("--backend", o->backend, "Backend to run")
      ->check(CLI::IsMember({"auto", "reference", "portable", "sm90"}))
      ->capture_default_str();
  add_device(command, &o->device);
  command->add_option("--pass", o->pass, "Passes to time; forward alone computes no gradients")
      ->check(CLI::IsMember({"forward", "backward", "both"}))
      ->capture_default_str();
  command->add_option("--chunk", o->chunk, "Tokens per chunk of the portable backend; 0 for the operator's choice")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_option("--segment-chunks", o->segment_chunks, "Chunks per segment of the portable backend; 0 for the operator's choice")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_repeats(command, &o->repeats);
  add_threads(command, &o->threads);
  command->add_flag("--scaling", o->scaling, "Time T = 4K, 8K, ... 64K, each in a process of its own; print time and memory per doubling");
  add_json(command, &o->json);
  command->callback([&action, o] { action = [o] { return run_bench(*o); }; });
}

}  // namespace cyfa::app
