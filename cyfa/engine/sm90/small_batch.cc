#include "cyfa/engine/sm90/small_batch.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"
#include "cyfa/kernels/dense/gemv_sm90.h"

namespace cyfa::fused {
namespace {

using dense::GemvCuda;
using dense::GemvInput;
using dense::GemvOutput;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
const float* floats(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
bool plain(const at::Tensor& x, at::ScalarType type) { return x.scalar_type() == type && x.is_contiguous(); }

// f(x) weight^T, with x [rows, in], where `input` selects the fused prologue f.
GemvCuda product(const at::Tensor& x, const at::Tensor& weight, GemvInput input, GemvOutput output, const StepNorm& norm = {}) {
  GemvCuda p;
  p.input = input;
  p.output = output;
  p.rows = x.size(0);
  p.in = x.size(1);
  p.out = output == GemvOutput::kSwiglu ? weight.size(0) / 2 : weight.size(0);
  p.weight = weight.const_data_ptr();
  p.x = x.const_data_ptr();
  p.norm_weight = floats(norm.weight);
  p.width = norm.weight.defined() ? norm.weight.numel() : 0;
  p.eps = static_cast<float>(norm.eps);
  return p;
}

const char* refusal(const GemvCuda& p, const at::Tensor& weight) {
  return plain(weight, at::kBFloat16) ? dense::gemv_refusal(p) : "a matrix is not bf16 and contiguous";
}

void queue(GemvCuda p, const at::Tensor& y, const at::Tensor& ahead) {
  p.y = y.mutable_data_ptr();
  if (ahead.defined()) {
    p.ahead = ahead.const_data_ptr();
    p.ahead_bytes = static_cast<int64_t>(ahead.nbytes());
  }
  C10_CUDA_CHECK(dense::gemv_cuda(p, stream()));
}

// Arguments of the step kernel and of the mixer around it. The caller sets x and o, and gate if the gate is an input.
struct FlowLaunch {
  cyclic_flow::StepCudaParams p;
  cyclic_flow::StepMixer m;

  FlowLaunch(const FlowStep& f, int64_t B) {
    p.B = B;
    p.H = f.readout_table.size(0);
    p.M = f.readout_table.size(1);
    p.K = f.k.size(2);
    p.V = f.v.size(3);
    p.dtype = cyclic_flow::StepDtype::kBFloat16;
    p.state_dtype = f.k.scalar_type() == at::kBFloat16 ? cyclic_flow::StepDtype::kBFloat16 : cyclic_flow::StepDtype::kFloat32;
    p.readout_table = floats(f.readout_table);
    p.q_norm_weight = floats(f.q_norm_weight);
    p.k_norm_weight = floats(f.k_norm_weight);
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.K)));
    p.norm_eps = static_cast<float>(f.norm_eps);
    p.state_k = f.k.data_ptr();
    p.state_v = f.v.data_ptr();
    p.clock = f.clock.data_ptr<double>();
    p.mixer = &m;
    m.stride = f.w.layout.columns();
    m.rank = f.w.layout.rank;
    m.taps = f.w.conv[0].value.size(2);
    for (size_t i = 0; i < 3; ++i) {
      m.conv[i] = floats(f.w.conv[i].value);
      m.conv_bias[i] = floats(f.w.conv_bias[i].value);
      m.past[i] = f.tails[i].data_ptr<float>();
    }
    m.dt_bias = floats(f.w.dt_bias.value);
    m.A_log = floats(f.w.A_log.value);
    m.b_bias = floats(f.w.b_bias.value);
    m.d_bias = floats(f.w.d_bias.value);
    m.o_norm_weight = floats(f.o_norm.weight);
    m.o_norm_eps = static_cast<float>(f.o_norm.eps);
  }
  FlowLaunch(const FlowLaunch&) = delete;

  void queue(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& o) {
    m.x = x.const_data_ptr();
    m.gate = gate.mutable_data_ptr();
    p.o = o.mutable_data_ptr();
    C10_CUDA_CHECK(cyclic_flow::step_cuda(p, stream()));
  }
};

const char* states_refusal(const FlowStep& f) {
  for (const at::Tensor& tail : f.tails) {
    if (!plain(tail, at::kFloat)) return "a convolution's state is not fp32 and contiguous";
  }
  const at::ScalarType type = f.k.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  const bool good = plain(f.k, type) && plain(f.v, type) && plain(f.clock, at::kDouble);
  return good ? nullptr : "the states are not contiguous in fp32 or bf16, with a clock in fp64";
}

}  // namespace

