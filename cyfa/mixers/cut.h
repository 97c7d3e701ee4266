// Context parallel training: the tokens of a packed batch are cut into stretches, one per rank, and a mixer computes with its rank's
// stretch alone. What its recurrence needs of the ranks before it is the state at the cut, which follows from one summary per rank: the
// state that the stretch leaves in an empty memory, and by how much the stretch fades and turns a memory that it finds
// (docs/distributed.md). Each layer exchanges these summaries by a scan over the ranks, forward and backward, and their size does not
// depend on the length of the sequence. The results are exact.
//
// Weights carry the cut of a pass (Weights::with_cut) and Call applies it, so that mixers do not know of it. What has no such summary
// throws ops::ArgumentError.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/parallel/group.h"

namespace cyfa {

// How sequences are cut, as all ranks know it.
struct SequenceCut {
  // What rank p holds of the sequence that its last token belongs to.
  struct Stretch {
    bool begins = false;      // its first token begins a sequence
    bool whole = false;       // all its tokens belong to one sequence
    int64_t last_tokens = 0;  // tokens of its last sequence
  };

  Group group;                     // the ranks that share the batch, in the order of its tokens
  std::vector<Stretch> stretches;  // by rank
  int64_t tokens_before = 0;       // of this rank's first sequence, on earlier ranks

  const Stretch& own() const { return stretches[static_cast<size_t>(group.rank())]; }
};

// A rank's stretch of a batch.
struct CutBatch {
  at::Tensor inputs, targets;  // [1, T]
  at::Tensor cu_seqlens;       // [N + 1] int64 on the CPU
  std::shared_ptr<const SequenceCut> cut;
};

// Cuts a batch, inputs and targets [B, T], whose rows are sequences of their own, or bounded by cu_seqlens when concatenated. Rank p gets
// the tokens from bounds[p] to bounds[p + 1] of the concatenated rows; by default all ranks get equally many, within one. Throws
// std::invalid_argument if a rank would get none.
CutBatch cut_batch(const Group& group, const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens,
                   std::vector<int64_t> bounds = {});

// The rest is for Call and for engines that run a mixer without it. All are differentiable.

// State S [N, H, K, V] at the start of each local sequence, for S_t = exp(log_alpha_t) S_{t-1} + k_t v_t^T: what the ranks before leave for
// the first, zeros for the others. k [1, T, H, K] or with a divisor of H heads, v [1, T, H, V], log_alpha [1, T, H] or undefined (no gate),
// T at least 1.
at::Tensor recurrence_before(const SequenceCut& cut, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                             int64_t sequences);

// The same for cyclic_flow: its two states, [N, H, K, M] and [N, H, M, V], each in the frame of a clock that is 0 at the start of the local
// sequence. Of `in` it reads k and its norm's weight, v, the gates, and from the readout how many slots there are. Autograd keeps nothing
// but these inputs: backward computes the rank's summary again.
struct FlowBefore {
  at::Tensor k, v;
};
FlowBefore flow_before(const SequenceCut& cut, const ops::CyclicFlowInputs& in, double norm_eps, int64_t sequences);

// The last `taps` - 1 tokens before each local sequence, [N, taps - 1, W], of y [1, T, W].
at::Tensor tokens_before(const SequenceCut& cut, const at::Tensor& y, int64_t taps, int64_t sequences);

}  // namespace cyfa
