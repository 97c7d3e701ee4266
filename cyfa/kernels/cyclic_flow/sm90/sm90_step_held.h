// The decoding step of the published sizes, K = V = 256 and M = 128: of step.cu.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"

namespace cyfa::cyclic_flow {

bool step_held_serves(const StepCudaParams& p);

// As step_cuda, which has checked p; blocks: of a cluster.
cudaError_t step_held(const StepCudaParams& p, int blocks, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
