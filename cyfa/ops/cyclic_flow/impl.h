// What the backends of cyclic_flow share: inputs that have been checked, what forward keeps, what backward returns.
#pragma once

#include <vector>

#include "cyfa/ops/common/sequences.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::ops {

inline constexpr const char* kCyclicFlow = "cyclic_flow";

// What forward keeps for backward; the numbers travel in the dispatcher's schema.
enum class Keep : int64_t { kNothing = 0, kStates = 1, kStatesAndScores = 2 };

// Options with every default filled in.
struct CyclicFlowSettings {
  Backend backend = Backend::kPortable;
  double scale = 1.0;
  double norm_eps = 1e-6;
  SegmentSize size;
  Keep keep = Keep::kStatesAndScores;
  bool final_state = true;  // of forward; absent ones travel as tensors without elements
};

struct CyclicFlowShape {
  int64_t B, T, N, H, K, V, M;
  bool packed;
  at::ScalarType compute;  // fp64 for fp64 inputs, else fp32
};

// Whether autograd will ask for a gradient of this call.
bool needs_gradient(const CyclicFlowInputs& in);

// Checks everything that can be checked without reading data, cu_seqlens excepted.
CyclicFlowShape check_cyclic_flow(const CyclicFlowInputs& in);

// What forward hands to backward, besides its inputs; empty where nothing is kept. The sm90 backend, which keeps everything or nothing,
// has its own contents (Sm90Kept): k the states at tile starts, v the tables, clock what belongs to tokens, scores.
struct CyclicFlowSaved {
  at::Tensor k, v;    // [rows, H, K, M], [rows, H, M, V]: states at segment starts
  at::Tensor clock;   // [B * T, H] fp64, after each token
  at::Tensor scores;  // [B * T, H, M], or empty if they are to be computed again
};

struct CyclicFlowForward {
  at::Tensor o;
  CyclicFlowState final_state;
  CyclicFlowSaved saved;
};

// Undefined means zero.
struct CyclicFlowOutputGradients {
  at::Tensor o;
  CyclicFlowState final_state;
};

// As the inputs of the same names; undefined where the input is absent.
struct CyclicFlowGradients {
  at::Tensor q, k, v, log_alpha, delta, beta, readout, q_norm_weight, k_norm_weight;
  CyclicFlowState initial_state;
};

// Tensors of the right shapes and types with undefined contents: what a run would return.
CyclicFlowForward empty_cyclic_flow_forward(const CyclicFlowInputs& in, const CyclicFlowShape& shape, const CyclicFlowSettings& settings);
CyclicFlowGradients empty_cyclic_flow_gradients(const CyclicFlowInputs& in, const CyclicFlowShape& shape);

// Borders of all sequences on the flat token axis [B * T].
std::vector<int64_t> cyclic_flow_offsets(const CyclicFlowInputs& in, const CyclicFlowShape& shape);

CyclicFlowForward cyclic_flow_portable_forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
CyclicFlowGradients cyclic_flow_portable_backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings,
                                                  const CyclicFlowSaved& saved, const CyclicFlowOutputGradients& grad);

CyclicFlowForward cyclic_flow_reference_forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
CyclicFlowGradients cyclic_flow_reference_backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings,
                                                   const CyclicFlowOutputGradients& grad);

// Built with CYFA_CUDA; elsewhere it refuses. Backward runs forward again where nothing was saved.
std::string cyclic_flow_sm90_refusal(const CyclicFlowInputs& in);
inline constexpr int64_t kSm90Width =
    256;  // of the kernels' widest heads; others have 64 or 128 columns, and what lies between is filled up
CyclicFlowForward cyclic_flow_sm90_forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
CyclicFlowSaved empty_cyclic_flow_sm90_saved(const CyclicFlowInputs& in, const CyclicFlowShape& shape, bool kept);
CyclicFlowGradients cyclic_flow_sm90_backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, const CyclicFlowSaved& saved,
                                              const CyclicFlowOutputGradients& grad);

// Autograd entry: through the dispatcher, so that C++, Python and torch.compile take one path.
CyclicFlowOutput call_cyclic_flow(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);

}  // namespace cyfa::ops
