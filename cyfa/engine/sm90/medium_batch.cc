#include "cyfa/engine/sm90/medium_batch.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/dense/gemm64_sm90.h"

namespace cyfa::fused {
namespace {

using dense::Gemm64;
using dense::Gemm64Output;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

bool plain(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 && x.is_contiguous(); }

// x weight^T, with x [rows, in]; the columns of x have stride 1.
Gemm64 product(const at::Tensor& x, const at::Tensor& weight, Gemm64Output output) {
  Gemm64 p;
  p.output = output;
  p.rows = x.size(0);
  p.in = x.size(1);
  p.out = output == Gemm64Output::kSwiglu ? weight.size(0) / 2 : weight.size(0);
  p.weight = weight.const_data_ptr();
  p.x = x.const_data_ptr();
  p.x_stride = x.stride(0);
  return p;
}

// norm(rows) weight^T.
Gemm64 normed_product(const NormedRows& rows, const at::Tensor& weight, Gemm64Output output) {
  Gemm64 p = product(rows.scaled, weight, output);
  p.squares = rows.squares.const_data_ptr<float>();
  p.parts = rows.squares.size(0);
  p.eps = static_cast<float>(rows.eps);
  return p;
}

dense::Normable normable(const NormedRows& rows) {
  return {rows.scaled.mutable_data_ptr(), rows.squares.mutable_data_ptr<float>(), rows.squares.size(0)};
}

at::Tensor squares(const at::Tensor& x, int64_t parts) { return at::empty({parts, dense::kMaxGemm64Rows}, x.options().dtype(at::kFloat)); }

const char* refusal(const Gemm64& p, const at::Tensor& weight) {
  return plain(weight) ? dense::gemm64_refusal(p) : "a matrix is not bf16 and contiguous";
}

void queue(Gemm64 p, const at::Tensor& y) {
  p.y = y.mutable_data_ptr();
  C10_CUDA_CHECK(dense::gemm64_cuda(p, stream()));
}

// Adds a product to the residual stream and prepares it for the norm `next`.
void queue_add(Gemm64 p, NormedRows& rows, const StepNorm& next) {
  rows = {rows.x, at::empty_like(rows.x), squares(rows.x, dense::gemm64_parts(p.in, p.out)), next.eps};
  p.next_weight = next.weight.const_data_ptr<float>();
  p.next = normable(rows);
  queue(p, rows.x);
}

}  // namespace

const char* medium_batch_refusal(const at::Tensor& x) {
  // A SwiGLU of wider rows does not fit in shared memory, and mixing these products with cuBLAS is slower (800M model at batch 64: 2.73
  // instead of 2.66 ms per step).
  constexpr int64_t kWidest = 1024;
  if (x.size(0) > dense::kMaxGemm64Rows) return "more than 64 sequences";
  if (x.size(1) > kWidest) return "hidden_size is above 1,024";
  if (x.size(1) % 64 != 0) return "hidden_size is not a multiple of 64";
  return plain(x) ? nullptr : "activations are not bf16 and contiguous";
}

NormedRows begin_rows(const at::Tensor& x, const StepNorm& next) {
  const c10::cuda::CUDAGuard guard(x.device());
  NormedRows rows{x, at::empty_like(x), squares(x, 1), next.eps};
  C10_CUDA_CHECK(
      dense::gemm64_begin(x.const_data_ptr(), x.size(0), x.size(1), next.weight.const_data_ptr<float>(), normable(rows), stream()));
  return rows;
}

const char* add_flow_rows(NormedRows& rows, const FlowStep& f, const StepNorm& next) {
  const c10::cuda::CUDAGuard guard(rows.x.device());
  const at::Tensor y = at::empty({rows.x.size(0), f.w.projection.value.size(0)}, rows.x.options());
  const at::Tensor gate = at::empty({rows.x.size(0), f.o_proj.size(1)}, rows.x.options());
  const Gemm64 first = normed_product(rows, f.w.projection.value, Gemm64Output::kStore);
  Gemm64 of_gate = product(gate_input(y, f.w), f.w.gate_second.value, Gemm64Output::kStore);
  of_gate.bias = f.w.gate_bias.const_data_ptr();
  Gemm64 last = product(gate, f.o_proj, Gemm64Output::kAdd);
  if (const char* why = refusal(first, f.w.projection.value)) return why;
  if (const char* why = refusal(of_gate, f.w.gate_second.value)) return why;
  if (const char* why = refusal(last, f.o_proj)) return why;
  if (const char* why = flow_step_refusal(rows.x, f)) return why;
  queue(first, y);
  queue(of_gate, gate);
  const at::Tensor o = flow_step_of(y, gate, f);
  last.x = o.const_data_ptr();
  queue_add(last, rows, next);
  return nullptr;
}

const char* add_swiglu_rows(NormedRows& rows, const at::Tensor& gate_and_up, const at::Tensor& down, const StepNorm& next) {
  const c10::cuda::CUDAGuard guard(rows.x.device());
  const at::Tensor wide = at::empty({rows.x.size(0), down.size(1)}, rows.x.options());
  const Gemm64 first = normed_product(rows, gate_and_up, Gemm64Output::kSwiglu), last = product(wide, down, Gemm64Output::kAdd);
  if (const char* why = refusal(first, gate_and_up)) return why;
  if (const char* why = refusal(last, down)) return why;
  queue(first, wide);
  queue_add(last, rows, next);
  return nullptr;
}

}  // namespace cyfa::fused
