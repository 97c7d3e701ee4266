// See longbench.h.
#include "cyfa/eval/longbench.h"

#include <algorithm>

#include "cyfa/eval/python_text.h"
#include "cyfa/eval/text.h"
#include "cyfa/eval/text_metrics.h"

namespace cyfa::eval {

const std::vector<LongBenchKind>& longbench_kinds() {
  static const std::vector<LongBenchKind> kinds = {
      {.name = "narrativeqa",
       .about = "questions about books and film scripts",
       .prompt = "You are given a story, which can be either a novel or a movie script, and a question. Answer the question "
                 "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\n"
                 "Story: {context}\n\n"
                 "Now, answer the question based on the story asconcisely as you can, using a single phrase if possible. Do not "
                 "provide any explanation.\n\n"
                 "Question: {input}\n\n"
                 "Answer:",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 128},
      {.name = "qasper",
       .about = "questions about papers",
       .prompt = "You are given a scientific article and a question. Answer the question as concisely as you can, using a single "
                 "phrase or sentence if possible. If the question cannot be answered based on the information in the article, write "
                 "\"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide "
                 "any explanation.\n\n"
                 "Article: {context}\n\n "
                 "Answer the question based on the above article as concisely as you can, using a single phrase or sentence if "
                 "possible. If the question cannot be answered based on the information in the article, write \"unanswerable\". If "
                 "the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
                 "Question: {input}\n\n"
                 "Answer:",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 128},
      {.name = "multifieldqa_en",
       .about = "questions about articles of many fields",
       .prompt = "Read the following text and answer briefly.\n\n"
                 "{context}\n\n"
                 "Now, answer the following question based on the above text, only give me the answer and do not output any other "
                 "words.\n\n"
                 "Question: {input}\n"
                 "Answer:",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 64},
      {.name = "hotpotqa",
       .about = "questions that take two passages",
       .prompt = "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
                 "The following are given passages.\n"
                 "{context}\n\n"
                 "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
                 "Question: {input}\n"
                 "Answer:",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 32},
      {.name = "2wikimqa",
       .about = "questions that take two articles",
       .prompt = "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
                 "The following are given passages.\n"
                 "{context}\n\n"
                 "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
                 "Question: {input}\n"
                 "Answer:",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 32},
      {.name = "musique",
       .about = "questions that take up to four paragraphs",
       .prompt = "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
                 "The following are given passages.\n"
                 "{context}\n\n"
                 "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
                 "Question: {input}\n"
                 "Answer:",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 32},
      {.name = "gov_report",
       .about = "summaries of government reports",
       .prompt = "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
                 "Report:\n"
                 "{context}\n\n"
                 "Now, write a one-page summary of the report.\n\n"
                 "Summary:",
       .metric = LongBenchMetric::kRougeL,
       .new_tokens = 512},
      {.name = "qmsum",
       .about = "summaries of meetings, for a query",
       .prompt = "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or "
                 "more sentences.\n\n"
                 "Transcript:\n"
                 "{context}\n\n"
                 "Now, answer the query based on the above meeting transcript in one or more sentences.\n\n"
                 "Query: {input}\n"
                 "Answer:",
       .metric = LongBenchMetric::kRougeL,
       .new_tokens = 512},
      {.name = "multi_news",
       .about = "summaries of several news articles",
       .prompt = "You are given several news passages. Write a one-page summary of all news. \n\n"
                 "News:\n"
                 "{context}\n\n"
                 "Now, write a one-page summary of all the news.\n\n"
                 "Summary:",
       .metric = LongBenchMetric::kRougeL,
       .new_tokens = 512},
      {.name = "trec",
       .about = "types of questions, from examples",
       .prompt = "Please determine the type of the question below. Here are some examples of questions.\n\n"
                 "{context}\n"
                 "{input}",
       .metric = LongBenchMetric::kClassification,
       .new_tokens = 64,
       .first_line = true},
      {.name = "triviaqa",
       .about = "questions about a passage, with examples",
       .prompt = "Answer the question based on the given passage. Only give me the answer and do not output any other words. The "
                 "following are some examples.\n\n"
                 "{context}\n\n"
                 "{input}",
       .metric = LongBenchMetric::kQaF1,
       .new_tokens = 32,
       .first_line = true},
      {.name = "samsum",
       .about = "summaries of dialogues, from examples",
       .prompt = "Summarize the dialogue into a few short sentences. The following are some examples.\n\n"
                 "{context}\n\n"
                 "{input}",
       .metric = LongBenchMetric::kRougeL,
       .new_tokens = 128,
       .first_line = true,
       .ends_at_newline = true},
      {.name = "lcc",
       .about = "the next line of a code file",
       .prompt = "Please complete the code given below. \n"
                 "{context}Next line of code:\n",
       .metric = LongBenchMetric::kCodeSimilarity,
       .new_tokens = 64},
      {.name = "repobench-p",
       .about = "the next line of a code file, with files it uses",
       .prompt = "Please complete the code given below. \n"
                 "{context}{input}Next line of code:\n",
       .metric = LongBenchMetric::kCodeSimilarity,
       .new_tokens = 64},
      {.name = "passage_count",
       .about = "how many different paragraphs there are",
       .prompt = "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read these "
                 "paragraphs and determine how many unique paragraphs there are after removing duplicates. In other words, how many "
                 "non-repeating paragraphs are there in total?\n\n"
                 "{context}\n\n"
                 "Please enter the final count of unique paragraphs after removing duplicates. The output format should only contain "
                 "the number, such as 1, 2, 3, and so on.\n\n"
                 "The final answer is: ",
       .metric = LongBenchMetric::kCount,
       .new_tokens = 32,
       .paper = false},
      {.name = "passage_retrieval_en",
       .about = "which paragraph an abstract is of",
       .prompt = "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract is "
                 "from.\n\n"
                 "{context}\n\n"
                 "The following is an abstract.\n\n"
                 "{input}\n\n"
                 "Please enter the number of the paragraph that the abstract is from. The answer format must be like \"Paragraph 1\", "
                 "\"Paragraph 2\", etc.\n\n"
                 "The answer is: ",
       .metric = LongBenchMetric::kParagraph,
       .new_tokens = 32,
       .paper = false},
  };
  return kinds;
}

const char* metric_name(LongBenchMetric metric) {
  switch (metric) {
    case LongBenchMetric::kQaF1: return "f1";
    case LongBenchMetric::kRougeL: return "rouge_l";
    case LongBenchMetric::kClassification: return "classification";
    case LongBenchMetric::kCodeSimilarity: return "code_similarity";
    case LongBenchMetric::kCount: return "count_match";
    case LongBenchMetric::kParagraph: return "paragraph_match";
  }
  return "unknown";
}

std::string longbench_prompt(const LongBenchKind& kind, std::string_view context, std::string_view input) {
  const std::string_view form = kind.prompt;
  std::string prompt;
  for (size_t at = 0; at < form.size();) {
    const std::string_view rest = form.substr(at);
    if (rest.starts_with("{context}")) {
      prompt += context;
      at += 9;
    } else if (rest.starts_with("{input}")) {
      prompt += input;
      at += 7;
    } else {
      prompt += form[at++];
    }
  }
  return prompt;
}

std::string without_middle(const std::string& prompt, int64_t most, const Encoder& encoder, int64_t& cut) {
  const std::vector<int64_t> ids = encoder.encode(prompt);
  const auto half = static_cast<size_t>(most / 2);
  cut = 0;
  if (static_cast<int64_t>(ids.size()) <= most) return prompt;
  cut = static_cast<int64_t>(ids.size() - 2 * half);
  return encoder.decode(std::span(ids).first(half)) + encoder.decode(std::span(ids).last(half));
}

double longbench_score(const LongBenchKind& kind, std::string_view generated, std::span<const std::string> answers,
                       std::span<const std::string> classes) {
  if (kind.first_line) {
    generated.remove_prefix(std::min(generated.find_first_not_of('\n'), generated.size()));
    generated = generated.substr(0, generated.find('\n'));
  }
  double best = 0;
  for (const std::string& answer : answers) {
    switch (kind.metric) {
      case LongBenchMetric::kQaF1: best = std::max(best, qa_f1(generated, answer)); break;
      case LongBenchMetric::kRougeL: best = std::max(best, rouge_l(generated, answer)); break;
      case LongBenchMetric::kClassification: best = std::max(best, classification(generated, answer, classes)); break;
      case LongBenchMetric::kCodeSimilarity: best = std::max(best, code_similarity(generated, answer)); break;
      case LongBenchMetric::kCount: best = std::max(best, count_match(generated, answer)); break;
      case LongBenchMetric::kParagraph: best = std::max(best, paragraph_match(generated, answer)); break;
    }
  }
  return best;
}

}  // namespace cyfa::eval
