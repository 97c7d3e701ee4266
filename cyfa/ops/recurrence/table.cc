#include "cyfa/ops/recurrence/table.h"

#include "cyfa/ops/common/check.h"
#include "cyfa/ops/recurrence/impl.h"
#include "cyfa/ops/recurrence/passes.h"

namespace cyfa::ops {

const std::vector<Recurrence>& recurrences() {
  using In = RecurrenceInputs;
  static const RecurrenceArgument log_gamma{"log_gamma", "H", &In::log_alpha};
  static const RecurrenceArgument log_alpha{"log_alpha", "BTH", &In::log_alpha};
  static const RecurrenceArgument log_alpha_of_rows{"log_alpha", "BTHK", &In::log_alpha};
  static const RecurrenceArgument log_alpha_of_columns{"log_alpha", "BTHV", &In::log_alpha};
  static const RecurrenceArgument beta{"beta", "BTH", &In::beta};
#ifdef CYFA_CUDA
  static const std::vector<RecurrenceBackend> backends = {recurrence_sm90(), recurrence_portable(), recurrence_reference()};
#else
  static const std::vector<RecurrenceBackend> backends = {recurrence_portable(), recurrence_reference()};
#endif

  static const std::vector<Recurrence> all = {
      {.op = "la",
       .definition = "S_t = S_{t-1} + k_t v_t^T",
       .gate = Gate::kNone,
       .delta = false,
       .arguments = {},
       .pass = &kScalarPass,
       .backends = backends},
      {.op = "fixed_scalar_gated_la",
       .definition = "S_t = gamma S_{t-1} + k_t v_t^T",
       .gate = Gate::kScalar,
       .delta = false,
       .arguments = {log_gamma},
       .pass = &kScalarPass,
       .backends = backends},
      {.op = "scalar_gated_la",
       .definition = "S_t = alpha_t S_{t-1} + k_t v_t^T",
       .gate = Gate::kScalar,
       .delta = false,
       .arguments = {log_alpha},
       .pass = &kScalarPass,
       .backends = backends},
      {.op = "row_gated_la",
       .definition = "S_t = Diag(alpha_t) S_{t-1} + k_t v_t^T",
       .gate = Gate::kRow,
       .delta = false,
       .arguments = {log_alpha_of_rows},
       .pass = &kRowPass,
       .backends = backends},
      {.op = "column_gated_la",
       .definition = "S_t = S_{t-1} Diag(alpha_t) + k_t v_t^T",
       .gate = Gate::kColumn,
       .delta = false,
       .arguments = {log_alpha_of_columns},
       .pass = &kColumnPass,
       .backends = backends},
      {.op = "delta_rule",
       .definition = "S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T",
       .gate = Gate::kNone,
       .delta = true,
       .arguments = {beta},
       .pass = &kDeltaPass,
       .backends = backends},
      {.op = "scalar_gated_delta_rule",
       .definition = "S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T",
       .gate = Gate::kScalar,
       .delta = true,
       .arguments = {beta, log_alpha},
       .pass = &kDeltaPass,
       .backends = backends},
      {.op = "row_gated_delta_rule",
       .definition = "S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T",
       .gate = Gate::kRow,
       .delta = true,
       .arguments = {beta, log_alpha_of_rows},
       .pass = &kDeltaPass,
       .backends = backends},
  };
  return all;
}

const Recurrence& recurrence_of(std::string_view op) {
  std::string names;
  for (const Recurrence& r : recurrences()) {
    if (op == r.op) return r;
    names += (names.empty() ? "" : ", ") + std::string(r.op);
  }
  check::fail("recurrence", "the name is '" + std::string(op) + "', wanted one of " + names);
}

}  // namespace cyfa::ops
