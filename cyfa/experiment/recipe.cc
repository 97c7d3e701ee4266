#include "cyfa/experiment/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "cyfa/eval/ruler.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "cyfa/io/nearest_name.h"
#include "cyfa/io/read_file.h"

namespace cyfa::experiment {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 256 << 10;
constexpr int kMostBases = 4;
constexpr const char* kScales[] = {"small", "paper"};
constexpr std::pair<const char*, Kind> kKinds[] = {
    {"text", Kind::kText}, {"mqar", Kind::kMqar}, {"needles", Kind::kNeedles}, {"speed", Kind::kSpeed}};

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

// A table of the recipe that remembers which keys were asked for, so that the others can be refused.
class Table {
 public:
  Table(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) refuse(place_ + " is no table");
  }

  bool has(const char* key) const { return json_.contains(key); }
  std::string at(const char* key) const { return place_.empty() ? key : place_ + "." + key; }

  template <class T>
  T value(const char* key, T otherwise) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) return otherwise;
    return read<T>(*found, at(key));
  }
  template <class T>
  std::vector<T> list(const char* key) {
    known_.insert(key);
    std::vector<T> out;
    const auto found = json_.find(key);
    if (found == json_.end()) return out;
    if (!found->is_array()) refuse(at(key) + " is no list");
    for (const Json& one : *found) out.push_back(read<T>(one, at(key)));
    return out;
  }
  // A table inside; empty if absent.
  Json table(const char* key) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) return Json::object();
    if (!found->is_object()) refuse(at(key) + " is no table");
    return *found;
  }
  // Refuses keys that nobody asked for.
  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (!known_.contains(key)) {
        refuse("there is no key " + io::printable(place_.empty() ? key : place_ + "." + key) +
               io::did_you_mean(key, {known_.begin(), known_.end()}));
      }
    }
  }

 private:
  template <class T>
  static T read(const Json& value, const std::string& place) {
    bool good = false;
    const char* wanted = "";
    if constexpr (std::is_same_v<T, std::string>) {
      good = value.is_string(), wanted = "a text";
    } else if constexpr (std::is_same_v<T, bool>) {
      good = value.is_boolean(), wanted = "true or false";
    } else if constexpr (std::is_same_v<T, double>) {
      good = value.is_number(), wanted = "a number";
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      good = value.is_number_integer() && (value.is_number_unsigned() || value.get<int64_t>() >= 0), wanted = "a whole number from 0 on";
    } else if constexpr (std::is_integral_v<T>) {
      good = value.is_number_integer(), wanted = "a whole number";
    } else {
      good = true;
    }
    if (!good) refuse(place + " is " + value.dump().substr(0, 60) + ", wanted " + wanted);
    return value.get<T>();
  }

  const Json& json_;
  std::string place_;
  std::set<std::string> known_;
};

// A recipe file as JSON, upon the one that it names as its base: tables are merged, everything else is replaced.
Json read_merged(const fs::path& file, int depth = 0) {
  const std::string text = io::read_file(file, kMostBytes, "the recipe of an experiment");
  Json own;
  try {
    std::ostringstream json;
    json << toml::json_formatter(toml::parse(std::string_view(text)));
    own = io::parse_json(json.str(), file);
  } catch (const toml::parse_error& e) {
    throw io::FileError(file, std::string(e.description()) + " (line " + std::to_string(e.source().begin.line) + ")");
  }
  if (!own.contains("base")) return own;
  if (!own["base"].is_string()) throw io::FileError(file, "base is no text; wanted the name of another recipe in the same folder");
  if (depth == kMostBases) throw io::FileError(file, "has too many recipes below it; does one name itself as its base?");
  Json merged = read_merged(file.parent_path() / (own["base"].get<std::string>() + ".toml"), depth + 1);
  own.erase("base");
  merged.merge_patch(own);
  return merged;
}

// A config by its name in the folder above the recipes, or as a table.
Json config_of(const Json& given, const fs::path& file, const std::string& place) {
  if (given.is_object()) return given;
  if (!given.is_string()) refuse(place + " is neither the name of a config nor a table");
  const std::string name = given.get<std::string>();
  const fs::path path = fs::absolute(file).parent_path().parent_path() / (name + ".json");
  if (!fs::exists(path)) refuse(place + ": there is no config " + io::printable(name) + "; wanted one that is at " + path.string());
  return io::read_json(path, {.what = "a config"});
}

std::string value_text(const Json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  refuse(place + " is neither a text nor a number");
}

