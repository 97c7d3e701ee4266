#include "cyfa/train/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "cyfa/data/utf8.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/nearest_name.h"
#include "cyfa/io/read_file.h"

namespace cyfa {
namespace {

// Far above any recipe.
constexpr size_t kMostBytes = 64 << 10;
constexpr long kMostDots = 200;  // in a line

// Throws for a dotted key (a.a.a ... = 1) of many parts: toml++ makes them into tables inside one another and handles those by recursion.
// It bounds the nesting of lists and inline tables itself.
void check_dots(const std::filesystem::path& path, std::string_view text) {
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view one = text.substr(0, text.find('\n'));
    if (std::count(one.begin(), one.end(), '.') > kMostDots)
      throw io::FileError(
          path, "line " + std::to_string(line) + " has more than " + std::to_string(kMostDots) + " dots; the keys of a recipe have none");
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
}

[[noreturn]] void refuse(const std::string& key, const std::string& came, const std::string& wanted) {
  throw std::invalid_argument("recipe: " + key + " is " + came + ", wanted " + wanted);
}

const RecipeKey& key_of(const std::string& name) {
  std::vector<std::string> names;
  std::string known;
  for (const RecipeKey& key : recipe_keys()) {
    if (name == key.name) return key;
    names.emplace_back(key.name);
    known += (known.empty() ? "" : ", ") + names.back();
  }
  const std::string meant = io::did_you_mean(name, names);
  throw std::invalid_argument("recipe: there is no key " + io::printable(name) + (meant.empty() ? "; there are " + known : meant));
}

template <class T>
T number(const std::string& key, const std::string& text, const char* wanted) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(key, io::printable(text), wanted);
  return value;
}

std::string plain(double value) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  std::string out(text, end);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

// A TOML basic string. The text is UTF-8 (check()); TOML wants control characters escaped.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (const auto code = static_cast<unsigned char>(c); code < 0x20 || code == 0x7f) {
      constexpr const char* kDigits = "0123456789ABCDEF";
      out += std::string("\\u00") + kDigits[code >> 4] + kDigits[code & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

constexpr const char* kSeedRange = "a whole number from 0 to 18446744073709551615";

struct Assign {
  Recipe& recipe;
  const std::string& key;
  const std::string& text;

  void operator()(std::string Recipe::*m) const { recipe.*m = text; }
  void operator()(int64_t Recipe::*m) const { recipe.*m = number<int64_t>(key, text, "an integer"); }
  void operator()(uint64_t Recipe::*m) const { recipe.*m = number<uint64_t>(key, text, kSeedRange); }
  void operator()(double Recipe::*m) const { recipe.*m = number<double>(key, text, "a number"); }
  void operator()(bool Recipe::*m) const {
    if (text != "true" && text != "false") refuse(key, io::printable(text), "true or false");
    recipe.*m = text == "true";
  }
};

// A TOML value as text for Recipe::set(). Its type must match the key's.
std::string text_of(const RecipeKey& key, const toml::node& node) {
  const auto wrong = [&](const char* wanted) { refuse(key.name, "of another type", wanted); };
  if (std::holds_alternative<std::string Recipe::*>(key.member)) {
    if (!node.is_string()) wrong("a text");
    return node.value_or(std::string());
  }
  if (std::holds_alternative<bool Recipe::*>(key.member)) {
    if (!node.is_boolean()) wrong("true or false");
    return node.value_or(false) ? "true" : "false";
  }
  if (std::holds_alternative<double Recipe::*>(key.member)) {
    if (!node.is_number()) wrong("a number");
    return plain(node.value_or(0.0));
  }
  if (std::holds_alternative<uint64_t Recipe::*>(key.member)) {  // TOML's integers end at 2^63 - 1; larger ones are text
    if (!node.is_integer() && !node.is_string()) wrong(kSeedRange);
    return node.is_string() ? node.value_or(std::string()) : std::to_string(node.value_or(int64_t{0}));
  }
  if (!node.is_integer()) wrong("an integer");
  return std::to_string(node.value_or(int64_t{0}));
}

}  // namespace

const std::vector<RecipeKey>& recipe_keys() {
  static constexpr const char* kOrder = "it would change the order of the data";
  static const std::vector<RecipeKey> keys = {
      {"model", &Recipe::model, "name of a model, config file, or checkpoint to continue from (with its optimizer state, if it has one)",
       "the parameters come from the run's own checkpoint"},
      {"data", &Recipe::data, "folder written by cyfa prepare"},
      {"validation", &Recipe::validation, "the same, for evaluation; empty for no evaluation"},
      {"steps", &Recipe::steps, "optimizer steps"},
      {"batch", &Recipe::batch, "sequences per step", kOrder},
      {"context", &Recipe::context, "tokens per sequence", kOrder},
      {"accumulate", &Recipe::accumulate, "gradient accumulation: micro-batches per step"},
      {"reset_documents", &Recipe::reset_documents, "reset the state at document boundaries",
       "it would change what the model is trained on"},
      {"skip_read", &Recipe::skip_read,
       "if model is a checkpoint trained on the same data: first the text that its training has not read, instead of a new order", kOrder},
      {"check_data", &Recipe::check_data,
       "compare the data with its checksums at the start: auto (whole up to 1 GiB, beyond that blocks spread over all shards), whole, "
       "none"},
      {"rate", &Recipe::rate, "peak learning rate"},
      {"final_rate", &Recipe::final_rate, "final learning rate of the cosine schedule, as a fraction of rate"},
      {"warmup", &Recipe::warmup, "steps of linear warm-up"},
      {"schedule", &Recipe::schedule, "learning rate after the warm-up: cosine or constant"},
      {"beta1", &Recipe::beta1, "AdamW: decay of the first moment"},
      {"beta2", &Recipe::beta2, "AdamW: decay of the second moment"},
      {"eps", &Recipe::eps, "AdamW: added to the denominator"},
      {"weight_decay", &Recipe::weight_decay,
       "AdamW: weight decay of matrices, convolutions and readouts; gates, norms and biases have none"},
      {"clip", &Recipe::clip, "clip the gradient norm to this value; 0 for no clipping"},
      {"seed", &Recipe::seed, "seed of the initial parameters and of the data order", kOrder},
      {"device", &Recipe::device, "cpu or cuda"},
      {"dtype", &Recipe::dtype,
       "fp32, or bf16 for mixed precision: matrix products in bf16, parameters and updates in fp32; "
       "fp8: as bf16, with the large products of layers in fp8 (engine sm90)"},
      {"engine", &Recipe::engine,
       "training engine: auto, or the name of one; if that engine does not support the model, the error says why"},
      {"recompute", &Recipe::recompute, "activation checkpointing: less memory, about a third more time"},
      {"recompute_rows", &Recipe::recompute_rows,
       "keep no results of norms, gates, SwiGLUs and convolutions: backward computes them again; with the sm90 engine"},
      {"recompute_mlp", &Recipe::recompute_mlp,
       "keep no outputs of the MLP's gate and up projections: one more matrix product in backward; with the sm90 engine"},
      {"threads", &Recipe::threads, "CPU threads; 0 for one per core"},
      {"shard", &Recipe::shard,
       "on several ranks: none, or optimizer (ZeRO-1: each rank keeps moments, and with bf16 also fp32 masters, of a part and updates it)"},
      {"reduce", &Recipe::reduce, "on several ranks: type in which gradients are summed, fp32 or bf16"},
      {"context_ranks", &Recipe::context_ranks,
       "on several ranks: cut the sequences of each batch over so many ranks (context parallel), for contexts that one device cannot hold"},
      {"bucket_mb", &Recipe::bucket_mb, "on several ranks: MiB of gradients that are summed at a time"},
      {"timeout_minutes", &Recipe::timeout_minutes, "on several ranks: a rank that the others wait for longer than this has failed"},
      {"log_every", &Recipe::log_every, "steps between logged metrics"},
      {"eval_every", &Recipe::eval_every, "steps between evaluations; 0 for only at the end"},
      {"eval_batches", &Recipe::eval_batches, "batches per evaluation"},
      {"save_every", &Recipe::save_every, "steps between checkpoints; 0 for no fixed number"},
      {"save_minutes", &Recipe::save_minutes, "minutes between checkpoints; 0 for no fixed time. The end and a signal always save one"},
      {"save_in_background", &Recipe::save_in_background,
       "write a checkpoint while training goes on, from a copy in the host's memory (12 bytes a parameter, divided over the ranks); false: "
       "training waits"},
      {"keep", &Recipe::keep, "newest checkpoints to keep, in addition to the best"},
      {"health_every", &Recipe::health_every, "steps between metrics about the use of the state; 0 for with every evaluation"}};
  return keys;
}

void Recipe::check() const {
  const auto at_least = [](const char* key, double value, double least) {
    if (!(value >= least) || !std::isfinite(value)) refuse(key, plain(value), "at least " + plain(least));
  };
  const auto within = [](const char* key, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
      refuse(key, std::to_string(value), "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
  };
  constexpr int64_t kMostSteps = int64_t{1} << 40;
  for (const RecipeKey& key : recipe_keys()) {
    const auto* member = std::get_if<std::string Recipe::*>(&key.member);
    if (member != nullptr && !is_utf8(this->**member)) {
      refuse(key.name, io::printable(this->**member), "UTF-8, which recipe.toml can hold; rename the file or make a link to it");
    }
  }
  if (model.empty()) refuse("model", "empty", "a config file or a checkpoint");
  if (check_data != "auto" && check_data != "whole" && check_data != "none") {
    refuse("check_data", io::printable(check_data), "auto, whole or none");
  }
  within("steps", steps, 1, kMostSteps);
  within("batch", batch, 1, int64_t{1} << 24);
  within("context", context, 1, int64_t{1} << 32);
  within("accumulate", accumulate, 1, batch);
  if (batch % accumulate != 0) refuse("accumulate", std::to_string(accumulate), "a divisor of batch = " + std::to_string(batch));
  if (static_cast<double>(batch) * static_cast<double>(context) * static_cast<double>(steps) > 0x1p62) {
    refuse("steps", std::to_string(steps), "at most 2^62 tokens in all; batch times context times steps is larger");
  }
  at_least("rate", rate, 0);
  at_least("final_rate", final_rate, 0);
  within("warmup", warmup, 0, kMostSteps);
  if (schedule != "cosine" && schedule != "constant") refuse("schedule", io::printable(schedule), "cosine or constant");
  for (const auto& [key, value] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (!(value >= 0 && value < 1)) refuse(key, plain(value), "from 0 to below 1");
  }
  at_least("eps", eps, 0);
  at_least("weight_decay", weight_decay, 0);
  at_least("clip", clip, 0);
  if (device != "cpu" && device != "cuda") refuse("device", io::printable(device), "cpu or cuda");
  if (dtype != "fp32" && dtype != "bf16" && dtype != "fp8") refuse("dtype", io::printable(dtype), "fp32, bf16 or fp8");
  if (dtype == "fp8" && device != "cuda") refuse("dtype", "fp8", "fp32 or bf16 on device " + device + "; fp8 needs a Hopper GPU");
  at_least("threads", static_cast<double>(threads), 0);
  if (shard != "none" && shard != "optimizer") refuse("shard", io::printable(shard), "none or optimizer");
  if (reduce != "fp32" && reduce != "bf16") refuse("reduce", io::printable(reduce), "fp32 or bf16");
  within("context_ranks", context_ranks, 1, 1 << 16);
  at_least("bucket_mb", bucket_mb, 0);
  if (!(timeout_minutes > 0 && timeout_minutes < 1e6)) refuse("timeout_minutes", plain(timeout_minutes), "above 0 and below 1,000,000");
  within("log_every", log_every, 1, kMostSteps);
  within("eval_every", eval_every, 0, kMostSteps);
  within("eval_batches", eval_batches, 1, kMostSteps);
  within("save_every", save_every, 0, kMostSteps);
  at_least("save_minutes", save_minutes, 0);
  within("keep", keep, 1, kMostSteps);
  within("health_every", health_every, 0, kMostSteps);
}

void Recipe::set(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos)
    throw std::invalid_argument("recipe: " + io::printable(assignment) + " is no assignment, wanted key=value");
  const std::string name = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  std::visit(Assign{*this, name, text}, key_of(name).member);
}

Recipe Recipe::read(const std::filesystem::path& path) {
  Recipe recipe;
  try {
    const std::string text = io::read_file(path, kMostBytes, "a recipe");
    check_dots(path, text);
    const toml::table table = toml::parse(std::string_view(text));
    for (const auto& [name, node] : table) {
      const RecipeKey& key = key_of(std::string(name.str()));
      recipe.set(std::string(key.name) + "=" + text_of(key, node));
    }
  } catch (const toml::parse_error& e) {
    throw io::FileError(path, std::string(e.description()) + " (line " + std::to_string(e.source().begin.line) + ")");
  } catch (const std::invalid_argument& e) {
    throw io::FileError(path, e.what());
  }
  return recipe;
}

std::string recipe_value(const Recipe& recipe, const RecipeKey& key) {
  return std::visit(
      [&](const auto member) -> std::string {
        const auto& v = recipe.*member;
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return quoted(v);
        } else if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return plain(v);
        } else if constexpr (std::is_same_v<T, uint64_t>) {
          const std::string digits = std::to_string(v);
          return v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? quoted(digits) : digits;
        } else {
          return std::to_string(v);
        }
      },
      key.member);
}

std::vector<const RecipeKey*> recipe_changes(const Recipe& before, const Recipe& after) {
  std::vector<const RecipeKey*> changes;
  for (const RecipeKey& key : recipe_keys()) {
    if (recipe_value(before, key) != recipe_value(after, key)) changes.push_back(&key);
  }
  return changes;
}

std::string Recipe::toml() const {
  std::string out;
  for (const RecipeKey& key : recipe_keys()) out += std::string(key.name) + " = " + recipe_value(*this, key) + "  # " + key.about + "\n";
  return out;
}

}  // namespace cyfa
