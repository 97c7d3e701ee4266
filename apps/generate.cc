// cyfa generate: continues texts with a checkpoint.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/threads.h"
#include "cyfa/data/utf8.h"
#include "cyfa/decode/generator.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

constexpr int64_t kMostTogether = 64;  // larger batches add little speed: on an H200, 64 sequences decode 1.5 times as fast as 32

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

// Lines end with \n or \r\n; an empty line is an empty prompt.
std::vector<std::string> lines_of(const std::string& path) {
  const std::string all = whole_file(path);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const bool carriage_return = end > begin && end < all.size() && all[end - 1] == '\r';
    lines.push_back(all.substr(begin, end - begin - (carriage_return ? 1 : 0)));
    begin = end + 1;
  }
  if (lines.empty()) throw io::FileError(path, "holds no lines; wanted a prompt per line");
  return lines;
}

std::vector<std::string> prompt_texts(const Options& options) {
  if (options.prompt_file == "-" && options.prompt_lines == "-")
    throw std::invalid_argument("--prompt-file and --prompt-lines both name the standard input; wanted one of them");
  std::vector<std::string> texts = options.prompts;
  if (!options.prompt_file.empty()) texts.push_back(whole_file(options.prompt_file));
  if (!options.prompt_lines.empty()) {
    for (std::string& line : lines_of(options.prompt_lines)) texts.push_back(std::move(line));
  }
  if (texts.empty()) texts.emplace_back();
  return texts;
}

std::vector<Prompt> tokenized(const std::vector<std::string>& texts, const Options& options, const CausalLM& model,
                              const Tokenizer& tokenizer) {
  std::vector<Prompt> prompts;
  int64_t longest = 0;
  for (const std::string& text : texts) {
    Prompt prompt;
    if (!options.load_state.empty()) prompt.snapshot = load_snapshot(options.load_state, model);
    const bool begins = !prompt.snapshot && !options.no_bos && model.config().bos;
    if (begins) prompt.ids.push_back(*model.config().bos);
    const std::vector<int64_t> ids = text.empty() ? std::vector<int64_t>() : tokenizer.encode(text);
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()));
    prompts.push_back(std::move(prompt));
  }
  if (longest > model.config().backbone.context && !options.quiet) {
    std::cerr << text("cyfa: note: %s has %lld tokens; the model was trained on sequences of %lld\n",
                      texts.size() == 1 ? "the prompt" : "the longest prompt", static_cast<long long>(longest),
                      static_cast<long long>(model.config().backbone.context));
  }
  return prompts;
}

// The number of sequences that are decoded together if --batch does not say: as many as fit into half of the free memory. The other half is
// for the activations of a prefill and of a step.
int64_t fitting_batch(const CausalLM& model, const std::vector<Prompt>& prompts, int64_t max_tokens) {
  size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.ids.size());
  double bytes = 8.0 * static_cast<double>(model.config().vocab_size);  // of a sequence: logits, its state, its part of a KV cache
  for (const CausalLM::Layer& layer : model.layers()) {
    for (const StateSpec& spec : layer.block->mixer().state()) {
      double scalars = spec.grows ? static_cast<double>(longest) + static_cast<double>(max_tokens) : 1;
      for (size_t i = spec.grows ? 1 : 0; i < spec.shape.size(); ++i) scalars *= static_cast<double>(spec.shape[i]);
      bytes += scalars * static_cast<double>(c10::elementSize(spec.dtype));
    }
  }
  const auto free = static_cast<double>(free_bytes(model.device()));
  const double fit = free > 0 ? free / 2 / bytes : static_cast<double>(kMostTogether);
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(fit, 1e9)), 1, kMostTogether);
}

// Prints the texts. That of a single prompt appears as it is generated. Those of several are interleaved, so each is printed when it and
// all before it have ended.
class Screen {
 public:
  Screen(const Options& options, const std::vector<std::string>& texts)
      : texts_(texts),
        prints_(prints_text(options.json)),
        echo_(!options.no_echo),
        notes_(!options.quiet && isatty(STDERR_FILENO) == 1),
        ended_(texts.size()) {}

