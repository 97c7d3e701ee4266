// The CPU decode step of the recurrences against the fp64 reference, for every gate with and without the delta rule.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cyfa/kernels/recurrence/step.h"

namespace cyfa::recurrence {
namespace {

std::vector<double> numbers(std::mt19937& random, int64_t count, double low, double high) {
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<double> x(static_cast<size_t>(count));
  for (double& value : x) value = static_cast<float>(draw(random));
  return x;
}

std::vector<float> narrow(const std::vector<double>& x) { return {x.begin(), x.end()}; }

TEST(RecurrenceStep, IsTheReferenceForEveryGateWithAndWithoutTheDeltaRule) {
  constexpr int64_t H = 3, K = 5, V = 7;
  for (const Gate gate : {Gate::kNone, Gate::kScalar, Gate::kRow, Gate::kColumn}) {
    for (const bool delta : {false, true}) {
      SCOPED_TRACE("gate " + std::to_string(static_cast<int>(gate)) + (delta ? " with delta rule" : ""));
      std::mt19937 random(7);
      const std::vector<int64_t> offsets = {0, 1};
      const std::vector<double> q = numbers(random, H * K, -1, 1), k = numbers(random, H * K, -0.4, 0.4), v = numbers(random, H * V, -1, 1),
                                beta = numbers(random, H, 0, 1), state = numbers(random, H * K * V, -1, 1);
      reference::Inputs in{1, 1, H, K, V, offsets.data(), q.data(), k.data(), v.data(), gate, nullptr, nullptr, state.data(), 0.5};
      const std::vector<double> log_alpha = numbers(random, H * in.gates(), -2, 0);
      if (in.gates() > 0) in.log_alpha = log_alpha.data();
      if (delta) in.beta = beta.data();
      const reference::Outputs want = reference::forward(in);

      const std::vector<float> q32 = narrow(q), k32 = narrow(k), v32 = narrow(v), beta32 = narrow(beta), log_alpha32 = narrow(log_alpha);
      std::vector<float> state32 = narrow(state), o(H * V), workspace(K + 2 * V);
      StepParams p{H,
                   K,
                   V,
                   gate,
                   q32.data(),
                   k32.data(),
                   v32.data(),
                   in.gates() > 0 ? log_alpha32.data() : nullptr,
                   delta ? beta32.data() : nullptr,
                   0.5F,
                   state32.data(),
                   o.data()};
      step_cpu(p, 0, H, workspace.data());
      for (size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(o[i], want.o[i], 1e-5) << i;
      for (size_t i = 0; i < state32.size(); ++i) EXPECT_NEAR(state32[i], want.final_state[i], 1e-6) << i;
    }
  }
}

}  // namespace
}  // namespace cyfa::recurrence
