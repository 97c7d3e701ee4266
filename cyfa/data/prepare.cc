// See prepare.h. Writes shards and progress.json as it goes; the manifest is written last and marks the folder as complete.
#include "cyfa/data/prepare.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "cyfa/data/json_keys.h"
#include "cyfa/data/json_text.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/data/utf8.h"
#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/folder_lock.h"
#include "cyfa/io/hash.h"

namespace cyfa {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kWriteStep = 1 << 20;
constexpr const char* kProgressFile = "progress.json";
constexpr auto kReportStep = std::chrono::milliseconds(200);

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  io::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}
void write_whole(const std::filesystem::path& path, std::string_view text) { write_whole(path, std::as_bytes(std::span(text))); }

// A block of text on its way through the threads.
struct Job {
  int64_t number = 0;
  TextBlock block;
  std::vector<uint32_t> ids;    // tokens of all pieces
  std::vector<size_t> id_ends;  // end of each piece in `ids`
  std::vector<char> repaired;   // for each piece: whether its text was repaired
  int64_t text_bytes = 0;
  std::exception_ptr error;  // thrown by the thread that processed the job last
};

// Reads and tokenizes ahead of the writer, by at most `ahead_` blocks.
class Pipeline {
 public:
  Pipeline(TextReader& reader, const Tokenizer& tokenizer, std::string field, int threads)
      : reader_(reader), tokenizer_(tokenizer), field_(std::move(field)), ahead_(2 * threads + 2) {
    try {
      threads_.emplace_back([this] { read_all(); });
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { tokenize_all(); });
    } catch (...) {
      stop();  // the destructor does not run, and a thread that is not joined would end the process
      throw;
    }
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  ~Pipeline() { stop(); }

  // The next block in input order; null at the end. Rethrows an exception of the threads at the block where it happened.
  std::unique_ptr<Job> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(taken_) || (all_read_ && taken_ == read_); });
    const auto found = done_.find(taken_);
    if (found == done_.end()) return nullptr;
    std::unique_ptr<Job> job = std::move(found->second);
    done_.erase(found);
    ++taken_;
    lock.unlock();
    changed_.notify_all();
    if (job->error) std::rethrow_exception(job->error);
    return job;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void read_all() {
    for (bool more = true; more;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || read_ - taken_ < ahead_; });
        if (stopped_) return;
      }
      auto job = std::make_unique<Job>();
      try {
        more = reader_.next(job->block);
      } catch (...) {
        job->error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        if (more) {
          job->number = read_++;
          if (job->error) {
            more = false;
            done_[job->number] = std::move(job);
          } else {
            todo_.push_back(std::move(job));
          }
        }
        all_read_ = !more;
      }
      changed_.notify_all();
    }
  }

  void tokenize_all() {
    WordCache cache;
    std::string buffer;
    for (;;) {
      std::unique_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || !todo_.empty() || all_read_; });
        if (stopped_ || todo_.empty()) return;
        job = std::move(todo_.front());
        todo_.pop_front();
      }
      try {
        for (TextPiece& piece : job->block.pieces) tokenize(piece, *job, cache, buffer);
      } catch (...) {
        job->error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        done_[job->number] = std::move(job);
      }
      changed_.notify_all();
    }
  }

  void tokenize(TextPiece& piece, Job& job, WordCache& cache, std::string& buffer) const {
    bool repaired = false;
    if (piece.damage.empty()) {
      std::string_view text = std::string_view(job.block.bytes).substr(piece.begin, piece.length);
      if (piece.line) {
        const JsonText found = json_text(text, field_, buffer);
        piece.damage = found.problem;
        text = found.text;
        repaired = found.replaced;
      }
      std::string valid;
      if (!is_utf8(text)) {
        valid = as_utf8(text);
        text = valid;
        repaired = true;
      }
      tokenizer_.append(text, !piece.starts, cache, job.ids);
      job.text_bytes += static_cast<int64_t>(text.size());
    }
    job.id_ends.push_back(job.ids.size());
    job.repaired.push_back(repaired ? 1 : 0);
  }

  TextReader& reader_;
  const Tokenizer& tokenizer_;
  const std::string field_;
  const int64_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> todo_;
  std::map<int64_t, std::unique_ptr<Job>> done_;
  int64_t read_ = 0, taken_ = 0;
  bool all_read_ = false, stopped_ = false;
  std::vector<std::thread> threads_;
};

// One file of a shard while it is written, with its checksum.
class ShardFile {
 public:
  explicit ShardFile(const std::filesystem::path& path) : file_(path) {}

