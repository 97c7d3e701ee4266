#include "cyfa/model/config.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "cyfa/mixers/softmax_attention.h"
#include "cyfa/model/block.h"

namespace cyfa {
namespace {

// Limits far beyond any real config, to bound what the parser has to handle.
constexpr io::JsonLimits kLimits = {.what = "a config", .bytes = 1 << 20, .values = 1 << 16, .depth = 16};
constexpr int64_t kMost = 1 << 24;  // integers
constexpr int64_t kMostLayers = 4096;
constexpr size_t kMostNamed = 10;       // unknown keys that an error names
constexpr double kMostState = 1 << 28;  // numbers in the state of a sequence, or kStateShare times the parameters
constexpr double kStateShare = 4;

constexpr double kRatioOfNull = 4;  // hidden_ratio, where it is null

// int(hidden * ratio * 2 / 3), rounded up to a multiple of 256.
int64_t default_intermediate(int64_t hidden, double ratio) {
  const auto exact = static_cast<int64_t>(static_cast<double>(hidden) * ratio * 2 / 3);
  return (exact + 255) / 256 * 256;
}

// Tokens of an absent key, as in every original implementation; a small vocabulary may not have them.
constexpr int64_t kDefaultBos = 1, kDefaultEos = 2;

std::vector<int64_t> token_list(const Json& json, const char* key, ConfigReader& reader, int64_t most, int64_t absent) {
  const auto found = json.find(key);
  std::vector<int64_t> ids;
  if (found == json.end() && absent <= most) ids.push_back(absent);
  reader.note(key, found == json.end() ? (ids.empty() ? Json() : Json(absent)) : *found);
  if (found == json.end() || found->is_null()) return ids;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > most)
      reader.fail(key, "a token, or a list of tokens, below vocab_size");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// If the config has `architectures`, they must include that of the model_type.
void check_architecture(const Json& json, ConfigReader& reader, const MixerKind& kind) {
  reader.bookkeeping({"architectures"});
  const auto found = json.find("architectures");
  if (found == json.end() || found->is_null()) return;
  const bool listed = found->is_array() && std::find(found->begin(), found->end(), Json(kind.architecture)) != found->end();
  if (!listed && !(found->is_array() && found->empty())) {
    reader.fail("architectures", Json::array({kind.architecture}).dump() + ", the architecture of model_type " + kind.model_type);
  }
}

// Throws for keys that no part of the model has read. The error names the kinds of model that have such a key.
void refuse_unknown(const ConfigReader& reader) {
  const std::vector<std::string> keys = reader.unknown();
  if (keys.empty()) return;
  std::map<std::string, std::string> owners;
  const Json nothing = Json::object();
  BackboneShape backbone;
  backbone.hidden_size = 2048;  // compatible with every kind's defaults
  for (const MixerKind& kind : mixer_kinds()) {
    ConfigReader other(nothing);
    kind.read(other, backbone);
    for (const std::string& key : other.known()) {
      std::string& text = owners[key];
      if (text.find(kind.model_type) == std::string::npos) text += (text.empty() ? "" : ", ") + kind.model_type;
    }
  }
  std::string message;
  for (size_t i = 0; i < std::min(keys.size(), kMostNamed); ++i) {
    message += (i == 0 ? "" : ", ") + io::printable(keys[i]);
    if (owners.contains(keys[i])) message += " (a key of " + owners[keys[i]] + ")";
  }
  if (keys.size() > kMostNamed) message += " and " + std::to_string(keys.size() - kMostNamed) + " more";
  throw ConfigError("config: unknown keys " + message + "; a model that ignored them would not be the one they describe");
}

// Throws for a model whose size no real one has. Every key may be within its range while their products are not, and a state has sizes that
// no parameter has, so that a small checkpoint could ask for any amount of memory.
void check_sizes(const ModelConfig& c) {
  std::vector<double> parameters, numbers;  // of a layer, for each of c.mixers
  for (const MixerFactory& mixer : c.mixers) {
    const Block block({c.backbone, c.kind->layout, c.intermediate_size, mixer});
    parameters.push_back(static_cast<double>(block.table().numel()));
    numbers.push_back(0);
    for (const StateSpec& state : block.mixer().state()) {
      double product = 1;
      for (const int64_t extent : state.shape) product *= static_cast<double>(extent);
      numbers.back() += product;
    }
  }
  double all = static_cast<double>(c.vocab_size) * static_cast<double>(c.backbone.hidden_size) * (c.tied_head ? 1 : 2), state = 0;
  for (const size_t place : c.layer_mixers) {
    all += parameters[place];
    state += numbers[place];
  }
  const auto power = [](double x) { return "2^" + std::to_string(std::ilogb(x)); };
  if (all > static_cast<double>(kMostParameters))
    throw ConfigError("config: the model would have more than " + power(all) + " parameters; at most 2^42 are supported");
  if (const double most = std::max(kMostState, kStateShare * all); state > most) {
    throw ConfigError("config: the state of a sequence would have more than " + power(state) +
                      " numbers; a model of this size has at most " + power(most));
  }
}

// Assigns mixers to layers. Distinct mixers are numbered in the order in which the config names them.
class LayerPlan {
 public:
  LayerPlan(ModelConfig& config, MixerFactory own) : c_(config), names_{c_.kind->model_type} {
    c_.mixers = {std::move(own)};
    c_.layer_mixers.assign(static_cast<size_t>(c_.backbone.layers), 0);
  }

