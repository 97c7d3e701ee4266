// Backward of cyclic_flow on Hopper for bf16 inputs: parameters, workspace and launch. No torch, no allocation.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_forward.h"

namespace cyfa::cyclic_flow {

// Device memory. Gradients of token arrays are [T, H, ...] without gaps.
struct Sm90BackwardParams {
  Sm90ForwardParams in;                 // of forward, with what it kept; o, the final states and the workspace are not looked at
  const void* grad_o = nullptr;         // [T, H, V] bf16
  const float* grad_final_k = nullptr;  // [N, H, K, M] or null, and so on
  const float* grad_final_v = nullptr;
  const double* grad_final_clock = nullptr;
  void* d_q = nullptr;           // [T, H, K] bf16; holds gradients of states in between
  void* d_k = nullptr;           // [T, H, K] bf16; the slot weights and the scores' gradients
  void* d_v = nullptr;           // [T, H, V] bf16; gradients of states
  float* d_log_alpha = nullptr;  // [T, H]
  float* d_delta = nullptr;
  float* d_beta = nullptr;
  float* d_readout = nullptr;        // [H, m, m]
  float* d_q_norm_weight = nullptr;  // [K]; null exactly where the weight is
  float* d_k_norm_weight = nullptr;
  float* d_initial_k = nullptr;  // [N, H, K, M] or null
  float* d_initial_v = nullptr;
  double* d_initial_clock = nullptr;
  void* workspace = nullptr;  // sm90_backward_workspace bytes
};

int64_t sm90_backward_workspace(const Sm90BackwardParams& p);
const char* sm90_backward_refusal(const Sm90BackwardParams& p);
cudaError_t sm90_backward(const Sm90BackwardParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
