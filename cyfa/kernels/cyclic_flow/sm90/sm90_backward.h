// Backward of cyclic_flow on Hopper for bf16 inputs: parameters, workspace and entry points. Called by the sm90 backend
// (cyfa/ops/cyclic_flow/sm90.cc). No torch, no allocation.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_forward.h"

namespace cyfa::cyclic_flow {

// Device pointers. Gradients of token arrays are contiguous [T, H, ...].
struct Sm90BackwardParams {
  Sm90ForwardParams in;                 // forward's parameters and kept results; o, final states and workspace are not read
  const void* grad_o = nullptr;         // [T, H, V] bf16
  const float* grad_final_k = nullptr;  // [N, H, K, M] or null; the next two likewise
  const float* grad_final_v = nullptr;
  const double* grad_final_clock = nullptr;
  void* d_q = nullptr;           // [T, H, K] bf16; holds dS_K' in between
  void* d_k = nullptr;           // [T, H, K] bf16; holds dY~ and U in between
  void* d_v = nullptr;           // [T, H, V] bf16; holds dS_V' in between
  float* d_log_alpha = nullptr;  // [T, H]
  float* d_delta = nullptr;
  float* d_beta = nullptr;
  float* d_readout = nullptr;        // [H, m, m]
  float* d_q_norm_weight = nullptr;  // [K]; null exactly if the weight is null
  float* d_k_norm_weight = nullptr;
  float* d_initial_k = nullptr;  // [N, H, K, M] or null
  float* d_initial_v = nullptr;
  double* d_initial_clock = nullptr;
  void* workspace = nullptr;  // of sm90_backward_workspace() bytes
};

// Size of the workspace in bytes. p.workspace is not read.
int64_t sm90_backward_workspace(const Sm90BackwardParams& p);
// Why the kernels do not support these parameters, or null if they do.
const char* sm90_backward_refusal(const Sm90BackwardParams& p);
// Enqueues backward on `stream`. Overwrites all d_* arrays and the workspace. cudaErrorInvalidValue if refused or if there are no tiles.
cudaError_t sm90_backward(const Sm90BackwardParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
