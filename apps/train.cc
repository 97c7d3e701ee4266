// cyfa train: trains a model on prepared text, as a recipe says.
#include <ATen/Parallel.h>

#include <sstream>

#include "apps/commands.h"
#include "apps/error_text.h"
#include "apps/interrupt.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/parse.h"
#include "apps/provided.h"
#include "apps/ranks.h"
#include "apps/threads.h"
#include "apps/train_screen.h"
#include "cyfa/data/batches.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStopping = "cyfa: stopping after this step, with a checkpoint; a second signal ends at once, without one\n";

struct Options {
  std::string recipe, folder;
  std::vector<std::string> assignments;
  int64_t from = -1;
  bool resume = false, quiet = false;
};

using Notes = std::vector<std::string>;

std::string hex(uint64_t value) { return text("%016llx", static_cast<unsigned long long>(value)); }

// Values of a manifest; empty and 0 if they are absent.
std::string text_in(const Json& manifest, const char* key) {
  return manifest.contains(key) && manifest[key].is_string() ? manifest[key].get<std::string>() : "";
}
int64_t count_in(const Json& manifest, const char* key) {
  return manifest.contains(key) && manifest[key].is_number_integer() ? manifest[key].get<int64_t>() : 0;
}

// A rank's rows of every micro-batch. All ranks together read what one would.
std::shared_ptr<Batches> batches_of(const TokenData& data, const Recipe& recipe, const Groups& groups, bool shuffle,
                                    const std::vector<ReadText>& before = {}) {
  BatchOptions options;
  options.T = recipe.context;
  options.B = recipe.batch / recipe.accumulate / groups.readers();
  options.rank = groups.reader();
  options.ranks = groups.readers();
  options.seed = recipe.seed;
  options.shuffle = shuffle;
  options.reset_documents = recipe.reset_documents;
  options.before = before;
  return std::make_shared<Batches>(data, options);
}

BatchSource source_of(const std::shared_ptr<Batches>& batches) {
  return [batches, T = batches->options().T, packed = batches->options().reset_documents](int64_t index) {
    const Batch batch = batches->at(index);
    return TrainBatch{batch.ids.narrow(1, 0, T), batch.ids.narrow(1, 1, T), packed ? batch.cu_seqlens : std::nullopt};
  };
}

// Opens a data folder and compares it with its checksums, as far as the recipe asks.
TokenData open_data(const std::string& folder, const Recipe& recipe, Notes& notes) {
  TokenData data = TokenData::open(folder);
  if (recipe.check_data == "none") {
    notes.push_back(folder + ": not compared with its checksums, as check_data = \"none\" asks");
    return data;
  }
  DataCheck how;
  if (recipe.check_data == "whole") how.whole_bytes = std::numeric_limits<int64_t>::max();
  const DataChecked checked = data.check(how);
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  switch (checked.extent) {
    case DataChecked::Extent::kWhole: notes.push_back(folder + ": all tokens have their checksums"); break;
    case DataChecked::Extent::kSampled:
      notes.push_back(text("%s: %.0f of %.0f MiB have their checksums, in blocks spread over all shards; check_data=whole reads everything",
                           folder.c_str(), mib(checked.bytes), mib(checked.all)));
      break;
    case DataChecked::Extent::kNothing:
      notes.push_back(folder +
                      ": not compared with its checksums: an earlier `cyfa prepare` wrote it, without hashes of blocks; "
                      "check_data=whole reads everything");
  }
  return data;
}

