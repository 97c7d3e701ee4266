#include "cyfa/train/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

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

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

struct Assign {
  Recipe& recipe;
  const std::string& key;
  const std::string& text;

  void operator()(std::string Recipe::*m) const { recipe.*m = text; }
  void operator()(int64_t Recipe::*m) const { recipe.*m = number<int64_t>(key, text, "an integer"); }
  void operator()(uint64_t Recipe::*m) const { recipe.*m = number<uint64_t>(key, text, "an integer of at least 0"); }
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
  if (!node.is_integer()) wrong("an integer");
  return std::to_string(node.value_or(int64_t{0}));
}

}  // namespace

const std::vector<RecipeKey>& recipe_keys() {
  static const std::vector<RecipeKey> keys = {
      {"model", &Recipe::model, "name of a model, config file, or checkpoint to continue from (with its optimizer state, if it has one)"},
      {"data", &Recipe::data, "folder written by cyfa prepare"},
      {"validation", &Recipe::validation, "the same, for evaluation; empty for no evaluation"},
      {"steps", &Recipe::steps, "optimizer steps"},
      {"batch", &Recipe::batch, "sequences per step"},
      {"context", &Recipe::context, "tokens per sequence"},
      {"accumulate", &Recipe::accumulate, "gradient accumulation: micro-batches per step"},
      {"reset_documents", &Recipe::reset_documents, "reset the state at document boundaries"},
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
      {"seed", &Recipe::seed, "seed of the initial parameters and of the data order"},
      {"device", &Recipe::device, "cpu or cuda"},
      {"dtype", &Recipe::dtype, "fp32, or bf16 for mixed precision: matrix products in bf16, parameters and updates in fp32"},
      {"engine", &Recipe::engine,
       "training engine: auto, or the name of one; if that engine does not support the model, the error says why"},
      {"recompute", &Recipe::recompute, "activation checkpointing: less memory, about a third more time"},
      {"threads", &Recipe::threads, "CPU threads; 0 for one per core"},
      {"log_every", &Recipe::log_every, "steps between logged metrics"},
      {"eval_every", &Recipe::eval_every, "steps between evaluations; 0 for only at the end"},
      {"eval_batches", &Recipe::eval_batches, "batches per evaluation"},
      {"save_every", &Recipe::save_every, "steps between checkpoints; 0 for only at the end"},
      {"keep", &Recipe::keep, "newest checkpoints to keep, in addition to the best"},
      {"health_every", &Recipe::health_every, "steps between metrics about the use of the state; 0 for with every evaluation"}};
  return keys;
}

void Recipe::check() const {
  const auto at_least = [](const char* key, double value, double least) {
    if (!(value >= least) || !std::isfinite(value)) refuse(key, plain(value), "at least " + plain(least));
  };
  if (model.empty()) refuse("model", "empty", "a config file or a checkpoint");
  at_least("steps", static_cast<double>(steps), 1);
  at_least("batch", static_cast<double>(batch), 1);
  at_least("context", static_cast<double>(context), 1);
  at_least("accumulate", static_cast<double>(accumulate), 1);
  if (batch % accumulate != 0) refuse("accumulate", std::to_string(accumulate), "a divisor of batch = " + std::to_string(batch));
  at_least("rate", rate, 0);
  at_least("final_rate", final_rate, 0);
  at_least("warmup", static_cast<double>(warmup), 0);
  if (schedule != "cosine" && schedule != "constant") refuse("schedule", io::printable(schedule), "cosine or constant");
  for (const auto& [key, value] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (!(value >= 0 && value < 1)) refuse(key, plain(value), "from 0 to below 1");
  }
  at_least("eps", eps, 0);
  at_least("weight_decay", weight_decay, 0);
  at_least("clip", clip, 0);
  if (device != "cpu" && device != "cuda") refuse("device", io::printable(device), "cpu or cuda");
  if (dtype != "fp32" && dtype != "bf16") refuse("dtype", io::printable(dtype), "fp32 or bf16");
  at_least("threads", static_cast<double>(threads), 0);
  at_least("log_every", static_cast<double>(log_every), 1);
  at_least("eval_every", static_cast<double>(eval_every), 0);
  at_least("eval_batches", static_cast<double>(eval_batches), 1);
  at_least("save_every", static_cast<double>(save_every), 0);
  at_least("keep", static_cast<double>(keep), 1);
  at_least("health_every", static_cast<double>(health_every), 0);
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

std::string Recipe::toml() const {
  std::string out;
  for (const RecipeKey& key : recipe_keys()) {
    const std::string value = std::visit(
        [this](const auto member) -> std::string {
          const auto& v = this->*member;
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::string>)
            return quoted(v);
          else if constexpr (std::is_same_v<T, bool>)
            return v ? "true" : "false";
          else if constexpr (std::is_same_v<T, double>)
            return plain(v);
          else
            return std::to_string(v);
        },
        key.member);
    out += std::string(key.name) + " = " + value + "  # " + key.about + "\n";
  }
  return out;
}

}  // namespace cyfa
