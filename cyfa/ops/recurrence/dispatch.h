// Calls a recurrence through torch's dispatcher and autograd, so that C++, Python and torch.compile share one path.
#pragma once

#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {

// Requires checked inputs and a backend that supports them.
RecurrenceOutput dispatch_recurrence(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, Backend backend);

}  // namespace cyfa::ops
