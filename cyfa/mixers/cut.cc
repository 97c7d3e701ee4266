#include "cyfa/mixers/cut.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace cyfa {
namespace {

using Tensors = torch::autograd::variable_list;

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Group g) : group(std::move(g)) {}
  Group group;
};

at::Tensor gathered(const Group& group, const at::Tensor& x) {
  const at::Tensor own = x.contiguous();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), group.size());
  at::Tensor all = at::empty(shape, x.options());
  group.all_gather(all.view({-1}), own.view({-1})).wait();
  return all;
}

// Every rank's x, [ranks, ...]. Its gradient is the sum over the ranks of those of their copies.
class AllGather : public torch::autograd::Function<AllGather> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<GroupHolder>& holder) {
    ctx->saved_data["group"] = c10::IValue::make_capsule(holder);
    return gathered(holder->group, x);
  }

  static Tensors backward(torch::autograd::AutogradContext* ctx, Tensors grads) {
    const auto holder = c10::static_intrusive_pointer_cast<GroupHolder>(ctx->saved_data["group"].toCapsule());
    const at::Tensor all = grads[0].contiguous();
    at::Tensor own = at::empty(all.sizes().slice(1), all.options());
    holder->group.reduce_scatter(own.view({-1}), all.view({-1})).wait();
    return {own, at::Tensor()};
  }
};

at::Tensor all_gather(const Group& group, const at::Tensor& x) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return gathered(group, x);
  return AllGather::apply(x, c10::make_intrusive<GroupHolder>(group));
}

// A state for each of N local sequences: `first` for the first, zeros for the others.
at::Tensor with_others(const at::Tensor& first, int64_t sequences) {
  if (sequences == 1) return first.unsqueeze(0);
  std::vector<int64_t> shape = first.sizes().vec();
  shape.insert(shape.begin(), sequences - 1);
  return at::cat({first.unsqueeze(0), at::zeros(shape, first.options())}, 0);
}

// The tokens of the last local sequence, x [1, T, ...] to [tokens, ...].
at::Tensor last_sequence(const SequenceCut& cut, const at::Tensor& x) {
  const int64_t tokens = cut.own().last_tokens;
  return x.squeeze(0).narrow(0, x.size(1) - tokens, tokens);
}

// Runs `step(p, state)` over the ranks before this one, which gives the state after rank p's stretch from that before it, beginning with
// zeros. `none` is of the gathered summaries: without ranks before, it still joins them to the graph, since backward is a collective call.
template <class Step>
at::Tensor fold(const SequenceCut& cut, const at::Tensor& none, const Step& step) {
  at::Tensor state = none * 0;
  for (int p = 0; p < cut.group.rank(); ++p) state = step(p, cut.stretches[static_cast<size_t>(p)], state);
  return cut.own().begins ? state * 0 : state;
}

// exp(log of the fading over a stretch), 0 if the memory at the stretch's end is that of a sequence that begins in it.
at::Tensor passed(const SequenceCut::Stretch& stretch, const at::Tensor& log_decay) {
  return stretch.whole && !stretch.begins ? log_decay.exp() : log_decay.exp() * 0;
}

// exp(sum of log_alpha over the later tokens), for log_alpha [T, H] in double: by sums from the end, so that nothing is subtracted.
at::Tensor decay_to_end(const at::Tensor& log_alpha) {
  const at::Tensor later = log_alpha.flip(0).cumsum(0).flip(0);
  return at::cat({later.slice(0, 1), at::zeros_like(later.slice(0, 0, 1))}, 0).exp();
}

// Frequencies 2 pi j / m of the M / 2 coordinate pairs.
at::Tensor frequencies(int64_t M, const at::Tensor& like) {
  return at::arange(M / 2, like.options().dtype(at::kDouble)) * (2 * std::numbers::pi / static_cast<double>(M - 1));
}

