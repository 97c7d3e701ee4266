// Associative recall: keys with their values are shown once, then every key is asked for, in another order. The smallest task that needs a
// memory with addresses.
#pragma once

#include "cyfa/train/trainer.h"

namespace cyfa {

struct RecallTask {
  int64_t pairs = 8;    // of a sequence
  int64_t keys = 32;    // tokens 0 .. keys - 1
  int64_t values = 32;  // the tokens after them
  int64_t batch = 64;
  uint64_t seed = 1;

  int64_t vocab_size() const { return keys + values; }
  int64_t context() const { return 4 * pairs; }

  // k v k v ... shown, then k v k v ... asked: the targets that count are the values of the second half.
  TrainBatch at(int64_t index) const;
};

// Share of asked values that the model finds likeliest, over fresh batches.
double recall_accuracy(const CausalLM& model, const RecallTask& task, int64_t batches);

}  // namespace cyfa
