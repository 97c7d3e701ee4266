#include "cyfa/engine/sm90/prefill.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_forward.h"
#include "cyfa/kernels/rowwise/rowwise_cuda.h"
#include "cyfa/mixers/call.h"
#include "cyfa/ops/cyclic_flow/impl.h"
#include "cyfa/ops/dense/rowwise_cuda.h"

namespace cyfa::fused {
namespace {

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
const float* floats(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// Few rows would leave most of the GPU without a convolution task of the usual size.
constexpr int64_t kFewRows = 4096, kShortTask = 64;

template <class T>
size_t append(std::vector<char>& bytes, const std::vector<T>& values) {
  const size_t at = (bytes.size() + alignof(T) - 1) / alignof(T) * alignof(T);
  bytes.resize(at + values.size() * sizeof(T));
  std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

// The norm of x + plus, which becomes x.
at::Tensor next_norm(at::Tensor& x, at::Tensor& plus, const StepNorm& norm) {
  const ops::row_kernels::Norm out = ops::row_kernels::norm_cuda(x, norm.weight, norm.eps, {}, plus);
  if (plus.defined()) x = out.sum;
  plus = at::Tensor();
  return out.y;
}

at::Tensor mlp(const StepLayer& layer, const at::Tensor& x) {
  const at::Tensor wide = at::mm(x, layer.gate_and_up.t());
  const at::Tensor out = at::empty({x.size(0), wide.size(1) / 2}, x.options());
  rowwise::SwigluCuda p;
  p.type = rowwise::RowType::kBFloat16;
  p.rows = out.size(0);
  p.width = out.size(1);
  p.stride = wide.size(1);
  p.gate = wide.const_data_ptr();
  p.up = static_cast<const at::BFloat16*>(p.gate) + p.width;
  p.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(rowwise::swiglu_cuda(p, stream()));
  return at::mm(out, layer.down.t());
}

cyclic_flow::Sm90ForwardParams sizes_of(const StepLayer& layer, const at::Tensor& readout) {
  const HeadShape& shape = layer.spec->config.shape;
  cyclic_flow::Sm90ForwardParams p;
  p.H = static_cast<int32_t>(shape.heads);
  p.K = static_cast<int32_t>(shape.K);
  p.V = static_cast<int32_t>(shape.V);
  p.M = static_cast<int32_t>(readout.size(1) + 1);
  return p;
}

}  // namespace

RowTables::RowTables(const std::vector<int64_t>& offsets, int64_t rows)
    : rows_(rows), tokens_(offsets.back()), sequences_(static_cast<int64_t>(offsets.size()) - 1) {
  std::vector<cyclic_flow::Tile> tiles;
  std::vector<rowwise::ConvTask> tasks;
  std::vector<int32_t> firsts = {0};
  const int64_t task_tokens = rows <= kFewRows ? kShortTask : rowwise::kConvTokens;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    const int64_t first = offsets[n], last = offsets[n + 1];
    for (int64_t t = first; t < last; t += cyclic_flow::kTileTokens) {
      tiles.push_back({t, static_cast<int32_t>(std::min<int64_t>(cyclic_flow::kTileTokens, last - t)), static_cast<int32_t>(n)});
    }
    firsts.push_back(static_cast<int32_t>(tiles.size()));
    longest_ = std::max(longest_, firsts[n + 1] - firsts[n]);
    // Padding is convolved too: the operator copies whole tiles, whose rows after the sequence must be finite.
    const int64_t end = n + 2 == offsets.size() ? rows : last;
    for (int64_t t = first; t < end; t += task_tokens) {
      tasks.push_back({t, std::min(end, t + task_tokens), first, last, static_cast<int64_t>(n)});
    }
  }
  tiles_ = static_cast<int32_t>(tiles.size());
  tasks_ = static_cast<int64_t>(tasks.size());
  append(host_, tiles);
  borders_at_ = append(host_, offsets);
  tasks_at_ = append(host_, tasks);
  firsts_at_ = append(host_, firsts);
}

void RowTables::copy_to(const at::Tensor& memory) const {
  C10_CUDA_CHECK(cudaMemcpyAsync(memory.mutable_data_ptr(), host_.data(), host_.size(), cudaMemcpyHostToDevice, stream()));
}

const int32_t* RowTables::first_tile(const at::Tensor& memory) const {
  return reinterpret_cast<const int32_t*>(static_cast<const char*>(memory.const_data_ptr()) + firsts_at_);
}

const int64_t* RowTables::borders(const at::Tensor& memory) const {
  return reinterpret_cast<const int64_t*>(static_cast<const char*>(memory.const_data_ptr()) + borders_at_);
}

at::Tensor RowTables::conv_tasks(const at::Tensor& memory) const {
  const auto bytes = tasks_ * static_cast<int64_t>(sizeof(rowwise::ConvTask));
  return memory.narrow(0, static_cast<int64_t>(tasks_at_), bytes).view(at::kLong).view({tasks_, -1});
}

// Memory that the layers use one after the other.
struct Prefill::Scratch {
  at::Tensor o, workspace, kept_tokens, kept_states, kept_tables;

