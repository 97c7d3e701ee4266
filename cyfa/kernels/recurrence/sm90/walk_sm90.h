// The sequential part of the chunk-wise recurrences on Hopper: the walk of a state S [K, V] through the chunks of a sequence, in one
// launch. Everything else in a chunk-wise pass is batched over all chunks (cyfa/ops/recurrence/sm90.cc, the only caller). Per chunk,
// in walking order:
//   states = S                            the state on entering the chunk, rounded to bf16
//   x      = base + read S                if `read` is given (the delta rules), else x = base
//   S      = decay S + write^T x + write2^T x2
// S is kept in fp32; the operands of the products are bf16, their sums fp32. Walking forward computes the states, walking backward their
// gradients. No torch, no allocation; arrays are in device memory, contiguous, aligned to 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::recurrence {

constexpr int64_t kWalkChunk = 64;  // tokens per chunk

// What the decay of a chunk multiplies.
enum class WalkDecay {
  kNone,
  kState,   // all of S: decay is [n, g]
  kRow,     // the rows of S: [n, g, K]
  kColumn,  // the columns of S: [n, g, V]
};

// Arguments of walk_sm90; n sequences (of one head each) of g chunks of C = kWalkChunk tokens.
struct Walk {
  int64_t n = 0, g = 0, K = 0, V = 0;
  bool backward = false;         // walk from the last chunk to the first
  const void* read = nullptr;    // bf16 [n, g, C, K]; null: none
  const void* base = nullptr;    // bf16 [n, g, C, V]
  const void* write = nullptr;   // bf16 [n, g, C, K]
  const void* write2 = nullptr;  // bf16 [n, g, C, K]; null: none
  const void* x2 = nullptr;      // bf16 [n, g, C, V]
  WalkDecay decays = WalkDecay::kNone;
  const float* decay = nullptr;
  float* state = nullptr;  // [n, K, V]: S before the walk; overwritten with S after it
  void* states = nullptr;  // bf16 [n, g, K, V]
  void* x = nullptr;       // bf16 [n, g, C, V]; written if `read` is given
};

// Why there is no kernel for these sizes, in words for the user; null if there is one.
const char* walk_refusal(int64_t K, int64_t V);

// Runs the walk. The order of every sum depends on K only, so equal calls give equal bits.
cudaError_t walk_sm90(const Walk& walk, cudaStream_t stream);

// The gradient of log(decay) from `states` of a walk forward and `grads`, those of the walk backward through the same n g chunks: decay
// times the sum of states * grads over what a decay multiplies. Shape of decay.
struct WalkDecayGradient {
  int64_t chunks = 0, K = 0, V = 0;  // chunks: n g
  const void* states = nullptr;      // bf16 [n, g, K, V]
  const void* grads = nullptr;       // the same
  WalkDecay decays = WalkDecay::kState;
  const float* decay = nullptr;
  float* out = nullptr;
};
cudaError_t walk_decay_gradient_sm90(const WalkDecayGradient& p, cudaStream_t stream);

// (I + A)^-1 of `count` strictly lower triangular matrices A [C, C], fp32. Elements of A on and above the diagonal are not read.
cudaError_t unit_lower_inverse_sm90(int64_t count, const float* a, float* inverse, cudaStream_t stream);

}  // namespace cyfa::recurrence