  void begin() const {
    if (single() && echo_) show(as_utf8(texts_[0]));
  }
  void add(const std::string& text) const {
    if (single()) show(text);
  }
  void end(size_t prompt, const std::string& text) {
    ended_[prompt] = text;
    for (; next_ < ended_.size() && ended_[next_]; ++next_) print(next_);
  }
  // Prints the texts that have ended although an earlier one has not.
  void finish() {
    for (; next_ < ended_.size(); ++next_) {
      if (ended_[next_]) print(next_);
    }
  }
  void prefill(int64_t done, int64_t all) const {
    if (!notes_ || all < 4096) return;
    std::cerr << cyfa::app::text("\rreading the prompt: %lld of %lld tokens%s", static_cast<long long>(done), static_cast<long long>(all),
                                 done == all ? "\n" : "")
              << std::flush;
  }

 private:
  bool single() const { return texts_.size() == 1; }
  void show(const std::string& text) const {
    if (prints_) std::cout << text << std::flush;
  }
  void print(size_t prompt) {
    show(single() ? "\n" : cyfa::app::text("[%zu] ", prompt) + (echo_ ? as_utf8(texts_[prompt]) : "") + *ended_[prompt] + "\n");
    ended_[prompt] = "";
  }

  const std::vector<std::string>& texts_;
  bool prints_, echo_, notes_;
  std::vector<std::optional<std::string>> ended_;  // emptied when printed
  size_t next_ = 0;                                // the first text that is not printed
};

void print_times(double load, const GenerateTimes& t, int64_t text_tokens) {
  const auto rate = [](int64_t tokens, double seconds) { return static_cast<double>(tokens) / std::max(seconds, 1e-9); };
  std::cerr << text("load %.2f s", load);
  if (t.warm_up_seconds > 0) std::cerr << text(", warm-up %.2f s", t.warm_up_seconds);
  std::cerr << text("; prompt %lld tokens in %.1f ms, %.1f/s; text %lld tokens", static_cast<long long>(t.prefill_tokens),
                    t.prefill_seconds * 1e3, rate(t.prefill_tokens, t.prefill_seconds), static_cast<long long>(text_tokens));
  if (t.decode_tokens > 0) std::cerr << text(", %.1f/s", rate(t.decode_tokens, t.decode_seconds));
  if (t.batch > 1) std::cerr << text(", batch %lld", static_cast<long long>(t.batch));
  std::cerr << '\n';
}

void print_engine(const StepEngine& engine) {
  std::cerr << "engine " << engine.name() << '\n';
  for (const std::string& note : engine.notes()) std::cerr << "  " << note << '\n';
}

