// The chunk-wise form of the recurrences on one segment of chunks, as matrix products. Everything is batched over n = lanes * heads and g
// chunks of C tokens: q, k are [n, g, C, K], v, o are [n, g, C, V], all of one type.
#pragma once

#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {

// The inputs of a segment.
struct SegmentInputs {
  at::Tensor q;  // times the scale
  at::Tensor k, v;
  at::Tensor log_alpha;  // [n, g, C] in double for a scalar gate and for none (zeros; undefined for a delta rule); else [n, g, C, K or V]
  at::Tensor beta;       // [n, g, C, 1]; undefined: no delta rule
};

// Gradients of the inputs of a segment.
struct SegmentGradients {
  at::Tensor q, k, v, log_alpha, beta;  // log_alpha [n, g, C, gates] or [n, g, C]; beta [n, g, C, 1]
};

// Forward and backward of one segment.
struct SegmentPass {
  // Returns o. `state` [n, K, V] is advanced in place from the segment's start to its end.
  at::Tensor (*forward)(const Recurrence& r, const SegmentInputs& in, const at::Tensor& state);
  // `state` [n, K, V] is the state at the segment's start and is overwritten. `grad_state` is propagated in place from the segment's end to
  // its start.
  SegmentGradients (*backward)(const Recurrence& r, const SegmentInputs& in, const at::Tensor& state, const at::Tensor& grad_o,
                               const at::Tensor& grad_state);
};

// An op by its segments. `settings.size` says how sequences are divided, and so the shape of the states at segment starts, one tensor
// [rows, H, K, V], that forward saves for backward. The results of backward follow RecurrenceBackend.
std::vector<at::Tensor> empty_segment_states(const at::TensorOptions& q, const RecurrenceSizes& s, const RecurrenceSettings& settings);
RecurrenceForward forward_by_segments(const Recurrence& r, const SegmentPass& pass, const RecurrenceInputs& in,
                                      const RecurrenceSettings& settings);
RecurrenceGradients backward_by_segments(const Recurrence& r, const SegmentPass& pass, const RecurrenceInputs& in,
                                         const RecurrenceSettings& settings, at::TensorList saved, const at::Tensor& grad_o,
                                         const at::Tensor& grad_final);

extern const SegmentPass kScalarPass;  // one gate per token, or none
extern const SegmentPass kRowPass;     // a gate per key dimension
extern const SegmentPass kColumnPass;  // a gate per value dimension
extern const SegmentPass kDeltaPass;   // the delta rules, with no gate, one per token or one per key dimension

}  // namespace cyfa::ops
