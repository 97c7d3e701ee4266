// The loaders of all tasks, for registry.cc.
#pragma once

#include "cyfa/eval/task.h"

namespace cyfa::eval {

// perplexity.cc
std::unique_ptr<Task> load_lambada(const TaskInput& input, const TaskKind& kind);

}  // namespace cyfa::eval