  template <class Number>
  void add(Number number) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&number);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof(number));
    if (buffer_.size() >= kWriteStep) flush();
  }
  uint64_t commit() {
    flush();
    file_.commit();
    return sum_.value();
  }
  const std::vector<uint64_t>& blocks() const { return sum_.blocks(); }

 private:
  void flush() {
    file_.write(buffer_);
    sum_.add(buffer_);
    buffer_.clear();
  }

  io::AtomicFile file_;
  Checksum sum_;
  std::vector<std::byte> buffer_;
};

// The state of a run between two pieces: the contents of progress.json.
struct Progress {
  ordered_json settings;   // that must not change
  TokenManifest manifest;  // of the shards written so far
  TextPosition next;       // where the next piece starts
  bool open = false;       // the current document has tokens already
  bool repaired = false;   // the current document has been counted as repaired

  std::string text() const {
    const ordered_json all = {{"settings", settings},
                              {"next", {{"file", next.file}, {"offset", next.offset}, {"line", next.line}, {"inside", next.inside}}},
                              {"open", open},
                              {"repaired", repaired},
                              {"manifest", manifest.json()}};
    return all.dump(1) + "\n";
  }

  static Progress read(const std::filesystem::path& path) {
    Progress progress;
    try {
      const ordered_json all = io::read_json(path, kManifestLimits);
      const JsonKeys keys(all, path, "");
      keys.object("settings");
      progress.settings = keys.at("settings");
      const JsonKeys next = keys.object("next");
      progress.next = {next.count("file"), next.count("offset"), next.count("line"), next.flag("inside")};
      progress.open = keys.flag("open");
      progress.repaired = keys.flag("repaired");
      progress.manifest = TokenManifest::parse(keys.at("manifest"), path);
    } catch (const io::FileError& e) {
      throw io::FileError(path, "is damaged: " + e.message() + "; remove the folder and begin again");
    }
    return progress;
  }
};

// Writes tokens and document starts to shards, in input order.
class Writer {
 public:
  Writer(const PrepareOptions& options, Progress progress) : options_(options), at_(std::move(progress)) {}

  const Progress& progress() const { return at_; }
  int64_t tokens() const { return tokens_before_ + shard_.tokens; }
  int64_t documents() const { return documents_before_ + shard_.documents; }
  // Call after the manifest has changed: counts the tokens and documents of its shards.
  void count_before() {
    tokens_before_ = at_.manifest.tokens();
    documents_before_ = at_.manifest.documents();
  }

  // Adds a piece with its own ids. Returns whether it was damaged.
  bool add(const TextPiece& piece, std::span<const uint32_t> ids, bool repaired) {
    const bool damaged = !piece.damage.empty();
    if (piece.starts) at_.open = at_.repaired = false;
    if (damaged) ++at_.manifest.losses.damaged;
    if (repaired && !damaged && !at_.repaired) {
      ++at_.manifest.losses.repaired;
      at_.repaired = true;
    }
    if (!ids.empty()) {
      if (!at_.open) start_document();
      for (const uint32_t id : ids) add_token(id);
    }
    if (piece.ends) {
      if (at_.open && at_.manifest.end_mark) add_token(static_cast<uint32_t>(*at_.manifest.end_mark));
      if (!at_.open && !damaged) ++at_.manifest.losses.empty;
      at_.open = false;
    }
    at_.next = piece.next;
    if (shard_.tokens >= options_.shard_tokens) close_shard();
    return damaged;
  }

  // Commits the current shard, if there is one, and saves the progress.
  void close_shard() {
    if (shard_.tokens == 0) return;
    shard_.tokens_checksum = tokens_->commit();
    shard_.documents_checksum = documents_->commit();
    const std::span<const std::byte> blocks = std::as_bytes(std::span(tokens_->blocks()));
    write_whole(options_.folder / blocks_file(at_.manifest.shards.size()), blocks);
    shard_.blocks_checksum = checksum(blocks);
    tokens_.reset();
    documents_.reset();
    at_.manifest.shards.push_back(shard_);
    shard_ = {};
    count_before();
    save();
  }

  void save() const { write_whole(options_.folder / kProgressFile, at_.text()); }

 private:
  void open_shard() {
    const size_t number = at_.manifest.shards.size();
    tokens_.emplace(options_.folder / tokens_file(number));
    documents_.emplace(options_.folder / documents_file(number));
  }
  void add_token(uint32_t id) {
    if (!tokens_) open_shard();
    if (at_.manifest.token_bytes() == 2) {
      tokens_->add(static_cast<uint16_t>(id));
    } else {
      tokens_->add(id);
    }
    ++shard_.tokens;
  }
  void start_document() {
    if (!tokens_) open_shard();
    documents_->add(static_cast<uint64_t>(shard_.tokens));
    ++shard_.documents;
    at_.open = true;
    if (at_.manifest.begin_mark) add_token(static_cast<uint32_t>(*at_.manifest.begin_mark));
  }

