// A group of processes, the "ranks", that train one model together, and the collectives by which they exchange tensors. The group is one
// of torch.distributed (NCCL on GPUs, Gloo on CPUs), which Python has made (python/cyfa/_ranks.py) and which is known here by its name: its
// collectives are called through torch's dispatcher, so that no header of a communication library is needed.
//
// Every rank calls the same collectives in the same order, with tensors of the same shape and type. One process alone takes the same path:
// there a collective sends nothing.
#pragma once

#include <torch/types.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace cyfa {

// A collective has failed, because another rank has ended, hangs or disagrees. The group is of no further use: the process should end.
class GroupError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a rank has sent and how long it has waited for others, since the group was made.
struct Traffic {
  // Sent by this rank, by the count of a ring: 2 (N - 1) / N of an all-reduce, (N - 1) / N of the others, all of what is shifted.
  double bytes = 0;
  // In Pending::wait(): the host's time or, on a GPU, that for which its stream waits, as far as the stream has come.
  double seconds = 0;
};

// The collectives of a group, of one rank. Each begins here; finish() waits for the one that has this result.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual void all_reduce(const at::Tensor& x) = 0;
  virtual void reduce_scatter(const at::Tensor& part, const at::Tensor& x) = 0;
  virtual void all_gather(const at::Tensor& all, const at::Tensor& part) = 0;
  // Sends x [n] to rank `to` and returns the tensor [n] that rank `from` sends here; -1 for no rank, and then n = 0 is returned. finish()
  // waits for the returned tensor.
  virtual at::Tensor exchange(const at::Tensor& x, int to, int from) = 0;
  virtual void finish(const at::Tensor& result) = 0;
};

class Group {
  struct Shared;

 public:
  Group() = default;  // this process alone
  // Rank `rank` of `size`, in the group of torch.distributed called `name`.
  Group(const std::string& name, int rank, int size);
  // The same with collectives of another kind.
  Group(std::shared_ptr<Collectives> collectives, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool leads() const { return rank_ == 0; }
  bool alone() const { return shared_ == nullptr; }

  // A collective that has begun. Its tensors must not be read or written before wait().
  class Pending {
   public:
    Pending() = default;
    void wait();  // throws GroupError; does nothing the second time

   private:
    friend class Group;
    at::Tensor tensor_;
    std::shared_ptr<Shared> shared_;
  };

  // All tensors are contiguous, and tensors of collectives that are under way at the same time share no storage.
  Pending all_reduce(const at::Tensor& x) const;                              // x becomes the sum over the ranks
  Pending reduce_scatter(const at::Tensor& part, const at::Tensor& x) const;  // part [n] of this rank of the sum of x [size * n]
  Pending all_gather(const at::Tensor& all, const at::Tensor& part) const;    // all [size * n] is every rank's part [n] in order
  // The tensor x [n] of rank `rank() - by`, where `by` may be negative; zeros if there is no such rank. Waits.
  at::Tensor shift(const at::Tensor& x, int by) const;
  // A text of each rank, in order. Waits.
  std::vector<std::string> all_gather_text(const std::string& text) const;

  Traffic traffic() const;

  // Whether this process waits in a collective at the moment. For another thread, which reports it to ranks that miss this one.
  static bool waits();

 private:
  Pending begun(const at::Tensor& result, double bytes) const;

  std::shared_ptr<Shared> shared_;  // by copies of the group
  int rank_ = 0, size_ = 1;
};

// A value that all ranks must agree on, such as the recipe: what it is, and the value.
struct Agreed {
  std::string what;
  std::string value;
};
// Throws std::invalid_argument, on every rank alike, if a rank has another value than rank 0; the message names the rank and what differs.
void check_agreement(const Group& group, const std::vector<Agreed>& values);

}  // namespace cyfa
