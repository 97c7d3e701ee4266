// Forward of cyclic_flow on Hopper (eq:app-cyfa-key-chunk, eq:cyfa-two-pass, eq:app-cyfa-value-chunk; stages of docs/operator.md,
// "Chunks"): the sequence of launches.
//   prepare   clocks and cumulative gates of every token, the readout table
//   states    stage 6: scans each sequence and stores both states at every tile start
//   outputs   stages 1 to 5 for every tile, independently
// More than 128 slots are two sections. states and outputs, which then stops at the scores, run once per section; then
//   readout   stage 3 over both sections
//   values    stages 4 and 5, from the states of both sections
// Called by cyfa/ops/cyclic_flow/sm90.cc. Overwrites o, the final states and clocks, kept and the workspace.
#include <cuda_runtime.h>

#include <algorithm>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_parts.cuh"

namespace cyfa::cyclic_flow {

Sm90KeptBytes sm90_kept_bytes(int64_t T, int64_t H, int64_t K, int64_t V, int64_t tiles, int64_t M) {
  const int64_t P = sm90_filled_slots(M);
  return {T * H * 20, (tiles * H * 2 + 1) * P * std::max(K, V) * 2, H * P * P * 2 + (H + K) * 4, T * H * P * 2};
}

int64_t sm90_forward_workspace(const Sm90ForwardParams& p) { return workspace_of(p).bytes; }

const char* sm90_forward_refusal(const Sm90ForwardParams& p) {
  for (const int width : {p.K, p.V}) {
    if (width != kD && width != kD / 2 && width != kD / 4) return "heads are not 64, 128 or 256 wide";
    if (width != kD && p.M > kM) return "more than 128 slots want heads of 256 columns";
  }
  if (p.M < kLeastSlots || p.M > 2 * kM || p.M % 4 != 0) return "M (num_slots) is not a multiple of 4 from 64 to 256";
  if (p.T > INT32_MAX - kC) return "the sm90 kernels count tokens in 31 bits";
  return nullptr;
}

cudaError_t sm90_forward(const Sm90ForwardParams& p, cudaStream_t stream) {
  if (sm90_forward_refusal(p) != nullptr) return cudaErrorInvalidValue;
  if (p.N == 0) return cudaSuccess;
  Sm90ForwardParams r = p;
  cudaError_t status = cudaSuccess;
  if (normalises_first(p)) {
    const Workspace w = workspace_of(p);
    status = sm90_normalise_rows(p, w.rows[0], w.rows[1], stream);
    r = with_normalised_rows(p, w.rows[0], w.rows[1]);
  }
  if (status == cudaSuccess) status = sm90_forward_prepare(r, stream);
  for (r.section = 0; r.section < sm90_sections(p.M); ++r.section) {
    if (status == cudaSuccess) status = sm90_forward_states(r, stream);
    if (status == cudaSuccess) status = sm90_forward_outputs(r, stream);
  }
  if (p.M <= kM || p.tiles == 0) return status;
  r.section = 0;
  if (status == cudaSuccess) status = sm90_forward_readout(r, stream);
  if (status == cudaSuccess) status = sm90_forward_values(r, stream);
  return status;
}

}  // namespace cyfa::cyclic_flow
