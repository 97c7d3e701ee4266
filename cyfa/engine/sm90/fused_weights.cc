#include "cyfa/engine/sm90/fused_weights.h"

#include <c10/cuda/CUDAException.h>

#include "cyfa/kernels/rowwise/rowwise_cuda.h"

namespace cyfa::fused {

std::string norm_refusal(const char* key, int64_t width) {
  if (rowwise::norm_cuda_takes(width)) return {};
  return std::string(key) + " " + std::to_string(width) + " has no norm kernel (multiples of 8 up to 2,048)";
}

std::string columns_refusal(const char* key, int64_t width) {
  if (width > 0 && width % 8 == 0) return {};
  return std::string(key) + " " + std::to_string(width) + " is not a multiple of 8";
}

std::string device_refusal(at::Device device) {
  if (!device.is_cuda()) return "the parameters are on " + device.str() + ", the kernels run on CUDA";
  int major = 0, minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()));
  if (major == 9) return {};
  return "the GPU has compute capability " + std::to_string(major) + "." + std::to_string(minor) + ", the kernels are for Hopper (9.0)";
}

std::string flow_refusal(const CyclicFlowSpec& spec) {
  const CyclicFlowConfig& c = spec.config;
  if (!c.conv.on) return "use_short_conv is false";
  if (c.silu != std::array<bool, 3>{}) return "silu_streams is not empty";
  if (!c.forget_gate) return "use_forget_gate is false";
  if (c.constant_clock) return "the clock does not depend on the token";
  for (const ConvProjection& p : spec.qkv) {
    if (!rowwise::conv_cuda_takes(p.width(), c.conv.size))
      return "a convolution of width " + std::to_string(p.width()) + " and conv_size " + std::to_string(c.conv.size) + " has no kernel";
  }
  if (const std::string reason = columns_refusal("hidden_size", c.backbone.hidden_size); !reason.empty()) return reason;
  if (const std::string reason = columns_refusal("the value width", c.shape.V); !reason.empty()) return reason;
  if (const std::string reason = norm_refusal("the value width", c.shape.V); !reason.empty()) return reason;
  if (c.shape.heads > rowwise::kMaxGateHeads) return "num_heads " + std::to_string(c.shape.heads) + " is above 256";
  return {};
}

cyclic_flow::ProjectionLayout layout_of(const CyclicFlowSpec& spec) {
  const HeadShape& s = spec.config.shape;
  return {static_cast<int>(s.heads), static_cast<int>(s.K), static_cast<int>(s.V), static_cast<int>(s.V)};
}

std::array<std::pair<ParameterId, int>, 7> projection_members(const CyclicFlowSpec& spec) {
  const cyclic_flow::ProjectionLayout at = layout_of(spec);
  return {{{spec.qkv[0].projection(), at.q()},
           {spec.qkv[1].projection(), at.k()},
           {spec.qkv[2].projection(), at.v()},
           {spec.gate_first, at.gate()},
           {spec.a_proj, at.a()},
           {spec.b_proj, at.b()},
           {spec.d_proj, at.d()}}};
}

}  // namespace cyfa::fused
