// See evaluation.h.
#include "cyfa/eval/evaluation.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cyfa/data/utf8.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"

namespace cyfa::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Documents are tokenized and sorted by length in windows of this size, so that long ones need not all be in memory.
constexpr int64_t kWindow = 1024;
constexpr size_t kWindowBytes = 64 << 20;
constexpr io::JsonLimits kLine{.what = "a line of results", .bytes = 64 << 20, .values = 1 << 20};

// A finished document.
struct Outcome {
  std::vector<double> scores;
  int64_t tokens = 0, truncated = 0;
};

// The file that keeps finished documents: a header with the identity of the run, then a line for each document.
class Kept {
 public:
  Kept(const std::filesystem::path& folder, const std::string& name, Json identity, const Task& task) : columns_(task.columns()) {
    identity["task"] = name;
    identity["documents"] = task.size();
    identity["columns"] = columns_;
    std::string file = "samples_" + name + ".jsonl";
    for (char& c : file) {
      if (c == '/' || c == ':' || c == '\\') c = '_';
    }
    path_ = folder / file;
    const std::string end = read(identity);
    out_.open(path_, std::ios::binary | std::ios::app);
    out_ << end;
    if (!std::filesystem::exists(path_) || std::filesystem::file_size(path_) == 0) out_ << identity.dump() << '\n';
    flush();
  }

  const std::vector<std::optional<Outcome>>& found() const { return found_; }

  void add(int64_t document, const Outcome& outcome, const std::vector<Response>& responses) {
    Json row = {{"document", document}, {"scores", outcome.scores}, {"tokens", outcome.tokens}, {"truncated", outcome.truncated}};
    for (const Response& r : responses) {
      if (r.text) {
        row["texts"].push_back(as_utf8(*r.text));
      } else {
        row["log_likelihoods"].push_back(r.log_likelihood);
      }
    }
    out_ << row.dump() << '\n';
  }
  void flush() {
    if (!out_.flush()) throw io::FileError(path_, "cannot be written");
  }

 private:
  // Reads the documents of an earlier run. Returns what is missing at the end of the file.
  std::string read(const Json& identity) {
    found_.resize(identity["documents"].get<size_t>());
    std::ifstream in(path_, std::ios::binary);
    std::string line;
    if (!in || !std::getline(in, line)) return {};
    check(identity, io::json_or_null(line, kLine));
    bool whole = true;
    while (std::getline(in, line)) {
      whole = !in.eof();
      const Json row = io::json_or_null(line, kLine);
      if (row.is_object()) take(row);
    }
    return whole ? "" : "\n";  // a killed process leaves half a line
  }

  void check(const Json& identity, const Json& header) const {
    const std::string advice = "; name another --out, or remove this file to begin again";
    if (!header.is_object()) throw io::FileError(path_, "does not begin with the description of a run" + advice);
    for (const auto& [key, value] : identity.items()) {
      const Json other = header.contains(key) ? header[key] : Json();
      if (other != value)
        throw io::FileError(path_, "holds results with " + key + " " + other.dump() + ", this run has " + value.dump() + advice);
    }
    for (const auto& [key, value] : header.items()) {
      if (!identity.contains(key))
        throw io::FileError(path_, "holds results with " + key + " " + value.dump() + ", this run has none" + advice);
    }
  }

  void take(const Json& row) {
    const auto number = [&](const char* key) { return row.contains(key) && row[key].is_number_integer() ? row[key].get<int64_t>() : -1; };
    const int64_t document = number("document");
    if (document < 0 || document >= static_cast<int64_t>(found_.size()) || !row.contains("scores") || !row["scores"].is_array() ||
        row["scores"].size() != columns_.size())
      return;
    Outcome outcome{{}, number("tokens"), number("truncated")};
    for (const Json& value : row["scores"]) {
      if (!value.is_number()) return;
      outcome.scores.push_back(value.get<double>());
    }
    found_[static_cast<size_t>(document)] = std::move(outcome);
  }

  std::vector<std::string> columns_;
  std::filesystem::path path_;
  std::vector<std::optional<Outcome>> found_;
  std::ofstream out_;
};

