// See check.h.
#include "cyfa/ops/common/check.h"

#include <cmath>
#include <sstream>

namespace cyfa::ops::check {
namespace {

std::string describe(at::IntArrayRef sizes) {
  std::ostringstream out;
  out << sizes;
  return out.str();
}

void same_count(const char* op, const char* name, at::TensorList x, at::TensorList wanted) {
  if (x.size() != wanted.size())
    fail(op, std::string(name) + " holds " + std::to_string(x.size()) + " tensors, wanted " + std::to_string(wanted.size()));
}

void like(const char* op, const std::string& name, const at::Tensor& x, const at::Tensor& wanted, at::Device device) {
  if (x.sizes() != wanted.sizes()) fail(op, name + " has shape " + describe(x.sizes()) + ", wanted " + describe(wanted.sizes()));
  same_dtype(op, name.c_str(), x, "q", wanted.scalar_type());
  same_device(op, name.c_str(), x, "q", device);
}

}  // namespace

void fail(const char* op, const std::string& what) { throw ArgumentError(std::string(op) + ": " + what); }

void shape(const char* op, const char* name, const at::Tensor& x, std::initializer_list<Dim> wanted) {
  bool good = x.defined() && x.dim() == static_cast<int64_t>(wanted.size());
  if (good) {
    int64_t i = 0;
    for (const Dim& d : wanted) {
      good = good && (d.size < 0 || x.size(i) == d.size);
      ++i;
    }
  }
  if (good) return;
  std::string letters;
  std::string sizes;
  for (const Dim& d : wanted) {
    letters += (letters.empty() ? "" : ", ") + std::string(d.letter);
    sizes += (sizes.empty() ? "" : ", ") + (d.size < 0 ? std::string("any") : std::to_string(d.size));
  }
  const std::string came = x.defined() ? "has shape " + describe(x.sizes()) : std::string("is missing");
  fail(op, std::string(name) + " " + came + ", wanted [" + letters + "] = [" + sizes + "]");
}

void floating(const char* op, const char* name, const at::Tensor& x) {
  const auto t = x.scalar_type();
  if (t == at::kFloat || t == at::kDouble || t == at::kBFloat16) return;
  fail(op, std::string(name) + " has type " + c10::toString(t) + ", wanted Float, Double or BFloat16");
}

void same_dtype(const char* op, const char* name, const at::Tensor& x, const char* other_name, at::ScalarType wanted) {
  if (x.scalar_type() == wanted) return;
  fail(op, std::string(name) + " has type " + c10::toString(x.scalar_type()) + ", wanted " + c10::toString(wanted) + " (as " + other_name +
               " asks)");
}

void same_device(const char* op, const char* name, const at::Tensor& x, const char* other_name, at::Device wanted) {
  if (x.device() == wanted) return;
  fail(op, std::string(name) + " is on " + x.device().str() + ", wanted " + wanted.str() + " (as " + other_name + ")");
}

void saved(const char* op, at::TensorList saved, at::TensorList wanted, at::Device device) {
  same_count(op, "saved", saved, wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string name = "saved[" + std::to_string(i) + "]";
    if (!saved[i].defined()) fail(op, name + " is missing, wanted what forward saved");
    like(op, name, saved[i], wanted[i], device);
    if (!saved[i].is_contiguous()) fail(op, name + " is a strided view, wanted what forward saved");
  }
}

void gradients(const char* op, at::TensorList gradients, at::TensorList wanted, at::Device device) {
  same_count(op, "grads", gradients, wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (gradients[i].defined()) like(op, "grads[" + std::to_string(i) + "]", gradients[i], wanted[i], device);
  }
}

void borders(const char* op, const at::Tensor& cu_seqlens, int64_t B, at::Device device) {
  if (!cu_seqlens.defined()) fail(op, "cu_seqlens is missing, wanted [N + 1] integers (or no cu_seqlens at all)");
  if (cu_seqlens.dim() != 1 || cu_seqlens.size(0) < 1)
    fail(op, "cu_seqlens has shape " + describe(cu_seqlens.sizes()) + ", wanted [N + 1] with N >= 0");
  const auto t = cu_seqlens.scalar_type();
  if (t != at::kLong && t != at::kInt) fail(op, std::string("cu_seqlens has type ") + c10::toString(t) + ", wanted Long or Int");
  if (!cu_seqlens.is_cpu() && cu_seqlens.device() != device)
    fail(op, "cu_seqlens is on " + cu_seqlens.device().str() + ", wanted cpu or " + device.str() + " (as q)");
  if (B != 1) fail(op, "cu_seqlens needs a packed batch, B = 1, but B is " + std::to_string(B));
}

std::vector<int64_t> sequence_offsets(const char* op, const at::Tensor& cu_seqlens, int64_t T) {
  const at::Tensor host = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const int64_t* p = host.const_data_ptr<int64_t>();
  std::vector<int64_t> offsets(p, p + host.numel());
  if (offsets.front() != 0) fail(op, "cu_seqlens starts at " + std::to_string(offsets.front()) + ", wanted 0");
  if (offsets.back() != T) fail(op, "cu_seqlens ends at " + std::to_string(offsets.back()) + ", wanted T = " + std::to_string(T));
  for (size_t n = 1; n < offsets.size(); ++n) {
    if (offsets[n] < offsets[n - 1])
      fail(op, "cu_seqlens falls from " + std::to_string(offsets[n - 1]) + " to " + std::to_string(offsets[n]) + " at " +
                   std::to_string(n) + ", wanted values that never decrease");
  }
  return offsets;
}

void widths(const char* op, int64_t H, int64_t K, int64_t V) {
  if (H >= 1 && K >= 1 && V >= 1) return;
  fail(op, "H, K and V are " + std::to_string(H) + ", " + std::to_string(K) + " and " + std::to_string(V) + ", wanted at least 1 each");
}

void scale(const char* op, double scale) {
  if (!std::isfinite(scale)) fail(op, "scale is " + std::to_string(scale) + ", wanted a finite number");
}

void norm_eps(const char* op, double norm_eps) {
  if (!(norm_eps >= 0.0)) fail(op, "norm_eps is " + std::to_string(norm_eps) + ", wanted at least 0");
}

void log_alpha(const char* op, const at::Tensor& log_alpha, const char* name) {
  const bool traced = log_alpha.key_set().has(c10::DispatchKey::Python);  // by torch.compile, which has no values to look at
  if (!log_alpha.is_cpu() || traced || log_alpha.numel() == 0) return;
  const at::Tensor top = log_alpha.detach().max();  // NaN if any element is NaN
  const double largest = top.item<double>();
  if (largest <= 0.0) return;
  fail(op,
       std::string(name) + " holds " + std::to_string(largest) + ", wanted values of at most 0 (it is the logarithm of a gate in [0, 1])");
}

}  // namespace cyfa::ops::check
