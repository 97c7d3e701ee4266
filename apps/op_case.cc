#include "apps/op_case.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <cmath>
#include <stdexcept>

namespace cyfa::app {
namespace {

constexpr double kCountedChunk = 64;

// Draws on the CPU in fp32, so that a seed means the same numbers for every type and device.
class Draw {
 public:
  Draw(uint64_t seed, at::Device device) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)), device_(device) {}

  at::Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, generator_, at::kFloat); }
  at::Tensor uniform(at::IntArrayRef sizes) { return at::rand(sizes, generator_, at::kFloat); }
  at::Tensor put(const at::Tensor& x, at::ScalarType dtype) const { return x.to(device_, dtype); }

 private:
  at::Generator generator_;
  at::Device device_;
};

at::ScalarType gate_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// width: gates of a token and head, 0 for one that has no dimension of its own.
at::Tensor draw_log_alpha(Draw& draw, const OpShape& s, int64_t width = 0) {
  const at::Tensor rate = draw.uniform({s.H}).mul_(16);
  const std::vector<int64_t> sizes = width == 0 ? std::vector<int64_t>{s.B, s.T, s.H} : std::vector<int64_t>{s.B, s.T, s.H, width};
  const at::Tensor step = draw.uniform(sizes).mul_(std::log(0.1) - std::log(0.001)).add_(std::log(0.001)).exp_();
  return (step * (width == 0 ? rate : rate.unsqueeze(-1))).neg_();
}

std::optional<at::Tensor> draw_gate(Draw& draw, const ops::Recurrence& r, const OpShape& s) {
  if (!r.arguments.empty() && std::string_view(r.arguments.front().shape) == "H") return draw.uniform({s.H}).mul_(-0.1);
  switch (r.gate) {
    case ops::Gate::kNone: return std::nullopt;
    case ops::Gate::kScalar: return draw_log_alpha(draw, s);
    case ops::Gate::kRow: return draw_log_alpha(draw, s, s.K);
    case ops::Gate::kColumn: return draw_log_alpha(draw, s, s.V);
  }
  return std::nullopt;
}

at::Tensor draw_readout(Draw& draw, const OpShape& s) {
  const int64_t m = s.M - 1;
  return at::eye(m).unsqueeze(0) + draw.normal({s.H, m, m}) * (0.1 / std::sqrt(static_cast<double>(m)));
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().requires_grad_(true); }
std::optional<at::Tensor> leaf(const std::optional<at::Tensor>& x) { return x ? std::optional(leaf(*x)) : std::nullopt; }

void add(NamedTensors& to, const char* name, const at::Tensor& x) {
  if (x.defined()) to.emplace_back(name, x.detach());
}

// Pairs of an output and its incoming gradient, where there is one.
struct Seeds {
  std::vector<at::Tensor> outputs, gradients;

  void add(const at::Tensor& output, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    outputs.push_back(output);
    gradients.push_back(gradient.to(output.options()));
  }
};

}  // namespace

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "fp64") return at::kDouble;
  if (name == "bf16") return at::kBFloat16;
  throw std::invalid_argument("dtype is '" + name + "', wanted fp32, fp64 or bf16");
}

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "fp32";
    case at::kDouble: return "fp64";
    case at::kBFloat16: return "bf16";
    default: return "?";
  }
}

at::Device parse_device(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  if (name != "cuda") throw std::invalid_argument("device is '" + name + "', wanted cpu or cuda");
  if (!torch::cuda::is_available())
    throw std::invalid_argument("device is cuda, but torch sees no GPU here (a CPU-only torch, or no driver)");
  return at::Device(at::kCUDA, 0);
}

