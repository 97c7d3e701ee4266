// rowwise_cuda.h for builds without CUDA. The *_takes_cuda functions return false, so the others are never called.
#include "cyfa/ops/dense/rowwise_cuda.h"

namespace cyfa::ops {
namespace {

[[noreturn]] void absent() { throw std::logic_error("row_kernels: this build has no CUDA"); }

}  // namespace

namespace row_kernels {

bool norm_takes_cuda(const at::Tensor&) { return false; }
bool swiglu_takes_cuda(const at::Tensor&) { return false; }
bool conv_takes_cuda(const at::Tensor&, int64_t) { return false; }
bool conv_step_takes_cuda(const at::Tensor&, const at::Tensor&) { return false; }

Norm norm_cuda(const at::Tensor&, const at::Tensor&, double, const at::Tensor&, const at::Tensor&) { absent(); }
NormGrads norm_backward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const NormSums&) {
  absent();
}
at::Tensor swiglu_cuda(const at::Tensor&, const at::Tensor&) { absent(); }
std::pair<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }
at::Tensor conv_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::vector<int64_t>&) { absent(); }
ConvGrads conv_backward_cuda(const at::Tensor&, const at::Tensor&, bool, const at::Tensor&, const std::vector<int64_t>&,
                             const at::Tensor&) {
  absent();
}
at::Tensor conv_step_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) { absent(); }

}  // namespace row_kernels
}  // namespace cyfa::ops
