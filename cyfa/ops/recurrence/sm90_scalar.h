// The sm90 backend's passes for linear attention without a gate or with one per token and head, in which groups of heads may share keys
// (cyfa/kernels/recurrence/sm90/scalar_chunks_sm90.h). Inputs are read, and results written, where the caller has them.
#pragma once

#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {

// Why these kernels do not take the op or its inputs, which are bf16 on Hopper; empty if they do.
std::string scalar_chunks_refusal(const Recurrence& r, const RecurrenceInputs& in);

RecurrenceForward scalar_chunks_forward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings);
RecurrenceGradients scalar_chunks_backward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings,
                                           at::TensorList saved, const at::Tensor& grad_o, const at::Tensor& grad_final);

}  // namespace cyfa::ops