// U(clock) on the last dimension of x [H, X, M], with clock [H] in double.
at::Tensor turned(const at::Tensor& x, const at::Tensor& clock) {
  const int64_t M = x.size(-1);
  const at::Tensor angle = (clock.unsqueeze(-1) * frequencies(M, x)).unsqueeze(1);  // [H, 1, M / 2]
  const at::Tensor cos = angle.cos().to(x.scalar_type()), sin = angle.sin().to(x.scalar_type());
  const at::Tensor pairs = x.unflatten(-1, {M / 2, 2}), re = pairs.select(-1, 0), im = pairs.select(-1, 1);
  return at::stack({re * cos - im * sin, re * sin + im * cos}, -1).flatten(-2);
}

// beta U(-clock) b, [T, H, M], for clock [T, H] in double (docs/notation.md, "Order of the M stored coordinates").
at::Tensor write_vectors(const at::Tensor& clock, const at::Tensor& beta, int64_t M) {
  const double m = static_cast<double>(M - 1);
  const at::Tensor angle = clock.unsqueeze(-1) * frequencies(M, clock);
  at::Tensor length = at::full({M / 2}, std::sqrt(2 / m), clock.options());
  length[0] = std::sqrt(1 / m);
  return (at::stack({angle.cos() * length, angle.sin() * -length}, -1).flatten(-2) * beta.to(at::kDouble).unsqueeze(-1));
}

}  // namespace

