// Launches on one stream of which the next begins while the blocks of the one before end.
#pragma once

#include <cuda_runtime.h>

namespace cyfa::sm90 {

// From here on the next launch may begin, if it is one of launch_early: its blocks take the places that this one's leave.
__device__ __forceinline__ void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
// In such a launch: until the one before is over, and what it wrote can be read.
__device__ __forceinline__ void wait_for_earlier_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// A launch of clusters of `cluster` blocks, or 0: of no clusters, that may begin early.
template <typename... Params>
cudaError_t launch_cluster_early(void (*kernel)(Params...), int blocks, int cluster, int threads, int shared_bytes, cudaStream_t stream,
                                 const Params&... params) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 0 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, params...);
}

template <typename Params>
cudaError_t launch_early(void (*kernel)(Params), int blocks, int threads, int shared_bytes, cudaStream_t stream, const Params& params) {
  return launch_cluster_early(kernel, blocks, 0, threads, shared_bytes, stream, params);
}

}  // namespace cyfa::sm90
