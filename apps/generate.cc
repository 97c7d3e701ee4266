// cyfa generate: continues texts with a checkpoint.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "cyfa/data/utf8.h"
#include "cyfa/decode/generator.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string folder;
  std::vector<std::string> prompts;
  std::string prompt_file, prompt_lines, tokenizer, save_state, load_state;
  std::string dtype, device = "cpu", engine = "auto", json;
  GenerateOptions generate;
  int threads = 0;
  bool no_bos = false, no_echo = false, quiet = false;
};

std::string whole_file(const std::string& path) {
  std::ifstream named;
  if (path != "-") {
    named.open(path, std::ios::binary);
    if (!named || std::filesystem::is_directory(path)) throw io::FileError(path, "cannot be read");
  }
  std::istream& in = path == "-" ? std::cin : named;
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw io::FileError(path, "cannot be read");
  return text;
}

std::vector<std::string> prompt_texts(const Options& options) {
  std::vector<std::string> texts = options.prompts;
  if (!options.prompt_file.empty()) texts.push_back(whole_file(options.prompt_file));
  if (!options.prompt_lines.empty()) {
    const std::string all = whole_file(options.prompt_lines);
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      texts.push_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  if (texts.empty()) texts.emplace_back();
  return texts;
}

// A single prompt's text is printed as it is generated; the texts of several prompts are interleaved and therefore printed at the end.
class Screen {
 public:
  Screen(const Options& options, size_t prompts)
      : live_(prints_text(options.json) && prompts == 1), notes_(!options.quiet && isatty(STDERR_FILENO) == 1) {}

  void show(const std::string& text) const {
    if (live_) std::cout << text << std::flush;
  }
  void prefill(int64_t done, int64_t all) const {
    if (!notes_ || all < 4096) return;
    std::cerr << cyfa::app::text("\rreading the prompt: %lld of %lld tokens%s", static_cast<long long>(done), static_cast<long long>(all),
                                 done == all ? "\n" : "")
              << std::flush;
  }

 private:
  bool live_, notes_;
};

void print_times(const GenerateTimes& t) {
  std::cerr << text("prompt %lld tokens, %.1f/s; text %lld tokens, %.1f/s\n", static_cast<long long>(t.prefill_tokens),
                    static_cast<double>(t.prefill_tokens) / std::max(t.prefill_seconds, 1e-9), static_cast<long long>(t.decode_tokens),
                    static_cast<double>(t.decode_tokens) / std::max(t.decode_seconds, 1e-9));
}

void print_engine(const StepEngine& engine) {
  std::cerr << "engine " << engine.name() << '\n';
  for (const std::string& note : engine.notes()) std::cerr << "  " << note << '\n';
}

int run_generate(const Options& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  options.generate.sampling.check();
  const std::vector<std::string> texts = prompt_texts(options);
  const bool states = !options.save_state.empty() || !options.load_state.empty();
  if (states && texts.size() > 1)
    throw std::invalid_argument("--save-state and --load-state work with one prompt, not with " + std::to_string(texts.size()));

  LoadOptions load;
  load.device = parse_device(options.device);
  if (!options.dtype.empty()) load.dtype = parse_dtype(options.dtype);
  CausalLM model = load_checkpoint(options.folder, load);
  const std::unique_ptr<Tokenizer> tokenizer =
      options.tokenizer.empty() ? checkpoint_tokenizer(options.folder, model.config()) : load_tokenizer(options.tokenizer);
  check_vocabulary(*tokenizer, model.config());

  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    Prompt prompt;
    if (!options.load_state.empty()) prompt.snapshot = load_snapshot(options.load_state, model);
    const bool begins = !prompt.snapshot && !options.no_bos && model.config().bos;
    if (begins) prompt.ids.push_back(*model.config().bos);
    const std::vector<int64_t> ids = text.empty() ? std::vector<int64_t>() : tokenizer->encode(text);
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    if (tokens > model.config().backbone.context && !options.quiet) {
      std::cerr << cyfa::app::text("cyfa: note: the prompt has %lld tokens; the model was trained on sequences of %lld\n",
                                   static_cast<long long>(tokens), static_cast<long long>(model.config().backbone.context));
    }
    prompts.push_back(std::move(prompt));
  }

  const Screen screen(options, prompts.size());
  const std::unique_ptr<StepEngine> engine = prepare_steps(model, {.engine = options.engine});
  Generator generator(*engine, *tokenizer);
  generator.on_text = [&](size_t, const std::string& text) { screen.show(text); };
  generator.on_prefill = [&](size_t, int64_t done, int64_t all) { screen.prefill(done, all); };
  if (!options.no_echo) screen.show(as_utf8(texts[0]));
  const std::vector<Completion> done = generator.run(prompts, options.generate, !options.save_state.empty());

  if (!options.save_state.empty()) {
    const WriteGuard guard;
    save_snapshot(options.save_state, done[0].snapshot, model);
  }
  if (!options.json.empty()) {
    Json rows = Json::array();
    for (size_t i = 0; i < done.size(); ++i) {
      rows.push_back({{"prompt", as_utf8(texts[i])},
                      {"text", done[i].text},
                      {"ids", done[i].ids},
                      {"finish", reason_name(done[i].reason)},
                      {"prompt_tokens", done[i].prompt_tokens},
                      {"cached_tokens", done[i].cached_tokens}});
    }
    write_rows(options.json, rows);
  }
  if (prints_text(options.json) && done.size() == 1) {
    std::cout << '\n';
  } else if (prints_text(options.json)) {
    for (size_t i = 0; i < done.size(); ++i) {
      std::cout << text("[%zu] ", i) << (options.no_echo ? "" : as_utf8(texts[i])) << done[i].text << '\n';
    }
  }
  std::cout.flush();
  if (!options.quiet) {
    print_times(generator.times());
    print_engine(*engine);
  }
  return kDone;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Continue texts with a checkpoint.");
  auto options = std::make_shared<Options>();
  GenerateOptions& g = options->generate;
  SamplingOptions& s = g.sampling;
  command->add_option("model", options->folder, "Checkpoint directory")->required()->type_name("DIR");
  command->add_option("-p,--prompt", options->prompts, "Text to continue; may be given several times")
      ->type_name("TEXT")
      ->default_str("an empty text")
      ->allow_extra_args(false);
  command->add_option("--prompt-file", options->prompt_file, "File whose content is a prompt; - for the standard input")->type_name("FILE");
  command->add_option("--prompt-lines", options->prompt_lines, "File whose lines are prompts; - for the standard input")->type_name("FILE");
  command->add_option("-n,--max-tokens", g.max_tokens, "Largest number of new tokens")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("-t,--temperature", s.temperature, "Sampling temperature; 0 always takes the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", s.top_k, "Sample from the k most likely tokens only; 0 for all")->capture_default_str();
  command->add_option("--top-p", s.top_p, "Sample from the most likely tokens that together have this probability; 1 for all")
      ->capture_default_str();
  command->add_option("--min-p", s.min_p, "Leave out tokens less probable than this share of the most likely one; 0 for none")
      ->capture_default_str();
  command->add_option("--repetition-penalty", s.repetition_penalty, "Above 1 makes tokens that have occurred less likely; 1 for no penalty")
      ->capture_default_str();
  add_seed(command, &s.seed, "Random seed; every prompt starts from it, so a batch gives the same texts as its prompts alone");
  command->add_option("--stop", g.stop, "Stop before this text; may be given several times")->type_name("TEXT")->allow_extra_args(false);
  command->add_flag("--ignore-eos", g.ignore_eos, "Continue past the end-of-text token");
  command->add_flag("--no-bos", options->no_bos, "Do not put the beginning-of-text token before the prompt");
  command->add_option("--tokenizer", options->tokenizer, "SentencePiece model file, or the word bytes")
      ->type_name("FILE")
      ->default_str("the checkpoint's own");
  command->add_option("--save-state", options->save_state, "File to which the recurrent state after the text is written")
      ->type_name("FILE");
  command->add_option("--load-state", options->load_state, "State file to continue from; its tokens are not read again")->type_name("FILE");
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16"});
  command->add_flag("--bf16-state", g.narrow_state,
                    "Keep the recurrent state in bf16 while decoding, where the model supports it: half the size, rounded at every step");
  add_device(command, &options->device);
  add_engine(command, &options->engine);
  add_threads(command, &options->threads);
  command->add_flag("--no-echo", options->no_echo, "Print the new text without the prompt");
  command->add_flag("-q,--quiet", options->quiet, "Print no notes and speeds on the standard error");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_generate(*options); }; });
}

}  // namespace cyfa::app
