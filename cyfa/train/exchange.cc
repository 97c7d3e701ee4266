#include "cyfa/train/exchange.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cyfa/io/hash.h"

namespace cyfa {

struct GradientExchange::Bucket {
  struct Member {
    ParameterId id;
    int64_t offset;  // in the bucket
    int64_t length;
  };
  explicit Bucket(at::ScalarType t) : type(t) {}

  at::ScalarType type;  // in which its parameters travel
  std::vector<Member> members;
  int64_t length = 0;  // of all members and the gaps between them, and then what fills up to equal parts
  at::Tensor sums;     // fp32 [length]
  at::Tensor given;    // what is exchanged: sums, or a copy in bf16
  at::Tensor part;     // with `shard`: this rank's part of `given`
  at::Tensor own;      // the same in fp32
  size_t missing = 0;  // gradients that are not complete
  bool sent = false;   // its parameters are on their way, in the memory of `sums`
  Group::Pending pending;

  int64_t part_length(const Group& group) const { return length / group.size(); }
  at::Tensor arriving() const { return type == at::kFloat ? sums : sums.view(type).narrow(0, 0, length); }
  at::Tensor leaving() const { return type == at::kFloat ? own : own.view(type).narrow(0, 0, own.numel()); }

  // Calls work(id, first element of the parameter, first element of the rank's part, length) for each member that the part has some of.
  template <class Work>
  void each_of_part(const Group& group, const Work& work) const {
    const int64_t begin = group.rank() * part_length(group), end = begin + part_length(group);
    for (const Member& m : members) {
      const int64_t first = std::max(begin, m.offset), last = std::min(end, m.offset + m.length);
      if (first < last) work(m.id, first - m.offset, first - begin, last - first);
    }
  }
};

namespace {

// Each parameter and each rank's part of a bucket begin at a multiple of so many elements: 64 bytes of fp32, 32 of bf16. A part of a
// parameter then begins where a vector of the whole parameter's update does, and its update has the same bits.
constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t length, int64_t to = kAlignment) { return (length + to - 1) / to * to; }

// A parameter's elements in an array of a bucket.
at::Tensor placed(const at::Tensor& array, int64_t offset, const at::Tensor& like) {
  return array.narrow(0, offset, like.numel()).view(like.sizes());
}

// The type in which a parameter is sent: its own if it is narrower than fp32.
at::ScalarType sent_type(const at::Tensor& parameter) {
  return parameter.element_size() < int64_t{sizeof(float)} ? parameter.scalar_type() : at::kFloat;
}

}  // namespace

// Called by autograd each time it has computed a parameter's gradient.
class GradientExchange::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientExchange& exchange, ParameterId id) : exchange_(exchange), id_(id) {}
  void operator()(const at::Tensor&) override { exchange_.take(id_); }

 private:
  GradientExchange& exchange_;
  ParameterId id_;
};

GradientExchange::GradientExchange(CausalLM& model, const Group& group, bool shard, at::ScalarType type, int64_t bucket_bytes)
    : model_(model), group_(group), shard_(shard), type_(type) {
  if (group.alone()) return;
  const size_t count = model.parameters().size();
  places_.resize(count);
  completed_.resize(count);
  has_gradient_.resize(count);
  // Each type fills a bucket of its own. They are ordered by their last gradients, so that none waits for the rest of another.
  std::map<at::ScalarType, std::unique_ptr<Bucket>> filling;
  const auto close = [&](std::unique_ptr<Bucket>& bucket) {
    for (const Bucket::Member& m : bucket->members) places_[m.id] = {buckets_.size(), m.offset};
    buckets_.push_back(std::move(bucket));
  };
  for (ParameterId id = count; id-- > 0;) {
    const at::Tensor& p = model.parameters()[id];
    std::unique_ptr<Bucket>& bucket = filling[sent_type(p)];
    if (!bucket) bucket = std::make_unique<Bucket>(sent_type(p));
    bucket->members.push_back({id, bucket->length, p.numel()});
    bucket->length += aligned(p.numel());
    if (bucket->length * int64_t{sizeof(float)} >= bucket_bytes) close(bucket);
  }
  for (auto& [of, bucket] : filling) {
    if (bucket) close(bucket);
  }
  const auto options = at::TensorOptions(model.device()).dtype(at::kFloat);
  for (const auto& bucket : buckets_) {
    bucket->length = aligned(bucket->length, group.size() * kAlignment);
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
    bucket->each_of_part(group_, [&](ParameterId id, int64_t first, int64_t, int64_t length) { all.push_back({id, first, length}); });
  }
  return all;
}

void GradientExchange::begin_step() { std::fill(has_gradient_.begin(), has_gradient_.end(), false); }

void GradientExchange::begin() {
  if (buckets_.empty()) return;
  std::fill(completed_.begin(), completed_.end(), false);
  for (const auto& bucket : buckets_) bucket->missing = bucket->members.size();
  begun_ = 0;
  armed_ = true;
}

