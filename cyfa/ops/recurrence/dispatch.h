// A recurrence's call through torch's dispatcher and autograd, so that C++, Python and torch.compile take one path.
#pragma once

#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {

// Inputs and backend have been checked.
RecurrenceOutput dispatch_recurrence(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, Backend backend);

}  // namespace cyfa::ops
