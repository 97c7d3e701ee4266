// Linear attention with at most one gate per token and head (la, fixed_scalar_gated_la, scalar_gated_la) on Hopper, chunk by chunk: what
// lies around the walk of walk_sm90.h. Several heads may share keys and queries: G groups of H / G heads. Then all values of a group are
// columns of one state, whose gates are gates of columns:
//   scale      bV (b: decay to the chunk's end), which the walk writes with the keys; in backward scale a dO (a: from its start)
//   walk       states S at the starts of the chunks; backward their gradients dS, at the ends
//   outputs    O = scale (D (Q K^T) V + a Q S), with D the decay between tokens of the chunk
//   gradients  dV = P^T dO + b K dS, dQ and dK summed over the heads of a group, and the gates' gradients
// Operands of products are bf16, their sums fp32. Gates are summed in double, and no exponent is positive. Called by
// cyfa/ops/recurrence/sm90_scalar.cc. No torch, no allocation, no atomics: equal calls give equal bits, and a sequence's results do not
// depend on the others in the call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::recurrence {

// Consecutive tokens of one sequence: rows of the caller's arrays.
struct ScalarLane {
  int64_t first, tokens;
};

// Vectors of bf16 in device memory: element (token, head, column) is at token * token_stride + head * head_stride + column. Aligned to 16
// bytes, strides are multiples of 8.
struct HeadRows {
  const void* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
};

// The sizes and inputs of a call. A lane begins at a chunk's start and has at most g chunks of C = kWalkChunk tokens; n = lanes * groups.
struct ScalarChunks {
  static constexpr int kMostLanes = 128;
  int32_t lanes = 0, g = 0, heads = 0, groups = 0, K = 0, V = 0;
  float scale = 1;
  const double* log_alpha = nullptr;  // [tokens, heads]; null: no gates
  ScalarLane lane[kMostLanes];
};

// Why there is no kernel for these sizes, in words for the user; null if there is one. Reads heads, groups, K and V.
const char* scalar_chunks_refusal(const ScalarChunks& p);

// Rows of queries and keys to chunks: bf16 [n, g, C, K], zeros after a lane's end.
cudaError_t scalar_chunks_of_keys_sm90(const ScalarChunks& p, const HeadRows& q, const HeadRows& k, void* q_chunks, void* k_chunks,
                                       cudaStream_t stream);

// x [tokens, heads, V] times b, or times scale a, to chunks: bf16 [n, g, C, heads / groups * V]. With `whole` also the decay over each
// chunk, fp32 [n, g, heads / groups * V], the same for all columns of a head.
enum class ScalarFactor { kToEnd, kFromStart };
cudaError_t scalar_chunks_scaled_sm90(const ScalarChunks& p, ScalarFactor factor, const HeadRows& x, void* chunks, float* whole,
                                      cudaStream_t stream);

// o [tokens, heads, V], bf16 and contiguous, from `states` [n, g, K, heads / groups * V], bf16.
cudaError_t scalar_chunks_outputs_sm90(const ScalarChunks& p, const void* q_chunks, const void* k_chunks, const HeadRows& v,
                                       const void* states, void* o, cudaStream_t stream);

struct ScalarGradients {
  const void *q_chunks = nullptr, *k_chunks = nullptr, *states = nullptr, *grad_states = nullptr;
  HeadRows v, grad_o;
  void* d_v = nullptr;           // [tokens, heads, V], bf16
  float* d_log_alpha = nullptr;  // [tokens, heads]; null: not computed
  // [scalar_chunks_parts(p), tokens, groups, K]: bf16 if that is one part, else fp32 parts, whose sum is the gradient.
  void *d_q = nullptr, *d_k = nullptr;
  int64_t tokens = 0;  // rows of the caller's arrays
};
int scalar_chunks_parts(const ScalarChunks& p);
cudaError_t scalar_chunks_gradients_sm90(const ScalarChunks& p, const ScalarGradients& grad, cudaStream_t stream);

}  // namespace cyfa::recurrence
