// Forwards of one prompt as CUDA graphs. A prompt is filled up to a whole number of tiles; prompts of equally many tiles replay one graph,
// which reads their ids, tables and initial state from fixed memory.
#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <map>
#include <memory>
#include <set>

#include "cyfa/engine/sm90/prefill.h"

namespace cyfa::fused {

class RecordedPrefill {
 public:
  static constexpr int64_t kMostRows = 4096;  // longer prompts keep the GPU busy without a graph

  // Keeps a reference to prefill, which must be fused().
  RecordedPrefill(const CausalLM& model, const Prefill& prefill);

  // The forward of one sequence with these tables: ids [tokens] and an initial state or null. Returns false, having done nothing, if the
  // caller is to run it: the first time for a number of rows, or after a recording has failed.
  bool run(const RowTables& tables, const at::Tensor& ids, const ModelState* initial, at::Tensor* hidden, ModelState* after);

  const std::string& refusal() const { return refusal_; }  // why a forward could not be recorded; empty: none has failed

 private:
  struct Recording {
    at::Tensor memory, ids, hidden;
    at::cuda::CUDAGraph graph;
  };
  std::unique_ptr<Recording> record(const RowTables& tables, bool continues);

  const CausalLM& model_;
  const Prefill& prefill_;
  c10::MempoolId_t pool_;  // shared by all recordings, which are replayed one after the other
  ModelState before_, after_;
  using Key = std::pair<int64_t, bool>;  // rows; whether there is an initial state
  std::set<Key> seen_;
  std::map<Key, std::unique_ptr<Recording>> recordings_;
  std::string refusal_;
};

// Writes ids, on the host or the device, to the first elements of rows [R], int64 on the device, and zeros to the others.
void put_ids(const at::Tensor& ids, const at::Tensor& rows);

}  // namespace cyfa::fused
