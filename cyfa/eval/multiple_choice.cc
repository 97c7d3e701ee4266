// Questions with several answers, of which the model takes the one with the largest log-likelihood: ARC, HellaSwag, PIQA, WinoGrande.
#include <algorithm>

#include "cyfa/eval/tasks.h"
#include "cyfa/eval/text.h"
#include "cyfa/io/file_error.h"

namespace cyfa::eval {
namespace {

struct Question {
  std::vector<Request> choices;
  std::vector<double> lengths;  // characters of the choices, for acc_norm
  size_t gold = 0;
};

size_t first_largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

class MultipleChoice final : public Task {
 public:
  // `normalised`: acc_norm is defined. `norm_first`: and it is the headline.
  MultipleChoice(std::vector<Question> questions, bool normalised, bool norm_first)
      : questions_(std::move(questions)), normalised_(normalised), norm_first_(norm_first) {}

  int64_t size() const override { return static_cast<int64_t>(questions_.size()); }
  std::vector<Request> requests(int64_t i) const override { return at(i).choices; }
  std::vector<std::string> columns() const override {
    return normalised_ ? std::vector<std::string>{"acc", "acc_norm"} : std::vector<std::string>{"acc"};
  }
  std::vector<double> score(int64_t i, std::span<const Response> responses) const override {
    const Question& question = at(i);
    std::vector<double> plain, by_length;
    for (size_t c = 0; c < responses.size(); ++c) {
      plain.push_back(responses[c].log_likelihood);
      by_length.push_back(responses[c].log_likelihood / question.lengths[c]);
    }
    std::vector<double> result = {first_largest(plain) == question.gold ? 1.0 : 0.0};
    if (normalised_) result.push_back(first_largest(by_length) == question.gold ? 1.0 : 0.0);
    return result;
  }
  std::vector<Metric> metrics(const Scores& scores) const override {
    std::vector<Metric> result = {mean_metric(scores, "acc")};
    if (normalised_) result.insert(norm_first_ ? result.begin() : result.end(), mean_metric(scores, "acc_norm"));
    return result;
  }

 private:
  const Question& at(int64_t i) const { return questions_[static_cast<size_t>(i)]; }

  std::vector<Question> questions_;
  bool normalised_, norm_first_;
};

Question question_of(const std::string& context, const std::vector<std::string>& choices, int64_t gold) {
  if (choices.size() < 2) throw RowError("has " + std::to_string(choices.size()) + " choices; wanted at least 2");
  if (gold < 0 || gold >= static_cast<int64_t>(choices.size()))
    throw RowError("names choice " + std::to_string(gold) + " as the right one of " + std::to_string(choices.size()));
  Question question;
  question.gold = static_cast<size_t>(gold);
  for (const std::string& choice : choices) {
    if (choice.empty()) throw RowError("has an empty choice");
    question.choices.push_back(continuation_request(context, " " + choice));
    question.lengths.push_back(static_cast<double>(characters(choice)));
  }
  return question;
}

// A row of the public set, or of one that has the prompt made already (query, choices, gold).
Question arc_question(const Json& row) {
  if (row.contains("query")) return question_of(text_field(row, "query"), list_field(row, "choices"), integer_field(row, "gold"));
  if (!row.contains("choices") || !row["choices"].is_object()) throw RowError("has no object at \"choices\"; wanted text and label in it");
  const std::vector<std::string> labels = list_field(row["choices"], "label");
  const auto gold = std::find(labels.begin(), labels.end(), text_field(row, "answerKey")) - labels.begin();
  return question_of("Question: " + text_field(row, "question") + "\nAnswer:", list_field(row["choices"], "text"), gold);
}

// Removes the traces of WikiHow's mark-up.
std::string hellaswag_text(std::string_view raw) {
  const std::string text = replaced(strip(raw), " [title]", ". ");
  std::string kept;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : std::string::npos;
    if (end != std::string::npos && text[end] == ']') {
      at = end + 1;
    } else {
      kept += text[at++];
    }
  }
  return replaced(kept, "  ", " ");
}

Question hellaswag_question(const Json& row) {
  const std::string query =
      text_field(row, "activity_label") + ": " + text_field(row, "ctx_a") + " " + capitalized(text_field(row, "ctx_b"));
  std::vector<std::string> endings;
  for (const std::string& ending : list_field(row, "endings")) endings.push_back(hellaswag_text(ending));
  return question_of(hellaswag_text(query), endings, integer_field(row, "label"));
}

// The text after the blank, once with each option in the blank before it.
Question winogrande_question(const Json& row) {
  const std::string sentence = text_field(row, "sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) throw RowError("has no _ in its sentence");
  std::string rest = " ";
  rest += strip(std::string_view(sentence).substr(blank + 1));
  const int64_t answer = integer_field(row, "answer");
  if (answer != 1 && answer != 2) throw RowError("has the answer " + std::to_string(answer) + "; wanted 1 or 2");
  Question question;
  question.gold = static_cast<size_t>(answer - 1);
  for (const char* option : {"option1", "option2"}) {
    question.choices.push_back(continuation_request(sentence.substr(0, blank) + text_field(row, option), rest));
    question.lengths.push_back(1);
  }
  return question;
}

std::vector<Question> read(const TaskInput& input, const std::filesystem::path& path, Question (*question)(const Json&)) {
  std::vector<Question> questions;
  input.files.lines(path, [&](const Json& row) { questions.push_back(question(row)); });
  return questions;
}

}  // namespace

std::unique_ptr<Task> load_arc(const TaskInput& input, const TaskKind& kind) {
  return std::make_unique<MultipleChoice>(read(input, input.files.find(kind.files.front()), arc_question), true,
                                          kind.name == "arc_challenge");
}

std::unique_ptr<Task> load_hellaswag(const TaskInput& input, const TaskKind& kind) {
  return std::make_unique<MultipleChoice>(read(input, input.files.find(kind.files.front()), hellaswag_question), true, true);
}

std::unique_ptr<Task> load_winogrande(const TaskInput& input, const TaskKind& kind) {
  return std::make_unique<MultipleChoice>(read(input, input.files.find(kind.files.front()), winogrande_question), false, false);
}

std::unique_ptr<Task> load_piqa(const TaskInput& input, const TaskKind& kind) {
  const std::filesystem::path path = input.files.find(kind.files.front());
  std::vector<int64_t> labels;  // from a file of their own, if the rows have none
  std::vector<Question> questions;
  bool own = true;
  input.files.lines(path, [&](const Json& row) {
    own = own && row.contains("label");
    const int64_t label = own ? integer_field(row, "label") : 0;
    questions.push_back(
        question_of("Question: " + text_field(row, "goal") + "\nAnswer:", {text_field(row, "sol1"), text_field(row, "sol2")}, label));
  });
  if (own) return std::make_unique<MultipleChoice>(std::move(questions), true, false);
  const std::filesystem::path beside = input.files.find(kind.files.at(1));
  input.files.text_lines(beside, [&](const std::string& line) {
    if (line != "0" && line != "1") throw RowError("is not a label; wanted 0 or 1");
    labels.push_back(line == "1" ? 1 : 0);
  });
  if (labels.size() != questions.size()) {
    throw io::FileError(beside, "holds " + std::to_string(labels.size()) + " labels, " + path.string() + " " +
                                    std::to_string(questions.size()) + " questions");
  }
  for (size_t i = 0; i < questions.size(); ++i) questions[i].gold = static_cast<size_t>(labels[i]);
  return std::make_unique<MultipleChoice>(std::move(questions), true, false);
}

}  // namespace cyfa::eval
