// Batches of tokens for training, in an order that depends on nothing but the options and the number of the step.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

#include "cyfa/data/token_data.h"

namespace cyfa {

// A permutation of 0 .. size - 1 that is computed and not stored: a Feistel network over the next power of four, walked until the
// result is below `size`.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed);
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t size_;
  int half_;  // bits of half a number
  uint64_t keys_[kRounds];
};

struct BatchOptions {
  int64_t T = 2048;
  int64_t B = 8;  // rows of one rank
  uint64_t seed = 42;
  int rank = 0;
  int ranks = 1;
  bool shuffle = true;
  bool reset_documents = false;  // the model forgets where a document starts
};

struct Batch {
  at::Tensor ids;  // [B, T + 1] int64: T inputs and the token after each
  // With reset_documents: int64 borders for the inputs packed as [1, B * T], at every row and every document start. Otherwise absent.
  std::optional<at::Tensor> cu_seqlens;
};

// The stream is cut into windows: number i holds tokens i * T .. i * T + T, so that neighbours share one token, which is predicted in
// one and read in the other. A batch of all ranks is the next ranks * B windows of the epoch's permutation; those left over at the end
// of an epoch are dropped.
class Batches {
 public:
  // `data` must outlive this. Throws std::invalid_argument for what cannot be, data too short for one batch included.
  Batches(const TokenData& data, const BatchOptions& options);

  int64_t windows() const { return windows_; }
  int64_t per_epoch() const { return per_epoch_; }  // batches
  const BatchOptions& options() const { return options_; }

  // Any step from 0 on. Epochs follow one another, each with a permutation of its own.
  Batch at(int64_t step) const;

  // The windows of that batch, a row each.
  std::vector<int64_t> rows(int64_t step) const;

 private:
  const TokenData* data_;
  BatchOptions options_;
  int64_t windows_ = 0, per_epoch_ = 0;
};

}  // namespace cyfa
