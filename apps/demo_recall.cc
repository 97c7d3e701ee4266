// cyfa demo recall: trains a CyFA and an attention window with the same state on associative recall, side by side, shows an example with
// both answers, and draws where the CyFA keeps the pairs and how it finds them.
#include <unistd.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "cyfa/draw/axis.h"
#include "cyfa/draw/figure.h"
#include "cyfa/train/recall.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string picture;
  int64_t pairs = 4, gap = 2 + RecallModels::kReach, steps = 800;
  double rate = 3e-3;
  uint64_t seed = 1;
};

constexpr double kEnough = 0.99;
constexpr double kStop = 0.998;
constexpr int64_t kEvery = 25;  // steps between evaluations

// A model in training. The trainer runs some steps at a time, so that two models learn side by side.
class Pupil {
 public:
  Pupil(const ModelConfig& config, const RecallTask& task, const Recipe& recipe)
      : model_(initialised(config, recipe.seed)),
        trainer_(
            model_, recipe, [task](int64_t i) { return task.at(i); }, {}, nullptr),
        task_(task) {
    trainer_.should_stop = [this] { return trainer_.step() % kEvery == 0; };
  }

  const CausalLM& model() const { return model_; }
  int64_t step() const { return trainer_.step(); }
  // Trains to the next evaluation.
  double learn() {
    trainer_.run();
    const double accuracy = recall_accuracy(model_, task_, 2);
    history_.push_back({static_cast<double>(trainer_.step()), 100 * accuracy});
    return accuracy;
  }
  const std::vector<draw::Point>& history() const { return history_; }  // steps and percentages

 private:
  static CausalLM initialised(const ModelConfig& config, uint64_t seed) {
    CausalLM model(config);
    model.initialise(seed);
    return model;
  }

  CausalLM model_;
  Trainer trainer_;
  RecallTask task_;
  std::vector<draw::Point> history_;
};

std::string bar(double accuracy) {
  std::string out(24, ' ');
  std::fill_n(out.begin(), std::lround(accuracy * 24), '#');
  return out;
}

// Whether the window model's answers cannot depend on the pairs.
bool out_of_reach(const RecallTask& task) { return task.gap >= RecallModels::kReach; }

void print_task(const RecallTask& task, const CausalLM& flow, const CausalLM& window) {
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  std::cout << text(
      "The task: %lld pairs of a key and a value are shown once, then %lld tokens of filler, then each key is asked for its value.\n"
      "Two models learn it from the same batches. Both have %lld layers of width 64 and a state of %s numbers in each layer:\n"
      "  CyFA    %3.0f thousand parameters; %lld slots a head, and a clock that decides how fast they move\n"
      "  window  %3.0f thousand parameters; softmax attention to the last %lld tokens\n",
      number(task.pairs), number(task.gap), number(RecallModels::kLayers),
      draw::grouped(static_cast<double>(flow.memory_scalars())).c_str(), static_cast<double>(flow.table().numel()) * 1e-3,
      number(RecallModels::kSlots), static_cast<double>(window.table().numel()) * 1e-3, number(RecallModels::kSlots));
  if (out_of_reach(task)) {
    std::cout << text(
        "The window cannot learn it: two layers of %lld tokens reach %lld tokens back, and the pairs lie at least %lld back. The CyFA "
        "can:\n"
        "its clock need not run while filler passes, so the pairs stay in its slots.\n",
        number(RecallModels::kSlots), number(RecallModels::kReach), number(task.gap + 1));
  }
}

// The first sequence of a batch that neither model was trained on.
at::Tensor example(const RecallTask& task) {
  RecallTask fresh = task;
  fresh.seed += 1;
  return fresh.at(0).inputs[0];
}

