#include "cyfa/decode/step_graph.h"

#ifdef CYFA_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace cyfa {

#ifdef CYFA_CUDA

struct StepGraph::Recording {
  at::Tensor given;  // in the host's memory: the graph begins with its copy to `ids`
  at::Tensor ids, logits;
  at::cuda::CUDAGraph graph;
  c10::Event read{at::kCUDA};  // after the last replay, and so after its reading of `given`

  ~Recording() {  // torch does not know of that reading, and would give the memory to others
    try {
      read.synchronize();
    } catch (const c10::Error&) {  // the device is lost; so is what was read
    }
  }
};

namespace {

bool same_tensors(const ModelState& a, const ModelState& b) {
  if (a.layers.size() != b.layers.size()) return false;
  for (size_t i = 0; i < a.layers.size(); ++i) {
    if (a.layers[i].size() != b.layers[i].size()) return false;
    for (size_t j = 0; j < a.layers[i].size(); ++j) {
      if (!a.layers[i][j].is_same(b.layers[i][j])) return false;
    }
  }
  return true;
}

// After an error inside, the capture must still be closed, on its stream. Where CUDA has given it up, torch says so once more and leaves
// the pool open that the capture allocated from.
void end_broken_capture(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, const c10::MempoolId_t& pool) {
  try {
    graph.capture_end();
  } catch (const c10::Error&) {
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    } catch (const c10::Error&) {  // it was closed already
    }
  }
}

}  // namespace

at::Tensor StepGraph::step(const at::Tensor& ids, ModelState& state) {
  // What is wrong with the ids is said by the step itself, and not while it is recorded.
  const bool right = ids.dim() == 1 && ids.size(0) == state.sequences();
  if (model_.device().is_cpu() || refused_ || !right) return model_.step(weights_, ids, state);
  model_.check_ids(ids);
  if (!same_tensors(held_, state)) {
    recording_.reset();
    held_ = {};
    const ModelState before = state;
    const at::Tensor logits = model_.step(weights_, ids, state);
    if (same_tensors(before, state)) held_ = state;
    return logits;
  }
  if (recording_ == nullptr) {
    auto recording = std::make_unique<Recording>();
    recording->given = at::empty(ids.sizes(), at::TensorOptions(at::kLong).pinned_memory(true));
    recording->ids = at::empty(ids.sizes(), at::TensorOptions(at::kLong).device(model_.device()));
    const c10::cuda::CUDAStream outside = c10::cuda::getCurrentCUDAStream(model_.device().index());
    outside.synchronize();
    const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
    {
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, outside.device_index()));
      recording->graph.capture_begin(pool);
      try {
        C10_CUDA_CHECK(cudaMemcpyAsync(recording->ids.mutable_data_ptr(), recording->given.const_data_ptr(), recording->ids.nbytes(),
                                       cudaMemcpyHostToDevice, c10::cuda::getCurrentCUDAStream()));
        recording->logits = model_.step(weights_, recording->ids, state);
        recording->graph.capture_end();
      } catch (const c10::Error&) {
        end_broken_capture(recording->graph, outside.device_index(), pool);
        refused_ = true;
      } catch (...) {
        end_broken_capture(recording->graph, outside.device_index(), pool);
        throw;
      }
    }
    if (refused_) return model_.step(weights_, ids, state);  // nothing has run yet
    recording_ = std::move(recording);
  }
  recording_->read.synchronize();  // at once before the first
  recording_->given.copy_(ids);
  recording_->graph.replay();
  recording_->read.record(c10::cuda::getCurrentCUDAStream(model_.device().index()));
  return recording_->logits;
}

#else

struct StepGraph::Recording {};

at::Tensor StepGraph::step(const at::Tensor& ids, ModelState& state) { return model_.step(weights_, ids, state); }

#endif

StepGraph::StepGraph(const CausalLM& model, const Weights& weights) : model_(model), weights_(weights), refused_(!model.recordable()) {}
StepGraph::~StepGraph() = default;

}  // namespace cyfa
