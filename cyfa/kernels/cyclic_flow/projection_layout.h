// Column layout of the fused projection of a CyFA mixer. The projection matrices are concatenated row-wise, so one GEMM with the input
// computes all of them, and each projection is a range of columns of the result:
//
//   [ q: H K | k: H K | v: H V | output gate's first factor: rank | a: H | b: H | d: H | zero padding to a multiple of 8 ]
//
// a, b and d become log_alpha, beta and delta. This is the only definition of the layout: the decode step's kernel
// (sm90/sm90_step_mixer.cuh), the sm90 engine (cyfa/engine/sm90) and the GPU tests read the offsets from here.
#pragma once

#ifdef __CUDACC__
#define CYFA_HOST_DEVICE __host__ __device__
#else
#define CYFA_HOST_DEVICE
#endif

namespace cyfa::cyclic_flow {

struct ProjectionLayout {
  int heads = 0, K = 0, V = 0, rank = 0;

  // First column of each projection.
  CYFA_HOST_DEVICE constexpr int q() const { return 0; }
  CYFA_HOST_DEVICE constexpr int k() const { return heads * K; }
  CYFA_HOST_DEVICE constexpr int v() const { return 2 * heads * K; }
  CYFA_HOST_DEVICE constexpr int gate() const { return heads * (2 * K + V); }
  CYFA_HOST_DEVICE constexpr int a() const { return gate() + rank; }
  CYFA_HOST_DEVICE constexpr int b() const { return a() + heads; }
  CYFA_HOST_DEVICE constexpr int d() const { return b() + heads; }

  CYFA_HOST_DEVICE constexpr int used() const { return d() + heads; }
  CYFA_HOST_DEVICE constexpr int columns() const { return (used() + 7) / 8 * 8; }  // a row is a whole number of 16-byte words
};

}  // namespace cyfa::cyclic_flow