void print_example(const RecallTask& task, const at::Tensor& ids, const CausalLM& flow, const CausalLM& window) {
  const auto name = [&](int64_t at) { return task.name(ids[at].item<int64_t>()); };
  const int64_t shown = std::min<int64_t>(task.pairs, 12);
  std::cout << "\nan example it was not trained on\n  shown   ";
  for (int64_t i = 0; i < shown; ++i) std::cout << text("%4s=%-3s", name(2 * i).c_str(), name(2 * i + 1).c_str());
  std::cout << text("%s then %lld tokens of filler\n  asked   ", shown < task.pairs ? " ..." : "", static_cast<long long>(task.gap));
  for (int64_t i = 0; i < shown; ++i) std::cout << text("%4s?   ", name(task.first_query() + 2 * i).c_str());
  for (const auto& [who, model] : {std::pair("CyFA", &flow), std::pair("window", &window)}) {
    const at::Tensor answers = recall_answers(*model, task, ids.unsqueeze(0))[0];
    std::cout << text("\n  %-8s", who);
    int64_t right = 0;
    for (int64_t i = 0; i < task.pairs; ++i) {
      const auto answer = answers[i].item<int64_t>();
      const bool correct = answer == ids[task.first_query() + 2 * i + 1].item<int64_t>();
      right += correct ? 1 : 0;
      if (i < shown) std::cout << text("%4s %-3s", task.name(answer).c_str(), correct ? "ok" : "no");
    }
    std::cout << text("  %lld of %lld", static_cast<long long>(right), static_cast<long long>(task.pairs));
  }
  std::cout << '\n';
}