  const PrepareOptions& options_;
  Progress at_;
  ShardEntry shard_;
  std::optional<ShardFile> tokens_, documents_;
  int64_t tokens_before_ = 0, documents_before_ = 0;
};

// The id of the BOS or EOS token: the given one, or the tokenizer's own.
std::optional<int64_t> mark(bool wanted, const std::optional<int64_t>& given, const std::optional<int64_t>& own, const Tokenizer& tokenizer,
                            const char* what) {
  if (!wanted) return std::nullopt;
  const std::optional<int64_t> id = given ? given : own;
  if (!id) {
    throw std::invalid_argument("the tokenizer " + tokenizer.name() + " has no mark that " + what +
                                "s a text; name its token, or ask for none");
  }
  if (*id < 0 || *id >= tokenizer.vocab_size()) {
    throw std::invalid_argument("the mark that " + std::string(what) + "s a text is " + std::to_string(*id) + "; the tokenizer " +
                                tokenizer.name() + " has " + std::to_string(tokenizer.vocab_size()) + " tokens");
  }
  return id;
}

uint64_t inputs_hash(const std::vector<InputFile>& inputs) {
  std::string all;
  for (const InputFile& input : inputs)
    all += input.path.string() + '\0' + std::to_string(input.bytes) + '\0' + std::to_string(input.modified) + '\0';
  return io::hash64(all);
}

// Throws if the interrupted run in the folder had other settings.
void compare_settings(const std::filesystem::path& path, const ordered_json& then, const ordered_json& now) {
  for (const auto& [key, value] : now.items()) {
    const ordered_json old = then.value(key, ordered_json());
    if (old == value) continue;
    const std::string change =
        key == "inputs" ? "the inputs have changed (names, sizes or times)" : key + " was " + old.dump() + " and is now " + value.dump();
    throw io::FileError(path, "the run that began here cannot be finished: " + change + "; take another folder, or remove this one");
  }
}

// Throws unless the shards of an interrupted run have their sizes.
void check_shards(const std::filesystem::path& folder, const TokenManifest& manifest) {
  const auto check = [](const std::filesystem::path& path, int64_t bytes) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error || static_cast<int64_t>(size) != bytes) {
      throw io::FileError(path, "is missing or has changed since it was written; remove the folder and begin again");
    }
  };
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    check(folder / tokens_file(i), manifest.shards[i].tokens * manifest.token_bytes());
    check(folder / documents_file(i), manifest.shards[i].documents * 8);
    if (manifest.shards[i].blocks_checksum) check(folder / blocks_file(i), manifest.block_hashes(i) * 8);
  }
}

// Prepares the folder: a new one, or one in the state after its last complete shard.
void open_folder(const PrepareOptions& options, Progress& progress) {
  const std::filesystem::path& folder = options.folder;
  io::remove_temporaries(folder);
  const std::filesystem::path path = folder / kProgressFile;
  if (std::filesystem::exists(path)) {
    Progress found = Progress::read(path);
    compare_settings(path, found.settings, progress.settings);
    check_shards(folder, found.manifest);
    progress = std::move(found);
    return;
  }
  if (std::filesystem::exists(folder / "manifest.json"))
    throw io::FileError(folder, "holds finished tokens already; take another folder, or remove this one");
  if (!std::filesystem::is_empty(folder)) throw io::FileError(folder, "holds other files; wanted a new or empty folder");
  write_whole(path, progress.text());
}

// Removes a folder that received no tokens.
void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  for (const char* name : {kProgressFile, "tokenizer.model"}) std::filesystem::remove(folder / name, error);
  std::filesystem::remove(folder, error);
}

std::string damage_text(const InputFile& input, const TextPiece& piece) {
  std::string place = input.path.string() + ": ";
  if (input.lines) place += "line " + std::to_string(piece.at.line + 1) + ", ";
  return place + "byte " + std::to_string(piece.at.offset) + (input.compressed ? " of the text: " : ": ") + piece.damage;
}

}  // namespace

