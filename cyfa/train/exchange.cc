#include "cyfa/train/exchange.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace cyfa {

struct GradientExchange::Bucket {
  struct Member {
    ParameterId id;
    int64_t offset;  // in the bucket
    int64_t length;
  };
  std::vector<Member> members;
  int64_t length = 0;  // of all members, and then what fills up to a multiple of the number of ranks
  at::Tensor sums;     // fp32 [length]
  at::Tensor given;    // what is exchanged: sums, or a copy in bf16
  at::Tensor part;     // with `shard`: this rank's part of `given`
  at::Tensor own;      // the same in fp32
  size_t missing = 0;  // gradients that are not complete
  bool sent = false;   // its parameters are on their way, in `sums`
  Group::Pending pending;

  at::Tensor view(const Member& m, const at::Tensor& like) const { return sums.narrow(0, m.offset, m.length).view(like.sizes()); }
  int64_t part_length(const Group& group) const { return length / group.size(); }
};

// Called by autograd each time it has added to a parameter's gradient.
class GradientExchange::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientExchange& exchange, ParameterId id) : exchange_(exchange), id_(id) {}
  void operator()(const at::Tensor&) override { exchange_.completed(id_); }

 private:
  GradientExchange& exchange_;
  ParameterId id_;
};

GradientExchange::GradientExchange(CausalLM& model, const Group& group, bool shard, at::ScalarType type, int64_t bucket_bytes)
    : model_(model), group_(group), shard_(shard), type_(type) {
  if (group.alone()) return;
  const size_t count = model.parameters().size();
  bucket_of_.resize(count);
  completed_.resize(count);
  has_gradient_.resize(count);
  for (ParameterId id = count; id-- > 0;) {
    const at::Tensor& p = model.parameters()[id];
    if (buckets_.empty() || buckets_.back()->length * int64_t{sizeof(float)} >= bucket_bytes) {
      buckets_.push_back(std::make_unique<Bucket>());
    }
    Bucket& bucket = *buckets_.back();
    bucket.members.push_back({id, bucket.length, p.numel()});
    bucket.length += p.numel();
    bucket_of_[id] = buckets_.size() - 1;
  }
  const auto options = at::TensorOptions(model.device()).dtype(at::kFloat);
  for (const auto& bucket : buckets_) {
    bucket->length = (bucket->length + group.size() - 1) / group.size() * group.size();
    bucket->sums = at::zeros({bucket->length}, options);
    bucket->given = type == at::kFloat ? bucket->sums : at::zeros({bucket->length}, options.dtype(type));
    if (!shard) continue;
    bucket->own = at::zeros({bucket->part_length(group)}, options);
    bucket->part = type == at::kFloat ? bucket->own : at::zeros_like(bucket->own, type);
  }
  for (ParameterId id = 0; id < count; ++id) {
    torch::autograd::impl::set_post_acc_grad_hooks(model.parameters()[id], std::make_unique<Hook>(*this, id));
  }
}

GradientExchange::~GradientExchange() {
  if (buckets_.empty()) return;
  for (const at::Tensor& p : model_.parameters()) torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
}

std::vector<ParameterRange> GradientExchange::ranges() const {
  std::vector<ParameterRange> all;
  if (!shard_ || buckets_.empty()) {
    for (ParameterId id = 0; id < model_.parameters().size(); ++id) all.push_back({id, 0, model_.parameters()[id].numel()});
    return all;
  }
  for (const auto& bucket : buckets_) {
    const int64_t begin = group_.rank() * bucket->part_length(group_), end = begin + bucket->part_length(group_);
    for (const Bucket::Member& m : bucket->members) {
      const int64_t first = std::max(begin, m.offset), last = std::min(end, m.offset + m.length);
      if (first < last) all.push_back({m.id, first - m.offset, last - first});
    }
  }
  return all;
}

void GradientExchange::begin() {
  if (buckets_.empty()) return;
  std::fill(completed_.begin(), completed_.end(), false);
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
  for (const auto& bucket : buckets_) bucket->missing = bucket->members.size();
  begun_ = 0;
  armed_ = true;
}

