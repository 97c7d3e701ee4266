#include "cyfa/parallel/group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

namespace cyfa {
namespace {

std::atomic<bool> waiting = false;

// A group of torch.distributed. Boxed calls, since the type of the group's argument differs between versions of torch.
class TorchDistributed final : public Collectives {
 public:
  TorchDistributed(std::string name, int64_t size) : name_(std::move(name)), size_(size) {}

  void all_reduce(const at::Tensor& x) override { call("all_reduce_", {x, "sum", name_}); }
  void reduce_scatter(const at::Tensor& part, const at::Tensor& x) override {
    call("reduce_scatter_tensor_out", {x, "sum", size_, name_, part});
  }
  void all_gather(const at::Tensor& all, const at::Tensor& part) override { call("all_gather_into_tensor_out", {part, size_, name_, all}); }
  at::Tensor exchange(const at::Tensor& x, int to, int from) override {
    // Every rank takes part, but only the ranks named send anything.
    std::vector<int64_t> sent(static_cast<size_t>(size_)), received(static_cast<size_t>(size_));
    if (to >= 0) sent[static_cast<size_t>(to)] = x.numel();
    if (from >= 0) received[static_cast<size_t>(from)] = x.numel();
    return call("all_to_all_single", {to >= 0 ? x : x.narrow(0, 0, 0), received, sent, name_});
  }
  void finish(const at::Tensor& result) override { call("wait_tensor", {result}); }

 private:
  static at::Tensor call(const char* name, torch::jit::Stack stack) {
    const auto found = c10::Dispatcher::singleton().findSchema({std::string("_c10d_functional::") + name, ""});
    if (!found) throw std::runtime_error(std::string("this torch has no collective ") + name + "; it was built without distributed");
    found->callBoxed(&stack);
    return stack.at(0).toTensor();
  }

  std::string name_;
  int64_t size_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Runs a part of a collective; whatever torch throws there is a failure of the group.
template <class Work>
void attempt(const Work& work) {
  const at::NoGradGuard no_grad;
  waiting = true;
  try {
    work();
    waiting = false;
  } catch (const c10::Error& e) {
    waiting = false;
    throw GroupError("the exchange with the other ranks failed: " + first_line(e.what_without_backtrace()));
  } catch (const std::exception& e) {
    waiting = false;
    throw GroupError("the exchange with the other ranks failed: " + first_line(e.what()));
  }
}

double share(int size) { return static_cast<double>(size - 1) / size; }

}  // namespace

// By all copies of a group.
struct Group::Shared {
  std::shared_ptr<Collectives> collectives;
  Traffic traffic;
  std::deque<std::pair<c10::Event, c10::Event>> waits;  // of a GPU's stream, in order: when each begins and ends

  void count_ended_waits() {
    for (; !waits.empty() && waits.front().second.query(); waits.pop_front()) {
      traffic.seconds += waits.front().first.elapsedTime(waits.front().second) * 1e-3;
    }
  }
};

bool Group::waits() { return waiting; }

Group::Group(const std::string& name, int rank, int size) : Group(std::make_shared<TorchDistributed>(name, size), rank, size) {}

Group::Group(std::shared_ptr<Collectives> collectives, int rank, int size)
    : shared_(std::make_shared<Shared>(Shared{std::move(collectives), {}, {}})), rank_(rank), size_(size) {}

Traffic Group::traffic() const {
  if (alone()) return {};
  shared_->count_ended_waits();
  return shared_->traffic;
}

Group::Pending Group::begun(const at::Tensor& result, double bytes) const {
  shared_->traffic.bytes += bytes;
  Pending pending;
  pending.tensor_ = result;
  pending.shared_ = shared_;
  return pending;
}

void Group::Pending::wait() {
  if (!tensor_.defined()) return;
  const at::Tensor result = std::exchange(tensor_, at::Tensor());
  const auto finish = [&] { attempt([&] { shared_->collectives->finish(result); }); };
  if (result.is_cuda()) {
    const auto now = [stream = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(result.device())] {
      c10::Event event(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
      event.record(stream);
      return event;
    };
    c10::Event begin = now();
    finish();
    shared_->waits.emplace_back(std::move(begin), now());
    shared_->count_ended_waits();
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  finish();
  shared_->traffic.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Group::Pending Group::all_reduce(const at::Tensor& x) const {
  if (alone()) return {};
  attempt([&] { shared_->collectives->all_reduce(x); });
  return begun(x, 2 * share(size_) * static_cast<double>(x.nbytes()));
}

Group::Pending Group::reduce_scatter(const at::Tensor& part, const at::Tensor& x) const {
  if (alone()) {
    part.copy_(x);
    return {};
  }
  attempt([&] { shared_->collectives->reduce_scatter(part, x); });
  return begun(part, share(size_) * static_cast<double>(x.nbytes()));
}

Group::Pending Group::all_gather(const at::Tensor& all, const at::Tensor& part) const {
  if (alone()) {
    all.copy_(part);
    return {};
  }
  attempt([&] { shared_->collectives->all_gather(all, part); });
  return begun(all, share(size_) * static_cast<double>(all.nbytes()));
}

at::Tensor Group::shift(const at::Tensor& x, int by) const {
  const auto rank_or_none = [&](int rank) { return rank >= 0 && rank < size_ ? rank : -1; };
  const int to = rank_or_none(rank_ + by), from = rank_or_none(rank_ - by);
  if (alone() || x.numel() == 0) return at::zeros_like(x);
  at::Tensor result;
  attempt([&] { result = shared_->collectives->exchange(x, to, from); });
  begun(result, to < 0 ? 0.0 : static_cast<double>(x.nbytes())).wait();
  return from < 0 ? at::zeros_like(x) : result;
}

std::vector<std::string> Group::all_gather_text(const std::string& text) const {
  if (alone()) return {text};
  const at::Tensor lengths = at::empty({size_}, at::kLong);
  all_gather(lengths, at::full({1}, static_cast<int64_t>(text.size()), at::kLong)).wait();
  const auto longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  const at::Tensor own = at::zeros({longest}, at::kByte), all = at::empty({size_ * longest}, at::kByte);
  std::memcpy(own.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  all_gather(all, own).wait();
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto* begin = static_cast<const char*>(all.const_data_ptr()) + rank * longest;
    texts.emplace_back(begin, static_cast<size_t>(lengths[rank].item<int64_t>()));
  }
  return texts;
}

void check_agreement(const Group& group, const std::vector<Agreed>& values) {
  std::string differing;
  for (const Agreed& one : values) {
    const std::vector<std::string> all = group.all_gather_text(one.value);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      differing += (differing.empty() ? "" : "; ") + one.what + " of rank " + std::to_string(rank) + " is " + all[rank] +
                   ", that of rank 0 is " + all[0];
      break;
    }
  }
  if (!differing.empty()) {
    throw std::invalid_argument("the ranks disagree: " + differing + "; all of them need the same program, recipe, data and start");
  }
}

}  // namespace cyfa