// The tokenizer that every checkpoint of the run gets.
void add_tokenizer(const TokenData& data, RunFacts& facts, Notes& notes) {
  facts.bytes = data.tokenizer() == "bytes";
  if (facts.bytes) return;
  if (!fs::exists(data.tokenizer_file())) {
    notes.push_back(data.tokenizer_file() +
                    " is missing: the checkpoints will have no tokenizer, and `cyfa generate` will need --tokenizer");
    return;
  }
  const uint64_t hash = load_tokenizer(data.tokenizer_file())->hash();
  if (hash != data.tokenizer_hash()) {
    throw io::FileError(data.tokenizer_file(),
                        "has the hash " + hex(hash) + ", but the tokens were made with " + hex(data.tokenizer_hash()));
  }
  const io::MappedFile file(data.tokenizer_file());
  facts.tokenizer.assign(file.bytes().begin(), file.bytes().end());
}

// Throws if a checkpoint to continue from has another tokenizer than the data.
void compare_tokenizer(const fs::path& checkpoint, const ModelConfig& config, const TokenData& data) {
  if (!config.json.contains("tokenizer") && !fs::exists(checkpoint / "tokenizer.model")) return;
  if (checkpoint_tokenizer(checkpoint, config)->hash() == data.tokenizer_hash()) return;
  throw io::FileError(data.folder(), "was made with another tokenizer than that of the checkpoint " + checkpoint.string() +
                                         "; run `cyfa prepare` with the checkpoint's tokenizer");
}

// The checkpoint to resume from: the newest, or the one that --from names.
std::optional<RunCheckpoint> resumed_checkpoint(const RunFolder& folder, const Options& options) {
  const std::vector<RunCheckpoint> all = folder.checkpoints();
  if (options.from < 0) return all.empty() ? std::nullopt : std::optional(all.back());
  std::string steps;
  for (const RunCheckpoint& c : all) {
    if (c.step == options.from) return c;
    steps += (steps.empty() ? "" : ", ") + std::to_string(c.step);
  }
  throw io::FileError(options.folder, "holds no checkpoint of step " + std::to_string(options.from) + "; there are " +
                                          (steps.empty() ? "none" : "those of steps " + steps));
}

// Says what changes when a run is resumed with other values, and refuses values that would make it another run.
void compare_recipes(const Recipe& before, const Recipe& after, const std::optional<RunCheckpoint>& from, Notes& notes) {
  for (const RecipeKey* key : recipe_changes(before, after)) {
    const std::string was = recipe_value(before, *key), is = recipe_value(after, *key);
    if (key->fixed != nullptr) {
      throw std::invalid_argument("recipe: " + std::string(key->name) + " was " + was + " and cannot become " + is +
                                  " in a run that has begun: " + key->fixed + ". Begin a new run instead: cyfa train NEW_FOLDER " +
                                  (from ? "model=" + from->path.string() + " ..." : "..."));
    }
    notes.push_back("resuming with " + std::string(key->name) + " = " + is + ", was " + was);
    if (std::string_view(key->name) == "accumulate") {
      notes.push_back("other sums of gradients, and from the second pass over the data on another order of it: no longer bit for bit");
    }
  }
  const int64_t step = from ? from->step : 0;
  if (after.steps < step) {
    throw std::invalid_argument(text("recipe: steps is %lld, but the run has done %lld; wanted more, or an earlier checkpoint with --from",
                                     static_cast<long long>(after.steps), static_cast<long long>(step)));
  }
  if (const double was = learning_rate(before, step), is = learning_rate(after, step); was != is && step < after.steps) {
    notes.push_back(text("the learning rate of step %lld is therefore %.3g instead of %.3g", static_cast<long long>(step + 1), is, was));
  }
}

// Throws unless the data is what the run began with.
void compare_data(const Json& manifest, const TokenData& data, const std::optional<RunCheckpoint>& from) {
  const std::string then = text_in(manifest, "data"), now = hex(data.hash());
  if (then.empty() || then == now) return;
  throw io::FileError(data.folder(), "holds other data (hash " + now + ") than the run began with (hash " + then +
                                         "). Name the folder that has it with data=, or begin a new run: cyfa train NEW_FOLDER " +
                                         (from ? "model=" + from->path.string() + " ..." : "..."));
}

