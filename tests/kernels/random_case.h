// Seeded random inputs of cyclic_flow in realistic ranges, with owned storage, and the measures shared by the kernel tests: relative L2
// error and finite differences.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"

namespace cyfa::test {

class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : engine_(seed) {}

  double normal() { return normal_(engine_); }
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  double gate() { return 1.0 / (1.0 + std::exp(-normal())); }           // delta, beta
  double log_decay() { return -std::log1p(std::exp(normal() - 2.0)); }  // log_alpha

  std::vector<double> normals(int64_t count, double size = 1.0) {
    std::vector<double> x(count);
    for (double& value : x) value = size * normal();
    return x;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

struct CyclicFlowCaseOptions {
  std::vector<int64_t> lengths = {17};  // tokens of each sequence; 0 is allowed
  int64_t H = 2;
  int64_t K = 4;
  int64_t V = 4;
  int64_t M = 8;
  bool norm_weights = true;
  bool initial_state = true;
  uint64_t seed = 1;
};

// The inputs of cyclic_flow::reference::Inputs with the same layouts; empty optional ones are passed as null.
struct CyclicFlowCase {
  cyclic_flow::Shape shape;
  std::vector<int64_t> offsets;
  std::vector<double> q, k, v, log_alpha, delta, beta, readout, q_norm_weight, k_norm_weight, initial_k, initial_v, initial_clock;
  double scale = 1.0;
  double norm_eps = 1e-5;

  cyclic_flow::reference::Inputs inputs() const {
    const auto optional = [](const std::vector<double>& x) { return x.empty() ? nullptr : x.data(); };
    cyclic_flow::reference::Inputs in;
    in.shape = shape;
    in.offsets = offsets.data();
    in.q = q.data();
    in.k = k.data();
    in.v = v.data();
    in.log_alpha = log_alpha.data();
    in.delta = delta.data();
    in.beta = beta.data();
    in.readout = readout.data();
    in.q_norm_weight = optional(q_norm_weight);
    in.k_norm_weight = optional(k_norm_weight);
    in.initial_k = optional(initial_k);
    in.initial_v = optional(initial_v);
    in.initial_clock = optional(initial_clock);
    in.scale = scale;
    in.norm_eps = norm_eps;
    return in;
  }
};

inline CyclicFlowCase random_cyclic_flow_case(const CyclicFlowCaseOptions& options) {
  RandomSource random(options.seed);
  CyclicFlowCase result;
  result.offsets = {0};
  for (const int64_t length : options.lengths) result.offsets.push_back(result.offsets.back() + length);
  cyclic_flow::Shape& s = result.shape;
  s.N = static_cast<int64_t>(options.lengths.size());
  s.T = result.offsets.back();
  s.H = options.H;
  s.K = options.K;
  s.V = options.V;
  s.M = options.M;
  const int64_t m = s.m();
  result.q = random.normals(s.T * s.H * s.K);
  result.k = random.normals(s.T * s.H * s.K);
  result.v = random.normals(s.T * s.H * s.V);
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    result.log_alpha.push_back(random.log_decay());
    result.delta.push_back(random.gate());
    result.beta.push_back(random.gate());
  }
  result.readout = random.normals(s.H * m * m, 0.1);
  for (int64_t h = 0; h < s.H; ++h) {
    for (int64_t r = 0; r < m; ++r) result.readout[(h * m + r) * m + r] += 1.0;
  }
  if (options.norm_weights) {
    result.q_norm_weight = random.normals(s.K, 0.1);
    result.k_norm_weight = random.normals(s.K, 0.1);
    for (double& weight : result.q_norm_weight) weight += 1.0;
    for (double& weight : result.k_norm_weight) weight += 1.0;
  }
  if (options.initial_state) {
    result.initial_k = random.normals(s.N * s.H * s.K * s.M, 0.3);
    result.initial_v = random.normals(s.N * s.H * s.M * s.V, 0.3);
    for (int64_t row = 0; row < s.N * s.H * s.K; ++row) result.initial_k[row * s.M + 1] = 0.0;  // the padding coordinate
    for (int64_t pair = 0; pair < s.N * s.H; ++pair) {
      for (int64_t i = 0; i < s.V; ++i) result.initial_v[(pair * s.M + 1) * s.V + i] = 0.0;
      result.initial_clock.push_back(random.uniform(0.0, 200.0));
    }
  }
  result.scale = 1.0 / std::sqrt(static_cast<double>(s.K));
  return result;
}

// A gradient for every output.
struct CyclicFlowOutputGradients {
  std::vector<double> o, final_k, final_v, final_clock;

  cyclic_flow::reference::OutputGradients view() const { return {o.data(), final_k.data(), final_v.data(), final_clock.data()}; }
};

inline CyclicFlowOutputGradients random_output_gradients(const cyclic_flow::Shape& s, uint64_t seed) {
  RandomSource random(seed);
  CyclicFlowOutputGradients grad;
  grad.o = random.normals(s.T * s.H * s.V);
  grad.final_k = random.normals(s.N * s.H * s.K * s.M);
  grad.final_v = random.normals(s.N * s.H * s.M * s.V);
  grad.final_clock = random.normals(s.N * s.H);
  return grad;
}

// |got - want| / |want| in the Euclidean norm; |got| if want is zero; infinite if the sizes differ.
inline double relative_l2(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return HUGE_VAL;
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(norm > 0.0 ? error / norm : error);
}

// Fourth-order finite difference of loss() with respect to x, which loss() reads. Uses two points on either side of x or, if
// `at_most_here`, x and four points below it (log_alpha must not exceed 0). loss() returns a vector of losses.
template <class Loss>
std::vector<double> finite_difference(double& x, const Loss& loss, bool at_most_here = false) {
  constexpr double kStep = 1e-3;
  struct Point {
    double place, weight;
  };
  static constexpr Point kCentral[] = {{-2, 1.0 / 12}, {-1, -8.0 / 12}, {1, 8.0 / 12}, {2, -1.0 / 12}};
  static constexpr Point kBelow[] = {{0, 25.0 / 12}, {-1, -4}, {-2, 3}, {-3, -4.0 / 3}, {-4, 1.0 / 4}};
  const double original = x;
  std::vector<double> slope;
  const auto add = [&](const Point& point) {
    x = original + point.place * kStep;
    const std::vector<double> value = loss();
    slope.resize(value.size(), 0.0);
    for (size_t i = 0; i < value.size(); ++i) slope[i] += point.weight / kStep * value[i];
  };
  if (at_most_here) {
    for (const Point& point : kBelow) add(point);
  } else {
    for (const Point& point : kCentral) add(point);
  }
  x = original;
  return slope;
}

}  // namespace cyfa::test
