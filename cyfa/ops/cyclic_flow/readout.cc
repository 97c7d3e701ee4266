// See readout.h.
#include "cyfa/ops/cyclic_flow/readout.h"

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <tuple>

namespace cyfa::ops {
namespace {

at::Tensor as_complex(const at::Tensor& x) { return at::view_as_complex(x.unflatten(-1, {x.size(-1) / 2, 2})); }
at::Tensor as_real(const at::Tensor& z) { return at::view_as_real(z).flatten(-2); }

// The table of each of n = lanes * H batch entries.
at::Tensor per_lane(const at::Tensor& table, int64_t n) {
  const int64_t lanes = n / table.size(0);
  return lanes == 1 ? table : table.repeat({lanes, 1, 1});
}

at::Tensor tokens(const at::Tensor& x) { return x.flatten(1, 2); }  // [n, g, C, M] -> [n, g * C, M]

// Computed on the CPU in double.
at::Tensor make_fourier_basis(int64_t M) {
  const int64_t m = M - 1;
  const auto index = at::TensorOptions(at::kLong);
  const at::Tensor turns = at::outer(at::arange(m, index), at::arange(M / 2, index)).remainder_(m);  // r j modulo m, exact
  const at::Tensor angle = turns.to(at::kDouble).mul_(2 * std::numbers::pi / static_cast<double>(m));
  const at::Tensor basis = at::stack({angle.cos(), angle.sin()}, -1).mul_(std::sqrt(2.0 / static_cast<double>(m)));
  basis.select(1, 0).select(1, 0).fill_(std::sqrt(1.0 / static_cast<double>(m)));
  return basis.flatten(1);
}

}  // namespace

// Cached for the first sizes seen: every call needs the basis, and computing it on a GPU takes about fifteen small launches. The copy to a
// device is synchronous, so that any CUDA stream may use the result.
at::Tensor fourier_basis(int64_t M, at::TensorOptions options) {
  constexpr size_t kKept = 64;
  static std::mutex mutex;
  static auto& kept =
      *new std::map<std::tuple<std::string, at::ScalarType, int64_t>, at::Tensor>;  // never destroyed: the device may be gone at exit
  const auto key = std::make_tuple(options.device().str(), c10::typeMetaToScalarType(options.dtype()), M);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second;
  const c10::InferenceMode normal(false);  // later calls may record gradients with it
  const at::Tensor basis = make_fourier_basis(M).to(options);
  if (kept.size() < kKept) kept.emplace(key, basis);
  return basis;
}

at::Tensor readout_table(const at::Tensor& readout, at::ScalarType dtype) {
  const int64_t H = readout.size(0);
  const int64_t M = readout.size(1) + 1;
  const auto options = readout.options().dtype(dtype);
  const at::Tensor table = at::zeros({H, M, M}, options);
  table.narrow(1, 0, M - 1).copy_(at::matmul(readout.to(dtype), fourier_basis(M, options)));
  return table;
}

at::Tensor readout_table_backward(const at::Tensor& grad_table) {
  const int64_t M = grad_table.size(1);
  return at::matmul(grad_table.narrow(1, 0, M - 1), fourier_basis(M, grad_table.options()).t());
}

ClockPhases::ClockPhases(const at::Tensor& clock, int64_t M, at::ScalarType dtype) {
  const double m = static_cast<double>(M - 1);
  const at::Tensor turn = clock.remainder(m).div_(m).unsqueeze(-1);
  const at::Tensor turns = turn * at::arange(M / 2, clock.options());
  const at::Tensor angle = turns.sub_(turns.round()).mul_(2 * std::numbers::pi).to(dtype);
  const at::Tensor cos = angle.cos();
  const at::Tensor sin = angle.sin();
  forward = at::complex(cos, sin);
  backward = at::complex(cos, sin.neg_());
}

at::Tensor temporal_addresses(const ClockPhases& phases) {
  const int64_t pairs = phases.backward.size(-1);
  const double m = static_cast<double>(2 * pairs - 1);
  at::Tensor norm = at::full({2 * pairs}, std::sqrt(2.0 / m), at::view_as_real(phases.backward).options());
  norm.select(0, 0).fill_(std::sqrt(1.0 / m));
  norm.select(0, 1).fill_(0);  // the padding row; its sine is exactly zero already
  return as_real(phases.backward) * norm;
}

SlotReadout read_slots(const at::Tensor& scores, const ClockPhases& phases, const at::Tensor& table) {
  const int64_t M = table.size(1);
  const at::Tensor tables = per_lane(table, scores.size(0));
  SlotReadout out;
  out.rotated = as_real(as_complex(scores) * phases.forward);
  const at::Tensor logits = at::bmm(tokens(out.rotated), tables.transpose(1, 2));
  logits.select(-1, M - 1).fill_(-std::numeric_limits<double>::infinity());
  out.probs = at::softmax(logits, -1);
  const at::Tensor mixed = at::bmm(out.probs, tables).view_as(scores);
  out.weights = as_real(as_complex(mixed).mul_(phases.backward));
  return out;
}

at::Tensor read_slots_backward(const SlotReadout& forward, const ClockPhases& phases, const at::Tensor& table,
                               const at::Tensor& grad_weights, const at::Tensor& grad_table) {
  const int64_t n = grad_weights.size(0);
  const at::Tensor tables = per_lane(table, n);
  const at::Tensor grad_mixed = tokens(as_real(as_complex(grad_weights) * phases.forward));
  const at::Tensor grad_probs = at::bmm(grad_mixed, tables.transpose(1, 2));
  const at::Tensor grad_logits = at::_softmax_backward_data(grad_probs, forward.probs, -1, grad_probs.scalar_type());
  const at::Tensor grad_tables =
      at::bmm(grad_logits.transpose(1, 2), tokens(forward.rotated)).baddbmm_(forward.probs.transpose(1, 2), grad_mixed);
  grad_table.add_(grad_tables.view({-1, table.size(0), table.size(1), table.size(2)}).sum(0));
  const at::Tensor grad_rotated = at::bmm(grad_logits, tables).view_as(grad_weights);
  return as_real(as_complex(grad_rotated).mul_(phases.backward));
}

at::Tensor cyclic_flow_slots(const at::Tensor& rows, const at::Tensor& clock) {
  const WithoutAutocast plain_types;
  const int64_t M = rows.size(2);
  const ClockPhases phases(clock.to(at::kDouble), M, rows.scalar_type());
  const at::Tensor pairs = at::view_as_complex(rows.transpose(2, 3).contiguous().unflatten(3, {M / 2, 2}));  // [N, H, X, M / 2]
  const at::Tensor turned = at::view_as_real(pairs * phases.forward.unsqueeze(2)).flatten(3);
  return at::matmul(turned, fourier_basis(M, rows.options()).t()).transpose(2, 3);
}

}  // namespace cyfa::ops
