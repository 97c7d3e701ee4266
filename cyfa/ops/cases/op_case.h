// One description of a case for every op, cyclic_flow and the recurrences alike: seeded inputs in realistic ranges, output gradients, a run
// that returns every result by name, and what a call costs. The tests, `cyfa verify op`, `cyfa doctor`, `cyfa bench op` and bench_ops share
// it; cyfa/ops/cases/accuracy.h has the error limits.
//
// Names: an input has the name of its argument (initial_k, initial_v, initial_clock or initial_state for the parts of a state), an output
// that of its field (o, final_k, ...), and the gradient of input x is d_x. A gradient that goes in has the name of its output.
#pragma once

#include <torch/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cyfa/ops/cases/accuracy.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::cases {

// cyclic_flow, or an entry of ops::recurrences().
class Op {
 public:
  static const Op kCyclicFlow;

  Op() = default;
  explicit Op(const ops::Recurrence& r) : recurrence_(&r) {}

  const ops::Recurrence* recurrence() const { return recurrence_; }  // null for cyclic_flow
  bool operator==(const Op&) const = default;

 private:
  const ops::Recurrence* recurrence_ = nullptr;
};
inline const Op Op::kCyclicFlow;

const std::vector<Op>& all_ops();
const std::vector<Op>& recurrences();  // all but cyclic_flow
Op op_of(std::string_view name);       // throws ArgumentError
std::string op_name(Op op);            // "row_gated_la", as in messages
std::string op_label(Op op);           // "RowGatedLa", as in names of tests
// Its keys should have at most unit length: longer ones make the recurrence itself grow without bound.
bool is_delta_rule(Op op);

// The forget gates of a case.
enum class Gates {
  kRealistic,    // -softplus(normal - 2)
  kOpen,         // 0: nothing is forgotten
  kDead,         // -1e5; spans of 6e4 occur in practice
  kShut,         // -infinity
  kMixed,        // token by token any of 0, -1e-6, -1e-3, -0.1, -5, -80, -1e3, -1e5, -infinity
  kInitialised,  // as the published initialisation draws them: -A dt, A in (0, 16) per head and dt in (.001, .1); log_gamma in (-.1, 0)
};

struct OpCase {
  Op op = {};
  int64_t B = 2;
  int64_t T = 37;
  std::vector<int64_t> lengths = {};  // not empty: packed sequences of these lengths instead of B and T
  int64_t H = 2;
  int64_t K = 16;
  int64_t V = 16;
  int64_t M = 16;
  at::ScalarType dtype = at::kFloat;              // of q, k and v
  std::optional<at::ScalarType> gate_dtype = {};  // of gates, readout and norm weights; absent: fp64 for fp64, else fp32
  Gates gates = Gates::kRealistic;
  bool norm_weights = true;
  bool initial_state = true;
  std::optional<double> clock = {};    // initial clocks lie in clock + [0, 1); absent: in [0, 200)
  double readout_noise = 0.1;          // the readout is the identity plus normal numbers times this
  at::ScalarType drawn = at::kDouble;  // random numbers are drawn in this type, whatever dtype is; fp32 is faster and takes half the memory
  uint64_t seed = 1;

  int64_t batch() const { return lengths.empty() ? B : 1; }
  int64_t tokens() const;
  int64_t sequences() const { return lengths.empty() ? B : static_cast<int64_t>(lengths.size()); }
};

// Sizes of a layer; by default one of the 400M model, with a sequence of its training length.
struct OpShape {
  int64_t B = 1, T = 2048, H = 4, K = 256, V = 256, M = 128;
};

// The case of a layer as a model starts with it: initialised gates, a readout near the identity, no initial state, drawn in fp32.
OpCase layer_case(Op op, const OpShape& shape, at::ScalarType dtype);

// Drawn on the CPU: equal seeds give equal inputs on every device.
Tensors make_inputs(const OpCase& c);
Tensors make_output_gradients(const OpCase& c);
at::Tensor random_normal(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device, uint64_t seed);

// The options of every op; the recurrences have no norm_eps, no save_scores and always a final state.
struct RunOptions {
  ops::Backend backend = ops::Backend::kAuto;
  std::optional<double> scale = {};
  double norm_eps = 1e-6;
  int64_t chunk = 0;
  int64_t segment_chunks = 0;
  bool save_scores = true;
  bool final_state = true;

