// Ranks as threads of one process, for tests.
#pragma once

#include <c10/core/AutogradState.h>

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "cyfa/parallel/group.h"

namespace cyfa::test {

// The collectives of ranks that are threads. Each is complete when it has begun, so that they must be called in the same order.
class Room {
 public:
  explicit Room(int ranks) : ranks_(ranks), barrier_(ranks), shown_(static_cast<size_t>(ranks)) {}

  // Every rank shows a tensor, reads those of all ranks, and waits until all have read.
  template <class Read>
  void meet(int rank, const at::Tensor& x, const Read& read) {
    shown_[static_cast<size_t>(rank)] = x;
    barrier_.arrive_and_wait();
    const at::Tensor result = read(shown_);
    barrier_.arrive_and_wait();
    to(rank, result);
    barrier_.arrive_and_wait();
  }
  int ranks() const { return ranks_; }
  std::vector<at::Tensor> results = std::vector<at::Tensor>(16);

 private:
  void to(int rank, const at::Tensor& x) { results[static_cast<size_t>(rank)] = x; }

  int ranks_;
  std::barrier<> barrier_;
  std::vector<at::Tensor> shown_;
};

class InRoom final : public Collectives {
 public:
  InRoom(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}

  void all_reduce(const at::Tensor& x) override {
    room_->meet(rank_, x, [](const std::vector<at::Tensor>& all) { return at::stack(all).sum(0); });
    x.copy_(room_->results[static_cast<size_t>(rank_)]);
  }
  void reduce_scatter(const at::Tensor& part, const at::Tensor& x) override {
    room_->meet(rank_, x, [](const std::vector<at::Tensor>& all) { return at::stack(all).sum(0); });
    part.copy_(room_->results[static_cast<size_t>(rank_)].narrow(0, rank_ * part.numel(), part.numel()));
  }
  void all_gather(const at::Tensor& all, const at::Tensor& part) override {
    room_->meet(rank_, part, [](const std::vector<at::Tensor>& parts) { return at::cat(parts); });
    all.copy_(room_->results[static_cast<size_t>(rank_)]);
  }
  at::Tensor exchange(const at::Tensor& x, int, int from) override {
    room_->meet(rank_, x, [from](const std::vector<at::Tensor>& all) {
      return from < 0 ? at::empty({0}, all[0].options()) : all[static_cast<size_t>(from)].clone();
    });
    return room_->results[static_cast<size_t>(rank_)];
  }
  void finish(const at::Tensor&) override {}

 private:
  std::shared_ptr<Room> room_;
  int rank_;
};

// Runs work(group) on so many ranks at a time. Backward runs on the rank's own thread: autograd otherwise has one thread for each GPU, in
// which the ranks that share it would wait for each other.
template <class Work>
void on_ranks(int ranks, const Work& work) {
  const auto room = std::make_shared<Room>(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      work(Group(std::make_shared<InRoom>(room, rank), rank, ranks));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cyfa::test
