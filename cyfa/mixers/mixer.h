// The contract of a mixer: what a block needs of the part that moves information between tokens.
//
// A mixer is a description: it declares its parameters once, and computes with the tensors it is handed. So it can be shared between
// threads, and the same code runs with stored weights, with copies in a compute type and with gradients.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "cyfa/engine/sm90/decode_rows.h"
#include "cyfa/engine/sm90/packed.h"
#include "cyfa/mixers/parameters.h"

namespace cyfa {

// One of the tensors that a sequence carries from token to token.
struct StateSpec {
  std::string name;
  std::vector<int64_t> shape;  // of one sequence
  at::ScalarType dtype;
  bool memory = true;   // counted as recurrent state in the paper's tables (the convolution's tail and the clock are not)
  bool grows = false;   // the first dimension counts stored tokens: 0 at the start, more as the sequence grows
  bool narrow = false;  // step also takes it in bf16

  bool fits(at::IntArrayRef sizes) const {
    return grows ? sizes.slice(1) == at::IntArrayRef(shape).slice(1) : sizes == at::IntArrayRef(shape);
  }
};

// The state of N sequences in one layer: a tensor [N, ...] for each StateSpec, in their order.
using MixerState = std::vector<at::Tensor>;

// The tensors of a ParameterTable in the type in which they are computed with, and what mixers derive from them for decoding.
struct Weights {
  std::vector<at::Tensor> tensors;               // by ParameterId
  std::vector<std::vector<at::Tensor>> derived;  // by layer: Mixer::derive; empty where no step will be taken
  // A training step on a GPU (PackedWeights): the table's packs, by their first member; those parameters are not among the tensors then.
  std::vector<ops::Summed> packed;
  // Steps on a GPU in bf16: by layer, the two matrices of a SwiGLU as one; empty elsewhere.
  std::vector<at::Tensor> gate_up;

  bool packs(ParameterId id) const { return id < packed.size() && packed[id].defined(); }
  const at::Tensor& operator[](ParameterId id) const { return tensors[id]; }
};

struct MixerOutput {
  at::Tensor y;  // [B, T, D]
  MixerState final_state;
};

// A look into the memory of N sequences, for pictures and analyses.
struct MemoryView {
  at::Tensor clock;   // [N, H]
  at::Tensor energy;  // [N, H, m] of the values in each slot, the newest first
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  virtual const std::vector<StateSpec>& state() const = 0;

  // x [B, T, D], or packed sequences [1, T, D] with cu_seqlens. `initial` absent: empty memory. It is never changed. Differentiable in the
  // weights, x and the initial state.
  virtual MixerOutput forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens,
                              const MixerState* initial) const = 0;

  // Tensors that step needs and that depend on the weights alone.
  virtual std::vector<at::Tensor> derive(const Weights&) const { return {}; }

  // One token for each of B sequences, x [B, D], `state` updated in place; no autograd.
  virtual at::Tensor step(const Weights& w, const std::vector<at::Tensor>& derived, const at::Tensor& x, MixerState& state) const = 0;
  // x += step(RMSNorm(x)), in place, for mixers that have kernels for it; otherwise false, and nothing has happened. `ahead`: the matrix
  // that is read after it.
  virtual bool add_step(const Weights&, const std::vector<at::Tensor>& /*derived*/, const at::Tensor& /*x*/,
                        const at::Tensor& /*norm_weight*/, double /*eps*/, MixerState&, const at::Tensor& /*ahead*/) const {
    return false;
  }
  // The same for rows that come and go as the kernels of decode_rows.h take them, prepared for the norm that is `next`.
  virtual bool add_rows(const Weights&, const std::vector<at::Tensor>& /*derived*/, ops::StepRows&, const ops::StepNorm& /*next*/,
                        MixerState&) const {
    return false;
  }
  // Whether a step on a GPU neither waits for it nor copies from the host, so that it can be recorded and replayed.
  virtual bool recordable() const { return true; }
  // The matrix that add_step reads first; undefined: none in particular.
  virtual at::Tensor first_matrix(const std::vector<at::Tensor>& /*derived*/) const { return {}; }

  // How the memory is used on x [B, T, D]: named figures for the metrics of a run. Without autograd.
  virtual std::vector<std::pair<std::string, double>> health(const Weights&, const at::Tensor&) const { return {}; }

  virtual std::optional<MemoryView> view(const MixerState&) const { return std::nullopt; }

  // Operations of the recurrence itself for one token, at training; projections are counted from the table of parameters.
  virtual double flops_per_token() const = 0;
};

}  // namespace cyfa
