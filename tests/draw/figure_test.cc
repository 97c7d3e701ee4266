// Pictures are read back with Cairo and checked pixel by pixel; labels must lie within the picture and may not overlap.
#include "cyfa/draw/figure.h"

#include <cairo.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "cyfa/draw/axis.h"
#include "cyfa/io/file_error.h"

namespace cyfa::draw {
namespace {

namespace fs = std::filesystem;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A PNG as pixels.
class Picture {
 public:
  explicit Picture(const std::vector<std::byte>& png) : bytes_(png) {
    surface_ = cairo_image_surface_create_from_png_stream(read, this);
    EXPECT_EQ(cairo_surface_status(surface_), CAIRO_STATUS_SUCCESS);
  }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  ~Picture() { cairo_surface_destroy(surface_); }

  int width() const { return cairo_image_surface_get_width(surface_); }
  int height() const { return cairo_image_surface_get_height(surface_); }
  Color at(int x, int y) const {
    const unsigned char* row =
        cairo_image_surface_get_data(surface_) + static_cast<ptrdiff_t>(y) * cairo_image_surface_get_stride(surface_);
    const uint32_t pixel = reinterpret_cast<const uint32_t*>(row)[x];
    return {static_cast<uint8_t>(pixel >> 16), static_cast<uint8_t>(pixel >> 8), static_cast<uint8_t>(pixel)};
  }
  int count(Color color) const {
    int found = 0;
    for (int y = 0; y < height(); ++y) {
      for (int x = 0; x < width(); ++x) found += at(x, y) == color ? 1 : 0;
    }
    return found;
  }

 private:
  static cairo_status_t read(void* self, unsigned char* data, unsigned length) {
    auto* picture = static_cast<Picture*>(self);
    if (picture->next_ + length > picture->bytes_.size()) return CAIRO_STATUS_READ_ERROR;
    for (unsigned i = 0; i < length; ++i) data[i] = std::to_integer<unsigned char>(picture->bytes_[picture->next_++]);
    return CAIRO_STATUS_SUCCESS;
  }

