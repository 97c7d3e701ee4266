// Every mixer there is, one line each, and those that a program adds. A model's config names one of them by its model_type.
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

// What a mixer knows of the backbone it stands in.
struct BackboneShape {
  int64_t hidden_size = 0;
  int64_t layers = 0;
  int64_t context = 2048;  // max_position_embeddings: the trained context
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
};

// How a family of checkpoints speaks of the parts around the mixer: tensor names first, then config keys.
struct BackboneLayout {
  std::string root = "model", layers = "layers", embeddings = "embeddings", mixer = "attn", mixer_norm = "attn_norm", mlp = "mlp",
              mlp_norm = "mlp_norm", norm = "norm", head = "lm_head";
  std::string norm_eps_key = "norm_eps";
  double norm_eps = 1e-6;  // where the key is absent
  std::string mlp_width_key = "intermediate_size";
  enum class Mlp { kByRatio, kGiven, kOptional };  // absent width: by hidden_ratio; an error; blocks without an MLP
  Mlp mlp_width = Mlp::kByRatio;
  bool trains_padding = false;  // the padding token's embedding takes gradients like any other
};

// Declares a layer's parameters in a scope and returns the mixer that uses them.
using MixerFactory = std::function<std::unique_ptr<Mixer>(const ParameterScope& scope)>;

// What there is to say of a mixer, for `cyfa models --kinds` and docs/baselines.md.
struct MixerFacts {
  std::string about;       // one line
  std::string recurrence;  // in the letters of docs/notation.md
  std::string state;       // numbers a layer and sequence
  std::string cost;        // of training, as the paper's Table 1 ranks it
  std::string reference;   // who published it
  std::string origin;      // whose checkpoints it reads and writes
};

struct MixerKind {
  std::string model_type;    // of config.json
  std::string architecture;  // of config.json
  BackboneLayout layout;
  MixerFactory (*read)(ConfigReader& config, const BackboneShape& backbone);  // reads the mixer's own keys
  MixerFacts facts;
};

const std::deque<MixerKind>& mixer_kinds();

// Adds a kind from outside this library, before configs that name it are read; not safe beside other calls here. Throws
// std::invalid_argument for a model_type that there is already.
void register_mixer(MixerKind kind);

// Throws ConfigError that lists what there is.
const MixerKind& mixer_kind(const std::string& model_type);

}  // namespace cyfa
