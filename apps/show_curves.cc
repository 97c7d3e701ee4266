// cyfa show curves: a line plot of any two numbers in rows of JSON, such as those of --json or of a run's metrics.jsonl.
#include <iostream>
#include <set>
#include <sstream>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "cyfa/draw/figure.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "cyfa/io/read_file.h"

namespace cyfa::app {
namespace {

constexpr size_t kMostXTicks = 12;  // distinct values of a logarithmic x axis that get a tick each

struct Options {
  std::vector<std::string> files;
  std::string x, y, color, dash, picture, title, x_label, y_label;
  bool log_x = false, log_y = false, from_zero = false;
};

constexpr io::JsonLimits kLimits = {.what = "a file of rows", .bytes = 64 << 20, .values = 1 << 22};

// The rows of a JSON array or of JSON lines.
std::vector<Json> read_rows(const std::string& path) {
  const std::string all = io::read_file(path, kLimits.bytes, kLimits.what);
  const size_t first = all.find_first_not_of(" \t\r\n");
  std::vector<Json> rows;
  if (first != std::string::npos && all[first] == '[') {
    const Json array = io::parse_json(all, path, kLimits);
    rows.assign(array.begin(), array.end());
  } else {
    std::istringstream lines(all);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      rows.push_back(io::json_or_null(line, kLimits));
      if (rows.back().is_null()) throw io::FileError(path, "line " + std::to_string(number) + " is no JSON");
    }
  }
  std::erase_if(rows, [](const Json& row) { return !row.is_object(); });
  return rows;
}

std::string word(const Json& row, const std::string& key) {
  if (key.empty() || !row.contains(key)) return "";
  return row[key].is_string() ? row[key].get<std::string>() : dump(row[key]);
}

// Lines in the order in which the rows first name them; points by x.
std::vector<draw::Line> lines_of(const Options& options) {
  std::vector<draw::Line> lines;
  std::vector<std::string> colors, dashes;
  const auto place = [](std::vector<std::string>& list, const std::string& value) {
    const auto at = std::find(list.begin(), list.end(), value);
    if (at != list.end()) return static_cast<size_t>(at - list.begin());
    list.push_back(value);
    return list.size() - 1;
  };
  for (const std::string& file : options.files) {
    for (const Json& row : read_rows(file)) {
      if (!row.contains(options.x) || !row.contains(options.y) || !row[options.x].is_number() || !row[options.y].is_number()) continue;
      std::string name = options.files.size() > 1 ? file : "";
      for (const std::string* key : {&options.color, &options.dash}) {
        const std::string value = word(row, *key);
        if (!value.empty()) name += (name.empty() ? "" : " ") + value;
      }
      auto line = std::find_if(lines.begin(), lines.end(), [&](const draw::Line& l) { return l.name == name; });
      if (line == lines.end()) {
        const std::string of_file = options.files.size() > 1 ? file : "";
        const draw::Color color = draw::line_color(place(colors, of_file + '\n' + word(row, options.color)));
        const bool dashed = place(dashes, word(row, options.dash)) % 2 == 1;
        line = lines.insert(line,
                            {.name = name, .points = {}, .color = color, .stroke = dashed ? draw::Stroke::kDashed : draw::Stroke::kSolid});
      }
      line->points.push_back({row[options.x].get<double>(), row[options.y].get<double>()});
    }
  }
  for (draw::Line& line : lines) {
    std::stable_sort(line.points.begin(), line.points.end(), [](const draw::Point& a, const draw::Point& b) { return a.x < b.x; });
    line.dots = line.points.size() <= 40;
  }
  return lines;
}

int run_show(const Options& options) {
  draw::LinePlot plot;
  plot.title = options.title;
  plot.x_label = options.x_label.empty() ? options.x : options.x_label;
  plot.y_label = options.y_label.empty() ? options.y : options.y_label;
  plot.log_x = options.log_x;
  plot.log_y = options.log_y;
  if (options.from_zero) plot.y_low = 0;
  plot.lines = lines_of(options);
  if (plot.lines.empty()) {
    throw std::invalid_argument("show curves: no row of " + options.files.front() + (options.files.size() > 1 ? " and the others" : "") +
                                " has both numbers " + options.x + " and " + options.y);
  }
  std::set<double> xs;
  Json data = Json::array();
  size_t points = 0;
  for (const draw::Line& line : plot.lines) {
    Json pairs = Json::array();
    for (const draw::Point& p : line.points) {
      xs.insert(p.x);
      pairs.push_back({p.x, p.y});
    }
    points += line.points.size();
    data.push_back({{"name", line.name}, {"points", pairs}});
  }
  if (plot.log_x && xs.size() <= kMostXTicks) plot.x_ticks.assign(xs.begin(), xs.end());
  const Json description = {{"title", plot.title}, {"x", plot.x_label}, {"y", plot.y_label}, {"lines", data}};
  const WriteGuard guard;
  draw::write_figure(options.picture, {.title = "", .panels = {plot}, .notes = {}, .description = dump(description)});
  std::cout << text("picture written to %s: %zu points in %zu line%s\n", options.picture.c_str(), points, plot.lines.size(),
                    plot.lines.size() == 1 ? "" : "s");
  return kDone;
}

}  // namespace

void add_show_curves(CLI::App& show, Action& action) {
  CLI::App* command = show.add_subcommand("curves", "Draw one number over another, from rows of JSON.");
  auto options = std::make_shared<Options>();
  command->add_option("files", options->files, "JSON arrays of rows, as --json writes them, or JSON lines, such as metrics.jsonl")
      ->required()
      ->type_name("FILE");
  command->add_option("--x", options->x, "Key of the number on the x axis")->required()->type_name("KEY");
  command->add_option("--y", options->y, "Key of the number on the y axis")->required()->type_name("KEY");
  command->add_option("--color", options->color, "Key whose values become lines of different colours")
      ->default_str("one colour")
      ->type_name("KEY");
  command->add_option("--dash", options->dash, "Key whose values become solid and dashed lines")
      ->default_str("solid lines")
      ->type_name("KEY");
  add_picture(command, &options->picture)->required();
  command->add_option("--title", options->title, "Title of the picture")->default_str("none")->type_name("TEXT");
  command->add_option("--x-label", options->x_label, "Label of the x axis")->default_str("the key")->type_name("TEXT");
  command->add_option("--y-label", options->y_label, "Label of the y axis")->default_str("the key")->type_name("TEXT");
  command->add_flag("--log-x", options->log_x, "Make the x axis logarithmic");
  command->add_flag("--log-y", options->log_y, "Make the y axis logarithmic");
  command->add_flag("--from-zero", options->from_zero, "Begin the y axis at zero");
  command->callback([&action, options] { action = [options] { return run_show(*options); }; });
}

}  // namespace cyfa::app
