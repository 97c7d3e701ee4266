// Text generation: chunked prefill of each prompt, then batched decoding of all sequences, one token per step.
//
// In fp32 on a CPU, a prompt's completion does not depend on the other prompts, bit for bit: each prompt is prefilled on its own, and a
// decode step computes each row independently of the batch.
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

// Options of a run, shared by all prompts.
struct GenerateOptions {
  int64_t max_tokens = 128;       // limit of new tokens
  SamplingOptions sampling;       // all prompts use the same seed
  std::vector<std::string> stop;  // stop strings; a completion ends before the first one
  bool ignore_eos = false;
  int64_t prefill_chunk = 2048;  // prompt tokens per prefill forward
  bool narrow_state = false;     // decode with the state in bf16 if the mixers support it; snapshots are fp32
};

// A prompt, optionally continuing a snapshot.
struct Prompt {
  std::vector<int64_t> ids;          // may be empty if the snapshot has tokens
  std::optional<Snapshot> snapshot;  // the state to continue from; default: an empty state
};

// The result for one prompt.
struct Completion {
  enum class Reason { kLength, kEndOfText, kStop };

  std::vector<int64_t> ids;  // new tokens, without the EOS token
  std::string text;
  Reason reason = Reason::kLength;
  int64_t prompt_tokens = 0;  // prefilled tokens
  int64_t cached_tokens = 0;  // tokens already in the prompt's snapshot
  Snapshot snapshot;          // the sequence after all of `ids`; set if run() is called with keep_snapshots
};
const char* reason_name(Completion::Reason reason);  // "length", "end", "stop"

// Time and token counts of a run.
struct GenerateTimes {
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
};

// Generates completions with a decoding engine and a tokenizer.
class Generator {
 public:
  // Keeps references to both.
  Generator(StepEngine& engine, const Tokenizer& tokenizer);

  // Callbacks: new text of a prompt, prefill progress in tokens, and the end of each decode step. Each may be empty.
  std::function<void(size_t prompt, const std::string& text)> on_text;
  std::function<void(size_t prompt, int64_t done, int64_t all)> on_prefill;
  std::function<void()> on_step;

  // Completes all prompts as one batch. Throws std::invalid_argument for invalid options, or if neither a prompt nor its snapshot has
  // tokens.
  std::vector<Completion> run(const std::vector<Prompt>& prompts, const GenerateOptions& options, bool keep_snapshots = false);

  const GenerateTimes& times() const { return times_; }  // of the last run

  // Prefills one prompt; returns its state and the logits after its last token. `index` is passed to on_prefill.
  Snapshot read(const Prompt& prompt, const GenerateOptions& options, size_t index = 0);

 private:
  StepEngine& engine_;
  const CausalLM& model_;
  const Tokenizer& tokenizer_;
  GenerateTimes times_;
};

}  // namespace cyfa