// Gradients are added up in fp32, whatever the parameter's type, and the memory that autograd has allocated for them is free at once.
void GradientExchange::take(ParameterId id) {
  refuse_if_completed(id);
  Bucket& bucket = *buckets_[places_[id].bucket];
  receive(bucket);
  const at::NoGradGuard no_grad;
  at::Tensor& grad = model_.parameters()[id].mutable_grad();
  const at::Tensor sum = placed(bucket.sums, places_[id].offset, grad);
  has_gradient_[id] ? sum.add_(grad) : sum.copy_(grad);
  has_gradient_[id] = true;
  grad.reset();
  completed(id);
}

void GradientExchange::refuse_if_completed(ParameterId id) const {
  if (!armed_ || !completed_[id]) return;
  throw std::logic_error("the gradient of " + model_.table().specs()[id].name + " has changed after it was given to the other ranks");
}

void GradientExchange::completed(ParameterId id) {
  if (!armed_) return;
  refuse_if_completed(id);
  completed_[id] = true;
  --buckets_[places_[id].bucket]->missing;
  begin_ready(false);
}

void GradientExchange::begin_ready(bool all) {
  for (; begun_ < buckets_.size() && (all || buckets_[begun_]->missing == 0); ++begun_) begin_bucket(*buckets_[begun_]);
}

void GradientExchange::begin_bucket(Bucket& bucket) {
  receive(bucket);  // parameters that forward did not use
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> to, from;  // gradients that an engine keeps in an array of its own
  for (const Bucket::Member& m : bucket.members) {
    const at::Tensor& p = model_.parameters()[m.id];
    const at::Tensor sum = placed(bucket.sums, m.offset, p);
    if (p.grad().defined()) {
      has_gradient_[m.id] = true;
      to.push_back(sum);
      from.push_back(p.grad());
    } else if (!has_gradient_[m.id]) {
      sum.zero_();
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
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
  if (!shard_) {
    for (ParameterId id = 0; id < places_.size(); ++id) {
      const at::Tensor& p = model_.parameters()[id];
      all.push_back(has_gradient_[id] ? placed(buckets_[places_[id].bucket]->sums, places_[id].offset, p) : at::Tensor());
    }
    return all;
  }
  for (const auto& bucket : buckets_) {
    bucket->each_of_part(group_, [&](ParameterId id, int64_t, int64_t own, int64_t length) {
      all.push_back(has_gradient_[id] ? bucket->own.narrow(0, own, length) : at::Tensor());
    });
  }
  return all;
}

// The buckets' arrays, which the step has read, carry the parameters.
void GradientExchange::send_parameters() {
  if (!shard_ || buckets_.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto reversed = buckets_.rbegin(); reversed != buckets_.rend(); ++reversed) {
    const auto& bucket = *reversed;
    const at::Tensor leaving = bucket->leaving();
    bucket->each_of_part(group_, [&](ParameterId id, int64_t first, int64_t own, int64_t length) {
      leaving.narrow(0, own, length).copy_(model_.parameters()[id].detach().view({-1}).narrow(0, first, length));
    });
    bucket->pending = group_.all_gather(bucket->arriving(), leaving);
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
    from.push_back(placed(bucket.arriving(), m.offset, model_.parameters()[m.id]));
  }
  at::_foreach_copy_(to, from);
}

void GradientExchange::receive_parameter(ParameterId id) {
  if (!buckets_.empty()) receive(*buckets_[places_[id].bucket]);
}

void GradientExchange::receive_parameters() {
  for (const auto& bucket : buckets_) receive(*bucket);
}

std::vector<at::Tensor> GradientExchange::gather(const std::vector<at::Tensor>& of_ranges) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all = model_.parameters();
  if (!shard_) return all;
  size_t range = 0;
  for (const auto& bucket : buckets_) {
    bucket->each_of_part(group_, [&](ParameterId, int64_t, int64_t own, int64_t length) {
      bucket->own.narrow(0, own, length).copy_(of_ranges.at(range++).reshape({-1}));
    });
    if (bucket->type != at::kFloat) bucket->pending = group_.all_gather(bucket->sums, bucket->own);
  }
  for (const auto& bucket : buckets_) {
    bucket->pending.wait();
    if (bucket->type == at::kFloat) continue;
    for (const Bucket::Member& m : bucket->members) all[m.id] = placed(bucket->sums, m.offset, all[m.id]);
  }
  return all;
}

uint64_t hash_of_sums(const std::vector<at::Tensor>& tensors) {
  constexpr int64_t kBlock = 4096;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& x : tensors) {
    const at::ScalarType integer = x.element_size() == 2 ? at::kShort : x.element_size() == 4 ? at::kInt : at::kLong;
    const at::Tensor bits = x.detach().reshape({-1}).view(integer);
    const int64_t blocks = bits.numel() / kBlock;
    sums.push_back(bits.narrow(0, 0, blocks * kBlock).view({blocks, kBlock}).sum(at::IntArrayRef{1}, false, at::kLong));
    sums.push_back(bits.narrow(0, blocks * kBlock, bits.numel() - blocks * kBlock).sum(at::kLong).reshape({1}));
  }
  const at::Tensor all = at::cat(sums).to(at::kCPU);
  return io::hash64({static_cast<const std::byte*>(all.const_data_ptr()), all.nbytes()});
}

}  // namespace cyfa
