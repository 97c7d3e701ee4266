// Recording of CUDA graphs through torch, whose allocator must not reuse the memory that a graph reads and writes.
#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <functional>
#include <string>

namespace cyfa {

// Records what `work` enqueues, on a stream of its own, into `graph`; its memory comes from `pool`. Tensors that `work` creates and the
// caller keeps are valid after every replay, until the next graph of the same pool is replayed. Returns an empty string; or, if an
// operation cannot be recorded, the reason: then nothing has run and the graph cannot be replayed. Other exceptions of `work` pass through.
std::string record_graph(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, const c10::MempoolId_t& pool,
                         const std::function<void()>& work);

}  // namespace cyfa
