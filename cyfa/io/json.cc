// See json.h.
#include "cyfa/io/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cyfa/io/file_error.h"
#include "cyfa/io/read_file.h"

namespace cyfa::io {
namespace {

using Json = nlohmann::ordered_json;

// Thrown while a text is parsed.
struct Problem {
  std::string text;
};

// Handler of nlohmann's SAX parser, which does not recurse. Builds the tree as far as the limits allow.
class TreeBuilder {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json take() { return std::move(root_); }

  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& text) {
    if (!open_.back().keys.insert(text).second) throw Problem{"the key " + printable(text) + " occurs twice in one object"};
    key_ = std::move(text);
    return true;
  }
  bool string(std::string& text) { return leaf(std::move(text)); }
  bool number_unsigned(uint64_t value) { return leaf(value); }
  bool number_integer(int64_t value) { return leaf(value); }
  bool number_float(double value, const std::string&) { return leaf(value); }
  bool boolean(bool value) { return leaf(value); }
  bool null() { return leaf(nullptr); }
  bool binary(Json::binary_t&) { throw Problem{"is not JSON"}; }  // only binary formats have it
  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    position_ = position;
    return false;
  }
  size_t position() const { return position_; }  // of the error, in bytes

 private:
  // An object or a list whose end has not been read yet.
  struct Level {
    Json* value;
    std::set<std::string, std::less<>> keys;
  };

  bool open(Json value) {
    if (open_.size() == limits_.depth) {
      throw Problem{"is nested more than " + std::to_string(limits_.depth) + " deep, which " + std::string(limits_.what) + " never is"};
    }
    Json* added = add(std::move(value));  // stays in place: nothing is added to its parent before it is closed
    open_.push_back({added, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  template <class Value>
  bool leaf(Value&& value) {
    add(Json(std::forward<Value>(value)));
    return true;
  }

  Json* add(Json value) {
    if (++values_ > limits_.values) {
      throw Problem{"holds more than " + std::to_string(limits_.values) + " values, which " + std::string(limits_.what) + " never does"};
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Json::emplace would compare the key with all earlier ones, which key() has done faster.
    auto& members = parent.get_ref<Json::object_t&>();
    members.push_back({std::move(key_), std::move(value)});
    return &members.back().second;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> open_;
  std::string key_;
  size_t values_ = 0, position_ = 0;
};

// Throws Problem.
Json parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    throw Problem{"has " + std::to_string(text.size()) + " bytes; " + std::string(limits.what) + " has at most " +
                  std::to_string(limits.bytes)};
  }
  const auto fail = [&](size_t at) {
    const std::string_view before = text.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    throw Problem{"is not JSON in UTF-8: error in line " + std::to_string(line) + ", at byte " + std::to_string(at)};
  };
  // The parser treats a zero byte as the end of its input and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) fail(zero);
  TreeBuilder tree(limits);
  if (!Json::sax_parse(text.data(), text.data() + text.size(), &tree)) fail(tree.position());
  return tree.take();
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& path, const JsonLimits& limits) {
  try {
    return parse(text, limits);
  } catch (const Problem& problem) {
    throw FileError(path, problem.text);
  }
}

Json read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.bytes, limits.what), path, limits);
}

Json json_or_null(std::string_view text, const JsonLimits& limits) {
  try {
    return parse(text, limits);
  } catch (const Problem&) {
    return nullptr;
  }
}

}  // namespace cyfa::io
