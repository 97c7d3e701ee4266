// The recurrences of cyfa/ops/recurrence/recurrence.h on one segment of chunks, as matrix products. Everything is batched over n = lanes *
// heads and g chunks of C tokens: q, k are [n, g, C, K], v, o are [n, g, C, V], all of one type.
#pragma once

#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {

struct SegmentInputs {
  at::Tensor q;  // times the scale
  at::Tensor k, v;
  at::Tensor log_alpha;  // [n, g, C] in double for a scalar and for none (zeros; undefined for a delta rule); [n, g, C, K or V] else
  at::Tensor beta;       // [n, g, C, 1]; undefined: no delta rule
};

struct SegmentGradients {
  at::Tensor q, k, v, log_alpha, beta;  // log_alpha [n, g, C, gates] or [n, g, C]; beta [n, g, C, 1]
};

// o. `state` [n, K, V] goes from the segment's start to its end, in place.
at::Tensor segment_forward(const Recurrence& r, const SegmentInputs& in, const at::Tensor& state);

// `state` [n, K, V] is that at the segment's start, and is used up; `grad_state` goes from the segment's end to its start, in place.
SegmentGradients segment_backward(const Recurrence& r, const SegmentInputs& in, const at::Tensor& state, const at::Tensor& grad_o,
                                  const at::Tensor& grad_state);

}  // namespace cyfa::ops
