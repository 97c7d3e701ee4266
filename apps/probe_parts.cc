#include "apps/probe_parts.h"

#include <cmath>
#include <iostream>

#include "apps/interrupt.h"
#include "cyfa/analysis/page.h"
#include "cyfa/data/utf8.h"
#include "cyfa/io/atomic_file.h"

namespace cyfa::app {
namespace {

using analysis::Head;

constexpr int64_t kBins = 50;           // of the histogram of increments
constexpr int64_t kCaseBins = 20;       // of the histogram of one token's
constexpr size_t kCases = 6;            // tokens shown with their contexts
constexpr int64_t kReadSequences = 4;   // whose reads are written out
constexpr int64_t kReadTokens = 512;    // of each; memory grows with the square
constexpr int64_t kParts = 8;           // of a sequence, after which the slots are looked at
constexpr int64_t kMostNamedRows = 40;  // rows of a picture that have names
constexpr size_t kMostTicks = 16;       // sequences on the axis of a picture

Json row_of(const char* table, const Head& head) { return {{"table", table}, {"layer", head.layer}, {"head", head.head}}; }

// A row for each head, with a value from each column of `values`.
draw::Heatmap heads_map(const std::string& title, const std::vector<Head>& heads, const std::vector<std::vector<double>>& values) {
  draw::Heatmap map;
  map.title = title;
  map.rows = static_cast<int64_t>(heads.size());
  map.columns = static_cast<int64_t>(values.at(0).size());
  map.row_label = "head, layer by layer";
  for (const std::vector<double>& row : values) map.values.insert(map.values.end(), row.begin(), row.end());
  if (map.rows <= kMostNamedRows) {
    for (const Head& head : heads) map.row_names.push_back({head.name()});
  }
  map.scale = draw::ColorScale::kPaper;
  map.low = 0;
  return map;
}

// A cell for each layer and head.
draw::Heatmap layers_map(const std::string& title, const std::vector<Head>& heads, const std::vector<double>& values) {
  draw::Heatmap map;
  map.title = title;
  map.row_label = "layer";
  map.column_label = "head";
  for (const Head& head : heads) {
    map.rows = std::max(map.rows, static_cast<int64_t>(head.layer) + 1);
    map.columns = std::max(map.columns, head.head + 1);
  }
  map.values.assign(static_cast<size_t>(map.rows * map.columns), std::nan(""));
  for (size_t i = 0; i < heads.size(); ++i) {
    map.values[heads[i].layer * static_cast<size_t>(map.columns) + static_cast<size_t>(heads[i].head)] = values[i];
  }
  map.low = 0;
  map.high = 1;
  return map;
}

// A text on one line, with `…` where it is cut from.
std::string one_line(const std::string& bytes) {
  std::string out = as_utf8(bytes);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return out;
}

// A row for each case: how its token's increments are spread over its occurrences.
draw::Heatmap cases_map(const analysis::Increments& increments, const std::vector<analysis::TokenCase>& cases) {
  draw::Heatmap map;
  map.title = "The same token in different contexts: how often it gets which increment";
  map.rows = static_cast<int64_t>(cases.size());
  map.columns = kCaseBins;
  map.column_label = "increment";
  map.scale = draw::ColorScale::kPaper;
  map.low = 0;
  for (const auto& one : cases) {
    const auto head = std::find(increments.heads.begin(), increments.heads.end(), one.head) - increments.heads.begin();
    const at::Tensor found = increments.delta[head].masked_select(increments.ids.eq(one.token)).to(at::kDouble);
    const at::Tensor shares = at::histc(found, kCaseBins, 0, 1) / static_cast<double>(found.numel());
    for (int64_t bin = 0; bin < kCaseBins; ++bin) map.values.push_back(shares[bin].item<double>());
    map.row_names.push_back({text("%s \"%s\"", one.head.name().c_str(), one_line(one.word).c_str())});
  }
  for (int64_t bin = 0; bin < kCaseBins; ++bin)
    map.column_names.push_back({bin % 2 == 0 ? text("%.1f", static_cast<double>(bin) / kCaseBins) : ""});
  return map;
}

std::string percent(double share) { return std::isnan(share) ? "-" : text("%.1f%%", 100 * share); }

}  // namespace

void picture(const Probe& probe, const char* name, const draw::Figure& figure) {
  if (probe.out.empty()) return;
  const WriteGuard guard;
  draw::write_figure(probe.out / name, figure);
}

void probe_increments(Probe& probe) {
  probe.increments = analysis::measure_increments(probe.model, probe.w, probe.ids, probe.progress("increments"));
  probe.by_head = analysis::increments_by_head(probe.increments);
  const auto classes = analysis::increments_by_class(probe.increments, probe.by_head);
  for (const auto& one : probe.by_head) {
    Json row = row_of("increments", one.head);
    row.update({{"mean", one.mean}, {"deviation", one.deviation}, {"p05", one.p05}, {"p95", one.p95}, {"class", class_name(one.kind)}});
    probe.rows.push_back(row);
  }
  for (const auto& one : classes) {
    probe.rows.push_back(
        {{"table", "classes"}, {"class", class_name(one.kind)}, {"heads", one.heads}, {"mean", one.mean}, {"deviation", one.deviation}});
  }
  if (probe.prints) {
    std::cout << "\n1. Clock increments: by how many slots a token moves the memory of a head\n"
              << text("%-8s %7s %9s %7s %7s  %s\n", "head", "mean", "deviation", "p05", "p95", "class");
    for (const auto& one : probe.by_head) {
      std::cout << text("%-8s %7.4f %9.4f %7.4f %7.4f  %s\n", one.head.name().c_str(), one.mean, one.deviation, one.p05, one.p95,
                        class_name(one.kind));
    }
    for (const auto& one : classes) {
      std::cout << text("%-16s %3lld of %zu heads", class_name(one.kind), static_cast<long long>(one.heads), probe.by_head.size());
      if (one.heads > 0) std::cout << text(", mean %.4f, deviation %.4f", one.mean, one.deviation);
      std::cout << '\n';
    }
    std::cout << "near one: p05 > 0.95; input dependent: p95 - p05 >= 0.1\n";
  }
  if (probe.out.empty()) return;
  const at::Tensor shares = analysis::increment_histogram(probe.increments, kBins);
  std::vector<std::vector<double>> rows;
  std::vector<double> means, spreads;
  for (size_t i = 0; i < probe.by_head.size(); ++i) {
    const at::Tensor row = shares[static_cast<int64_t>(i)].contiguous();
    rows.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + kBins);
    means.push_back(probe.by_head[i].mean);
    spreads.push_back(probe.by_head[i].p95 - probe.by_head[i].p05);
  }
  draw::Heatmap histogram = heads_map("How often each head uses which increment", probe.increments.heads, rows);
  for (int64_t bin = 0; bin < kBins; ++bin)
    histogram.column_names.push_back({bin % 5 == 0 ? text("%.1f", static_cast<double>(bin) / kBins) : ""});
  histogram.column_label = "increment";
  picture(probe, "increments.png",
          {.title = "Clock increments",
           .panels = {histogram, layers_map("Mean increment", probe.increments.heads, means),
                      layers_map("Spread of the increments, p95 - p05", probe.increments.heads, spreads)},
           .notes = {text("%lld sequences of %lld tokens.", static_cast<long long>(probe.ids.size(0)),
                          static_cast<long long>(probe.ids.size(1)))},
           .description = ""});
}

