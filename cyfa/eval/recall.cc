// The recall suite of "Just read twice" as the paper runs it: a document cut around its answer, the beginning of a sentence, and at most 48
// tokens in which the answer must occur. And questions on a passage in their usual form, from samples of SQuAD, DROP and Natural Questions.
#include <algorithm>

#include "cyfa/eval/tasks.h"
#include "cyfa/eval/text.h"

namespace cyfa::eval {
namespace {

constexpr int64_t kContext = 2048, kAnswer = 48;  // tokens of the whole, and of the answer

struct Prompt {
  std::string text;
  std::vector<std::string> labels;
};

class Contains final : public Task {
 public:
  // `bos`: whether the BOS policy holds for the prompts.
  Contains(std::vector<Prompt> prompts, int64_t dropped, bool bos) : prompts_(std::move(prompts)), dropped_(dropped), bos_(bos) {}

  int64_t size() const override { return static_cast<int64_t>(prompts_.size()); }
  int64_t dropped() const override { return dropped_; }
  std::vector<Request> requests(int64_t i) const override {
    Request request = generate_request(prompts_[static_cast<size_t>(i)].text, {"\n"}, kAnswer);
    request.bos = bos_;
    return {request};
  }
  std::vector<std::string> columns() const override { return {"contains"}; }
  std::vector<double> score(int64_t i, std::span<const Response> responses) const override {
    return {contains_any(responses[0].text.value(), prompts_[static_cast<size_t>(i)].labels) ? 1.0 : 0.0};
  }
  std::vector<Metric> metrics(const Scores& scores) const override { return {mean_metric(scores, "contains")}; }

