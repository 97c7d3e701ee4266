#include "cyfa/ops/recurrence/sm90_scalar.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/recurrence/sm90/scalar_chunks_sm90.h"
#include "cyfa/kernels/recurrence/sm90/walk_sm90.h"
#include "cyfa/ops/recurrence/passes.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
using recurrence::HeadRows;
using recurrence::ScalarChunks;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

// x [B, T, H, X] as [B T, H, X] in the form that the kernels read.
Tensor rows_of(const Tensor& x) {
  const Tensor flat = x.flatten(0, 1);
  const bool fits = flat.stride(2) == 1 && flat.stride(0) % 8 == 0 && flat.stride(1) % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(flat.const_data_ptr()) % 16 == 0;
  return fits ? flat : flat.clone(at::MemoryFormat::Contiguous);
}

HeadRows head_rows(const Tensor& x) { return {x.const_data_ptr(), x.stride(0), x.stride(1)}; }

// The inputs as the kernels read them, and the sizes of the call.
struct Call {
  Tensor q, k, v, log_alpha;
  ScalarChunks sizes;  // without lanes
  int64_t per;

  Call(const Recurrence& r, const RecurrenceInputs& in, double scale)
      : q(rows_of(in.q)), k(rows_of(in.k)), v(rows_of(in.v)), per(in.v.size(2) / in.q.size(2)) {
    sizes.heads = static_cast<int32_t>(in.v.size(2));
    sizes.groups = static_cast<int32_t>(in.q.size(2));
    sizes.K = static_cast<int32_t>(in.q.size(3));
    sizes.V = static_cast<int32_t>(in.v.size(3));
    sizes.scale = static_cast<float>(scale);
    if (r.gate == Gate::kScalar) {
      log_alpha = in.log_alpha->flatten(0, 1).to(at::kDouble).contiguous();
      sizes.log_alpha = log_alpha.const_data_ptr<double>();
    }
  }
};

// A segment's lanes, its chunks and the states of its groups.
class Chunks {
 public:
  Chunks(const Call& call, const Segment& segment) : call_(call), p_(call.sizes) {
    p_.lanes = static_cast<int32_t>(segment.lanes());
    p_.g = static_cast<int32_t>(segment.chunks);
    for (int64_t l = 0; l < segment.lanes(); ++l) p_.lane[l] = {segment.offset[l], segment.tokens[l]};
    n_ = segment.lanes() * p_.groups;
    queries_ = at::empty({n_, p_.g, recurrence::kWalkChunk, p_.K}, call.q.options());
    keys_ = at::empty_like(queries_);
    C10_CUDA_CHECK(recurrence::scalar_chunks_of_keys_sm90(p_, head_rows(call.q), head_rows(call.k), queries_.mutable_data_ptr(),
                                                          keys_.mutable_data_ptr(), stream()));
  }

  // The states at the chunks' starts; advances `state` [lanes H, K, V].
  Tensor walk_forward(const Tensor& state) {
    if (p_.log_alpha != nullptr) whole_ = at::empty({n_, p_.g, width()}, state.options());
    return walk(false, keys_, scaled(recurrence::ScalarFactor::kToEnd, call_.v), state);
  }
  // Their gradients at the chunks' ends; takes `grad_state` from the end to the start. After walk_forward.
  Tensor walk_backward(const Tensor& grad_o, const Tensor& grad_state) {
    return walk(true, queries_, scaled(recurrence::ScalarFactor::kFromStart, grad_o), grad_state);
  }

  void outputs(const Tensor& states, const Tensor& o) const {
    C10_CUDA_CHECK(recurrence::scalar_chunks_outputs_sm90(p_, queries_.const_data_ptr(), keys_.const_data_ptr(), head_rows(call_.v),
                                                          states.const_data_ptr(), o.mutable_data_ptr(), stream()));
  }

  void gradients(const Tensor& states, const Tensor& grad_states, const Tensor& grad_o, recurrence::ScalarGradients to) const {
    to.q_chunks = queries_.const_data_ptr();
    to.k_chunks = keys_.const_data_ptr();
    to.states = states.const_data_ptr();
    to.grad_states = grad_states.const_data_ptr();
    to.v = head_rows(call_.v);
    to.grad_o = head_rows(grad_o);
    to.tokens = call_.q.size(0);
    C10_CUDA_CHECK(recurrence::scalar_chunks_gradients_sm90(p_, to, stream()));
  }

 private:
  int64_t width() const { return call_.per * p_.V; }

  Tensor scaled(recurrence::ScalarFactor factor, const Tensor& x) {
    const Tensor chunks = at::empty({n_, p_.g, recurrence::kWalkChunk, width()}, queries_.options());
    float* whole = factor == recurrence::ScalarFactor::kToEnd && whole_.defined() ? whole_.data_ptr<float>() : nullptr;
    C10_CUDA_CHECK(recurrence::scalar_chunks_scaled_sm90(p_, factor, head_rows(x), chunks.mutable_data_ptr(), whole, stream()));
    return chunks;
  }