std::vector<MqarSegment> segments_of(Table& table, const char* key) {
  std::vector<MqarSegment> out;
  for (const Json& one : table.list<Json>(key)) {
    if (!one.is_array() || one.size() != 3 || !std::all_of(one.begin(), one.end(), [](const Json& n) { return n.is_number_integer(); }))
      refuse(table.at(key) + " has " + one.dump().substr(0, 60) + ", wanted three whole numbers: tokens, pairs, examples");
    out.push_back({one[0].get<int64_t>(), one[1].get<int64_t>(), one[2].get<int64_t>()});
  }
  return out;
}

MqarPlan read_mqar(const Json& json) {
  Table table(json, "mqar");
  MqarPlan plan;
  plan.task.vocab_size = table.value<int64_t>("vocab_size", plan.task.vocab_size);
  plan.task.power = table.value<double>("power", plan.task.power);
  plan.task.random_non_queries = table.value<bool>("random_non_queries", plan.task.random_non_queries);
  plan.train = segments_of(table, "train");
  plan.test = segments_of(table, "test");
  plan.batch = table.value<int64_t>("batch", plan.batch);
  plan.test_batch = table.value<int64_t>("test_batch", plan.test_batch);
  plan.epochs = table.value<int64_t>("epochs", plan.epochs);
  plan.enough = table.value<double>("enough", plan.enough);
  table.finish();
  if (plan.train.empty() || plan.test.empty()) refuse("mqar.train and mqar.test each want at least one [tokens, pairs, examples]");
  if (plan.batch < 1 || plan.test_batch < 1 || plan.epochs < 1) refuse("mqar.batch, mqar.test_batch and mqar.epochs must be at least 1");
  for (const auto* segments : {&plan.train, &plan.test}) {
    for (const MqarSegment& s : *segments) plan.task.check(s);
  }
  return plan;
}

NeedlesPlan read_needles(const Json& json) {
  Table table(json, "needles");
  NeedlesPlan plan;
  plan.tasks = table.list<std::string>("tasks");
  plan.lengths = table.list<int64_t>("lengths");
  plan.samples = table.value<int64_t>("samples", plan.samples);
  plan.seed = table.value<uint64_t>("seed", plan.seed);
  table.finish();
  for (const std::string& task : plan.tasks) {
    if (!task.starts_with("niah_")) refuse("needles.tasks has " + io::printable(task) + ", wanted RULER's needle tasks: niah_...");
    eval::ruler_kind(task);
  }
  if (plan.samples < 1) refuse("needles.samples is " + std::to_string(plan.samples) + ", wanted at least 1");
  return plan;
}

void check(const NeedlesPlan& plan) {
  if (plan.tasks.empty() || plan.lengths.empty()) refuse("needles.tasks and needles.lengths each want at least one");
  for (const int64_t length : plan.lengths) {
    if (length < 1) refuse("needles.lengths has " + std::to_string(length) + ", wanted numbers of tokens");
  }
}

SpeedPlan read_speed(const Json& json) {
  Table table(json, "speed");
  SpeedPlan plan;
  plan.tokens = table.value<int64_t>("tokens", plan.tokens);
  plan.lengths = table.list<int64_t>("lengths");
  plan.contexts = table.list<int64_t>("contexts");
  plan.repeats = table.value<int>("repeats", plan.repeats);
  table.finish();
  return plan;
}

void check(const SpeedPlan& plan) {
  if (plan.lengths.empty() && plan.contexts.empty()) refuse("speed.lengths or speed.contexts wants at least one length");
  for (const int64_t context : plan.contexts) {
    if (context < 0) refuse("speed.contexts has " + std::to_string(context) + ", wanted numbers of tokens");
  }
  for (const int64_t length : plan.lengths) {
    if (length < 1 || plan.tokens % length != 0)
      refuse("speed.lengths has " + std::to_string(length) + ", wanted divisors of speed.tokens");
  }
}

TextMeasures read_measures(const Json& json) {
  Table table(json, "measures");
  TextMeasures m;
  m.length = table.value<int64_t>("length", m.length);
  m.sequences = table.value<int64_t>("sequences", m.sequences);
  table.finish();
  if (m.length < 1 || m.length > 1024) refuse("measures.length is " + std::to_string(m.length) + ", wanted 1 to 1024");
  if (m.sequences < 1) refuse("measures.sequences is " + std::to_string(m.sequences) + ", wanted at least 1");
  return m;
}

// Only the values that a recipe of an experiment may set: the others belong to a machine or to a run.
constexpr const char* kDecisive[] = {"steps",    "batch", "context", "accumulate", "reset_documents", "rate", "final_rate", "warmup",
                                     "schedule", "beta1", "beta2",   "eps",        "weight_decay",    "clip", "seed",       "dtype"};