// Sets the number of CPU threads: the recipe's; else the one the run began with, since the order of some sums depends on it.
void set_threads(const Recipe& recipe, const Json& begun, Notes& notes) {
  const int64_t then = count_in(begun, "threads");
  const int own = at::get_num_threads();
  if (recipe.threads > 0) {
    use_threads(recipe.threads, "threads in the recipe");
  } else if (then > 0) {
    use_threads(then, "the run's first session");
  }
  if (then == 0 || recipe.device != "cpu") return;
  const int now = at::get_num_threads();
  if (now != then) {
    notes.push_back(text("the run began with %lld threads and goes on with %d%s: no longer bit for bit that of an uninterrupted run",
                         static_cast<long long>(then), now, recipe.threads > 0 ? "" : ", as many as this machine has"));
  } else if (now != own && recipe.threads == 0) {
    notes.push_back(text("%d threads, as the run began", now));
  }
}

// What the checkpoint that a new run continues from has read of the data.
std::vector<ReadText> read_by_checkpoint(const fs::path& checkpoint, const TokenData& data, Notes& notes) {
  const std::optional<StepRecord> record = read_step_record(checkpoint);
  std::vector<ReadText> read = record ? record->read : std::vector<ReadText>();
  int64_t tokens = 0, epochs = 0;
  for (const ReadText& r : read) {
    if (r.data != data.hash()) continue;
    tokens += r.windows * r.T;
    epochs = std::max(epochs, r.epoch);
  }
  if (tokens + epochs == 0) {
    notes.push_back(checkpoint.string() + " does not say that it has read this data: its order begins anew");
  } else {
    notes.push_back(text("first the text that the checkpoint's training has not read%s; it has read %lld tokens%s",
                         epochs > 0 ? " in its last pass" : "", static_cast<long long>(tokens), epochs > 0 ? " in it" : ""));
  }
  return read;
}

