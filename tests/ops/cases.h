// One description of a case for the ops' tests: seeded inputs in realistic ranges, output gradients, a run that returns every
// result by name, and the measures by which two runs are compared.
//
// Names: an input has the name of its argument (initial_k, initial_v, initial_clock or initial_state for the parts of a state),
// an output that of its field (o, final_k, ...), and the gradient of input x is d_x. A gradient that goes in bears the name of
// its output.
#pragma once

#include <torch/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::test {

enum class Op {
  kCyclicFlow,
  kLa,
  kFixedScalarGatedLa,
  kScalarGatedLa,
  kRowGatedLa,
  kColumnGatedLa,
  kDeltaRule,
  kScalarGatedDeltaRule,
  kRowGatedDeltaRule,
};
const std::vector<Op>& all_ops();
const std::vector<Op>& recurrences();  // the interfaces of cyfa/ops/recurrence/recurrence.h: all but cyclic_flow
std::string op_name(Op op);            // "row_gated_la", as in messages
std::string op_label(Op op);           // "RowGatedLa", as in names of tests
// Its keys should have at most unit length: longer ones make the recurrence itself grow without bound.
bool is_delta_rule(Op op);

using Tensors = std::map<std::string, at::Tensor>;

// The forget gates of a case. Spans of 6e4 have been met in practice (users.md, 2).
enum class Gates {
  kRealistic,  // -softplus(normal - 2)
  kOpen,       // 0: nothing is forgotten
  kDead,       // -1e5
  kShut,       // -infinity
  kMixed,      // token by token any of 0, -1e-6, -1e-3, -0.1, -5, -80, -1e3, -1e5, -infinity
};

struct OpCase {
  Op op = Op::kCyclicFlow;
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
  std::optional<double> clock = {};  // initial clocks lie in clock + [0, 1); absent: in [0, 200)
  uint64_t seed = 1;

  int64_t batch() const { return lengths.empty() ? B : 1; }
  int64_t tokens() const;
  int64_t sequences() const { return lengths.empty() ? B : static_cast<int64_t>(lengths.size()); }
};

Tensors make_inputs(const OpCase& c);
Tensors make_output_gradients(const OpCase& c);

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

// Where calls from CPU tensors run, results being brought back: the environment's CYFA_TEST_DEVICE, or the CPU. The reference stays there.
at::Device test_device();

// The op's own call: outputs and final states.
Tensors call(Op op, const Tensors& inputs, const RunOptions& options = {});
// The same for a recurrence by its steps, from a copy of the initial state or from zeros: o and final_state.
Tensors run_steps(Op op, const Tensors& inputs);

ops::CyclicFlowInputs cyclic_flow_inputs(const Tensors& inputs);
const std::vector<std::string>& cyclic_flow_arguments();  // in the order of the op's schema
// What the dispatcher's own ops take: the tensors that are there, and their places in the order of the arguments.
std::pair<std::vector<at::Tensor>, std::vector<int64_t>> packed_inputs(const Tensors& inputs);

// Outputs, final states, and the gradients of sum(output * its gradient) for every input in `wanted` (absent: all but
// cu_seqlens). Outputs without an entry in `gradients` take no part; with no entry at all nothing is differentiated.
// The inputs' memory is what the op sees: nothing is copied.
Tensors run(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options = {},
            const std::optional<std::set<std::string>>& wanted = std::nullopt);
Tensors run(const OpCase& c, const RunOptions& options = {});

// The reference backend on the same numbers in double, so that its results are not rounded to the type of the inputs.
Tensors judge(Op op, const Tensors& inputs, const Tensors& gradients, RunOptions options = {});
Tensors judge(const OpCase& c, const RunOptions& options = {});

bool is_token_input(const std::string& name);   // [B, T, ...]
bool is_token_result(const std::string& name);  // o and the gradients of token inputs
bool is_state(const std::string& name);         // initial and final states and their gradients, [N, ...]

Tensors clone(const Tensors& x);
Tensors tokens(const Tensors& x, int64_t begin, int64_t end);      // token tensors cut to begin .. end - 1, the others as they are
Tensors sequence(const Tensors& x, int64_t n, int64_t count = 1);  // plain batch: rows n .. n + count - 1 of token tensors and states
Tensors without_gradients(const Tensors& results);
void carry(const Tensors& results, Tensors& inputs);  // final states become initial ones

// |got - want| / |want| in the Euclidean norm, in double; |got - want| where |want| is below 1e-12. Infinite if sizes differ.
double relative_l2(const at::Tensor& got, const at::Tensor& want);

// Ceilings of relative L2 against the reference on the same inputs; tests_ops prints what it measures. Over the whole suite:
// fp64 at most 4.4e-12 (d_delta; sums of gates of -1e3 in a chunk cost 1e-12, the rest is below 1e-13), fp32 at most 5.8e-7 for
// outputs and states, 1e-6 for gradients and 3.6e-6 for those of the clock, which are sums with cancellation. A result in bf16
// differs by its rounding, at most 2^-8 = 3.9e-3.
inline constexpr double kLimitFp64 = 1e-10;
inline constexpr double kLimitFp32 = 5e-6;
inline constexpr double kLimitFp32Gradient = 2e-5;
inline constexpr double kLimitFp32Sum = 1e-4;  // d_log_gamma: a sum over all tokens, whose terms may cancel
inline constexpr double kLimitBf16 = 4e-3;
double limit_of(at::ScalarType case_dtype, const std::string& name, const at::Tensor& result);

// Every tensor of `want` within its limit, or within `limit` where one is given. Keeps the largest errors, which a program
// prints when all its tests have run.
void expect_close(const Tensors& got, const Tensors& want, std::optional<double> limit = std::nullopt);

bool same_bits(const at::Tensor& a, const at::Tensor& b);
void expect_same_bits(const Tensors& got, const Tensors& want);
// The same for results of calls of different shapes. Where a GPU computes in parts of ATen, cuBLAS adds in an order that it chooses by the
// shape: there they are close (docs/support.md).
void expect_same_bits_of_shapes(const Tensors& got, const Tensors& want);

std::string describe(const OpCase& c);
std::string dtype_label(at::ScalarType dtype);  // "fp64", "fp32", "bf16"

}  // namespace cyfa::test
