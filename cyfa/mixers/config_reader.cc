#include "cyfa/mixers/config_reader.h"

#include <algorithm>
#include <cmath>

namespace cyfa {
namespace {

std::string plain(double x) {
  std::string text = std::to_string(x);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool point = text.back() == '.';
    text.pop_back();
    if (point) break;
  }
  return text;
}

}  // namespace

std::string shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text.replace(57, std::string::npos, "...");
  return text;
}

ConfigReader::ConfigReader(const Json& config, std::string where) : config_(config), where_(std::move(where)) {
  if (!config.is_object()) throw ConfigError("config: " + where_ + " is " + std::string(config.type_name()) + ", wanted an object");
}

const Json* ConfigReader::find(const std::string& key) {
  known_.insert(key);
  const auto found = config_.find(key);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::fail(const std::string& key, const std::string& wanted) const {
  const auto found = config_.find(key);
  throw ConfigError("config: " + where_ + key + " is " + (found == config_.end() ? "absent" : shortened(*found)) + ", wanted " + wanted);
}

std::optional<int64_t> ConfigReader::integer_or_null(const std::string& key, int64_t least, int64_t most) {
  const Json* value = find(key);
  resolved_[key] = nullptr;
  if (value == nullptr) return std::nullopt;
  const std::string wanted = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value->is_number()) fail(key, wanted);
  const auto number = value->get<double>();  // 1.0 is accepted as an integer
  if (std::floor(number) != number || number < static_cast<double>(least) || number > static_cast<double>(most)) fail(key, wanted);
  return resolve(key, value->get<int64_t>());
}

std::optional<int64_t> ConfigReader::integer_or_null(const std::string& key, std::optional<int64_t> absent, int64_t least, int64_t most) {
  const std::optional<int64_t> given = integer_or_null(key, least, most);
  if (config_.contains(key) || !absent) return given;
  return resolve(key, *absent);
}

int64_t ConfigReader::integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most) {
  return resolve(key, integer_or_null(key, least, most).value_or(otherwise));
}

double ConfigReader::number(const std::string& key, double otherwise, double least, double most) {
  return resolve(key, number_or_null(key, least, most).value_or(otherwise));
}

std::pair<double, double> ConfigReader::range(const std::string& key, double low, double high) {
  const Json* value = find(key);
  const auto text = [](double x) { return std::isinf(x) ? Json({{"__float__", "Infinity"}}) : Json(x); };
  resolved_[key] = value == nullptr ? Json::array({text(low), text(high)}) : *value;
  if (value == nullptr) return {low, high};
  const auto end = [&](const Json& x) {
    const auto word = x.is_object() ? x.find("__float__") : x.end();
    if (word != x.end() && *word == "Infinity") return std::numeric_limits<double>::infinity();
    if (!x.is_number()) fail(key, "two numbers");
    return x.get<double>();
  };
  if (!value->is_array() || value->size() != 2 || end((*value)[0]) > end((*value)[1])) fail(key, "two numbers, the smaller first");
  return {end((*value)[0]), end((*value)[1])};
}

std::optional<double> ConfigReader::number_or_null(const std::string& key, double least, double most) {
  const Json* value = find(key);
  resolved_[key] = nullptr;
  if (value == nullptr) return std::nullopt;
  const auto in_range = [&](double x) { return x >= least && x <= most; };
  if (!value->is_number() || !in_range(value->get<double>())) fail(key, "a number from " + plain(least) + " to " + plain(most));
  return resolve(key, value->get<double>());
}

std::optional<double> ConfigReader::number_or_null(const std::string& key, std::optional<double> absent, double least, double most) {
  const std::optional<double> given = number_or_null(key, least, most);
  if (config_.contains(key) || !absent) return given;
  return resolve(key, *absent);
}

bool ConfigReader::flag(const std::string& key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return resolve(key, otherwise);
  if (!value->is_boolean()) fail(key, "true or false");
  return resolve(key, value->get<bool>());
}

std::string ConfigReader::word(const std::string& key, const std::string& otherwise, const std::vector<std::string>& allowed) {
  const Json* value = find(key);
  if (value == nullptr) return resolve(key, otherwise);
  const bool good = value->is_string() && std::find(allowed.begin(), allowed.end(), value->get<std::string>()) != allowed.end();
  if (!good) {
    std::string wanted;
    for (const std::string& one : allowed) wanted += (wanted.empty() ? "" : ", ") + Json(one).dump();
    fail(key, (allowed.size() == 1 ? "" : "one of ") + wanted);
  }
  return resolve(key, value->get<std::string>());
}

const Json* ConfigReader::list(const std::string& key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) fail(key, "a list");
  if (value != nullptr) resolved_[key] = *value;
  return value;
}

const Json* ConfigReader::object(const std::string& key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) fail(key, "an object");
  if (value != nullptr) resolved_[key] = *value;
  return value;
}

void ConfigReader::only(const std::string& key, const Json& value) {
  const Json* found = find(key);
  if (found != nullptr && *found != value) fail(key, value.is_null() ? "null" : shortened(value));
  resolved_[key] = value;
}

void ConfigReader::note(const std::string& key, const Json& value) {
  known_.insert(key);
  resolved_[key] = value;
}

void ConfigReader::bookkeeping(const std::vector<std::string>& keys) { known_.insert(keys.begin(), keys.end()); }

std::vector<std::string> ConfigReader::unknown() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : config_.items()) {
    if (!known_.contains(key)) keys.push_back(key);
  }
  return keys;
}

void ConfigReader::refuse_unknown() const {
  const std::vector<std::string> keys = unknown();
  if (keys.empty()) return;
  const std::string quoted = shortened(keys.front());
  throw ConfigError("config: " + where_ + quoted.substr(1, quoted.size() - 2) + " is no key that is known there");
}

}  // namespace cyfa
