// cyfa show clock: draws marked writes as they move through the slots of one head, whose clock runs fast, slowly, or not at all.
// Computed in double precision with functions of the reference (cyfa/kernels/cyclic_flow/reference/reference.h).
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <random>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "cyfa/draw/figure.h"
#include "cyfa/draw/heatmap_text.h"
#include "cyfa/kernels/cyclic_flow/reference/reference.h"

namespace cyfa::app {
namespace {

namespace ref = cyclic_flow::reference;

constexpr double kAlpha = 0.996;    // forget gate of every token
constexpr int64_t kKeyWidth = 256;  // the query's cosine with the unit keys of other tokens is near 1 / 16
constexpr double kSharpness = 18;   // logit of a perfect match when it is written
constexpr size_t kFollowed = 1;     // index of the marked write that the query matches
constexpr uint64_t kSeed = 7;

struct Options {
  std::string picture;
  int64_t tokens = 180;
  int64_t slots = 63;
};

// The clock increment in each part of the sequence, chosen by hand in place of learned ones.
struct Stretch {
  double until;  // end of the part, as a share of the tokens
  double delta;
};
constexpr std::array<Stretch, 6> kPace = {{{0.20, 0.60}, {0.36, 0.12}, {0.46, 0.0}, {0.62, 1.0}, {0.78, 0.25}, {1.0, 0.50}}};
constexpr std::array<double, 5> kMarkedAt = {0.03, 0.12, 0.28, 0.41, 0.66};

struct Story {
  std::vector<double> delta, clock;  // [T]
  std::vector<int64_t> marked;       // tokens whose writes are drawn
  std::vector<double> profile;       // [m, T] the marked writes in the slots
  std::vector<double> weights;       // [m, T] softmax weights of the query
};

std::vector<double> random_unit(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> x(kKeyWidth);
  double square = 0;
  for (double& value : x) {
    value = normal(random);
    square += value * value;
  }
  for (double& value : x) value /= std::sqrt(square);
  return x;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> softmax(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (const double logit : logits) {
    p.push_back(std::exp(logit - top));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  return p;
}

Story tell(const Options& options) {
  const int64_t T = options.tokens;
  const int64_t m = options.slots;
  const int64_t M = m + 1;
  Story story;
  for (int64_t t = 0; t < T; ++t) {
    const double at = static_cast<double>(t) / static_cast<double>(T);
    const auto* stretch = kPace.begin();
    while (at >= stretch->until) ++stretch;
    story.delta.push_back(stretch->delta);
    story.clock.push_back((t == 0 ? 0 : story.clock.back()) + stretch->delta);
  }
  for (const double share : kMarkedAt) story.marked.push_back(static_cast<int64_t>(share * static_cast<double>(T)));

  std::mt19937_64 random(kSeed);
  std::vector<std::vector<double>> keys;
  for (int64_t t = 0; t < T; ++t) keys.push_back(random_unit(random));
  const std::vector<double>& query = keys[static_cast<size_t>(story.marked[kFollowed])];

  // In the absolute frame past writes do not move: both sums only decay, and each token adds its write.
  story.profile.assign(static_cast<size_t>(m * T), 0);
  story.weights.assign(static_cast<size_t>(m * T), 0);
  std::vector<double> marks(static_cast<size_t>(M), 0);
  std::vector<double> scores(static_cast<size_t>(M), 0);
  for (int64_t t = 0; t < T; ++t) {
    const auto now = static_cast<size_t>(t);
    const double clock = story.clock[now];
    const std::vector<double> write = ref::temporal_write(M, clock);
    const double mark = std::find(story.marked.begin(), story.marked.end(), t) != story.marked.end() ? 1 : 0;
    const double match = kSharpness * dot(keys[now], query);
    for (size_t i = 0; i < marks.size(); ++i) {
      marks[i] = kAlpha * marks[i] + mark * write[i];
      scores[i] = kAlpha * scores[i] + match * write[i];
    }
    const std::vector<double> on_slots = ref::relative_from_absolute(M, 1, marks.data(), clock);
    const std::vector<double> weights = softmax(ref::relative_from_absolute(M, 1, scores.data(), clock));
    for (int64_t r = 0; r < m; ++r) {
      const auto cell = static_cast<size_t>(r * T + t);
      story.profile[cell] = on_slots[static_cast<size_t>(r)];
      story.weights[cell] = weights[static_cast<size_t>(r)];
    }
  }
  return story;
}

std::vector<draw::Heatmap> panels(const Story& story, const Options& options) {
  const auto panel = [&](const std::string& title, int64_t rows, const std::vector<double>& values) {
    draw::Heatmap map;
    map.title = title;
    map.rows = rows;
    map.columns = options.tokens;
    map.values = values;
    map.low = 0;
    map.high = 1;
    return map;
  };
  draw::Heatmap slots = panel("1. The slots: marked writes enter at slot 0 and age", options.slots, story.profile);
  slots.row_label = "slot = age";
  slots.scale = draw::ColorScale::kDiverging;
  draw::Heatmap clock = panel("2. The clock: by how many slots each token moves them", 1, story.delta);
  clock.scale = draw::ColorScale::kPaper;
  clock.row_names = {{"", draw::kInk}};
  draw::Heatmap read = panel(text("3. The read: softmax weights of a query that looks for the write of token %lld",
                                  static_cast<long long>(story.marked[kFollowed])),
                             options.slots, story.weights);
  read.row_label = "slot = age";
  read.scale = draw::ColorScale::kPaper;
  read.column_label = "token";
  return {slots, clock, read};
}

std::string tokens_text(const std::vector<int64_t>& tokens) {
  std::string out;
  for (const int64_t token : tokens) out += (out.empty() ? "" : ", ") + std::to_string(token);
  return out;
}

// The increments up to the pause, as text.
std::string paces_text() {
  std::string out;
  for (const Stretch& stretch : kPace) {
    out += (out.empty() ? "" : ", ") + text("%g", stretch.delta);
    if (stretch.delta == 0) break;
  }
  return out;
}

draw::Figure figure(const Story& story, const std::vector<draw::Heatmap>& maps) {
  return {.title = "One head's memory while its clock runs",
          .panels = {maps.begin(), maps.end()},
          .notes = {"Each token first moves all slots down by its increment, then writes its key and value into slot 0.",
                    "1: the writes of tokens " + tokens_text(story.marked) +
                        ". A write on a whole slot is sharp; between two it spreads (red +, blue -). It fades, and past the last slot it "
                        "returns at the first.",
                    "2: the increments: " + paces_text() + " (paused), and so on. Slots are used up only where the clock runs.",
                    "3: before its write the query finds nothing; then it follows the write wherever the clock takes it."},
          .description = ""};
}

int run_show(const Options& options) {
  if (options.slots % 2 == 0) {
    throw std::invalid_argument("--slots is " + std::to_string(options.slots) + "; wanted an odd number (M = slots + 1 are stored)");
  }
  const Story story = tell(options);
  const std::vector<draw::Heatmap> maps = panels(story, options);
  draw::TextStyle style = draw::terminal_style(STDOUT_FILENO);
  style.height = std::min(style.height, 16);
  for (const draw::Heatmap& map : maps) std::cout << draw::heatmap_text(map, style) << '\n';
  if (!options.picture.empty()) {
    const WriteGuard guard;
    draw::write_figure(options.picture, figure(story, maps));
    std::cout << "picture written to " << options.picture << '\n';
  }
  return kDone;
}

}  // namespace

void add_show_clock(CLI::App& show, Action& action) {
  CLI::App* command =
      show.add_subcommand("clock", "Draw how writes move through the slots while the clock runs fast, slowly or not at all.");
  auto options = std::make_shared<Options>();
  add_picture(command, &options->picture);
  command->add_option("--tokens", options->tokens, "Tokens in the sequence")->check(CLI::Range(20, 4000))->capture_default_str();
  command->add_option("--slots", options->slots, "Active slots, an odd number")->check(CLI::Range(3, 511))->capture_default_str();
  command->callback([&action, options] { action = [options] { return run_show(*options); }; });
}

}  // namespace cyfa::app
