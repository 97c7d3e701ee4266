// Associative recall, a minimal task that requires addressable memory: a sequence lists key-value pairs once, then filler, then queries
// every key in another order. `cyfa demo recall` trains two models on it.
#pragma once

#include "cyfa/train/trainer.h"

namespace cyfa {

// A task with fixed sizes; batches are determined by the seed and their index.
struct RecallTask {
  int64_t pairs = 8;    // per sequence
  int64_t gap = 0;      // filler tokens between the pairs and the queries
  int64_t keys = 32;    // tokens 0 .. keys - 1
  int64_t values = 32;  // tokens keys .. keys + values - 1
  int64_t batch = 64;
  uint64_t seed = 1;

  int64_t filler() const { return keys + values; }  // the token of the filler
  int64_t vocab_size() const { return keys + values + 1; }
  int64_t first_query() const { return 2 * pairs + gap; }
  int64_t context() const { return 4 * pairs + gap; }

  // Batch `index`. A sequence is k v k v ..., the filler, and k v k v ... in another order; only the values after the filler are targets.
  TrainBatch at(int64_t index) const;

  // A token as it is printed: keys are letters (A to Z, then AA), values numbers, the filler a dot.
  std::string name(int64_t token) const;
};

// The two models of the demo: equally wide and deep, with states of the same size in each layer.
struct RecallModels {
  static constexpr int64_t kSlots = 16;  // stored by each head: slots, or the last tokens
  static constexpr int64_t kLayers = 2;
  // How far back the window model's output can depend on its input: each layer looks at the token and the kSlots - 1 before it.
  static constexpr int64_t kReach = kLayers * (kSlots - 1);

  static ModelConfig cyclic_flow(const RecallTask& task);
  static ModelConfig window(const RecallTask& task);
};

// The tokens that the model answers the queries of `inputs` [B, T] with (argmax), [B, pairs].
at::Tensor recall_answers(const CausalLM& model, const RecallTask& task, const at::Tensor& inputs);

// Fraction of queried values that the model predicts correctly, on batches not used for training.
double recall_accuracy(const CausalLM& model, const RecallTask& task, int64_t batches);

// How one head reads one sequence of the task.
struct RecallReads {
  int64_t layer = 0, head = 0;
  int64_t lag = 0;   // the head writes a pair this many tokens after its key: convolutions and the layer below bring key and value there
  at::Tensor delta;  // [T] clock increments
  at::Tensor beta;   // [T] write strengths
  at::Tensor ages;   // [pairs, T]: the slot at which the clock has put each pair's write, 0 .. m; NaN before it is written
  at::Tensor slots;  // [m, T]: weights with which each token reads the slots
  at::Tensor pairs;  // [pairs, pairs]: weight of each pair's write (row) in what each query (column, in the order of the sequence) reads
  at::Tensor order;  // [pairs]: the pair that each query asks for
};

// The head of a cyclic flow model, and the lag, that give the queried pairs most weight on ids [T].
RecallReads recall_reads(const CausalLM& model, const RecallTask& task, const at::Tensor& ids);

}  // namespace cyfa
