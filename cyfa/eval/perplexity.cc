// Perplexity of texts: WikiText-2 as lm-evaluation-harness has it, any text, and the loss by position in long sequences.
#include <algorithm>
#include <cmath>

#include "cyfa/eval/tasks.h"
#include "cyfa/eval/text.h"
#include "cyfa/io/file_error.h"

namespace cyfa::eval {
namespace {

// Texts scored in rolling windows; words and bytes are those of the text as published.
class Perplexity final : public Task {
 public:
  struct Document {
    std::string text;
    double words = 0, bytes = 0;
  };

  explicit Perplexity(std::vector<Document> documents) : documents_(std::move(documents)) {}

  int64_t size() const override { return static_cast<int64_t>(documents_.size()); }
  std::vector<Request> requests(int64_t i) const override { return {rolling_request(documents_[static_cast<size_t>(i)].text)}; }
  std::vector<std::string> columns() const override { return {"log_likelihood", "words", "bytes"}; }
  std::vector<double> score(int64_t i, std::span<const Response> responses) const override {
    const Document& document = documents_[static_cast<size_t>(i)];
    return {responses[0].log_likelihood, document.words, document.bytes};
  }
  std::vector<Metric> metrics(const Scores& scores) const override {
    const std::vector<double> found = scores.column("log_likelihood"), words = scores.column("words"), bytes = scores.column("bytes");
    return {weighted_perplexity("word_perplexity", found, words), weighted_perplexity("byte_perplexity", found, bytes),
            bits_per_unit("bits_per_byte", found, bytes)};
  }

 private:
  std::vector<Document> documents_;
};

Perplexity::Document document_of(const std::string& page, std::string text) {
  return {std::move(text), static_cast<double>(pieces_at_white_space(page)), static_cast<double>(page.size())};
}

// A line " = Title = " begins a page. Two lines inside articles of the test set look like titles; the definition keeps them as such.
bool is_title(std::string_view line) {
  const std::string joined = replaced(replaced(line, "= = =", "==="), "= =", "==");
  const std::string_view bare = strip(joined);
  return bare.starts_with("= ") && bare.ends_with(" =");
}

std::vector<std::string> pages_of(const std::string& text) {
  std::vector<std::string> pages;
  std::string page;
  bool first = true;  // line of a page
  const auto finish = [&](bool last) {
    if (last || !strip(page).empty()) pages.push_back(page);
    page.clear();
    first = true;
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (is_title(line)) finish(false);
    if (!first) page += '\n';
    page += line;
    first = false;
    begin = end + 1;
  }
  finish(true);
  return pages;
}

// Removes white space just inside every pair of marks. The content of a pair is the shortest run without the closing mark; a quotation mark
// opens and closes.
std::string trimmed_inside(const std::string& text, char open, char close) {
  std::string result;
  size_t at = 0;
  for (;;) {
    const size_t begin = text.find(open, at);
    if (begin == std::string::npos) break;
    const size_t end = text.find(close, begin + 1);
    if (end == std::string::npos) break;
    result.append(text, at, begin + 1 - at).append(strip(std::string_view(text).substr(begin + 1, end - begin - 1))) += close;
    at = end + 1;
  }
  return result.append(text, at);
}

// The text of a page before it was split into tokens for WikiText.
std::string wikitext_text(std::string text) {
  const auto replace = [&](const char* from, const char* to) { text = replaced(text, from, to); };
  replace("s '", "s'");
  for (const char* mark : {"-", ",", "."}) replace((std::string(" @") + mark + "@ ").c_str(), mark);
  for (const char* mark : {":", ";", ".", "!", "?", ","})
    replace((std::string(" ") + mark + " ").c_str(), (std::string(mark) + " ").c_str());
  for (const auto& [open, close] : {std::pair('(', ')'), {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}})
    text = trimmed_inside(text, open, close);
  replace("= = = =", "====");
  replace("= = =", "===");
  replace("= =", "==");
  replace(" \xC2\xB0 ", "\xC2\xB0");
  replace(" \n", "\n");
  replace("\n ", "\n");
  replace(" N ", " 1 ");
  replace(" 's", "'s");
  return text;
}

bool is_lines(const std::filesystem::path& path) { return path.string().find(".jsonl") != std::string::npos; }

// The texts of a file: "text" of every line of JSON, or the whole of another file.
std::vector<std::string> texts_of(const TaskInput& input) {
  const std::filesystem::path path = input.argument;
  std::vector<std::string> texts;
  if (is_lines(path)) {
    input.files.lines(path, [&](const Json& row) { texts.push_back(text_field(row, "text")); });
  } else {
    texts.push_back(input.files.text(path));
  }
  std::erase_if(texts, [](const std::string& text) { return strip(text).empty(); });
  if (texts.empty()) throw io::FileError(path, "holds no text");
  return texts;
}

// Sequences of `length` tokens of documents one after another, each with BOS in front. A position's loss is that of the token after it.
class Positions final : public Task {
 public:
  static constexpr int64_t kBucket = 2048;

