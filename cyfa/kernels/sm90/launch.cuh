// Programmatic dependent launch: a kernel starts while the last blocks of the previous kernel on the same stream still run. Used by the
// decoding kernels (gemv, gemm64, the cyclic_flow step), small norms and the backward pass of cyclic_flow.
#pragma once

#include <cuda_runtime.h>

namespace cyfa::sm90 {

// Lets the next kernel on the stream start, if it was launched by launch_early: its blocks are scheduled as this kernel's blocks exit or
// leave resources free.
__device__ __forceinline__ void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
// In a kernel launched early: waits until the previous kernel has completed and its writes are visible.
__device__ __forceinline__ void wait_for_earlier_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Launches a kernel that may start before the previous one on `stream` has ended. cluster: thread blocks per cluster, or 0 for no clusters.
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

// The same without clusters, for a kernel with one parameter.
template <typename Params>
cudaError_t launch_early(void (*kernel)(Params), int blocks, int threads, int shared_bytes, cudaStream_t stream, const Params& params) {
  return launch_cluster_early(kernel, blocks, 0, threads, shared_bytes, stream, params);
}

}  // namespace cyfa::sm90