int train(Options options) {
  if (options.from >= 0 && !options.resume) throw std::invalid_argument("--from names a checkpoint to resume from; it needs --resume");
  Notes notes;
  const bool leads = launcher() == nullptr || launcher()->rank == 0;
  if (launcher() != nullptr && launcher()->restarts > 0 && fs::exists(fs::path(options.folder) / kRecipeFile)) {
    notes.push_back(
        text("torchrun has restarted all ranks (restart %d): the run goes on from its newest checkpoint", launcher()->restarts));
    options.resume = true;
    options.from = -1;
  }
  RunFolder folder(options.folder, options.resume, leads);
  std::optional<RunCheckpoint> from;
  Recipe recipe = options.resume           ? Recipe::read(fs::path(options.folder) / "recipe.toml")
                  : options.recipe.empty() ? Recipe()
                                           : Recipe::read(recipe_path(options.recipe));
  const Recipe before = recipe;
  for (const std::string& assignment : options.assignments) recipe.set(assignment);
  recipe.check();
  if (recipe.data.empty()) throw std::invalid_argument("recipe: data is empty, wanted a folder made by `cyfa prepare`");
  const Groups groups = join_ranks(recipe);
  const Group& group = groups.all;
  folder.join(group);
  group.all_gather_text("");  // the first rank has opened the folder, and removed what killed processes left in it
  if (options.resume) {
    from = resumed_checkpoint(folder, options);
    compare_recipes(before, recipe, from, notes);
  }
  const Json begun = options.resume ? folder.manifest() : Json::object();
  set_threads(recipe, begun, notes);
  const at::Device device = rank_device(recipe);
  if (const int64_t then = std::max<int64_t>(count_in(begun, "ranks"), 1); options.resume && then != group.size()) {
    notes.push_back(text("the run began on %lld ranks and goes on with %d: sums of gradients in another order, no longer bit for bit",
                         static_cast<long long>(then), group.size()));
  }

  const TokenData data = open_data(recipe.data, recipe, notes);
  compare_data(begun, data, from);
  std::optional<TokenData> validation;
  if (!recipe.validation.empty()) {
    validation = open_data(recipe.validation, recipe, notes);
    if (const std::string then = text_in(begun, "validation"); !then.empty() && then != hex(validation->hash())) {
      notes.push_back(recipe.validation + " holds other text than before: its losses cannot be compared with the earlier ones");
    }
  }

  const LoadOptions load{at::kFloat, device, true};
  const fs::path start = from ? from->path : model_path(recipe.model);
  const bool checkpoint = fs::is_directory(start);
  CausalLM model = checkpoint ? load_checkpoint(start, load) : CausalLM(ModelConfig::read(start));
  if (!checkpoint) model.initialise(recipe.seed, at::kFloat, device);
  if (data.vocab_size() > model.config().vocab_size) {
    throw io::FileError(recipe.data, "has " + std::to_string(data.vocab_size()) + " tokens in its vocabulary, the model " +
                                         std::to_string(model.config().vocab_size));
  }
  const bool continues = checkpoint && !from;  // a new run that starts from another's checkpoint
  if (continues) compare_tokenizer(recipe.model, model.config(), data);
  std::vector<ReadText> read;
  if (options.resume) {
    read = parse_read_text(begun.value("read_before", Json::array()));
  } else if (continues && recipe.skip_read) {
    read = read_by_checkpoint(recipe.model, data, notes);
  }

  const std::shared_ptr<Batches> batches = batches_of(data, recipe, groups, true, read);
  RunFacts facts;
  const fs::path named = fs::path(recipe.data).lexically_normal();
  facts.data = (named.has_filename() ? named : named.parent_path()).filename().string();
  facts.data_hash = hex(data.hash());
  facts.data_tokens = data.tokens();
  facts.read = [batches, parts = recipe.accumulate](int64_t steps) { return batches->read_after(steps * parts); };
  add_tokenizer(data, facts, notes);
  folder.describe(std::move(facts));
  Trainer trainer(model, recipe, source_of(batches), validation ? source_of(batches_of(*validation, recipe, groups, false)) : BatchSource(),
                  &folder, group, groups.context);
  if (from) {
    trainer.resume(*from);
    if (const std::string warning = trainer.warning(); !warning.empty()) notes.push_back(warning);
  } else if (continues && has_optimizer_state(recipe.model)) {
    trainer.continue_from(recipe.model);
  }
  const bool quiet = options.quiet || !group.leads();
  TrainScreen screen(recipe, 3 * model.forward_flops_per_token(), group.size(), quiet);
  check_agreement(group, {{"the program", commit() + " with torch " + runtime_torch()},
                          {"the hash of the recipe", hex(io::hash64(recipe.toml()))},
                          {"the hash of the model's parameter table", hex(table_hash(model.table()))},
                          {"the hash of the model's config", hex(io::hash64(model.config().json.dump()))},
                          {"the hash of the data", hex(data.hash())},
                          {"the hash of the validation data", validation ? hex(validation->hash()) : "none"},
                          {"the step to go on from", std::to_string(trainer.step())}});

  // Everything has been checked; from here on files are written.
  const GracefulStop stop(quiet ? nullptr : kStopping);
  Json manifest = begun;
  const Json session = {{"date", utc_date()},
                        {"commit", commit()},
                        {"machine", machine_name(device)},
                        {"torch", runtime_torch()},
                        {"threads", at::get_num_threads()},
                        {"ranks", group.size()},
                        {"engine", trainer.engine().name()},
                        {"engine_notes", trainer.engine().notes()}};
  if (options.resume) {
    if (const fs::path aside = from ? folder.set_aside_after(from->step) : fs::path(); !aside.empty()) {
      notes.push_back("the later checkpoints and the metrics so far are now in " + aside.string());
    }
    folder.drop_metrics_after(from ? from->step : 0);
    if (text_in(manifest, "data").empty()) manifest["data"] = hex(data.hash());
    manifest["resumed"].push_back(session);
    manifest["resumed"].back()["step"] = from ? from->step : 0;
  } else {
    manifest = {{"seed", recipe.seed},
                {"parameters", model.table().numel()},
                {"data", hex(data.hash())},
                {"data_tokens", data.tokens()},
                {"validation", validation ? Json(hex(validation->hash())) : Json(nullptr)},
                {"tokenizer", data.tokenizer()},
                {"read_before", read_text_json(read)},
                {"config", model.config().json}};
    manifest.update(session);
  }
  folder.start(recipe, manifest);
  const std::string on = group.alone() ? "" : text(" on %d ranks", group.size());
  const std::string after = from ? text(", resuming after step %lld", static_cast<long long>(from->step)) : "";
  screen.note(text("%s: %.1f million parameters, %lld tokens of data, %lld steps of %lld tokens%s%s; MFU against %.3g TFLOP/s measured",
                   options.folder.c_str(), static_cast<double>(model.table().numel()) * 1e-6, static_cast<long long>(data.tokens()),
                   static_cast<long long>(recipe.steps), static_cast<long long>(recipe.batch * recipe.context), on.c_str(), after.c_str(),
                   screen.peak() * 1e-12));
  for (const std::string& note : notes) screen.note(note);
  trainer.peak = screen.peak();
  trainer.on_step = [&](const Json& row) { screen.step(row); };
  trainer.on_note = [&](const std::string& note) { screen.note(note); };
  trainer.should_stop = [&] { return stop.requested(); };
  const int64_t done = trainer.run();
  if (done < recipe.steps) {
    screen.note(
        text("stopped after step %lld; continue with: cyfa train --resume %s", static_cast<long long>(done), options.folder.c_str()));
    return kStopped;
  }
  if (leads) screen.note("done: " + folder.checkpoints().back().path.string());
  return kDone;
}