int run_generate(const Options& options) {
  using Clock = std::chrono::steady_clock;
  if (options.threads > 0) use_threads(options.threads, "--threads");
  options.generate.sampling.check();
  const std::vector<std::string> texts = prompt_texts(options);
  const bool saves = !options.save_state.empty();
  if ((saves || !options.load_state.empty()) && texts.size() > 1)
    throw std::invalid_argument("--save-state and --load-state work with one prompt, not with " + std::to_string(texts.size()));
  if (saves) check_writable(options.save_state);
  const bool writes_json = !options.json.empty() && prints_text(options.json);
  if (writes_json) check_writable(options.json);

  const Clock::time_point start = Clock::now();
  LoadOptions load;
  load.device = parse_device(options.device);
  if (!options.dtype.empty()) load.dtype = parse_dtype(options.dtype);
  const std::string folder = checkpoint_folder(options.folder, options.quiet);
  CausalLM model = load_checkpoint(folder, load);
  const std::unique_ptr<Tokenizer> tokenizer =
      options.tokenizer.empty() ? checkpoint_tokenizer(folder, model.config()) : load_tokenizer(options.tokenizer);
  check_vocabulary(*tokenizer, model.config());
  const std::vector<Prompt> prompts = tokenized(texts, options, model, *tokenizer);
  const std::unique_ptr<StepEngine> engine = prepare_steps(model, {.engine = options.engine});
  const double load_seconds = std::chrono::duration<double>(Clock::now() - start).count();

  GenerateOptions generate = options.generate;
  if (generate.batch == 0) generate.batch = fitting_batch(model, prompts, generate.max_tokens);
  std::optional<GracefulStop> stop;  // otherwise a signal ends the program at once
  if (saves || !options.json.empty()) stop.emplace();
  Screen screen(options, texts);
  Generator generator(*engine, *tokenizer);
  generator.on_text = [&](size_t, const std::string& text) { screen.add(text); };
  generator.on_prefill = [&](size_t, int64_t done, int64_t all) { screen.prefill(done, all); };
  if (stop) generator.should_stop = [&] { return stop->requested(); };
  StepThreads step_threads;
  if (load.device.is_cpu()) generator.on_step = [&] { step_threads.after_step(); };
  std::vector<Json> rows(texts.size());
  int64_t tokens = 0;
  generator.on_done = [&](size_t i, const Completion& c) {
    tokens += static_cast<int64_t>(c.ids.size());
    screen.end(i, c.text);
    if (options.json.empty()) return;
    rows[i] = {{"prompt", as_utf8(texts[i])},
               {"text", c.text},
               {"ids", c.ids},
               {"finish", reason_name(c.reason)},
               {"prompt_tokens", c.prompt_tokens},
               {"cached_tokens", c.cached_tokens}};
  };
  screen.begin();
  const std::vector<Completion> done = generator.run(prompts, generate, saves);
  screen.finish();

  if (saves) {
    const WriteGuard guard;
    save_snapshot(options.save_state, done[0].snapshot, model);
  }
  std::erase_if(rows, [](const Json& row) { return row.is_null(); });  // of prompts that an interruption has left out
  write_rows(options.json, rows);
  std::cout.flush();
  if (!options.quiet) {
    print_times(load_seconds, generator.times(), tokens);
    print_engine(*engine);
  }
  if (!stop || !stop->requested()) return kDone;
  if (!options.quiet) {
    std::cerr << "cyfa: note: interrupted; the text so far " << (saves ? "and the state after it are" : "is") << " complete\n";
  }
  return kStopped;
}

constexpr const char* kFooter =
    "Examples:\n"
    "  cyfa generate DIR -p \"Once upon a time\" -n 100 -t 0.8 --top-p 0.95   sample a continuation\n"
    "  cyfa generate RUN -p \"The \"                                         the newest checkpoint of a training run\n"
    "  cyfa generate DIR --prompt-lines FILE --json OUT.json                a text for each line of a file\n"
    "  cyfa generate DIR --prompt-file BOOK -n 0 --save-state STATE         read a long text once ...\n"
    "  cyfa generate DIR --load-state STATE -p \"Question: \"                ... and continue it several times\n"
    "\n"
    "Ctrl-C ends the program at once. With --save-state or --json it ends the text and writes what was asked for; a second Ctrl-C does "
    "not\n"
    "wait for that.\n"
    "Exit status: 0 done, 2 bad input or an error, 3 stopped by a signal after saving.";

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Continue texts with a checkpoint.");
  auto options = std::make_shared<Options>();
  GenerateOptions& g = options->generate;
  SamplingOptions& s = g.sampling;
  command->add_option("model", options->folder, "Checkpoint directory, or the folder of a training run, whose newest checkpoint is used")
      ->required()
      ->type_name("DIR");
  command->add_option("-p,--prompt", options->prompts, "Text to continue; may be given several times")
      ->type_name("TEXT")
      ->default_str("an empty text")
      ->allow_extra_args(false);
  command->add_option("--prompt-file", options->prompt_file, "File whose content is a prompt; - for the standard input")->type_name("FILE");
  command->add_option("--prompt-lines", options->prompt_lines, "File whose lines are prompts; - for the standard input")->type_name("FILE");
  command->add_option("-n,--max-tokens", g.max_tokens, "Largest number of new tokens of each prompt")
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
  command
      ->add_option(
          "--seed", s.seed,
          "Random seed; a token depends on it and on the position in the text, so a batch gives the same texts as its prompts alone")
      ->capture_default_str();
  command->add_option("--stop", g.stop, "Stop before this text; may be given several times")->type_name("TEXT")->allow_extra_args(false);
  command
      ->add_option("--batch", g.batch,
                   "Most prompts that are decoded together; 0 takes as many as fit into half of the free memory, at most 64")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
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
  command->footer(kFooter);
  command->callback([&action, options] { action = [options] { return run_generate(*options); }; });
}

}  // namespace cyfa::app
