// The decoding step of cyclic_flow on a CPU (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout): one token for a batch of states,
// updated in place. Called by the op cyclic_flow_step for CPU tensors. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

#include "cyfa/kernels/cpu/isa.h"

namespace cyfa::cyclic_flow {

// Inputs are one token's rows, contiguous [B, H, ...]; states are contiguous [B, H, K, M], [B, H, M, V] and [B, H].
struct StepParams {
  int64_t B = 0, H = 0, K = 0, V = 0, M = 0;
  const float* q = nullptr;              // [B, H, K]
  const float* k = nullptr;              // [B, H, K]
  const float* v = nullptr;              // [B, H, V]
  const float* log_alpha = nullptr;      // [B, H], at most 0
  const float* delta = nullptr;          // [B, H]
  const float* beta = nullptr;           // [B, H]
  const float* readout_table = nullptr;  // [H, M, M]: R Phi in stored order; rows from m on and column 1 are zero
  const float* q_norm_weight = nullptr;  // [K] or null
  const float* k_norm_weight = nullptr;  // [K] or null
  float scale = 1.0F;
  float norm_eps = 1e-6F;
  float* state_k = nullptr;  // [B, H, K, M], updated
  float* state_v = nullptr;  // [B, H, M, V], updated
  double* clock = nullptr;   // [B, H], updated
  float* o = nullptr;        // [B, H, V], written
};

using cpu::best_isa;
using cpu::Isa;
using cpu::isa_name;

// Number of floats of scratch memory that one call needs. The caller owns it; each thread needs its own.
int64_t step_workspace_floats(const StepParams& p);

// Steps the heads of pairs begin .. end - 1, where pair = h * B + b, so consecutive states share one head's readout table. Overwrites
// state_k, state_v, clock and o of these heads, and the workspace. Throws std::invalid_argument if `isa` is not available on this CPU.
void step_cpu(const StepParams& p, int64_t begin, int64_t end, float* workspace, Isa isa);

}  // namespace cyfa::cyclic_flow
