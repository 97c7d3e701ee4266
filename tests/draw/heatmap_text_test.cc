// Heat maps as text, checked character by character, and what no heat map may be.
#include "cyfa/draw/heatmap_text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "cyfa/draw/figure.h"

namespace cyfa::draw {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Heatmap make_map(int64_t rows, int64_t columns, std::vector<double> values) {
  Heatmap map;
  map.title = "title";
  map.row_label = "slot";
  map.column_label = "token";
  map.rows = rows;
  map.columns = columns;
  map.values = std::move(values);
  return map;
}

// value = row * columns + column
Heatmap ramp(int64_t rows, int64_t columns) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) {
    values.push_back(static_cast<double>(i));
  }
  return make_map(rows, columns, std::move(values));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

// Number of code points outside escape sequences.
size_t columns_of(const std::string& line) {
  size_t count = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else if ((static_cast<unsigned char>(line[i]) & 0xc0) != 0x80) {
      ++count;
    }
  }
  return count;
}

TEST(HeatmapText, AcceptsEveryEdge) {
  const std::vector<Heatmap> panels = {
      make_map(0, 0, {}),
      make_map(0, 7, {}),
      make_map(3, 0, {}),
      make_map(1, 1, {kNan}),
      make_map(1, 2, {kInf, -kInf}),
      make_map(1, 2, {1e308, -1e308}),
      make_map(2, 2, {5, 5, 5, 5}),
      ramp(500, 3),
      ramp(3, 1500),
  };
  for (Heatmap map : panels) {
    for (const ColorScale scale : {ColorScale::kSequential, ColorScale::kDiverging}) {
      map.scale = scale;
      map.title = std::string(300, 'w') + "\xc3\xa9\x1b";
      map.row_label = std::string(300, 'r');
      map.column_label = std::string(3000, 'c');
      map.first_row = -1000;
      map.first_column = 999'999'999'999;
      for (const TextColor color : {TextColor::kNone, TextColor::kAnsi256, TextColor::kTrueColor}) {
        for (const bool unicode : {false, true}) {
          for (const std::string& line : lines_of(heatmap_text(map, {.width = 60, .height = 10, .color = color, .unicode = unicode}))) {
            EXPECT_LE(columns_of(line), 60u) << line;
          }
        }
      }
    }
  }
}

TEST(Heatmap, RefusesWhatDoesNotFit) {
  const auto refused = [](const Heatmap& map) {
    EXPECT_THROW(draw_figure({.title = "", .panels = {map}, .notes = {}, .description = ""}, Format::kPng), std::invalid_argument);
    EXPECT_THROW(heatmap_text(map), std::invalid_argument);
  };
  refused(make_map(2, 2, {1, 2, 3}));
  refused(make_map(-1, -4, {1, 2, 3, 4}));
  refused(make_map(int64_t{1} << 32, int64_t{1} << 32, {}));
  refused(make_map(std::numeric_limits<int64_t>::max(), 0, {}));
  Heatmap range = ramp(1, 2);
  range.low = 1;
  range.high = 1;
  refused(range);
  range.high = kNan;
  refused(range);
  Heatmap far = ramp(1, 2);
  far.first_row = std::numeric_limits<int64_t>::max();
  refused(far);
  EXPECT_THROW(heatmap_text(ramp(1, 1), {.width = 0}), std::invalid_argument);
  EXPECT_THROW(heatmap_text(ramp(1, 1), {.height = 0}), std::invalid_argument);
}

TEST(HeatmapText, ShadesByMagnitude) {
  EXPECT_EQ(heatmap_text(make_map(2, 3, {0, 1, 2, 3, 4, kNan})),
            "title\n"
            "0 ┤  ░░▒▒\n"
            "  │▓▓██??\n"
            "   0   2\n"
            "rows: slot, columns: token\n"
            "0 [ ░▒▓█] 4\n");
}

TEST(HeatmapText, TellsTheSignWithoutColour) {
  Heatmap map = make_map(1, 5, {-1, -0.5, 0, 0.5, 1});
  map.scale = ColorScale::kDiverging;
  map.title.clear();
  map.row_label.clear();
  map.column_label.clear();
  EXPECT_EQ(heatmap_text(map), "0 ┤@@oo  ▒▒██\n   0   2   4\n-1 [@Oo. ░▒▓█] 1\n");
  const std::string ascii = heatmap_text(map, {.unicode = false});
  EXPECT_EQ(ascii, "0 |%%--  ++##\n   0   2   4\n-1 [%=-, .+*#] 1\n");
}

TEST(HeatmapText, AveragesToTheLimits) {
  const std::vector<std::string> lines = lines_of(heatmap_text(ramp(100, 1000), {.width = 60, .height = 10}));
  ASSERT_EQ(lines.size(), 14u);
  EXPECT_EQ(lines[0], "title (cells average 10 x 18)");
  for (size_t i = 1; i <= 10; ++i) {
    EXPECT_LE(columns_of(lines[i]), 60u);
    EXPECT_GE(columns_of(lines[i]), 50u);
  }
  EXPECT_TRUE(lines[1].starts_with(" 0 ┤")) << lines[1];
  EXPECT_TRUE(lines[5].starts_with("40 ┤")) << lines[5];
  EXPECT_NE(lines[11].find("200"), std::string::npos);
  // The mean of the first block, 10 x 18, is 4500 + 8.5; that of the last, 10 x 10, is 94500 + 994.5.
  EXPECT_EQ(lines[13], "4.51e+03 [ ░▒▓█] 9.55e+04");
}