void probe_variance(Probe& probe) {
  const auto splits = analysis::split_by_token(probe.increments);
  const std::vector<bool> counted = analysis::context_heads(probe.by_head);
  const auto heads = std::count(counted.begin(), counted.end(), true);
  const auto total = analysis::total_split(splits, counted, probe.increments);
  // A model without such heads shows what its other heads do.
  const auto cases =
      analysis::token_cases(probe.increments, heads > 0 ? counted : std::vector<bool>(counted.size(), true), probe.tokenizer, kCases);
  std::vector<double> shares;
  for (size_t i = 0; i < splits.size(); ++i) {
    Json row = row_of("variance", splits[i].head);
    row.update({{"between", splits[i].between},
                {"within", splits[i].within},
                {"identity", splits[i].identity},
                {"adjusted", splits[i].adjusted},
                {"counted", static_cast<bool>(counted[i])}});
    probe.rows.push_back(row);
    shares.push_back(splits[i].identity);
  }
  probe.rows.push_back({{"table", "variance_total"},
                        {"heads", heads},
                        {"identity", total.identity},
                        {"context", 1 - total.identity},
                        {"adjusted", total.adjusted}});
  for (const auto& one : cases) {
    Json row = row_of("cases", one.head);
    row.update({{"token", one.token}, {"word", as_utf8(one.word)}, {"count", one.count}, {"spread", one.spread}});
    for (const auto& [name, where] : {std::pair("low", &one.low), std::pair("high", &one.high)}) {
      row[name] = {{"delta", where->delta},
                   {"before", as_utf8(where->before)},
                   {"after", as_utf8(where->after)},
                   {"sequence", where->sequence},
                   {"position", where->position}};
    }
    probe.rows.push_back(row);
  }
  if (probe.prints) {
    std::cout << "\n2. What decides an increment: the token itself, or its context\n"
              << text("%-8s %9s %9s %9s %9s\n", "head", "token", "context", "adjusted", "variance");
    for (size_t i = 0; i < splits.size(); ++i) {
      const auto& one = splits[i];
      std::cout << text("%-8s %9s %9s %9s %9.2e%s\n", one.head.name().c_str(), percent(one.identity).c_str(),
                        percent(1 - one.identity).c_str(), percent(one.adjusted).c_str(), one.between + one.within,
                        counted[i] ? "" : "  not counted");
    }
    if (heads > 0) {
      std::cout << text("%lld heads together: token %s, context %s (token, adjusted for rare tokens: %s)\n", static_cast<long long>(heads),
                        percent(total.identity).c_str(), percent(1 - total.identity).c_str(), percent(total.adjusted).c_str());
    } else {
      std::cout << "no head is counted\n";
    }
    std::cout << "counted: input-dependent heads beyond the first layer, whose clock sees only the token\n";
    for (const auto& one : cases) {
      std::cout << text("%s, \"%s\" (%lld times)\n", one.head.name().c_str(), one_line(one.word).c_str(),
                        static_cast<long long>(one.count));
      for (const auto* where : {&one.low, &one.high}) {
        std::cout << text("  %.3f  ...%s[%s]%s...\n", where->delta, one_line(where->before).c_str(), one_line(one.word).c_str(),
                          one_line(where->after).c_str());
      }
    }
  }
  if (probe.out.empty()) return;
  std::vector<draw::Panel> panels = {layers_map("Share of the variance between tokens", probe.increments.heads, shares)};
  if (!cases.empty()) panels.emplace_back(cases_map(probe.increments, cases));
  picture(probe, "variance.png",
          {.title = "Token or context: what decides an increment",
           .panels = panels,
           .notes = {"The rest is variance among occurrences of the same token, which only their context can cause."},
           .description = ""});
}

