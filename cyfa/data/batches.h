// Training batches of tokens from a TokenData folder. The order depends only on the options and the step number, so that a run resumes at
// any step. Used by cyfa/train.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "cyfa/data/token_data.h"

namespace cyfa {

// A pseudorandom permutation of 0 .. size - 1, computed rather than stored: a Feistel network over the next power of four, applied
// repeatedly until the result is below `size` (cycle walking).
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed);
  int64_t operator()(int64_t index) const;
  int64_t inverse(int64_t value) const;  // the index whose image is `value`

 private:
  static constexpr int kRounds = 8;
  uint64_t once(uint64_t value) const;
  uint64_t once_back(uint64_t value) const;

  uint64_t size_;
  int half_;  // number of bits in half of an index
  uint64_t keys_[kRounds];
};

// The part of a data set that training has read: windows of T tokens, the first `windows` of an epoch's permutation and all windows in the
// epochs before. A checkpoint keeps a list of these, so that a continuation with another T can leave that part out.
struct ReadText {
  uint64_t data = 0;  // TokenData::hash()
  uint64_t seed = 0;
  int64_t T = 0;
  int64_t epoch = 0;
  int64_t windows = 0;

  bool operator==(const ReadText&) const = default;
};

// What a batch contains.
struct BatchOptions {
  int64_t T = 2048;  // tokens per window
  int64_t B = 8;     // rows per rank
  uint64_t seed = 42;
  int rank = 0;
  int ranks = 1;
  bool shuffle = true;
  bool reset_documents = false;  // start a new packed sequence, with a new state, at every document start
  // Read by earlier training: the first epoch leaves out every window that overlaps it. Entries of other data have no effect. Only with
  // shuffle.
  std::vector<ReadText> before = {};
};

// A batch of one rank.
struct Batch {
  at::Tensor ids;  // [B, T + 1] int64: T inputs per row and the token after each
  // With reset_documents: int64 sequence boundaries for the inputs packed as [1, B * T], at the start of every row and of every document.
  // Otherwise absent.
  std::optional<at::Tensor> cu_seqlens;
};

// Divides the tokens into windows: window i holds tokens i * T .. i * T + T. Neighbouring windows share one token, which is a target in one
// and an input in the other. The batch of all ranks is the next ranks * B windows of the epoch's permutation; windows left over at the end
// of an epoch are dropped. Thread-safe.
class Batches {
 public:
  // `data` must outlive this object. Throws std::invalid_argument for options out of range and for data too short for one batch.
  Batches(const TokenData& data, const BatchOptions& options);

  int64_t windows() const { return windows_; }
  int64_t per_epoch() const { return per_epoch_; }  // batches per epoch; fewer in a first epoch that leaves windows out
  const BatchOptions& options() const { return options_; }

  // This rank's batch at `step`, which may be any number from 0 on. Every epoch has its own permutation.
  Batch at(int64_t step) const;

  // The window of each row of that batch.
  std::vector<int64_t> rows(int64_t step) const;

  // Everything read after the first `steps` batches of all ranks, by earlier training and by these. For shuffled batches.
  std::vector<ReadText> read_after(int64_t steps) const;

 private:
  struct Place {
    int64_t epoch, batch;  // a batch of an epoch
  };
  Place place(int64_t step) const;
  Permutation permutation(int64_t epoch) const;
  bool read_before(int64_t window) const;
  int64_t batch_windows() const { return options_.B * options_.ranks; }

  const TokenData* data_;
  BatchOptions options_;
  int64_t windows_ = 0, per_epoch_ = 0;

  // The first epoch when it leaves windows out: indices of its permutation whose windows it visits, found as they are needed.
  struct Earlier {
    ReadText read;
    int64_t windows;
    Permutation order;
  };
  std::vector<Earlier> earlier_;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> unread_;
  mutable int64_t searched_ = 0;
};

}  // namespace cyfa
