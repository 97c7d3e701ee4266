// Forward of cyclic_flow on Hopper for bf16 inputs: parameters, workspace and entry points. Called by the sm90 backend
// (cyfa/ops/cyclic_flow/sm90.cc). No torch, no allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::cyclic_flow {

// A tile is 128 tokens of one sequence; only a sequence's last tile may have fewer. A sequence's tiles are consecutive.
struct Tile {
  int64_t token;   // first token, counted over all sequences
  int32_t tokens;  // 1 .. 128
  int32_t sequence;
};

constexpr int kTileTokens = 128;

// Intermediate results of forward that backward reads: device memory owned by the caller, with the sizes of sm90_kept_bytes.
struct Sm90Kept {
  void* tokens = nullptr;  // clocks, cumulative gates, 1 / rms of k and q
  void* states = nullptr;  // [sections, tiles, H, 2, 128, max(K, V)] bf16 at tile starts
  void* tables = nullptr;  // readout table in half precision, norm weights
  void* scores = nullptr;  // [T, H, P] half precision; null if no backward follows
};
struct Sm90KeptBytes {
  int64_t tokens, states, tables, scores;
};

// The kernels process slots in sections of 128. P is M rounded up to whole sections.
constexpr int kSectionSlots = 128;
__host__ __device__ constexpr int32_t sm90_sections(int64_t M) { return static_cast<int32_t>((M + kSectionSlots - 1) / kSectionSlots); }
__host__ __device__ constexpr int64_t sm90_filled_slots(int64_t M) { return sm90_sections(M) * int64_t{kSectionSlots}; }

// Device pointers. Token arrays are [T, H, ...] with the given stride between tokens and contiguous heads.
struct Sm90ForwardParams {
  int64_t T = 0;
  int32_t N = 0, H = 0, K = 0, V = 0, M = 0, tiles = 0;
  const Tile* tile = nullptr;           // [tiles]
  const int32_t* first_tile = nullptr;  // [N + 1]
  const void* q = nullptr;              // bf16
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  const float* log_alpha = nullptr;  // [T, H]
  const float* delta = nullptr;
  const float* beta = nullptr;
  const float* readout = nullptr;        // [H, m, m]
  const float* q_norm_weight = nullptr;  // [K] or null
  const float* k_norm_weight = nullptr;
  float scale = 1.0F, norm_eps = 1e-6F;
  const float* initial_k = nullptr;       // [N, H, K, M] or null
  const float* initial_v = nullptr;       // [N, H, M, V] or null
  const double* initial_clock = nullptr;  // [N, H] or null
  void* o = nullptr;                      // [T, H, V] bf16
  float* final_k = nullptr;               // [N, H, K, M]; final_k and final_v are null if the final state is not wanted
  float* final_v = nullptr;
  double* final_clock = nullptr;
  // Normalise rows of q and k in a separate launch before all others, instead of inside the kernels. Needed if an initial state is given
  // (initial_k implies it) or a gradient of the final state: these include the norm weights.
  bool normalise_first = false;
  Sm90Kept kept;
  void* workspace = nullptr;  // of sm90_forward_workspace() bytes
  int32_t longest = 0;        // tiles of the longest sequence, to save workspace; 0: unknown
  int32_t section = 0;        // section that a launch processes; set by sm90_forward
};

// `tiles` may be an upper bound.
Sm90KeptBytes sm90_kept_bytes(int64_t T, int64_t H, int64_t K, int64_t V, int64_t tiles, int64_t M);
// Size of the workspace in bytes. p.workspace is not read.
int64_t sm90_forward_workspace(const Sm90ForwardParams& p);
// Why the kernels do not support these parameters, or null if they do.
const char* sm90_forward_refusal(const Sm90ForwardParams& p);
// Enqueues forward on `stream`. Overwrites o, final_k, final_v, final_clock, kept and the workspace. cudaErrorInvalidValue if refused.
cudaError_t sm90_forward(const Sm90ForwardParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
