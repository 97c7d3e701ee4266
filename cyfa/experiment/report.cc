#include "cyfa/experiment/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cyfa/experiment/report_parts.h"
#include "cyfa/io/atomic_file.h"

namespace cyfa::experiment {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

constexpr const char* kLossName = "held-out loss, nats per token";

// All runs of the plan that are finished.
std::vector<std::pair<Run, const Json*>> finished_runs(const Experiment& e, const Plan& plan, Results& results) {
  std::vector<std::pair<Run, const Json*>> all;
  for (const Variant& v : e.variants) {
    for (const Run& run : plan.all_runs(v, results)) {
      if (const Json* result = results.find(run)) all.emplace_back(run, result);
    }
  }
  return all;
}

std::string joined(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

template <class List>
std::string joined_numbers(const List& list) {
  std::string out;
  for (const auto& number : list) out += (out.empty() ? "" : ", ") + Json(number).dump();
  return out;
}

// The points of a key such as "by_position", averaged over runs; a point counts where all runs have it.
std::vector<draw::Point> mean_points(const std::vector<const Json*>& runs, const char* key, size_t column) {
  std::vector<draw::Point> out;
  for (size_t i = 0; !runs.empty(); ++i) {
    double x = 0, y = 0;
    for (const Json* run : runs) {
      const auto list = run->find(key);
      if (list == run->end() || i >= list->size() || !(*list)[i][column].is_number()) return out;
      x = (*list)[i][0].get<double>();
      y += (*list)[i][column].get<double>() / static_cast<double>(runs.size());
    }
    out.push_back({x, y});
  }
  return out;
}

// A line for each row that has the points, in colours of the order of the recipe.
std::vector<draw::Line> lines_of(const Experiment& e, const std::vector<Row>& rows, const char* key, size_t column, double width = 1.8,
                                 bool dots = false) {
  std::vector<draw::Line> lines;
  for (size_t i = 0; i < e.variants.size(); ++i) {
    for (const Row& row : rows) {
      if (row.variant != &e.variants[i]) continue;
      std::vector<draw::Point> points = mean_points(row.runs, key, column);
      if (points.empty()) continue;
      std::string name = row.variant->name;
      if (row.preliminary()) name += row.runs.size() == 1 ? " (1 seed)" : format(" (%zu seeds)", row.runs.size());
      lines.push_back(line_of(name, i, width, dots));
      lines.back().points = std::move(points);
    }
  }
  return lines;
}

class Report {
 public:
  Report(const fs::path& folder, const Experiment& e, const Plan& plan, Results& results)
      : folder_(folder), e_(e), plan_(plan), results_(results), rows_(rows_of(e, plan, results)), runs_(finished_runs(e, plan, results)) {}

  std::vector<std::string> write() {
    text_ = "# " + e_.title + "\n\n<!-- report of " + e_.name + ": runs.json -->\n\n";  // the marks of tables that a program writes
    if (!e_.question.empty()) text_ += paragraph(e_.question);
    conditions();
    switch (e_.kind) {
      case Kind::kText: training(kLossName); break;
      case Kind::kMqar: training("correct answers"); break;
      case Kind::kNeedles: needles(); break;
      case Kind::kSpeed: speed(); break;
    }
    fs::create_directories(folder_);
    write_text(folder_ / "report.md", text_ + "<!-- end of report of " + e_.name + " -->\n");
    write_text(folder_ / "metrics.json", metrics().dump(1) + "\n");
    std::vector<std::string> names = {"report.md", "metrics.json"};
    names.insert(names.end(), pictures_.begin(), pictures_.end());
    return names;
  }

 private:
  void picture(const std::string& name, const std::string& about, std::vector<draw::Panel> panels) {
    draw::Figure figure;
    figure.title = e_.title;
    figure.panels = std::move(panels);
    figure.description = about;
    fs::create_directories(folder_);
    draw::write_figure(folder_ / name, figure);
    pictures_.push_back(name);
    text_ += "![" + about + "](" + name + ")\n\n";
  }

  bool trains_on_text() const { return e_.kind == Kind::kText || (e_.kind == Kind::kNeedles && e_.variants.front().model.is_null()); }

  // How the runs were made, and what they cost.
  void conditions() {
    std::set<std::string> machines, commits, engines;
    double seconds = 0, tokens = 0;
    size_t shared = 0;
    for (const auto& [run, result] : runs_) {
      if (result->contains("machine")) machines.insert((*result)["machine"].get<std::string>());
      if (result->contains("commit")) commits.insert((*result)["commit"].get<std::string>());
      if (result->contains("from")) {
        ++shared;
        continue;
      }
      seconds += result->value("seconds", 0.0) / std::max(1.0, result->value("jobs", 1.0));
      tokens += result->value("tokens", 0.0);
    }
    Columns table({"", ""});
    table.add({"scale", e_.scale});
    if (const Json& set = results_.settings.value("set", Json::array()); !set.empty()) {
      std::string words;
      for (const Json& one : set) words += (words.empty() ? "`" : ", `") + one.get<std::string>() + "`";
      table.add({"changed by --set", words});
    }
    if (trains_on_text()) {
      table.add(
          {"training",
           format("%lld steps of %lld sequences of %lld tokens (%s tokens), %s, warm-up %lld, then cosine to %s of the rate, "
                  "weight decay %s, clip %s",
                  static_cast<long long>(e_.train.steps), static_cast<long long>(e_.train.batch), static_cast<long long>(e_.train.context),
                  grouped(plan_.tokens_per_run()).c_str(), e_.train.dtype.c_str(), static_cast<long long>(e_.train.warmup),
                  plain(e_.train.final_rate).c_str(), plain(e_.train.weight_decay).c_str(), plain(e_.train.clip).c_str())});
    }
    if (e_.kind == Kind::kMqar) {
      table.add({"training", format("at most %lld passes over %s tokens, batches of %lld examples, %s; it ends at %s of the test answers",
                                    static_cast<long long>(e_.mqar.epochs),
                                    grouped(plan_.tokens_per_run() / static_cast<double>(e_.mqar.epochs)).c_str(),
                                    static_cast<long long>(e_.mqar.batch), e_.train.dtype.c_str(), plain(e_.mqar.enough).c_str())});
    }
    if (e_.kind == Kind::kSpeed && !runs_.empty()) {
      const Json& key = runs_.front().first.key;
      table.add({"timing", format("medians of %d repeats, %s, on %s", e_.speed.repeats, e_.train.dtype.c_str(),
                                  key["device"] == "cpu" ? "the CPU" : key["device"].get<std::string>().c_str())});
    }
    if (trains_on_text() || e_.kind == Kind::kMqar) {
      table.add({"learning rates", joined_numbers(e_.rates)});
      table.add({"seeds", joined_numbers(e_.seeds)});
    }
    for (const Variant& v : e_.variants) {
      if (!v.model.is_null())
        table.add({"model " + v.name, grouped(v.model["parameters"].get<double>()) + " parameters, hash " + v.model.value("hash", "")});
    }
    if (trains_on_text() && results_.settings.contains("data")) {
      const Json& data = results_.settings["data"];
      table.add({"data", grouped(data.value("tokens", 0.0)) + " tokens, hash " + data.value("train", "") + "; validation " +
                             grouped(data.value("validation_tokens", 0.0)) + " tokens, hash " + data.value("validation", "")});
    }
    table.add({"runs", format("%zu of %lld finished", runs_.size(), static_cast<long long>(plan_.total())) +
                           (shared > 0 ? format(", %zu of them shared with other experiments", shared) : "")});
    table.add({"machine", machines.empty() ? "-" : joined(machines)});
    table.add({"commit", commits.empty() ? "-" : joined(commits)});
    table.add({"cost", format("%.0f seconds of the machine", seconds) +
                           (tokens == 0 ? "" : ", " + grouped(std::round(tokens / 1e6)) + " million tokens") +
                           (shared > 0 ? ", without the shared runs" : "")});
    text_ += table.text() + "\n";
    if (plan_.finished(results_) < plan_.total()) {
      text_ += "**The experiment is not complete.** `cyfa experiment " + e_.name + "` goes on with the missing runs.\n\n";
    }
  }

  std::string figure_text(const Row& row) const {
    if (!row.mean) return "-";
    return e_.kind == Kind::kMqar ? format("%.1f %%", 100 * *row.mean) : format("%.4f", *row.mean);
  }
  std::string spread_text(const Row& row) const {
    if (!row.spread) return "-";
    return e_.kind == Kind::kMqar ? format("%.1f", 100 * *row.spread) : format("%.4f", *row.spread);
  }

  void needles() {
    const Section found = needles_section(e_, plan_, results_, rows_);
    text_ += found.text.empty() ? "Needles have not been looked for in any model yet.\n\n" : found.text;
    for (const Section::Picture& p : found.pictures) picture(p.name, p.about, p.panels);
    if (!trains_on_text()) return;
    const std::string results = table_of(false, kLossName), preliminary = table_of(true, kLossName);
    if (results.empty() && preliminary.empty()) return;
    text_ += "## The models\n\n" +
             paragraph(
                 "Each variant at its own best learning rate; the losses are those of the second half of the "
                 "validation text. Fewer than three seeds are preliminary.") +
             results + preliminary;
  }

  const Row* reference() const {
    for (const Row& row : rows_) {
      if (row.variant->name == e_.reference && row.mean) return &row;
    }
    return nullptr;
  }

  std::string table_of(bool preliminary, const std::string& figure) const {
    const Row* than = reference();
    std::vector<std::string> names = {"variant", "parameters", "state per layer", "rate", figure, "std", "seeds"};
    if (than != nullptr) names.push_back("minus " + e_.reference);
    if (!e_.stated.empty()) names.emplace_back("paper");
    Columns table(names);
    for (const Row& row : rows_) {
      if (row.runs.empty() || row.preliminary() != preliminary) continue;
      const Json& run = *row.runs.front();
      const double state = run.value("state", 0.0);
      std::vector<std::string> cells = {row.variant->name,
                                        grouped(run.value("parameters", 0.0)),
                                        state > 0 ? grouped(state) : "grows",
                                        plain(*row.rate) + (row.rate_at_edge ? " *" : ""),
                                        figure_text(row),
                                        spread_text(row),
                                        std::to_string(row.runs.size()) + (row.failed > 0 ? format(" (%zu diverged)", row.failed) : "")};
      if (than != nullptr) {
        const double difference = *row.mean - *than->mean;
        cells.push_back(&row == than ? "" : e_.kind == Kind::kMqar ? format("%+.1f", 100 * difference) : format("%+.4f", difference));
      }
      if (!e_.stated.empty()) cells.push_back(row.variant->stated ? plain(*row.variant->stated) : "-");
      table.add(cells);
    }
    return table.empty() ? "" : table.text() + "\n";
  }

  void training(const std::string& figure) {
    const std::string results = table_of(false, figure), preliminary = table_of(true, figure);
    const std::string explained = "Mean and standard deviation over the seeds, each variant at its own best learning rate";
    const std::string choice = e_.kind == Kind::kMqar ? ", chosen by the test accuracy of the first seed, as the origin does"
                                                      : ", chosen by the first half of the validation text; the table has the second half";
    if (!results.empty()) text_ += "## Results\n\n" + paragraph(explained + choice + ". A star marks an end of the grid.") + results;
    if (!preliminary.empty()) {
      text_ += "## Preliminary\n\nFewer than three seeds: these figures show where it goes and decide nothing.\n\n" + preliminary;
    }
    if (results.empty() && preliminary.empty()) text_ += "No variant has tried all learning rates yet.\n\n";
    order();
    rates();
    if (e_.kind == Kind::kText) {
      text_pictures();
    } else {
      recall_pictures();
    }
  }

  void order() {
    if (e_.stated.empty()) return;
    const Agreement a = agreement_of(e_, rows_);
    text_ += "## Beside the paper\n\n" + paragraph("The paper: " + e_.stated + ".");
    if (a.pairs == 0) return;
    std::string words = format("Of %s of variants, %zu in the paper's order. ", counted(a.pairs, "pair").c_str(), a.same);
    words += counted(a.decided, "pair") + " with three seeds each " + (a.decided == 1 ? "differs" : "differ") +
             format(" by more than the sum of the standard deviations; of these, %zu in the paper's order.", a.decided_same);
    if (!a.against.empty()) {
      words += " **Not in the paper's order:**";
      for (size_t i = 0; i < a.against.size(); ++i) words += (i == 0 ? " " : "; ") + a.against[i];
      words += ".";
    }
    text_ += paragraph(words);
  }

  void rates() {
    if (e_.rates.size() < 2) return;
    std::vector<std::string> names = {"variant"};
    for (const double rate : e_.rates) names.push_back(plain(rate));
    Columns table(names);
    for (const Row& row : rows_) {
      if (row.sweep.empty()) continue;
      std::vector<std::string> cells = {row.variant->name};
      for (const double rate : e_.rates) {
        std::string cell = "-";
        for (const auto& [of, result] : row.sweep) {
          if (of != rate) continue;
          cell = result->contains("failed") ? "diverged"
                 : e_.kind == Kind::kMqar   ? format("%.1f %%", 100 * (*result)["accuracy"].get<double>())
                                            : format("%.4f", (*result)["tuning_loss"].get<double>());
        }
        cells.push_back(cell);
      }
      table.add(cells);
    }
    text_ += std::string("## Learning rates\n\n") +
             (e_.kind == Kind::kMqar ? "Test accuracy" : "Loss on the first half of the validation text") + " of the first seed.\n\n" +
             table.text() + "\n";
  }

  void text_pictures() {
    if (auto lines = lines_of(e_, rows_, "curve", 1); !lines.empty()) {
      draw::LinePlot losses = plot_of("Training loss", "step", "nats per token", lines);
      // The first steps fall from log(vocabulary) and would take the whole axis.
      double low = 1e30, high = 0;
      for (const draw::Line& line : lines) {
        for (size_t i = line.points.size() / 10; i < line.points.size(); ++i) {
          low = std::min(low, line.points[i].y);
          high = std::max(high, line.points[i].y);
        }
      }
      if (high > low) losses.y_low = low - 0.02 * (high - low), losses.y_high = high;
      draw::LinePlot norms =
          plot_of("Norm of the gradient, largest of the steps between two points", "step", "norm", lines_of(e_, rows_, "curve", 3, 1.2));
      norms.log_y = true;
      norms.plot_height = 200;
      text_ += "## While training\n\nMeans over the seeds, at each variant's own learning rate.\n\n";
      picture("training.svg", "Training loss and gradient norm over the steps", {losses, norms});
    }
    if (auto lines = lines_of(e_, rows_, "by_position", 1); !lines.empty()) {
      const auto context = static_cast<double>(e_.train.context);
      draw::LinePlot plot = plot_of(format("Loss by position; trained on sequences of %s tokens", grouped(context).c_str()), "position",
                                    "nats per token", lines);
      plot.log_x = true;
      for (double x = context / 2; x <= context * static_cast<double>(e_.measures.length); x *= 2) plot.x_ticks.push_back(x);
      text_ += "## Beyond the training length\n\n" +
               paragraph("Mean loss of buckets of half a context, on the whole validation text; a point is at the end of its bucket.");
      picture("length.svg", "Loss by position beyond the training length", {plot});
      by_position_table();
    }
    by_x();
  }

  void by_position_table() {
    std::vector<double> ends;
    const auto context = static_cast<double>(e_.train.context);
    std::vector<std::string> names = {"variant"};
    for (double x = context; x <= context * static_cast<double>(e_.measures.length); x *= 2) {
      ends.push_back(x);
      names.push_back("to " + grouped(x));
    }
    Columns table(names);
    for (const Row& row : rows_) {
      const auto points = mean_points(row.runs, "by_position", 1);
      if (points.empty()) continue;
      std::vector<std::string> cells = {row.variant->name +
                                        (row.preliminary() ? format(" (%zu of %zu seeds)", row.runs.size(), kLeastSeeds) : "")};
      for (const double end : ends) {
        const auto at = std::find_if(points.begin(), points.end(), [&](const draw::Point& p) { return p.x == end; });
        cells.push_back(at == points.end() ? "-" : format("%.4f", at->y));
      }
      table.add(cells);
    }
    text_ += "The loss of the last bucket up to a position:\n\n" + table.text() + "\n";
  }

  // The figure over Variant::x, where variants have one.
  void by_x() {
    draw::Line line = line_of("mean over the seeds", 0);
    for (const Row& row : rows_) {
      if (row.variant->x && row.mean) line.points.push_back({*row.variant->x, *row.mean});
    }
    if (line.points.size() < 2) return;
    std::sort(line.points.begin(), line.points.end(), [](const draw::Point& a, const draw::Point& b) { return a.x < b.x; });
    draw::LinePlot plot = plot_of("Held-out loss", e_.x_label, "nats per token", {line});
    plot.log_x = true;
    plot.plot_height = 220;
    for (const draw::Point& p : line.points) plot.x_ticks.push_back(p.x);
    picture("by_x.svg", "Held-out loss over the " + e_.x_label, {plot});
  }

  void recall_pictures() {
    std::vector<draw::Line> lines;
    Columns table([&] {
      std::vector<std::string> names = {"variant"};
      for (const MqarSegment& s : e_.mqar.test)
        names.push_back(format("%lld pairs in %lld", static_cast<long long>(s.pairs), static_cast<long long>(s.length)));
      return names;
    }());
    for (const Row& row : rows_) {
      if (row.runs.empty()) continue;
      std::vector<std::string> cells = {row.variant->name +
                                        (row.preliminary() ? format(" (%zu of %zu seeds)", row.runs.size(), kLeastSeeds) : "")};
      draw::Line line = line_of(row.variant->name, static_cast<size_t>(row.variant - e_.variants.data()));
      for (size_t i = 0; i < e_.mqar.test.size(); ++i) {
        double mean = 0, squares = 0;
        for (const Json* run : row.runs) mean += 100 * (*run)["by_size"][i][2].get<double>() / static_cast<double>(row.runs.size());
        for (const Json* run : row.runs) squares += std::pow(100 * (*run)["by_size"][i][2].get<double>() - mean, 2);
        cells.push_back(format("%.1f", mean) +
                        (row.runs.size() > 1 ? format(" ± %.1f", std::sqrt(squares / static_cast<double>(row.runs.size() - 1))) : ""));
        line.points.push_back({static_cast<double>(i + 1), mean});
      }
      table.add(cells);
      lines.push_back(std::move(line));
    }
    if (lines.empty()) return;
    text_ += "## Accuracy by size\n\nPercent of the queries, mean and standard deviation over the seeds.\n\n" + table.text() + "\n";
    draw::LinePlot sizes = plot_of("Correct answers by size of the example", "column of the table", "%", lines);
    sizes.y_low = 0;
    sizes.y_high = 100;
    for (size_t i = 0; i < e_.mqar.test.size(); ++i) sizes.x_ticks.push_back(static_cast<double>(i + 1));
    draw::LinePlot learning = plot_of("Correct answers while learning, share of all test queries", "pass over the examples", "share",
                                      lines_of(e_, rows_, "learning", 1, 1.4));
    learning.y_low = 0;
    learning.y_high = 1;
    learning.plot_height = 220;
    picture("accuracy.svg", "Accuracy by size of the example, and while learning", {sizes, learning});
  }

  // A figure of the runs that time something.
  struct Timed {
    const char *kind, *pass, *value;  // of the runs; the pass of an operator, else empty; the key of the figure
    const char *title, *unit;         // of the plot
    const char* heading;              // of the table
  };

  // A figure over the length: a table below its heading and, returned, a plot.
  draw::LinePlot timed(const Timed& what, const std::vector<int64_t>& lengths, const std::string& x_label) {
    draw::LinePlot plot = plot_of(what.title, x_label, what.unit);
    plot.log_x = true;
    plot.log_y = what.value != std::string("tokens_per_s");
    plot.plot_height = 220;
    std::vector<std::string> names = {"variant"};
    for (const int64_t T : lengths) {
      names.push_back(grouped(static_cast<double>(T)));
      if (T > 0) plot.x_ticks.push_back(static_cast<double>(T));  // 0 has no place on a logarithmic axis
    }
    Columns table(names);
    for (size_t i = 0; i < e_.variants.size(); ++i) {
      draw::Line line = line_of(e_.variants[i].name, i);
      std::vector<std::string> cells = {line.name};
      bool any = false;
      for (const Run& run : plan_.sweep(e_.variants[i])) {
        if (run.key["kind"] != what.kind) continue;
        const Json* result = results_.find(run);
        any = any || result != nullptr;
        std::string cell = result != nullptr && result->contains("failed") ? "failed" : "-";
        for (const Json& row : result == nullptr ? Json::array() : result->value("rows", Json::array())) {
          if (*what.pass != '\0' && row.value("pass", "") != what.pass) continue;
          const auto number = row[what.value].get<double>();
          line.points.push_back({run.key["T"].get<double>(), number});
          cell = plot.log_y ? format(number < 10 ? "%.3f" : "%.1f", number) : grouped(std::round(number));
        }
        cells.push_back(cell);
      }
      if (any) table.add(std::move(cells));
      if (!line.points.empty()) plot.lines.push_back(std::move(line));
    }
    if (!table.empty()) text_ += std::string("## ") + what.heading + "\n\nBy the " + x_label + ".\n\n" + table.text() + "\n";
    return plot;
  }

  void speed() {
    const auto part = [&](const std::string& file, const std::string& about, const std::vector<int64_t>& lengths,
                          const std::string& x_label, std::initializer_list<Timed> figures) {
      std::vector<draw::Panel> panels;
      for (const Timed& one : figures) {
        draw::LinePlot plot = timed(one, lengths, x_label);
        if (!plot.lines.empty()) panels.emplace_back(std::move(plot));
      }
      if (!panels.empty()) picture(file, about, std::move(panels));
    };
    part("speed.svg", "Speed over the length of the sequences", e_.speed.lengths, "tokens in a sequence",
         {{kTrainingSpeed, "", "tokens_per_s", "Training", "tokens per second", "Training throughput, tokens per second"},
          {kOperatorSpeed, "forward", "ms", "Operator, forward", "ms", "Operators, forward, ms"},
          {kOperatorSpeed, "backward", "ms", "Operator, backward", "ms", "Operators, backward, ms"}});
    part("decoding.svg", "Decoding over the tokens before", e_.speed.contexts, "tokens that the sequence has read before",
         {{kDecodingSpeed, "", "state_mb", "State of a sequence", "MB", "State of a sequence, MB"},
          {kDecodingSpeed, "", "ms", "Decoding one sequence", "ms per token", "Decoding one sequence, ms per token"}});
  }

  Json metrics() const {
    Json rows = Json::array();
    for (const Row& row : rows_) {
      const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
      Json seeds = Json::array();
      for (const Json* run : row.runs) seeds.push_back((*run)[figure_of(e_.kind)]);
      rows.push_back({{"variant", row.variant->name},
                      {"rate", number(row.rate)},
                      {"rate_at_edge", row.rate_at_edge},
                      {"seeds", row.runs.size()},
                      {"preliminary", row.preliminary()},
                      {figure_of(e_.kind), number(row.mean)},
                      {"std", number(row.spread)},
                      {"by_seed", seeds},
                      {"stated", number(row.variant->stated)}});
    }
    Json out = {{"experiment", e_.name}, {"settings", results_.settings}};
    if (e_.kind == Kind::kNeedles) {
      out["needles"] = Json::array();
      for (const auto& [run, result] : runs_) {
        if (result->contains("needles"))
          out["needles"].push_back({{"variant", run.variant}, {"seed", run.seed}, {"found", (*result)["needles"]}});
      }
    }
    if (e_.kind != Kind::kSpeed) {
      out["rows"] = rows;
      return out;
    }
    out["rows"] = Json::array();
    for (const auto& [run, result] : runs_)
      out["rows"].push_back({{"variant", run.variant}, {"T", run.key["T"]}, {"rows", result->value("rows", Json::array())}});
    return out;
  }

  fs::path folder_;
  const Experiment& e_;
  const Plan& plan_;
  Results& results_;
  std::vector<Row> rows_;
  std::vector<std::pair<Run, const Json*>> runs_;
  std::string text_;
  std::vector<std::string> pictures_;
};

}  // namespace

std::vector<std::string> write_report(const fs::path& folder, const Experiment& experiment, const Plan& plan, Results& results) {
  return Report(folder, experiment, plan, results).write();
}

}  // namespace cyfa::experiment
