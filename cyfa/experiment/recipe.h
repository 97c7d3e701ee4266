// The recipe of an experiment, configs/experiments/NAME.toml: which models are compared, on what, with which learning rates and seeds.
// docs/experiments.md describes the file.
#pragma once

#include <optional>

#include "cyfa/model/config.h"
#include "cyfa/train/mqar.h"
#include "cyfa/train/recipe.h"

namespace cyfa::experiment {

// What the runs of an experiment do.
enum class Kind {
  kText,     // train on text, measure the loss on text that was not trained on
  kMqar,     // train on associative recall, measure the share of correct answers
  kNeedles,  // find needles in texts of several lengths, with the models of runs on text or with given ones
  kSpeed,    // time training steps, operators and decoding steps
};

// One of the things that are compared.
struct Variant {
  std::string name;
  Json config;                   // of its model; null for an operator
  Json op;                       // options of `cyfa bench op`; null for a model
  Json model;                    // of needles, a model that is given: "folder" and "hash"; null for one that is trained
  std::optional<double> stated;  // the paper's figure
  std::optional<double> x;       // its place on the x axis of a picture, such as its number of slots
};

// Evaluation of a model that was trained on text.
struct TextMeasures {
  int64_t length = 1;     // longest sequences, as a multiple of the training context
  int64_t sequences = 8;  // of that length
};

struct MqarPlan {
  MqarTask task;
  std::vector<MqarSegment> train, test;
  int64_t batch = 256, test_batch = 32, epochs = 64;
  double enough = 0.99;  // training ends when the pooled test accuracy exceeds it
};

struct NeedlesPlan {
  std::vector<std::string> tasks;  // of RULER
  std::vector<int64_t> lengths;    // of the texts, in tokens
  int64_t samples = 100;           // of each task and length
  uint64_t seed = 42;              // of the samples
};

struct SpeedPlan {
  int64_t tokens = 65536;         // of a training step or of an operator's call, at every length
  std::vector<int64_t> lengths;   // of the sequences
  std::vector<int64_t> contexts;  // tokens that a sequence has read before a decoding step is timed
  int repeats = 5;
};

// A recipe at one scale.
struct Experiment {
  std::string name, scale;
  std::string title, question;
  std::string stated;           // what Variant::stated is, and where the paper has it; empty if it states nothing
  bool more_is_better = false;  // of the stated figures
  std::string x_label;          // of Variant::x
  std::string reference;        // the variant that the others are compared with
  Kind kind = Kind::kText;
  std::vector<double> rates;
  std::vector<uint64_t> seeds;
  Recipe train;  // without model, data, rate and seed
  TextMeasures measures;
  MqarPlan mqar;
  NeedlesPlan needles;
  SpeedPlan speed;
  std::vector<Variant> variants;

  // `set` are assignments like those of `cyfa train`, and only= with names of variants, rates= and seeds= with lists. Throws io::FileError
  // for a recipe with an unknown key or a bad value, and std::invalid_argument for a bad assignment.
  static Experiment read(const std::filesystem::path& file, const std::string& scale, const std::vector<std::string>& set = {});
  // The scales that a recipe has.
  static std::vector<std::string> scales(const std::filesystem::path& file);
  static std::string title_of(const std::filesystem::path& file);
};

// The values of a training recipe that decide what a run computes, by name.
Json decisive_values(const Recipe& recipe);
void set_values(Recipe& recipe, const Json& values);

}  // namespace cyfa::experiment
