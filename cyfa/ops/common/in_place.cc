// See in_place.h.
#include "cyfa/ops/common/in_place.h"

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cyfa/ops/common/check.h"

namespace cyfa::ops {
namespace {

bool records(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }
bool is_leaf(const at::Tensor& x) { return x.is_leaf() || (x.is_view() && x._base().is_leaf()); }

// A meta tensor, or a fake one of torch.compile, whose sizes may be symbols.
bool has_no_data(const at::Tensor& x) { return x.is_meta() || x.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

// The bytes from a tensor's first element to its last; empty for a tensor without memory.
std::pair<uintptr_t, uintptr_t> bytes_of(const at::Tensor& x) {
  if (!x.defined() || has_no_data(x) || x.numel() == 0) return {0, 0};
  int64_t last = 0;
  for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
  const auto first = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  return {first, first + static_cast<uintptr_t>(last + 1) * x.element_size()};
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto [a_begin, a_end] = bytes_of(a);
  const auto [b_begin, b_end] = bytes_of(b);
  return a_begin < b_end && b_begin < a_end && a.device() == b.device();
}

// The node that a change leaves in the graph of a tensor that has one: a gradient does not pass it.
class Change : public torch::autograd::Function<Change> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const std::string& op) {
    ctx->mark_dirty({x});
    ctx->saved_data["op"] = op;
    return x;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, ctx->saved_data["op"].toStringRef(), ": the gradient of a state that it updates is not implemented");
  }
};

}  // namespace

namespace check {

void written(const char* op, const std::vector<NamedTensor>& written, const std::vector<NamedTensor>& read) {
  const auto refuse_shared = [&](const NamedTensor& a, const NamedTensor& b) {
    if (share_memory(a.x, b.x))
      fail(op, std::string(a.name) + " shares memory with " + b.name + ", wanted memory of its own (it is updated in place): clone() it");
  };
  for (size_t i = 0; i < written.size(); ++i) {
    const auto& [name, x] = written[i];
    if (records(x) && is_leaf(x)) {
      fail(op, std::string(name) +
                   " is a leaf that requires a gradient, wanted a tensor that may be updated in place: detach() it, or call " + op +
                   " without recording gradients (torch.no_grad)");
    }
    torch::autograd::check_inplace(x, true);
    if (!has_no_data(x) && at::has_internal_overlap(x) == at::MemOverlap::Yes)
      fail(op, std::string(name) + " has elements that share memory (an expanded tensor), wanted memory of its own: clone() it");
    for (size_t j = 0; j < i; ++j) refuse_shared(written[i], written[j]);
    for (const NamedTensor& other : read) refuse_shared(written[i], other);
  }
}

}  // namespace check

void mark_written(const char* op, const std::vector<at::Tensor>& written) {
  for (const at::Tensor& x : written) {
    if (records(x)) {
      Change::apply(x, std::string(op));
    } else if (!x.is_inference()) {  // a tensor made in inference mode has no version
      x.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace cyfa::ops