TEST(HeatmapText, ColoursTwoRowsALine) {
  Heatmap map = make_map(3, 2, {0, 1, 1, 1, 0, 0});
  map.title.clear();
  const auto escape = [](int layer, double position) {
    const Color c = color_at(ColorScale::kSequential, position);
    return "\x1b[" + std::to_string(layer) + ";2;" + std::to_string(c.r) + ";" + std::to_string(c.g) + ";" + std::to_string(c.b) + "m";
  };
  const std::vector<std::string> lines = lines_of(heatmap_text(map, {.color = TextColor::kTrueColor}));
  EXPECT_EQ(lines[0], "0 ┤" + escape(38, 0) + escape(48, 1) + "▀" + escape(38, 1) + "▀\x1b[0m");
  EXPECT_EQ(lines[1], "  │" + escape(38, 0) + "▀▀\x1b[0m");
}

TEST(HeatmapText, The256ColoursAreNear) {
  // The middle of the diverging scale is nearest to the lightest grey.
  Heatmap map = make_map(1, 1, {0});
  map.scale = ColorScale::kDiverging;
  EXPECT_NE(heatmap_text(map, {.color = TextColor::kAnsi256}).find("\x1b[38;5;255m"), std::string::npos);
  for (const std::string& line : lines_of(heatmap_text(ramp(8, 8), {.color = TextColor::kAnsi256}))) {
    EXPECT_EQ(line.find(";2;"), std::string::npos);
  }
}

TEST(HeatmapText, EveryColouredLineEndsReset) {
  for (const TextColor color : {TextColor::kAnsi256, TextColor::kTrueColor}) {
    for (const bool unicode : {false, true}) {
      for (const std::string& line : lines_of(heatmap_text(ramp(5, 9), {.color = color, .unicode = unicode}))) {
        const size_t last = line.rfind('\x1b');
        EXPECT_TRUE(last == std::string::npos || line.substr(last, 4) == "\x1b[0m") << line;
        EXPECT_TRUE(unicode || std::all_of(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
      }
    }
  }
}

TEST(HeatmapText, LabelsCannotSteerTheTerminal) {
  Heatmap map = ramp(1, 1);
  map.title = "a\x1b[2J\nb\xc2\x9b\xc3\xa9";
  EXPECT_EQ(lines_of(heatmap_text(map))[0], "a?[2J?b?\xc3\xa9");
  EXPECT_EQ(lines_of(heatmap_text(map, {.unicode = false}))[0], "a?[2J?b??");
}

TEST(HeatmapText, SaysWhenThereIsNothing) { EXPECT_EQ(heatmap_text(make_map(0, 5, {})), "title\n(empty: 0 x 5)\n"); }

class TerminalStyle : public testing::Test {
 protected:
  void TearDown() override {
    for (const auto& [name, value] : saved_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }
  void set(const std::string& name, const char* value) {
    const char* old = std::getenv(name.c_str());
    saved_.emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));  // keeps the first value
    value != nullptr ? ::setenv(name.c_str(), value, 1) : ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> saved_;
};

TEST_F(TerminalStyle, NoColourWhereThereIsNoTerminal) {
  set("COLORTERM", "truecolor");
  set("NO_COLOR", nullptr);
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const TextStyle style = terminal_style(ends[1]);
  EXPECT_EQ(style.color, TextColor::kNone);
  EXPECT_EQ(style.width, 80);
  EXPECT_EQ(terminal_style(-1).color, TextColor::kNone);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(TerminalStyle, ATerminalHasItsSizeAndColourUnlessForbidden) {
  const int control = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (control < 0 || ::grantpt(control) != 0 || ::unlockpt(control) != 0) {
    GTEST_SKIP() << "no pseudo-terminals here";
  }
  const int terminal = ::open(::ptsname(control), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  const auto resize = [&](unsigned short rows, unsigned short columns) {
    const winsize size = {.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(control, TIOCSWINSZ, &size), 0);
  };
  set("TERM", "xterm-256color");
  set("COLORTERM", nullptr);
  set("NO_COLOR", nullptr);
  resize(50, 120);
  EXPECT_EQ(terminal_style(terminal).width, 120);
  EXPECT_EQ(terminal_style(terminal).height, 45);
  EXPECT_EQ(terminal_style(terminal).color, TextColor::kAnsi256);
  set("COLORTERM", "24bit");
  EXPECT_EQ(terminal_style(terminal).color, TextColor::kTrueColor);
  set("NO_COLOR", "");
  EXPECT_EQ(terminal_style(terminal).color, TextColor::kTrueColor);
  set("NO_COLOR", "1");
  EXPECT_EQ(terminal_style(terminal).color, TextColor::kNone);
  set("NO_COLOR", nullptr);
  set("TERM", "dumb");
  EXPECT_EQ(terminal_style(terminal).color, TextColor::kNone);
  resize(1, 1);
  EXPECT_NO_THROW(heatmap_text(ramp(3, 3), terminal_style(terminal)));
  ::close(terminal);
  ::close(control);
}

TEST_F(TerminalStyle, TheLocaleDecidesAboutUnicode) {
  set("LC_ALL", nullptr);
  set("LC_CTYPE", nullptr);
  set("LANG", nullptr);
  EXPECT_TRUE(terminal_style(-1).unicode);
  set("LANG", "C");
  EXPECT_FALSE(terminal_style(-1).unicode);
  set("LC_ALL", "en_US.UTF-8");
  EXPECT_TRUE(terminal_style(-1).unicode);
}

}  // namespace
}  // namespace cyfa::draw
