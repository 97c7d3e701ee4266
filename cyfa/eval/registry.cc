// The tasks, one line each.
#include "cyfa/eval/task.h"
#include "cyfa/eval/tasks.h"

namespace cyfa::eval {

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = [] {
    std::vector<TaskKind> all = {
      {"lambada_openai", "the last word of passages from novels, as OpenAI processed them", {"lambada"}, load_lambada,
       {{{"lambada_openai.jsonl", "lambada_test.jsonl"}, "EleutherAI/lambada_openai (test) on Hugging Face", "JSON lines with text"}}},
      {"lambada_standard", "the last word of passages from novels, the original lower-case text", {"paper", "lambada"}, load_lambada,
       {{{"lambada_standard.jsonl", "lambada_test_plain_text.txt"}, "cimec/lambada (test) on Hugging Face",
         "JSON lines with text; lambada_test_plain_text.txt, one passage a line, is read too"}}},
    };
    for (auto* family : {ruler_tasks, longbench_tasks}) {
      for (TaskKind& kind : family()) all.push_back(std::move(kind));
    }
    return all;
  }();
  return kinds;
}

}  // namespace cyfa::eval
