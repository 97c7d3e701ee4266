#include "cyfa/parallel/group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace cyfa {
namespace {

std::atomic<bool> waiting = false;

c10::OperatorHandle operation(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({std::string("_c10d_functional::") + name, ""});
  if (!found) throw std::runtime_error(std::string("this torch has no collective ") + name + "; it was built without distributed");
  return *found;
}

// Boxed calls, since the type of the group's argument differs between versions of torch.
at::Tensor call(const char* name, std::vector<c10::IValue> arguments) {
  const at::NoGradGuard no_grad;
  torch::jit::Stack stack = std::move(arguments);
  operation(name).callBoxed(&stack);
  return stack.at(0).toTensor();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Runs a part of a collective; whatever torch throws there is a failure of the group.
template <class Work>
auto attempt(const Work& work) {
  waiting = true;
  try {
    auto result = work();
    waiting = false;
    return result;
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

bool Group::waits() { return waiting; }

Group::Group(std::string name, int rank, int size)
    : name_(std::move(name)), rank_(rank), size_(size), traffic_(std::make_shared<Traffic>()) {}

Group::Pending Group::begin(const char* op, std::vector<c10::IValue> arguments, const at::Tensor& result, double bytes) const {
  attempt([&] { return call(op, std::move(arguments)); });
  traffic_->bytes += bytes;
  Pending pending;
  pending.tensor_ = result;
  pending.traffic_ = traffic_;
  return pending;
}

void Group::Pending::wait() {
  if (!tensor_.defined()) return;
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor result = std::exchange(tensor_, at::Tensor());
  attempt([&] { return call("wait_tensor", {result}); });
  traffic_->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Group::Pending Group::all_reduce(const at::Tensor& x) const {
  if (alone()) return {};
  return begin("all_reduce_", {x, "sum", name_}, x, 2 * share(size_) * static_cast<double>(x.nbytes()));
}

Group::Pending Group::reduce_scatter(const at::Tensor& part, const at::Tensor& x) const {
  if (alone()) {
    part.copy_(x);
    return {};
  }
  return begin("reduce_scatter_tensor_out", {x, "sum", int64_t{size_}, name_, part}, part, share(size_) * static_cast<double>(x.nbytes()));
}

Group::Pending Group::all_gather(const at::Tensor& all, const at::Tensor& part) const {
  if (alone()) {
    all.copy_(part);
    return {};
  }
  return begin("all_gather_into_tensor_out", {part, int64_t{size_}, name_, all}, all, share(size_) * static_cast<double>(all.nbytes()));
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
