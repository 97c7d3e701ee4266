#include "cyfa/engine/sm90/whole_step.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "cyfa/kernels/whole_step/whole_step_sm90.h"

namespace cyfa::fused {
namespace {

using whole_step::Layer;
using whole_step::RoleKind;
using whole_step::Sizes;

constexpr uintptr_t kAlignment = 16;  // of bulk copies and vector loads

bool aligned(const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0; }
bool plain(const at::Tensor& x, at::ScalarType type) { return x.scalar_type() == type && x.is_contiguous() && aligned(x); }

bool same(const Sizes& a, const Sizes& b) {
  return a.D == b.D && a.H == b.H && a.K == b.K && a.V == b.V && a.M == b.M && a.taps == b.taps && a.F == b.F;
}

Sizes sizes_of(const StepLayer& layer) {
  Sizes n;
  const cyclic_flow::ProjectionLayout& at = layer.flow.w.layout;
  n.D = static_cast<int>(layer.down.size(0));
  n.F = static_cast<int>(layer.down.size(1));
  n.H = at.heads;
  n.K = at.K;
  n.V = at.V;
  n.M = static_cast<int>(layer.flow.readout_table.size(1));
  n.taps = static_cast<int>(layer.flow.w.conv[0].value.size(2));
  return n;
}

}  // namespace

struct WholeStep::Arguments {
  whole_step::Params p;
};

WholeStep::WholeStep(const CausalLM& model, const Weights& weights, const std::vector<StepLayer>& layers, bool timed)
    : layers_(layers), arguments_(std::make_unique<Arguments>()), device_(model.device()) {
  whole_step::Params& p = arguments_->p;
  if (layers.empty() || layers.size() > static_cast<size_t>(whole_step::kMaxLayers)) {
    refusal_ = "the model has more than 64 layers";
    return;
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].spec == nullptr) refusal_ = "layer " + std::to_string(i) + ": " + layers[i].refusal;
    if (refusal_.empty() && !same(sizes_of(layers[i]), sizes_of(layers[0]))) refusal_ = "layers have different sizes";
    if (!refusal_.empty()) return;
  }
  p.n = sizes_of(layers[0]);
  p.n.layers = static_cast<int>(layers.size());
  p.n.vocab = static_cast<int>(weights[model.head_weight()].size(0));
  const c10::cuda::CUDAGuard guard(device_);
  if (const char* why = whole_step::whole_step_refusal(&p.n); why != nullptr) {
    refusal_ = why;
    return;
  }
  const auto pointer = [&](const at::Tensor& x, at::ScalarType type) -> const void* {
    if (!x.defined()) return nullptr;
    if (!plain(x, type)) {
      refusal_ = std::string("a weight is not contiguous ") + c10::toString(type) + " aligned to 16 bytes";
    }
    kept_.push_back(x);
    return x.const_data_ptr();
  };
  const auto matrix = [&](const at::Tensor& x) { return pointer(x, at::kBFloat16); };
  const auto floats = [&](const at::Tensor& x) { return static_cast<const float*>(pointer(x, at::kFloat)); };
  for (size_t i = 0; i < layers.size(); ++i) {
    const StepLayer& from = layers[i];
    const FlowStep& f = from.flow;
    Layer& to = p.layer[i];
    to.projection = matrix(f.w.projection.value);
    to.gate_second = matrix(f.w.gate_second.value);
    to.gate_bias = matrix(f.w.gate_bias);
    to.o_proj = matrix(f.o_proj);
    to.gate_and_up = matrix(from.gate_and_up);
    to.down = matrix(from.down);
    to.readout_table = floats(f.readout_table);
    to.mixer_norm = floats(from.mixer_norm.weight);
    to.mlp_norm = floats(from.mlp_norm.weight);
    to.o_norm = floats(f.o_norm.weight);
    to.q_norm = floats(f.q_norm_weight);
    to.k_norm = floats(f.k_norm_weight);
    for (size_t c = 0; c < 3; ++c) {
      to.conv[c] = floats(f.w.conv[c].value);
      to.conv_bias[c] = floats(f.w.conv_bias[c].value);
    }
    to.dt_bias = floats(f.w.dt_bias.value);
    to.A_log = floats(f.w.A_log.value);
    to.b_bias = floats(f.w.b_bias.value);
    to.d_bias = floats(f.w.d_bias.value);
  }
  p.embeddings = matrix(weights[model.embedding_weight()]);
  p.head = matrix(weights[model.head_weight()]);
  p.final_norm = floats(weights[model.norm_weight()]);
  if (!refusal_.empty()) return;
  p.eps = static_cast<float>(layers[0].mixer_norm.eps);
  p.qk_eps = static_cast<float>(layers[0].flow.norm_eps);
  p.o_eps = static_cast<float>(layers[0].flow.o_norm.eps);
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.n.K)));
  const auto on_device = at::TensorOptions(at::kLong).device(device_);
  words_ = at::zeros({whole_step::words_of(p.n).total()}, on_device);
  tickets_ = at::zeros({1}, on_device);
  error_ = at::zeros({1}, at::TensorOptions(at::kInt).pinned_memory(true));
  if (timed) marks_ = at::zeros({p.n.blocks, p.n.layers + 1, whole_step::kMarks}, on_device);
  p.words = reinterpret_cast<uint64_t*>(words_.data_ptr());
  p.tickets = reinterpret_cast<unsigned long long*>(tickets_.data_ptr());
  void* error = nullptr;
  C10_CUDA_CHECK(cudaHostGetDevicePointer(&error, error_.data_ptr(), 0));
  p.error = static_cast<int*>(error);
  p.marks = timed ? reinterpret_cast<long long*>(marks_.data_ptr()) : nullptr;
}

