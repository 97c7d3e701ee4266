// How near a tensor comes to what it should be, and how near is near enough.
#pragma once

#include <torch/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cyfa::app {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TensorError {
  std::string name;
  double rel_l2 = 0;   // |actual - expected| / |expected|; where expected is all zero, the root mean square of actual
  double max_abs = 0;  // largest difference of one element
  double limit = 0;    // of rel_l2
  bool pass = false;   // never with a NaN or an infinity in either tensor
};

// Compared in double on the CPU; the sizes must agree.
TensorError compare(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double limit);

// Every tensor of `expected` against the one of the same name in `actual`. A limit above 0 replaces those of the precision.
std::vector<TensorError> compare_all(const NamedTensors& actual, const NamedTensors& expected, at::ScalarType dtype, double limit = 0);

// Those that are no gradients: names without the prefix d_.
NamedTensors outputs_of(const NamedTensors& all);

// The limit of rel_l2 for a tensor of cyclic_flow or a recurrence, by the type that q, k and v come in.
//
// fp32, fp64: 5e-5. Stored vectors were computed in fp32 and carry its error (1e-6 to 1e-5, measured with the double reference), so
// that no run can come nearer to them.
//
// bf16: .01. Rounding q, k, v and do to bf16 (unit 2^-9) costs .0014 to .0040 before a kernel has done anything, measured on the
// same vectors with everything else in fp32; products of bf16 operands add up to .007. The gradient of the clock, d_delta and
// d_initial_lambda, is a small difference of large terms summed over the sequence, and gets .03. The clock itself is never
// rounded: 5e-5.
double error_limit(at::ScalarType dtype, std::string_view tensor);

}  // namespace cyfa::app