  // The heads of a group lie side by side in one state [K, heads V].
  Tensor walk(bool backward, const Tensor& write, const Tensor& base, const Tensor& state) const {
    const Tensor heads = state.view({n_ / p_.groups, p_.groups, call_.per, p_.K, p_.V});
    const Tensor running = heads.transpose(2, 3).contiguous();  // the same memory if a group is one head
    const Tensor states = at::empty({n_, p_.g, p_.K, width()}, write.options());
    recurrence::Walk w;
    w.n = n_;
    w.g = p_.g;
    w.K = p_.K;
    w.V = width();
    w.backward = backward;
    w.base = base.const_data_ptr();
    w.write = write.const_data_ptr();
    w.decays = whole_.defined() ? recurrence::WalkDecay::kColumn : recurrence::WalkDecay::kNone;
    w.decay = whole_.defined() ? whole_.const_data_ptr<float>() : nullptr;
    w.state = running.data_ptr<float>();
    w.states = states.mutable_data_ptr();
    C10_CUDA_CHECK(recurrence::walk_sm90(w, stream()));
    if (running.const_data_ptr() != state.const_data_ptr()) heads.copy_(running.transpose(2, 3));
    return states;
  }

  const Call& call_;
  ScalarChunks p_;
  int64_t n_ = 0;
  Tensor queries_, keys_, whole_;
};

// Lanes as many as there may be: the kernels keep no more per token than what a layer's activations take.
std::vector<Segment> segments_of(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s,
                                 const RecurrenceSettings& settings) {
  constexpr int64_t kTokenHeads = 1 << 20;
  SegmentSize size = settings.size;
  const int64_t length = std::clamp<int64_t>(s.B * s.T / std::max<int64_t>(s.N, 1), 1, size.chunks * size.chunk);
  size.lanes = std::clamp<int64_t>(kTokenHeads / (length * s.H), 1, ScalarChunks::kMostLanes);
  return plan_segments(recurrence_offsets(r, in, s), size);
}

}  // namespace

std::string scalar_chunks_refusal(const Recurrence& r, const RecurrenceInputs& in) {
  if (r.delta || (r.gate != Gate::kNone && r.gate != Gate::kScalar)) return "the op is not linear attention with gates of tokens";
  ScalarChunks p;
  p.groups = static_cast<int32_t>(in.q.size(-2));
  p.heads = static_cast<int32_t>(in.v.size(-2));
  p.K = static_cast<int32_t>(in.q.size(-1));
  p.V = static_cast<int32_t>(in.v.size(-1));
  const char* reason = recurrence::scalar_chunks_refusal(p);
  return reason == nullptr ? "" : reason;
}

RecurrenceForward scalar_chunks_forward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings) {
  const RecurrenceSizes s = recurrence_sizes(in);
  RecurrenceForward out = empty_forward(in, s, empty_segment_states(in.q.options(), s, settings));
  if (in.initial_state) {
    out.final_state.copy_(*in.initial_state);
  } else {
    out.final_state.zero_();
  }
  const Call call(r, in, settings.scale);
  for (const Segment& segment : segments_of(r, in, s, settings)) {
    LaneStates state(out.final_state, segment);
    if (segment.slot >= 0) LaneStates::save(out.saved[0], segment, state);
    Chunks chunks(call, segment);
    chunks.outputs(chunks.walk_forward(state.get()), out.o);
    state.put();
  }
  return out;
}

RecurrenceGradients scalar_chunks_backward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings,
                                           at::TensorList saved, const Tensor& grad_o, const Tensor& grad_final) {
  const RecurrenceSizes s = recurrence_sizes(in);
  RecurrenceGradients out = empty_gradients(in, s);
  if (grad_final.defined()) {
    out.initial_state.copy_(grad_final);
  } else {
    out.initial_state.zero_();
  }
  const Call call(r, in, settings.scale);
  const Tensor upstream = rows_of(grad_o.defined() ? grad_o.to(at::kBFloat16) : at::zeros({s.B, s.T, s.H, s.V}, in.v.options()));
  const int64_t parts = recurrence::scalar_chunks_parts(call.sizes), tokens = s.B * s.T;
  const auto partial = in.q.options().dtype(parts == 1 ? at::kBFloat16 : at::kFloat);
  const Tensor grad_q = at::empty({parts, tokens, call.sizes.groups, s.K}, partial), grad_k = at::empty_like(grad_q);
  const Tensor grad_v = at::empty({tokens, s.H, s.V}, in.v.options());
  Tensor grad_log;
  if (call.log_alpha.defined()) grad_log = at::empty({tokens, s.H}, in.q.options().dtype(at::kFloat));
  recurrence::ScalarGradients to;
  to.d_q = grad_q.mutable_data_ptr();
  to.d_k = grad_k.mutable_data_ptr();
  to.d_v = grad_v.mutable_data_ptr();
  if (grad_log.defined()) to.d_log_alpha = grad_log.data_ptr<float>();
  const std::vector<Segment> segments = segments_of(r, in, s, settings);
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    Tensor state = at::zeros({segment->lanes() * s.H, s.K, s.V}, out.initial_state.options());
    if (segment->slot >= 0) {
      state = LaneStates::saved(saved[0], *segment);
    } else if (in.initial_state) {
      state.copy_(LaneStates(*in.initial_state, *segment).get());
    }
    LaneStates running(out.initial_state, *segment);
    Chunks chunks(call, *segment);
    const Tensor states = chunks.walk_forward(state);
    chunks.gradients(states, chunks.walk_backward(upstream, running.get()), upstream, to);
    running.put();
  }
  const auto summed = [&](const Tensor& x, const Tensor& like) {
    return (parts == 1 ? x[0] : x.sum(0).to(like.scalar_type())).view(like.sizes());
  };
  out.q = summed(grad_q, in.q);
  out.k = summed(grad_k, in.k);
  out.v = grad_v.view(in.v.sizes());
  if (grad_log.defined()) out.log_alpha = grad_log.to(in.log_alpha->scalar_type()).view(in.log_alpha->sizes());
  return out;
}

}  // namespace cyfa::ops
