// The model card of a checkpoint: README.md with the front matter that Hugging Face reads. Written by RunFolder::save().
#pragma once

#include <string>

#include "cyfa/train/run_folder.h"

namespace cyfa {

// What the model is, what it was trained on and how far, and how to run it.
std::string model_card(const CausalLM& model, const RunFacts& facts, const Recipe& recipe, const StepRecord& record);

}  // namespace cyfa
