#include "cyfa/ops/cases/op_case.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace cyfa::cases {
namespace {

constexpr double kCountedChunk = 64;

class Random {
 public:
  Random(uint64_t seed, at::ScalarType type) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)), type_(type) {}

  at::Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, generator_, type_); }
  at::Tensor uniform(at::IntArrayRef sizes) { return at::rand(sizes, generator_, type_); }
  at::Tensor index(int64_t count, at::IntArrayRef sizes) { return at::randint(count, sizes, generator_, at::kLong); }

 private:
  at::Generator generator_;
  at::ScalarType type_;
};

// Gates of shape [B, T, H] or [B, T, H, X], or a fixed [H].
at::Tensor initialised_log_alpha(Random& random, at::IntArrayRef sizes) {
  if (sizes.size() == 1) return random.uniform(sizes).mul_(-0.1);
  const at::Tensor rate = random.uniform({sizes[2]}).mul_(16);
  const at::Tensor step = random.uniform(sizes).mul_(std::log(0.1) - std::log(0.001)).add_(std::log(0.001)).exp_();
  return (step * (sizes.size() == 3 ? rate : rate.unsqueeze(-1))).neg_();
}

at::Tensor make_log_alpha(Random& random, Gates gates, at::IntArrayRef sizes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (gates == Gates::kInitialised) return initialised_log_alpha(random, sizes);
  const at::Tensor realistic = -at::softplus(random.normal(sizes) - 2.0);
  switch (gates) {
    case Gates::kRealistic: return realistic;
    case Gates::kOpen: return at::zeros(sizes, at::kDouble);
    case Gates::kDead: return at::full(sizes, -1e5, at::kDouble);
    case Gates::kShut: return at::full(sizes, -kInfinity, at::kDouble);
    default: break;
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

std::vector<int64_t> sizes_of(const OpCase& c, std::string_view letters) {
  std::vector<int64_t> sizes;
  for (const char letter : letters) {
    switch (letter) {
      case 'B': sizes.push_back(c.batch()); break;
      case 'T': sizes.push_back(c.tokens()); break;
      case 'H': sizes.push_back(c.H); break;
      case 'K': sizes.push_back(c.K); break;
      default: sizes.push_back(c.V); break;
    }
  }
  return sizes;
}

// What a recurrence takes beside q, k and v; the gates are drawn first.
void add_arguments(const OpCase& c, Random& random, at::ScalarType dtype, Tensors& x) {
  for (const ops::RecurrenceArgument& a : c.op.recurrence()->arguments) {
    if (a.member == &ops::RecurrenceInputs::log_alpha) x[a.name] = make_log_alpha(random, c.gates, sizes_of(c, a.shape)).to(dtype);
  }
  for (const ops::RecurrenceArgument& a : c.op.recurrence()->arguments) {
    if (a.member == &ops::RecurrenceInputs::beta) x[a.name] = random.normal(sizes_of(c, a.shape)).sigmoid_().to(dtype);
  }
}

Flops cyclic_flow_flops(const OpShape& s) {
  const double C = kCountedChunk;
  const auto K = static_cast<double>(s.K);
  const auto V = static_cast<double>(s.V);
  const auto M = static_cast<double>(s.M);
  const double forward = 2 * C * K                                          // P = Q K^T
                         + 2 * C * M + 2 * K * M                            // scores = P W + Q S_K
                         + 4 * M * M                                        // logits, value queries
                         + 2 * C * M                                        // P' = U W^T
                         + 2 * C * V + 2 * M * V                            // O = P' V + U S_V
                         + 2 * M * (K + V);                                 // both states
  const double backward = 2 * C * V + 2 * C * M + 2 * M * V                 // dP', dU
                          + 6 * M * M + 4 * M * M                           // logits again, dprobs, dscores; dA
                          + 2 * C * M + 2 * C * V + 2 * M * V               // P' again, dV
                          + 2 * C * M + 2 * M * V + 2 * M * V               // dW, dS_V
                          + 2 * C * M                                       // dP
                          + 2 * (2 * C * K + 2 * K * M)                     // dQ, dK
                          + 2 * C * K + 2 * C * M + 2 * K * M + 2 * K * M;  // P again, dW, dS_K
  const auto units = static_cast<double>(s.B * s.T * s.H);
  return {units * forward, units * backward};
}

Flops recurrence_flops(const ops::Recurrence& r, const OpShape& s) {
  const double C = kCountedChunk;
  const auto K = static_cast<double>(s.K);
  const auto V = static_cast<double>(s.V);
  double forward = 2 * C * K + 2 * C * V + 4 * K * V;                           // P; P V; Q S and the state
  double backward = 2 * C * K + 2 * C * V + 4 * C * K + 2 * C * V + 8 * K * V;  // P again; dP; dQ and dK; dV; three state terms, dS
  if (r.delta) {
    forward += 2 * C * K + C * C / 3 + 2 * C * V + 2 * K * V;  // K with K; the inverse, its product; K S
    backward += forward - (2 * C * K + 2 * C * V + 2 * K * V)  // all but O again, P being counted
                + 4 * C * V + 4 * C * K + 4 * K * V;           // the inverse transposed, dA; its dK twice; K S back
  }
  const auto units = static_cast<double>(s.B * s.T * s.H);
  return {units * forward, units * backward};
}

}  // namespace

const std::vector<Op>& recurrences() {
  static const std::vector<Op> all = [] {
    std::vector<Op> ops;
    for (const ops::Recurrence& r : ops::recurrences()) ops.emplace_back(r);
    return ops;
  }();
  return all;
}

const std::vector<Op>& all_ops() {
  static const std::vector<Op> all = [] {
    std::vector<Op> ops = {Op::kCyclicFlow};
    ops.insert(ops.end(), recurrences().begin(), recurrences().end());
    return ops;
  }();
  return all;
}

Op op_of(std::string_view name) { return name == op_name(Op::kCyclicFlow) ? Op::kCyclicFlow : Op(ops::recurrence_of(name)); }

std::string op_name(Op op) { return op.recurrence() == nullptr ? "cyclic_flow" : op.recurrence()->op; }

std::string op_label(Op op) {
  std::string label;
  bool start = true;
  for (const char letter : op_name(op)) {
    if (letter != '_') label += start ? static_cast<char>(std::toupper(static_cast<unsigned char>(letter))) : letter;
    start = letter == '_';
  }
  return label;
}

bool is_delta_rule(Op op) { return op.recurrence() != nullptr && op.recurrence()->delta; }

int64_t OpCase::tokens() const { return lengths.empty() ? T : std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

OpCase layer_case(Op op, const OpShape& s, at::ScalarType dtype) {
  return {.op = op,
          .B = s.B,
          .T = s.T,
          .H = s.H,
          .K = s.K,
          .V = s.V,
          .M = s.M,
          .dtype = dtype,
          .gates = Gates::kInitialised,
          .initial_state = false,
          .readout_noise = 0.1 / std::sqrt(static_cast<double>(s.M - 1)),
          .drawn = at::kFloat};
}

Tensors make_inputs(const OpCase& c) {
  Random random(c.seed, c.drawn);
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
  if (cyclic) {
    x["log_alpha"] = make_log_alpha(random, c.gates, {B, T, c.H}).to(gate_dtype);
    x["delta"] = random.normal({B, T, c.H}).sigmoid_().to(gate_dtype);
    x["beta"] = random.normal({B, T, c.H}).sigmoid_().to(gate_dtype);
    x["readout"] = (at::eye(c.M - 1, c.drawn) + c.readout_noise * random.normal({c.H, c.M - 1, c.M - 1})).to(gate_dtype);
    if (c.norm_weights) {
      x["q_norm_weight"] = (1.0 + 0.1 * random.normal({c.K})).to(gate_dtype);
      x["k_norm_weight"] = (1.0 + 0.1 * random.normal({c.K})).to(gate_dtype);
    }
  } else {
    add_arguments(c, random, gate_dtype, x);
  }
  if (c.initial_state && cyclic) {
    x["initial_k"] = (0.3 * random.normal({N, c.H, c.K, c.M})).to(state_dtype);
    x["initial_v"] = (0.3 * random.normal({N, c.H, c.M, c.V})).to(state_dtype);
    x["initial_k"].select(-1, 1).zero_();  // the padding row
    x["initial_v"].select(-2, 1).zero_();
    const at::Tensor fraction = random.uniform({N, c.H}).to(at::kDouble);
    x["initial_clock"] = c.clock ? fraction + *c.clock : fraction * 200.0;
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
  Random random(c.seed + 1000003, c.drawn);
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
  g["final_clock"] = random.normal({N, c.H}).to(at::kDouble);
  return g;
}

at::Tensor random_normal(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device, uint64_t seed) {
  return Random(seed, at::kFloat).normal(sizes).to(device, dtype);
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

std::vector<ops::BackendOffer> op_backends(Op op, const Tensors& inputs) {
  if (op.recurrence() == nullptr) return ops::cyclic_flow_backends(cyclic_flow_inputs(inputs));
  return ops::recurrence_backends(*op.recurrence(), recurrence_inputs(*op.recurrence(), inputs));
}

std::string gradient_refusal(Op op, const Tensors& inputs, ops::Backend backend) {
  for (const ops::BackendOffer& offer : op_backends(op, with_gradients(inputs))) {
    if (offer.backend == backend) return offer.refusal;
  }
  return "";
}

Tensors call_op(Op op, const Tensors& inputs, const RunOptions& options) {
  if (op.recurrence() != nullptr) {
    const ops::RecurrenceOutput out = ops::run_recurrence(*op.recurrence(), recurrence_inputs(*op.recurrence(), inputs), options);
    return {{"o", out.o}, {"final_state", out.final_state}};
  }
  const ops::CyclicFlowOutput out = ops::cyclic_flow(cyclic_flow_inputs(inputs), options);
  if (!options.final_state) return {{"o", out.o}};
  return {{"o", out.o}, {"final_k", out.final_state.k}, {"final_v", out.final_state.v}, {"final_clock", out.final_state.clock}};
}

std::function<at::Tensor()> prepared_call(Op op, const Tensors& inputs, const RunOptions& options) {
  if (op.recurrence() == nullptr) return [in = cyclic_flow_inputs(inputs), options] { return ops::cyclic_flow(in, options).o; };
  const ops::Recurrence& r = *op.recurrence();
  return [&r, in = recurrence_inputs(r, inputs), options] { return ops::run_recurrence(r, in, options).o; };
}

namespace {

Tensors recurrence_steps(const ops::Recurrence& r, const Tensors& inputs, const RunOptions& options) {
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
    token.erase("initial_state");
    o.select(1, t).copy_(ops::step_recurrence(r, recurrence_inputs(r, token), state, options));
  }
  return {{"o", o}, {"final_state", state}};
}

}  // namespace

Tensors run_steps(Op op, const Tensors& inputs, const RunOptions& options) {
  if (op.recurrence() != nullptr) return recurrence_steps(*op.recurrence(), inputs, options);
  const at::Tensor& v = inputs.at("v");
  const ops::CyclicFlowState state = first_state(inputs);
  const at::Tensor o = at::empty(v.sizes(), v.options());
  if (v.size(1) > 0) {
    ops::CyclicFlowStepInputs in = step_inputs(inputs, 0);
    for (int64_t t = 0; t < v.size(1); ++t) {
      const auto token = [&](const char* name) { return inputs.at(name).select(1, t); };
      in.q = token("q");
      in.k = token("k");
      in.v = token("v");
      in.log_alpha = token("log_alpha");
      in.delta = token("delta");
      in.beta = token("beta");
      o.select(1, t).copy_(ops::cyclic_flow_step(in, state, options));
    }
  }
  return {{"o", o}, {"final_k", state.k}, {"final_v", state.v}, {"final_clock", state.clock}};
}

ops::CyclicFlowStepInputs step_inputs(const Tensors& inputs, int64_t t) {
  const auto token = [&](const char* name) { return inputs.at(name).select(1, t); };
  return {token("q"),
          token("k"),
          token("v"),
          token("log_alpha"),
          token("delta"),
          token("beta"),
          ops::cyclic_flow_readout_table(inputs.at("readout")),
          maybe(inputs, "q_norm_weight"),
          maybe(inputs, "k_norm_weight")};
}

ops::CyclicFlowState first_state(const Tensors& inputs) {
  if (inputs.contains("initial_k")) {
    return {inputs.at("initial_k").clone(), inputs.at("initial_v").clone(), inputs.at("initial_clock").to(at::kDouble, false, true)};
  }
  const at::Tensor& q = inputs.at("q");
  const int64_t B = q.size(0), H = q.size(2), M = inputs.at("readout").size(1) + 1;
  const auto options = q.options().dtype(at::kFloat);
  return {at::zeros({B, H, q.size(3), M}, options), at::zeros({B, H, M, inputs.at("v").size(3)}, options),
          at::zeros({B, H}, options.dtype(at::kDouble))};
}

Tensors with_gradients(const Tensors& inputs) {
  Tensors out;
  for (const auto& [name, x] : inputs) out[name] = name == "cu_seqlens" ? x : x.detach().requires_grad_();
  return out;
}

std::vector<at::Tensor> leaves(const Tensors& inputs) {
  std::vector<at::Tensor> all;
  for (const auto& [name, x] : inputs) {
    if (name != "cu_seqlens") all.push_back(x);
  }
  return all;
}

Tensors differentiate(const Call& call, const Tensors& inputs, const Tensors& gradients,
                      const std::optional<std::set<std::string>>& wanted) {
  if (gradients.empty()) {
    const at::NoGradGuard no_grad;
    return call(inputs);
  }
  Tensors given;
  std::vector<std::string> names;
  std::vector<at::Tensor> roots;
  for (const auto& [name, x] : inputs) {
    given[name] = x.detach();
    if (name == "cu_seqlens" || (wanted && !wanted->contains(name))) continue;
    given[name].requires_grad_();
    names.push_back(name);
    roots.push_back(given[name]);
  }
  Tensors results = call(given);
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

Tensors run_op(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options) {
  return differentiate([&](const Tensors& x) { return call_op(op, x, options); }, inputs, gradients);
}

Tensors judge(Op op, const Tensors& inputs, const Tensors& gradients, RunOptions options) {
  const auto widened = [](const Tensors& x) {
    Tensors wide;
    for (const auto& [name, t] : x) wide[name] = t.is_floating_point() ? t.to(at::kDouble) : t;
    return wide;
  };
  options.backend = ops::Backend::kReference;
  return run_op(op, widened(inputs), widened(gradients), options);
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

Tensors moved_to(const Tensors& x, at::Device device) {
  Tensors there;
  for (const auto& [name, t] : x) there[name] = t.defined() ? t.to(device) : t;
  return there;
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

Flops op_flops(Op op, const OpShape& shape) {
  return op.recurrence() == nullptr ? cyclic_flow_flops(shape) : recurrence_flops(*op.recurrence(), shape);
}

double step_bytes(const OpShape& s) { return static_cast<double>(s.B * s.H * s.M * (s.K + s.V)) * sizeof(float) * 2; }

}  // namespace cyfa::cases
