#include "cyfa/train/loss_figure.h"

#include <algorithm>
#include <cmath>

namespace cyfa {

RunLosses RunLosses::of(const std::string& name, const std::vector<nlohmann::ordered_json>& metrics) {
  RunLosses run{name, {}, {}};
  for (const auto& row : metrics) {
    const auto add = [&](const char* key, std::vector<draw::Point>& points) {
      const auto loss = row.find(key), step = row.find("step");
      if (loss != row.end() && step != row.end() && loss->is_number() && step->is_number()) {
        points.push_back({step->get<double>(), loss->get<double>()});
      }
    };
    add("loss", run.training);
    add("eval_loss", run.validation);
  }
  return run;
}

std::vector<draw::Point> smoothed(const std::vector<draw::Point>& points) {
  std::vector<draw::Point> finite;
  for (const draw::Point& p : points) {
    if (std::isfinite(p.x) && std::isfinite(p.y)) finite.push_back(p);
  }
  const size_t n = finite.size(), most = n / 20;
  std::vector<double> sums = {0};
  for (const draw::Point& p : finite) sums.push_back(sums.back() + p.y);
  std::vector<draw::Point> out;
  for (size_t i = 0; i < n; ++i) {
    const size_t reach = std::min({most, i, n - 1 - i});
    out.push_back({finite[i].x, (sums[i + reach + 1] - sums[i - reach]) / static_cast<double>(2 * reach + 1)});
  }
  return out;
}

draw::Figure loss_figure(const std::string& title, const std::vector<RunLosses>& runs) {
  draw::LinePlot plot;
  plot.title = title;
  plot.x_label = "step";
  plot.y_label = "loss, nats per token";
  plot.plot_height = 340;
  const bool alone = runs.size() == 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunLosses& run = runs[i];
    const draw::Color color = draw::line_color(i);
    plot.lines.push_back({.name = alone ? "training" : "", .points = run.training, .color = color, .width = 1, .opacity = 0.35});
    plot.lines.push_back({.name = alone ? "training, smoothed" : run.name, .points = smoothed(run.training), .color = color, .width = 2.6});
    plot.lines.push_back({.name = alone ? "validation" : run.name + ", validation",
                          .points = run.validation,
                          .color = alone ? draw::line_color(1) : color,
                          .width = 1.4,
                          .stroke = draw::Stroke::kDashed,
                          .dots = true});
  }
  return {.title = "", .panels = {plot}, .notes = {}, .description = ""};
}

}  // namespace cyfa