void probe_interventions(Probe& probe) {
  analysis::InterventionPlan plan{.heads = {}, .means = {}, .shift = probe.shift};
  int64_t chosen = 0;
  for (const auto& one : probe.by_head) {
    plan.heads.push_back(one.kind == analysis::HeadClass::kInputDependent);
    plan.means.push_back(one.mean);
    chosen += plan.heads.back() ? 1 : 0;
  }
  const bool every = chosen == 0;
  if (every) plan.heads.assign(plan.heads.size(), true);
  const auto results = analysis::intervene(probe.model, probe.w, probe.held_out, plan, probe.progress("interventions"));
  const std::string names[] = {"original", "mean of the head", text("shifted by %lld tokens", static_cast<long long>(plan.shift)),
                               "delta = 1"};
  for (const auto& one : results) {
    probe.rows.push_back({{"table", "interventions"},
                          {"setting", one.name},
                          {"heads", every ? static_cast<int64_t>(plan.heads.size()) : chosen},
                          {"shift", one.name == "shifted" ? Json(plan.shift) : Json(nullptr)},
                          {"loss", one.mean},
                          {"change", one.change},
                          {"error", one.error},
                          {"worse", one.worse},
                          {"losses", one.losses}});
  }
  if (probe.prints) {
    std::cout << text("\n3. Interventions: the loss of %lld held-out sequences when the increments of %s are replaced\n",
                      static_cast<long long>(probe.held_out.size(0)),
                      every ? "all heads (none is input dependent)"
                            : text("the %lld input-dependent heads", static_cast<long long>(chosen)).c_str())
              << text("%-24s %8s %9s %9s  %s\n", "increments", "loss", "change", "error", "sequences that get worse");
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& one = results[i];
      std::cout << text("%-24s %8.4f", names[i].c_str(), one.mean);
      if (i > 0)
        std::cout << text(" %+9.4f %9.4f  %lld of %zu", one.change, one.error, static_cast<long long>(one.worse), one.losses.size());
      std::cout << '\n';
    }
  }
  draw::LinePlot plot{.title = "Change of the loss of each held-out sequence",
                      .x_label = "held-out sequence",
                      .y_label = "nats per token",
                      .lines = {},
                      .y_low = {},
                      .y_high = {},
                      .x_ticks = {}};
  for (size_t i = 1; i < results.size(); ++i) {
    draw::Line line{.name = names[i], .points = {}, .color = draw::line_color(i - 1), .dots = true};
    for (size_t n = 0; n < results[i].losses.size(); ++n)
      line.points.push_back({static_cast<double>(n + 1), results[i].losses[n] - results[0].losses[n]});
    plot.lines.push_back(line);
  }
  const size_t N = results[0].losses.size();
  for (size_t n = 0; n < N; n += N / kMostTicks + 1) plot.x_ticks.push_back(static_cast<double>(n + 1));
  picture(probe, "interventions.png", {.title = "Increments replaced", .panels = {plot}, .notes = {}, .description = ""});
}

