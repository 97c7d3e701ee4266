// Argument checks of the ops. Each error names the op, the argument, what was passed and what was expected.
#pragma once

#include <torch/types.h>

#include <string>

namespace cyfa::ops {

// Thrown for every invalid argument, before anything is written.
class ArgumentError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace check {

// Throws ArgumentError with a message like "cyclic_flow: q has shape [2, 3], wanted [B, T, H, K] = ...".
[[noreturn]] void fail(const char* op, const std::string& what);

// A dimension: its letter in messages and its size; -1 allows any size.
struct Dim {
  const char* letter;
  int64_t size;
};
// Throws unless x is defined and has these dimensions.
void shape(const char* op, const char* name, const at::Tensor& x, std::initializer_list<Dim> wanted);

void floating(const char* op, const char* name, const at::Tensor& x);  // fp64, fp32 or bf16
// other_name: the argument that determines the wanted type or device.
void same_dtype(const char* op, const char* name, const at::Tensor& x, const char* other_name, at::ScalarType wanted);
void same_device(const char* op, const char* name, const at::Tensor& x, const char* other_name, at::Device wanted);

// The tensors that a backward gets, which through the dispatcher may come from anywhere. Throws unless they are as many as `wanted`, have
// its shapes and types (its device does not matter) and are on `device`. A gradient may be undefined or strided; what forward saved may
// not.
void saved(const char* op, at::TensorList saved, at::TensorList wanted, at::Device device);
void gradients(const char* op, at::TensorList gradients, at::TensorList wanted, at::Device device);

// The cu_seqlens of a packed batch: [N + 1] integers on the CPU or on q's device, with B = 1. Checks everything that does not need the
// values.
void borders(const char* op, const at::Tensor& cu_seqlens, int64_t B, at::Device device);
// The values of cu_seqlens on the host; throws unless they start at 0, never decrease and end at T. Synchronises if they are on a GPU.
std::vector<int64_t> sequence_offsets(const char* op, const at::Tensor& cu_seqlens, int64_t T);

void widths(const char* op, int64_t H, int64_t K, int64_t V);  // at least 1 each
void scale(const char* op, double scale);                      // finite
void norm_eps(const char* op, double norm_eps);                // at least 0

// Checks gates on a CPU for NaN and positive values, in one pass over [B, T, H]. On a GPU the check would cost a synchronisation and is
// skipped: NaN then propagates to the output, and a positive value makes the state grow.
void log_alpha(const char* op, const at::Tensor& log_alpha, const char* name = "log_alpha");

}  // namespace check
}  // namespace cyfa::ops
