// Looks for RULER's needles with a model: of each sample, whether the generated text has what was hidden, and whether the model holds it
// for more likely than what was hidden in another sample. The second is a figure for models that are too small to answer: half of the
// samples are right by chance, whatever the model has learnt about numbers and words, as both values are drawn alike.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "cyfa/data/tokenizer.h"
#include "cyfa/mixers/config_reader.h"

namespace cyfa::experiment {

// What is searched, and with what.
struct NeedleSearch {
  std::filesystem::path checkpoint;
  const Tokenizer* tokenizer = nullptr;
  bool bos = false;                       // every prompt begins with BOS
  std::optional<at::ScalarType> compute;  // type of the matrices; default: as stored
  std::string device = "cpu";
  Json needles;                // of the run's key: tasks, lengths, samples, seed
  std::filesystem::path kept;  // folder for finished samples, so that an interrupted search goes on
};

// Longest texts in which values are compared: beyond it a comparison would need more memory than reading the text in parts does.
inline constexpr int64_t kMostCompared = 32768;

// {task: [{"length", "found", "found_error", "prefers", "prefers_error"}]}: percent of the samples, with standard errors (null for one
// sample); without the last two for texts longer than kMostCompared. Nothing if `should_stop` ended it.
std::optional<Json> find_needles(const NeedleSearch& search, const std::function<void(int64_t done, int64_t all)>& on_progress,
                                 const std::function<bool()>& should_stop);

}  // namespace cyfa::experiment
