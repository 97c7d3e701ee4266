// The loaders of all tasks, for registry.cc.
#pragma once

#include "cyfa/eval/task.h"

namespace cyfa::eval {

// perplexity.cc
std::unique_ptr<Task> load_lambada(const TaskInput& input, const TaskKind& kind);

// Entries of the registry for families of tasks.
std::vector<TaskKind> ruler_tasks();      // ruler_task.cc
std::vector<TaskKind> longbench_tasks();  // longbench_task.cc

}  // namespace cyfa::eval
