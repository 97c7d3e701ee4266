#include "tests/ops/cases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

namespace cyfa::test {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

  at::Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, generator_, at::kDouble); }
  at::Tensor uniform(at::IntArrayRef sizes) { return at::rand(sizes, generator_, at::kDouble); }
  at::Tensor index(int64_t count, at::IntArrayRef sizes) { return at::randint(count, sizes, generator_, at::kLong); }

 private:
  at::Generator generator_;
};

at::Tensor make_log_alpha(Random& random, Gates gates, at::IntArrayRef sizes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor realistic = -at::softplus(random.normal(sizes) - 2.0);
  switch (gates) {
    case Gates::kRealistic: return realistic;
    case Gates::kOpen: return at::zeros(sizes, at::kDouble);
    case Gates::kDead: return at::full(sizes, -1e5, at::kDouble);
    case Gates::kShut: return at::full(sizes, -kInfinity, at::kDouble);
    case Gates::kMixed: break;
  }
  const std::vector<double> levels = {0.0, -1e-6, -1e-3, -0.1, -5.0, -80.0, -1e3, -1e5, -kInfinity};
  return at::tensor(levels, at::kDouble).take(random.index(static_cast<int64_t>(levels.size()), sizes));
}

at::ScalarType compute_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor optional(const Tensors& x, const std::string& name) {
  const auto found = x.find(name);
  return found == x.end() ? at::Tensor() : found->second;
}

std::optional<at::Tensor> maybe(const Tensors& x, const std::string& name) {
  const auto found = x.find(name);
  return found == x.end() ? std::nullopt : std::optional<at::Tensor>(found->second);
}

struct OpNames {
  Op op;
  const char* name;
  const char* label;
};

const OpNames kNames[] = {{Op::kCyclicFlow, "cyclic_flow", "CyclicFlow"},
                          {Op::kLa, "la", "La"},
                          {Op::kFixedScalarGatedLa, "fixed_scalar_gated_la", "FixedScalarGatedLa"},
                          {Op::kScalarGatedLa, "scalar_gated_la", "ScalarGatedLa"},
                          {Op::kRowGatedLa, "row_gated_la", "RowGatedLa"},
                          {Op::kColumnGatedLa, "column_gated_la", "ColumnGatedLa"},
                          {Op::kDeltaRule, "delta_rule", "DeltaRule"},
                          {Op::kScalarGatedDeltaRule, "scalar_gated_delta_rule", "ScalarGatedDeltaRule"},
                          {Op::kRowGatedDeltaRule, "row_gated_delta_rule", "RowGatedDeltaRule"}};

const OpNames& names_of(Op op) {
  return *std::find_if(std::begin(kNames), std::end(kNames), [&](const OpNames& names) { return names.op == op; });
}

std::vector<int64_t> gate_sizes(const OpCase& c) {
  std::vector<int64_t> sizes = {c.batch(), c.tokens(), c.H};
  if (c.op == Op::kRowGatedLa || c.op == Op::kRowGatedDeltaRule) sizes.push_back(c.K);
  if (c.op == Op::kColumnGatedLa) sizes.push_back(c.V);
  return sizes;
}

const ops::Recurrence& recurrence_of(Op op) { return ops::recurrence_of(op_name(op)); }

ops::RecurrenceInputs recurrence_inputs(const ops::Recurrence& r, const Tensors& x) {
  ops::RecurrenceInputs in;
  in.q = optional(x, "q");
  in.k = optional(x, "k");
  in.v = optional(x, "v");
  for (const ops::RecurrenceArgument& a : r.arguments) in.*a.member = optional(x, a.name);
  in.initial_state = maybe(x, "initial_state");
  in.cu_seqlens = maybe(x, "cu_seqlens");
  return in;
}

// Largest errors by type and tensor, printed at the end of the program.
class ErrorTable : public testing::Environment {
 public:
  void record(const std::string& dtype, const std::string& name, double error) {
    double& largest = largest_[name][dtype];
    largest = std::max(largest, error);
  }

