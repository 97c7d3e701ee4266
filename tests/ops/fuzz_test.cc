// Random calls of every op, about half of them with one to three mutations. This file has its own rules to decide whether a call is valid.
// Valid calls must match the reference; invalid ones must throw ArgumentError.
#include <gtest/gtest.h>

#include <random>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : engine_(seed) {}

  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(0, static_cast<int64_t>(values.size()) - 1)];
  }

  OpCase random_case(Op op, uint64_t seed) {
    OpCase c;
    c.op = op;
    c.B = pick(0, 3);
    c.T = one_of<int64_t>({0, 1, 2, 5, 9, 17, 20});
    if (chance(0.4)) {
      const int64_t count = pick(1, 5);
      for (int64_t n = 0; n < count; ++n) c.lengths.push_back(one_of<int64_t>({0, 0, 1, 3, 8, 11}));
    }
    c.H = pick(1, 3);
    c.norm_weights = chance(0.5);
    c.K = pick(c.norm_weights ? 2 : 1, 9);  // RMSNorm of a single element is its sign, whose gradient is only rounding error
    c.V = pick(1, 9);
    c.M = 2 * pick(1, 6);
    c.dtype = one_of({at::kFloat, at::kFloat, at::kDouble, at::kBFloat16});
    if (chance(0.3)) c.gate_dtype = one_of({at::kFloat, at::kDouble, at::kBFloat16});
    c.gates = one_of({Gates::kRealistic, Gates::kMixed, Gates::kDead, Gates::kShut, Gates::kOpen});
    c.initial_state = chance(0.5);
    c.seed = seed;
    return c;
  }

  RunOptions random_options() {
    RunOptions options;
    options.chunk = one_of<int64_t>({0, 1, 4, 16});
    options.segment_chunks = one_of<int64_t>({0, 1, 2});
    options.save_scores = chance(0.5);
    if (chance(0.05)) options.chunk = one_of<int64_t>({-1, 5000});
    if (chance(0.02)) options.segment_chunks = -2;
    return options;
  }

  // Mutates a random tensor. Not every mutation makes the call invalid.
  void change(Tensors& inputs) {
    auto entry = inputs.begin();
    std::advance(entry, pick(0, static_cast<int64_t>(inputs.size()) - 1));
    const std::string& name = entry->first;
    at::Tensor& x = entry->second;
    if (!x.defined()) return;
    switch (pick(0, 6)) {
      case 0:
      case 1: {  // another size
        if (x.dim() == 0) return;
        std::vector<int64_t> sizes = x.sizes().vec();
        sizes[static_cast<size_t>(pick(0, x.dim() - 1))] = pick(0, 6);
        const at::Tensor other = at::zeros(sizes, x.options());
        x = other;
        return;
      }
      case 2: x = x.unsqueeze(pick(0, x.dim())); return;
      case 3: x = x.to(one_of({at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong})); return;
      case 4:
        if (name == "cu_seqlens") {
          inputs.erase(entry);
        } else {
          x = at::Tensor();
        }
        return;
      case 5:
        if (x.numel() == 0 || !x.is_contiguous()) return;
        if ((name == "log_alpha" || name == "log_gamma") && x.is_floating_point()) {
          if (!test_device().is_cpu()) return;  // gate values are checked only on the CPU
          x.flatten()[pick(0, x.numel() - 1)] = one_of<double>({0.5, NAN});
        }
        if (name == "cu_seqlens") x.flatten()[pick(0, x.numel() - 1)] = pick(-1, 30);
        return;
      default:
        if (x.dim() >= 2) x = x.transpose(0, x.dim() - 1);
        return;
    }
  }

 private:
  std::mt19937_64 engine_;
};

bool has(const Tensors& x, const std::string& name) { return x.contains(name) && x.at(name).defined(); }

bool floating(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble || x.scalar_type() == at::kBFloat16;
}

bool is(const at::Tensor& x, const std::vector<int64_t>& sizes) { return x.sizes() == at::IntArrayRef(sizes); }

// Whether no gate is above 0 or NaN.
bool gates_are_right(const at::Tensor& x) { return x.numel() == 0 || (x.to(at::kDouble) <= 0.0).all().item<bool>(); }

// The rules of cyfa/ops/cyclic_flow/cyclic_flow.h and cyfa/ops/recurrence/table.h. `shapes` are those of the op's arguments other than q,
// k, v, the state and cu_seqlens.
using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes gate_shapes(Op op, int64_t B, int64_t T, int64_t H, int64_t K, int64_t V) {
  const std::vector<int64_t> token = {B, T, H};
  if (op == Op::kCyclicFlow) return {{"log_alpha", token}, {"delta", token}, {"beta", token}};
  const std::map<char, int64_t> sizes = {{'B', B}, {'T', T}, {'H', H}, {'K', K}, {'V', V}};
  Shapes shapes;
  for (const ops::RecurrenceArgument& a : op.recurrence()->arguments) {
    for (const char letter : std::string(a.shape)) shapes[a.name].push_back(sizes.at(letter));
  }
  return shapes;
}