ops::CyclicFlowInputs random_cyclic_flow(const OpShape& s, at::ScalarType dtype, at::Device device, uint64_t seed) {
  Draw draw(seed, device);
  const at::ScalarType gate = gate_type(dtype);
  ops::CyclicFlowInputs in;
  in.readout = draw.put(draw_readout(draw, s), gate);
  in.q_norm_weight = draw.put(draw.normal({s.K}).mul_(0.1).add_(1), gate);
  in.k_norm_weight = draw.put(draw.normal({s.K}).mul_(0.1).add_(1), gate);
  in.log_alpha = draw.put(draw_log_alpha(draw, s), gate);
  in.delta = draw.put(draw.normal({s.B, s.T, s.H}).sigmoid_(), gate);
  in.beta = draw.put(draw.normal({s.B, s.T, s.H}).sigmoid_(), gate);
  in.q = draw.put(draw.normal({s.B, s.T, s.H, s.K}), dtype);
  in.k = draw.put(draw.normal({s.B, s.T, s.H, s.K}), dtype);
  in.v = draw.put(draw.normal({s.B, s.T, s.H, s.V}), dtype);
  return in;
}

ops::RecurrenceInputs random_recurrence(const ops::Recurrence& r, const OpShape& s, at::ScalarType dtype, at::Device device,
                                        uint64_t seed) {
  Draw draw(seed, device);
  ops::RecurrenceInputs in;
  if (const std::optional<at::Tensor> gate = draw_gate(draw, r, s)) in.log_alpha = draw.put(*gate, gate_type(dtype));
  in.q = draw.put(draw.normal({s.B, s.T, s.H, s.K}), dtype);
  const at::Tensor key = draw.normal({s.B, s.T, s.H, s.K});
  in.k = draw.put(r.delta ? key / key.norm(2, -1, true) : key, dtype);
  in.v = draw.put(draw.normal({s.B, s.T, s.H, s.V}), dtype);
  if (r.delta) in.beta = draw.put(draw.normal({s.B, s.T, s.H}).sigmoid_(), gate_type(dtype));
  return in;
}

ops::CyclicFlowStepInputs step_inputs(const ops::CyclicFlowInputs& in, int64_t t) {
  const auto token = [t](const at::Tensor& x) { return x.select(1, t); };
  return {token(in.q),
          token(in.k),
          token(in.v),
          token(in.log_alpha),
          token(in.delta),
          token(in.beta),
          ops::cyclic_flow_readout_table(in.readout),
          in.q_norm_weight,
          in.k_norm_weight};
}

ops::CyclicFlowState first_state(const ops::CyclicFlowInputs& in) {
  if (in.initial_state)
    return {in.initial_state->k.clone(), in.initial_state->v.clone(), in.initial_state->clock.to(at::kDouble, false, true)};
  const int64_t B = in.q.size(0);
  const int64_t H = in.q.size(2);
  const int64_t M = in.readout.size(1) + 1;
  const auto options = in.q.options().dtype(at::kFloat);
  return {at::zeros({B, H, in.q.size(3), M}, options), at::zeros({B, H, M, in.v.size(3)}, options),
          at::zeros({B, H}, options.dtype(at::kDouble))};
}

at::Tensor random_normal(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device, uint64_t seed) {
  Draw draw(seed, device);
  return draw.put(draw.normal(sizes), dtype);
}

ops::CyclicFlowInputs with_gradients(const ops::CyclicFlowInputs& in) {
  ops::CyclicFlowInputs out{leaf(in.q),
                            leaf(in.k),
                            leaf(in.v),
                            leaf(in.log_alpha),
                            leaf(in.delta),
                            leaf(in.beta),
                            leaf(in.readout),
                            leaf(in.q_norm_weight),
                            leaf(in.k_norm_weight),
                            std::nullopt,
                            in.cu_seqlens};
  if (in.initial_state) out.initial_state = {leaf(in.initial_state->k), leaf(in.initial_state->v), leaf(in.initial_state->clock)};
  return out;
}

ops::RecurrenceInputs with_gradients(const ops::RecurrenceInputs& in) {
  return {leaf(in.q), leaf(in.k), leaf(in.v), leaf(in.log_alpha), leaf(in.beta), leaf(in.initial_state), in.cu_seqlens};
}

