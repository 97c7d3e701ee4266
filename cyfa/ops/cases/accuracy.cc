#include "cyfa/ops/cases/accuracy.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace cyfa::cases {
namespace {

constexpr std::pair<const char*, const char*> kVectorNames[] = {
    {"log_alpha", "g"}, {"log_gamma", "g"}, {"initial_clock", "initial_lambda"}, {"final_clock", "final_lambda"}};

}  // namespace

double relative_l2(const at::Tensor& got, const at::Tensor& want) {
  if (!got.defined() || !want.defined() || got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  const at::Tensor wide = want.to(at::kDouble);
  const double error = (got.to(at::kDouble) - wide).norm().item<double>();
  const double norm = wide.norm().item<double>();
  return norm < 1e-12 ? error : error / norm;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

TensorError compare(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double limit) {
  if (actual.sizes() != expected.sizes()) throw std::logic_error("compare: " + name + " has another shape than the expected tensor");
  TensorError e{name, 0, 0, limit, true};
  if (expected.numel() == 0) return e;
  const at::Tensor a = actual.detach().to(at::kCPU, at::kDouble);
  const at::Tensor b = expected.detach().to(at::kCPU, at::kDouble);
  const at::Tensor difference = a - b;
  const double wanted = b.norm().item<double>();
  const double base = wanted == 0 ? std::sqrt(static_cast<double>(b.numel())) : wanted;
  e.rel_l2 = difference.norm().item<double>() / base;
  e.max_abs = difference.abs().max().item<double>();
  e.pass = std::isfinite(e.rel_l2) && std::isfinite(e.max_abs) && e.rel_l2 <= limit;
  return e;
}

std::vector<TensorError> compare_all(const Tensors& actual, const NamedTensors& expected, at::ScalarType dtype, double limit) {
  std::vector<TensorError> errors;
  for (const auto& [name, wanted] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) throw std::logic_error("compare_all: " + name + " was not computed");
    errors.push_back(compare(vector_name(name), found->second, wanted, limit > 0 ? limit : error_limit(dtype, name)));
  }
  return errors;
}

std::vector<TensorError> compare_all(const Tensors& actual, const Tensors& expected, at::ScalarType dtype, double limit) {
  return compare_all(actual, NamedTensors(expected.begin(), expected.end()), dtype, limit);
}

std::string vector_name(const std::string& name) {
  for (const auto& [ours, theirs] : kVectorNames) {
    if (name == ours) return theirs;
  }
  return name.starts_with("d_") ? "d_" + vector_name(name.substr(2)) : name;
}

std::string name_of_vector(const std::string& stored) {
  for (const auto& [ours, theirs] : kVectorNames) {
    if (stored == theirs) return ours;
  }
  return stored.starts_with("d_") ? "d_" + name_of_vector(stored.substr(2)) : stored;
}

double error_limit(at::ScalarType dtype, std::string_view tensor) {
  if (dtype != at::kBFloat16 || tensor == "final_clock") return 5e-5;
  return tensor == "d_delta" || tensor == "d_initial_clock" ? 0.03 : 0.01;
}

double limit_of(at::ScalarType case_dtype, const std::string& name, const at::Tensor& result) {
  if (result.scalar_type() == at::kBFloat16) return kLimitBf16;
  if (case_dtype == at::kDouble && result.scalar_type() == at::kDouble) return kLimitFp64;
  if (name == "d_log_gamma") return kLimitFp32Sum;
  return name.starts_with("d_") ? kLimitFp32Gradient : kLimitFp32;
}

}  // namespace cyfa::cases
