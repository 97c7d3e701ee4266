// The chunk-wise form of cyclic_flow (docs/operator.md) for fp32 on a CPU: one head of one sequence, segment by segment, with every
// intermediate of a chunk in the core's cache. Called by the portable backend (cyfa/ops/cyclic_flow/portable_cpu.cc), one head per thread.
// No torch, no threads, no allocation but that of a ChunkWorkspace.
#pragma once

#include <cstdint>
#include <memory>

#include "cyfa/kernels/cyclic_flow/cpu/chunk_rows.h"

namespace cyfa::cyclic_flow {

struct ChunkSizes {
  int64_t K = 0, V = 0, M = 0;
  int64_t C = 0;  // tokens of a chunk; the last one of a segment may have fewer
};

// The tokens of a segment of one head. Gates and clock are contiguous.
struct SegmentTokens {
  int64_t count = 0;
  TokenRows q, k, v;
  const double* log_alpha = nullptr;  // at most 0
  const double* clock = nullptr;      // after each token
  const float* beta = nullptr;
};

// What all tokens of a head share.
struct HeadParams {
  const float* table = nullptr;          // [M, M] R Phi; row m and column 1 are zero
  const float* q_norm_weight = nullptr;  // [K], times the scale; null: no norm
  const float* k_norm_weight = nullptr;  // [K] or null
  float scale = 1;                       // of q without a norm
  float norm_eps = 0;
};

// What forward writes. The states are advanced in place from the segment's start to its end.
struct SegmentOutputs {
  float* state_k = nullptr;  // [K, M]
  float* state_v = nullptr;  // [M, V]
  TokenRowsOut o;
  TokenRowsOut scores;  // [M] per token, for backward; without data they are not kept
};

struct SegmentGradients {
  // What backward reads beside the inputs.
  const float* state_k = nullptr;  // at the segment's start; null: zero
  const float* state_v = nullptr;
  TokenRows scores;  // of forward; without data they are computed again
  TokenRows o;       // gradient of o

  // Gradients of the states and of the clock, changed in place from those at the segment's end to those at its start.
  float* running_k = nullptr;  // [K, M]
  float* running_v = nullptr;  // [M, V]
  double* running_clock = nullptr;

  TokenRowsOut q, k, v;
  float* log_alpha = nullptr;  // [count]
  double* delta = nullptr;     // [count]
  float* beta = nullptr;       // [count]

  // Sums over tokens: the segment's is added.
  float* table = nullptr;          // [M, M]
  float* q_norm_weight = nullptr;  // [K], of the weight as it is applied; unused without a norm
  float* k_norm_weight = nullptr;
};

// Scratch memory of one thread. Its contents mean nothing between calls.
class ChunkWorkspace {
 public:
  // For forward_segment; with `tokens`, for backward_segment of segments of at most that many.
  explicit ChunkWorkspace(const ChunkSizes& sizes, int64_t tokens = 0);
  ~ChunkWorkspace();

  struct Arrays;
  const Arrays& arrays() const { return *arrays_; }
  const ChunkSizes& sizes() const { return sizes_; }

 private:
  ChunkSizes sizes_;
  std::unique_ptr<float[]> floats_;
  std::unique_ptr<double[]> doubles_;
  std::unique_ptr<Arrays> arrays_;
};

void forward_segment(const SegmentTokens& in, const HeadParams& head, const SegmentOutputs& out, const ChunkWorkspace& workspace);
void backward_segment(const SegmentTokens& in, const HeadParams& head, const SegmentGradients& grad, const ChunkWorkspace& workspace);

}  // namespace cyfa::cyclic_flow
