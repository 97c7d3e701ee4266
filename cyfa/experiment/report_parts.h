// What the sections of a report are made of: paragraphs, Markdown tables, numbers as text, plots.
#pragma once

#include "cyfa/draw/axis.h"
#include "cyfa/draw/figure.h"
#include "cyfa/experiment/summary.h"

namespace cyfa::experiment {

[[gnu::format(printf, 1, 2)]] std::string format(const char* how, ...);

// A paragraph in lines of at most 140 columns, as the project's documents have them.
std::string paragraph(const std::string& words);

std::string counted(size_t count, const std::string& what);  // "1 seed", "2 seeds"
std::string plain(double value);                             // as JSON has it
std::string grouped(double value);                           // "16,384"

// A Markdown table.
class Columns {
 public:
  explicit Columns(std::vector<std::string> names) : names_(std::move(names)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string text() const;

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> rows_;
};

// A line in the colour of a variant by its place in the recipe.
draw::Line line_of(const std::string& name, size_t variant, double width = 1.8, bool dots = true);
draw::LinePlot plot_of(const std::string& title, const std::string& x, const std::string& y, std::vector<draw::Line> lines = {});

// A section of a report, and pictures for it: name, description, panels.
struct Section {
  struct Picture {
    std::string name, about;
    std::vector<draw::Panel> panels;
  };

  std::string text;
  std::vector<Picture> pictures;  // behind the text
};

// How well needles were found (report_needles.cc), variants in the order of `rows`.
Section needles_section(const Experiment& experiment, const Plan& plan, Results& results, const std::vector<Row>& rows);

}  // namespace cyfa::experiment
