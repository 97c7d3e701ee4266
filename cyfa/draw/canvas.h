// A surface to draw on, by Cairo: PNG or SVG. Used by figure.cc and its panels; nothing else of the project includes Cairo.
// Coordinates are points, x to the right and y down from the top left corner; a PNG has kPixelsPerPoint pixels per point.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cyfa/draw/color.h"

namespace cyfa::draw {

enum class Format { kPng, kSvg };

inline constexpr double kPixelsPerPoint = 2;
inline constexpr double kMostPoints = 16000;  // of a picture's side

struct Point {
  double x = 0;
  double y = 0;
};

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;

  double right() const { return x + width; }
  double bottom() const { return y + height; }
};

struct Font {
  double size = 12;
  bool bold = false;
};

enum class Align { kLeft, kCenter, kRight };
enum class Stroke { kSolid, kDashed, kNone };

// The width of a text in points. Throws std::runtime_error if the machine has no font.
double text_width(const std::string& text, const Font& font);
// The text, or as much of it as fits into `width` with an ellipsis.
std::string fitted(const std::string& text, const Font& font, double width);
// The text in lines no wider than `width`, broken at spaces; a longer word is cut.
std::vector<std::string> wrapped(const std::string& text, const Font& font, double width);

class Canvas {
 public:
  // A white picture. Throws std::invalid_argument unless both sides are within 1 .. kMostPoints.
  Canvas(Format format, double width, double height);
  ~Canvas();
  Canvas(Canvas&&) noexcept;

  double width() const { return width_; }
  double height() const { return height_; }

  // Writes a text at x, vertically centred at y. Control characters and invalid UTF-8 become '?'.
  void text(double x, double y, const std::string& words, const Font& font, Color color, Align align = Align::kLeft);
  // The same, turned upward: centred at y, with its middle line at x.
  void text_upward(double x, double y, const std::string& words, const Font& font, Color color);
  void line(Point from, Point to, Color color, double width);
  void polyline(std::span<const Point> points, Color color, double width, double opacity, Stroke stroke);
  void dot(Point at, double radius, Color color);
  void fill(const Box& box, Color color);
  void frame(const Box& box, Color color);
  // Cells of equal size, row by row from the top left.
  void cells(const Box& box, int rows, int columns, std::span<const Color> colors);
  // Restricts what follows to the box, until unclip().
  void clip(const Box& box);
  void unclip();

  // Where the inks of all texts are, for tests of the layout.
  struct PlacedText {
    std::string words;
    Box box;
  };
  const std::vector<PlacedText>& texts() const { return texts_; }

  // The file. `description` is stored in an SVG as <desc>, which readers for the blind speak and programs can read. Call once, last.
  std::vector<std::byte> finish(const std::string& description = "");

 private:
  struct Surface;
  void place(const std::string& words, const Box& box) { texts_.push_back({words, box}); }

  Format format_;
  double width_, height_;
  std::vector<PlacedText> texts_;
  std::unique_ptr<Surface> surface_;
};

}  // namespace cyfa::draw
