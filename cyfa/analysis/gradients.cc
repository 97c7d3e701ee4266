#include "cyfa/analysis/gradients.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "cyfa/mixers/call.h"
#include "cyfa/mixers/cyclic_flow.h"
#include "cyfa/ops/cyclic_flow/readout.h"

namespace cyfa::analysis {
namespace {

// U(clock) as complex numbers, one for each pair of coordinates: [B, T, H, M / 2]. Differentiable.
at::Tensor waves(const at::Tensor& clock, int64_t M) {
  const auto m = static_cast<double>(M - 1);
  const at::Tensor phase = clock.remainder(m).unsqueeze(-1) * (at::arange(M / 2, clock.options()) * (2 * std::numbers::pi / m));
  return at::polar(at::ones_like(phase), phase);
}

// Coordinates [..., M] times unit numbers [..., M / 2], which broadcast.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& wave) {
  return at::view_as_real(at::view_as_complex(x.contiguous().unflatten(-1, {wave.size(-1), 2})) * wave).flatten(-2);
}

at::Tensor normed(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  return weight ? x * at::rsqrt(x.square().mean(-1, true) + eps) * weight->detach().to(at::kDouble) : x;
}

double l2(const at::Tensor& x) { return x.defined() ? x.norm(2, at::kDouble).item<double>() : 0; }

double cosine(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum().item<double>() / (l2(a) * l2(b)); }

// Sums over the token and all later ones, [B, T, H], and their inverse.
at::Tensor sum_from(const at::Tensor& x) { return x.flip(1).cumsum(1).flip(1); }
at::Tensor terms_of(const at::Tensor& sums) {
  return sums - at::cat({sums.narrow(1, 1, sums.size(1) - 1), at::zeros_like(sums.narrow(1, 0, 1))}, 1);
}

// What one layer with a clock did in a forward pass.
struct Seen {
  size_t layer = 0;
  at::Tensor x;      // [1, T, D], the mixer's input
  at::Tensor delta;  // [1, T, H], a node of the graph
  ops::CyclicFlowInputs in;
  ops::CyclicFlowOptions options;
  at::Tensor o;
};

// A model's parameters by what they are, in the order of its table.
class Groups {
 public:
  explicit Groups(const CausalLM& model) : of_(model.table().specs().size()), layer_(of_.size(), kNone), is_clock_(of_.size(), false) {
    name(model.embedding_weight(), "embeddings");
    for (size_t i = 0; i < model.layers().size(); ++i) {
      const CausalLM::Layer& layer = model.layers()[i];
      const auto& specs = layer.block->table().specs();
      const Block::Ids& ids = layer.block->ids();
      for (ParameterId id = 0; id < specs.size(); ++id) {
        layer_[layer.first + id] = i;
        if (id == ids.mixer_norm || (layer.block->has_mlp() && id == ids.mlp_norm)) {
          name(layer.first + id, "norms");
        } else if (layer.block->has_mlp() && (id == ids.gate || id == ids.up || id == ids.down)) {
          name(layer.first + id, "mlp");
        } else if (const std::vector<ParameterId> clock = clock_parameters(*layer.block);
                   std::find(clock.begin(), clock.end(), id) != clock.end()) {
          name(layer.first + id, "clock");
          is_clock_[layer.first + id] = true;
        } else {
          name(layer.first + id, part_of_mixer(specs[id].name));
        }
      }
    }
    name(model.norm_weight(), "norms");
    if (model.head_weight() != model.embedding_weight()) name(model.head_weight(), "head");
  }

  static constexpr size_t kNone = static_cast<size_t>(-1);
  static std::vector<ParameterId> clock_parameters(const Block& block) {
    std::vector<ParameterId> ids;
    if (const CyclicFlowSpec* spec = cyclic_flow_spec(block.mixer())) {
      if (!spec->config.constant_clock) ids.push_back(spec->d_proj);
      if (spec->config.rho == 0) ids.push_back(spec->d_bias);
    }
    return ids;
  }

  const std::vector<std::string>& names() const { return names_; }
  size_t group(ParameterId id) const { return of_[id]; }
  size_t layer(ParameterId id) const { return layer_[id]; }  // kNone outside of the layers
  bool is_clock(ParameterId id) const { return is_clock_[id]; }

