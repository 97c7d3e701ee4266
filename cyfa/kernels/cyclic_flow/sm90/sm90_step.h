// One token for a batch of states, in place, on a Hopper GPU: the decoding step of cyclic_flow as one launch. No torch, no allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::cyclic_flow {

enum class StepDtype { kFloat32, kBFloat16 };

// The mixer around the step, in the same launch, of a row of its projections: the short convolutions, the gates, and either the output's
// gate or the norm that it multiplies. Activations in bf16. Everything but x and, where it is read, gate is read while launches before it
// still run: it must have been written before the last one that did not begin early.
struct StepMixer {
  static constexpr int kMaxTaps = 4;
  const void* x = nullptr;  // [B, stride]: columns of q, k [H K each], v [H V], the gate's first factor [rank], a, b, d [H each]
  int64_t stride = 0, rank = 0, taps = 0;
  const float* conv[3] = {};       // [width, taps], the newest token's tap last
  const float* conv_bias[3] = {};  // [width] or null
  float* past[3] = {};             // [B, taps - 1, width], the newest last; moved on
  const float *dt_bias = nullptr, *A_log = nullptr, *b_bias = nullptr, *d_bias = nullptr;  // [H]; see rowwise::GatesCuda
  const void* gate_second =
      nullptr;                      // [H V, rank]: gate = gate_second x + gate_bias is written, for B up to kMaxGateRows; null: it is read,
  const void* gate_bias = nullptr;  // [H V]                                             and o is RMSNorm(o) * sigmoid(gate)
  void* gate = nullptr;             // [B, H V]
  const float* o_norm_weight = nullptr;  // [V], with a gate that is read
  float o_norm_eps = 0.0F;
  static constexpr int64_t kMaxGateRows = 16;
};

// Contiguous arrays in device memory. q, k, v and o are of `dtype`; everything else is as in StepParams of step.h.
struct StepCudaParams {
  int64_t B = 0, H = 0, K = 0, V = 0, M = 0;
  StepDtype dtype = StepDtype::kFloat32;
  StepDtype state_dtype = StepDtype::kFloat32;  // of state_k and state_v; sums are fp32 either way
  const void* q = nullptr;                      // [B, H, K]
  const void* k = nullptr;                      // [B, H, K]
  const void* v = nullptr;                      // [B, H, V]
  const float* log_alpha = nullptr;             // [B, H], at most 0
  const float* delta = nullptr;                 // [B, H]
  const float* beta = nullptr;                  // [B, H]
  const float* readout_table = nullptr;         // [H, M, M]: R Phi in stored order, rows m.. zero, column 1 zero
  const float* q_norm_weight = nullptr;         // [K]; null: q is used as it comes
  const float* k_norm_weight = nullptr;         // [K]; null: k is used as it comes
  float scale = 1.0F;
  float norm_eps = 1e-6F;
  void* state_k = nullptr;           // [B, H, K, M], updated
  void* state_v = nullptr;           // [B, H, M, V], updated
  double* clock = nullptr;           // [B, H], updated
  void* o = nullptr;                 // [B, H, V], written
  const StepMixer* mixer = nullptr;  // on the host; null: q, k, v, log_alpha, delta and beta come ready
  int cluster = 0;                   // blocks that share a head, 1, 2, 4 or 8; 0: chosen from the batch; changes no bit
};

// Why there is no kernel for these parameters, in words for the user; null if there is one.
const char* step_cuda_refusal(const StepCudaParams& p);

// Blocks per head that step_cuda will use; 0 if it refuses.
int step_cuda_cluster(const StepCudaParams& p);

// Queues the step on `stream`. cudaErrorInvalidValue, and nothing queued, where step_cuda_refusal gives a reason.
cudaError_t step_cuda(const StepCudaParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
