// Answers the requests of documents with a model.
//
// Log-likelihoods: sequences of different lengths are packed (cu_seqlens), so that no padding is computed. The requests of a document
// share the computation of the tokens that they all begin with: a layer reads them once and continues from its state for each request.
// Only the logits of scored tokens are computed. On a CPU every answer has the same bits whatever it is packed with and however many
// threads there are: products are made in blocks of rows (ops/dense/linear_in_blocks.h), and where that is not possible a row does not
// depend on the other rows as long as there are a few of them (kLeastRows).
//
// Texts are generated greedily by decode/generator.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cyfa/engine/engine.h"
#include "cyfa/eval/encoder.h"
#include "cyfa/eval/request.h"

namespace cyfa::eval {

struct ScorerOptions {
  int64_t max_length = 2048;     // tokens that the model is given at most, except by Request::Kind::kTokens and may_truncate = false
  int64_t batch_tokens = 8192;   // most tokens in one forward, unless a single document has more
  int64_t batch_sequences = 32;  // most texts that are generated together
};

// Tokens of which some are scored: targets[i] follows inputs[first + i].
struct ScoredSequence {
  std::vector<int64_t> inputs, targets;
  size_t first = 0;
  size_t request = 0;  // to which the log-likelihood is added
};

// The requests of one document in tokens.
struct Prepared {
  struct Generation {
    size_t request = 0;
    std::vector<int64_t> prompt;
    std::vector<std::string> stop;
    int64_t max_tokens = 0;
  };

  std::vector<std::vector<ScoredSequence>> groups;  // sequences of a group share their common beginning
  std::vector<Generation> generations;
  std::vector<Response> responses;  // as far as they are known: truncated

  int64_t tokens() const;  // that are scored or read for it in a forward, with shared ones counted once
  size_t longest() const;  // tokens of the longest sequence or prompt
};

class Scorer {
 public:
  // Keeps references to engine and encoder.
  Scorer(StepEngine& engine, const Encoder& encoder, const ScorerOptions& options);

  const ScorerOptions& options() const { return options_; }

  // Tokenizes. Throws std::invalid_argument for a request that cannot be answered: nothing to score, or a continuation of more than
  // max_length tokens.
  Prepared prepare(const std::vector<Request>& requests) const;

  // Documents begin .. end - 1 fit into one call of answer().
  size_t batch_end(std::span<const Prepared> documents, size_t begin) const;
  // The responses of each document. Throws std::runtime_error if the model's logits are not finite.
  std::vector<std::vector<Response>> answer(std::span<const Prepared> documents);

  // Called while the prompt of a text that is generated is read: tokens done and all of them. May be empty.
  std::function<void(int64_t done, int64_t all)> on_prefill;
  // If it returns true, answer() returns early, with nothing. May be empty.
  std::function<bool()> should_stop;

 private:
  void score(std::span<const Prepared> documents, std::vector<std::vector<Response>>& responses);
  void score_long(const ScoredSequence& sequence, Response& response);
  bool generate(std::span<const Prepared> documents, std::vector<std::vector<Response>>& responses);
  void add_scores(const at::Tensor& rows, const std::vector<int64_t>& row_of, const std::vector<int64_t>& targets,
                  std::vector<float>& log_likelihoods, std::vector<char>& greedy) const;
  double state_bytes(size_t sequences, size_t longest) const;  // of one layer

  StepEngine& engine_;
  const CausalLM& model_;
  const Encoder& encoder_;
  ScorerOptions options_;
  size_t least_tokens_ = 0;  // of a packed sequence
};

}  // namespace cyfa::eval