  void read_attn(const Json& attn) {
    const Json list = attn.is_array() ? attn : Json::array({attn});
    if (list.size() > c_.layer_mixers.size())
      throw ConfigError("config: attn is a list of " + std::to_string(list.size()) + " objects, more than the model has layers");
    std::vector<bool> taken(c_.layer_mixers.size(), false);
    for (size_t i = 0; i < list.size(); ++i) {
      ConfigReader spec(list[i], attn.is_array() ? "attn[" + std::to_string(i) + "]." : "attn.");
      const Json* layers = spec.list("layers");
      if (layers == nullptr) spec.fail("layers", "a list of the layers that are softmax attention");
      const MixerFactory mixer = read_attn_object(spec, c_.backbone);
      spec.refuse_unknown();
      const size_t place = add(
          spec.resolved()["window_size"].is_null() || spec.resolved()["window_size"] == 0 ? "full_attention" : "sliding_attention", mixer);
      for (const Json& layer : *layers) {
        const bool good = layer.is_number_integer() && layer.get<int64_t>() >= 0 && layer.get<int64_t>() < c_.backbone.layers;
        if (!good) spec.fail("layers", "layer numbers from 0 to num_hidden_layers - 1 = " + std::to_string(c_.backbone.layers - 1));
        const auto at = layer.get<size_t>();
        if (taken[at]) spec.fail("layers", "every layer once; " + std::to_string(at) + " is named twice");
        taken[at] = true;
        c_.layer_mixers[at] = place;
      }
    }
  }

  void read_types(ConfigReader& reader, const Json& types, const Json* configs) {
    const std::string wanted = "a type for each of the " + std::to_string(c_.backbone.layers) + " layers";
    if (types.size() != c_.layer_mixers.size()) reader.fail("layer_types", wanted);
    const Json none = Json::object();
    for (size_t i = 0; i < types.size(); ++i) {
      if (!types[i].is_string()) reader.fail("layer_types", wanted);
      const auto name = types[i].get<std::string>();
      size_t place = find(name);
      if (place == names_.size()) {
        const bool has_keys = configs != nullptr && configs->contains(name);
        // In a softmax model, attention types without an entry in layer_configs use the model's own keys.
        const bool own_keys = !has_keys && (c_.kind->model_type == "llama" || c_.kind->model_type == "mistral");
        ConfigReader inner(has_keys ? (*configs)[name] : own_keys ? c_.json : none, own_keys ? "" : "layer_configs." + name + ".");
        const MixerFactory mixer = reader_of(name)(inner, c_.backbone);
        if (has_keys) inner.refuse_unknown();
        if (own_keys) reader.bookkeeping({inner.known().begin(), inner.known().end()});
        place = add(name, mixer);
      }
      c_.layer_mixers[i] = place;
    }
    for (const auto& [name, keys] : configs != nullptr ? configs->items() : none.items()) {
      if (find(name) == names_.size()) reader.fail("layer_configs", "types that layer_types names; " + io::printable(name) + " is none");
    }
  }

  void finish() {
    for (const size_t place : c_.layer_mixers) c_.layer_types.push_back(names_[place]);
  }