  const std::vector<std::byte>& bytes_;
  size_t next_ = 0;
  cairo_surface_t* surface_ = nullptr;
};

std::vector<std::byte> png_of(const Figure& figure) { return draw_figure(figure, Format::kPng).finish(); }
std::string svg_of(const Figure& figure) {
  const std::vector<std::byte> bytes = draw_figure(figure, Format::kSvg).finish(figure.description);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
Figure figure_of(std::vector<Panel> panels) { return {.title = "", .panels = std::move(panels), .notes = {}, .description = ""}; }

Heatmap map_of(int64_t rows, int64_t columns, std::vector<double> values) {
  Heatmap map;
  map.title = "title";
  map.row_label = "slot";
  map.column_label = "token";
  map.rows = rows;
  map.columns = columns;
  map.values = std::move(values);
  return map;
}

Heatmap ramp(int64_t rows, int64_t columns) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) values.push_back(static_cast<double>(i));
  return map_of(rows, columns, std::move(values));
}

LinePlot plot_of(std::vector<Line> lines) {
  LinePlot plot;
  plot.title = "title";
  plot.x_label = "step";
  plot.y_label = "loss";
  plot.lines = std::move(lines);
  return plot;
}

// Every pair of texts keeps apart, and none leaves the picture.
void expect_clean(const Figure& figure, const std::string& what) {
  const Canvas canvas = draw_figure(figure, Format::kPng);
  const std::vector<Canvas::PlacedText>& texts = canvas.texts();
  for (size_t i = 0; i < texts.size(); ++i) {
    const Box& a = texts[i].box;
    EXPECT_TRUE(a.x >= 0 && a.y >= 0 && a.right() <= canvas.width() && a.bottom() <= canvas.height())
        << what << ": \"" << texts[i].words << "\" leaves the picture";
    for (size_t j = i + 1; j < texts.size(); ++j) {
      const Box& b = texts[j].box;
      EXPECT_TRUE(a.right() <= b.x || b.right() <= a.x || a.bottom() <= b.y || b.bottom() <= a.y)
          << what << ": \"" << texts[i].words << "\" overlaps \"" << texts[j].words << "\"";
    }
  }
}

TEST(Figure, DrawsEachCellInItsColour) {
  Heatmap map = map_of(4, 4, std::vector<double>(16, 0.5));
  map.low = 0;
  map.high = 1;
  map.values[1] = 0;
  map.values[6] = 1;
  map.values[9] = kNan;
  const Picture picture(png_of(figure_of({map})));
  const auto corner = [&](double position) {  // of the cell with this colour
    const Color color = color_at(ColorScale::kSequential, position);
    for (int y = 0; y + 30 < picture.height(); ++y) {
      for (int x = 0; x + 100 < picture.width(); ++x) {
        if (picture.at(x, y) == color && picture.at(x + 100, y) == color && picture.at(x, y + 30) == color) return std::pair(x, y);
      }
    }
    return std::pair(-1, -1);
  };
  const auto [zero_x, zero_y] = corner(0);
  const auto [one_x, one_y] = corner(1);
  const auto [missing_x, missing_y] = corner(kNan);
  ASSERT_TRUE(zero_x > 0 && one_x > 0 && missing_x > 0);
  const int wide = one_x - zero_x, tall = one_y - zero_y;  // row 0 is at the top and column 0 at the left
  EXPECT_GT(wide, 100);
  EXPECT_NEAR(tall, 18 * kPixelsPerPoint, 1);
  EXPECT_NEAR(missing_x, zero_x, 1);
  EXPECT_NEAR(missing_y, zero_y + 2 * tall, 1);
}

TEST(Figure, DrawsLinesWhereTheirPointsAre) {
  LinePlot plot = plot_of({{.name = "", .points = {{0, 0}, {10, 10}}, .color = {255, 0, 0}, .width = 4}});
  plot.y_low = 0;
  plot.y_high = 10;
  const Picture picture(png_of(figure_of({plot})));
  int low_x = picture.width(), high_x = 0, low_y = 0, high_y = 0;
  for (int y = 0; y < picture.height(); ++y) {
    for (int x = 0; x < picture.width(); ++x) {
      if (picture.at(x, y) != Color{255, 0, 0}) continue;
      if (x < low_x) low_x = x, low_y = y;
      if (x > high_x) high_x = x, high_y = y;
    }
  }
  EXPECT_GT(high_x - low_x, picture.width() / 2);
  EXPECT_GT(low_y - high_y, 500);  // it rises, over a plot of 280 points
  // A point that is not finite leaves a hole.
  plot.lines[0].points = {{0, 5}, {4, 5}, {5, kNan}, {6, 5}, {10, 5}};
  const Picture broken(png_of(figure_of({plot})));
  plot.lines[0].points = {{0, 5}, {4, 5}, {6, 5}, {10, 5}};
  EXPECT_GT(Picture(png_of(figure_of({plot}))).count({255, 0, 0}), broken.count({255, 0, 0}) + 500);
}

TEST(Figure, LabelsKeepApartAndInside) {
  const std::string wide(300, 'w'), words = "A long name of a line that goes on and on";
  std::vector<Line> many;
  for (size_t i = 0; i < 30; ++i) many.push_back({.name = words + std::to_string(i), .points = {{0, 1}, {1, 2}}, .color = line_color(i)});
  many.push_back({.name = wide, .points = {{0, 1}, {1, 2}}});
  expect_clean(figure_of({plot_of(many)}), "many lines");
  for (const double low : {-1e12, -3.0, 0.0, 1e-9, 0.999999, 12345.678, 1e299}) {
    for (const double range : {1e-7, 0.37, 1.0, 999.0, 123456.0, 1e11}) {
      LinePlot plot = plot_of({{.name = "a", .points = {{low, low}, {low + range, low + range}}}});
      expect_clean(figure_of({plot}), "range " + std::to_string(low) + " + " + std::to_string(range));
      if (low <= 0) continue;
      plot.log_x = plot.log_y = true;
      expect_clean(figure_of({plot}), "logarithmic range " + std::to_string(low) + " + " + std::to_string(range));
    }
  }
  for (const double plot_height : {20.0, 60.0, 400.0}) {
    LinePlot plot = plot_of({{.name = "a", .points = {{1, 0.001}, {1e9, 123456.0}}}});
    plot.plot_height = plot_height;
    expect_clean(figure_of({plot}), "height " + std::to_string(plot_height));
    plot.log_x = plot.log_y = true;
    expect_clean(figure_of({plot}), "logarithmic, height " + std::to_string(plot_height));
  }
  for (const auto& [rows, columns] : {std::pair(1, 1), {1, 200}, {2, 7}, {40, 3}, {300, 300}, {3, 5000}, {0, 0}}) {
    Heatmap map = ramp(rows, columns);
    map.first_column = 999'999'999'000;
    map.first_row = -1000;
    map.title = map.row_label = map.column_label = wide;
    expect_clean(figure_of({map, plot_of(many), ramp(columns, rows)}), std::to_string(rows) + " x " + std::to_string(columns));
    for (int i = 0; i < rows; ++i) map.row_names.push_back({"row " + std::to_string(i), kInk});
    for (int i = 0; i < columns; ++i) map.column_names.push_back({"column " + std::to_string(i), kInk});
    Figure named = figure_of({map});
    named.title = wide;
    named.notes = {wide, words + " " + words + " " + words + " " + words};
    expect_clean(named, "names, " + std::to_string(rows) + " x " + std::to_string(columns));
  }
}

TEST(Figure, OneDrawingGivesBothFormats) {
  Figure figure = figure_of({plot_of({{.name = "a", .points = {{0, 1}, {5, 3}}}}), ramp(3, 4)});
  figure.description = "lines & <cells>";
  const std::string svg = svg_of(figure);
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("<desc>lines &amp; &lt;cells&gt;</desc>"), std::string::npos);
  const Picture picture(png_of(figure));
  EXPECT_EQ(picture.width(), static_cast<int>(figure.width * kPixelsPerPoint));
  std::ostringstream box;
  box << "viewBox=\"0 0 " << picture.width() / kPixelsPerPoint << ' ' << picture.height() / kPixelsPerPoint << '"';
  EXPECT_NE(svg.find(box.str()), std::string::npos) << svg.substr(0, 300);
  EXPECT_EQ(png_of(figure), png_of(figure));  // equal figures give equal pixels; an SVG has running numbers
}

