// See portable_cpu.h.
#include "cyfa/ops/cyclic_flow/portable_cpu.h"

#include <algorithm>
#include <memory>

namespace cyfa::ops {
namespace {

using cyclic_flow::ChunkSizes;
using cyclic_flow::ChunkWorkspace;
using cyclic_flow::TokenRows;
using cyclic_flow::TokenRowsOut;

// Gates [B, T, H] as [H, B * T].
at::Tensor by_head(const at::Tensor& x, at::ScalarType dtype) { return x.flatten(0, 1).t().to(dtype).contiguous(); }

// Row (token, head) of x [tokens, H, X], and those of the following tokens.
TokenRows token_rows(const at::Tensor& x, int64_t token, int64_t head) {
  const bool bf16 = x.scalar_type() == at::kBFloat16;
  const int64_t at = token * x.stride(0) + head * x.stride(1);
  return {static_cast<const char*>(x.const_data_ptr()) + at * x.element_size(), x.stride(0), bf16};
}

TokenRowsOut token_rows_out(const at::Tensor& x, int64_t token, int64_t head) {
  const int64_t at = token * x.stride(0) + head * x.stride(1);
  return {static_cast<char*>(x.mutable_data_ptr()) + at * x.element_size(), x.stride(0), x.scalar_type() == at::kBFloat16};
}

// Row (i, head) of contiguous x [rows, H, ...].
template <class T>
T* row_of(const at::Tensor& x, int64_t i, int64_t head) {
  return x.mutable_data_ptr<T>() + i * x.stride(0) + head * x.stride(1);
}
template <class T>
const T* const_row_of(const at::Tensor& x, int64_t i, int64_t head) {
  return x.const_data_ptr<T>() + i * x.stride(0) + head * x.stride(1);
}

// A workspace for the segments of a task, made anew where the length of chunks changes.
class Workspaces {
 public:
  // most: tokens of a segment for backward, 0 for forward.
  const ChunkWorkspace& of(const ChunkSizes& sizes, int64_t most) {
    if (workspace_ == nullptr || workspace_->sizes().C != sizes.C || most > most_) {
      workspace_ = std::make_unique<ChunkWorkspace>(sizes, most);
      most_ = most;
    }
    return *workspace_;
  }

