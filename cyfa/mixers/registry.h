// The registry of mixer kinds: the built-in ones and those registered by a program. A model's config selects one by its model_type.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cyfa/mixers/config_reader.h"
#include "cyfa/mixers/mixer.h"
#include "cyfa/mixers/parameters.h"

namespace cyfa {

// The backbone's dimensions and defaults that a mixer needs.
struct BackboneShape {
  int64_t hidden_size = 0;
  int64_t layers = 0;
  int64_t context = 2048;  // max_position_embeddings: context length in training
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
};

// Names that a family of checkpoints uses for the parts around the mixer: tensor names first, then config keys.
struct BackboneLayout {
  std::string root = "model", layers = "layers", embeddings = "embeddings", mixer = "attn", mixer_norm = "attn_norm", mlp = "mlp",
              mlp_norm = "mlp_norm", norm = "norm", head = "lm_head";
  std::string norm_eps_key = "norm_eps";
  double norm_eps = 1e-6;  // default of that key
  std::string mlp_width_key = "intermediate_size";
  // If mlp_width_key is absent: derive the width from hidden_ratio; throw; have no MLP.
  enum class Mlp { kByRatio, kGiven, kOptional };
  Mlp mlp_width = Mlp::kByRatio;
  bool trains_padding = false;  // the padding token's embedding is trained like any other
};

// Declares a layer's parameters in a scope and returns the mixer that uses them.
using MixerFactory = std::function<std::unique_ptr<Mixer>(const ParameterScope& scope)>;

// Facts about a mixer, for `cyfa models --kinds` and docs/baselines.md.
struct MixerFacts {
  std::string about;       // one line
  std::string recurrence;  // in the notation of docs/notation.md
  std::string state;       // state elements per layer and sequence
  std::string cost;        // training cost, as ranked in the paper's Table 1
  std::string reference;   // publication
  std::string origin;      // project whose checkpoints it reads and writes
};

// One kind of mixer.
struct MixerKind {
  std::string model_type;    // of config.json
  std::string architecture;  // of config.json
  BackboneLayout layout;
  MixerFactory (*read)(ConfigReader& config, const BackboneShape& backbone);  // reads the mixer's own keys
  MixerFacts facts;
};

// All kinds.
const std::deque<MixerKind>& mixer_kinds();

// Adds a kind. Call it before reading configs that name the kind; it is not thread-safe. Throws std::invalid_argument if the model_type
// exists already.
void register_mixer(MixerKind kind);

// Looks up a kind. An unknown model_type throws a ConfigError that lists all kinds.
const MixerKind& mixer_kind(const std::string& model_type);

}  // namespace cyfa
