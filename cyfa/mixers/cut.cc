#include "cyfa/mixers/cut.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/once_differentiable.h"
#include "cyfa/ops/dense/dense.h"

namespace cyfa {
namespace {

using Tensors = torch::autograd::variable_list;

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Group g) : group(std::move(g)) {}
  Group group;
};

// A stretch, or successive ones, as a map on what it finds: its own contribution, and how it changes what was there before. Maps of
// successive stretches combine to one.
struct Map {
  at::Tensor own;      // fp32 or fp64
  at::Tensor changes;  // fp64
};

at::Tensor bytes_of(const at::Tensor& x) { return x.contiguous().view({-1}).view(at::kByte); }

// The map of rank `rank() - by`, in one message; zeros if there is no such rank.
Map shifted(const Group& group, const at::Tensor& own, const at::Tensor& changes, int by) {
  const at::Tensor received = group.shift(at::cat({bytes_of(changes), bytes_of(own)}), by);
  const auto first = static_cast<int64_t>(changes.nbytes());
  const auto part = [](const at::Tensor& bytes, const at::Tensor& like) {
    return bytes.view(like.scalar_type()).view(like.sizes()).clone();  // to autograd, results of a function had better not be views
  };
  return {part(received.slice(0, first), own), part(received.slice(0, 0, first), changes)};
}

// Its gradient goes the other way.
class Shift : public torch::autograd::Function<Shift> {
 public:
  static Tensors forward(torch::autograd::AutogradContext* ctx, const at::Tensor& own, const at::Tensor& changes,
                         const c10::intrusive_ptr<GroupHolder>& holder, int64_t by) {
    ctx->saved_data["group"] = c10::IValue::make_capsule(holder);
    ctx->saved_data["by"] = by;
    const Map out = shifted(holder->group, own, changes, static_cast<int>(by));
    return {out.own, out.changes};
  }

  static Tensors backward(torch::autograd::AutogradContext* ctx, Tensors grads) {
    const auto holder = c10::static_intrusive_pointer_cast<GroupHolder>(ctx->saved_data["group"].toCapsule());
    const Map out = shifted(holder->group, grads[0], grads[1], -static_cast<int>(ctx->saved_data["by"].toInt()));
    return {out.own, out.changes, at::Tensor(), at::Tensor()};
  }
};

Map shift(const Group& group, const Map& map, int by) {
  const Tensors out = Shift::apply(map.own, map.changes, c10::make_intrusive<GroupHolder>(group), int64_t{by});
  return {out[0], out[1]};
}

