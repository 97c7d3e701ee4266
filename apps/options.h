// Options that several commands share. Each has one declaration here, hence one meaning and one help text in the whole program.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cyfa::app {

// --device cpu|cuda
void add_device(CLI::App* command, std::string* device);

// --dtype, the floating-point type of `what` ("the weights"), one of `choices`. An empty *dtype is shown as the default "as stored".
void add_dtype(CLI::App* command, std::string* dtype, const std::string& what, const std::vector<std::string>& choices);

// --engine auto|...: what runs the steps of a model (cyfa/engine/engine.h)
void add_engine(CLI::App* command, std::string* engine);

// --threads N; 0: one per core
void add_threads(CLI::App* command, int* threads);
void add_threads(CLI::App* command, int64_t* threads);

// --repeats N; 0: as measure() in apps/timing.h does it
void add_repeats(CLI::App* command, int* repeats);

// --json [FILE]. *target is "" without the option, "-" for the standard output, else a file: what write_rows() of apps/output.h takes.
// An existing file is replaced only if it holds a JSON array, so that an argument that follows --json by mistake is not overwritten.
void add_json(CLI::App* command, std::string* target);

// -o, --out FILE: a picture to write, whose name must end in .png or .svg
CLI::Option* add_picture(CLI::App* command, std::string* path);

// One entry of a help: `name`, then `meaning` in words wrapped behind a fixed column.
std::string help_line(const std::string& name, const std::string& meaning);

// Help in the form "  --name VALUE  meaning: choices [default: value]", which scripts/cli_doc.py reads. Subcommands inherit it.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace cyfa::app
