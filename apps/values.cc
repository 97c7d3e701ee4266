#include "apps/values.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "apps/output.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/nearest_name.h"

namespace cyfa::app {
namespace {

// What an option takes, read from CLI11's description of its type and checks: "INT:INT in [0 - 4096]", "FLOAT:POSITIVE", "UINT",
// "TYPE:{fp32,bf16}", "FILE".
struct Wanted {
  enum class Kind { kText, kPath, kSigned, kUnsigned, kNumber } kind = Kind::kText;
  std::string low, high;    // inclusive bounds as written; empty for none
  bool above_zero = false;  // of a number, in place of `low`
  std::vector<std::string> choices;

  explicit Wanted(const std::string& described) {
    const std::string type = described.substr(0, described.find(':'));
    if (type == "INT" || type == "N") kind = Kind::kSigned;
    if (type == "UINT") kind = Kind::kUnsigned;
    if (type == "FLOAT" || type == "X") kind = Kind::kNumber;
    if (type == "FILE" || type == "DIR" || type == "PATH" || type == "OUT" || type == "INPUT" || type == "MODEL") kind = Kind::kPath;
    if (described.find(":POSITIVE") != std::string::npos) {
      above_zero = kind == Kind::kNumber;
      if (!above_zero) low = "1";
    }
    if (described.find(":NONNEGATIVE") != std::string::npos || kind == Kind::kUnsigned) low = "0";
    read_range(described);
    read_choices(described);
  }

  // In words: "an integer from 1 to 4096".
  std::string text() const {
    if (!choices.empty()) {
      std::string names;
      for (size_t i = 0; i < choices.size(); ++i) names += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + choices[i];
      return names;
    }
    if (kind == Kind::kPath) return "a path";
    const std::string what = kind == Kind::kNumber ? "a number" : "an integer";
    if (above_zero) return what + " above 0" + (high.empty() ? "" : ", at most " + high);
    if (!low.empty() && !high.empty()) return what + " from " + low + " to " + high;
    if (!low.empty()) return what + " of at least " + low;
    if (!high.empty()) return what + " of at most " + high;
    return what;
  }

 private:
  void read_range(const std::string& described) {
    const size_t begin = described.find(" in ["), end = described.find(']', begin);
    if (begin == std::string::npos || end == std::string::npos) return;
    const std::string range = described.substr(begin + 5, end - begin - 5);
    const size_t dash = range.find(" - ");
    low = range.substr(0, dash);
    high = range.substr(dash + 3);
    if (low == std::to_string(std::numeric_limits<int64_t>::min())) low.clear();
    if (high == std::to_string(std::numeric_limits<int64_t>::max())) high.clear();
  }

  void read_choices(const std::string& described) {
    const size_t begin = described.find('{'), end = described.find('}', begin);
    if (begin == std::string::npos || end == std::string::npos) return;
    choices = CLI::detail::split(described.substr(begin + 1, end - begin - 1), ',');
  }
};

std::string refused(const std::string& value, const std::string& wanted) { return "got " + io::printable(value) + ", wanted " + wanted; }

template <class T>
std::optional<T> parsed(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
bool within(T value, const Wanted& wanted) {
  const std::optional<T> low = parsed<T>(wanted.low), high = parsed<T>(wanted.high);
  return (!low || value >= *low) && (!high || value <= *high) && (!wanted.above_zero || value > 0);
}

// Empty if the option takes `value`, which is then rewritten in the one form that CLI11 reads as this program does; else why not.
template <class T>
std::string integer_refusal(std::string& value, const Wanted& wanted) {
  const std::optional<T> number = parsed<T>(value);
  const bool digits = value.find_first_not_of("0123456789", value.starts_with('-') ? 1 : 0) == std::string::npos && value.size() > 1;
  if (!number && digits && !(std::is_unsigned_v<T> && value.starts_with('-'))) {
    return refused(value, wanted.text() + (wanted.high.empty() ? std::is_unsigned_v<T> ? ", below 2^64" : ", within 64 bits" : ""));
  }
  if (!number || !within(*number, wanted)) return refused(value, wanted.text());
  value = std::to_string(*number);
  return "";
}

std::string refusal(std::string& value, const Wanted& wanted) {
  switch (wanted.kind) {
    case Wanted::Kind::kSigned: return integer_refusal<int64_t>(value, wanted);
    case Wanted::Kind::kUnsigned: return integer_refusal<uint64_t>(value, wanted);
    case Wanted::Kind::kNumber: {
      const std::optional<double> number = parsed<double>(value);
      const bool good = number && std::isfinite(*number) && within(*number, wanted);
      return good ? "" : refused(value, wanted.text());
    }
    case Wanted::Kind::kPath: return value.empty() ? "is empty, wanted a path" : "";
    case Wanted::Kind::kText: break;
  }
  if (wanted.choices.empty() || std::find(wanted.choices.begin(), wanted.choices.end(), value) != wanted.choices.end()) return "";
  return refused(value, wanted.text()) + io::did_you_mean(value, wanted.choices);
}

}  // namespace

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() == 0) {
      option->disable_flag_override();
      continue;
    }
    const Wanted wanted(option->get_type_name());
    option->transform(CLI::Validator([wanted](std::string& value) { return refusal(value, wanted); }, ""));
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) check_values(*command);
}

}  // namespace cyfa::app