// What the ranks before this one leave in an empty memory, as this rank's first token finds it; zeros if that token begins a sequence. By
// an exclusive scan of the ranks' maps: after the round that shifts by 2^i a rank holds the map of the 2^(i + 1) stretches before its own.
// then(earlier, later, ranks): the map of `earlier` and then `later`, which is that of so many stretches before this rank's. Ranks without
// stretches before them compute with zeros, so that backward, a collective call as well, is the same on all ranks. `furthest`: from more
// ranks back nothing comes, on any rank.
template <class Then>
at::Tensor before(const SequenceCut& cut, const Map& own, int furthest, const Then& then) {
  Map map = shift(cut.group, own, 1);
  for (int by = 1; by < std::min(furthest, cut.group.size() - 1); by *= 2) map = then(shift(cut.group, map, by), map, by);
  return cut.own().begins ? map.own * 0 : map.own;
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

// How much a stretch leaves of the state that it finds, from the log of its fading: nothing if a sequence begins in it.
at::Tensor left(bool of_one_sequence, const at::Tensor& log_decay) {
  const at::Tensor decay = log_decay.exp();
  return of_one_sequence ? decay : decay * 0;
}

// A factor for each head, for a state [H, ...] of three dimensions.
at::Tensor by_head(const at::Tensor& factor, const at::Tensor& state) { return factor.to(state.scalar_type()).view({-1, 1, 1}); }

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

// The map of a stretch for cyclic_flow.
struct FlowStretch : torch::CustomClassHolder {
  int64_t M = 0;
  double norm_eps = 0;
  bool of_one_sequence = false;

  // Of the last sequence's k [T, H, K], v, log_alpha, delta, beta and, if there is one, the weight of the keys' norm: both states with the
  // slots last, one under the other, [H, K + V, M], as seen from the clock at the end, and the decay and the clock [2, H].
  Tensors operator()(at::TensorList in) const {
    const ops::WithoutAutocast plain_types;
    const at::ScalarType type = at::promote_types(in[0].scalar_type(), at::kFloat);
    at::Tensor keys = in[0].to(type);
    if (in.size() > 5) keys = ops::rms_norm(keys, in[5].to(type), norm_eps);
    const at::Tensor gates = in[2].to(at::kDouble), steps = in[3].to(at::kDouble), clock = steps.sum(0);
    const at::Tensor writes = write_vectors(steps.cumsum(0), in[4], M) * decay_to_end(gates).unsqueeze(-1);
    const at::Tensor rows = at::cat({keys, in[1].to(type)}, -1).permute({1, 2, 0});  // [H, K + V, T]
    const at::Tensor own = at::matmul(rows, writes.to(type).transpose(0, 1));
    return {turned(own, clock), at::stack({left(of_one_sequence, gates.sum(0)), clock})};
  }
};

// Saves the inputs alone: what lies between is several times larger, in fp32 and fp64.
class FlowSummary : public torch::autograd::Function<FlowSummary> {
 public:
  static Tensors forward(torch::autograd::AutogradContext* ctx, at::TensorList in, const c10::intrusive_ptr<FlowStretch>& stretch) {
    ctx->save_for_backward(in.vec());
    ctx->saved_data["stretch"] = c10::IValue::make_capsule(stretch);
    return (*stretch)(in);
  }

  static Tensors backward(torch::autograd::AutogradContext* ctx, Tensors grads) {
    const auto stretch = c10::static_intrusive_pointer_cast<FlowStretch>(ctx->saved_data["stretch"].toCapsule());
    const Tensors saved = ctx->get_saved_variables();
    Tensors in, wanted;
    for (const at::Tensor& x : saved) {
      in.push_back(x.detach().requires_grad_(x.requires_grad()));
      if (x.requires_grad()) wanted.push_back(in.back());
    }
    Tensors results, upstream;
    {
      const at::AutoGradMode recorded(true);
      results = (*stretch)(in);
    }
    if (!results[1].requires_grad()) results.pop_back();  // neither the gates nor the clock are learned
    upstream.assign(grads.begin(), grads.begin() + static_cast<int64_t>(results.size()));
    const Tensors found = torch::autograd::grad(results, wanted, upstream, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
    Tensors out;
    for (size_t i = 0, next = 0; i < in.size(); ++i) out.push_back(in[i].requires_grad() ? found[next++] : at::Tensor());
    out.emplace_back();
    return ops::once_differentiable("cyclic_flow over ranks", out, saved, grads);
  }
};

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
  const Map own = {at::matmul(faded.permute({1, 2, 0}), values.transpose(0, 1)),
                   left(cut.own().whole && !cut.own().begins, gates.sum(0))};  // [H, K, V], [H]
  return with_others(before(cut, own, cut.group.size(),
                            [](const Map& earlier, const Map& later, int) {
                              return Map{earlier.own * by_head(later.changes, earlier.own) + later.own, earlier.changes * later.changes};
                            }),
                     sequences);
}

FlowBefore flow_before(const SequenceCut& cut, const ops::CyclicFlowInputs& in, double norm_eps, int64_t sequences) {
  Tensors of_last;
  for (const at::Tensor& x : {in.k, in.v, in.log_alpha, in.delta, in.beta}) of_last.push_back(last_sequence(cut, x));
  if (in.k_norm_weight) of_last.push_back(*in.k_norm_weight);
  const auto stretch = c10::make_intrusive<FlowStretch>();
  stretch->M = in.readout.size(1) + 1;
  stretch->norm_eps = norm_eps;
  stretch->of_one_sequence = cut.own().whole && !cut.own().begins;
  const Tensors summary = FlowSummary::apply(at::TensorList(of_last), stretch);
  const Map own = {summary[0], summary[1]};
  const at::Tensor found = before(cut, own, cut.group.size(), [](const Map& earlier, const Map& later, int) {
    const at::Tensor decay = later.changes.select(0, 0), turn = later.changes.select(0, 1);
    return Map{turned(earlier.own * by_head(decay, earlier.own), turn) + later.own,
               at::stack({earlier.changes.select(0, 0) * decay, earlier.changes.select(0, 1) + turn})};
  });
  const int64_t K = in.k.size(-1), V = in.v.size(-1);
  return {with_others(found.narrow(1, 0, K), sequences).contiguous(),
          with_others(found.narrow(1, K, V).transpose(1, 2), sequences).contiguous()};
}

at::Tensor tokens_before(const SequenceCut& cut, const at::Tensor& y, int64_t taps, int64_t sequences) {
  const int64_t rows = taps - 1;
  const at::Tensor tokens = last_sequence(cut, y);
  const int64_t own = std::min(rows, tokens.size(0));
  const at::Tensor last = tokens.narrow(0, tokens.size(0) - own, own);
  const at::Tensor tail = at::cat({at::zeros({rows - own, y.size(2)}, y.options()), last}, 0);
  // Stretches move the rows that they find up by as many as they have tokens, or out.
  const auto moved = [&](int ranks) {
    int64_t sum = 0;
    for (int p = cut.group.rank() - 1; p >= std::max(cut.group.rank() - ranks, 0); --p) {
      const SequenceCut::Stretch& stretch = cut.stretches[static_cast<size_t>(p)];
      if (!stretch.whole || stretch.begins) return rows;
      sum += stretch.last_tokens;
    }
    return std::min(sum, rows);
  };
  // Where every stretch has enough tokens, as all do but in tests, nothing comes from further back than the rank before.
  const bool enough = std::all_of(cut.stretches.begin(), cut.stretches.end(), [&](const SequenceCut::Stretch& stretch) {
    return !stretch.whole || stretch.begins || stretch.last_tokens >= rows;
  });
  const Map own_map = {tail, at::empty({0}, tail.options().dtype(at::kDouble))};
  return with_others(
      before(cut, own_map, enough ? 1 : cut.group.size(),
             [&](const Map& earlier, const Map& later, int ranks) {
               const int64_t there = moved(ranks);
               return Map{later.own + at::cat({earlier.own.narrow(0, there, rows - there), at::zeros({there, y.size(2)}, y.options())}, 0),
                          later.changes};
             }),
      sequences);
}

}  // namespace cyfa