 private:
  std::vector<Prompt> prompts_;
  int64_t dropped_;
  bool bos_;
};

size_t tokens_before(const Encoder& encoder, std::string_view text) { return encoder.encode(text).size(); }

// The bytes of all characters but the last.
std::string_view without_last(std::string_view text) {
  if (text.empty()) return text;
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return text.substr(0, at);
}

// The tokens around the answer, as text. Absent for a document that the suite leaves out.
std::optional<std::string> cut(const Json& row, const char* field, const std::vector<const char*>& answers, const Encoder& encoder) {
  const std::string document = text_field(row, field);
  const std::string_view context = strip(document);
  const std::vector<int64_t> ids = encoder.encode(context);
  size_t found = answers.empty() ? 0 : std::string_view::npos;  // npos is larger than any place
  for (const char* key : answers) {
    const std::vector<std::string> list = list_field(row, key);
    const std::string answer = list.empty() ? "" : list.front();
    if (characters(answer) <= 1) return std::nullopt;
    found = std::min(found, find_ignoring_case(context, answer));
  }
  if (found == std::string_view::npos && row.contains("alt_answers") && !row["alt_answers"].is_null()) {
    for (const std::string& answer : list_field(row, "alt_answers")) {
      found = find_ignoring_case(context, answer);
      if (found != std::string_view::npos) break;
    }
  }
  const int64_t room = kContext - kAnswer, half = room / 2, all = static_cast<int64_t>(ids.size());
  auto place =
      static_cast<int64_t>(tokens_before(encoder, found == std::string_view::npos ? without_last(context) : context.substr(0, found)));
  if (found == std::string_view::npos && place > room && row.contains("tok_pos")) place = integer_field(row, "tok_pos");
  const int64_t start = std::min(std::max<int64_t>(0, place - half), all), end = std::clamp(place + room - (place - start), start, all);
  return encoder.decode(std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(end - start)));
}

std::string_view without_ending(std::string_view text, const std::string& ending) {
  while (!ending.empty() && ends_ignoring_case(text, ending)) text = text.substr(0, text.size() - ending.size());
  return text;
}

// "Key:" with its first character in upper case and the rest unchanged.
std::string key_with_colon(const std::string& key) {
  size_t first = std::min<size_t>(1, key.size());
  while (first < key.size() && (static_cast<unsigned char>(key[first]) & 0xC0) == 0x80) ++first;
  return capitalized(key.substr(0, first)) + key.substr(first) + ":";
}

Prompt fda_prompt(const Json& row, std::string_view text) {
  const std::string key = text_field(row, "key");
  const std::string_view passage = strip(strip(without_ending(text, key + ":"), "\n"), ".");
  return {std::string(passage) + ". " + key_with_colon(key), {text_field(row, "value")}};
}

Prompt swde_prompt(const Json& row, std::string_view text) {
  const std::string key = text_field(row, "key");
  text = text.substr(0, text.find("Summary of information above..."));
  text = without_ending(text, key + ":");
  text = strip(strip(strip(strip(strip(text, "\n")), "\n")), ".");
  return {std::string(text) + ". " + key_with_colon(key), {text_field(row, "value")}};
}

Prompt squad_prompt(const Json& row, std::string_view text) { return {std::string(strip(text)), {text_field(row, "value")}}; }

// A passage, a full stop and the beginning of a sentence.
Prompt cloze(const Json& row, std::string_view passage) {
  const std::string question = text_field(row, "question");
  return {std::string(strip(strip(passage), ".")) + ". " + std::string(strip(question)), list_field(row, "answers")};
}

Prompt nq_prompt(const Json& row, std::string_view text) {
  const std::string whole = text_field(row, "question");
  const std::string_view question = strip(whole);
  text = strip(text);
  if (!question.empty() && text.ends_with(question)) text.remove_suffix(question.size());
  return cloze(row, text);
}

Prompt drop_prompt(const Json& row, std::string_view text) {
  return cloze(row, without_ending(strip(text), std::string(strip(text_field(row, "question")))));
}

Prompt triviaqa_prompt(const Json& row, std::string_view text) {
  std::string clean(strip(text));
  for (const char* mark : {"[PAR]", "[DOC]", "[TLE]"}) clean = replaced(clean, mark, "");
  return cloze(row, without_ending(clean, std::string(strip(text_field(row, "question")))));
}

struct Suite {
  const char* name;
  const char* field;
  std::vector<const char*> answers;  // whose places decide what is cut
  Prompt (*prompt)(const Json& row, std::string_view text);
};

const std::vector<Suite>& suites() {
  static const std::vector<Suite> all = {
      {"based_fda", "text", {"key", "value"}, fda_prompt},  {"based_swde", "text", {"key", "value"}, swde_prompt},
      {"based_squad", "text", {"value"}, squad_prompt},     {"based_nq_512", "context", {"answers"}, nq_prompt},
      {"based_nq_1024", "context", {"answers"}, nq_prompt}, {"based_nq_2048", "context", {"answers"}, nq_prompt},
      {"based_triviaqa", "context", {}, triviaqa_prompt},   {"based_drop", "context", {}, drop_prompt},
  };
  return all;
}

// The texts of a list of lists of answers, each joined by spaces, or of a list of answers.
std::vector<std::string> answers_of(const Json& row, const char* key) {
  if (!row.contains(key) || !row[key].is_array() || row[key].empty() || !row[key].front().is_array()) return list_field(row, key);
  std::vector<std::string> answers;
  for (const Json& list : row[key]) {
    if (!list.is_array()) throw RowError(std::string("mixes lists and texts at \"") + key + "\"");
    std::string joined;
    for (const Json& part : list) {
      if (!part.is_string()) throw RowError(std::string("has an answer at \"") + key + "\" that is no text");
      if (!joined.empty()) joined += ' ';
      joined += part.get<std::string>();
    }
    answers.push_back(joined);
  }
  return answers;
}

}  // namespace

std::unique_ptr<Task> load_recall(const TaskInput& input, const TaskKind& kind) {
  const Suite& suite = *std::find_if(suites().begin(), suites().end(), [&](const Suite& s) { return s.name == kind.name; });
  std::vector<Prompt> prompts;
  int64_t dropped = 0;
  input.files.lines(input.files.find(kind.files.front()), [&](const Json& row) {
    const std::optional<std::string> text = cut(row, suite.field, suite.answers, input.encoder);
    if (text) {
      prompts.push_back(suite.prompt(row, *text));
    } else {
      ++dropped;
    }
  });
  return std::make_unique<Contains>(std::move(prompts), dropped, false);
}

std::unique_ptr<Task> load_questions(const TaskInput& input, const TaskKind& kind) {
  std::vector<Prompt> prompts;
  input.files.lines(input.files.find(kind.files.front()), [&](const Json& row) {
    const std::string prompt = row.contains("query") ? text_field(row, "query") : "Question: " + text_field(row, "question") + "\nAnswer:";
    prompts.push_back({prompt, answers_of(row, row.contains("answers_text") ? "answers_text" : "answers")});
    if (prompts.back().labels.empty()) throw RowError("has no answers");
  });
  return std::make_unique<Contains>(std::move(prompts), 0, true);
}

}  // namespace cyfa::eval
