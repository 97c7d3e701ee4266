// The part of `cyfa probe` about gradients (cyfa/analysis/gradients.h): norms with and without the clock's stop-gradient, what the clock's
// gradient is made of, and how all of it grows with the length of the text. Also for models without a clock.
#include <iostream>

#include "apps/probe_parts.h"
#include "cyfa/analysis/gradients.h"

namespace cyfa::app {
namespace {

using analysis::ClockGradient;
using analysis::Gradients;
using analysis::Paired;

constexpr size_t kMostTicks = 16;  // of the layers in a picture
constexpr int64_t kLengths = 4;    // T and its halves; of 2,048 tokens the paper's 256, 512, 1,024 and 2,048

// "5.653   12.006", and only the first for a model without a clock.
std::string both(const Paired& norm, bool clock) { return clock ? text("%9.4f %9.4f", norm.with, norm.without) : text("%9.4f", norm.with); }

std::string percent(double share) { return text("%.1f%%", 100 * share); }

void add_rows(Json& rows, const std::vector<Gradients>& lengths) {
  for (const Gradients& one : lengths) {
    Json row = {{"table", "gradients"}, {"sequences", one.sequences}, {"tokens", one.tokens}, {"loss", one.loss}};
    const std::pair<const char*, Paired> numbers[] = {{"all", one.all}, {"clock", one.clock}, {"rest", one.rest}, {"share", one.share}};
    for (const auto& [name, norm] : numbers) {
      row[name] = norm.with;
      row[std::string(name) + "_without"] = norm.without;
    }
    row["rests"] = row["rests_without"] = Json::array();
    for (const Paired& norm : one.rests) {
      row["rests"].push_back(norm.with);
      row["rests_without"].push_back(norm.without);
    }
    rows.push_back(row);
  }
  const Gradients& whole = lengths.back();
  for (const auto& one : whole.groups) {
    rows.push_back({{"table", "gradient_groups"},
                    {"group", one.name},
                    {"parameters", one.parameters},
                    {"norm", one.norm.with},
                    {"norm_without", one.norm.without}});
  }
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    rows.push_back({{"table", "gradient_layers"}, {"layer", i}, {"norm", whole.layers[i].with}, {"norm_without", whole.layers[i].without}});
  }
  for (const ClockGradient& one : whole.clocks) {
    rows.push_back({{"table", "clock_gradients"},
                    {"layer", one.layer},
                    {"clock", one.clock},
                    {"increment", one.increment},
                    {"gain", one.gain},
                    {"projection", one.projection},
                    {"alignment", one.alignment},
                    {"mismatch", one.mismatch}});
  }
  for (const ClockGradient& one : whole.clocks) {
    for (const auto& [at, paths] : {std::pair("clock", one.at_clock), std::pair("projection", one.at_projection)}) {
      rows.push_back({{"table", "clock_paths"},
                      {"layer", one.layer},
                      {"at", at},
                      {"key", paths.norm[0]},
                      {"value", paths.norm[1]},
                      {"readout", paths.norm[2]},
                      {"key_value", paths.cosine[0]},
                      {"key_readout", paths.cosine[1]},
                      {"value_readout", paths.cosine[2]},
                      {"left", paths.left}});
    }
  }
}

void print(const std::vector<Gradients>& lengths) {
  const Gradients& whole = lengths.back();
  const bool clock = !whole.clocks.empty();
  std::cout << text("\n5. Norms of the gradients of %lld sequences of %lld tokens%s\n", static_cast<long long>(whole.sequences),
                    static_cast<long long>(whole.tokens), clock ? ", with the clock's stop-gradient and without it" : "")
            << text("%-16s %9s", "parameters", clock ? "with" : "norm") << (clock ? text(" %9s", "without") : "") << '\n';
  const auto line = [&](const std::string& name, const Paired& norm) {
    std::cout << text("%-16s %s\n", name.c_str(), both(norm, clock).c_str());
  };
  line("all", whole.all);
  if (clock) {
    line("all but clock", whole.rest);
    std::cout << text("%-16s %9s %9s  of the square\n", "share of clock", percent(whole.share.with).c_str(),
                      percent(whole.share.without).c_str());
  }
  for (const auto& one : whole.groups) line("  " + one.name, one.norm);
  std::cout << text("%-16s %9s", "layer", clock ? "with" : "norm")
            << (clock ? text(" %9s  without the clock's own parameters", "without") : "") << '\n';
  for (size_t i = 0; i < whole.layers.size(); ++i) line("  " + std::to_string(i), whole.layers[i]);
  std::cout << text("%-16s %9s", "tokens", clock ? "with" : "norm") << (clock ? text(" %9s %9s  of all but clock", "without", "ratio") : "")
            << '\n';
  for (const Gradients& one : lengths) {
    std::cout << text("  %-14lld %s", static_cast<long long>(one.tokens), both(one.rest, clock).c_str());
    if (clock) std::cout << text(" %9.3f", one.rest.without / one.rest.with);
    std::cout << '\n';
  }
  if (!clock) return;
  std::cout
      << "The clock's gradient, with the stop-gradient: its norm, that of the increments (its sum over all later tokens), their ratio,\n"
         "and the gradient of the clock's projection, with the alignment of the tokens' parts of it\n"
      << text("%-8s %10s %10s %7s %10s %9s\n", "layer", "clock", "increments", "gain", "projection", "alignment");
  for (const ClockGradient& one : whole.clocks) {
    std::cout << text("  %-6zu %10.3e %10.3e %7.2f %10.3e %9.2f\n", one.layer, one.clock, one.increment, one.gain, one.projection,
                      one.alignment);
  }
  for (const auto& [where, paths] : {std::pair("dL/dclock", &ClockGradient::at_clock),
                                     std::pair("the gradient of the clock's projection", &ClockGradient::at_projection)}) {
    std::cout << "The three paths to the clock in " << where << ": norms, cosines of pairs, and the part left in their sum\n"
              << text("%-8s %10s %10s %10s | %8s %8s %8s | %6s\n", "layer", "key", "value", "readout", "k-v", "k-r", "v-r", "left");
    for (const ClockGradient& one : whole.clocks) {
      const auto& [norm, cosine, left] = one.*paths;
      std::cout << text("  %-6zu %10.3e %10.3e %10.3e | %+8.3f %+8.3f %+8.3f | %6.3f\n", one.layer, norm[0], norm[1], norm[2], cosine[0],
                        cosine[1], cosine[2], left);
    }
  }
}

draw::Line line_of(const std::string& name, size_t color, std::vector<draw::Point> points) {
  return {.name = name, .points = std::move(points), .color = draw::line_color(color), .dots = true};
}

// Lines over the layers of a model.
draw::LinePlot over_layers(const std::string& title, const std::string& y_label, std::vector<draw::Line> lines, size_t layers) {
  draw::LinePlot plot{
      .title = title, .x_label = "layer", .y_label = y_label, .lines = std::move(lines), .y_low = 0, .y_high = {}, .x_ticks = {}};
  for (size_t i = 0; i < layers; i += layers / kMostTicks + 1) plot.x_ticks.push_back(static_cast<double>(i));
  return plot;
}

draw::Figure figure_of(const std::vector<Gradients>& lengths) {
  const Gradients& whole = lengths.back();
  const bool clock = !whole.clocks.empty();
  const auto sides = [&](const auto& points) {
    std::vector<draw::Line> lines = {line_of(clock ? "with stop-gradient" : "", 0, points(&Paired::with))};
    if (clock) lines.push_back(line_of("without", 1, points(&Paired::without)));
    return lines;
  };
  draw::LinePlot growth{.title = "Length of the text: norm of all parameters but the clock's",
                        .x_label = "tokens",
                        .y_label = "norm",
                        .lines = sides([&](auto side) {
                          std::vector<draw::Point> points;
                          for (const Gradients& one : lengths) points.push_back({static_cast<double>(one.tokens), one.rest.*side});
                          return points;
                        }),
                        .log_x = true,
                        .y_low = 0,
                        .y_high = {},
                        .x_ticks = {}};
  for (const Gradients& one : lengths) growth.x_ticks.push_back(static_cast<double>(one.tokens));
  const size_t L = whole.layers.size();
  const draw::LinePlot layers = over_layers("Layers: norm of all parameters but the clock's", "norm", sides([&](auto side) {
                                              std::vector<draw::Point> points;
                                              for (size_t i = 0; i < L; ++i)
                                                points.push_back({static_cast<double>(i), whole.layers[i].*side});
                                              return points;
                                            }),
                                            L);
  draw::Heatmap groups;
  groups.title = "Groups of parameters: norm";
  groups.rows = static_cast<int64_t>(whole.groups.size());
  groups.columns = clock ? 2 : 1;
  groups.column_names = clock ? std::vector<draw::CellName>{{"with stop-gradient"}, {"without"}} : std::vector<draw::CellName>{{"norm"}};
  groups.scale = draw::ColorScale::kPaper;
  groups.low = 0;
  for (const auto& one : whole.groups) {
    groups.row_names.push_back({one.name});
    groups.values.push_back(one.norm.with);
    if (clock) groups.values.push_back(one.norm.without);
  }
  draw::Figure figure{.title = "Gradients of the loss",
                      .panels = {growth, layers, groups},
                      .notes = {text("Means over %lld sequences; layers and groups over %lld tokens.",
                                     static_cast<long long>(whole.sequences), static_cast<long long>(whole.tokens))},
                      .description = ""};
  if (!clock) return figure;
  const auto of_clocks = [&](const auto& number) {
    std::vector<draw::Point> points;
    for (const ClockGradient& one : whole.clocks) points.push_back({static_cast<double>(one.layer), number(one)});
    return points;
  };
  figure.panels.emplace_back(over_layers("Gain of the reverse sum, and alignment of the tokens' gradients", "times",
                                         {line_of("gain", 2, of_clocks([](const ClockGradient& one) { return one.gain; })),
                                          line_of("alignment", 3, of_clocks([](const ClockGradient& one) { return one.alignment; }))},
                                         L));
  const auto paths = [&](const std::string& title, auto at, auto sum) {
    std::vector<draw::Line> lines;
    const char* names[] = {"key write", "value write", "readout"};
    for (size_t i = 0; i < 3; ++i) lines.push_back(line_of(names[i], i, of_clocks([&](const auto& one) { return (one.*at).norm[i]; })));
    lines.push_back(line_of("their sum", 0, of_clocks([&](const auto& one) { return one.*sum; })));
    lines.back().color = draw::kInk;
    lines.back().stroke = draw::Stroke::kDashed;
    figure.panels.emplace_back(over_layers(title, "norm", std::move(lines), L));
  };
  paths("The three paths to the clock, each by itself: gradient of the clock", &ClockGradient::at_clock, &ClockGradient::clock);
  paths("The same: gradient of the clock's projection", &ClockGradient::at_projection, &ClockGradient::projection);
  return figure;
}

}  // namespace

void probe_gradients(Probe& probe) {
  const at::Tensor some = probe.ids.narrow(0, 0, std::min(probe.ids.size(0), probe.gradient_sequences));
  std::vector<Gradients> lengths;
  for (int64_t i = kLengths - 1; i >= 0; --i) {
    const int64_t T = some.size(1) >> i;
    lengths.push_back(analysis::measure_gradients(probe.model, probe.w, some.narrow(1, 0, T),
                                                  probe.progress(text("gradients of %lld tokens", static_cast<long long>(T)))));
  }
  add_rows(probe.rows, lengths);
  if (probe.prints) print(lengths);
  if (!probe.out.empty()) picture(probe, "gradients.png", figure_of(lengths));
}

}  // namespace cyfa::app