  void TearDown() override {
    if (largest_.empty()) return;
    std::printf("\nlargest relative L2 error against the reference\n%-16s %10s %10s %10s\n", "", "fp64", "fp32", "bf16");
    for (const auto& [name, by_type] : largest_) {
      std::printf("%-16s", name.c_str());
      for (const char* dtype : {"fp64", "fp32", "bf16"}) {
        const auto found = by_type.find(dtype);
        found == by_type.end() ? std::printf(" %10s", "") : std::printf(" %10.2e", found->second);
      }
      std::printf("\n");
    }
  }

 private:
  std::map<std::string, std::map<std::string, double>> largest_;
};

ErrorTable& error_table() {
  static auto* const table = new ErrorTable;
  return *table;
}

const testing::Environment* const kRegistered = testing::AddGlobalTestEnvironment(&error_table());

}  // namespace

const std::vector<Op>& recurrences() {
  static const std::vector<Op> ops = [] {
    std::vector<Op> rest = all_ops();
    std::erase(rest, Op::kCyclicFlow);
    return rest;
  }();
  return ops;
}

const std::vector<Op>& all_ops() {
  static const std::vector<Op> ops = [] {
    std::vector<Op> all;
    for (const OpNames& names : kNames) all.push_back(names.op);
    return all;
  }();
  return ops;
}

std::string op_name(Op op) { return names_of(op).name; }
std::string op_label(Op op) { return names_of(op).label; }
bool is_delta_rule(Op op) { return op_name(op).ends_with("delta_rule"); }