void GradientExchange::completed(ParameterId id) {
  if (!armed_) return;
  if (completed_[id]) {
    throw std::logic_error("the gradient of " + model_.table().specs()[id].name + " has changed after it was given to the other ranks");
  }
  completed_[id] = true;
  --buckets_[bucket_of_[id]]->missing;
  begin_ready(false);
}

void GradientExchange::begin_ready(bool all) {
  for (; begun_ < buckets_.size() && (all || buckets_[begun_]->missing == 0); ++begun_) begin_bucket(*buckets_[begun_]);
}

void GradientExchange::begin_bucket(Bucket& bucket) {
  receive(bucket);  // parameters that forward did not use
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> to, from;
  for (const Bucket::Member& m : bucket.members) {
    at::Tensor& p = model_.parameters()[m.id];
    const at::Tensor view = bucket.view(m, p);
    if (!p.grad().defined()) {
      view.zero_();
      continue;
    }
    has_gradient_[m.id] = true;
    to.push_back(view);
    from.push_back(p.grad());
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  // From here on the bucket holds the gradients; what autograd has allocated for them is free.
  for (const Bucket::Member& m : bucket.members) model_.parameters()[m.id].mutable_grad().reset();
  if (type_ != at::kFloat) bucket.given.copy_(bucket.sums);
  bucket.pending = shard_ ? group_.reduce_scatter(bucket.part, bucket.given) : group_.all_reduce(bucket.given);
}

void GradientExchange::finish() {
  if (buckets_.empty()) return;
  if (!armed_) begin();
  begin_ready(true);
  armed_ = false;
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    bucket->pending.wait();
    if (type_ == at::kFloat) continue;
    shard_ ? bucket->own.copy_(bucket->part) : bucket->sums.copy_(bucket->given);
  }
}

std::vector<at::Tensor> GradientExchange::gradients() const {
  std::vector<at::Tensor> all;
  if (buckets_.empty()) {
    for (const at::Tensor& p : model_.parameters()) all.push_back(p.grad());
    return all;
  }
  for (const ParameterRange& r : ranges()) {
    const Bucket& bucket = *buckets_[bucket_of_[r.id]];
    const auto member = std::find_if(bucket.members.begin(), bucket.members.end(), [&](const auto& m) { return m.id == r.id; });
    if (!has_gradient_[r.id]) {
      all.emplace_back();
    } else if (shard_) {
      all.push_back(bucket.own.narrow(0, member->offset + r.begin - group_.rank() * bucket.part_length(group_), r.length));
    } else {
      all.push_back(bucket.view(*member, model_.parameters()[r.id]));
    }
  }
  return all;
}

// The buckets' arrays, which the step has read, carry the parameters.
void GradientExchange::send_parameters() {
  if (!shard_ || buckets_.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto reversed = buckets_.rbegin(); reversed != buckets_.rend(); ++reversed) {
    const auto& bucket = *reversed;
    const int64_t begin = group_.rank() * bucket->part_length(group_), end = begin + bucket->part_length(group_);
    for (const Bucket::Member& m : bucket->members) {
      const int64_t first = std::max(begin, m.offset), last = std::min(end, m.offset + m.length);
      if (first >= last) continue;
      const at::Tensor from = model_.parameters()[m.id].detach().view({-1}).narrow(0, first - m.offset, last - first);
      bucket->own.narrow(0, first - begin, last - first).copy_(from);
    }
    bucket->pending = group_.all_gather(bucket->sums, bucket->own);
    bucket->sent = true;
  }
}

void GradientExchange::receive(Bucket& bucket) {
  if (!std::exchange(bucket.sent, false)) return;
  const at::NoGradGuard no_grad;
  bucket.pending.wait();
  std::vector<at::Tensor> to, from;
  for (const Bucket::Member& m : bucket.members) {
    to.push_back(model_.parameters()[m.id].detach());
    from.push_back(bucket.view(m, model_.parameters()[m.id]));
  }
  at::_foreach_copy_(to, from);
}

void GradientExchange::receive_parameter(ParameterId id) {
  if (!buckets_.empty()) receive(*buckets_[bucket_of_[id]]);
}

void GradientExchange::receive_parameters() {
  for (const auto& bucket : buckets_) receive(*bucket);
}

}  // namespace cyfa
