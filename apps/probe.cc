// cyfa probe: the paper's analyses of the clock on a checkpoint and a text.
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/options.h"
#include "apps/parse.h"
#include "apps/probe_parts.h"
#include "apps/threads.h"
#include "cyfa/data/token_data.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

// The paper's numbers, which a shorter text reduces.
constexpr int64_t kTokens = 2048, kSequences = 64, kHeldOut = 16, kShift = 257;
constexpr int64_t kLeastTokens = 32, kLeastSequences = 5;

struct Options {
  std::string folder, text, tokenizer, device = "cpu", dtype, json, out;
  std::vector<std::string> only;
  int64_t tokens = 0, sequences = 0, held_out = -1, shift = 0, page_tokens = 192, gradient_sequences = 4;  // the paper's number
  int threads = 0;
  bool quiet = false;
};

struct Part {
  const char* name;
  void (*run)(Probe&);
};
constexpr const char* kGradients = "gradients";  // the analysis of models without a clock
constexpr Part kParts[] = {{"variance", probe_variance},
                           {"interventions", probe_interventions},
                           {"ages", probe_ages},
                           {kGradients, probe_gradients},
                           {"page", probe_page}};

// How far an analysis is, on the standard error: a line that overwrites itself on a terminal, elsewhere one line for each analysis.
analysis::Progress progress_of(const std::string& what, bool quiet) {
  if (quiet) return {};
  const bool terminal = isatty(STDERR_FILENO) == 1;
  if (!terminal) std::cerr << "cyfa: " << what << '\n';
  return [what, terminal](int64_t done, int64_t all) {
    if (!terminal) return;
    std::cerr << "\r\x1b[K";
    if (done < all) std::cerr << what << ": " << done << " of " << all;
    std::cerr << std::flush;
  };
}

// The sequences of a text of `tokens` tokens: how long, how many to analyse, how many to hold out.
struct Windows {
  int64_t T, sequences, held_out;
};
Windows windows_of(const Options& options, int64_t tokens) {
  Windows w{options.tokens, 0, 0};
  if (w.T == 0) {
    for (w.T = kTokens; w.T > kLeastTokens && tokens < kLeastSequences * w.T;) w.T /= 2;
  }
  const int64_t all = tokens / w.T;
  w.held_out = options.held_out >= 0 ? options.held_out : std::min(kHeldOut, std::max<int64_t>(1, all / kLeastSequences));
  w.sequences = options.sequences > 0 ? options.sequences : std::min(kSequences, all - w.held_out);
  if (w.sequences < 1 || w.sequences + w.held_out > all) {
    throw io::FileError(options.text, text("holds %lld tokens, which are %lld sequences of %lld; wanted %lld to analyse and %lld held out: "
                                           "a longer text, or smaller --tokens, --sequences and --held-out",
                                           static_cast<long long>(tokens), static_cast<long long>(all), static_cast<long long>(w.T),
                                           static_cast<long long>(std::max<int64_t>(1, w.sequences)), static_cast<long long>(w.held_out)));
  }
  return w;
}

// The tokens of a text file, or of a folder that `cyfa prepare` wrote with the same tokenizer.
std::vector<int64_t> read_tokens(const Options& options, const Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  if (fs::is_directory(options.text)) {
    const TokenData data = TokenData::open(options.text);
    if (data.tokenizer_hash() != tokenizer.hash())
      throw io::FileError(options.text,
                          "was prepared with another tokenizer than the model's; prepare it with the model's, or name a text file");
    ids.resize(static_cast<size_t>(data.tokens()));
    data.read(0, ids);
    return ids;
  }
  std::ifstream in(options.text, std::ios::binary);
  if (!in) throw io::FileError(options.text, "cannot be read; wanted a text file, or a folder written by `cyfa prepare`");
  return tokenizer.encode(std::string{std::istreambuf_iterator<char>(in), {}});
}