int64_t OpCase::tokens() const { return lengths.empty() ? T : std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

Tensors make_inputs(const OpCase& c) {
  Random random(c.seed);
  const int64_t B = c.batch();
  const int64_t T = c.tokens();
  const int64_t N = c.sequences();
  const bool cyclic = c.op == Op::kCyclicFlow;
  const at::ScalarType state_dtype = compute_type(c.dtype);
  const at::ScalarType gate_dtype = c.gate_dtype.value_or(state_dtype);
  Tensors x;
  x["q"] = random.normal({B, T, c.H, c.K}).to(c.dtype);
  const at::Tensor key = random.normal({B, T, c.H, c.K});
  x["k"] = (is_delta_rule(c.op) ? key / key.norm(2, -1, true) : key).to(c.dtype);
  x["v"] = random.normal({B, T, c.H, c.V}).to(c.dtype);
  if (c.op == Op::kFixedScalarGatedLa) {
    x["log_gamma"] = make_log_alpha(random, c.gates, {c.H}).to(gate_dtype);
  } else if (c.op != Op::kLa && c.op != Op::kDeltaRule) {
    x["log_alpha"] = make_log_alpha(random, c.gates, gate_sizes(c)).to(gate_dtype);
  }
  if (is_delta_rule(c.op)) x["beta"] = random.normal({B, T, c.H}).sigmoid_().to(gate_dtype);
  if (cyclic) {
    x["delta"] = random.normal({B, T, c.H}).sigmoid_().to(gate_dtype);
    x["beta"] = random.normal({B, T, c.H}).sigmoid_().to(gate_dtype);
    x["readout"] = (at::eye(c.M - 1, at::kDouble) + 0.1 * random.normal({c.H, c.M - 1, c.M - 1})).to(gate_dtype);
    if (c.norm_weights) {
      x["q_norm_weight"] = (1.0 + 0.1 * random.normal({c.K})).to(gate_dtype);
      x["k_norm_weight"] = (1.0 + 0.1 * random.normal({c.K})).to(gate_dtype);
    }
  }
  if (c.initial_state && cyclic) {
    x["initial_k"] = (0.3 * random.normal({N, c.H, c.K, c.M})).to(state_dtype);
    x["initial_v"] = (0.3 * random.normal({N, c.H, c.M, c.V})).to(state_dtype);
    x["initial_k"].select(-1, 1).zero_();  // the padding row
    x["initial_v"].select(-2, 1).zero_();
    x["initial_clock"] = c.clock ? random.uniform({N, c.H}) + *c.clock : random.uniform({N, c.H}) * 200.0;
  } else if (c.initial_state) {
    x["initial_state"] = (0.3 * random.normal({N, c.H, c.K, c.V})).to(state_dtype);
  }
  if (!c.lengths.empty()) {
    std::vector<int64_t> borders = {0};
    for (const int64_t length : c.lengths) borders.push_back(borders.back() + length);
    x["cu_seqlens"] = at::tensor(borders, at::kLong);
  }
  return x;
}

Tensors make_output_gradients(const OpCase& c) {
  Random random(c.seed + 1000003);
  const int64_t N = c.sequences();
  const at::ScalarType state_dtype = compute_type(c.dtype);
  Tensors g;
  g["o"] = random.normal({c.batch(), c.tokens(), c.H, c.V}).to(c.dtype);
  if (c.op != Op::kCyclicFlow) {
    g["final_state"] = random.normal({N, c.H, c.K, c.V}).to(state_dtype);
    return g;
  }
  g["final_k"] = random.normal({N, c.H, c.K, c.M}).to(state_dtype);
  g["final_v"] = random.normal({N, c.H, c.M, c.V}).to(state_dtype);
  g["final_clock"] = random.normal({N, c.H});
  return g;
}

ops::CyclicFlowInputs cyclic_flow_inputs(const Tensors& x) {
  ops::CyclicFlowInputs in{.q = optional(x, "q"),
                           .k = optional(x, "k"),
                           .v = optional(x, "v"),
                           .log_alpha = optional(x, "log_alpha"),
                           .delta = optional(x, "delta"),
                           .beta = optional(x, "beta"),
                           .readout = optional(x, "readout"),
                           .q_norm_weight = maybe(x, "q_norm_weight"),
                           .k_norm_weight = maybe(x, "k_norm_weight"),
                           .initial_state = std::nullopt,
                           .cu_seqlens = maybe(x, "cu_seqlens")};
  if (x.contains("initial_k") || x.contains("initial_v") || x.contains("initial_clock")) {
    in.initial_state = ops::CyclicFlowState{optional(x, "initial_k"), optional(x, "initial_v"), optional(x, "initial_clock")};
  }
  return in;
}

Tensors call(Op op, const Tensors& inputs, const RunOptions& options) {
  const auto stays = [](const auto& input) { return input.second.defined() && !input.second.is_cpu(); };
  if (test_device() != at::kCPU && std::none_of(inputs.begin(), inputs.end(), stays) && options.backend != ops::Backend::kReference) {
    const auto moved = [](Tensors x, at::Device device) {
      for (auto& [name, t] : x) {
        if (t.defined()) t = t.to(device);
      }
      return x;
    };
    return moved(call(op, moved(inputs, test_device()), options), at::kCPU);
  }
  if (op == Op::kCyclicFlow) {
    const ops::CyclicFlowOutput out = ops::cyclic_flow(cyclic_flow_inputs(inputs), options);
    if (!options.final_state) return {{"o", out.o}};
    return {{"o", out.o}, {"final_k", out.final_state.k}, {"final_v", out.final_state.v}, {"final_clock", out.final_state.clock}};
  }
  const ops::RecurrenceOutput out = ops::run_recurrence(recurrence_of(op), recurrence_inputs(recurrence_of(op), inputs), options);
  return {{"o", out.o}, {"final_state", out.final_state}};
}

at::Device test_device() {
  static const at::Device device = [] {
    const char* name = std::getenv("CYFA_TEST_DEVICE");
    return at::Device(name == nullptr ? "cpu" : name);
  }();
  return device;
}

Tensors run_steps(Op op, const Tensors& inputs) {
  const at::Tensor& q = inputs.at("q");
  const at::Tensor& v = inputs.at("v");
  const at::Tensor state = inputs.contains("initial_state")
                               ? inputs.at("initial_state").to(at::kFloat, false, /*copy=*/true).contiguous()
                               : at::zeros({q.size(0), q.size(2), q.size(3), v.size(3)}, q.options().dtype(at::kFloat));
  const at::Tensor o = at::empty(v.sizes(), v.options());
  for (int64_t t = 0; t < q.size(1); ++t) {
    Tensors token = inputs;
    for (auto& [name, x] : token) {
      if (is_token_input(name)) x = x.select(1, t);
    }
    o.select(1, t).copy_(ops::step_recurrence(recurrence_of(op), recurrence_inputs(recurrence_of(op), token), state));
  }
  return {{"o", o}, {"final_state", state}};
}

const std::vector<std::string>& cyclic_flow_arguments() {
  static const std::vector<std::string> names = {"q",
                                                 "k",
                                                 "v",
                                                 "log_alpha",
                                                 "delta",
                                                 "beta",
                                                 "readout",
                                                 "q_norm_weight",
                                                 "k_norm_weight",
                                                 "initial_k",
                                                 "initial_v",
                                                 "initial_clock",
                                                 "cu_seqlens"};
  return names;
}

std::pair<std::vector<at::Tensor>, std::vector<int64_t>> packed_inputs(const Tensors& x) {
  std::pair<std::vector<at::Tensor>, std::vector<int64_t>> packed;
  const std::vector<std::string>& names = cyclic_flow_arguments();
  for (size_t place = 0; place < names.size(); ++place) {
    if (!x.contains(names[place])) continue;
    packed.first.push_back(x.at(names[place]));
    packed.second.push_back(static_cast<int64_t>(place));
  }
  return packed;
}

Tensors run(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options,
            const std::optional<std::set<std::string>>& wanted) {
  if (gradients.empty()) {
    const at::NoGradGuard no_grad;
    return call(op, inputs, options);
  }
  Tensors leaves;
  std::vector<std::string> names;
  std::vector<at::Tensor> roots;
  for (const auto& [name, x] : inputs) {
    leaves[name] = x.detach();
    if (name == "cu_seqlens" || (wanted && !wanted->contains(name))) continue;
    leaves[name].requires_grad_();
    names.push_back(name);
    roots.push_back(leaves[name]);
  }
  Tensors results = call(op, leaves, options);
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> upstream;
  for (const auto& [name, gradient] : gradients) {
    outputs.push_back(results.at(name));
    upstream.push_back(gradient);
  }
  const std::vector<at::Tensor> found = torch::autograd::grad(outputs, roots, upstream);
  for (auto& [name, x] : results) x = x.detach();
  for (size_t i = 0; i < names.size(); ++i) results["d_" + names[i]] = found[i];
  return results;
}

Tensors run(const OpCase& c, const RunOptions& options) { return run(c.op, make_inputs(c), make_output_gradients(c), options); }

Tensors judge(Op op, const Tensors& inputs, const Tensors& gradients, RunOptions options) {
  const auto widened = [](const Tensors& x) {
    Tensors wide;
    for (const auto& [name, t] : x) wide[name] = t.is_floating_point() ? t.to(at::kDouble) : t;
    return wide;
  };
  options.backend = ops::Backend::kReference;
  return run(op, widened(inputs), widened(gradients), options);
}

Tensors judge(const OpCase& c, const RunOptions& options) { return judge(c.op, make_inputs(c), make_output_gradients(c), options); }

bool is_token_input(const std::string& name) {
  static const std::set<std::string> names = {"q", "k", "v", "log_alpha", "delta", "beta"};
  return names.contains(name);
}

bool is_token_result(const std::string& name) { return name == "o" || (name.starts_with("d_") && is_token_input(name.substr(2))); }

bool is_state(const std::string& name) {
  return name.starts_with("initial_") || name.starts_with("final_") || name.starts_with("d_initial_");
}

Tensors clone(const Tensors& x) {
  Tensors copy;
  for (const auto& [name, t] : x) copy[name] = t.clone();
  return copy;
}

Tensors tokens(const Tensors& x, int64_t begin, int64_t end) {
  Tensors part = x;
  for (auto& [name, t] : part) {
    if (is_token_input(name) || is_token_result(name)) t = t.narrow(1, begin, end - begin);
  }
  return part;
}

Tensors sequence(const Tensors& x, int64_t n, int64_t count) {
  Tensors part = x;
  for (auto& [name, t] : part) {
    if (is_token_input(name) || is_token_result(name) || is_state(name)) t = t.narrow(0, n, count);
  }
  return part;
}

Tensors without_gradients(const Tensors& results) {
  Tensors kept;
  for (const auto& [name, t] : results) {
    if (!name.starts_with("d_")) kept[name] = t;
  }
  return kept;
}

void carry(const Tensors& results, Tensors& inputs) {
  for (const auto& [name, t] : results) {
    if (name.starts_with("final_")) inputs["initial_" + name.substr(6)] = t;
  }
}

double relative_l2(const at::Tensor& got, const at::Tensor& want) {
  if (!got.defined() || !want.defined() || got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  const at::Tensor wide = want.to(at::kDouble);
  const double error = (got.to(at::kDouble) - wide).norm().item<double>();
  const double norm = wide.norm().item<double>();
  return norm < 1e-12 ? error : error / norm;
}

double limit_of(at::ScalarType case_dtype, const std::string& name, const at::Tensor& result) {
  if (result.scalar_type() == at::kBFloat16) return kLimitBf16;
  if (case_dtype == at::kDouble && result.scalar_type() == at::kDouble) return kLimitFp64;
  if (name == "d_log_gamma") return kLimitFp32Sum;
  return name.starts_with("d_") ? kLimitFp32Gradient : kLimitFp32;
}

void expect_close(const Tensors& got, const Tensors& want, std::optional<double> limit) {
  const at::ScalarType dtype = got.at("o").scalar_type();
  for (const auto& [name, wanted] : want) {
    const at::Tensor result = optional(got, name);
    if (!result.defined()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    const double error = relative_l2(result, wanted);
    const double ceiling = limit.value_or(limit_of(dtype, name, result));
    if (!limit) error_table().record(ceiling == kLimitBf16 ? "bf16" : ceiling == kLimitFp64 ? "fp64" : "fp32", name, error);
    EXPECT_LE(error, ceiling) << name << " " << result.sizes();
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_same_bits(const Tensors& got, const Tensors& want) {
  for (const auto& [name, wanted] : want) {
    const at::Tensor result = optional(got, name);
    EXPECT_TRUE(same_bits(result, wanted)) << name << ": relative L2 " << relative_l2(result, wanted);
  }
}

void expect_same_bits_of_shapes(const Tensors& got, const Tensors& want) {
  if (test_device().is_cpu()) {
    expect_same_bits(got, want);
  } else {
    expect_close(got, want);
  }
}

std::string dtype_label(at::ScalarType dtype) { return dtype == at::kDouble ? "fp64" : dtype == at::kFloat ? "fp32" : "bf16"; }

std::string describe(const OpCase& c) {
  std::ostringstream out;
  out << op_name(c.op) << " " << dtype_label(c.dtype);
  out << " B " << c.batch() << " T " << c.tokens();
  if (!c.lengths.empty()) out << " lengths " << at::IntArrayRef(c.lengths);
  out << " H " << c.H << " K " << c.K << " V " << c.V << " M " << c.M << " gates " << static_cast<int>(c.gates);
  out << (c.norm_weights ? " norm" : "") << (c.initial_state ? " state" : "") << " seed " << c.seed;
  return out.str();
}

}  // namespace cyfa::test
