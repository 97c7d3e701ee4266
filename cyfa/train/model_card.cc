#include "cyfa/train/model_card.h"

#include <array>
#include <cstdio>

namespace cyfa {
namespace {

std::string plain(double value) {
  std::array<char, 40> text = {};
  std::snprintf(text.data(), text.size(), "%.5g", value);
  return text.data();
}

// Text for a cell of a Markdown table: on one line, without bars and back quotes.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '|' || c == '`' ? '_' : c;
  return out;
}

}  // namespace

std::string model_card(const CausalLM& model, const RunFacts& facts, const Recipe& recipe, const StepRecord& record) {
  const ModelConfig& config = model.config();
  const std::string type = config.kind->model_type;
  std::string out = "---\nlibrary_name: cyfa\npipeline_tag: text-generation\ntags:\n- cyfa\n- " + type + "\n---\n\n";
  out += "# " + type + ", " + plain(static_cast<double>(model.table().numel()) * 1e-6) + " million parameters\n\n";
  out += "A language model trained with `cyfa train`, after step " + std::to_string(record.step) + " of " + std::to_string(recipe.steps) +
         ".\n\n| | |\n|---|---|\n";
  const auto row = [&](const std::string& name, const std::string& value) { out += "| " + name + " | " + cell(value) + " |\n"; };
  row("layers, width", std::to_string(config.layer_types.size()) + ", " + std::to_string(config.backbone.hidden_size));
  row("vocabulary", std::to_string(config.vocab_size) + (facts.bytes               ? ", bytes"
                                                         : facts.tokenizer.empty() ? ", no tokenizer in this folder"
                                                                                   : ", tokenizer.model"));
  if (!facts.data.empty()) {
    row("training data", facts.data + ", " + std::to_string(facts.data_tokens) + " tokens, hash " + facts.data_hash);
  }
  row("trained on", std::to_string(record.tokens) + " tokens: " + std::to_string(record.step) + " steps of " +
                        std::to_string(recipe.batch) + " sequences of " + std::to_string(recipe.context));
  row("optimizer", "AdamW, peak learning rate " + plain(recipe.rate) + ", " + recipe.schedule + ", weight decay " +
                       plain(recipe.weight_decay) + ", " + recipe.dtype);
  if (record.loss) row("training loss", plain(*record.loss) + " nats per token at the last step");
  if (record.eval_loss) row("validation loss", plain(*record.eval_loss) + " nats per token");
  out += "\n`config.json` has the architecture, `step.json` and `optimizer.safetensors` the state of the training.\n\n```\n";
  out += "cyfa generate . -p \"Once upon a time\"        # continue a text\n";
  out += "cyfa train NEW_RUN model=. data=DATA ...    # continue the training in a new run\n```\n";
  return out;
}

}  // namespace cyfa