void probe_ages(Probe& probe) {
  const at::Tensor some = probe.ids.narrow(0, 0, std::min(probe.ids.size(0), kReadSequences));
  const int64_t T = std::min(some.size(1), kReadTokens);
  const auto ages = analysis::read_ages(probe.model, probe.w, some.narrow(1, 0, T), probe.progress("read ages"));
  const auto use =
      analysis::slot_use(probe.model, probe.w, some.narrow(1, 0, some.size(1) / kParts * kParts), kParts, probe.progress("slots"));
  std::vector<std::vector<double>> by_age, by_slot, over_time;
  std::vector<draw::CellName> spans;
  for (int64_t begin = 0; begin < T; begin = std::max<int64_t>(1, 2 * begin)) {
    const int64_t last = std::min(T, std::max<int64_t>(1, 2 * begin)) - 1;
    spans.push_back(
        {last > begin ? text("%lld-%lld", static_cast<long long>(begin), static_cast<long long>(last)) : std::to_string(begin)});
  }
  for (size_t i = 0; i < ages.size(); ++i) {
    const auto& one = ages[i];
    std::vector<double> binned(spans.size(), 0);
    for (size_t d = 0; d < one.by_distance.size(); ++d)
      binned[d == 0 ? 0 : static_cast<size_t>(std::floor(std::log2(static_cast<double>(d)))) + 1] += one.by_distance[d];
    Json row = row_of("ages", one.head);
    row.update({{"tokens_mean", one.tokens_mean},
                {"tokens_p50", one.tokens_p50},
                {"tokens_p90", one.tokens_p90},
                {"clock_mean", one.clock_mean},
                {"wrapped", one.wrapped},
                {"by_distance", binned}});
    probe.rows.push_back(row);
    row = row_of("slots", use[i].head);
    row.update({{"slots", use[i].by_slot.size()}, {"used", use[i].slots}, {"energy", use[i].by_slot}});
    probe.rows.push_back(row);
    by_age.push_back(binned);
    by_slot.push_back(use[i].by_slot);
    std::vector<double> shares;
    for (const double used : use[i].slots) shares.push_back(used / static_cast<double>(use[i].by_slot.size()));
    over_time.push_back(shares);
  }
  if (probe.prints) {
    std::cout << text("\n4. What reads find, over %lld sequences of %lld tokens, and how full the slots are after %lld tokens\n",
                      static_cast<long long>(some.size(0)), static_cast<long long>(T),
                      static_cast<long long>(some.size(1) / kParts * kParts))
              << text("%-8s | %8s %6s %6s | %9s %8s | %s\n", "head", "age mean", "p50", "p90", "age", "beyond", "slots in use")
              << text("%-8s | %22s | %9s %8s |\n", "", "tokens", "slots", "m slots");
    for (size_t i = 0; i < ages.size(); ++i) {
      const auto& one = ages[i];
      std::cout << text("%-8s | %8.1f %6lld %6lld | %9.1f %8s | %.1f of %zu\n", one.head.name().c_str(), one.tokens_mean,
                        static_cast<long long>(one.tokens_p50), static_cast<long long>(one.tokens_p90), one.clock_mean,
                        percent(one.wrapped).c_str(), use[i].slots.back(), use[i].by_slot.size());
    }
  }
  if (probe.out.empty()) return;
  std::vector<Head> heads = probe.increments.heads;
  draw::Heatmap age_map = heads_map("How many tokens ago the writes happened that a head reads", heads, by_age);
  age_map.column_names = spans;
  age_map.column_label = "tokens ago";
  draw::Heatmap fill = heads_map("Slots in use, share of all, after each eighth of a sequence", heads, over_time);
  fill.high = 1;
  fill.first_column = 1;
  fill.column_label = "eighths of the sequence";
  std::vector<draw::Panel> panels = {age_map, fill};
  const size_t m = by_slot[0].size();
  if (std::all_of(by_slot.begin(), by_slot.end(), [&](const auto& row) { return row.size() == m; })) {
    draw::Heatmap slots = heads_map("Energy of the slots at the end, share of a head's", heads, by_slot);
    slots.column_label = "slot = age";
    panels.emplace_back(slots);
  }
  picture(probe, "ages.png", {.title = "Ages of reads, and use of slots", .panels = panels, .notes = {}, .description = ""});
}

void probe_page(Probe& probe) {
  if (probe.out.empty()) return;
  // It opens at the head whose increments differ most.
  const auto widest = std::max_element(probe.by_head.begin(), probe.by_head.end(),
                                       [](const auto& a, const auto& b) { return a.p95 - a.p05 < b.p95 - b.p05; });
  const std::string page =
      analysis::clock_page(probe.model, probe.w, probe.ids[0].narrow(0, 0, probe.page_tokens), probe.tokenizer,
                           "The clock of " + probe.name, static_cast<size_t>(widest - probe.by_head.begin()), probe.progress("page"));
  const WriteGuard guard;
  io::AtomicFile file(probe.out / "page.html");
  file.write(std::as_bytes(std::span(page)));
  file.commit();
}

}  // namespace cyfa::app
