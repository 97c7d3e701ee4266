// cyfa prepare: turns text files into a folder of tokens.
#include <unistd.h>

#include <cmath>
#include <iostream>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/threads.h"
#include "cyfa/data/prepare.h"

namespace cyfa::app {
namespace {

constexpr int64_t kMostShown = 20;  // damaged places printed; the rest is only counted

struct Options {
  PrepareOptions prepare;
  std::string folder;
  std::string bad = "skip";
  int64_t bos = -1, eos = -1;
  std::string json;
  bool quiet = false;
};

std::string duration(double seconds) {
  const long long all = std::llround(seconds);
  if (all >= 3600) return text("%lld h %02lld min", all / 3600, all / 60 % 60);
  if (all >= 60) return text("%lld min %02lld s", all / 60, all % 60);
  return text("%lld s", all);
}

std::string large(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return text("%.2f billion", value * 1e-9);
  if (value >= 1e6) return text("%.1f million", value * 1e-6);
  return std::to_string(count);
}

// A progress line on the standard error that overwrites itself; silent if that is not a terminal.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : shown_(!quiet && isatty(STDERR_FILENO) == 1) {}

  void show(const PrepareProgress& p) {
    if (!shown_) return;
    const double share = static_cast<double>(p.input_done) / static_cast<double>(std::max<int64_t>(p.input_all, 1));
    const std::string left = p.seconds_left < 0 ? "" : ", " + duration(p.seconds_left) + " left";
    std::cerr << "\r\x1b[K"
              << text("%3.0f%%  %.1f MB/s, %s tokens, %s documents%s", 100 * share,
                      static_cast<double>(p.text_bytes) * 1e-6 / std::max(p.seconds, 1e-9), large(p.tokens).c_str(),
                      large(p.documents).c_str(), left.c_str())
              << std::flush;
    open_ = true;
  }
  void clear() {
    if (open_) std::cerr << "\r\x1b[K" << std::flush;
    open_ = false;
  }

 private:
  bool shown_, open_ = false;
};

Json row(const Options& options, const PrepareResult& result) {
  const TokenManifest& m = result.manifest;
  return {{"folder", options.folder},
          {"tokens", m.tokens()},
          {"documents", m.documents()},
          {"shards", m.shards.size()},
          {"resumed_shards", result.resumed_shards},
          {"input_files", m.input_files},
          {"input_bytes", m.input_bytes},
          {"damaged", m.losses.damaged},
          {"empty", m.losses.empty},
          {"repaired", m.losses.repaired},
          {"passed_over", result.passed_over.total()},
          {"hash", text("%016llx", static_cast<unsigned long long>(result.hash))},
          {"text_bytes", result.text_bytes},
          {"seconds", result.seconds},
          {"mb_per_second", static_cast<double>(result.text_bytes) * 1e-6 / std::max(result.seconds, 1e-9)}};
}

void print(const Options& options, const PrepareResult& result) {
  const TokenManifest& m = result.manifest;
  std::cout << text("%s: %s tokens, %s document%s, %zu shard%s\n", options.folder.c_str(), large(m.tokens()).c_str(),
                    large(m.documents()).c_str(), m.documents() == 1 ? "" : "s", m.shards.size(), m.shards.size() == 1 ? "" : "s");
  const DataLosses& l = m.losses;
  if (l != DataLosses{}) {
    std::cout << text("left out: %lld damaged, %lld empty; repaired: %lld with invalid UTF-8\n", static_cast<long long>(l.damaged),
                      static_cast<long long>(l.empty), static_cast<long long>(l.repaired));
  }
  if (const int64_t passed = result.passed_over.total(); passed > 0)
    std::cout << text("passed over: %lld, ", static_cast<long long>(passed)) << result.passed_over.text() << '\n';
  std::cout << text("%.1f MB of text in %s, %.1f MB/s", static_cast<double>(result.text_bytes) * 1e-6, duration(result.seconds).c_str(),
                    static_cast<double>(result.text_bytes) * 1e-6 / std::max(result.seconds, 1e-9));
  if (result.resumed_shards > 0) std::cout << text("; %lld shards are from an earlier run", static_cast<long long>(result.resumed_shards));
  std::cout << '\n';
}

int run_prepare(Options& options) {
  options.prepare.folder = options.folder;
  options.prepare.stop_at_damage = options.bad == "stop";
  if (options.bos >= 0) options.prepare.bos = options.bos;
  if (options.eos >= 0) options.prepare.eos = options.eos;
  options.prepare.threads = allowed_threads(options.prepare.threads, "--threads");
  ProgressLine line(options.quiet);
  int64_t damaged = 0;
  Prepare prepare(options.prepare);
  prepare.on_progress = [&](const PrepareProgress& progress) { line.show(progress); };
  prepare.on_damage = [&](const std::string& place) {
    if (options.quiet || ++damaged > kMostShown) return;
    line.clear();
    std::cerr << "cyfa: left out: " << place << '\n';
    if (damaged == kMostShown) std::cerr << "cyfa: further damage is only counted\n";
  };
  PrepareResult result;
  try {
    result = prepare.run();
  } catch (...) {
    line.clear();
    throw;
  }
  line.clear();
  if (prints_text(options.json)) print(options, result);
  write_rows(options.json, Json::array({row(options, result)}));
  return kDone;
}

}  // namespace

void add_prepare(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("prepare", "Turn text files into a folder of tokens to train on.");
  auto options = std::make_shared<Options>();
  PrepareOptions& p = options->prepare;
  command->add_option("folder", options->folder, "Folder to create; an interrupted run is continued")->required()->type_name("OUT");
  command->add_option("inputs", p.inputs, "Files (.txt, .jsonl, .txt.zst, .jsonl.zst), or folders of such files")
      ->required()
      ->type_name("INPUT");
  command->add_option("--tokenizer", p.tokenizer, "SentencePiece model file, or the word bytes")->capture_default_str()->type_name("FILE");
  command->add_option("--text-field", p.text_field, "Key of the text in a .jsonl line")->capture_default_str()->type_name("KEY");
  command->add_flag("--begin,!--no-begin", p.begin, "Put the beginning-of-text token before every document, or not")
      ->default_str("--begin");
  command->add_flag("--end,!--no-end", p.end, "Put the end-of-text token after every document, or not")->default_str("--no-end");
  command->add_option("--bos-id", options->bos, "Id of the beginning-of-text token")
      ->check(CLI::NonNegativeNumber)
      ->default_str("the tokenizer's own");
  command->add_option("--eos-id", options->eos, "Id of the end-of-text token")
      ->check(CLI::NonNegativeNumber)
      ->default_str("the tokenizer's own");
  command->add_option("--shard-tokens", p.shard_tokens, "Tokens per shard; an interrupted run continues after the last complete shard")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--bad", options->bad, "Leave out a damaged line or file, or stop with an error")
      ->check(CLI::IsMember({"skip", "stop"}))
      ->capture_default_str();
  add_threads(command, &p.threads);
  command->add_flag("-q,--quiet", options->quiet, "Print no progress and no damaged places on the standard error");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_prepare(*options); }; });
}

}  // namespace cyfa::app