TEST(Figure, IsDrawnWhateverThePoints) {
  const std::vector<std::vector<Point>> all = {
      {}, {{1, 2}}, {{1, kNan}}, {{kInf, 1}, {2, -kInf}}, {{1, 1e308}, {2, -1e308}}, {{0, 0}, {0, 0}}};
  for (const std::vector<Point>& points : all) {
    for (const bool log : {false, true}) {
      LinePlot plot = plot_of({{.name = "a", .points = points, .dots = true}});
      plot.log_x = plot.log_y = log;
      expect_clean(figure_of({plot}), "odd points");
      EXPECT_EQ(svg_of(figure_of({plot})).find("nan"), std::string::npos);
    }
  }
  for (const Heatmap& map :
       {map_of(1, 1, {kNan}), map_of(1, 2, {kInf, -kInf}), map_of(1, 2, {1e308, -1e308}), map_of(2, 2, {5, 5, 5, 5})}) {
    EXPECT_FALSE(png_of(figure_of({map})).empty());
  }
}

TEST(Figure, TakesAnyBytesAsText) {
  Figure figure = figure_of({ramp(1, 1)});
  figure.title = "a\x1b[2J\xff\xc3(\xe2\x82\xed\xa0\x80 \xc3\xa9";
  figure.description = figure.title;
  EXPECT_NO_THROW(png_of(figure));
  EXPECT_EQ(svg_of(figure).find('\x1b'), std::string::npos);
}

