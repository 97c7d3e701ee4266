// Every mixer there is, one line each. A model's config names one of them by its model_type.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cyfa/mixers/config_reader.h"
#include "cyfa/mixers/mixer.h"

namespace cyfa {

// What a mixer knows of the backbone it stands in.
struct BackboneShape {
  int64_t hidden_size = 0;
  int64_t layers = 0;
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
};

// What a checkpoint calls the parts around the mixer.
struct BackboneNames {
  std::string root = "model", layers = "layers", embeddings = "embeddings", mixer = "attn", mixer_norm = "attn_norm", mlp = "mlp",
              mlp_norm = "mlp_norm", norm = "norm", head = "lm_head";
};

// Declares one layer's parameters in a scope and returns the mixer that uses them.
using MixerFactory = std::function<std::unique_ptr<Mixer>(const ParameterScope& scope, int64_t layer)>;

struct MixerKind {
  std::string model_type;    // of config.json
  std::string architecture;  // of config.json
  std::string about;         // one line
  BackboneNames names;
  MixerFactory (*read)(ConfigReader& config, const BackboneShape& backbone);  // reads the mixer's own keys
};

const std::vector<MixerKind>& mixer_kinds();

// Throws ConfigError that lists what there is.
const MixerKind& mixer_kind(const std::string& model_type);

}  // namespace cyfa
