#include "cyfa/engine/graph.h"

#include <c10/cuda/CUDAGuard.h>

namespace cyfa {
namespace {

// Ends a capture after an error inside it. This must happen on the capture's stream. If CUDA has invalidated the capture, capture_end()
// throws again and leaves the allocator's pool open, so the pool is closed here.
void end_broken_capture(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, const c10::MempoolId_t& pool) {
  try {
    graph.capture_end();
  } catch (const c10::Error&) {
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    } catch (const c10::Error&) {  // the pool was already closed
    }
  }
}

}  // namespace

std::string record_graph(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, const c10::MempoolId_t& pool,
                         const std::function<void()>& work) {
  c10::cuda::getCurrentCUDAStream(device).synchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
  graph.capture_begin(pool);
  try {
    work();
    graph.capture_end();
  } catch (const c10::Error& e) {
    end_broken_capture(graph, device, pool);
    return e.what_without_backtrace();
  } catch (...) {
    end_broken_capture(graph, device, pool);
    throw;
  }
  return {};
}

}  // namespace cyfa