  at::Tensor& bytes(at::Tensor& memory, int64_t count, const at::Tensor& like) const {
    if (!memory.defined() || memory.numel() < count) memory = at::empty({count}, like.options().dtype(at::kByte));
    return memory;
  }
};

Prefill::Prefill(const CausalLM& model, const Weights& weights, const std::vector<StepLayer>& layers)
    : model_(model), weights_(weights), layers_(layers) {
  for (const StepLayer& layer : layers) {
    at::Tensor readout;
    if (layer.spec != nullptr) {
      readout = layer.spec->readout_matrices(layer.w, model.device()).to(at::kFloat).contiguous();
      if (cyclic_flow::sm90_forward_refusal(sizes_of(layer, readout)) != nullptr) readout = at::Tensor();  // the op pads these
    }
    fused_ = fused_ && readout.defined();
    readouts_.push_back(readout);
  }
}

ModelState Prefill::empty_state(int64_t sequences) const {
  ModelState state;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::vector<StateSpec>& specs = layers_[i].block->mixer().state();
    MixerState& tensors = state.layers.emplace_back(specs.size());
    for (size_t j = 0; j < specs.size() && readouts_[i].defined(); ++j) {
      std::vector<int64_t> shape = {sequences};
      shape.insert(shape.end(), specs[j].shape.begin(), specs[j].shape.end());
      tensors[j] = at::empty(shape, at::TensorOptions(specs[j].dtype).device(model_.device()));
    }
  }
  return state;
}

ModelState Prefill::readable(const ModelState& state) const {
  ModelState plain = state;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::vector<StateSpec>& specs = layers_[i].block->mixer().state();
    for (size_t j = 0; j < specs.size() && readouts_[i].defined(); ++j) {
      at::Tensor& x = plain.layers[i][j];
      x = x.to(model_.device(), specs[j].dtype).contiguous();
    }
  }
  return plain;
}