WholeStep::~WholeStep() = default;

const char* WholeStep::state_refusal(const ModelState& state) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const CyclicFlowSpec& spec = *layers_[i].spec;
    const MixerState& s = state.layers[i];
    bool good = plain(s[spec.keys], at::kFloat) && plain(s[spec.values], at::kFloat) && plain(s[spec.clock], at::kDouble);
    for (const ConvProjection& c : spec.qkv) good = good && plain(s[c.part()], at::kFloat);
    if (!good) return "the states are not contiguous in fp32, with a clock in fp64";
  }
  return nullptr;
}

at::Tensor WholeStep::step(const at::Tensor& ids, const ModelState& state) {
  check();
  const c10::cuda::CUDAGuard guard(device_);
  whole_step::Params& p = arguments_->p;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const CyclicFlowSpec& spec = *layers_[i].spec;
    const MixerState& s = state.layers[i];
    Layer& to = p.layer[i];
    to.state_k = s[spec.keys].data_ptr<float>();
    to.state_v = s[spec.values].data_ptr<float>();
    to.clock = s[spec.clock].data_ptr<double>();
    for (size_t c = 0; c < 3; ++c) to.past[c] = s[spec.qkv[c].part()].data_ptr<float>();
  }
  const at::Tensor id = ids.to(device_, at::kLong);
  at::Tensor logits = at::empty({1, p.n.vocab}, at::TensorOptions(at::kFloat).device(device_));
  p.id = id.const_data_ptr<int64_t>();
  p.logits = logits.data_ptr<float>();
  C10_CUDA_CHECK(whole_step::whole_step(p, c10::cuda::getCurrentCUDAStream().stream()));
  return logits;
}

void WholeStep::check() {
  if (!error_.defined()) return;
  auto* const code = static_cast<volatile int*>(error_.data_ptr());
  if (*code == 0) return;
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  const whole_step::Error error = whole_step::whole_step_error(*code);
  tickets_.zero_();
  words_.zero_();
  *code = 0;
  throw std::runtime_error(std::string("decode: a step in one launch was given up, since ") + error.awaited + " did not come (layer " +
                           std::to_string(error.layer) + ", thread block " + std::to_string(error.block) +
                           "); its state is lost, start again from a saved one");
}

std::vector<std::string> WholeStep::timings() const {
  if (!marks_.defined()) return {};
  const Sizes& n = arguments_->p.n;
  const at::Tensor marks = marks_.to(at::kCPU);
  const auto at_mark = marks.accessor<int64_t, 3>();
  constexpr int kKinds = 3;
  double sum[whole_step::kMarks][kKinds] = {}, count[whole_step::kMarks][kKinds] = {}, layer_sum = 0, layer_count = 0, head = 0;
  for (int block = 0; block < n.blocks; ++block) {
    const auto kind = static_cast<size_t>(whole_step::role_of(n, block).kind);
    int64_t before = 0, begin = 0;
    for (int layer = 0; layer < n.layers; ++layer) {
      if (layer > 0 && begin > 0) {
        layer_sum += static_cast<double>(at_mark[block][layer][0] - begin);
        ++layer_count;
      }
      begin = at_mark[block][layer][0];
      for (int mark = 0; mark < whole_step::kMarks; ++mark) {
        const int64_t now = at_mark[block][layer][mark];
        if (now == 0) continue;
        if (before != 0 && layer > 0) {
          sum[mark][kind] += static_cast<double>(now - before);
          ++count[mark][kind];
        }
        before = now;
      }
    }
    int64_t end = before;  // a block may have no part of the head
    for (int mark = 0; mark < whole_step::kMarks; ++mark) end = std::max(end, at_mark[block][n.layers][mark]);
    head += static_cast<double>(end - before) / n.blocks;
  }
  const auto line = [](auto... values) {
    std::array<char, 160> text = {};
    std::snprintf(text.data(), text.size(), "%-42s %9.0f %9.0f %9.0f", values...);
    return std::string(text.data());
  };
  std::vector<std::string> lines = {"clock cycles per layer of the last step in one launch, by kind of thread block: none, keys, values"};
  const char* const* names = whole_step::whole_step_marks();
  for (size_t mark = 0; mark < static_cast<size_t>(whole_step::kMarks); ++mark) {
    if (names[mark] == nullptr) continue;
    const auto mean = [&](size_t kind) { return count[mark][kind] > 0 ? sum[mark][kind] / count[mark][kind] : 0.0; };
    lines.push_back(line(names[mark], mean(0), mean(1), mean(2)));
  }
  lines.push_back("a whole layer: " + std::to_string(std::llround(layer_count > 0 ? layer_sum / layer_count : 0.0)));
  lines.push_back("the head, with its wait: " + std::to_string(std::llround(head)));
  return lines;
}

}  // namespace cyfa::fused