bool right(Op op, const Tensors& x, const RunOptions& options) {
  if (options.chunk < 0 || options.chunk > 4096 || options.segment_chunks < 0) return false;
  for (const char* name : {"q", "k", "v"}) {
    if (!has(x, name) || !floating(x.at(name))) return false;
  }
  for (const auto& [name, t] : x) {
    if (!t.defined()) return false;
  }
  const at::Tensor& q = x.at("q");
  const at::Tensor& v = x.at("v");
  if (q.dim() != 4 || v.dim() != 4) return false;
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), V = v.size(3);
  if (H < 1 || K < 1 || V < 1 || !is(x.at("k"), {B, T, H, K}) || !is(v, {B, T, H, V})) return false;
  if (x.at("k").scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type()) return false;
  for (const auto& [name, sizes] : gate_shapes(op, B, T, H, K, V)) {
    if (!has(x, name) || !floating(x.at(name)) || !is(x.at(name), sizes)) return false;
    if (name.starts_with("log_") && !gates_are_right(x.at(name))) return false;
  }
  int64_t m = 0;
  if (op == Op::kCyclicFlow) {
    if (!has(x, "readout") || !floating(x.at("readout")) || x.at("readout").dim() != 3) return false;
    m = x.at("readout").size(1);
    if (!is(x.at("readout"), {H, m, m}) || m % 2 == 0) return false;
    for (const char* name : {"q_norm_weight", "k_norm_weight"}) {
      if (x.contains(name) && (!is(x.at(name), {K}) || !floating(x.at(name)))) return false;
    }
  }
  int64_t N = B;
  if (has(x, "cu_seqlens")) {
    const at::Tensor& borders = x.at("cu_seqlens");
    if (B != 1 || borders.dim() != 1 || borders.size(0) < 1 || borders.scalar_type() != at::kLong) return false;
    N = borders.size(0) - 1;
    if (borders[0].item<int64_t>() != 0 || borders[N].item<int64_t>() != T || (borders.diff() < 0).any().item<bool>()) return false;
  }
  const at::ScalarType state = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (has(x, "initial_state")) return is(x.at("initial_state"), {N, H, K, V}) && x.at("initial_state").scalar_type() == state;
  if (!has(x, "initial_k")) return true;
  const at::Tensor& clock = x.at("initial_clock");
  return is(x.at("initial_k"), {N, H, K, m + 1}) && is(x.at("initial_v"), {N, H, m + 1, V}) && is(clock, {N, H}) &&
         x.at("initial_k").scalar_type() == state && x.at("initial_v").scalar_type() == state &&
         (clock.scalar_type() == at::kDouble || clock.scalar_type() == at::kFloat);
}

std::string describe(const Tensors& inputs, const RunOptions& options) {
  std::ostringstream out;
  for (const auto& [name, x] : inputs) {
    out << name << " ";
    if (x.defined()) out << c10::toString(x.scalar_type()) << x.sizes();
    out << "; ";
  }
  out << "chunk " << options.chunk << " x " << options.segment_chunks;
  return out.str();
}

// Output gradients of ones, in each output's type.
Tensors ones_for(const Tensors& outputs) {
  Tensors gradients;
  for (const auto& [name, x] : outputs) gradients[name] = at::ones_like(x);
  return gradients;
}

// The inputs with each element perturbed by one fp32 rounding error, alternately up and down.
Tensors rounded_once(const Tensors& inputs) {
  constexpr double kRounding = 5.9604644775390625e-8;
  Tensors moved;
  for (const auto& [name, x] : inputs) {
    if (!x.is_floating_point() || name == "initial_clock") {
      moved[name] = x;
      continue;
    }
    const at::Tensor signs = at::arange(x.numel(), x.options().dtype(at::kDouble)).remainder(2).mul(2).sub(1).view(x.sizes());
    moved[name] = x.to(at::kDouble) * (1.0 + kRounding * signs);
  }
  return moved;
}

class Fuzz : public testing::TestWithParam<Op> {};

INSTANTIATE_TEST_SUITE_P(Ops, Fuzz, testing::ValuesIn(all_ops()), [](const auto& test) { return op_label(test.param); });

TEST_P(Fuzz, RightCallsMatchAndWrongCallsAreRefused) {
  constexpr uint64_t kCalls = 1000;
  Fuzzer fuzzer(20240607);
  int taken = 0;
  int refused = 0;
  for (uint64_t call = 0; call < kCalls; ++call) {
    const OpCase c = fuzzer.random_case(GetParam(), call);
    Tensors inputs = make_inputs(c);
    const RunOptions options = fuzzer.random_options();
    if (fuzzer.chance(0.6)) {
      for (int64_t i = fuzzer.pick(1, 3); i > 0; --i) fuzzer.change(inputs);
    }
    SCOPED_TRACE("call " + std::to_string(call) + ": " + describe(inputs, options));
    const bool good = right(c.op, inputs, options);
    try {
      const Tensors outputs = run(c.op, inputs, {}, options);
      ASSERT_TRUE(good) << "was accepted";
      ++taken;
      const Tensors results = run(c.op, inputs, ones_for(outputs), options);
      for (const auto& [name, want] : judge(c.op, inputs, ones_for(outputs), {.scale = options.scale})) {
        const double error = relative_l2(results.at(name), want);
        double limit = limit_of(outputs.at("o").scalar_type(), name, results.at(name));
        if (error > limit && outputs.at("o").scalar_type() != at::kDouble) {  // nearly cancelling sums: allow for unavoidable rounding
          limit += 4.0 * relative_l2(judge(c.op, rounded_once(inputs), ones_for(outputs), {.scale = options.scale}).at(name), want);
        }
        ASSERT_LE(error, limit) << name;
      }
    } catch (const ops::ArgumentError& error) {
      ASSERT_FALSE(good) << "was refused: " << error.what();
      ++refused;
      ASSERT_NE(std::string(error.what()).find(op_name(c.op) + ": "), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      FAIL() << "neither a result nor an ArgumentError: " << std::string(error.what()).substr(0, 400);
    }
  }
  // The test must have covered both valid and invalid calls.
  EXPECT_GT(taken, 250);
  EXPECT_GT(refused, 250);
}

}  // namespace
}  // namespace cyfa::test
