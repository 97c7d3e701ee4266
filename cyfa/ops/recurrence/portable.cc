// The recurrences segment by segment: iterates over segments of chunks (cyfa/ops/common/sequences.h) and applies a pass
// (cyfa/ops/recurrence/passes.h) to each. Forward saves the states at segment starts; backward goes from the last segment to the first.
// The portable backend does so with the op's own pass.
#include <bit>

#include "cyfa/ops/recurrence/passes.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

Tensor flat(const Tensor& x) { return x.flatten(0, 1); }

bool gate_per_entry(const Recurrence& r) { return r.gate == Gate::kRow || r.gate == Gate::kColumn; }

// Per-dimension gates require a power of two as chunk size (PerKeyDecay). Rounding it up adds padding at a segment's end.
std::vector<Segment> segments_of(const Recurrence& r, const std::vector<int64_t>& offsets, const SegmentSize& size) {
  std::vector<Segment> segments = plan_segments(offsets, size);
  if (!gate_per_entry(r)) return segments;
  for (Segment& s : segments) {
    s.chunk = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(s.chunk)));
    s.chunks = (s.tokens[0] + s.chunk - 1) / s.chunk;
  }
  return segments;
}

// A segment of one task: the location of its tokens, and copies of them.
class SegmentView {
 public:
  SegmentView(const Recurrence& r, const RecurrenceSizes& s, const WalkTask& task, const Segment& segment, at::Device device)
      : r_(r), s_(s), task_(task), copy_(segment, task.heads, device) {}

  Tensor mine(const Tensor& x) const { return x.narrow(1, task_.head, task_.heads); }  // this task's heads of [tokens or N, H, ...]

  Tensor gather(const Tensor& x) const { return copy_.gather(mine(flat(x)), s_.compute); }

  SegmentInputs inputs(const RecurrenceInputs& in, double scale) const {
    SegmentInputs x{gather(in.q) * scale, gather(in.k), gather(in.v), {}, {}};
    if (gate_per_entry(r_)) {
      x.log_alpha = gather(*in.log_alpha);
    } else if (r_.gate == Gate::kScalar) {
      x.log_alpha = copy_.gather_gate(mine(flat(*in.log_alpha)), at::kDouble);
    } else if (!r_.delta) {
      x.log_alpha = at::zeros({x.q.size(0), x.q.size(1), x.q.size(2)}, x.q.options().dtype(at::kDouble));
    }
    if (r_.delta) x.beta = gather(in.beta->unsqueeze(-1));
    return x;
  }

  void put(const Tensor& y, const Tensor& out) const { copy_.scatter(y, mine(flat(out))); }

  void put(const SegmentGradients& g, double scale, const RecurrenceGradients& out) const {
    put(g.q.mul_(scale), out.q);
    put(g.k, out.k);
    put(g.v, out.v);
    if (gate_per_entry(r_)) {
      put(g.log_alpha, out.log_alpha);
    } else if (r_.gate == Gate::kScalar) {
      copy_.scatter_gate(g.log_alpha, mine(flat(out.log_alpha)));
    }
    if (r_.delta) put(g.beta, out.beta.unsqueeze(-1));
  }

 private:
  const Recurrence& r_;
  const RecurrenceSizes& s_;
  const WalkTask& task_;
  SegmentCopy copy_;
};

}  // namespace

std::vector<Tensor> empty_segment_states(const at::TensorOptions& q, const RecurrenceSizes& s, const RecurrenceSettings& settings) {
  const int64_t rows = saved_state_rows(s.packed, s.B, s.T, settings.size);
  return {at::empty({rows, s.H, s.K, s.V}, q.dtype(s.compute))};
}

RecurrenceForward forward_by_segments(const Recurrence& r, const SegmentPass& pass, const RecurrenceInputs& in,
                                      const RecurrenceSettings& settings) {
  const RecurrenceSizes s = recurrence_sizes(in);
  const at::Device device = in.q.device();
  const std::vector<WalkTask> tasks = plan_tasks(segments_of(r, recurrence_offsets(r, in, s), settings.size), s.H, device);
  RecurrenceForward out = empty_forward(in, s, empty_segment_states(in.q.options(), s, settings));
  const Tensor& saved = out.saved[0];
  if (in.initial_state) {
    out.final_state.copy_(*in.initial_state);
  } else {
    out.final_state.zero_();
  }
  run_tasks(tasks.size(), device, [&](size_t i) {
    for (const Segment& segment : tasks[i].segments) {
      const SegmentView view(r, s, tasks[i], segment, device);
      LaneStates state(view.mine(out.final_state), segment);
      if (segment.slot >= 0) LaneStates::save(view.mine(saved), segment, state);
      view.put(pass.forward(r, view.inputs(in, settings.scale), state.get()), out.o);
      state.put();
    }
  });
  return out;
}

RecurrenceGradients backward_by_segments(const Recurrence& r, const SegmentPass& pass, const RecurrenceInputs& in,
                                         const RecurrenceSettings& settings, at::TensorList all_saved, const Tensor& grad_o,
                                         const Tensor& grad_final) {
  const RecurrenceSizes s = recurrence_sizes(in);
  const at::Device device = in.q.device();
  const std::vector<WalkTask> tasks = plan_tasks(segments_of(r, recurrence_offsets(r, in, s), settings.size), s.H, device);
  RecurrenceGradients out = empty_gradients(in, s);
  const Tensor& saved = all_saved[0];
  if (grad_final.defined()) {
    out.initial_state.copy_(grad_final);
  } else {
    out.initial_state.zero_();
  }
  const auto compute = in.q.options().dtype(s.compute);
  const Tensor upstream = grad_o.defined() ? grad_o : at::zeros({1}, compute).expand({s.B, s.T, s.H, s.V});
  run_tasks(tasks.size(), device, [&](size_t i) {
    for (auto segment = tasks[i].segments.rbegin(); segment != tasks[i].segments.rend(); ++segment) {
      const SegmentView view(r, s, tasks[i], *segment, device);
      Tensor state = at::zeros({segment->lanes() * tasks[i].heads, s.K, s.V}, compute);
      if (segment->slot >= 0) {
        state = LaneStates::saved(view.mine(saved), *segment);
      } else if (in.initial_state) {
        state.copy_(LaneStates(view.mine(*in.initial_state), *segment).get());
      }
      LaneStates running(view.mine(out.initial_state), *segment);
      const double scale = settings.scale;
      view.put(pass.backward(r, view.inputs(in, scale), state, view.gather(upstream), running.get()), scale, out);
      running.put();
    }
  });
  return out;
}

namespace {

std::string refusal(const Recurrence&, const RecurrenceInputs& in) { return shared_keys_refusal(in); }

RecurrenceForward forward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings) {
  return forward_by_segments(r, *r.pass, in, settings);
}

RecurrenceGradients backward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, at::TensorList saved,
                             const Tensor& grad_o, const Tensor& grad_final) {
  return backward_by_segments(r, *r.pass, in, settings, saved, grad_o, grad_final);
}

}  // namespace

RecurrenceBackend recurrence_portable() { return {Backend::kPortable, refusal, forward, backward, empty_segment_states, portable_step}; }

}  // namespace cyfa::ops
