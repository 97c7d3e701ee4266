// The portable backend: the two-pass chunk-wise form of cyclic_flow (eq:cyfa-two-pass, eq:app-cyfa-key-chunk, eq:app-cyfa-value-chunk) and
// its hand-derived backward (docs/operator.md). Processes sequences in segments of a few chunks, so that memory grows only with what is
// saved for backward. On a CPU, segments in fp32 and bf16 are computed by kernels (portable_cpu.h); here, ATen matrix products compute
// those of every other type and device.
#include "cyfa/ops/cyclic_flow/impl.h"
#include "cyfa/ops/cyclic_flow/portable_cpu.h"
#include "cyfa/ops/cyclic_flow/readout.h"
#include "cyfa/ops/dense/portable_rowwise.h"
#include "cyfa/ops/recurrence/gated_pass.h"

namespace cyfa::ops {
namespace {

at::Tensor flat(const at::Tensor& x) { return x.flatten(0, 1); }  // [B, T, H, ...] -> [B * T, H, ...]

// The tokens of one segment, gathered and prepared: the common input of both passes and their backward.
struct Prepared {
  RowNorm::Rows q, k;
  at::Tensor v;  // [n, g, C, V]
  ChunkDecay decay;
  ClockPhases phases;
  at::Tensor addresses;  // [n, g, C, M]
  at::Tensor writes;     // [n, g, C, M], beta times addresses
};

at::Tensor some_heads(const at::Tensor& x, const WalkTask& task) { return x.narrow(1, task.head, task.heads); }  // [any, H, ...]

// The inputs of one task: its heads of all tokens.
class Walk {
 public:
  Walk(const CyclicFlowInputs& in, const CyclicFlowShape& shape, const CyclicFlowSettings& settings, const at::Tensor& all_tables,
       const WalkTask& task)
      : q_norm(in.q_norm_weight, settings.scale, settings.norm_eps, shape.compute),
        k_norm(in.k_norm_weight, 1.0, settings.norm_eps, shape.compute),
        table(all_tables.narrow(0, task.head, task.heads)),
        shape_(shape),
        q_(some_heads(flat(in.q), task)),
        k_(some_heads(flat(in.k), task)),
        v_(some_heads(flat(in.v), task)),
        log_alpha_(some_heads(flat(in.log_alpha), task)),
        beta_(some_heads(flat(in.beta), task)) {}

  // clock: [n, g, C] in double, after each token.
  Prepared prepare(const SegmentCopy& copy, const at::Tensor& clock) const {
    const at::ScalarType dtype = shape_.compute;
    const ClockPhases phases(clock, shape_.M, dtype);
    const at::Tensor beta = copy.gather_gate(beta_, dtype).unsqueeze(-1);
    const at::Tensor addresses = temporal_addresses(phases);
    return Prepared{q_norm.forward(copy.gather(q_, dtype)),
                    k_norm.forward(copy.gather(k_, dtype)),
                    copy.gather(v_, dtype),
                    ChunkDecay(copy.gather_gate(log_alpha_, at::kDouble), dtype),
                    phases,
                    addresses,
                    addresses * beta};
  }

  RowNorm q_norm, k_norm;
  at::Tensor table;  // [heads, M, M]