  Positions(std::vector<int64_t> ids, int64_t length) : ids_(std::move(ids)), length_(length), bucket_(std::min(kBucket, length)) {}

  int64_t size() const override { return static_cast<int64_t>(ids_.size()) / length_; }
  std::vector<Request> requests(int64_t i) const override {
    return {tokens_request({ids_.begin() + i * length_, ids_.begin() + (i + 1) * length_})};
  }
  std::string truncation() const override { return "none"; }
  // Of each bucket the sum of the losses; the counts are the same in all sequences.
  std::vector<std::string> columns() const override {
    std::vector<std::string> names;
    for (int64_t begin = 0; begin < length_ - 1; begin += bucket_) names.push_back(name(begin));
    return names;
  }
  std::vector<double> score(int64_t, std::span<const Response> responses) const override {
    const std::vector<float>& each = responses[0].each;
    std::vector<double> losses(columns().size(), 0);
    for (size_t t = 0; t < each.size(); ++t) losses[t / static_cast<size_t>(bucket_)] -= static_cast<double>(each[t]);
    for (size_t b = 0; b < losses.size(); ++b) losses[b] /= static_cast<double>(count(static_cast<int64_t>(b)));
    return losses;
  }
  std::vector<Metric> metrics(const Scores& scores) const override {
    std::vector<Metric> result;
    for (const std::string& column : columns()) {
      result.push_back(mean_metric(scores, column));
      result.back().higher_is_better = false;
    }
    return result;
  }

 private:
  std::string name(int64_t begin) const {
    return "loss_" + std::to_string(begin) + "_" + std::to_string(std::min(begin + bucket_, length_ - 1) - 1);
  }
  int64_t count(int64_t b) const { return std::min((b + 1) * bucket_, length_ - 1) - b * bucket_; }

  std::vector<int64_t> ids_;
  int64_t length_, bucket_;
};

}  // namespace

std::unique_ptr<Task> load_wikitext(const TaskInput& input, const TaskKind& kind) {
  const std::filesystem::path path = input.files.find(kind.files.front());
  std::vector<Perplexity::Document> documents;
  const auto add = [&](const std::string& page) { documents.push_back(document_of(page, wikitext_text(page))); };
  if (is_lines(path)) {
    input.files.lines(path, [&](const Json& row) { add(text_field(row, "page")); });
  } else {
    for (const std::string& page : pages_of(input.files.text(path))) add(page);
  }
  return std::make_unique<Perplexity>(std::move(documents));
}

std::unique_ptr<Task> load_text(const TaskInput& input, const TaskKind&) {
  std::vector<Perplexity::Document> documents;
  for (const std::string& text : texts_of(input)) documents.push_back(document_of(text, text));
  return std::make_unique<Perplexity>(std::move(documents));
}

std::unique_ptr<Task> load_positions(const TaskInput& input, const TaskKind&) {
  if (*input.length < 2) throw std::invalid_argument("task positions: a sequence of one token has no loss; wanted @2 or more");
  std::vector<int64_t> ids;
  for (const std::string& text : texts_of(input)) {
    ids.push_back(input.encoder.prefix());
    const std::vector<int64_t> more = input.encoder.encode_plain(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  if (static_cast<int64_t>(ids.size()) < *input.length) {
    throw io::FileError(input.argument, "holds " + std::to_string(ids.size()) + " tokens, fewer than one sequence of " +
                                            std::to_string(*input.length) + "; wanted a longer text, or a shorter length behind @");
  }
  return std::make_unique<Positions>(std::move(ids), *input.length);
}

}  // namespace cyfa::eval
