// RULER's QA tasks: a question among documents, of which one (SQuAD) or several (HotpotQA) answer it. The user brings the files.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cyfa/eval/ruler_makers.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"

namespace cyfa::eval {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(std::string_view json, const std::filesystem::path& path, std::string_view what) {
  return io::parse_json(json, path, {.what = what, .bytes = size_t{256} << 20, .values = size_t{1} << 24, .depth = 16});
}

// Calls `read` and turns the JSON library's errors, for a key that is missing or has a value of another type, into one for the file.
template <class F>
QaSource checked(const std::filesystem::path& path, const std::string& wanted, F read) {
  QaSource source;
  try {
    source = read();
  } catch (const nlohmann::json::exception&) {
    throw io::FileError(path, "has not the form of " + wanted);
  }
  if (source.questions.empty()) throw io::FileError(path, "holds no question with an answer; wanted " + wanted);
  return source;
}

// Numbers documents in sorted order, and returns the number of each.
std::map<std::string, int64_t> numbered_documents(const std::set<std::string>& all, QaSource& source) {
  source.documents.assign(all.begin(), all.end());
  std::map<std::string, int64_t> number;
  for (const std::string& document : source.documents) number.emplace(document, static_cast<int64_t>(number.size()));
  return number;
}

// "title\nsentence 1sentence 2..." of a document of HotpotQA
std::string hotpot_document(const Json& pair) {
  std::string text = pair.at(0).get<std::string>() + "\n";
  for (const Json& sentence : pair.at(1)) text += sentence.get<std::string>();
  return text;
}

class QuestionMaker final : public SampleMaker {
 public:
  QuestionMaker(const RulerOptions& options, const QaSource& source) : source_(source), seed_(options.seed) {}

  int64_t smallest() const override { return 1; }
  int64_t step() const override { return 10; }

  // The documents that answer the question are always among them, even if `size` is smaller.
  RulerSample make(int64_t index, int64_t size, Draws draws) const override {
    const QaSource::Question& question = source_.questions.at(static_cast<size_t>(index));
    std::vector<int64_t> chosen = documents(question, size, draws);
    Draws(seed_, "qa").shuffle(chosen);  // the same permutation in every sample
    RulerSample sample;
    constexpr std::string_view kTask =
        "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n";
    sample.input = std::string(kTask) + "The following are given documents.\n\n";
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (i > 0) sample.input += "\n\n";
      sample.input += "Document " + std::to_string(i + 1) + ":\n" + source_.documents[static_cast<size_t>(chosen[i])];
    }
    sample.input += "\n\n" + std::string(kTask) + "Question: " + question.text;
    sample.answer_prefix = " Answer:";
    sample.outputs = question.answers;
    return sample;
  }

 private:
  // Its own, then those of the same article, then others; all of them and again from the first if the source has too few.
  std::vector<int64_t> documents(const QaSource::Question& question, int64_t size, Draws& draws) const {
    const auto all = static_cast<int64_t>(source_.documents.size());
    std::vector<int64_t> chosen = question.documents;
    if (size >= all) {
      chosen.clear();
      for (int64_t i = 0; i < size; ++i) chosen.push_back(i % all);
      return chosen;
    }
    const auto missing = [&] { return static_cast<size_t>(std::max<int64_t>(0, size - static_cast<int64_t>(chosen.size()))); };
    const auto add = [&](std::vector<int64_t> some, size_t count) {
      draws.shuffle(some, count);
      chosen.insert(chosen.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(std::min(count, some.size())));
    };
    add(question.related, missing());
    if (missing() == 0) return chosen;
    const std::set<int64_t> taken(chosen.begin(), chosen.end());
    std::vector<int64_t> others;
    for (int64_t i = 0; i < all; ++i) {
      if (!taken.contains(i)) others.push_back(i);
    }
    add(std::move(others), missing());
    return chosen;
  }

  const QaSource& source_;
  uint64_t seed_;
};

}  // namespace

QaSource read_squad(std::string_view text, const std::filesystem::path& path) {
  const Json json = parsed(text, path, "a SQuAD file");
  return checked(
      path, "SQuAD 2.0: {\"data\": [{\"paragraphs\": [{\"context\", \"qas\": [{\"question\", \"answers\": [{\"text\"}]}]}]}]}", [&] {
        QaSource source;
        std::set<std::string> all;
        for (const Json& article : json.at("data")) {
          for (const Json& paragraph : article.at("paragraphs")) all.insert(paragraph.at("context").get<std::string>());
        }
        const std::map<std::string, int64_t> number = numbered_documents(all, source);
        for (const Json& article : json.at("data")) {
          std::vector<int64_t> of_article;
          for (const Json& paragraph : article.at("paragraphs"))
            of_article.push_back(number.at(paragraph.at("context").get<std::string>()));
          size_t place = 0;
          for (const Json& paragraph : article.at("paragraphs")) {
            const int64_t own = of_article[place++];
            for (const Json& asked : paragraph.at("qas")) {
              if (asked.value("is_impossible", false)) continue;
              QaSource::Question q{asked.at("question").get<std::string>(), {}, {own}, {}};
              for (const Json& answer : asked.at("answers")) q.answers.push_back(answer.at("text").get<std::string>());
              std::copy_if(of_article.begin(), of_article.end(), std::back_inserter(q.related), [&](int64_t d) { return d != own; });
              if (!q.answers.empty()) source.questions.push_back(std::move(q));
            }
          }
        }
        return source;
      });
}

QaSource read_hotpotqa(std::string_view text, const std::filesystem::path& path) {
  const Json json = parsed(text, path, "a HotpotQA file");
  return checked(path, "HotpotQA: [{\"question\", \"answer\", \"context\": [[title, [sentence, ...]], ...]}, ...]", [&] {
    QaSource source;
    std::set<std::string> all;
    for (const Json& row : json) {
      for (const Json& pair : row.at("context")) all.insert(hotpot_document(pair));
    }
    const std::map<std::string, int64_t> number = numbered_documents(all, source);
    for (const Json& row : json) {
      QaSource::Question q{row.at("question").get<std::string>(), {row.at("answer").get<std::string>()}, {}, {}};
      for (const Json& pair : row.at("context")) q.documents.push_back(number.at(hotpot_document(pair)));
      source.questions.push_back(std::move(q));
    }
    return source;
  });
}

std::unique_ptr<SampleMaker> question_maker(const RulerOptions& options, const QaSource& source) {
  return std::make_unique<QuestionMaker>(options, source);
}

}  // namespace cyfa::eval
