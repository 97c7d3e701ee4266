// Shared by the backends of cyclic_flow: validated inputs, what forward saves, what backward returns. Not part of the public interface.
#pragma once

#include <vector>

#include "cyfa/ops/common/sequences.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::ops {

inline constexpr const char* kCyclicFlow = "cyclic_flow";

// What forward saves for backward. The numbers are part of the dispatcher's schema.
enum class Keep : int64_t { kNothing = 0, kStates = 1, kStatesAndScores = 2 };

// Options with all defaults resolved.
struct CyclicFlowSettings {
  Backend backend = Backend::kPortable;
  double scale = 1.0;
  double norm_eps = 1e-6;
  SegmentSize size;
  Keep keep = Keep::kStatesAndScores;
  bool final_state = true;  // forward returns a final state; otherwise tensors without elements
};

// Dimensions of a call.
struct CyclicFlowShape {
  int64_t B, T, N, H, K, V, M;
  bool packed;
  at::ScalarType compute;  // fp64 for fp64 inputs, else fp32
};

// Whether autograd will need a gradient from this call.
bool needs_gradient(const CyclicFlowInputs& in);

// Checks everything that does not need data, including the shape but not the values of cu_seqlens.
CyclicFlowShape check_cyclic_flow(const CyclicFlowInputs& in);

// What forward passes to backward besides its inputs; tensors without elements if nothing is saved. The sm90 backend saves everything or
// nothing and has its own contents (Sm90Kept): k holds the states at tile starts, v the tables, clock the per-token values.
struct CyclicFlowSaved {
  at::Tensor k, v;    // [rows, H, K, M], [rows, H, M, V]: states at segment starts
  at::Tensor clock;   // [B * T, H] fp64, after each token
  at::Tensor scores;  // [B * T, H, M]; empty if backward recomputes them
};

// Results of a backend's forward.
struct CyclicFlowForward {
  at::Tensor o;
  CyclicFlowState final_state;
  CyclicFlowSaved saved;
};

// Gradients of the outputs; undefined means zero.
struct CyclicFlowOutputGradients {
  at::Tensor o;
  CyclicFlowState final_state;
};

// Gradients of the inputs with the same names; undefined if the input is absent.
struct CyclicFlowGradients {
  at::Tensor q, k, v, log_alpha, delta, beta, readout, q_norm_weight, k_norm_weight;
  CyclicFlowState initial_state;
};

// Uninitialised tensors with the shapes and types that a backend returns. Also used for torch's meta device.
CyclicFlowForward empty_cyclic_flow_forward(const CyclicFlowInputs& in, const CyclicFlowShape& shape, const CyclicFlowSettings& settings);
CyclicFlowGradients empty_cyclic_flow_gradients(const CyclicFlowInputs& in, const CyclicFlowShape& shape);

// Boundaries of all sequences in the flattened tokens [B * T].
std::vector<int64_t> cyclic_flow_offsets(const CyclicFlowInputs& in, const CyclicFlowShape& shape);

// The portable backend (portable.cc).
CyclicFlowForward cyclic_flow_portable_forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
CyclicFlowGradients cyclic_flow_portable_backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings,
                                                  const CyclicFlowSaved& saved, const CyclicFlowOutputGradients& grad);

// The reference backend (reference.cc). It saves nothing.
CyclicFlowForward cyclic_flow_reference_forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
CyclicFlowGradients cyclic_flow_reference_backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings,
                                                   const CyclicFlowOutputGradients& grad);

// The sm90 backend (sm90.cc); refuses everything in builds without CYFA_CUDA. Backward runs forward again if nothing was saved.
std::string cyclic_flow_sm90_refusal(const CyclicFlowInputs& in);
// Width of the widest heads of the kernels. Others have 64 or 128 columns; widths in between are padded.
inline constexpr int64_t kSm90Width = 256;
CyclicFlowForward cyclic_flow_sm90_forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
// Uninitialised tensors for what the sm90 backend saves; without elements unless `kept`.
CyclicFlowSaved empty_cyclic_flow_sm90_saved(const CyclicFlowInputs& in, const CyclicFlowShape& shape, bool kept);
CyclicFlowGradients cyclic_flow_sm90_backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, const CyclicFlowSaved& saved,
                                              const CyclicFlowOutputGradients& grad);

// Calls the op through torch's dispatcher with autograd, so that C++, Python and torch.compile share one path.
CyclicFlowOutput call_cyclic_flow(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);

}  // namespace cyfa::ops