 private:
  CyclicFlowShape shape_;
  at::Tensor q_, k_, v_, log_alpha_, beta_;
};

// Initialises a running state from a given one, or with zeros.
void start_from(const at::Tensor& to, const at::Tensor& given) {
  if (given.defined()) {
    to.copy_(given);
  } else {
    to.zero_();
  }
}

at::Tensor given(const std::optional<CyclicFlowState>& state, at::Tensor CyclicFlowState::*part) {
  return state ? (*state).*part : at::Tensor();
}

std::vector<at::Tensor> empty_saved(const at::TensorOptions& q, const CyclicFlowShape& s, const CyclicFlowSettings& settings) {
  const auto compute = q.dtype(s.compute);
  const bool kept = settings.keep != Keep::kNothing;
  const int64_t rows = kept ? saved_state_rows(s.packed, s.B, s.T, settings.size) : 0;
  return {at::empty({rows, s.H, s.K, s.M}, compute), at::empty({rows, s.H, s.M, s.V}, compute),
          at::empty({kept ? s.B * s.T : 0, s.H}, q.dtype(at::kDouble)),
          at::empty({settings.keep == Keep::kStatesAndScores ? s.B * s.T : 0, s.H, s.M}, compute)};
}

// Whether the CPU kernels compute a call; else ATen does, on any device and in any type.
bool on_cpu_kernels(const CyclicFlowInputs& in, const CyclicFlowShape& shape) { return in.q.is_cpu() && shape.compute == at::kFloat; }

std::string take_all(const CyclicFlowInputs&) { return ""; }

CyclicFlowForward forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings) {
  const CyclicFlowShape shape = check_cyclic_flow(in);
  const std::vector<WalkTask> tasks = plan_tasks(plan_segments(cyclic_flow_offsets(in, shape), settings.size), shape.H, in.q.device());
  at::Tensor table;
  run_tasks(1, in.q.device(), [&](size_t) { table = readout_table(in.readout, shape.compute); });
  CyclicFlowForward out = empty_cyclic_flow_forward(in, shape);  // the final states are the running ones
  out.saved = empty_saved(in.q.options(), shape, settings);
  const SavedTensors saved(out.saved);
  start_from(out.final_state.k, given(in.initial_state, &CyclicFlowState::k));
  start_from(out.final_state.v, given(in.initial_state, &CyclicFlowState::v));
  start_from(out.final_state.clock, given(in.initial_state, &CyclicFlowState::clock));

  if (on_cpu_kernels(in, shape)) {
    std::optional<CpuInputs> cpu;
    run_tasks(1, in.q.device(), [&](size_t) { cpu.emplace(in, shape, settings, table); });
    run_tasks(tasks.size(), in.q.device(), [&](size_t i) { cpu->forward(tasks[i], out.final_state, saved, out.o); });
    return out;
  }
  run_tasks(tasks.size(), in.q.device(), [&](size_t i) {
    const WalkTask& task = tasks[i];
    const Walk walk(in, shape, settings, table, task);
    const auto mine = [&](const at::Tensor& x) { return some_heads(x, task); };
    for (const Segment& segment : task.segments) {
      const SegmentCopy copy(segment, task.heads, in.q.device());
      LaneStates state_k(mine(out.final_state.k), segment);
      LaneStates state_v(mine(out.final_state.v), segment);
      LaneStates state_clock(mine(out.final_state.clock), segment);
      if (segment.slot >= 0 && settings.keep != Keep::kNothing) {
        LaneStates::save(mine(saved.k), segment, state_k);
        LaneStates::save(mine(saved.v), segment, state_v);
      }
      at::Tensor clock = copy.gather_gate(mine(flat(in.delta)), at::kDouble);  // [n, g, C]
      clock = clock.flatten(1).cumsum(1).add_(state_clock.get().unsqueeze(1)).view(clock.sizes());
      state_clock.get().copy_(clock.flatten(1).select(1, -1));
      if (settings.keep != Keep::kNothing) copy.scatter_gate(clock, mine(saved.clock));

      const Prepared p = walk.prepare(copy, clock);
      const at::Tensor scores = gated_pass_forward(p.q.out, p.k.out, p.writes, p.decay, state_k.get(), {});
      if (settings.keep == Keep::kStatesAndScores) copy.scatter(scores, mine(saved.scores));
      const SlotReadout read = read_slots(scores, p.phases, walk.table);
      copy.scatter(gated_pass_forward(read.weights, p.writes, p.v, p.decay, state_v.get(), {}), mine(flat(out.o)));
      state_k.put();
      state_v.put();
      state_clock.put();
    }
  });
  return out;
}

CyclicFlowGradients backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, at::TensorList all_saved,
                             const CyclicFlowOutputGradients& grad) {
  const SavedTensors saved(all_saved);
  const CyclicFlowShape shape = check_cyclic_flow(in);
  const std::vector<WalkTask> tasks = plan_tasks(plan_segments(cyclic_flow_offsets(in, shape), settings.size), shape.H, in.q.device());
  at::Tensor table;
  run_tasks(1, in.q.device(), [&](size_t) { table = readout_table(in.readout, shape.compute); });
  CyclicFlowGradients out = empty_cyclic_flow_gradients(in);
  const auto compute = in.q.options().dtype(shape.compute);
  // Running gradients of the states; at the end they are the gradients of the initial states.
  const at::Tensor running_k = at::empty({shape.N, shape.H, shape.K, shape.M}, compute);
  const at::Tensor running_v = at::empty({shape.N, shape.H, shape.M, shape.V}, compute);
  const at::Tensor running_clock = at::empty({shape.N, shape.H}, compute.dtype(at::kDouble));
  start_from(running_k, grad.final_state.k);
  start_from(running_v, grad.final_state.v);
  start_from(running_clock, grad.final_state.clock);
  // Sums over tokens, one per task, added in the order of tasks.
  std::vector<at::Tensor> grad_tables(tasks.size());
  const at::Tensor grad_q_weight = at::zeros({static_cast<int64_t>(tasks.size()), shape.K}, compute);
  const at::Tensor grad_k_weight = at::zeros_like(grad_q_weight);
  const at::Tensor grad_o = grad.o.defined() ? flat(grad.o) : at::zeros({1}, compute).expand({shape.B * shape.T, shape.H, shape.V});

  const auto aten_task = [&](size_t i) {
    const WalkTask& task = tasks[i];
    const Walk walk(in, shape, settings, table, task);
    const auto mine = [&](const at::Tensor& x) { return some_heads(x, task); };
    grad_tables[i] = at::zeros_like(walk.table);
    for (auto segment = task.segments.rbegin(); segment != task.segments.rend(); ++segment) {
      const SegmentCopy copy(*segment, task.heads, in.q.device());
      const Prepared p = walk.prepare(copy, copy.gather_gate(mine(saved.clock), at::kDouble));
      const int64_t n = p.v.size(0);
      const int64_t g = p.v.size(1);

      // Recomputes the states of the chunks from those saved at the segment's start.
      const auto state_at_start = [&](const at::Tensor& rows, const at::Tensor& initial) -> at::Tensor {
        if (segment->slot >= 0) return LaneStates::saved(mine(rows), *segment);
        if (initial.defined()) return LaneStates(mine(initial), *segment).get().clone();
        return at::zeros({n, rows.size(2), rows.size(3)}, compute);
      };
      const at::Tensor state_k = state_at_start(saved.k, given(in.initial_state, &CyclicFlowState::k));
      const at::Tensor state_v = state_at_start(saved.v, given(in.initial_state, &CyclicFlowState::v));
      const at::Tensor states_k = at::empty({n, g, shape.K, shape.M}, compute);
      const at::Tensor states_v = at::empty({n, g, shape.M, shape.V}, compute);
      at::Tensor scores;
      if (settings.keep == Keep::kStatesAndScores) {
        scores = copy.gather(mine(saved.scores), shape.compute);
        gated_pass_states(p.k.out, p.writes, p.decay, state_k, states_k);
      } else {
        scores = gated_pass_forward(p.q.out, p.k.out, p.writes, p.decay, state_k, states_k);
      }
      gated_pass_states(p.writes, p.v, p.decay, state_v, states_v);
      const SlotReadout read = read_slots(scores, p.phases, walk.table);

      LaneStates lane_k(mine(running_k), *segment);
      LaneStates lane_v(mine(running_v), *segment);
      LaneStates lane_clock(mine(running_clock), *segment);
      DecayGradient gates;
      const at::Tensor upstream = copy.gather(mine(grad_o), shape.compute);
      const GatedPassGradient value = gated_pass_backward(read.weights, p.writes, p.v, p.decay, states_v, upstream, lane_v.get(), gates);
      const at::Tensor grad_scores = read_slots_backward(read, p.phases, walk.table, value.q, grad_tables[i]);
      const GatedPassGradient key = gated_pass_backward(p.q.out, p.k.out, p.writes, p.decay, states_k, grad_scores, lane_k.get(), gates);
      lane_k.put();
      lane_v.put();

      const at::Tensor grad_writes = value.k + key.v;
      // The slot weights and the writes rotate backwards with the clock, the scores forwards, hence the minus sign.
      const at::Tensor turning =
          clock_gradient(read.weights, value.q) - clock_gradient(scores, grad_scores) + clock_gradient(p.writes, grad_writes);
      const at::Tensor grad_clock = turning.to(at::kDouble).flatten(1);
      const at::Tensor later = grad_clock.flip(1).cumsum(1).flip(1).add_(lane_clock.get().unsqueeze(1));
      lane_clock.get().copy_(later.select(1, 0));
      lane_clock.put();

      const int64_t row = static_cast<int64_t>(i);
      copy.scatter(value.v, mine(flat(out.v)));
      copy.scatter(walk.q_norm.backward(p.q, key.q, grad_q_weight.select(0, row)), mine(flat(out.q)));
      copy.scatter(walk.k_norm.backward(p.k, key.k, grad_k_weight.select(0, row)), mine(flat(out.k)));
      copy.scatter_gate(gates.log_alpha(), mine(flat(out.log_alpha)));
      copy.scatter_gate(later.view({n, g, -1}), mine(flat(out.delta)));
      copy.scatter_gate(row_dot(grad_writes, p.addresses), mine(flat(out.beta)));
    }
  };
  if (on_cpu_kernels(in, shape)) {
    std::optional<CpuInputs> cpu;
    CpuInputs::GateGradients gates;
    at::Tensor upstream;
    CyclicFlowState initial;
    run_tasks(1, in.q.device(), [&](size_t) {
      cpu.emplace(in, shape, settings, table);
      gates = cpu->empty_gate_gradients();
      upstream = CpuInputs::rows(grad_o);
      if (in.initial_state) initial = {in.initial_state->k.contiguous(), in.initial_state->v.contiguous(), {}};
    });
    run_tasks(tasks.size(), in.q.device(), [&](size_t i) {
      grad_tables[i] = at::zeros({tasks[i].heads, shape.M, shape.M}, compute);
      const int64_t row = static_cast<int64_t>(i);
      cpu->backward(tasks[i], initial, saved, upstream, {running_k, running_v, running_clock}, gates, out, grad_tables[i],
                    grad_q_weight.select(0, row), grad_k_weight.select(0, row));
    });
    run_tasks(1, in.q.device(), [&](size_t) { cpu->put(gates, out); });
  } else {
    run_tasks(tasks.size(), in.q.device(), aten_task);
  }

  run_tasks(1, in.q.device(), [&](size_t) {
    const at::Tensor grad_table = at::zeros_like(table);
    for (size_t i = 0; i < tasks.size(); ++i) grad_table.narrow(0, tasks[i].head, tasks[i].heads).add_(grad_tables[i]);
    out.readout.copy_(readout_table_backward(grad_table));
    if (in.q_norm_weight) out.q_norm_weight.copy_(grad_q_weight.sum(0));
    if (in.k_norm_weight) out.k_norm_weight.copy_(grad_k_weight.sum(0));
  });
  if (in.initial_state) {
    out.initial_state.k.copy_(running_k);
    out.initial_state.v.copy_(running_v);
    out.initial_state.clock.copy_(running_clock);
  }
  return out;
}

}  // namespace

CyclicFlowBackend cyclic_flow_portable() { return {Backend::kPortable, take_all, call_cyclic_flow, forward, backward, empty_saved}; }

}  // namespace cyfa::ops
