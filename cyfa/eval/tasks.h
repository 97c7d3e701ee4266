// The loaders of all tasks, for registry.cc.
#pragma once

#include "cyfa/eval/task.h"

namespace cyfa::eval {

using Loaded = std::unique_ptr<Task>;

// lambada.cc
Loaded load_lambada(const TaskInput& input, const TaskKind& kind);
// multiple_choice.cc
Loaded load_arc(const TaskInput& input, const TaskKind& kind);
Loaded load_hellaswag(const TaskInput& input, const TaskKind& kind);
Loaded load_piqa(const TaskInput& input, const TaskKind& kind);
Loaded load_winogrande(const TaskInput& input, const TaskKind& kind);
// perplexity.cc
Loaded load_wikitext(const TaskInput& input, const TaskKind& kind);
Loaded load_text(const TaskInput& input, const TaskKind& kind);
Loaded load_positions(const TaskInput& input, const TaskKind& kind);
// recall.cc
Loaded load_recall(const TaskInput& input, const TaskKind& kind);
Loaded load_questions(const TaskInput& input, const TaskKind& kind);

// Entries of the registry for families of tasks.
std::vector<TaskKind> ruler_tasks();      // ruler_task.cc
std::vector<TaskKind> longbench_tasks();  // longbench_task.cc

}  // namespace cyfa::eval