 private:
  // "attn.q_proj.weight": q_proj.
  static std::string part_of_mixer(const std::string& name) {
    const size_t begin = name.find('.') + 1;
    return name.substr(begin, name.find('.', begin) - begin);
  }
  void name(ParameterId id, const std::string& group) {
    const auto found = std::find(names_.begin(), names_.end(), group);
    of_[id] = static_cast<size_t>(found - names_.begin());
    if (found == names_.end()) names_.push_back(group);
  }

  std::vector<std::string> names_;
  std::vector<size_t> of_, layer_;
  std::vector<bool> is_clock_;
};

// Norms of one backward pass.
struct Norms {
  double all = 0, clock = 0, rest = 0;
  std::vector<double> groups, layers;
};

Norms norms_of(const std::vector<at::Tensor>& gradients, const Groups& groups, size_t layers) {
  Norms out{.groups = std::vector<double>(groups.names().size()), .layers = std::vector<double>(layers)};
  for (ParameterId id = 0; id < gradients.size(); ++id) {
    const double square = std::pow(l2(gradients[id]), 2);
    out.groups[groups.group(id)] += square;
    (groups.is_clock(id) ? out.clock : out.rest) += square;
    if (groups.layer(id) != Groups::kNone && !groups.is_clock(id)) out.layers[groups.layer(id)] += square;
  }
  out.all = std::sqrt(out.clock + out.rest);
  for (double* square : {&out.clock, &out.rest}) *square = std::sqrt(*square);
  for (std::vector<double>* squares : {&out.groups, &out.layers}) {
    for (double& square : *squares) square = std::sqrt(square);
  }
  return out;
}

// One forward and one backward pass over ids [1, T].
struct Pass {
  double loss = 0;
  std::vector<at::Tensor> parameters;  // gradients in the order of the table; undefined where the loss does not depend on one
  std::vector<Seen> seen;              // the layers with a clock
  std::vector<at::Tensor> delta, o;    // the gradients of theirs
};

Pass run(const CausalLM& model, const Weights& w, const at::Tensor& ids, bool stops) {
  const at::AutoGradMode recorded(true);
  // Gradients are collected in at least fp32, whatever the type that the model computes in.
  std::vector<at::Tensor> leaves, used;
  for (ParameterId id = 0; id < w.size(); ++id) {
    leaves.push_back(w[id].detach().to(at::promote_types(w[id].scalar_type(), at::kFloat)).requires_grad_(true));
    used.push_back(leaves.back().to(w[id].scalar_type()));
  }
  const Weights mine(std::move(used));
  Pass out;
  out.seen.reserve(model.layers().size());
  const int64_t T = ids.size(1) - 1;
  at::Tensor x = model.embed(mine, ids.narrow(1, 0, T));
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const Block& block = *model.layers()[i].block;
    const Weights own = model.layers()[i].weights(mine);
    Call call = block.call(own, x);
    if (cyclic_flow_spec(block.mixer()) != nullptr) {
      Seen& seen = out.seen.emplace_back();
      seen.layer = i;
      seen.x = call.x();
      call.stop_clock_gradient(stops);
      call.hook_clock([&seen](const at::Tensor& delta) {
        return seen.delta = delta.requires_grad() ? delta : delta.detach().requires_grad_(true);  // a fixed clock depends on nothing
      });
      call.hook_flow([&seen](const ops::CyclicFlowInputs& in, const ops::CyclicFlowOptions& options, const at::Tensor& o) {
        seen.in = in;
        seen.options = options;
        seen.o = o;
      });
    }
    x = block.forward(call, x);
  }
  const at::Tensor loss = model.head_loss(mine, x, ids.narrow(1, 1, T));
  out.loss = loss.item<double>();
  std::vector<at::Tensor> wanted = leaves;
  for (const Seen& seen : out.seen) wanted.insert(wanted.end(), {seen.delta, seen.o});
  std::vector<at::Tensor> found =
      torch::autograd::grad({loss}, wanted, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < out.seen.size(); ++i) {
    out.delta.push_back(found[leaves.size() + 2 * i]);
    out.o.push_back(found[leaves.size() + 2 * i + 1]);
  }
  found.resize(leaves.size());
  out.parameters = std::move(found);
  return out;
}

