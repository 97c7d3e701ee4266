#include "apps/options.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "cyfa/draw/figure.h"
#include "cyfa/engine/engine.h"
#include "cyfa/io/file_error.h"

namespace cyfa::app {
namespace {

constexpr size_t kMeaningColumn = 30;
constexpr size_t kHelpColumns = 120;

template <class Integer>
void add_threads_option(CLI::App* command, Integer* threads) {
  command->add_option("--threads", *threads, "CPU threads; 0 uses one per core")
      ->check(CLI::Range(0, 1 << 30))
      ->type_name("N")
      ->capture_default_str();
}

// Empty if `path` may be written, else why not.
std::string json_refusal(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || path == "-") return "";
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  if (!fs::is_directory(folder, error)) return "cannot be written: " + folder.string() + " is no folder";
  if (access(folder.c_str(), W_OK) != 0) return "cannot be written: " + folder.string() + ": " + std::generic_category().message(errno);
  if (!fs::exists(path, error)) return "";
  char first = fs::is_directory(path, error) ? '/' : '[';
  std::ifstream(path) >> first;
  if (first == '[') return "";
  return path + " exists and is no file of JSON rows, so it is not overwritten; name another file, or put --json after the other arguments";
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    // A type name with checks is "FLOAT:POSITIVE" or "TEXT:{fp32,bf16}". The help keeps the value's name and the choices.
    const std::string type = option->get_type_name();
    std::string value = type.substr(0, type.find(':'));
    if (value == "INT" || value == "UINT") value = "N";
    if (value == "FLOAT") value = "X";
    if (value == "TEXT" && type.find('{') != std::string::npos) value = "NAME";
    std::string name = option->get_name(is_positional, !is_positional);
    name = name.substr(0, name.find('{'));  // "--begin,--no-begin{false}"
    for (size_t comma = name.find(','); comma != std::string::npos; comma = name.find(',', comma + 2)) name.insert(comma + 1, " ");
    if (!is_positional && option->get_type_size() != 0) name += " " + value;
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size && option->get_allow_extra_args()) name += "...";

    std::string meaning = option->get_description();
    const size_t open = type.find('{');
    if (open != std::string::npos) {
      std::string choices = type.substr(open + 1, type.find('}') - open - 1);
      for (size_t comma = choices.find(','); comma != std::string::npos; comma = choices.find(',', comma + 2)) {
        choices.insert(comma + 1, " ");
      }
      meaning += ": " + choices;
    }
    if (!option->get_default_str().empty()) meaning += " [default: " + option->get_default_str() + "]";
    if (option->get_required()) meaning += " [required]";
    return help_line("  " + name, meaning);
  }
};

}  // namespace

std::string help_line(const std::string& name, const std::string& meaning) {
  const std::string indent(kMeaningColumn, ' ');
  std::string out = name;
  out += name.size() + 2 > kMeaningColumn ? "\n" + indent : std::string(kMeaningColumn - name.size(), ' ');
  size_t column = kMeaningColumn;
  for (size_t begin = 0; begin < meaning.size();) {
    const size_t end = std::min(meaning.find(' ', begin), meaning.size());
    if (column > kMeaningColumn && column + 1 + end - begin > kHelpColumns) {
      out += "\n" + indent;
      column = kMeaningColumn;
    }
    if (column > kMeaningColumn) {
      out += ' ';
      ++column;
    }
    out += meaning.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out + "\n";
}

void add_engine(CLI::App* command, std::string* engine) {
  command->add_option("--engine", *engine, "What runs the model; an engine that is named runs it, or says why it cannot")
      ->check(CLI::IsMember(engine_names()))
      ->capture_default_str();
}

void add_device(CLI::App* command, std::string* device) {
  command->add_option("--device", *device, "Device to run on")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("DEVICE")
      ->capture_default_str();
}

void add_dtype(CLI::App* command, std::string* dtype, const std::string& what, const std::vector<std::string>& choices) {
  CLI::Option* option = command->add_option("--dtype", *dtype, "Floating-point type of " + what);
  option->check(CLI::IsMember(choices))->type_name("TYPE");
  if (dtype->empty()) {
    option->default_str("as stored");
  } else {
    option->capture_default_str();
  }
}

void add_threads(CLI::App* command, int* threads) { add_threads_option(command, threads); }
void add_threads(CLI::App* command, int64_t* threads) { add_threads_option(command, threads); }

void add_repeats(CLI::App* command, int* repeats) {
  command->add_option("--repeats", *repeats, "Timed runs; 0 takes at least 10 and about a second")
      ->check(CLI::Range(0, 100000))
      ->type_name("N")
      ->capture_default_str();
}

void add_json(CLI::App* command, std::string* target) {
  command
      ->add_option_function<std::string>(
          "--json", [target](const std::string& file) { *target = file.empty() ? "-" : file; },
          "Also write the results as JSON to FILE; without FILE, or with -, print them in place of the text")
      ->expected(0, 1)
      ->check(json_refusal)
      ->type_name("[FILE]");
}

CLI::Option* add_picture(CLI::App* command, std::string* path) {
  return command->add_option("-o,--out", *path, "Picture to write; its name ends in .png or .svg")
      ->check([](const std::string& name) {
        try {
          draw::picture_format(name);
          return std::string();
        } catch (const std::invalid_argument& e) {
          return std::string(e.what());
        }
      })
      ->type_name("FILE");
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace cyfa::app