at::Tensor Prefill::mix_flow(const StepLayer& layer, const at::Tensor& x, const Input& in, const MixerState* before,
                             const std::array<at::Tensor, 3>& before_conv, MixerState& after, Scratch& scratch) const {
  const CyclicFlowSpec& spec = *layer.spec;
  const auto [y, f] = project_rows(x, layer.flow.w, in.tables.conv_tasks(in.memory), before_conv);
  std::array<at::Tensor, 3> tails, tails_before;
  for (size_t i = 0; i < 3; ++i) {
    tails[i] = after[spec.qkv[i].part()];
    if (before != nullptr) tails_before[i] = (*before)[spec.qkv[i].part()];
  }
  conv_tails(y, layer.flow.w, in.tables.borders(in.memory), tails_before, tails);

  const at::Tensor& readout = readouts_[static_cast<size_t>(&layer - layers_.data())];
  cyclic_flow::Sm90ForwardParams p = sizes_of(layer, readout);
  const int64_t rows = in.tables.rows(), width = int64_t{p.H} * p.V;
  p.T = rows;
  p.N = static_cast<int32_t>(in.tables.sequences());
  p.tiles = in.tables.tiles();
  p.longest = in.tables.longest();
  p.tile = static_cast<const cyclic_flow::Tile*>(in.tables.tile(in.memory));
  p.first_tile = in.tables.first_tile(in.memory);
  p.q = f.q.const_data_ptr();
  p.k = f.k.const_data_ptr();
  p.v = f.v.const_data_ptr();
  p.q_stride = f.q.stride(0);
  p.k_stride = f.k.stride(0);
  p.v_stride = f.v.stride(0);
  p.log_alpha = floats(f.log_alpha);
  p.delta = floats(f.delta);
  p.beta = floats(f.beta);
  p.readout = floats(readout);
  p.q_norm_weight = floats(layer.flow.q_norm_weight);
  p.k_norm_weight = floats(layer.flow.k_norm_weight);
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.K)));
  p.norm_eps = static_cast<float>(std::max(layer.flow.norm_eps, ops::kLeastNormEps));
  if (before != nullptr) {
    p.initial_k = floats((*before)[spec.keys]);
    p.initial_v = floats((*before)[spec.values]);
    p.initial_clock = (*before)[spec.clock].const_data_ptr<double>();
  }
  p.final_k = after[spec.keys].data_ptr<float>();
  p.final_v = after[spec.values].data_ptr<float>();
  p.final_clock = after[spec.clock].data_ptr<double>();
  // The kernels do not write the rows of padding, and what follows reads them.
  if (!scratch.o.defined() || scratch.o.size(1) != width) {
    scratch.o = rows == in.tables.tokens() ? at::empty({rows, width}, x.options()) : at::zeros({rows, width}, x.options());
  }
  p.o = scratch.o.mutable_data_ptr();
  const cyclic_flow::Sm90KeptBytes kept = cyclic_flow::sm90_kept_bytes(p.T, p.H, p.K, p.V, p.tiles, p.M);
  p.kept.tokens = scratch.bytes(scratch.kept_tokens, kept.tokens, x).mutable_data_ptr();
  p.kept.states = scratch.bytes(scratch.kept_states, kept.states, x).mutable_data_ptr();
  p.kept.tables = scratch.bytes(scratch.kept_tables, kept.tables, x).mutable_data_ptr();
  p.workspace = scratch.bytes(scratch.workspace, cyclic_flow::sm90_forward_workspace(p), x).mutable_data_ptr();
  C10_CUDA_CHECK(cyclic_flow::sm90_forward(p, stream()));

  const std::array<int64_t, 3> heads = {rows, p.H, p.V};
  const StepNorm& norm = layer.flow.o_norm;
  const at::Tensor o = ops::row_kernels::norm_cuda(scratch.o.view(heads), norm.weight, norm.eps, f.gate.view(heads)).y;
  return at::mm(o.view({rows, width}), layer.flow.o_proj.t());
}

at::Tensor Prefill::mix_plain(const StepLayer& layer, const at::Tensor& x, const Input& in, const MixerState* before,
                              MixerState& after) const {
  Call call(layer.w, x.view({in.B, in.T, -1}), in.cu_seqlens, before, after.size());
  const at::Tensor y = layer.block->mixer().mix(call);
  after = call.take_final_state();
  return y.reshape(x.sizes());
}

at::Tensor Prefill::run(const Input& in, ModelState& after) const {
  at::Tensor x = model_.embed(weights_, in.ids), plus;
  Scratch scratch;
  // The states of the convolutions in bf16, which is what they were.
  std::vector<std::array<at::Tensor, 3>> before_conv(layers_.size());
  if (in.initial != nullptr) {
    std::vector<at::Tensor> from, to;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!readouts_[i].defined()) continue;
      for (size_t j = 0; j < 3; ++j) {
        from.push_back(in.initial->layers[i][layers_[i].spec->qkv[j].part()]);
        to.push_back(at::empty(from.back().sizes(), x.options()));
        before_conv[i][j] = to.back();
      }
    }
    if (!to.empty()) at::_foreach_copy_(to, from);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const StepLayer& layer = layers_[i];
    const MixerState* before = in.initial == nullptr ? nullptr : &in.initial->layers[i];
    const at::Tensor normed = next_norm(x, plus, layer.mixer_norm);
    plus = readouts_[i].defined() ? mix_flow(layer, normed, in, before, before_conv[i], after.layers[i], scratch)
                                  : mix_plain(layer, normed, in, before, after.layers[i]);
    plus = mlp(layer, next_norm(x, plus, layer.mlp_norm));
  }
  return x + plus;
}

}  // namespace cyfa::fused
