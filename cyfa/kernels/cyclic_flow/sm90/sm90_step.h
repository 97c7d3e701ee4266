// The decoding step of cyclic_flow on a Hopper GPU as one launch: one token for a batch of states, updated in place. Called by
// cyclic_flow_step (cyfa/ops/cyclic_flow/step_sm90.cc) and the decoding engine (cyfa/engine/sm90/decode_step.cc). No torch, no allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::cyclic_flow {

enum class StepDtype { kFloat32, kBFloat16 };

// The mixer around the step, fused into the same launch: short convolutions and gates from a row of the projections, and either the output
// gate or the gated norm. Activations are bf16. Everything except x and, if it is read, gate is read before the launch waits for the
// preceding one (programmatic dependent launch). It must have been written before the most recent launch that is not such a dependent
// launch.
struct StepMixer {
  static constexpr int kMaxTaps = 4;
  const void* x = nullptr;  // [B, stride], columns of ProjectionLayout
  int64_t stride = 0, rank = 0, taps = 0;
  const float* conv[3] = {};       // [width, taps], the newest token's tap last
  const float* conv_bias[3] = {};  // [width] or null
  float* past[3] = {};             // [B, taps - 1, width] past inputs, newest last; updated
  const float *dt_bias = nullptr, *A_log = nullptr, *b_bias = nullptr, *d_bias = nullptr;  // [H]; see rowwise::GatesCuda
  // [H V, rank]. If given, gate = gate_second x + gate_bias is written, for B up to kMaxGateRows. If null, gate is read and o is RMSNorm(o)
  // * sigmoid(gate).
  const void* gate_second = nullptr;
  const void* gate_bias = nullptr;       // [H V]
  void* gate = nullptr;                  // [B, H V]
  const float* o_norm_weight = nullptr;  // [V], if gate is read
  float o_norm_eps = 0.0F;
  static constexpr int64_t kMaxGateRows = 16;
};

// Contiguous device arrays. q, k, v and o have type `dtype`; everything else is as in StepParams (cpu/cpu_step.h).
struct StepCudaParams {
  int64_t B = 0, H = 0, K = 0, V = 0, M = 0;
  StepDtype dtype = StepDtype::kFloat32;
  StepDtype state_dtype = StepDtype::kFloat32;  // of state_k and state_v; accumulation is fp32 either way
  const void* q = nullptr;                      // [B, H, K]
  const void* k = nullptr;                      // [B, H, K]
  const void* v = nullptr;                      // [B, H, V]
  const float* log_alpha = nullptr;             // [B, H], at most 0
  const float* delta = nullptr;                 // [B, H]
  const float* beta = nullptr;                  // [B, H]
  const float* readout_table = nullptr;         // [H, M, M]: R Phi in stored order; rows from m on and column 1 are zero
  const float* q_norm_weight = nullptr;         // [K]; null: q is not normalised
  const float* k_norm_weight = nullptr;         // [K]; null: k is not normalised
  float scale = 1.0F;
  float norm_eps = 1e-6F;
  void* state_k = nullptr;           // [B, H, K, M], updated
  void* state_v = nullptr;           // [B, H, M, V], updated
  double* clock = nullptr;           // [B, H], updated
  void* o = nullptr;                 // [B, H, V], written
  const StepMixer* mixer = nullptr;  // host pointer; null: q, k, v, log_alpha, delta and beta are given
  int cluster = 0;                   // blocks per head: 1, 2, 4 or 8; 0: chosen from the batch; does not affect results
};

// Why there is no kernel for these parameters, as a message for the user; null if there is one.
const char* step_cuda_refusal(const StepCudaParams& p);

// Blocks per head that step_cuda will use; 0 if refused.
int step_cuda_cluster(const StepCudaParams& p);

// Enqueues the step on `stream`. Returns cudaErrorInvalidValue and enqueues nothing if step_cuda_refusal gives a reason.
cudaError_t step_cuda(const StepCudaParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
