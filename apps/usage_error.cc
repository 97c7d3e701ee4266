#include "apps/usage_error.h"

#include <algorithm>

#include "cyfa/io/file_error.h"
#include "cyfa/io/nearest_name.h"

namespace cyfa::app {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* command_called(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : commands_of(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

// The command that the words name, as far as they do, and the word that should name one and does not.
struct Named {
  const CLI::App* command;
  std::string path = "cyfa";  // "cyfa bench op"
  std::string unknown;

  Named(const CLI::App& app, const std::vector<std::string>& words) : command(&app) {
    for (const std::string& word : words) {
      if (commands_of(*command).empty() || word.starts_with('-')) return;
      const CLI::App* next = command_called(*command, word);
      if (next == nullptr) {
        unknown = word;
        return;
      }
      command = next;
      path += " " + word;
    }
  }
};

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string description(const CLI::Option& option) { return " (" + option.get_description() + ")"; }

// The option that an error of CLI11 begins with: "--T: 1 required INT missing", "scaling was given a disallowed flag override".
const CLI::Option* option_of(const CLI::App& command, const std::string& message) {
  const std::string name = message.substr(0, message.find_first_of(": "));
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr ? option : command.get_option_no_throw("--" + name);
}

// A word that no option and no argument took.
std::string extra_word(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (word.size() > 1 && word.starts_with('-')) {
    return "there is no option " + io::printable(name) + io::did_you_mean(name, option_names(command));
  }
  std::vector<std::string> arguments;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) arguments.push_back(option->get_name(true));
  }
  return "unexpected argument " + io::printable(word) + "; wanted " +
         (arguments.empty() ? "options only" : "no more than " + joined(arguments));
}

std::string missing(const CLI::App& command) {
  if (command.get_subcommands().empty() && !commands_of(command).empty()) return "a command is missing: " + joined(command_names(command));
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required() && option->count() == 0) return option->get_name() + " is missing" + description(*option);
  }
  return "an argument is missing";
}

// CLI11's "A excludes B".
std::string exclusion(const std::string& message) {
  const std::string between = " excludes ";
  const size_t at = message.find(between);
  return message.substr(0, at) + " and " + message.substr(at + between.size()) + " cannot be given together";
}

std::string mismatch(const CLI::App& command, const std::string& message) {
  const CLI::Option* option = option_of(command, message);
  if (option == nullptr) return message;
  if (option->get_expected_max() == 0) return option->get_name() + " takes no value" + description(*option);
  if (option->count() > 1) return option->get_name() + " is given " + std::to_string(option->count()) + " times, wanted once";
  return option->get_name() + " needs a value" + description(*option);
}

std::string reason(const Named& named, const CLI::ParseError& error) {
  const CLI::App& command = *named.command;
  for (const std::string& word : command.remaining()) {
    if (word != "--") return extra_word(command, word);
  }
  const std::string kind = error.get_name();
  if (kind == "RequiredError") return missing(command);
  if (kind == "ExcludesError") return exclusion(error.what());
  if (kind == "ArgumentMismatch") return mismatch(command, error.what());
  return error.what();  // the words of check_values() and of the checks of single options
}

}  // namespace

std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> words) {
  const CLI::App* at = &app;
  for (auto word = words.begin(); word != words.end() && at != nullptr && !commands_of(*at).empty(); ++word) {
    if (*word == "help") {
      words.erase(word);
      words.emplace_back("--help");
      break;
    }
    at = command_called(*at, *word);
  }
  return words;
}

std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words) {
  const Named named(app, words);
  if (named.unknown.empty()) return "";
  return "no command is called " + io::printable(named.unknown) + io::did_you_mean(named.unknown, command_names(*named.command)) +
         "\ntry `" + named.path + " --help`";
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const Named named(app, words);
  return reason(named, error) + "\ntry `" + named.path + " --help`";
}

}  // namespace cyfa::app