const RecipeKey& recipe_key(const std::string& name) {
  for (const RecipeKey& key : recipe_keys()) {
    if (name == key.name) return key;
  }
  throw std::logic_error("no recipe key " + name);
}

Json value_json(const Recipe& recipe, const RecipeKey& key) {
  return std::visit([&](const auto member) { return Json(recipe.*member); }, key.member);
}

template <class T>
std::vector<T> numbers(const std::string& key, const std::string& list) {
  std::vector<T> out;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    T value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
      refuse(key + " has " + io::printable(word) + ", wanted numbers with commas between them");
    out.push_back(value);
  }
  return out;
}

// only=, rates=, seeds= and the like; false for anything else.
bool set_own(Experiment& e, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos) return false;
  const std::string key = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  if (key == "rates") {
    e.rates = numbers<double>(key, text);
  } else if (key == "seeds") {
    e.seeds = numbers<uint64_t>(key, text);
  } else if (key == "epochs") {
    const auto given = numbers<int64_t>(key, text);
    if (given.size() != 1 || given[0] < 1) refuse("epochs is " + io::printable(text) + ", wanted a whole number from 1 on");
    e.mqar.epochs = given[0];
  } else if (key == "samples") {
    const auto given = numbers<int64_t>(key, text);
    if (given.size() != 1 || given[0] < 1) refuse("samples is " + io::printable(text) + ", wanted a whole number from 1 on");
    e.needles.samples = given[0];
  } else if (key == "lengths") {
    (e.kind == Kind::kNeedles ? e.needles.lengths : e.speed.lengths) = numbers<int64_t>(key, text);
  } else if (key == "contexts") {
    e.speed.contexts = numbers<int64_t>(key, text);
  } else if (key == "only") {
    std::vector<Variant> kept;
    std::vector<std::string> names;
    for (const Variant& v : e.variants) names.push_back(v.name);
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) {
      const auto found = std::find_if(e.variants.begin(), e.variants.end(), [&](const Variant& v) { return v.name == word; });
      if (found == e.variants.end()) refuse("only has " + io::printable(word) + ", which is no variant" + io::did_you_mean(word, names));
      kept.push_back(*found);
    }
    e.variants = std::move(kept);
  } else {
    return false;
  }
  return true;
}

void set_training(Experiment& e, const Json& values, const std::string& place) {
  for (const auto& [key, value] : values.items()) {
    const std::string name = key;
    if (std::find(std::begin(kDecisive), std::end(kDecisive), name) == std::end(kDecisive) && name != "save_minutes")
      refuse(place + " has " + io::printable(name) + io::did_you_mean(name, {std::begin(kDecisive), std::end(kDecisive)}) +
             "; an experiment sets what decides its figures, and save_minutes");
    e.train.set(name + "=" + value_text(value, place + "." + name));
  }
}

