#include "cyfa/engine/sm90/recorded_prefill.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/engine/graph.h"

namespace cyfa::fused {
namespace {

// Copies all tensors of a state, in a few launches.
void copy_state(const ModelState& to, const ModelState& from) {
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> of_type;
  for (size_t i = 0; i < to.layers.size(); ++i) {
    for (size_t j = 0; j < to.layers[i].size(); ++j) {
      auto& [targets, sources] = of_type[to.layers[i][j].scalar_type()];
      targets.push_back(to.layers[i][j]);
      sources.push_back(from.layers[i][j]);
    }
  }
  for (auto& [type, tensors] : of_type) at::_foreach_copy_(tensors.first, tensors.second);
}

}  // namespace

void put_ids(const at::Tensor& ids, const at::Tensor& rows) {
  const int64_t count = ids.numel();
  if (!ids.is_cpu()) {
    rows.narrow(0, 0, count).copy_(ids.reshape({-1}));
    rows.narrow(0, count, rows.size(0) - count).zero_();
    return;
  }
  const at::Tensor host = at::zeros(rows.sizes(), at::kLong);
  host.narrow(0, 0, count).copy_(ids.reshape({-1}));
  C10_CUDA_CHECK(cudaMemcpyAsync(rows.mutable_data_ptr(), host.const_data_ptr(), host.nbytes(), cudaMemcpyHostToDevice,
                                 c10::cuda::getCurrentCUDAStream()));
}

RecordedPrefill::RecordedPrefill(const CausalLM& model, const Prefill& prefill)
    : model_(model), prefill_(prefill), pool_(at::cuda::graph_pool_handle()) {}

bool RecordedPrefill::run(const RowTables& tables, const at::Tensor& ids, const ModelState* initial, at::Tensor* hidden,
                          ModelState* after) {
  const Key key = {tables.rows(), initial != nullptr};
  if (tables.rows() > kMostRows || !refusal_.empty() || seen_.insert(key).second) return false;
  std::unique_ptr<Recording>& recording = recordings_[key];
  if (recording == nullptr) {
    recording = record(tables, initial != nullptr);
    if (!refusal_.empty()) return false;
  }
  tables.copy_to(recording->memory);
  put_ids(ids, recording->ids);
  if (initial != nullptr) copy_state(before_, *initial);
  recording->graph.replay();
  *hidden = recording->hidden.clone();
  copy_state(*after, after_);
  return true;
}

std::unique_ptr<RecordedPrefill::Recording> RecordedPrefill::record(const RowTables& tables, bool continues) {
  auto recording = std::make_unique<Recording>();
  const auto options = at::TensorOptions(model_.device());
  recording->memory = at::empty({tables.bytes()}, options.dtype(at::kByte));
  recording->ids = at::empty({tables.rows()}, options.dtype(at::kLong));
  if (after_.layers.empty()) after_ = prefill_.empty_state(1);
  if (continues && before_.layers.empty()) before_ = prefill_.empty_state(1);
  refusal_ = record_graph(recording->graph, model_.device().index(), pool_, [&] {
    const Prefill::Input in{tables, recording->memory, recording->ids, 1, tables.tokens(), std::nullopt, continues ? &before_ : nullptr};
    recording->hidden = prefill_.run(in, after_);
  });
  return recording;
}

}  // namespace cyfa::fused
