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

// Sequence borders of a packed batch, [N + 1] integers on the CPU or beside q: all that can be said without reading them.
void borders(const char* op, const at::Tensor& cu_seqlens, int64_t B, at::Device device);
// Their values, on the host: from 0 to T, never decreasing.
std::vector<int64_t> sequence_offsets(const char* op, const at::Tensor& cu_seqlens, int64_t T);

void widths(const char* op, int64_t H, int64_t K, int64_t V);  // at least 1 each
void scale(const char* op, double scale);                      // finite
void norm_eps(const char* op, double norm_eps);                // at least 0

// Gates on a CPU are scanned for NaN and positive values (one pass over [B, T, H]); on a GPU that would cost a
// synchronisation, so NaN there goes on to the output, and a positive gate lets the state grow.
void log_alpha(const char* op, const at::Tensor& log_alpha, const char* name = "log_alpha");

}  // namespace check
}  // namespace cyfa::ops
