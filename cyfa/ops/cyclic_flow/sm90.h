// The sm90 backend of cyclic_flow between its two files: sm90.cc calls the CUDA kernels; sm90_shapes.cc has what follows from shapes alone
// and compiles without CUDA, so that meta tensors can be traced in every build.
#pragma once

#include "cyfa/ops/cyclic_flow/impl.h"

namespace cyfa::ops::sm90 {

// As in cyfa/kernels/cyclic_flow/sm90/sm90_forward.h, which needs CUDA's headers; sm90.cc asserts that they agree.
inline constexpr int64_t kTileTokens = 128;    // tokens of a tile
inline constexpr int64_t kSectionSlots = 128;  // the kernels hold slots in sections of this many

// Widths of a head: the kernels exist for 64, 128 and 256 columns, and for 256 alone where there is more than one section of slots. Heads
// of other widths in this range are padded with zeros.
inline constexpr int64_t kLeastWidth = 64, kWidth = 256;

// What forward saves for backward: all of it, or nothing, in which case backward runs forward again. Sm90Kept in the kernels' terms.
struct Saved {
  at::Tensor states;  // [rows, 128, max(K, V)] bf16, at tile starts
  at::Tensor tables;  // fp32 memory for the readout table in half precision and the norms' weights
  at::Tensor tokens;  // [5, H, B * T] fp32 memory: clocks, sums of gates, rates of k and q
  at::Tensor scores;  // [B * T, H, M padded to whole sections] half precision

  explicit Saved(at::TensorList all) : states(all[0]), tables(all[1]), tokens(all[2]), scores(all[3]) {}
};

// Uninitialised, or without elements where nothing is `kept`. The sizes are upper bounds that follow from shapes alone.
std::vector<at::Tensor> empty_saved(const at::TensorOptions& q, const CyclicFlowShape& shape, bool kept);

// In sm90.cc.
std::string refusal(const CyclicFlowInputs& in);
CyclicFlowForward forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
CyclicFlowGradients backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, at::TensorList saved,
                             const CyclicFlowOutputGradients& grad);

}  // namespace cyfa::ops::sm90