int run_probe(const Options& options) {
  const at::NoGradGuard no_grad;
  if (options.threads > 0) use_threads(options.threads, "--threads");
  const at::Device device = parse_device(options.device);
  const std::string folder = checkpoint_folder(options.folder);
  const CausalLM model = load_checkpoint(folder, {std::nullopt, device, false});
  const bool clock = analysis::has_clock(model);
  if (!clock && options.only != std::vector<std::string>{kGradients}) {
    throw std::invalid_argument(options.folder + " is a " + model.config().kind->model_type +
                                ", which has no clock; wanted a model with cyclic_flow_attention layers, or `--only gradients`");
  }
  const auto tokenizer = options.tokenizer.empty() ? checkpoint_tokenizer(folder, model.config()) : load_tokenizer(options.tokenizer);
  const std::vector<int64_t> ids = read_tokens(options, *tokenizer);
  const Windows windows = windows_of(options, static_cast<int64_t>(ids.size()));
  if (!options.out.empty()) {
    fs::create_directories(options.out);
    check_writable(fs::path(options.out) / (clock ? "increments.png" : "gradients.png"));
  }
  if (!options.json.empty() && options.json != "-") check_writable(options.json);

  const auto rows = [&](int64_t first, int64_t count) {
    return at::tensor(std::vector<int64_t>(ids.begin() + first * windows.T, ids.begin() + (first + count) * windows.T), at::kLong)
        .view({count, windows.T});
  };
  Probe probe{.model = model,
              .w = model.weights(options.dtype.empty() ? std::nullopt : std::optional(parse_dtype(options.dtype))),
              .tokenizer = *tokenizer,
              .name = fs::path(options.folder).filename().string(),
              .ids = rows(0, windows.sequences),
              .held_out = rows(windows.sequences, windows.held_out),
              .shift = options.shift > 0        ? options.shift
                       : windows.T - 1 > kShift ? kShift
                                                : (windows.T - 1) / 2,
              .gradient_sequences = options.gradient_sequences,
              .page_tokens = std::min(options.page_tokens, windows.T),
              .out = options.out,
              .progress = [&](const std::string& what) { return progress_of(what, options.quiet); },
              .prints = prints_text(options.json)};
  probe.rows.push_back({{"table", "probe"},
                        {"model", options.folder},
                        {"text", options.text},
                        {"sequences", windows.sequences},
                        {"tokens", windows.T},
                        {"held_out", windows.held_out},
                        {"device", options.device}});
  if (probe.prints) {
    std::cout << text("%s: %zu heads with a clock; %lld sequences of %lld tokens, %lld held out\n", options.folder.c_str(),
                      clock ? analysis::clock_heads(model).size() : 0, static_cast<long long>(windows.sequences),
                      static_cast<long long>(windows.T), static_cast<long long>(windows.held_out));
  }
  if (clock) probe_increments(probe);
  for (const Part& part : kParts) {
    if (std::string(part.name) == "interventions" && windows.held_out == 0) continue;
    if (options.only.empty() || std::find(options.only.begin(), options.only.end(), part.name) != options.only.end()) part.run(probe);
    std::cout << std::flush;
  }
  write_rows(options.json, probe.rows);
  if (probe.prints && !options.out.empty())
    std::cout << "\npictures" << (clock ? " and page.html" : "") << " written to " << options.out << '\n';
  return kDone;
}

}  // namespace

void add_probe(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("probe", "Show how a model uses its clock on a text: increments, what decides them, what they are good for.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->folder, "Checkpoint directory")->required()->type_name("DIR");
  command->add_option("text", options->text, "Text file, or folder written by `cyfa prepare` with the model's tokenizer")
      ->required()
      ->type_name("TEXT");
  command->add_option("-o,--out", options->out, "Folder for pictures and the page; files of an earlier run are replaced")->type_name("DIR");
  command->add_option("--tokens", options->tokens, "Tokens per sequence")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 20))
      ->default_str(text("%lld, or fewer if the text is short", static_cast<long long>(kTokens)));
  command->add_option("--sequences", options->sequences, "Sequences to analyse")
      ->check(CLI::PositiveNumber)
      ->default_str(text("%lld, or fewer if the text is short", static_cast<long long>(kSequences)));
  command->add_option("--held-out", options->held_out, "Sequences after those, for the interventions; 0 for none")
      ->check(CLI::NonNegativeNumber)
      ->default_str(text("%lld, or a fifth of a short text", static_cast<long long>(kHeldOut)));
  command->add_option("--shift", options->shift, "Tokens by which one intervention shifts the increments")
      ->check(CLI::PositiveNumber)
      ->default_str(text("%lld, or half of a shorter sequence", static_cast<long long>(kShift)));
  command->add_option("--gradient-sequences", options->gradient_sequences, "Most sequences whose gradients are measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--page-tokens", options->page_tokens, "Tokens of the text on the page")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  command->add_option("--only", options->only, "Analyses to run besides the increments; gradients alone, of a model without a clock")
      ->check(CLI::IsMember(names))
      ->type_name("NAME")
      ->default_str("all");
  command->add_option("--tokenizer", options->tokenizer, "SentencePiece model file, or the word bytes")
      ->type_name("FILE")
      ->default_str("the checkpoint's own");
  add_dtype(command, &options->dtype, "the matrix products", {"fp32", "bf16"});
  add_device(command, &options->device);
  add_threads(command, &options->threads);
  command->add_flag("-q,--quiet", options->quiet, "Print no progress on the standard error");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_probe(*options); }; });
}

}  // namespace cyfa::app