  operator ops::CyclicFlowOptions() const { return {backend, scale, norm_eps, chunk, segment_chunks, save_scores, final_state}; }
  operator ops::RecurrenceOptions() const { return {backend, scale, chunk, segment_chunks}; }
};

ops::CyclicFlowInputs cyclic_flow_inputs(const Tensors& inputs);
ops::RecurrenceInputs recurrence_inputs(const ops::Recurrence& r, const Tensors& inputs);
const std::vector<std::string>& cyclic_flow_arguments();  // in the order of the op's schema
// What the dispatcher's own ops take: the tensors that are there, and their places in the order of the arguments.
std::pair<std::vector<at::Tensor>, std::vector<int64_t>> packed_inputs(const Tensors& inputs);

// Whether each backend takes these inputs, fastest first.
std::vector<ops::BackendOffer> op_backends(Op op, const Tensors& inputs);
// Why a backend that takes these inputs would not take them with gradients asked for; empty if it would.
std::string gradient_refusal(Op op, const Tensors& inputs, ops::Backend backend);

// The op's own call: outputs and final states.
Tensors call_op(Op op, const Tensors& inputs, const RunOptions& options = {});
// The same call with its arguments unpacked, for a clock: returns o alone.
std::function<at::Tensor()> prepared_call(Op op, const Tensors& inputs, const RunOptions& options = {});
// Token by token, by the op's step, from a copy of the initial state or from zeros: outputs and final states.
Tensors run_steps(Op op, const Tensors& inputs, const RunOptions& options = {});

// Token t of cyclic_flow's inputs with the readout table made from them, and the memory that the first token finds.
ops::CyclicFlowStepInputs step_inputs(const Tensors& inputs, int64_t t);
ops::CyclicFlowState first_state(const Tensors& inputs);

// The inputs as leaves of autograd, on the same memory, and those of them that take a gradient: all but cu_seqlens.
Tensors with_gradients(const Tensors& inputs);
std::vector<at::Tensor> leaves(const Tensors& inputs);

// The results of `call`, and the gradients of sum(output * its gradient) for every input in `wanted` (absent: all but cu_seqlens). Outputs
// without an entry in `gradients` take no part; with no entry at all nothing is differentiated. Nothing is copied: the call sees the
// inputs' memory.
using Call = std::function<Tensors(const Tensors& inputs)>;
Tensors differentiate(const Call& call, const Tensors& inputs, const Tensors& gradients,
                      const std::optional<std::set<std::string>>& wanted = std::nullopt);
Tensors run_op(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options = {});

// The reference backend on the same numbers in double, so that its results are not rounded to the type of the inputs.
Tensors judge(Op op, const Tensors& inputs, const Tensors& gradients, RunOptions options = {});
Tensors judge(const OpCase& c, const RunOptions& options = {});

bool is_token_input(const std::string& name);   // [B, T, ...]
bool is_token_result(const std::string& name);  // o and the gradients of token inputs
bool is_state(const std::string& name);         // initial and final states and their gradients, [N, ...]

Tensors moved_to(const Tensors& x, at::Device device);
Tensors clone(const Tensors& x);
Tensors tokens(const Tensors& x, int64_t begin, int64_t end);      // token tensors cut to begin .. end - 1, the others as they are
Tensors sequence(const Tensors& x, int64_t n, int64_t count = 1);  // plain batch: rows n .. n + count - 1 of token tensors and states
Tensors without_gradients(const Tensors& results);
void carry(const Tensors& results, Tensors& inputs);  // final states become initial ones

std::string describe(const OpCase& c);
std::string dtype_label(at::ScalarType dtype);  // "fp64", "fp32", "bf16"

// Arithmetic of the chunk-wise form at 64 tokens per chunk, whatever the chunk of a run, so that figures can be compared. The terms are
// those of docs/operator.md, in their order; backward counts P and P' again and keeps the scores.
struct Flops {
  double forward = 0;
  double backward = 0;
};
Flops op_flops(Op op, const OpShape& shape);

// State read and written by one step of cyclic_flow on all B * H heads.
double step_bytes(const OpShape& shape);

}  // namespace cyfa::cases
