// What the backends of cyclic_flow share: the entry that describes a backend, checked inputs, results of a pass.
#pragma once

#include <vector>

#include "cyfa/ops/common/sequences.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::ops {

inline constexpr const char* kCyclicFlow = "cyclic_flow";

// Added to the mean square of a row even if norm_eps is 0, so that the norm of a zero row is zero: far below the square of any number that
// matters, and a normal fp32 number also after the scaling of call_padded (sm90_shapes.cc).
inline constexpr double kLeastNormEps = 1e-37;

// What forward saves for backward. The numbers are part of the dispatcher's schema.
enum class Keep : int64_t { kNothing = 0, kStates = 1, kStatesAndScores = 2 };

// Options with all defaults resolved.
struct CyclicFlowSettings {
  Backend backend = Backend::kPortable;
  double scale = 1.0;
  double norm_eps = 1e-6;
  SegmentSize size;
  Keep keep = Keep::kStatesAndScores;
  bool final_state = true;                           // whether forward's is wanted; one that is not travels as tensors without elements
  std::function<std::array<at::Tensor, 3>()> again;  // CyclicFlowOptions::again, which the dispatcher does not see
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

struct CyclicFlowForward {
  at::Tensor o;
  CyclicFlowState final_state;
  std::vector<at::Tensor> saved;  // for backward; only the backend knows what it is
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

// One implementation of the op. Its functions get inputs that have been checked.
struct CyclicFlowBackend {
  Backend id;
  // Why it does not take these inputs; empty if it takes them.
  std::string (*refusal)(const CyclicFlowInputs& in);
  // The whole call, above autograd: call_cyclic_flow, or that on inputs which the backend reshapes by differentiable operations first.
  CyclicFlowOutput (*call)(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
  CyclicFlowForward (*forward)(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);
  CyclicFlowGradients (*backward)(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, at::TensorList saved,
                                  const CyclicFlowOutputGradients& grad);
  // The tensors that forward saves, uninitialised, for a q of these options: device and type.
  std::vector<at::Tensor> (*empty_saved)(const at::TensorOptions& q, const CyclicFlowShape& shape, const CyclicFlowSettings& settings);
};

CyclicFlowBackend cyclic_flow_sm90();       // kernels for Hopper; refuses in a build without CUDA
CyclicFlowBackend cyclic_flow_portable();   // chunk-wise on ATen
CyclicFlowBackend cyclic_flow_reference();  // the fp64 token loop on the CPU

const CyclicFlowBackend& cyclic_flow_backend(Backend id);

// Uninitialised results of the right shapes and types, with nothing saved. Without `states`, the final k and v have no elements.
CyclicFlowForward empty_cyclic_flow_forward(const CyclicFlowInputs& in, const CyclicFlowShape& shape, bool states = true);
CyclicFlowGradients empty_cyclic_flow_gradients(const CyclicFlowInputs& in);

// Checks a readout [H, m, m] and returns the type of its table.
at::ScalarType check_readout(const at::Tensor& readout);

// Bounds of all sequences on the flat token axis [B * T].
std::vector<int64_t> cyclic_flow_offsets(const CyclicFlowInputs& in, const CyclicFlowShape& shape);

// Autograd entry: through the dispatcher, so that C++, Python and torch.compile take one path.
CyclicFlowOutput call_cyclic_flow(const CyclicFlowInputs& in, const CyclicFlowSettings& settings);

}  // namespace cyfa::ops