PrepareResult Prepare::run() {
  const Clock::time_point start = Clock::now();
  if (options_.shard_tokens < 1)
    throw std::invalid_argument("a shard of " + std::to_string(options_.shard_tokens) + " tokens; wanted at least one");
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(options_.tokenizer);
  PrepareResult result;
  const std::vector<InputFile> inputs = find_inputs(options_.inputs, result.passed_over);
  if (inputs.empty()) throw std::invalid_argument("no inputs were named");
  if (options_.stop_at_damage && result.passed_over.unreadable > 0)
    throw std::invalid_argument("inputs cannot be read: " + result.passed_over.text());

  Progress progress;
  TokenManifest& manifest = progress.manifest;
  manifest.tokenizer = options_.tokenizer == "bytes" ? "bytes" : "tokenizer.model";
  manifest.tokenizer_hash = tokenizer->hash();
  manifest.vocab_size = tokenizer->vocab_size();
  manifest.begin_mark = mark(options_.begin, options_.bos, tokenizer->bos(), *tokenizer, "begin");
  manifest.end_mark = mark(options_.end, options_.eos, tokenizer->eos(), *tokenizer, "end");
  manifest.input_files = static_cast<int64_t>(inputs.size());
  for (const InputFile& input : inputs) manifest.input_bytes += input.bytes;
  const auto id = [](const std::optional<int64_t>& mark) { return mark ? ordered_json(*mark) : ordered_json(nullptr); };
  progress.settings = {{"tokenizer_hash", manifest.tokenizer_hash},  {"shard_tokens", options_.shard_tokens},
                       {"begin", id(manifest.begin_mark)},           {"end", id(manifest.end_mark)},
                       {"text_field", as_utf8(options_.text_field)}, {"inputs", inputs_hash(inputs)}};

  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  if (error) throw io::FileError(options_.folder, "cannot be made: " + error.message());
  const io::FolderLock lock(options_.folder, "another `cyfa prepare`");
  open_folder(options_, progress);
  if (manifest.tokenizer != "bytes") write_whole(options_.folder / "tokenizer.model", read_tokenizer_file(options_.tokenizer));

  result.resumed_shards = static_cast<int64_t>(manifest.shards.size());
  PrepareProgress report;
  report.input_all = manifest.input_bytes;
  const TextPosition from = progress.next;
  Writer writer(options_, std::move(progress));
  writer.count_before();
  {
    TextReader reader(inputs, from);
    int threads = options_.threads > 0 ? options_.threads : static_cast<int>(std::thread::hardware_concurrency());
    threads = std::clamp(threads, 1, 256);
    Pipeline pipeline(reader, *tokenizer, options_.text_field, threads);
    Clock::time_point reported = start;
    int64_t first_input = -1;
    while (const std::unique_ptr<Job> job = pipeline.next()) {
      size_t begin = 0;
      for (size_t i = 0; i < job->block.pieces.size(); ++i) {
        const TextPiece& piece = job->block.pieces[i];
        const size_t end = job->id_ends[i];
        if (!piece.damage.empty()) {
          const InputFile& input = inputs[static_cast<size_t>(piece.at.file)];
          const std::string text = damage_text(input, piece);
          if (options_.stop_at_damage) throw std::invalid_argument(text);
          if (on_damage) on_damage(text);
        }
        writer.add(piece, std::span(job->ids).subspan(begin, end - begin), job->repaired[i] != 0);
        begin = end;
      }
      result.text_bytes += job->text_bytes;
      report.input_done = job->block.consumed;
      if (first_input < 0) first_input = report.input_done;
      if (on_progress && Clock::now() - reported >= kReportStep) {
        reported = Clock::now();
        report.text_bytes = result.text_bytes;
        report.tokens = writer.tokens();
        report.documents = writer.documents();
        report.seconds = seconds_since(start);
        const auto done = static_cast<double>(report.input_done - first_input);
        report.seconds_left = done > 0 ? report.seconds / done * static_cast<double>(report.input_all - report.input_done) : -1;
        on_progress(report);
      }
    }
  }
  writer.close_shard();
  result.manifest = writer.progress().manifest;
  if (result.manifest.tokens() == 0) {
    remove_folder(options_.folder);
    const DataLosses& losses = result.manifest.losses;
    throw std::invalid_argument("the inputs hold no text: " + std::to_string(inputs.size()) + " files, " + std::to_string(losses.empty) +
                                " empty documents, " + std::to_string(losses.damaged) + " damaged ones" +
                                (result.passed_over.total() == 0 ? "" : "; passed over: " + result.passed_over.text()));
  }
  const std::string manifest_text = result.manifest.text();
  write_whole(options_.folder / "manifest.json", manifest_text);
  std::filesystem::remove(options_.folder / kProgressFile, error);
  result.hash = io::hash64(manifest_text);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace cyfa