std::vector<at::Tensor> leaves(const ops::CyclicFlowInputs& in) {
  std::vector<at::Tensor> all = {in.q, in.k, in.v, in.log_alpha, in.delta, in.beta, in.readout};
  if (in.q_norm_weight) all.push_back(*in.q_norm_weight);
  if (in.k_norm_weight) all.push_back(*in.k_norm_weight);
  if (in.initial_state) all.insert(all.end(), {in.initial_state->k, in.initial_state->v, in.initial_state->clock});
  return all;
}

std::vector<at::Tensor> leaves(const ops::RecurrenceInputs& in) {
  std::vector<at::Tensor> all = {in.q, in.k, in.v};
  for (const std::optional<at::Tensor>& x : {in.log_alpha, in.beta, in.initial_state}) {
    if (x) all.push_back(*x);
  }
  return all;
}

std::string gradient_refusal(const ops::CyclicFlowInputs& in, ops::Backend backend) {
  for (const ops::BackendOffer& offer : ops::cyclic_flow_backends(with_gradients(in))) {
    if (offer.backend == backend) return offer.refusal;
  }
  return "";
}

NamedTensors run_cyclic_flow(const ops::CyclicFlowInputs& in, const CyclicFlowUpstream& upstream, const ops::CyclicFlowOptions& options) {
  const ops::CyclicFlowInputs x = upstream.any() ? with_gradients(in) : in;
  const ops::CyclicFlowOutput out = ops::cyclic_flow(x, options);
  NamedTensors named;
  add(named, "o", out.o);
  add(named, "final_k", out.final_state.k);
  add(named, "final_v", out.final_state.v);
  add(named, "final_lambda", out.final_state.clock);
  if (!upstream.any()) return named;

  Seeds seeds;
  seeds.add(out.o, upstream.o);
  seeds.add(out.final_state.k, upstream.final_state.k);
  seeds.add(out.final_state.v, upstream.final_state.v);
  seeds.add(out.final_state.clock, upstream.final_state.clock);
  std::vector<const char*> names = {"d_q", "d_k", "d_v", "d_g", "d_delta", "d_beta", "d_readout"};
  if (x.q_norm_weight) names.push_back("d_q_norm_weight");
  if (x.k_norm_weight) names.push_back("d_k_norm_weight");
  if (x.initial_state) names.insert(names.end(), {"d_initial_k", "d_initial_v", "d_initial_lambda"});
  const std::vector<at::Tensor> gradients = torch::autograd::grad(seeds.outputs, leaves(x), seeds.gradients);
  for (size_t i = 0; i < names.size(); ++i) add(named, names[i], gradients[i]);
  return named;
}

NamedTensors run_steps(const ops::CyclicFlowInputs& in, const ops::CyclicFlowOptions& options) {
  const ops::CyclicFlowState state = first_state(in);
  const at::Tensor o = at::empty_like(in.v);
  for (int64_t t = 0; t < in.q.size(1); ++t) o.select(1, t).copy_(ops::cyclic_flow_step(step_inputs(in, t), state, options));
  return {{"o", o}, {"final_k", state.k}, {"final_v", state.v}, {"final_lambda", state.clock}};
}

NamedTensors run_recurrence(const ops::Recurrence& r, const ops::RecurrenceInputs& in, const at::Tensor& grad_o,
                            const ops::RecurrenceOptions& options) {
  const ops::RecurrenceInputs x = with_gradients(in);
  const ops::RecurrenceOutput out = ops::run_recurrence(r, x, options);
  NamedTensors named;
  add(named, "o", out.o);
  add(named, "final_state", out.final_state);
  std::vector<const char*> names = {"d_q", "d_k", "d_v"};
  if (x.log_alpha) names.push_back("d_g");
  if (x.beta) names.push_back("d_beta");
  const std::vector<at::Tensor> gradients = torch::autograd::grad({out.o}, leaves(x), {grad_o.to(out.o.options())});
  for (size_t i = 0; i < names.size(); ++i) add(named, names[i], gradients[i]);
  return named;
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

double step_bytes(const OpShape& s) { return static_cast<double>(s.B * s.H * s.M * (s.K + s.V)) * sizeof(float) * 2; }

}  // namespace cyfa::app
