// The decoding step for the published sizes, K = V = 256 and M = 128 (sm90_step_held.cu). Used by sm90_step.cu only.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"

namespace cyfa::cyclic_flow {

// Whether p has the published sizes.
bool step_held_serves(const StepCudaParams& p);

// Like step_cuda, which has checked p. `blocks` is the cluster size.
cudaError_t step_held(const StepCudaParams& p, int blocks, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