size_t bytes_of(const std::vector<Request>& requests) {
  size_t sum = 0;
  for (const Request& r : requests) sum += r.context.size() + r.continuation.size() + r.ids.size() * sizeof(int64_t);
  return sum;
}

}  // namespace

TaskResult evaluate(const std::string& name, const Task& task, Scorer& scorer, const EvaluationOptions& options,
                    const std::function<void(const EvaluationProgress&)>& on_progress) {
  const Clock::time_point start = Clock::now();
  const std::clock_t cpu_start = std::clock();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  TaskResult result{.name = name, .available = task.size(), .dropped = task.dropped()};
  const int64_t all = options.limit > 0 ? std::min(options.limit, task.size()) : task.size();
  if (all == 0) throw std::invalid_argument("task " + name + " has no documents");
  std::optional<Kept> kept;
  std::vector<std::optional<Outcome>> outcomes(static_cast<size_t>(task.size()));
  if (!options.folder.empty()) {
    kept.emplace(options.folder, name, options.identity, task);
    outcomes = kept->found();
  }
  outcomes.resize(static_cast<size_t>(all));
  const auto done = [&] { return std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return o.has_value(); }); };
  result.resumed = done();
  const auto report = [&] {
    if (!on_progress) return;
    EvaluationProgress progress{done(), all, seconds()};
    const int64_t here = progress.done - result.resumed;
    if (here > 0) progress.seconds_left = progress.seconds / static_cast<double>(here) * static_cast<double>(all - progress.done);
    on_progress(progress);
  };
  report();

  for (int64_t begin = 0; begin < all;) {
    // A window of documents, long ones first.
    std::vector<Prepared> prepared;
    std::vector<int64_t> documents;
    size_t bytes = 0;
    int64_t end = begin;
    for (; end < all && end - begin < kWindow && (end == begin || bytes < kWindowBytes); ++end) {
      const std::vector<Request> requests = task.requests(end);
      bytes += bytes_of(requests);
      try {
        prepared.push_back(scorer.prepare(requests));
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument("task " + name + ", document " + std::to_string(end) + ": " + error.what());
      }
      documents.push_back(end);
    }
    begin = end;
    std::vector<size_t> order(prepared.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return prepared[a].longest() > prepared[b].longest(); });
    std::vector<Prepared> sorted;
    std::vector<int64_t> document_of;
    for (const size_t i : order) {
      sorted.push_back(std::move(prepared[i]));
      document_of.push_back(documents[i]);
    }
    // Batches do not depend on what an earlier run has finished, so that they give the same figures where a batch matters (on a GPU).
    for (size_t first = 0; first < sorted.size();) {
      const size_t last = scorer.batch_end(sorted, first);
      const auto finished = [&](size_t i) { return outcomes[static_cast<size_t>(document_of[i])].has_value(); };
      bool skip = true;
      for (size_t i = first; i < last; ++i) skip = skip && finished(i);
      if (!skip) {
        if (scorer.should_stop && scorer.should_stop()) return result;
        const auto responses = scorer.answer(std::span(sorted).subspan(first, last - first));
        if (responses.empty()) return result;
        for (size_t i = first; i < last; ++i) {
          const std::vector<Response>& answers = responses[i - first];
          Outcome outcome{task.score(document_of[i], answers), 0, 0};
          for (const Response& r : answers) {
            outcome.tokens += r.tokens;
            outcome.truncated += r.truncated;
          }
          if (kept) kept->add(document_of[i], outcome, answers);
          outcomes[static_cast<size_t>(document_of[i])] = std::move(outcome);
        }
        if (kept) kept->flush();
        report();
      }
      first = last;
    }
  }

  std::vector<std::vector<double>> rows;
  for (std::optional<Outcome>& outcome : outcomes) {
    result.tokens += outcome->tokens;
    result.truncated += outcome->truncated > 0 ? 1 : 0;
    rows.push_back(std::move(outcome->scores));
  }
  result.documents = all;
  result.metrics = task.metrics(Scores(task.columns(), std::move(rows)));
  result.seconds = seconds();
  result.cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  return result;
}

}  // namespace cyfa::eval
