// The one owner of the fused projection of a CyFA mixer: its matrices stand one below the other, so that one product with the input gives
// every projection, and a projection is a range of columns of the result.
//
//   [ q: H K | k: H K | v: H V | output gate's first factor: rank | a: H | b: H | d: H | zeros up to a multiple of 8 ]
//
// a, b and d become log_alpha, beta and delta. Kernels, engines and tests read the places here.
#pragma once

#ifdef __CUDACC__
#define CYFA_HOST_DEVICE __host__ __device__
#else
#define CYFA_HOST_DEVICE
#endif

namespace cyfa::cyclic_flow {

struct ProjectionLayout {
  int heads = 0, K = 0, V = 0, rank = 0;

  // First columns.
  CYFA_HOST_DEVICE constexpr int q() const { return 0; }
  CYFA_HOST_DEVICE constexpr int k() const { return heads * K; }
  CYFA_HOST_DEVICE constexpr int v() const { return 2 * heads * K; }
  CYFA_HOST_DEVICE constexpr int gate() const { return heads * (2 * K + V); }
  CYFA_HOST_DEVICE constexpr int a() const { return gate() + rank; }
  CYFA_HOST_DEVICE constexpr int b() const { return a() + heads; }
  CYFA_HOST_DEVICE constexpr int d() const { return b() + heads; }

  CYFA_HOST_DEVICE constexpr int used() const { return d() + heads; }
  CYFA_HOST_DEVICE constexpr int columns() const { return (used() + 7) / 8 * 8; }  // a row is then a whole number of 16-byte words
};

}  // namespace cyfa::cyclic_flow
