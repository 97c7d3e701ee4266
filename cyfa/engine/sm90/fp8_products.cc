#include "cyfa/engine/sm90/fp8_products.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/fp8/fp8_cuda.h"

namespace cyfa::fused {
namespace {

// Hopper's fp8 products round sums to fewer bits than fp32 has. cuBLASLt moves them to fp32 registers every few steps along the contracted
// dimension, or, with fast accumulation, only at the end. An activation's error is dominated by the rounding of its factors; gradients of
// weights are sums over all tokens.
constexpr bool kFastForward = true, kFastInputGradient = false, kFastWeightGradient = false;

// out = (a a_inverse) (b b_inverse)^T
void product(const at::Tensor& a, const at::Tensor& a_inverse, const at::Tensor& b, const at::Tensor& b_inverse, bool fast,
             const at::Tensor& out) {
  at::Tensor to = out;
  at::_scaled_mm_out(to, a, b.t(), a_inverse, b_inverse, {}, {}, out.scalar_type(), fast);
}

}  // namespace

void cast_fp8_to(const at::Tensor& x, at::ScalarType type, int64_t transposed_rows, const Fp8Matrix& to) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor parts = at::empty({fp8::kParts}, x.options().dtype(at::kInt));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  const auto written = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
  fp8::CastCuda p;
  p.format = type == kFp8 ? fp8::Format::kE4M3 : fp8::Format::kE5M2;
  p.rows = x.size(0);
  p.width = x.size(1);
  p.stride = x.stride(0);
  p.x = x.const_data_ptr();
  p.parts = reinterpret_cast<uint32_t*>(parts.data_ptr<int>());
  p.codes = written(to.codes);
  p.transposed = written(to.transposed);
  p.transposed_rows = transposed_rows;
  p.inverse = to.inverse.data_ptr<float>();
  C10_CUDA_CHECK(fp8::largest_cuda(p, stream));
  C10_CUDA_CHECK(fp8::cast_cuda(p, stream));
}

Fp8Matrix cast_fp8(const at::Tensor& x, at::ScalarType type, Fp8Copies copies) {
  const int64_t rows = x.size(0), width = x.size(1);
  const auto options = x.options().dtype(type);
  Fp8Matrix out;
  if (copies != Fp8Copies::kTransposed) out.codes = at::empty({rows, fp8::filled(width)}, options);
  if (copies != Fp8Copies::kCodes) out.transposed = at::empty({width, fp8::filled(rows)}, options);
  out.inverse = at::empty({1}, x.options().dtype(at::kFloat));
  cast_fp8_to(x.stride(1) == 1 ? x : x.contiguous(), type, rows, out);
  return out;
}

void Fp8Weight::begin_step() {
  cast_fp8_to(value, kFp8, felt, cast);
  first = true;
}

std::string fp8_refusal(int64_t rows, int64_t in) {
  if (rows % fp8::kFill == 0 && in % fp8::kFill == 0) return {};
  return "a matrix of " + std::to_string(rows) + " x " + std::to_string(in) + " has a side that is not a multiple of 16";
}

std::shared_ptr<Fp8Weight> fp8_weight(const at::Tensor& value, int64_t rows, int64_t felt) {
  const auto empty = [&](int64_t r, int64_t c, at::ScalarType type) { return at::empty({r, c}, value.options().dtype(type)); };
  const int64_t out = value.size(0), in = value.size(1);
  const at::Tensor inverse = at::empty({1}, value.options().dtype(at::kFloat));
  const Fp8Matrix cast{empty(out, fp8::filled(in), kFp8), empty(in, fp8::filled(out), kFp8), inverse};
  return std::make_shared<Fp8Weight>(Fp8Weight{value, rows, felt, cast});
}

void fp8_product(const Fp8Matrix& x, const Fp8Weight& w, const at::Tensor& out) {
  product(x.codes, x.inverse, w.cast.codes.narrow(0, 0, w.rows), w.cast.inverse, kFastForward, out);
}

at::Tensor fp8_input_gradient(const Fp8Matrix& grad, const Fp8Weight& w) {
  at::Tensor out = at::empty({grad.codes.size(0), w.value.size(1)}, w.value.options());
  product(grad.codes, grad.inverse, w.cast.transposed, w.cast.inverse, kFastInputGradient, out);
  return out;
}

void fp8_add_weight_gradient(const Fp8Matrix& grad, const Fp8Matrix& x, const Accumulated& w) {
  const bool first = std::exchange(w.fp8->first, false);
  const at::Tensor out = first ? w.grad : at::empty_like(w.grad);
  product(grad.transposed, grad.inverse, x.transposed, x.inverse, kFastWeightGradient, out);
  if (!first) w.grad.add_(out);
}

}  // namespace cyfa::fused
