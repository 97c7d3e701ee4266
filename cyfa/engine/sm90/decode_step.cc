#include "cyfa/engine/sm90/decode_step.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"
#include "cyfa/kernels/dense/gemv_sm90.h"

namespace cyfa::ops {
namespace {

using dense::GemvCuda;
using dense::GemvInput;
using dense::GemvOutput;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
const float* floats(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

bool on_hopper(const at::Tensor& x) {
  if (!x.is_cuda()) return false;
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.get_device()));
  return major == 9;
}

bool plain(const at::Tensor& x, at::ScalarType type) { return x.scalar_type() == type && x.is_contiguous(); }

// weight times x, or what `input` says of it, x [rows, in].
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

bool takes(const GemvCuda& p, const at::Tensor& weight) { return plain(weight, at::kBFloat16) && dense::gemv_cuda_takes(p); }

void queue(GemvCuda p, const at::Tensor& y, const at::Tensor& ahead) {
  p.y = y.mutable_data_ptr();
  if (ahead.defined()) {
    p.ahead = ahead.const_data_ptr();
    p.ahead_bytes = static_cast<int64_t>(ahead.nbytes());
  }
  C10_CUDA_CHECK(dense::gemv_cuda(p, stream()));
}

// The step's kernel with what is around it; x, o and, with a gate that is read, gate are the caller's to set.
struct FlowLaunch {
  cyclic_flow::StepCudaParams p;
  cyclic_flow::StepMixer s;

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
    p.mixer = &s;
    s.stride = f.w.projection.value.size(0);
    s.rank = f.w.gate_up.value.size(1);
    s.taps = f.w.conv[0].value.size(2);
    for (size_t i = 0; i < 3; ++i) {
      s.conv[i] = floats(f.w.conv[i].value);
      s.conv_bias[i] = floats(f.w.conv_bias[i].value);
      s.past[i] = f.past[i].data_ptr<float>();
    }
    s.dt_bias = floats(f.w.dt_bias.value);
    s.A_log = floats(f.w.A_log.value);
    s.b_bias = floats(f.w.b_bias.value);
    s.d_bias = floats(f.w.d_bias.value);
    s.o_norm_weight = floats(f.o_norm.weight);
    s.o_norm_eps = static_cast<float>(f.o_norm.eps);
  }
  FlowLaunch(const FlowLaunch&) = delete;

  void queue(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& o) {
    s.x = x.const_data_ptr();
    s.gate = gate.mutable_data_ptr();
    p.o = o.mutable_data_ptr();
    C10_CUDA_CHECK(cyclic_flow::step_cuda(p, stream()));
  }
};

bool plain_states(const FlowStep& f) {
  for (const at::Tensor& past : f.past) {
    if (!plain(past, at::kFloat)) return false;
  }
  const at::ScalarType type = f.k.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  return plain(f.k, type) && plain(f.v, type) && plain(f.clock, at::kDouble);
}

}  // namespace

bool few_rows(const at::Tensor& x) { return on_hopper(x) && plain(x, at::kBFloat16) && x.size(0) <= dense::kMaxGemvRows; }

bool add_flow_step(const at::Tensor& x, const StepNorm& norm, const FlowStep& f, const at::Tensor& ahead) {
  if (!few_rows(x) || !plain_states(f) || !plain(f.w.gate_up.value, at::kBFloat16)) return false;
  const c10::cuda::CUDAGuard guard(x.device());
  FlowLaunch flow(f, x.size(0));
  flow.s.gate_second = f.w.gate_up.value.const_data_ptr();
  flow.s.gate_bias = f.w.gate_bias.const_data_ptr();
  const at::Tensor y = at::empty({x.size(0), f.w.projection.value.size(0)}, x.options());
  const at::Tensor o = at::empty({x.size(0), f.o_proj.size(1)}, x.options()), gate = at::empty_like(o);
  const GemvCuda first = product(x, f.w.projection.value, GemvInput::kNorm, GemvOutput::kStore, norm);
  GemvCuda last = product(o, f.o_proj, GemvInput::kGatedNorm, GemvOutput::kAdd, f.o_norm);
  last.gate = gate.const_data_ptr();
  if (!takes(first, f.w.projection.value) || !takes(last, f.o_proj) || cyclic_flow::step_cuda_refusal(flow.p) != nullptr) return false;
  queue(first, y, ahead);  // the step, which reads little, is when that comes
  flow.queue(y, gate, o);
  queue(last, x, {});
  return true;
}

bool add_swiglu_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& gate_up, const at::Tensor& down,
                     const at::Tensor& ahead) {
  if (!few_rows(x)) return false;
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor wide = at::empty({x.size(0), down.size(1)}, x.options());
  const GemvCuda first = product(x, gate_up, GemvInput::kNorm, GemvOutput::kSwiglu, norm);
  const GemvCuda last = product(wide, down, GemvInput::kPlain, GemvOutput::kAdd);
  if (!takes(first, gate_up) || !takes(last, down)) return false;
  queue(first, wide, down);
  queue(last, x, ahead);
  return true;
}

at::Tensor head_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& head) {
  if (!few_rows(x)) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const GemvCuda p = product(x, head, GemvInput::kNorm, GemvOutput::kFloat, norm);
  if (!takes(p, head)) return {};
  at::Tensor logits = at::empty({x.size(0), head.size(0)}, x.options().dtype(at::kFloat));
  queue(p, logits, {});
  return logits;
}

bool takes_flow_step(const at::Tensor& x, const FlowStep& f) {
  return on_hopper(x) && plain_states(f) && cyclic_flow::step_cuda_refusal(FlowLaunch(f, x.size(0)).p) == nullptr;
}

at::Tensor flow_step_gated(const at::Tensor& x, const FlowStep& f) {
  if (!takes_flow_step(x, f)) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor y = at::mm(x, f.w.projection.value.t());
  const at::Tensor gate = at::addmm(f.w.gate_bias, gate_input(y, f), f.w.gate_up.value.t());
  return flow_step_of(y, gate, f);
}

at::Tensor gate_input(const at::Tensor& y, const FlowStep& f) {
  const int64_t H = f.readout_table.size(0);
  return y.narrow(1, H * (2 * f.k.size(2) + f.v.size(3)), f.w.gate_up.value.size(1));
}

at::Tensor flow_step_of(const at::Tensor& y, const at::Tensor& gate, const FlowStep& f) {
  const c10::cuda::CUDAGuard guard(y.device());
  FlowLaunch flow(f, y.size(0));
  at::Tensor o = at::empty_like(gate);
  flow.queue(y, gate, o);
  return o;
}

}  // namespace cyfa::ops
