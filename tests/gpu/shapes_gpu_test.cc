// More GPU tests: the ops around the operator, a thousand random shapes, tensors with more than 2^31 elements.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/gpu/on_gpu.h"
#include "tests/ops/cases.h"
#include "tests/ops/neighbours.h"

namespace cyfa::test {
namespace {

class GpuShapes : public OnGpu<> {};

TEST_F(GpuShapes, NeighboursAndTheirGradients) {
  ops::neighbours::check_all(at::kCUDA, at::kFloat, 2e-6);
  ops::neighbours::check_all(at::kCUDA, at::kBFloat16, 1e-2);  // torch's own ops round intermediate results
}

Tensors moved(const Tensors& x, bool wide) {
  Tensors there;
  for (const auto& [name, t] : x) there[name] = wide && t.scalar_type() == at::kBFloat16 ? t.to(at::kCUDA).to(at::kFloat) : t.to(at::kCUDA);
  return there;
}

// Accumulated error and size of tensors that share one limit.
struct Together {
  double error = 0, size = 0;

  void add(const at::Tensor& got, const at::Tensor& want) {
    error += (got.to(at::kDouble) - want.to(at::kDouble)).square().sum().item<double>();
    size += want.to(at::kDouble).square().sum().item<double>();
  }
};

// bf16 with the fastest available backend against the portable path in fp32 on the same inputs. A gradient with few elements may be small
// by chance although it is a sum of large terms, so these gradients are compared over all cases together.
TEST_F(GpuShapes, RandomShapesArePortable) {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<int64_t> from) { return *(from.begin() + random() % from.size()); };
  int kernels = 0;
  std::map<std::string, Together> few;
  const auto limit = [](const std::string& name) { return name == "d_clock" ? 0.05 : 0.015; };
  for (int i = 0; i < 1000; ++i) {
    OpCase c{.B = pick({1, 2, 3}), .H = pick({1, 2, 3}), .dtype = at::kBFloat16};
    c.T = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(pick({8, 130, 300, 700})));
    if (random() % 3 == 0) {
      for (int n = 0; n < 4; ++n) c.lengths.push_back(static_cast<int64_t>(random() % 200));
    }
    const bool main_size = random() % 2 == 0;
    c.K = main_size ? 256 : pick({64, 128, 256});
    c.V = main_size ? 256 : pick({64, 128, 256});
    c.M = main_size ? 128 : pick({64, 128, 256});
    c.gates = random() % 4 == 0 ? Gates::kMixed : random() % 4 == 0 ? Gates::kOpen : Gates::kRealistic;
    c.norm_weights = random() % 4 != 0;
    c.initial_state = random() % 2 == 0;
    c.seed = static_cast<uint64_t>(i);
    SCOPED_TRACE(describe(c));
    const Tensors inputs = make_inputs(c), gradients = make_output_gradients(c);
    const Tensors here = moved(inputs, false);
    kernels += ops::cyclic_flow_backends(cyclic_flow_inputs(here)).front().refusal.empty() ? 1 : 0;
    const Tensors got = run(c.op, here, moved(gradients, false));
    const Tensors want = run(c.op, moved(inputs, true), moved(gradients, true), RunOptions{.backend = ops::Backend::kPortable});
    const auto judge = [&](const std::string& name, const Tensors& results, const at::Tensor& t) {
      if (t.numel() < 16) {
        few[name].add(results.at(name), t);
      } else {
        expect_close(results, {{name, t}}, limit(name));
      }
    };
    for (const auto& [name, t] : want) {
      if (name != "d_delta" && name != "d_initial_clock") judge(name, got, t);
    }
    // A clock's gradient is a sum of cancelling terms. That of the initial clock has few elements and may be small, so it is compared
    // together with that of delta.
    const auto of_clocks = [&](const Tensors& x) {
      const at::Tensor delta = x.at("d_delta").flatten().to(at::kDouble);
      return Tensors{{"o", x.at("o")},
                     {"d_clock", c.initial_state ? at::cat({delta, x.at("d_initial_clock").flatten().to(at::kDouble)}) : delta}};
    };
    judge("d_clock", of_clocks(got), of_clocks(want).at("d_clock"));
    if (HasFailure()) break;
  }
  for (const auto& [name, x] : few) EXPECT_LE(std::sqrt(x.error), limit(name) * std::sqrt(x.size)) << name << " of few numbers";
  std::cout << kernels << " of 1,000 cases by the GPU's own kernels\n";
}

// The second of two packed sequences begins after 2^31 elements. Its results must be bitwise the same as without the first.
TEST_F(GpuShapes, MoreElementsThan32BitsCount) {
  const int64_t H = 4, K = 256, M = 128, before = int64_t{1} << 21, own = 300, T = before + own;
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  at::manual_seed(3);
  ops::CyclicFlowInputs in;
  in.q = at::randn({1, T, H, K}, options);
  in.k = at::randn({1, T, H, K}, options);
  in.v = at::randn({1, T, H, K}, options);
  in.log_alpha = -at::rand({1, T, H}, options.dtype(at::kFloat));
  in.delta = at::rand({1, T, H}, options.dtype(at::kFloat));
  in.beta = at::rand({1, T, H}, options.dtype(at::kFloat));
  in.readout = at::eye(M - 1, options.dtype(at::kFloat)).expand({H, -1, -1}).contiguous();
  in.q_norm_weight = at::ones({K}, options.dtype(at::kFloat));
  in.k_norm_weight = at::ones({K}, options.dtype(at::kFloat));
  ASSERT_GT(in.q.numel(), int64_t{1} << 31);
  const auto results = [](ops::CyclicFlowInputs x, const at::Tensor& grad) {
    for (at::Tensor* t : {&x.q, &x.k, &x.v, &x.log_alpha, &x.delta, &x.beta}) t->requires_grad_();
    const at::Tensor o = ops::cyclic_flow(x, RunOptions{.backend = ops::Backend::kSm90}).o;
    std::vector<at::Tensor> out = torch::autograd::grad({o}, {x.q, x.k, x.v, x.log_alpha, x.delta, x.beta}, {grad});
    out.push_back(o.detach());
    return out;
  };
  const at::Tensor grad = at::randn({1, T, H, K}, options);
  ops::CyclicFlowInputs alone = in;
  for (at::Tensor* t : {&alone.q, &alone.k, &alone.v, &alone.log_alpha, &alone.delta, &alone.beta}) *t = t->narrow(1, before, own).clone();
  in.cu_seqlens = at::tensor({int64_t{0}, before, T}, at::kLong).to(at::kCUDA);
  const std::vector<at::Tensor> wanted = results(alone, grad.narrow(1, before, own).contiguous());
  const std::vector<at::Tensor> got = results(in, grad);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i].narrow(1, before, own).cpu(), wanted[i].cpu())) << i;
}

}  // namespace
}  // namespace cyfa::test
