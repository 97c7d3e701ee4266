// The memory of a batch of sequences through all layers. Its size does not grow with their length, except that of attention's caches.
#pragma once

#include <span>

#include "cyfa/mixers/mixer.h"

namespace cyfa {

struct ModelState {
  std::vector<MixerState> layers;

  int64_t sequences() const { return layers.empty() || layers[0].empty() ? 0 : layers[0][0].size(0); }
  int64_t bytes() const;

  ModelState clone() const;
  ModelState select(const std::vector<int64_t>& sequences) const;  // copies, in that order
  // Copies, one batch after another; tensors that grow with the sequence (StateSpec) are filled up with zeros to the longest.
  static ModelState concatenate(std::span<const ModelState> states);
};

}  // namespace cyfa
