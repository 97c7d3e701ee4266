#include "apps/parse.h"

#include <torch/cuda.h>

#include <stdexcept>

namespace cyfa::app {

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "fp64") return at::kDouble;
  if (name == "bf16") return at::kBFloat16;
  throw std::invalid_argument("dtype is '" + name + "', wanted fp32, fp64 or bf16");
}

at::Device parse_device(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  if (name != "cuda") throw std::invalid_argument("device is '" + name + "', wanted cpu or cuda");
  if (!torch::cuda::is_available())
    throw std::invalid_argument("device is cuda, but torch sees no GPU here (a CPU-only torch, or no driver)");
  return at::Device(at::kCUDA, 0);
}

}  // namespace cyfa::app