PathNorms path_norms(const std::array<at::Tensor, 3>& each) {
  PathNorms out;
  double sum = 0;
  for (size_t i = 0; i < 3; ++i) sum += out.norm[i] = l2(each[i]);
  out.cosine = {cosine(each[0], each[1]), cosine(each[0], each[2]), cosine(each[1], each[2])};
  out.left = l2(each[0] + each[1] + each[2]) / sum;
  return out;
}

// The gradient of a layer's clock, of a pass with the stop-gradient.
ClockGradient clock_gradient(const CausalLM& model, const Pass& pass, size_t index) {
  const at::NoGradGuard no_grad;
  const Seen& seen = pass.seen[index];
  const CausalLM::Layer& layer = model.layers()[seen.layer];
  const at::Tensor increment = pass.delta[index].to(at::kDouble), clock = terms_of(increment);
  ClockGradient out{.layer = seen.layer, .clock = l2(clock), .increment = l2(increment)};
  out.gain = out.increment / out.clock;

  // delta = sigmoid(W x + b): a token's gradient of W and b is the outer product of `slope` times dL/ddelta, [H], with (x, 1).
  const CyclicFlowConfig& config = cyclic_flow_spec(layer.block->mixer())->config;
  const at::Tensor delta = seen.delta.detach().to(at::kDouble), slope = delta * (1 - delta);
  std::vector<at::Tensor> inputs;
  if (!config.constant_clock) inputs.push_back(seen.x.detach().to(at::kDouble));
  if (config.rho == 0) inputs.push_back(at::ones({1, delta.size(1), 1}, delta.options()));
  const at::Tensor input = inputs.empty() ? at::zeros({1, delta.size(1), 0}, delta.options()) : at::cat(inputs, -1);
  for (const ParameterId id : Groups::clock_parameters(*layer.block))
    out.projection = std::hypot(out.projection, l2(pass.parameters[layer.first + id]));
  const double apart = std::sqrt(((slope * increment).square() * input.square().sum(-1, true)).sum().item<double>());
  out.alignment = out.projection / apart;

  const ClockPaths paths = clock_paths(seen.in, seen.options, pass.o[index]);
  std::array<at::Tensor, 3> each = {paths.key, paths.value, paths.readout};
  out.at_clock = path_norms(each);
  out.mismatch = l2(each[0] + each[1] + each[2] - clock) / out.clock;
  for (at::Tensor& path : each) path = at::matmul((slope * sum_from(path))[0].t(), input[0]);
  out.at_projection = path_norms(each);
  return out;
}

// Adds a part of one sequence's numbers to the mean.
void add(ClockGradient& to, const ClockGradient& one, double part) {
  for (const auto member : {&ClockGradient::clock, &ClockGradient::increment, &ClockGradient::gain, &ClockGradient::projection,
                            &ClockGradient::alignment, &ClockGradient::mismatch}) {
    to.*member += part * (one.*member);
  }
  for (const auto member : {&ClockGradient::at_clock, &ClockGradient::at_projection}) {
    for (size_t i = 0; i < 3; ++i) {
      (to.*member).norm[i] += part * (one.*member).norm[i];
      (to.*member).cosine[i] += part * (one.*member).cosine[i];
    }
    (to.*member).left += part * (one.*member).left;
  }
}

}  // namespace

