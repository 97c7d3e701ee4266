#include "cyfa/engine/recorded.h"

#ifdef CYFA_CUDA
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>

#include "cyfa/engine/graph.h"
#include "cyfa/ops/common/in_place.h"
#endif

namespace cyfa {

std::string recording_refusal(const CausalLM& model) {
#ifndef CYFA_CUDA
  return "this build has no CUDA";
#endif
  if (!model.device().is_cuda()) return "the parameters are on " + model.device().str() + "; graphs are recorded on a GPU";
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const std::string reason = model.layers()[i].block->mixer().needs_host();
    if (!reason.empty()) return "layer " + std::to_string(i) + ": " + reason;
  }
  return {};
}

#ifdef CYFA_CUDA

namespace {

struct Recording {
  at::Tensor given;  // pinned host memory; the graph begins with a copy of it to `ids`. Undefined if the step takes ids on the device
  at::Tensor ids, logits;
  at::cuda::CUDAGraph graph;
  c10::Event read{at::kCUDA};  // recorded after the last replay, that is, after its read of `given`

  ~Recording() {  // torch's allocator does not know of that read and would reuse the memory too early
    try {
      read.synchronize();
    } catch (const c10::Error&) {  // the device is lost, and the pending read with it
    }
  }
};

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

class RecordedStep final : public StepEngine {
 public:
  explicit RecordedStep(std::shared_ptr<StepEngine> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name() + (refusal_.empty() ? "+graph" : ""); }
  const CausalLM& model() const override { return inner_->model(); }
  const Weights& weights() const override { return inner_->weights(); }
  std::string path(int64_t sequences) const override { return inner_->path(sequences); }
  LmOutput forward(const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens, const ModelState* initial) override {
    return inner_->forward(ids, cu_seqlens, initial);
  }
  std::vector<std::string> notes() const override {
    std::vector<std::string> all = inner_->notes();
    if (!refusal_.empty()) all.push_back("a step could not be recorded as a graph: " + refusal_);
    return all;
  }
  void check() override { inner_->check(); }

  at::Tensor step(const at::Tensor& ids, ModelState& state) override {
    check();
    // Invalid arguments go to the inner engine, which throws; they must not fail during capture.
    const bool right = ids.dim() == 1 && ids.size(0) == state.sequences();
    if (!refusal_.empty() || !right) return inner_->step(ids, state);
    model().check_ids(ids);
    if (!same_tensors(held_, state)) {
      recording_.reset();
      held_ = {};
      const ModelState before = state;
      const at::Tensor logits = inner_->step(ids, state);
      if (same_tensors(before, state)) held_ = state;
      return logits;
    }
    if (recording_ != nullptr && recording_->given.defined() != ids.is_cpu()) recording_.reset();
    if (recording_ == nullptr) record(ids, state);
    if (recording_ == nullptr) return inner_->step(ids, state);  // capture failed and has run nothing
    if (ids.is_cpu()) {
      recording_->read.synchronize();  // returns immediately before the first replay
      recording_->given.copy_(ids);
    } else if (!ids.is_same(recording_->ids)) {
      recording_->ids.copy_(ids);
    }
    for (const MixerState& layer : state.layers) ops::mark_written("step", layer);
    recording_->graph.replay();
    if (ids.is_cpu()) recording_->read.record(c10::cuda::getCurrentCUDAStream(model().device().index()));
    return recording_->logits;
  }

 private:
  // Captures a step. If an operation cannot be captured, recording_ stays null and refusal_ holds the reason.
  void record(const at::Tensor& ids, ModelState& state) {
    auto recording = std::make_unique<Recording>();
    if (ids.is_cpu()) {
      recording->given = at::empty(ids.sizes(), at::TensorOptions(at::kLong).pinned_memory(true));
      recording->ids = at::empty(ids.sizes(), at::TensorOptions(at::kLong).device(model().device()));
    } else {
      recording->ids = ids;
    }
    refusal_ = record_graph(recording->graph, model().device().index(), at::cuda::graph_pool_handle(), [&] {
      if (ids.is_cpu()) {
        C10_CUDA_CHECK(cudaMemcpyAsync(recording->ids.mutable_data_ptr(), recording->given.const_data_ptr(), recording->ids.nbytes(),
                                       cudaMemcpyHostToDevice, c10::cuda::getCurrentCUDAStream()));
      }
      recording->logits = inner_->step(recording->ids, state);
    });
    if (!refusal_.empty()) return;
    recording_ = std::move(recording);
  }

  std::shared_ptr<StepEngine> inner_;
  ModelState held_;  // the last step's state; holding it keeps the addresses in the graph from being reused by other tensors
  std::unique_ptr<Recording> recording_;
  std::string refusal_;
};

}  // namespace

std::unique_ptr<StepEngine> record_steps(std::shared_ptr<StepEngine> engine) { return std::make_unique<RecordedStep>(std::move(engine)); }

#else

std::unique_ptr<StepEngine> record_steps(std::shared_ptr<StepEngine> engine) {
  throw std::invalid_argument("engine " + engine->name() + " cannot be recorded: " + recording_refusal(engine->model()));
}

#endif

}  // namespace cyfa