 private:
  std::unique_ptr<ChunkWorkspace> workspace_;
  int64_t most_ = 0;
};

}  // namespace

CpuInputs::CpuInputs(const CyclicFlowInputs& in, const CyclicFlowShape& shape, const CyclicFlowSettings& settings, const at::Tensor& table)
    : shape_(shape),
      settings_(settings),
      table_(table),
      q_(rows(in.q.flatten(0, 1))),
      k_(rows(in.k.flatten(0, 1))),
      v_(rows(in.v.flatten(0, 1))),
      log_alpha_(by_head(in.log_alpha, at::kDouble)),
      delta_(by_head(in.delta, at::kDouble)),
      beta_(by_head(in.beta, at::kFloat)) {
  if (in.q_norm_weight) q_weight_ = (in.q_norm_weight->to(at::kFloat) * settings.scale).contiguous();
  if (in.k_norm_weight) k_weight_ = in.k_norm_weight->to(at::kFloat).contiguous();
}

cyclic_flow::HeadParams CpuInputs::head_params(int64_t head) const {
  return {.table = table_.const_data_ptr<float>() + head * shape_.M * shape_.M,
          .q_norm_weight = q_weight_.defined() ? q_weight_.const_data_ptr<float>() : nullptr,
          .k_norm_weight = k_weight_.defined() ? k_weight_.const_data_ptr<float>() : nullptr,
          .scale = static_cast<float>(settings_.scale),
          .norm_eps = static_cast<float>(settings_.norm_eps)};
}

cyclic_flow::SegmentTokens CpuInputs::tokens(int64_t head, int64_t first, int64_t count, const double* clock) const {
  const int64_t at = head * log_alpha_.size(1) + first;
  return {.count = count,
          .q = token_rows(q_, first, head),
          .k = token_rows(k_, first, head),
          .v = token_rows(v_, first, head),
          .log_alpha = log_alpha_.const_data_ptr<double>() + at,
          .clock = clock,
          .beta = beta_.const_data_ptr<float>() + at};
}

ChunkSizes CpuInputs::sizes(const Segment& segment) const { return {.K = shape_.K, .V = shape_.V, .M = shape_.M, .C = segment.chunk}; }

void CpuInputs::forward(const WalkTask& task, const CyclicFlowState& state, const SavedTensors& saved, const at::Tensor& o) const {
  const bool kept = settings_.keep != Keep::kNothing;
  const at::Tensor out = o.flatten(0, 1);
  Workspaces workspaces;
  std::vector<double> clock;
  for (const Segment& segment : task.segments) {
    for (int64_t lane = 0; lane < segment.lanes(); ++lane) {
      const auto l = static_cast<size_t>(lane);
      const int64_t first = segment.offset[l];
      const int64_t count = segment.tokens[l];
      clock.resize(static_cast<size_t>(count));
      for (int64_t head = task.head; head < task.head + task.heads; ++head) {
        float* state_k = row_of<float>(state.k, segment.sequence[l], head);
        float* state_v = row_of<float>(state.v, segment.sequence[l], head);
        double* now = row_of<double>(state.clock, segment.sequence[l], head);
        if (segment.slot >= 0 && kept) {
          std::copy_n(state_k, shape_.K * shape_.M, row_of<float>(saved.k, segment.slot + lane, head));
          std::copy_n(state_v, shape_.M * shape_.V, row_of<float>(saved.v, segment.slot + lane, head));
        }
        const double* delta = delta_.const_data_ptr<double>() + head * delta_.size(1) + first;
        for (size_t t = 0; t < clock.size(); ++t) {
          *now += delta[t];
          clock[t] = *now;
          if (kept) *row_of<double>(saved.clock, first + static_cast<int64_t>(t), head) = *now;
        }
        cyclic_flow::forward_segment(
            tokens(head, first, count, clock.data()), head_params(head),
            {.state_k = state_k,
             .state_v = state_v,
             .o = token_rows_out(out, first, head),
             .scores = settings_.keep == Keep::kStatesAndScores ? token_rows_out(saved.scores, first, head) : TokenRowsOut{}},
            workspaces.of(sizes(segment), 0));
      }
    }
  }
}

CpuInputs::GateGradients CpuInputs::empty_gate_gradients() const {
  return {at::empty_like(beta_), at::empty_like(beta_), at::empty_like(delta_)};
}

void CpuInputs::put(const GateGradients& gates, const CyclicFlowGradients& out) const {
  out.log_alpha.flatten(0, 1).copy_(gates.log_alpha.t());
  out.delta.flatten(0, 1).copy_(gates.delta.t());
  out.beta.flatten(0, 1).copy_(gates.beta.t());
}

at::Tensor CpuInputs::rows(const at::Tensor& x) {
  const at::Tensor typed = x.scalar_type() == at::kBFloat16 ? x : x.to(at::kFloat);
  return typed.stride(2) == 1 || typed.size(2) == 1 ? typed : typed.contiguous();
}

void CpuInputs::backward(const WalkTask& task, const CyclicFlowState& initial, const SavedTensors& saved, const at::Tensor& grad_o,
                         const CyclicFlowState& running, const GateGradients& gates, const CyclicFlowGradients& out,
                         const at::Tensor& grad_table, const at::Tensor& grad_q_weight, const at::Tensor& grad_k_weight) const {
  const at::Tensor out_q = out.q.flatten(0, 1);
  const at::Tensor out_k = out.k.flatten(0, 1);
  const at::Tensor out_v = out.v.flatten(0, 1);
  Workspaces workspaces;
  std::vector<double> clock;
  for (auto segment = task.segments.rbegin(); segment != task.segments.rend(); ++segment) {
    for (int64_t lane = 0; lane < segment->lanes(); ++lane) {
      const auto l = static_cast<size_t>(lane);
      const int64_t sequence = segment->sequence[l];
      const int64_t first = segment->offset[l];
      const int64_t count = segment->tokens[l];
      clock.resize(static_cast<size_t>(count));
      for (int64_t head = task.head; head < task.head + task.heads; ++head) {
        for (int64_t t = 0; t < count; ++t) clock[static_cast<size_t>(t)] = *const_row_of<double>(saved.clock, first + t, head);
        const auto at_start = [&](const at::Tensor& rows, const at::Tensor& given) -> const float* {
          if (segment->slot >= 0) return const_row_of<float>(rows, segment->slot + lane, head);
          return given.defined() ? const_row_of<float>(given, sequence, head) : nullptr;
        };
        const int64_t gate = head * beta_.size(1) + first;
        cyclic_flow::backward_segment(
            tokens(head, first, count, clock.data()), head_params(head),
            {.state_k = at_start(saved.k, initial.k),
             .state_v = at_start(saved.v, initial.v),
             .scores = settings_.keep == Keep::kStatesAndScores ? token_rows(saved.scores, first, head) : TokenRows{},
             .o = token_rows(grad_o, first, head),
             .running_k = row_of<float>(running.k, sequence, head),
             .running_v = row_of<float>(running.v, sequence, head),
             .running_clock = row_of<double>(running.clock, sequence, head),
             .q = token_rows_out(out_q, first, head),
             .k = token_rows_out(out_k, first, head),
             .v = token_rows_out(out_v, first, head),
             .log_alpha = gates.log_alpha.mutable_data_ptr<float>() + gate,
             .delta = gates.delta.mutable_data_ptr<double>() + gate,
             .beta = gates.beta.mutable_data_ptr<float>() + gate,
             .table = grad_table.mutable_data_ptr<float>() + (head - task.head) * shape_.M * shape_.M,
             .q_norm_weight = grad_q_weight.mutable_data_ptr<float>(),
             .k_norm_weight = grad_k_weight.mutable_data_ptr<float>()},
            workspaces.of(sizes(*segment), std::min(settings_.size.chunks * segment->chunk, shape_.B * shape_.T)));
      }
    }
  }
  grad_q_weight.mul_(settings_.scale);  // the kernel's weight has the scale in it
}

}  // namespace cyfa::ops
