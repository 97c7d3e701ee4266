// Tensors that a step updates in place, treated as torch's own in-place operations treat theirs. Used by every step.
//
//   check::written(kOp, {{"state", state}}, {{"q", q}, {"k", k}});   // before anything is written
//   mark_written(kOp, {state});
#pragma once

#include <torch/types.h>

#include <vector>

namespace cyfa::ops {

// An argument and its name in messages. The tensor may be undefined.
struct NamedTensor {
  const char* name;
  at::Tensor x;
};

namespace check {

// Throws ArgumentError if a tensor of `written` is a leaf (or a view of one) that requires a gradient while gradients are recorded, if two
// of its own elements share memory, or if it shares memory with another tensor of `written` or one of `read`.
void written(const char* op, const std::vector<NamedTensor>& written, const std::vector<NamedTensor>& read);

}  // namespace check

// Tells autograd that these tensors change: a backward that needs their old values throws, and so does a gradient that would pass through
// the change. Kernels write through pointers, which torch does not see.
void mark_written(const char* op, const std::vector<at::Tensor>& written);

}  // namespace cyfa::ops