ClockPaths clock_paths(const ops::CyclicFlowInputs& in, const ops::CyclicFlowOptions& options, const at::Tensor& grad_o) {
  if (in.initial_state || in.cu_seqlens) {
    throw std::invalid_argument("clock_paths: initial_state or cu_seqlens is set; wanted whole sequences from an empty state");
  }
  const at::AutoGradMode recorded(true);
  const auto fixed = [](const at::Tensor& x) { return x.detach().to(at::kDouble); };
  const int64_t M = in.readout.size(-1) + 1;
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(in.q.size(-1))));
  const at::Tensor q = normed(fixed(in.q), in.q_norm_weight, options.norm_eps) * scale;
  const at::Tensor k = normed(fixed(in.k), in.k_norm_weight, options.norm_eps), v = fixed(in.v), log_alpha = fixed(in.log_alpha);
  const at::Tensor beta = fixed(in.beta).unsqueeze(-1), basis = ops::fourier_basis(M, v.options());
  const at::Tensor table = at::matmul(fixed(in.readout), basis);  // A [H, m, M]

  // The same clock three times, each with a gradient of its own.
  const at::Tensor clock = fixed(in.delta).cumsum(1);
  const std::array<at::Tensor, 3> clocks = {clock.clone().requires_grad_(true), clock.clone().requires_grad_(true),
                                            clock.clone().requires_grad_(true)};
  const auto writes = [&](const at::Tensor& by) { return rotated(basis[0], waves(by, M).conj()) * beta; };  // b is the first row of Phi
  const ops::Recurrence& pass = ops::recurrence_of("scalar_gated_la");
  const auto run_pass = [&](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    ops::RecurrenceOptions plain;
    plain.scale = 1;
    return ops::run_recurrence(pass, {.q = query, .k = key, .v = value, .log_alpha = log_alpha}, plain).o;
  };
  const at::Tensor scores = run_pass(q, k, writes(clocks[0]));
  const at::Tensor wave = waves(clocks[2], M);
  const at::Tensor p = at::softmax(at::einsum("hij,bthj->bthi", {table, rotated(scores, wave)}), -1);
  const at::Tensor slots = rotated(at::einsum("hij,bthi->bthj", {table, p}), wave.conj());
  const at::Tensor o = run_pass(slots, writes(clocks[1]), v);
  const std::vector<at::Tensor> found = torch::autograd::grad({o}, {clocks[0], clocks[1], clocks[2]}, {grad_o.detach().to(at::kDouble)});
  return {found[0], found[1], found[2]};
}

Gradients measure_gradients(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress) {
  const Groups groups(model);
  const size_t L = model.layers().size();
  const auto N = static_cast<double>(ids.size(0));
  Gradients out{.sequences = ids.size(0),
                .tokens = ids.size(1),
                .rests = std::vector<Paired>(static_cast<size_t>(ids.size(0))),
                .layers = std::vector<Paired>(L)};
  for (const std::string& name : groups.names()) out.groups.push_back({.name = name});
  for (ParameterId id = 0; id < model.table().specs().size(); ++id) {
    out.groups[groups.group(id)].parameters += model.table().specs()[id].numel();
  }
  for (int64_t n = 0; n < ids.size(0); ++n) {
    const at::Tensor row = ids.narrow(0, n, 1);
    const auto count = [&](const Norms& norms, double Paired::*side) {
      out.all.*side += norms.all / N;
      out.clock.*side += norms.clock / N;
      out.rest.*side += norms.rest / N;
      out.rests[static_cast<size_t>(n)].*side = norms.rest;
      out.share.*side += std::pow(norms.clock / norms.all, 2) / N;
      for (size_t i = 0; i < out.groups.size(); ++i) out.groups[i].norm.*side += norms.groups[i] / N;
      for (size_t i = 0; i < L; ++i) out.layers[i].*side += norms.layers[i] / N;
    };
    {
      const Pass pass = run(model, w, row, true);
      out.loss += pass.loss / N;
      count(norms_of(pass.parameters, groups, L), &Paired::with);
      for (size_t i = 0; i < pass.seen.size(); ++i) {
        if (n == 0) out.clocks.push_back({.layer = pass.seen[i].layer});
        add(out.clocks[i], clock_gradient(model, pass, i), 1 / N);
      }
    }
    Norms open;
    if (out.clocks.empty()) {
      const double none = std::nan("");
      open = {none, none, none, std::vector<double>(out.groups.size(), none), std::vector<double>(L, none)};
    } else {
      open = norms_of(run(model, w, row, false).parameters, groups, L);
    }
    count(open, &Paired::without);
    if (progress) progress(n + 1, ids.size(0));
  }
  return out;
}

}  // namespace cyfa::analysis