 private:
  size_t find(const std::string& name) const { return static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin()); }
  size_t add(const std::string& name, const MixerFactory& mixer) {
    c_.mixers.push_back(mixer);
    names_.push_back(name);
    return names_.size() - 1;
  }
  static MixerFactory (*reader_of(const std::string& name))(ConfigReader&, const BackboneShape&) {
    if (name == "full_attention") return read_llama_attention;
    if (name == "sliding_attention") return read_sliding_attention;
    return mixer_kind(name).read;
  }

  ModelConfig& c_;
  std::vector<std::string> names_;  // names of c_.mixers
};

}  // namespace

ModelConfig ModelConfig::parse(const Json& json) {
  ConfigReader reader(json);
  ModelConfig c;
  c.json = json;
  const auto type = json.find("model_type");
  reader.bookkeeping({"model_type"});
  if (type == json.end() || !type->is_string())
    reader.fail("model_type", "the name of an architecture, such as " + mixer_kinds().front().model_type);
  c.kind = &mixer_kind(type->get<std::string>());
  const BackboneLayout& layout = c.kind->layout;
  c.backbone.hidden_size = reader.integer("hidden_size", layout.hidden_size, 1, kMost);
  c.backbone.layers = reader.integer("num_hidden_layers", layout.num_hidden_layers, 1, kMostLayers);
  c.backbone.norm_eps = reader.number(layout.norm_eps_key, layout.norm_eps, 0, 1);
  c.backbone.initializer_range = reader.number("initializer_range", 0.02, 0, 100);
  c.vocab_size = reader.integer("vocab_size", 32000, 1, kMost);
  const bool given = layout.mlp_width == BackboneLayout::Mlp::kGiven;
  const std::optional<int64_t> absent = given ? std::optional(layout.intermediate_size) : std::nullopt;
  const std::optional<int64_t> width = reader.integer_or_null(layout.mlp_width_key, absent, 1, kMost);
  if (layout.mlp_width == BackboneLayout::Mlp::kByRatio) {
    const double ratio = reader.number_or_null("hidden_ratio", layout.hidden_ratio, 0, 1024).value_or(kRatioOfNull);
    c.intermediate_size = width.value_or(default_intermediate(c.backbone.hidden_size, ratio));
  } else {
    if (!width && given) reader.fail(layout.mlp_width_key, "the width of the MLP");
    c.intermediate_size = width.value_or(0);
  }
  c.backbone.residuals = c.intermediate_size > 0 ? 2 : 1;
  c.backbone.rescales_residual = layout.rescales_residual && reader.flag("rescale_prenorm_residual", true);
  reader.word("hidden_act", layout.hidden_act, {"swish", "silu"});
  c.tied_head = reader.flag("tie_word_embeddings", false);
  c.backbone.context = reader.integer("max_position_embeddings", layout.max_position_embeddings, 1, int64_t{1} << 40);
  const int64_t last = c.vocab_size - 1;
  const auto token = [&](const char* key, std::optional<int64_t> otherwise) {
    return reader.integer_or_null(key, otherwise && *otherwise <= last ? otherwise : std::nullopt, 0, last);
  };
  c.bos = token("bos_token_id", kDefaultBos);
  c.pad = token("pad_token_id", layout.pad_token_id);
  c.eos = token_list(json, "eos_token_id", reader, last, kDefaultEos);
  LayerPlan plan(c, c.kind->read(reader, c.backbone));
  const auto attn = json.find("attn");
  reader.bookkeeping({"attn"});
  const bool has_attn = attn != json.end() && !attn->is_null();
  const Json* types = reader.list("layer_types");
  const Json* configs = reader.object("layer_configs");
  if (has_attn && types != nullptr) reader.fail("layer_types", "null where attn says which layers are attention");
  if (has_attn) plan.read_attn(*attn);
  if (types != nullptr) plan.read_types(reader, *types, configs);
  if (types == nullptr && configs != nullptr) reader.fail("layer_configs", "null where there are no layer_types");
  plan.finish();
  check_architecture(json, reader, *c.kind);
  reader.bookkeeping({"auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache", "fuse_norm", "fuse_swiglu",
                      "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "name_or_path", "_name_or_path", "tokenizer"});
  reader.only("attnres_block_size", nullptr);  // residuals that attend to earlier blocks
  refuse_unknown(reader);
  check_sizes(c);
  c.resolved = reader.resolved();
  return c;
}

ModelConfig ModelConfig::read(const std::filesystem::path& path) {
  try {
    return parse(io::read_json(path, kLimits));
  } catch (const ConfigError& e) {
    throw io::FileError(path, e.what());
  }
}

}  // namespace cyfa
