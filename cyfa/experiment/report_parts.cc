#include "cyfa/experiment/report_parts.h"

#include <cstdarg>
#include <sstream>

namespace cyfa::experiment {
namespace {

std::string table_line(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + cell + " |";
  return out + "\n";
}

}  // namespace

std::string format(const char* how, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, how);
  std::vsnprintf(buffer, sizeof buffer, how, arguments);
  va_end(arguments);
  return buffer;
}

std::string paragraph(const std::string& words) {
  constexpr size_t kColumns = 140;
  std::string out, line;
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + line + "\n\n";
}

std::string counted(size_t count, const std::string& what) { return std::to_string(count) + " " + what + (count == 1 ? "" : "s"); }

std::string plain(double value) { return Json(value).dump(); }
std::string grouped(double value) { return draw::grouped(value); }

std::string Columns::text() const {
  std::string out = table_line(names_) + "|";
  for (size_t i = 0; i < names_.size(); ++i) out += "---|";
  out += "\n";
  for (const auto& row : rows_) out += table_line(row);
  return out;
}

draw::Line line_of(const std::string& name, size_t variant, double width, bool dots) {
  draw::Line line;
  line.name = name;
  line.color = draw::line_color(variant);
  line.width = width;
  line.dots = dots;
  if (variant >= 8) line.stroke = draw::Stroke::kDashed;
  return line;
}

draw::LinePlot plot_of(const std::string& title, const std::string& x, const std::string& y, std::vector<draw::Line> lines) {
  draw::LinePlot plot;
  plot.title = title;
  plot.x_label = x;
  plot.y_label = y;
  plot.lines = std::move(lines);
  return plot;
}

}  // namespace cyfa::experiment
