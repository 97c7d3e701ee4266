#include "apps/accuracy.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

namespace cyfa::app {

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

std::vector<TensorError> compare_all(const NamedTensors& actual, const NamedTensors& expected, at::ScalarType dtype, double limit) {
  std::vector<TensorError> errors;
  for (const auto& [name, wanted] : expected) {
    const auto same_name = [&, &key = name](const auto& entry) { return entry.first == key; };
    const auto found = std::find_if(actual.begin(), actual.end(), same_name);
    if (found == actual.end()) throw std::logic_error("compare_all: " + name + " was not computed");
    errors.push_back(compare(name, found->second, wanted, limit > 0 ? limit : error_limit(dtype, name)));
  }
  return errors;
}

NamedTensors outputs_of(const NamedTensors& all) {
  NamedTensors outputs;
  std::copy_if(all.begin(), all.end(), std::back_inserter(outputs), [](const auto& entry) { return !entry.first.starts_with("d_"); });
  return outputs;
}

double error_limit(at::ScalarType dtype, std::string_view tensor) {
  if (dtype != at::kBFloat16 || tensor == "final_lambda") return 5e-5;
  return tensor == "d_delta" || tensor == "d_initial_lambda" ? 0.03 : 0.01;
}

}  // namespace cyfa::app