std::string value_text(const Recipe& recipe, const RecipeKey& key) {
  return std::visit(
      [&](auto member) {
        std::ostringstream out;
        out << std::boolalpha << recipe.*member;
        return out.str();
      },
      key.member);
}

std::string key_help() {
  std::string out = "Recipe keys, in the recipe file or as KEY=VALUE:\n";
  for (const RecipeKey& key : recipe_keys()) {
    const std::string value = value_text(Recipe(), key);
    out += help_line("  " + std::string(key.name), key.about + (value.empty() ? "" : " [default: " + value + "]"));
  }
  return out +
         "\nMFU, model FLOPs utilization, is the share of the fastest matrix product measured at the start that the model's own "
         "floating-point\n"
         "operations reach.\n"
         "\nExit status: 0 done, 2 bad input or an error (the checkpoints stay), 3 stopped by a signal after saving.";
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Train a model on text that `cyfa prepare` has turned into tokens.");
  auto options = std::make_shared<Options>();
  command->add_option("folder", options->folder, "Folder of the run, created if it does not exist")->required()->type_name("DIR");
  command->add_option("assignments", options->assignments, "Recipe values that take precedence over the recipe file's")
      ->type_name("KEY=VALUE");
  command->add_option("-r,--recipe", options->recipe, "Recipe file (TOML), such as those in recipes/")
      ->type_name("FILE")
      ->default_str("the keys' defaults");
  command->add_flag("--resume", options->resume,
                    "Continue from the run's newest checkpoint; on a CPU with as many threads the result is bit for bit that of an "
                    "uninterrupted run");
  command->add_option("--from", options->from, "With --resume: go back to the checkpoint of this step; later ones are moved aside")
      ->check(CLI::NonNegativeNumber)
      ->type_name("STEP")
      ->default_str("the newest");
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->footer(key_help());
  command->callback([&action, options] { action = [options] { return as_rank([&] { return train(*options); }); }; });
}

}  // namespace cyfa::app
