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
  int64_t residuals = 2;           // additions to the residual stream per layer: the mixer's and, if there is an MLP, its own
  bool rescales_residual = false;  // the MLP's last matrix is initialised by rescaled()

  // Initialisation of a matrix of `width` inputs whose product is added to the residual stream: uniform with bound
  // 1 / sqrt(width * residuals * layers), as Mamba's original implementation has it.
  Init rescaled(int64_t width) const;
};

// Names that a family of checkpoints uses for the parts around the mixer: tensor names first, then config keys.
struct BackboneLayout {
  std::string root = "model", layers = "layers", embeddings = "embeddings", mixer = "attn", mixer_norm = "attn_norm", mlp = "mlp",
              mlp_norm = "mlp_norm", norm = "norm", head = "lm_head";
  std::string norm_eps_key = "norm_eps";
  std::string mlp_width_key = "intermediate_size";
  // If mlp_width_key is absent: derive the width from hidden_ratio; take the default; have no MLP.
  enum class Mlp { kByRatio, kGiven, kOptional };
  Mlp mlp_width = Mlp::kByRatio;
  bool trains_padding = false;     // the padding token's embedding is trained like any other
  bool zeroes_padding = false;     // the padding token's embedding is initialised to zeros
  bool rescales_residual = false;  // has the key rescale_prenorm_residual

  // Defaults of keys that differ between the original implementations.
  int64_t hidden_size = 2048, num_hidden_layers = 24, max_position_embeddings = 2048;
  int64_t intermediate_size = 0;  // with Mlp::kGiven
  double hidden_ratio = 4;        // with Mlp::kByRatio
  double norm_eps = 1e-6;
  std::string hidden_act = "swish";  // another name of "silu"
  std::optional<int64_t> pad_token_id = {};
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
