// Multi-query associative recall (MQAR), the synthetic task of Zoology and Based: a sequence lists K key-value pairs, and later shows each
// key once more; at that place the model is to give the key's value. Used by `cyfa experiment`; docs/experiments.md says how the task is
// defined.
#pragma once

#include <mutex>

#include "cyfa/train/trainer.h"

namespace cyfa {

// Examples of one size.
struct MqarSegment {
  int64_t length = 64;  // L, tokens; even
  int64_t pairs = 4;    // K; 4 K <= L
  int64_t examples = 1000;

  bool operator==(const MqarSegment&) const = default;
};

// What all examples have in common.
struct MqarTask {
  int64_t vocab_size = 8192;        // V: keys are 1 .. V/2 - 1, values V/2 .. V - 1
  double power = 0.01;              // a: a gap g has weight (g + 1)^(a - 1)
  bool random_non_queries = true;   // places without a pair or a query hold random tokens, instead of 0

  // Throws std::invalid_argument, which names the value, for sizes that no example can have.
  void check(const MqarSegment& segment) const;
};

// The examples of a segment, which depend on the seed alone: inputs and targets [examples, L], int32. A target is the value at the place
// of a queried key, and ops::kIgnore everywhere else.
struct MqarExamples {
  at::Tensor inputs, targets;
};
MqarExamples mqar_examples(const MqarTask& task, const MqarSegment& segment, uint64_t seed);

// Segments in their order, cut into batches that never mix two of them; the last batch of a segment may be smaller. Every segment has a seed
// of its own, derived from `seed`. A segment's examples are made when a batch of it is first asked for, and kept.
class MqarData {
 public:
  MqarData(const MqarTask& task, std::vector<MqarSegment> segments, int64_t batch, uint64_t seed);

  const std::vector<MqarSegment>& segments() const { return segments_; }
  int64_t batches() const { return batches_; }  // in one pass
  int64_t tokens() const;                       // in one pass
  // Batch `index` of an endless repetition of the pass.
  TrainBatch at(int64_t index) const;
  const MqarExamples& examples(size_t segment) const;

 private:
  MqarTask task_;
  std::vector<MqarSegment> segments_;
  int64_t batch_, batches_ = 0;
  uint64_t seed_;
  mutable std::vector<MqarExamples> examples_;
  mutable std::mutex mutex_;
};

// The share of correct answers, over the whole vocabulary (argmax): of an example the share of its queries, averaged over the examples.
struct MqarScore {
  std::vector<double> segments;  // in the order of the data
  double pooled = 0;             // over all examples
};
MqarScore mqar_score(const CausalLM& model, const Weights& w, const MqarData& data, int64_t batch);

// The learning rate of Zoology's recipe: cosine to 0 over all epochs, one value for each epoch, no warm-up.
double mqar_learning_rate(double rate, int64_t epoch, int64_t epochs);

}  // namespace cyfa
