// How near a tensor comes to what it should be, and how near is near enough. The tests, `cyfa verify op`, `cyfa doctor` and `cyfa bench op`
// take their error limits from here. Names of tensors are those of cyfa/ops/cases/op_case.h.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cyfa::cases {

using Tensors = std::map<std::string, at::Tensor>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;  // in an order that is worth keeping

// |got - want| / |want| in the Euclidean norm, in double; |got - want| where |want| is below 1e-12. Infinite if the sizes differ.
double relative_l2(const at::Tensor& got, const at::Tensor& want);

bool same_bits(const at::Tensor& a, const at::Tensor& b);

struct TensorError {
  std::string name;
  double rel_l2 = 0;   // |actual - expected| / |expected|; where expected is all zero, the root mean square of actual
  double max_abs = 0;  // largest difference of one element
  double limit = 0;    // of rel_l2
  bool pass = false;   // never with a NaN or an infinity in either tensor
};

// Compared in double on the CPU; the sizes must agree.
TensorError compare(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double limit);

// Every tensor of `expected` against the one of the same name in `actual`, reported under its name in vector files (vector_name). A limit
// above 0 replaces those of the precision.
std::vector<TensorError> compare_all(const Tensors& actual, const NamedTensors& expected, at::ScalarType dtype, double limit = 0);
std::vector<TensorError> compare_all(const Tensors& actual, const Tensors& expected, at::ScalarType dtype, double limit = 0);

// Names in files of operator vectors and in reports: log_alpha and log_gamma are g, the clock is lambda, also behind initial_, final_ and
// d_. Other names are the same.
std::string vector_name(const std::string& name);
std::string name_of_vector(const std::string& stored);  // the way back; g is log_alpha

// The limit of rel_l2 for any backend, by the type of q, k and v: for stored vectors, and for kernels whose matrix products have bf16
// operands.
//
// fp32, fp64: 5e-5. Stored vectors were computed in fp32 and carry its error (1e-6 to 1e-5, measured with the double reference), so that no
// run can come nearer to them.
//
// bf16: .01. Rounding q, k, v and do to bf16 (unit 2^-9) costs .0014 to .0040 before a kernel has done anything, measured on the same
// vectors with everything else in fp32; products of bf16 operands add up to .007. The gradient of the clock, d_delta and d_initial_clock,
// is a small difference of large terms summed over the sequence, and gets .03. The clock itself is never rounded: 5e-5.
double error_limit(at::ScalarType dtype, std::string_view tensor);

// The limit of relative_l2 for backends that compute in fp32 or fp64, against the fp64 reference on the same inputs. Measured over the
// whole of tests_ops, which prints its figures: fp64 at most 4.4e-12 (d_delta; sums of gates of -1e3 in a chunk cost 1e-12, the rest is
// below 1e-13), fp32 at most 5.8e-7 for outputs and states, 1e-6 for gradients and 3.6e-6 for those of the clock, which are sums with
// cancellation. A result in bf16 differs by its rounding, at most 2^-8 = 3.9e-3.
inline constexpr double kLimitFp64 = 1e-10;
inline constexpr double kLimitFp32 = 5e-6;
inline constexpr double kLimitFp32Gradient = 2e-5;
inline constexpr double kLimitFp32Sum = 1e-4;  // d_log_gamma: a sum over all tokens, whose terms may cancel
inline constexpr double kLimitBf16 = 4e-3;
double limit_of(at::ScalarType case_dtype, const std::string& name, const at::Tensor& result);

}  // namespace cyfa::cases
