// Associative recall, a minimal task that requires addressable memory: a sequence lists key-value pairs once, then queries every key in
// another order.
#pragma once

#include "cyfa/train/trainer.h"

namespace cyfa {

// A task with fixed sizes; batches are determined by the seed and their index.
struct RecallTask {
  int64_t pairs = 8;    // per sequence
  int64_t keys = 32;    // tokens 0 .. keys - 1
  int64_t values = 32;  // tokens keys .. keys + values - 1
  int64_t batch = 64;
  uint64_t seed = 1;

  int64_t vocab_size() const { return keys + values; }
  int64_t context() const { return 4 * pairs; }

  // Batch `index`. A sequence is k v k v ... twice, in two orders; only the values of the second half are targets.
  TrainBatch at(int64_t index) const;
};

// Fraction of queried values that the model predicts correctly (argmax), on batches not used for training.
double recall_accuracy(const CausalLM& model, const RecallTask& task, int64_t batches);

}  // namespace cyfa
