// The sampling options in the form in which the samplers of all devices use them.
#pragma once

#include "cyfa/decode/sampler.h"
#include "cyfa/kernels/sampling/sampling.h"

namespace cyfa {

// Checks the options.
sampling::Rule sampling_rule(const SamplingOptions& options);

}  // namespace cyfa
