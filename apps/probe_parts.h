// The analyses of `cyfa probe`: each prints its table, adds rows of JSON and draws its pictures. apps/probe.cc reads the options and calls
// them in order.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "apps/output.h"
#include "cyfa/analysis/increments.h"
#include "cyfa/analysis/interventions.h"
#include "cyfa/analysis/reads.h"
#include "cyfa/draw/figure.h"

namespace cyfa::app {

// What the analyses work on and add to.
struct Probe {
  const CausalLM& model;
  const Weights w;
  const Tokenizer& tokenizer;
  std::string name;     // of the model, for titles
  at::Tensor ids;       // [N, T]: the sequences that are analysed
  at::Tensor held_out;  // [N', T]: the sequences for the interventions
  int64_t shift = 257;
  int64_t gradient_sequences = 4;  // at most
  int64_t page_tokens = 192;       // of the first sequence, shown on the page
  std::filesystem::path out;       // folder for pictures and the page; empty for none
  std::function<analysis::Progress(const std::string& what)> progress;

  // Results.
  bool prints = true;  // tables go to the standard output
  Json rows = Json::array();
  analysis::Increments increments = {};
  std::vector<analysis::HeadIncrements> by_head = {};
};

void probe_increments(Probe& probe);  // comes first: the others use its results
void probe_variance(Probe& probe);
void probe_interventions(Probe& probe);
void probe_ages(Probe& probe);
void probe_gradients(Probe& probe);  // for models without a clock too, and without increments
void probe_page(Probe& probe);       // nothing without an output folder

// Writes a picture to the output folder, if there is one.
void picture(const Probe& probe, const char* name, const draw::Figure& figure);

}  // namespace cyfa::app