Variant read_variant(const Json& json, const fs::path& file, const std::string& scale, const Json& of_scale, Kind kind) {
  Table table(json, "variant");
  Variant v;
  v.name = table.value<std::string>("name", "");
  if (v.name.empty() || v.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") != std::string::npos)
    refuse("a variant's name is " + io::printable(v.name) + ", wanted letters, digits, '-', '.' and '_'");
  const std::string place = "variant " + v.name;
  if (table.has("stated")) v.stated = table.value<double>("stated", 0);
  if (table.has("x")) v.x = table.value<double>("x", 0);
  const Json given = table.value<Json>("config", nullptr), set = table.table("set");
  v.op = table.value<Json>("op", nullptr);
  Json own;
  for (const char* one : kScales) {
    const Json changes = table.table(one);
    if (scale == one) own = changes;
  }
  table.finish();
  if (!v.op.is_null()) {
    if (kind != Kind::kSpeed || !v.op.is_object() || !given.is_null()) refuse(place + ": op is for experiments of speed, without config");
    v.op.merge_patch(own);
    return v;
  }
  v.config = config_of(given, file, place + ".config");
  for (const Json* changes : {&of_scale, &set, static_cast<const Json*>(&own)}) {
    for (const auto& [key, value] : changes->items()) {
      v.config[key] = value.is_string() && value.get<std::string>() == "null" ? Json(nullptr) : value;  // TOML has no null
    }
  }
  if (kind == Kind::kMqar && v.config.contains("vocab_size")) v.config.erase("vocab_size");
  return v;
}

Experiment read_json(const Json& json, const fs::path& file, const std::string& scale) {
  Table top(json, "");
  Experiment e;
  e.name = file.stem().string();
  e.scale = scale;
  e.title = top.value<std::string>("title", e.name);
  e.question = top.value<std::string>("question", "");
  e.stated = top.value<std::string>("stated", "");
  e.more_is_better = top.value<bool>("more_is_better", false);
  e.x_label = top.value<std::string>("x_label", "");
  e.reference = top.value<std::string>("reference", "");
  const std::string kind = top.value<std::string>("kind", "text");
  const auto known = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& one) { return kind == one.first; });
  if (known == std::end(kKinds)) refuse("kind is " + io::printable(kind) + ", wanted text, mqar, needles or speed");
  e.kind = known->second;
  set_training(e, top.table("train"), "train");
  const Json variants = top.value<Json>("variant", Json::array());
  Json own;
  for (const char* one : kScales) {
    const Json found = top.table(one);
    if (scale == one) own = found;
  }
  top.finish();
  if (!json.contains(scale)) {
    std::string have;
    for (const char* one : kScales) have += json.contains(one) ? (have.empty() ? "" : ", ") + std::string(one) : "";
    refuse("has no scale " + io::printable(scale) + "; it has " + have);
  }

  Table table(own, scale);
  e.rates = table.list<double>("rates");
  e.seeds = table.list<uint64_t>("seeds");
  set_training(e, table.table("train"), scale + ".train");
  e.measures = read_measures(table.table("measures"));
  const Json config = table.table("config"), mqar = table.table("mqar"), needles = table.table("needles"), speed = table.table("speed");
  table.finish();
  if (e.kind == Kind::kMqar) e.mqar = read_mqar(mqar);
  if (e.kind == Kind::kNeedles) e.needles = read_needles(needles);
  if (e.kind == Kind::kSpeed) e.speed = read_speed(speed);
  if (!variants.is_array() || variants.empty()) refuse("has no [[variant]]");
  std::set<std::string> names;
  for (const Json& one : variants) {
    e.variants.push_back(read_variant(one, file, scale, config, e.kind));
    Variant& v = e.variants.back();
    if (!names.insert(v.name).second) refuse("two variants are called " + v.name);
    if (e.kind == Kind::kMqar) v.config["vocab_size"] = e.mqar.task.vocab_size;
    if (v.config.is_object()) ModelConfig::parse(v.config);
  }
  if (!e.reference.empty() && !names.contains(e.reference)) refuse("reference is " + io::printable(e.reference) + ", which is no variant");
  return e;
}

void apply(Experiment& e, const std::vector<std::string>& set) {
  for (const std::string& assignment : set) {
    const size_t equals = assignment.find('=');
    if (set_own(e, assignment)) continue;
    set_training(e, {{assignment.substr(0, equals), equals == std::string::npos ? "" : assignment.substr(equals + 1)}}, "--set");
  }
  if (e.kind == Kind::kNeedles) check(e.needles);
  if (e.kind == Kind::kSpeed) {
    check(e.speed);
    e.rates = {0};
    e.seeds = {0};
  }
  if (e.rates.empty() || e.seeds.empty()) refuse("rates and seeds each want at least one number");
  if (e.variants.empty()) refuse("no variant is left");
  for (const double rate : e.rates) {
    if (e.kind != Kind::kSpeed && !(rate > 0 && std::isfinite(rate)))
      refuse("rates has " + Json(rate).dump() + ", wanted positive numbers");
  }
  e.train.model = "model";
  e.train.check();
  const auto twice = [](auto list) { return std::set(list.begin(), list.end()).size() != list.size(); };
  if (twice(e.rates) || twice(e.seeds)) refuse("rates or seeds has a number twice");
}

}  // namespace

Experiment Experiment::read(const fs::path& file, const std::string& scale, const std::vector<std::string>& set) {
  const Json json = read_merged(file);
  Experiment e;
  try {
    e = read_json(json, file, scale);
    apply(e, {});
  } catch (const std::invalid_argument& error) {  // ConfigError is one
    throw io::FileError(file, error.what());
  }
  apply(e, set);
  return e;
}

std::vector<std::string> Experiment::scales(const fs::path& file) {
  const Json json = read_merged(file);
  std::vector<std::string> out;
  for (const char* one : kScales) {
    if (json.contains(one)) out.emplace_back(one);
  }
  return out;
}

std::string Experiment::title_of(const fs::path& file) {
  const Json json = read_merged(file);
  return json.contains("title") && json["title"].is_string() ? json["title"].get<std::string>() : "";
}

Json decisive_values(const Recipe& recipe) {
  Json values = Json::object();
  for (const char* name : kDecisive) values[name] = value_json(recipe, recipe_key(name));
  return values;
}

void set_values(Recipe& recipe, const Json& values) {
  for (const auto& [key, value] : values.items()) recipe.set(key + "=" + value_text(value, key));
}

}  // namespace cyfa::experiment
