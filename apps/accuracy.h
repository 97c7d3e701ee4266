// Error limits and comparisons of the op cases, under the commands' namespace.
#pragma once

#include "cyfa/ops/cases/accuracy.h"

namespace cyfa::app {

using cases::compare;
using cases::compare_all;
using cases::TensorError;

}  // namespace cyfa::app
