// Notices when training leaves its course: a loss or gradient norm far outside its recent range. Used by the trainer, so that a run that
// diverges keeps and names a checkpoint from before the first sign of it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "cyfa/mixers/config_reader.h"

namespace cyfa {

class TrainingWatch {
 public:
  // Takes the figures of a step. Returns whether this step is the first sign, the previous one having been in range.
  bool add(int64_t step, double loss, double norm);

  // The step of the first sign, until the figures are back in the range they had before it.
  std::optional<int64_t> sign() const { return sign_; }
  const std::string& words() const { return words_; }  // what was seen there

  // For step.json: the recent figures and the sign.
  Json json() const;
  static TrainingWatch parse(const Json& json);  // anything else than a result of json() gives a new watch

 private:
  // Figures of the last steps in range. 256 steps are long enough that a slow rise leaves the range and short enough to follow the descent.
  static constexpr size_t kRecent = 256;
  static constexpr size_t kLeast = 4;  // no judgement before this many steps
  // A loss is far outside when it exceeds the largest recent one by the width of the recent range, and by at least a quarter: noise of
  // single batches stays below that, divergence passes it within steps. Norms vary more, and clipping makes their spikes harmless.
  static constexpr double kLossMargin = 0.25;
  static constexpr double kNormFactor = 10;

  std::deque<double> losses_, norms_;
  std::optional<int64_t> sign_;
  std::string words_;
};

}  // namespace cyfa