draw::Heatmap heatmap(const std::string& title, const at::Tensor& x) {
  const at::Tensor values = x.to(at::kDouble).contiguous();
  draw::Heatmap map;
  map.title = title;
  map.rows = x.size(0);
  map.columns = x.size(1);
  map.values.assign(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
  map.scale = draw::ColorScale::kPaper;
  map.low = 0;
  map.high = 1;
  return map;
}

// The path of each pair through the slots; a line is interrupted where the clock takes it from the last slot back to the first.
std::vector<draw::Line> pair_lines(const RecallTask& task, const at::Tensor& ids, const RecallReads& reads) {
  std::vector<draw::Line> lines;
  const auto m = static_cast<double>(reads.slots.size(0));
  for (int64_t pair = 0; pair < task.pairs; ++pair) {
    draw::Line line;
    line.name = task.name(ids[2 * pair].item<int64_t>()) + " = " + task.name(ids[2 * pair + 1].item<int64_t>());
    line.color = draw::line_color(static_cast<size_t>(pair));
    for (int64_t t = 0; t < task.context(); ++t) {
      double age = reads.ages[pair][t].item<double>();
      if (age > m - 0.5) age -= m;  // nearest to slot 0
      if (!line.points.empty() && age < line.points.back().y - m / 2) line.points.push_back({static_cast<double>(t), std::nan("")});
      line.points.push_back({static_cast<double>(t), age});
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

draw::Figure figure(const RecallTask& task, const Pupil& flow, const Pupil& window, const at::Tensor& ids) {
  const RecallReads reads = recall_reads(flow.model(), task, ids);
  // Keys and values in the colour of their pair.
  std::vector<draw::CellName> tokens;
  std::vector<draw::CellName> pairs, queries;
  const auto name = [&](int64_t at) { return task.name(ids[at].item<int64_t>()); };
  const auto color = [](int64_t pair) { return draw::line_color(static_cast<size_t>(pair)); };
  for (int64_t pair = 0; pair < task.pairs; ++pair) {
    for (const int64_t at : {2 * pair, 2 * pair + 1}) tokens.push_back({name(at), color(pair)});
    pairs.push_back({name(2 * pair) + " = " + name(2 * pair + 1), color(pair)});
  }
  for (int64_t i = 0; i < task.gap; ++i) tokens.push_back({"·", draw::kFaint});
  for (int64_t query = 0; query < task.pairs; ++query) {
    const int64_t at = task.first_query() + 2 * query;
    const draw::Color of_pair = color(reads.order[query].item<int64_t>());
    tokens.push_back({name(at) + "?", of_pair});
    tokens.push_back({name(at + 1), of_pair});
    queries.push_back({name(at) + "?", of_pair});
  }
  const std::string head = text("layer %lld, head %lld", static_cast<long long>(reads.layer), static_cast<long long>(reads.head));

  draw::LinePlot learning{.title = "Correct answers while both models learn",
                          .x_label = "training steps",
                          .y_label = "% correct",
                          .lines = {{.name = text("CyFA, %lld slots", static_cast<long long>(RecallModels::kSlots)),
                                     .points = flow.history(),
                                     .color = draw::line_color(0),
                                     .width = 2.6},
                                    {.name = text("attention to the last %lld tokens", static_cast<long long>(RecallModels::kSlots)),
                                     .points = window.history(),
                                     .color = draw::line_color(1),
                                     .width = 2.6}},
                          .y_low = 0,
                          .y_high = 100,
                          .x_ticks = {},
                          .plot_height = 170};
  draw::Heatmap gates = heatmap("What each token does to the memory of " + head, at::stack({reads.beta, reads.delta}));
  gates.row_names = {{"write strength", draw::kInk}, {"clock moves by", draw::kInk}};
  gates.column_names = tokens;
  draw::Heatmap slots = heatmap("Its slots: where each pair lies (lines), and what each token reads (dark)", reads.slots);
  slots.row_label = "slot";
  slots.column_label = "the sequence, token by token: pairs, filler, questions with their answers";
  slots.column_names = tokens;
  slots.lines = pair_lines(task, ids, reads);
  slots.plot_height = 260;
  draw::Heatmap found = heatmap("Its reads: weight of each pair in what each question reads", reads.pairs);
  found.column_label = "question";
  found.row_label = "pair";
  found.row_names = pairs;
  found.column_names = queries;
  return {.title = "Recall over a gap that an attention window cannot bridge",
          .panels = {learning, gates, slots, found},
          .notes = {text(
              "Of all heads, this one gives the pairs that are asked for most weight. It writes a pair %lld tokens after its key, when its "
              "convolutions hold both key and value; there the pair's line begins. A question finds its answer where a dark "
              "cell lies on the line of the question's colour: the softmax reads the slot that holds the pair. What this head does not "
              "find, another does.",
              static_cast<long long>(reads.lag))},
          .description = ""};
}

int run_demo(const Options& options) {
  RecallTask task;
  task.pairs = options.pairs;
  task.gap = options.gap;
  task.keys = task.values = std::max<int64_t>(26, 2 * options.pairs);
  task.seed = options.seed;
  Recipe recipe;
  recipe.model = "recall";
  recipe.steps = options.steps;
  recipe.batch = task.batch;
  recipe.context = task.context();
  recipe.rate = options.rate;
  recipe.warmup = 50;
  recipe.seed = options.seed;
  Pupil flow(RecallModels::cyclic_flow(task), task, recipe), window(RecallModels::window(task), task, recipe);
  print_task(task, flow.model(), window.model());
  std::cout << text("\n%10s  %-30s  %s\n", "", "CyFA", "window") << std::flush;
  double accuracy = 0;
  for (bool done = false; !done;) {
    accuracy = flow.learn();
    const double of_window = window.learn();
    // A window that can learn the task has its chance too.
    done = flow.step() >= options.steps || (accuracy >= kStop && (out_of_reach(task) || of_window >= kStop));
    if (!done && flow.step() % (2 * kEvery) != 0) continue;
    std::cout << text("step %4lld  %5.1f%% %s  %5.1f%% %s\n", static_cast<long long>(flow.step()), 100 * accuracy, bar(accuracy).c_str(),
                      100 * of_window, bar(of_window).c_str())
              << std::flush;
  }
  accuracy = recall_accuracy(flow.model(), task, 20);
  const double baseline = recall_accuracy(window.model(), task, 20);
  std::cout << text("after %lld steps, of %lld new questions: CyFA %.1f%% correct, window %.1f%% (guessing: %.1f%%)\n",
                    static_cast<long long>(flow.step()), static_cast<long long>(20 * task.batch * task.pairs), 100 * accuracy,
                    100 * baseline, 100.0 / static_cast<double>(task.values));
  const at::Tensor ids = example(task);
  print_example(task, ids, flow.model(), window.model());
  if (!options.picture.empty()) {
    const WriteGuard guard;
    draw::write_figure(options.picture, figure(task, flow, window, ids));
    std::cout << "\npicture written to " << options.picture << '\n';
  }
  return accuracy >= kEnough ? kDone : kCheckFailed;
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  CLI::App* demo = app.add_subcommand("demo", "Train small models to watch them learn.");
  demo->require_subcommand(1);
  CLI::App* command =
      demo->add_subcommand("recall", "Train a CyFA and an attention window of the same size to recall values by their keys, side by side.");
  auto options = std::make_shared<Options>();
  command->add_option("--pairs", options->pairs, "Key-value pairs per sequence")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--gap", options->gap, "Filler tokens between the pairs and the questions")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command
      ->add_option("--steps", options->steps,
                   "Largest number of training steps; training ends at 99.8% correct, of both models where the window can see the pairs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--rate", options->rate, "Learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  add_picture(command, &options->picture);
  command->add_option("--seed", options->seed, "Random seed of the parameters and of the task")->capture_default_str();
  command->footer("Exit status: 0 the CyFA answers at least 99% correctly, 1 fewer, 2 bad input or an error.");
  command->callback([&action, options] { action = [options] { return run_demo(*options); }; });
}

}  // namespace cyfa::app
