// The recurrent state of a batch of sequences over all layers. Its size is independent of the sequence length, except for KV caches.
#pragma once

#include <span>

#include "cyfa/mixers/mixer.h"

namespace cyfa {

// The states of all layers, each with the same batch size.
struct ModelState {
  std::vector<MixerState> layers;

  // The batch size.
  int64_t sequences() const { return layers.empty() || layers[0].empty() ? 0 : layers[0][0].size(0); }
  int64_t bytes() const;

  ModelState clone() const;
  ModelState select(const std::vector<int64_t>& sequences) const;  // copies of these sequences, in this order
  // Copies of several batches, concatenated. Tensors that grow with the sequence (StateSpec::grows) are zero-padded to the longest.
  static ModelState concatenate(std::span<const ModelState> states);
};

}  // namespace cyfa
