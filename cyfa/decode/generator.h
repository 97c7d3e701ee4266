// Text from a model: prompts are read chunk by chunk, then all sequences go on together, a token a step.
//
// In fp32 on a CPU a prompt gives the same tokens, bit for bit, alone or beside others: each is read by itself, and a step computes
// every row in the same way whatever the batch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cyfa/data/tokenizer.h"
#include "cyfa/decode/sampler.h"
#include "cyfa/decode/snapshot.h"
#include "cyfa/decode/text_stream.h"
#include "cyfa/engine/engine.h"

namespace cyfa {

struct GenerateOptions {
  int64_t max_tokens = 128;       // new ones
  SamplingOptions sampling;       // every prompt draws from the same seed
  std::vector<std::string> stop;  // texts before which a completion ends
  bool ignore_eos = false;
  int64_t prefill_chunk = 2048;  // prompt tokens that are read at once
  bool narrow_state = false;     // keep the memory in bf16 while decoding, where the model's mixer can; snapshots are fp32
};

struct Prompt {
  std::vector<int64_t> ids;          // may be empty after a snapshot that has seen tokens
  std::optional<Snapshot> snapshot;  // what came before; absent: nothing
};

struct Completion {
  enum class Reason { kLength, kEndOfText, kStop };

  std::vector<int64_t> ids;  // new tokens, without the end mark
  std::string text;
  Reason reason = Reason::kLength;
  int64_t prompt_tokens = 0;  // read now
  int64_t cached_tokens = 0;  // that a snapshot spared
  Snapshot snapshot;          // after everything in ids; set where asked for
};
const char* reason_name(Completion::Reason reason);  // "length", "end", "stop"

struct GenerateTimes {
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
};

class Generator {
 public:
  // Both must outlive the generator.
  Generator(StepEngine& engine, const Tokenizer& tokenizer);

  // Called with new text of a prompt as it comes, and with prompt tokens as they are read.
  std::function<void(size_t prompt, const std::string& text)> on_text;
  std::function<void(size_t prompt, int64_t done, int64_t all)> on_prefill;

  // Throws std::invalid_argument for a prompt without tokens and without a snapshot that has any.
  std::vector<Completion> run(const std::vector<Prompt>& prompts, const GenerateOptions& options, bool keep_snapshots = false);

  const GenerateTimes& times() const { return times_; }  // of the last run

  // A prompt's state and the logits after it.
  Snapshot read(const Prompt& prompt, const GenerateOptions& options, size_t index = 0);

 private:
  StepEngine& engine_;
  const CausalLM& model_;
  const Tokenizer& tokenizer_;
  GenerateTimes times_;
};

}  // namespace cyfa
