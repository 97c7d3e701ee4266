// Errors of the ops: each names the op, the argument, what came and what was wanted.
#pragma once

#include <torch/types.h>

#include <string>

namespace cyfa::ops {

// Thrown for every bad argument; nothing has been written when it is.
class ArgumentError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace check {

// "cyclic_flow: q has shape [2, 3], wanted [B, T, H, K] = ..."
[[noreturn]] void fail(const char* op, const std::string& what);

// A letter per dimension beside its wanted size; -1 leaves a size free.
struct Dim {
  const char* letter;
  int64_t size;
};
void shape(const char* op, const char* name, const at::Tensor& x, std::initializer_list<Dim> wanted);

void floating(const char* op, const char* name, const at::Tensor& x);  // fp64, fp32 or bf16
void same_dtype(const char* op, const char* name, const at::Tensor& x, const char* other_name, at::ScalarType wanted);
void same_device(const char* op, const char* name, const at::Tensor& x, const char* other_name, at::Device wanted);

// Sequence borders of a packed batch: [N + 1] integers from 0 to T that never decrease. Returned on the host.
std::vector<int64_t> sequence_offsets(const char* op, const at::Tensor& cu_seqlens, int64_t B, int64_t T);

// Gates on a CPU are scanned for NaN and positive values (one pass over [B, T, H]); on a GPU that would cost a
// synchronisation, so a bad gate there shows as NaN in the output.
void log_alpha(const char* op, const at::Tensor& log_alpha);

}  // namespace check
}  // namespace cyfa::ops