const char* small_batch_refusal(const at::Tensor& x) {
  if (x.size(0) > dense::kMaxGemvRows) return "more than 16 sequences";
  return plain(x, at::kBFloat16) ? nullptr : "activations are not bf16 and contiguous";
}

const char* add_flow_step(const at::Tensor& x, const StepNorm& norm, const FlowStep& f, const at::Tensor& ahead) {
  if (const char* why = small_batch_refusal(x)) return why;
  if (const char* why = states_refusal(f)) return why;
  if (!plain(f.w.gate_second.value, at::kBFloat16)) return "a matrix is not bf16 and contiguous";
  const c10::cuda::CUDAGuard guard(x.device());
  FlowLaunch flow(f, x.size(0));
  flow.m.gate_second = f.w.gate_second.value.const_data_ptr();
  flow.m.gate_bias = f.w.gate_bias.const_data_ptr();
  const at::Tensor y = at::empty({x.size(0), f.w.projection.value.size(0)}, x.options());
  const at::Tensor o = at::empty({x.size(0), f.o_proj.size(1)}, x.options()), gate = at::empty_like(o);
  const GemvCuda first = product(x, f.w.projection.value, GemvInput::kNorm, GemvOutput::kStore, norm);
  GemvCuda last = product(o, f.o_proj, GemvInput::kGatedNorm, GemvOutput::kAdd, f.o_norm);
  last.gate = gate.const_data_ptr();
  if (const char* why = refusal(first, f.w.projection.value)) return why;
  if (const char* why = refusal(last, f.o_proj)) return why;
  if (const char* why = cyclic_flow::step_cuda_refusal(flow.p)) return why;
  queue(first, y, ahead);  // the prefetch overlaps with the step kernel, which reads little
  flow.queue(y, gate, o);
  queue(last, x, {});
  return nullptr;
}

const char* add_swiglu_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& gate_and_up, const at::Tensor& down,
                            const at::Tensor& ahead) {
  if (const char* why = small_batch_refusal(x)) return why;
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor wide = at::empty({x.size(0), down.size(1)}, x.options());
  const GemvCuda first = product(x, gate_and_up, GemvInput::kNorm, GemvOutput::kSwiglu, norm);
  const GemvCuda last = product(wide, down, GemvInput::kPlain, GemvOutput::kAdd);
  if (const char* why = refusal(first, gate_and_up)) return why;
  if (const char* why = refusal(last, down)) return why;
  queue(first, wide, down);
  queue(last, x, ahead);
  return nullptr;
}

const char* head_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& head, at::Tensor* logits) {
  if (const char* why = small_batch_refusal(x)) return why;
  const c10::cuda::CUDAGuard guard(x.device());
  const GemvCuda p = product(x, head, GemvInput::kNorm, GemvOutput::kFloat, norm);
  if (const char* why = refusal(p, head)) return why;
  *logits = at::empty({x.size(0), head.size(0)}, x.options().dtype(at::kFloat));
  queue(p, *logits, {});
  return nullptr;
}

const char* flow_step_refusal(const at::Tensor& x, const FlowStep& f) {
  const char* why = states_refusal(f);
  return why != nullptr ? why : cyclic_flow::step_cuda_refusal(FlowLaunch(f, x.size(0)).p);
}

const char* flow_step_gated(const at::Tensor& x, const FlowStep& f, at::Tensor* o) {
  if (const char* why = flow_step_refusal(x, f)) return why;
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor y = at::mm(x, f.w.projection.value.t());
  const at::Tensor gate = at::addmm(f.w.gate_bias, gate_input(y, f.w), f.w.gate_second.value.t());
  *o = flow_step_of(y, gate, f);
  return nullptr;
}

at::Tensor gate_input(const at::Tensor& y, const FlowWeights& w) { return y.narrow(1, w.layout.gate(), w.layout.rank); }

at::Tensor flow_step_of(const at::Tensor& y, const at::Tensor& gate, const FlowStep& f) {
  const c10::cuda::CUDAGuard guard(y.device());
  FlowLaunch flow(f, y.size(0));
  at::Tensor o = at::empty_like(gate);
  flow.queue(y, gate, o);
  return o;
}

}  // namespace cyfa::fused