CutBatch cut_batch(const Group& group, const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens,
                   std::vector<int64_t> bounds) {
  const int64_t tokens = inputs.numel(), ranks = group.size();
  if (bounds.empty()) {
    for (int64_t p = 0; p <= ranks; ++p) bounds.push_back(tokens * p / ranks);
  }
  std::vector<int64_t> borders;  // of the sequences that are not empty
  const at::Tensor all = cu_seqlens ? cu_seqlens->to(at::kCPU, at::kLong) : at::arange(inputs.size(0) + 1) * inputs.size(1);
  for (int64_t i = 0; i < all.numel(); ++i) {
    const auto border = all[i].item<int64_t>();
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
  CutBatch out;
  auto cut = std::make_shared<SequenceCut>();
  cut->group = group;
  for (int64_t p = 0; p < ranks; ++p) {
    const int64_t begin = bounds[static_cast<size_t>(p)], end = bounds[static_cast<size_t>(p) + 1];
    if (begin >= end) {
      throw std::invalid_argument("context parallel: rank " + std::to_string(p) + " of " + std::to_string(ranks) + " would have none of " +
                                  std::to_string(tokens) + " tokens; wanted fewer ranks or longer sequences");
    }
    // The borders of the sequences that the first and the last token belong to.
    const auto first = std::prev(std::upper_bound(borders.begin(), borders.end(), begin));
    const auto last = std::prev(std::lower_bound(borders.begin(), borders.end(), end));
    cut->stretches.push_back({*first == begin, first == last, end - std::max(*last, begin)});
    if (p != group.rank()) continue;
    cut->tokens_before = begin - *first;
    std::vector<int64_t> own = {0};
    for (auto border = std::next(first); border != borders.end() && *border < end; ++border) own.push_back(*border - begin);
    own.push_back(end - begin);
    out.cu_seqlens = at::tensor(own, at::kLong);
    out.inputs = inputs.reshape({1, -1}).narrow(1, begin, end - begin);
    out.targets = targets.reshape({1, -1}).narrow(1, begin, end - begin);
  }
  out.cut = std::move(cut);
  return out;
}

at::Tensor recurrence_before(const SequenceCut& cut, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                             int64_t sequences) {
  const at::ScalarType type = at::promote_types(k.scalar_type(), at::kFloat);
  const at::Tensor values = last_sequence(cut, v).to(type);  // [T, H, V]
  const int64_t each = v.size(2) / k.size(2);                // heads that share a key
  const at::Tensor own_keys = last_sequence(cut, k).to(type), keys = each > 1 ? own_keys.repeat_interleave(each, 1) : own_keys;
  const at::Tensor gates = log_alpha.defined() ? last_sequence(cut, log_alpha).to(at::kDouble)
                                               : at::zeros(keys.sizes().slice(0, 2), keys.options().dtype(at::kDouble));
  const at::Tensor faded = keys * decay_to_end(gates).to(type).unsqueeze(-1);
  const at::Tensor states = all_gather(cut.group, at::matmul(faded.permute({1, 2, 0}), values.transpose(0, 1)));  // [ranks, H, K, V]
  const at::Tensor decays = all_gather(cut.group, gates.sum(0));                                                  // [ranks, H]
  const at::Tensor none = states.select(0, 0) + (decays.select(0, 0) * 0).nan_to_num().to(type).view({-1, 1, 1});
  return with_others(fold(cut, none,
                          [&](int64_t p, const SequenceCut::Stretch& stretch, const at::Tensor& state) {
                            return state * passed(stretch, decays.select(0, p)).to(type).view({-1, 1, 1}) + states.select(0, p);
                          }),
                     sequences);
}

FlowBefore flow_before(const SequenceCut& cut, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                       const at::Tensor& delta, const at::Tensor& beta, int64_t M, int64_t sequences) {
  const at::ScalarType type = at::promote_types(k.scalar_type(), at::kFloat);
  const at::Tensor keys = last_sequence(cut, k).to(type), values = last_sequence(cut, v).to(type);
  const at::Tensor gates = last_sequence(cut, log_alpha).to(at::kDouble), steps = last_sequence(cut, delta).to(at::kDouble);
  const at::Tensor writes = write_vectors(steps.cumsum(0), last_sequence(cut, beta), M) * decay_to_end(gates).unsqueeze(-1);
  const at::Tensor writes_HTM = writes.to(type).transpose(0, 1);
  // Both states with the slots last, one under the other: one message.
  const at::Tensor rows = at::cat({keys, values}, -1).permute({1, 2, 0});                   // [H, K + V, T]
  const at::Tensor states = all_gather(cut.group, at::matmul(rows, writes_HTM));            // [ranks, H, K + V, M]
  const at::Tensor moves = all_gather(cut.group, at::stack({gates.sum(0), steps.sum(0)}));  // [ranks, 2, H]
  const at::Tensor none = states.select(0, 0) + (moves.select(0, 0).sum(0) * 0).nan_to_num().to(type).view({-1, 1, 1});
  const at::Tensor before = fold(cut, none, [&](int64_t p, const SequenceCut::Stretch& stretch, const at::Tensor& state) {
    const at::Tensor decay = moves.select(0, p).select(0, 0), clock = moves.select(0, p).select(0, 1);
    return turned(state * passed(stretch, decay).to(type).view({-1, 1, 1}) + states.select(0, p), clock);
  });
  const int64_t K = k.size(-1), V = v.size(-1);
  return {with_others(before.narrow(1, 0, K), sequences).contiguous(),
          with_others(before.narrow(1, K, V).transpose(1, 2), sequences).contiguous()};
}

at::Tensor tokens_before(const SequenceCut& cut, const at::Tensor& y, int64_t taps, int64_t sequences) {
  const int64_t rows = taps - 1;
  const at::Tensor tokens = last_sequence(cut, y);
  const int64_t own = std::min(rows, tokens.size(0));
  const at::Tensor last = tokens.narrow(0, tokens.size(0) - own, own);
  const at::Tensor tail = at::cat({at::zeros({rows - own, y.size(2)}, y.options()), last}, 0);
  const at::Tensor tails = all_gather(cut.group, tail);  // [ranks, taps - 1, W]
  return with_others(fold(cut, tails.select(0, 0),
                          [&](int64_t p, const SequenceCut::Stretch& stretch, const at::Tensor& state) {
                            const int64_t there = std::min(rows, stretch.last_tokens);
                            const at::Tensor kept = stretch.whole && !stretch.begins ? state : state * 0;
                            return at::cat({kept.narrow(0, there, rows - there), tails[p].narrow(0, rows - there, there)}, 0);
                          }),
                     sequences);
}

}  // namespace cyfa
