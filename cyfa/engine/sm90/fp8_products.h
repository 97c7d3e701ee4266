// Matrix products of training in fp8: y = x w^T with x and w in e4m3, and the products of backward with the gradient of y in e5m2. Each
// matrix has one scale, which follows from its own largest value and stays on the device. Results are bf16, gradients of weights fp32, and
// the products are cuBLASLt's. It multiplies rows by rows only, so a matrix that backward contracts along its rows is kept transposed.
#pragma once

#include <string>

#include "cyfa/engine/sm90/fused_weights.h"

namespace cyfa::fused {

// The type of TrainOptions::compute for these products.
constexpr at::ScalarType kFp8 = at::kFloat8_e4m3fn;
constexpr at::ScalarType kFp8Gradient = at::kFloat8_e5m2;

// A matrix [R, C] in fp8. Rows are filled with zeros to a multiple of 16.
struct Fp8Matrix {
  at::Tensor codes;       // [R, C, filled]
  at::Tensor transposed;  // [C, R, filled]
  at::Tensor inverse;     // fp32 [1]: an element is its code times this
};

enum class Fp8Copies { kCodes, kTransposed, kBoth };

// A bf16 matrix, whose rows may be part of longer ones, in e4m3 or e5m2. If an element is not finite, all are NaN.
Fp8Matrix cast_fp8(const at::Tensor& x, at::ScalarType type, Fp8Copies copies);
// The same into the tensors of `to` that are defined; rows of x from `transposed_rows` on are zeros in `transposed`.
void cast_fp8_to(const at::Tensor& x, at::ScalarType type, int64_t transposed_rows, const Fp8Matrix& to);

// A weight [out, in] of which fp8 products are computed.
struct Fp8Weight {
  at::Tensor value;   // bf16
  int64_t rows;       // forward multiplies by the rows before this one
  int64_t felt;       // gradients of the input come from the rows before this one
  Fp8Matrix cast;     // of `value`, with zeros from row `felt` on in `transposed`
  bool first = true;  // no gradient of this step has been written

  // Converts the current value. Must be called once per step, before the weight's products.
  void begin_step();
};

// Why these products cannot be in fp8; empty if they can.
std::string fp8_refusal(int64_t rows, int64_t in);
std::shared_ptr<Fp8Weight> fp8_weight(const at::Tensor& value, int64_t rows, int64_t felt);

// out [R, w.rows] = x w^T. The rows of `out` may be part of longer ones.
void fp8_product(const Fp8Matrix& x, const Fp8Weight& w, const at::Tensor& out);
// The gradient of x in bf16, [R, in], from that of x w^T.
at::Tensor fp8_input_gradient(const Fp8Matrix& grad, const Fp8Weight& w);
// Adds the gradient of the weight, to which only the transposed matrices contribute, to w.grad. The first call in a step overwrites it.
void fp8_add_weight_gradient(const Fp8Matrix& grad, const Fp8Matrix& x, const Accumulated& w);

}  // namespace cyfa::fused
