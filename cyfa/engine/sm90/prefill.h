// Forward over whole sequences with the step engine's fused weights: prompts, and texts to be scored. Inference only.
//
// Sequences lie one behind the other in rows. Rows after the last sequence are padding: no sequence reads them, and their results mean
// nothing. They allow prompts of different lengths to have the same launches, so that one recorded graph serves them all; what differs is
// in RowTables.
#pragma once

#include <vector>

#include "cyfa/engine/sm90/step_layer.h"

namespace cyfa::fused {

// The sequences of a forward as the kernels read them: tiles and convolution tasks. Built on the host and copied to the device in one go.
class RowTables {
 public:
  // Sequences with boundaries `offsets` (from 0) in `rows` rows. There is at least one sequence.
  RowTables(const std::vector<int64_t>& offsets, int64_t rows);

  // Copies the tables to the device, behind the work of the current stream; `memory` [bytes()] is overwritten.
  void copy_to(const at::Tensor& memory) const;
  int64_t bytes() const { return static_cast<int64_t>(host_.size()); }

  int64_t rows() const { return rows_; }
  int64_t tokens() const { return tokens_; }
  int64_t sequences() const { return sequences_; }
  int32_t tiles() const { return tiles_; }
  int32_t longest() const { return longest_; }  // tiles of the longest sequence

  // The tables in device memory.
  const void* tile(const at::Tensor& memory) const { return memory.const_data_ptr(); }
  const int32_t* first_tile(const at::Tensor& memory) const;
  const int64_t* borders(const at::Tensor& memory) const;
  at::Tensor conv_tasks(const at::Tensor& memory) const;  // as of ops::row_kernels::conv_tasks

 private:
  int64_t rows_, tokens_, sequences_, tasks_ = 0;
  int32_t tiles_ = 0, longest_ = 0;
  size_t borders_at_ = 0, tasks_at_ = 0, firsts_at_ = 0;  // in bytes
  std::vector<char> host_;
};

class Prefill {
 public:
  // Keeps references to all arguments.
  Prefill(const CausalLM& model, const Weights& weights, const std::vector<StepLayer>& layers);

  // Whether every mixer runs in fused kernels. Only then may there be padding, and the launches depend on nothing but rows(), sequences(),
  // tiles() and longest() of the tables and on whether there is an initial state.
  bool fused() const { return fused_; }

  // Uninitialised states of fused mixers for run() to write; those of others have no tensors yet.
  ModelState empty_state(int64_t sequences) const;
  // The state with those of fused mixers on the device, contiguous and in the types of their specs: decode steps may keep them in bf16.
  ModelState readable(const ModelState& state) const;

  struct Input {
    const RowTables& tables;
    at::Tensor memory;  // the tables on the device
    at::Tensor ids;     // [rows], on the device; of padding, any id
    int64_t B, T;       // B sequences of T tokens, or packed sequences, B = 1, with `cu_seqlens`
    std::optional<at::Tensor> cu_seqlens;
    const ModelState* initial = nullptr;  // readable(), or null
  };
  // Returns hidden [rows, D], before the final norm. `after` is an empty_state() that receives the final state.
  at::Tensor run(const Input& in, ModelState& after) const;

 private:
  struct Scratch;
  at::Tensor mix_flow(const StepLayer& layer, const at::Tensor& x, const Input& in, const MixerState* before,
                      const std::array<at::Tensor, 3>& before_conv, MixerState& after, Scratch& scratch) const;
  at::Tensor mix_plain(const StepLayer& layer, const at::Tensor& x, const Input& in, const MixerState* before, MixerState& after) const;

  const CausalLM& model_;
  const Weights& weights_;
  const std::vector<StepLayer>& layers_;
  std::vector<at::Tensor> readouts_;  // of each layer, [H, m, m]; undefined where the mixer runs as in the plain model
  bool fused_ = true;
};

}  // namespace cyfa::fused
