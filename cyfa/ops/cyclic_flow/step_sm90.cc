// The sm90 backend of cyclic_flow_step: passes torch tensors to the kernel in cyfa/kernels/cyclic_flow/sm90/sm90_step.cu, on torch's
// current CUDA stream. Updates the states in place.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"
#include "cyfa/ops/cyclic_flow/step_impl.h"

namespace cyfa::ops {
namespace {

at::Tensor plain(const at::Tensor& x) { return x.detach().to(at::kFloat).contiguous(); }

cyclic_flow::StepDtype state_dtype(const CyclicFlowState& state) {
  return state.k.scalar_type() == at::kBFloat16 ? cyclic_flow::StepDtype::kBFloat16 : cyclic_flow::StepDtype::kFloat32;
}

// The inputs in the types that the kernel needs, and its parameters.
struct Launch {
  at::Tensor q, k, v, log_alpha, delta, beta, table, q_weight, k_weight, o;
  cyclic_flow::StepCudaParams p;

  Launch(const CyclicFlowStepInputs& in, const CyclicFlowState& state) {
    const bool bf16 = in.v.scalar_type() == at::kBFloat16;
    const at::ScalarType type = bf16 ? at::kBFloat16 : at::kFloat;
    q = in.q.detach().to(type).contiguous();
    k = in.k.detach().to(type).contiguous();
    v = in.v.detach().to(type).contiguous();
    log_alpha = plain(in.log_alpha);
    delta = plain(in.delta);
    beta = plain(in.beta);
    table = plain(in.readout_table);
    if (in.q_norm_weight) q_weight = plain(*in.q_norm_weight);
    if (in.k_norm_weight) k_weight = plain(*in.k_norm_weight);
    p.B = q.size(0);
    p.H = q.size(1);
    p.K = q.size(2);
    p.V = v.size(2);
    p.M = table.size(1);
    p.dtype = bf16 ? cyclic_flow::StepDtype::kBFloat16 : cyclic_flow::StepDtype::kFloat32;
    p.q = q.const_data_ptr();
    p.k = k.const_data_ptr();
    p.v = v.const_data_ptr();
    p.log_alpha = log_alpha.const_data_ptr<float>();
    p.delta = delta.const_data_ptr<float>();
    p.beta = beta.const_data_ptr<float>();
    p.readout_table = table.const_data_ptr<float>();
    p.q_norm_weight = q_weight.defined() ? q_weight.const_data_ptr<float>() : nullptr;
    p.k_norm_weight = k_weight.defined() ? k_weight.const_data_ptr<float>() : nullptr;
    p.state_dtype = state_dtype(state);
    p.state_k = state.k.data_ptr();
    p.state_v = state.v.data_ptr();
    p.clock = state.clock.data_ptr<double>();
  }
};

}  // namespace

std::string step_sm90_refusal(const CyclicFlowStepInputs& in, const CyclicFlowState& state) {
  if (!in.q.is_cuda()) return "q is on " + in.q.device().str() + ", the kernel runs on CUDA";
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, in.q.get_device()));
  if (major != 9) return "the GPU has compute capability " + std::to_string(major) + ".x, the kernel is for Hopper (9.0)";
  cyclic_flow::StepCudaParams p;
  p.B = in.q.size(0);
  p.H = in.q.size(1);
  p.K = in.q.size(2);
  p.V = in.v.size(2);
  p.M = in.readout_table.size(1);
  p.state_dtype = state_dtype(state);
  p.state_k = state.k.data_ptr();
  p.state_v = state.v.data_ptr();
  const char* reason = cyclic_flow::step_cuda_refusal(p);
  return reason != nullptr ? reason : "";
}

at::Tensor step_on_sm90(const CyclicFlowStepInputs& in, const CyclicFlowState& state, const StepSettings& settings) {
  const c10::cuda::CUDAGuard guard(in.q.device());
  Launch launch(in, state);
  launch.p.scale = static_cast<float>(settings.scale);
  launch.p.norm_eps = static_cast<float>(settings.norm_eps);
  launch.o = at::empty(launch.v.sizes(), launch.v.options());
  launch.p.o = launch.o.data_ptr();
  C10_CUDA_CHECK(cyclic_flow::step_cuda(launch.p, c10::cuda::getCurrentCUDAStream()));
  return launch.o.to(in.v.scalar_type());
}

}  // namespace cyfa::ops
