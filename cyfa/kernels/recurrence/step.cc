// The decode step of step.h. One sweep over the rows of the state gates them, adds the write and sums the output. The delta rules need S'^T
// k before they can write, which takes a first sweep; gates of columns act in that one.
#include "cyfa/kernels/recurrence/step.h"

#include <algorithm>
#include <cmath>

namespace cyfa::recurrence {
namespace {

// The gates of a pair as factors: entry (i, j) of the state is scaled by row[i] column[j].
struct Gates {
  const float* row = nullptr;     // [K]
  const float* column = nullptr;  // [V]; null: all ones
};

void pair_step(const StepParams& p, int64_t pair, const Gates& gates, float* u) {
  const float* q = p.q + pair * p.K;
  const float* k = p.k + pair * p.K;
  const float* v = p.v + pair * p.V;
  float* state = p.state + pair * p.K * p.V;
  float* o = p.o + pair * p.V;
  const auto gate_columns = [&](float* row) {
    if (gates.column == nullptr) return;
#pragma omp simd
    for (int64_t j = 0; j < p.V; ++j) row[j] *= gates.column[j];
  };
  std::copy_n(v, p.V, u);
  if (p.beta != nullptr) {
    for (int64_t i = 0; i < p.K; ++i) {
      const float weight = gates.row[i] * k[i];
      float* row = state + i * p.V;
      gate_columns(row);
#pragma omp simd
      for (int64_t j = 0; j < p.V; ++j) u[j] -= weight * row[j];
    }
    for (int64_t j = 0; j < p.V; ++j) u[j] *= p.beta[pair];
  }
  std::fill_n(o, p.V, 0.0F);
  for (int64_t i = 0; i < p.K; ++i) {
    float* row = state + i * p.V;
    const float gate = gates.row[i];
    const float query = p.scale * q[i];
    if (p.beta == nullptr) gate_columns(row);
#pragma omp simd
    for (int64_t j = 0; j < p.V; ++j) {
      row[j] = gate * row[j] + k[i] * u[j];
      o[j] += query * row[j];
    }
  }
}

}  // namespace

void step_cpu(const StepParams& p, int64_t begin, int64_t end, float* workspace) {
  float* row = workspace;
  float* column = row + p.K;
  float* u = column + p.V;
  std::fill_n(row, p.K, 1.0F);
  for (int64_t pair = begin; pair < end; ++pair) {
    switch (p.gate) {
      case Gate::kNone: break;
      case Gate::kScalar: std::fill_n(row, p.K, std::exp(p.log_alpha[pair])); break;
      case Gate::kRow:
        std::transform(p.log_alpha + pair * p.K, p.log_alpha + (pair + 1) * p.K, row, [](float x) { return std::exp(x); });
        break;
      case Gate::kColumn:
        std::transform(p.log_alpha + pair * p.V, p.log_alpha + (pair + 1) * p.V, column, [](float x) { return std::exp(x); });
        break;
    }
    pair_step(p, pair, {row, p.gate == Gate::kColumn ? column : nullptr}, u);
  }
}

}  // namespace cyfa::recurrence
