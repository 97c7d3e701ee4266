// The section on needles: tables and pictures of what was found against the length, and in plain words whether anything was.
#include <algorithm>
#include <cmath>

#include "cyfa/experiment/report_parts.h"

namespace cyfa::experiment {
namespace {

// Percent of samples found below which a model is said not to find needles.
constexpr double kFinds = 5;

// Mean and spread of a figure over the models of a variant.
struct Figure {
  double mean = 0;
  std::optional<double> spread;
};

// The models of a variant in which needles have been looked for.
struct Models {
  const Row* row = nullptr;
  std::string name;
  std::vector<const Json*> results;

  // Absent where no model has it.
  std::optional<Figure> figure(const std::string& task, size_t length, const std::string& key) const {
    std::vector<double> values;
    std::optional<double> error;
    for (const Json* result : results) {
      const Json& at = (*result)["needles"][task][length];
      if (!at.contains(key)) return std::nullopt;
      values.push_back(at[key].get<double>());
      if (at[key + "_error"].is_number()) error = at[key + "_error"].get<double>();
    }
    Figure f;
    for (const double v : values) f.mean += v / static_cast<double>(values.size());
    if (values.size() == 1) {
      f.spread = error;
    } else {
      double squares = 0;
      for (const double v : values) squares += (v - f.mean) * (v - f.mean);
      f.spread = std::sqrt(squares / static_cast<double>(values.size() - 1));
    }
    return f;
  }
};

class Needles {
 public:
  Needles(const Experiment& e, const Plan& plan, Results& results, const std::vector<Row>& rows) : e_(e), plan_(e.needles) {
    for (const Row& row : rows) {
      Models m{&row, row.variant->name, {}};
      for (const Run& run : plan.needles(*row.variant, results)) {
        const Json* found = results.find(run);
        if (found != nullptr && found->contains("needles")) m.results.push_back(found);
      }
      if (m.results.empty()) continue;
      const bool few = row.variant->model.is_null() && m.results.size() < kLeastSeeds;
      if (few) m.name += format(" (%zu of %zu seeds)", m.results.size(), kLeastSeeds);
      models_.push_back(std::move(m));
    }
  }

  Section section() {
    Section s;
    if (models_.empty()) return s;
    const double samples = static_cast<double>(plan_.samples);
    s.text = "## Needles found\n\n" +
             paragraph(format("Percent of %s samples of each task and length, of RULER, in whose generated text the hidden value occurs. "
                              "Behind ± is the standard deviation over the seeds or, of one model, the standard error over the samples.",
                              grouped(samples).c_str())) +
             paragraph(finding()) + table("found");
    s.pictures.push_back(picture("needles.svg", "found", "Needles found"));
    if (!has("prefers")) return s;
    s.pictures.push_back(picture("preference.svg", "prefers", "The hidden value is more likely than another"));
    const double guess = 1.96 * 50 / std::sqrt(samples);
    s.text += "## The hidden value beside another one\n\n" +
              paragraph(format("Percent of the samples for which the model holds the value that is hidden in the text for more likely than "
                               "the value of the next sample, at the place of the answer. A model without any memory of the needle has 50, "
                               "and with %s samples lies within 50 ± %.1f in 95 of 100 cases.",
                               grouped(samples).c_str(), guess)) +
              table("prefers");
    return s;
  }

 private:
  bool has(const std::string& key) const {
    return std::any_of(models_.begin(), models_.end(), [&](const Models& m) { return most(m, key).has_value(); });
  }

  // The largest figure of a variant's.
  std::optional<double> most(const Models& m, const std::string& key) const {
    std::optional<double> largest;
    for (const std::string& task : plan_.tasks) {
      for (size_t i = 0; i < plan_.lengths.size(); ++i) {
        const auto f = m.figure(task, i, key);
        if (f && (!largest || f->mean > *largest)) largest = f->mean;
      }
    }
    return largest;
  }

  std::string finding() const {
    std::string finders, words;
    double largest = 0;
    size_t count = 0;
    for (const Models& m : models_) {
      const double own = most(m, "found").value_or(0);
      largest = std::max(largest, own);
      if (own < kFinds) continue;
      finders += (finders.empty() ? "" : ", ") + m.row->variant->name;
      ++count;
    }
    if (count == 0) {
      return format(
          "**No model finds needles.** The highest of all figures is %.1f%%. So these models do not show how methods differ in it; "
          "that takes larger models, longer trained.",
          largest);
    }
    if (count == models_.size()) return "";
    return format("Of %s, %zu find %.0f%% or more in at least one task and length: ", counted(models_.size(), "variant").c_str(), count,
                  kFinds) +
           finders + ". The others find nothing to speak of.";
  }

  std::string table(const std::string& key) const {
    std::vector<std::string> names = {"task", "variant"};
    for (const int64_t length : plan_.lengths) names.push_back(grouped(static_cast<double>(length)));
    Columns columns(names);
    for (const std::string& task : plan_.tasks) {
      for (const Models& m : models_) {
        std::vector<std::string> cells = {&m == &models_.front() ? task : "", m.name};
        for (size_t i = 0; i < plan_.lengths.size(); ++i) {
          const auto f = m.figure(task, i, key);
          cells.push_back(!f ? "-" : f->spread ? format("%.1f ± %.1f", f->mean, *f->spread) : format("%.1f", f->mean));
        }
        columns.add(std::move(cells));
      }
    }
    return columns.text() + "\n";
  }

  Section::Picture picture(const std::string& file, const std::string& key, const std::string& title) const {
    Section::Picture p{file, title + ", against the length of the text", {}};
    for (const std::string& task : plan_.tasks) {
      draw::LinePlot plot = plot_of(task, "tokens in the text", "%");
      for (const Models& m : models_) {
        draw::Line line = line_of(m.name, static_cast<size_t>(m.row->variant - e_.variants.data()));
        for (size_t i = 0; i < plan_.lengths.size(); ++i) {
          if (const auto f = m.figure(task, i, key)) line.points.push_back({static_cast<double>(plan_.lengths[i]), f->mean});
        }
        if (!line.points.empty()) plot.lines.push_back(std::move(line));
      }
      if (plot.lines.empty()) continue;
      plot.log_x = true;
      plot.plot_height = 180;
      plot.y_low = 0;
      plot.y_high = 100;
      for (const int64_t length : plan_.lengths) plot.x_ticks.push_back(static_cast<double>(length));
      p.panels.emplace_back(std::move(plot));
    }
    return p;
  }

  const Experiment& e_;
  const NeedlesPlan& plan_;
  std::vector<Models> models_;
};

}  // namespace

Section needles_section(const Experiment& e, const Plan& plan, Results& results, const std::vector<Row>& rows) {
  return Needles(e, plan, results, rows).section();
}

}  // namespace cyfa::experiment