TEST(Figure, RefusesWhatItCannotDraw) {
  EXPECT_THROW(draw_figure(figure_of({}), Format::kPng), std::invalid_argument);
  Figure narrow = figure_of({ramp(2, 2)});
  narrow.width = 100;
  EXPECT_THROW(draw_figure(narrow, Format::kPng), std::invalid_argument);
  LinePlot tall = plot_of({});
  tall.plot_height = 1e6;
  EXPECT_THROW(draw_figure(figure_of({tall}), Format::kSvg), std::invalid_argument);
  Heatmap names = ramp(2, 2);
  names.row_names = {{"only one", kInk}};
  EXPECT_THROW(draw_figure(figure_of({names}), Format::kPng), std::invalid_argument);
  EXPECT_THROW(picture_format("picture.jpg"), std::invalid_argument);
  EXPECT_THROW(picture_format("png"), std::invalid_argument);
}

TEST(Figure, AFileIsReplacedOrLeftAsItWas) {
  const fs::path folder = fs::temp_directory_path() / ("cyfa_draw_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const Figure figure = figure_of({ramp(2, 2)});
  write_figure(folder / "a.png", figure);
  write_figure(folder / "a.svg", figure);
  EXPECT_GT(fs::file_size(folder / "a.png"), 500U);
  EXPECT_GT(fs::file_size(folder / "a.svg"), 500U);
  EXPECT_THROW(write_figure(folder / "absent" / "a.png", figure), io::FileError);
  fs::remove_all(folder);
}

TEST(Axis, TicksAreRoundAndWithin) {
  const auto texts = [](const std::vector<Tick>& ticks) {
    std::string out;
    for (const Tick& tick : ticks) out += tick.text + " ";
    return out;
  };
  EXPECT_EQ(texts(linear_ticks(0, 1, 6)), "0.0 0.2 0.4 0.6 0.8 1.0 ");
  EXPECT_EQ(texts(linear_ticks(-0.3, 0.3, 4)), "-0.2 0.0 0.2 ");
  EXPECT_EQ(texts(linear_ticks(0, 65536, 4)), "0 50,000 ");
  EXPECT_EQ(texts(log_ticks(1, 1000, 10)), "1 2 5 10 20 50 100 200 500 1,000 ");
  EXPECT_EQ(texts(log_ticks(1, 1000, 4)), "1 10 100 1,000 ");
  EXPECT_EQ(texts(log_ticks(0.002, 0.3, 3)), "0.01 0.1 ");
}

TEST(Colours, LightnessFollowsTheValue) {
  const auto lightness = [](Color c) { return 0.2126 * c.r + 0.7152 * c.g + 0.0722 * c.b; };
  for (int i = 0; i < 100; ++i) {
    EXPECT_LT(lightness(color_at(ColorScale::kSequential, i / 100.0)), lightness(color_at(ColorScale::kSequential, (i + 1) / 100.0)));
    EXPECT_GT(lightness(color_at(ColorScale::kPaper, i / 100.0)), lightness(color_at(ColorScale::kPaper, (i + 1) / 100.0)));
  }
  EXPECT_EQ(color_at(ColorScale::kPaper, 0), kWhite);
  EXPECT_EQ(color_at(ColorScale::kSequential, -3), color_at(ColorScale::kSequential, 0));
  EXPECT_EQ(color_at(ColorScale::kDiverging, kInf), color_at(ColorScale::kDiverging, 1));
  for (const ColorScale scale : {ColorScale::kSequential, ColorScale::kDiverging, ColorScale::kPaper}) {
    for (int i = 0; i <= 100; ++i) EXPECT_NE(color_at(scale, i / 100.0), color_at(scale, kNan));
  }
}

}  // namespace
}  // namespace cyfa::draw
