// Text generation: chunked prefill of each prompt, then batched decoding, one token per sequence and step. A sequence that ends makes room
// for the next prompt.
//
// In fp32 on a CPU, a prompt's completion does not depend on the other prompts or the size of the batch, bit for bit: each prompt is
// prefilled on its own, and a decode step computes each row independently of the batch.
//
// On a GPU the tokens are drawn there, and the next step starts before the host has read them. A step past the end of a text is discarded.
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
  int64_t batch = 0;          // most sequences that are decoded together; 0 for all prompts
  int64_t prefill_chunk = 0;  // prompt tokens per prefill forward; 0: 8,192 on a GPU, 2,048 on a CPU
  bool narrow_state = false;  // decode with the state in bf16 if the mixers support it; snapshots are fp32
};

// A prompt, optionally continuing a snapshot.
struct Prompt {
  std::vector<int64_t> ids;          // may be empty if the snapshot has tokens
  std::optional<Snapshot> snapshot;  // the state to continue from; default: an empty state
};

// The result for one prompt.
struct Completion {
  enum class Reason { kLength, kEndOfText, kStop, kInterrupted };

  std::vector<int64_t> ids;  // new tokens, without the EOS token
  std::string text;
  Reason reason = Reason::kLength;
  int64_t prompt_tokens = 0;  // prefilled tokens
  int64_t cached_tokens = 0;  // tokens already in the prompt's snapshot
  Snapshot snapshot;          // the sequence after all of `ids`; set if run() is called with keep_snapshots
};
const char* reason_name(Completion::Reason reason);  // "length", "end", "stop", "interrupted"

// Time and token counts of a run.
struct GenerateTimes {
  double warm_up_seconds = 0;                     // on a GPU: loading of kernels and recording of the step, before the first prompt
  double prefill_seconds = 0;                     // up to and including the first token of each text
  double decode_seconds = 0;                      // the steps, with everything between them
  int64_t prefill_tokens = 0, decode_tokens = 0;  // decode_tokens: new tokens that steps have computed, all but the first of each text
  int64_t batch = 0;                              // most sequences that were decoded together
};

// Generates completions with a decoding engine and a tokenizer.
class Generator {
 public:
  // Keeps references to both.
  Generator(StepEngine& engine, const Tokenizer& tokenizer);

  // Callbacks: new text of a prompt, its completion (in the order in which they end), prefill progress in tokens, and the end of each step.
  // All may be empty.
  std::function<void(size_t prompt, const std::string& text)> on_text;
  std::function<void(size_t prompt, const Completion& completion)> on_done;
  std::function<void(size_t prompt, int64_t done, int64_t all)> on_prefill;
  std::function<void()> on_step;
  // If it returns true between two steps or prompts, the texts end there, and prompts that have not begun are left out: they are not
  // reported by on_done. The first prompt is always read. May be empty.
  std::function<bool()> should_stop;

  // Completes all prompts. Throws std::invalid_argument for invalid options, or if neither a prompt nor its snapshot has tokens.
  std::vector<Completion> run(const std::vector<Prompt>& prompts, const GenerateOptions& options, bool keep_snapshots = false);

  const GenerateTimes& times() const { return times_; }  // of the last run

 private:
  friend class GenerationRun;

  StepEngine& engine_;
  const CausalLM& model_;
  const Tokenizer& tokenizer_;
  GenerateTimes times_;
};

}  // namespace cyfa
