#include "cyfa/draw/canvas.h"

#include <cairo-svg.h>
#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace cyfa::draw {
namespace {

constexpr const char* kFamily = "DejaVu Sans";

void check(cairo_status_t status, const char* what) {
  if (status != CAIRO_STATUS_SUCCESS) throw std::runtime_error(std::string("drawing: ") + what + ": " + cairo_status_to_string(status));
}

// Bytes of the UTF-8 character that begins at `at`; 0 if there is none.
size_t character_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(at);
  const size_t length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 ? 4 : 0;
  if (length == 0 || first > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  const unsigned second = byte(at + 1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) || (first == 0xf0 && second < 0x90) ||
      (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

// Cairo refuses invalid UTF-8, and with it the rest of the picture.
std::string drawable(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = byte < 0x20 || byte == 0x7f || (byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    out += length == 0 || control ? "?" : text.substr(i, length);
    i += std::max<size_t>(length, 1);
  }
  return out;
}

void set_font(cairo_t* cairo, const Font& font) {
  cairo_select_font_face(cairo, kFamily, CAIRO_FONT_SLANT_NORMAL, font.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo, font.size);
  // Without hinting a text is equally wide in PNG and SVG.
  cairo_font_options_t* options = cairo_font_options_create();
  cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
  cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
  cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
  cairo_set_font_options(cairo, options);
  cairo_font_options_destroy(options);
}

void set_color(cairo_t* cairo, Color color, double opacity = 1) {
  cairo_set_source_rgba(cairo, color.r / 255.0, color.g / 255.0, color.b / 255.0, opacity);
}

cairo_status_t append(void* to, const unsigned char* data, unsigned length) {
  auto* bytes = static_cast<std::vector<std::byte>*>(to);
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  bytes->insert(bytes->end(), begin, begin + length);
  return CAIRO_STATUS_SUCCESS;
}

// A context that only measures.
class Ruler {
 public:
  Ruler() : surface_(cairo_recording_surface_create(CAIRO_CONTENT_ALPHA, nullptr)), cairo_(cairo_create(surface_)) {
    check(cairo_status(cairo_), "a surface for measuring");
    if (measure("M", Font{}).x_advance <= 0) {
      throw std::runtime_error("drawing: this machine has no font; install one, such as Debian's package fonts-dejavu-core");
    }
  }
  Ruler(const Ruler&) = delete;
  Ruler& operator=(const Ruler&) = delete;
  ~Ruler() {
    cairo_destroy(cairo_);
    cairo_surface_destroy(surface_);
  }

  cairo_text_extents_t measure(const std::string& text, const Font& font) {
    set_font(cairo_, font);
    cairo_text_extents_t extents = {};
    cairo_text_extents(cairo_, drawable(text).c_str(), &extents);
    return extents;
  }

 private:
  cairo_surface_t* surface_;
  cairo_t* cairo_;
};

cairo_text_extents_t measure(const std::string& text, const Font& font) {
  static thread_local Ruler ruler;
  return ruler.measure(text, font);
}

// Distance from the middle of a line of text, half way up a capital, to its baseline.
double baseline(const Font& font) { return 0.365 * font.size; }

// The first `count` characters; invalid bytes count as one each.
std::string first_characters(const std::string& text, size_t count) {
  size_t at = 0;
  while (count-- > 0 && at < text.size()) at += std::max<size_t>(character_length(text, at), 1);
  return text.substr(0, at);
}

size_t characters(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += std::max<size_t>(character_length(text, at), 1);
  return count;
}

// The most characters of the text that fit into `width` with `tail` behind them.
size_t fitting(const std::string& text, const std::string& tail, const Font& font, double width) {
  size_t low = 0, high = characters(text);
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (text_width(first_characters(text, middle) + tail, font) <= width) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::string xml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

}  // namespace

double text_width(const std::string& text, const Font& font) { return measure(text, font).x_advance; }

std::string fitted(const std::string& text, const Font& font, double width) {
  if (text_width(text, font) <= width) return text;
  const size_t count = fitting(text, "…", font, width);
  return count == 0 ? "" : first_characters(text, count) + "…";
}

std::vector<std::string> wrapped(const std::string& text, const Font& font, double width) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    const std::string longer = line.empty() ? word : line + " " + word;
    if (text_width(longer, font) <= width) {
      line = longer;
      continue;
    }
    if (!line.empty()) lines.push_back(line);
    line = fitted(word, font, width);
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

struct Canvas::Surface {
  std::vector<std::byte> bytes;  // of the SVG, written when the surface is finished
  cairo_surface_t* surface = nullptr;
  cairo_t* cairo = nullptr;

  ~Surface() {
    cairo_destroy(cairo);
    cairo_surface_destroy(surface);
  }
};

Canvas::Canvas(Format format, double width, double height)
    : format_(format), width_(std::ceil(width)), height_(std::ceil(height)), surface_(std::make_unique<Surface>()) {
  if (!(width_ >= 1 && height_ >= 1 && width_ <= kMostPoints && height_ <= kMostPoints)) {
    throw std::invalid_argument("picture: " + std::to_string(width) + " x " + std::to_string(height) + " points; each side must be 1 to " +
                                std::to_string(static_cast<int>(kMostPoints)));
  }
  Surface& s = *surface_;
  if (format == Format::kPng) {
    s.surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width_ * kPixelsPerPoint),
                                           static_cast<int>(height_ * kPixelsPerPoint));
    cairo_surface_set_device_scale(s.surface, kPixelsPerPoint, kPixelsPerPoint);
  } else {
    s.surface = cairo_svg_surface_create_for_stream(append, &s.bytes, width_, height_);
    cairo_svg_surface_set_document_unit(s.surface, CAIRO_SVG_UNIT_PX);
  }
  s.cairo = cairo_create(s.surface);
  check(cairo_status(s.cairo), "a surface");
  set_color(s.cairo, kWhite);
  cairo_paint(s.cairo);
}

Canvas::~Canvas() = default;
Canvas::Canvas(Canvas&&) noexcept = default;

void Canvas::text(double x, double y, const std::string& words, const Font& font, Color color, Align align) {
  if (words.empty()) return;
  const cairo_text_extents_t e = measure(words, font);
  const double left = align == Align::kLeft ? x : align == Align::kCenter ? x - e.x_advance / 2 : x - e.x_advance;
  const double base = y + baseline(font);
  set_font(surface_->cairo, font);
  set_color(surface_->cairo, color);
  cairo_move_to(surface_->cairo, left, base);
  cairo_show_text(surface_->cairo, drawable(words).c_str());
  place(words, {left + e.x_bearing, base + e.y_bearing, e.width, e.height});
}

void Canvas::text_upward(double x, double y, const std::string& words, const Font& font, Color color) {
  if (words.empty()) return;
  const cairo_text_extents_t e = measure(words, font);
  const Point start = {x + baseline(font), y + e.x_advance / 2};
  cairo_save(surface_->cairo);
  set_font(surface_->cairo, font);
  set_color(surface_->cairo, color);
  cairo_move_to(surface_->cairo, start.x, start.y);
  cairo_rotate(surface_->cairo, -std::numbers::pi / 2);
  cairo_show_text(surface_->cairo, drawable(words).c_str());
  cairo_restore(surface_->cairo);
  place(words, {start.x + e.y_bearing, start.y - e.x_bearing - e.width, e.height, e.width});
}

void Canvas::line(Point from, Point to, Color color, double width) {
  polyline(std::vector<Point>{from, to}, color, width, 1, Stroke::kSolid);
}

void Canvas::polyline(std::span<const Point> points, Color color, double width, double opacity, Stroke stroke) {
  if (points.size() < 2 || stroke == Stroke::kNone) return;
  cairo_t* cairo = surface_->cairo;
  cairo_save(cairo);
  cairo_set_line_width(cairo, width);
  cairo_set_line_join(cairo, CAIRO_LINE_JOIN_ROUND);
  cairo_set_line_cap(cairo, stroke == Stroke::kSolid ? CAIRO_LINE_CAP_ROUND : CAIRO_LINE_CAP_BUTT);
  if (stroke == Stroke::kDashed) {
    const double dashes[] = {3 * width, 2 * width};
    cairo_set_dash(cairo, dashes, 2, 0);
  }
  set_color(cairo, color, opacity);
  cairo_move_to(cairo, points[0].x, points[0].y);
  for (const Point& p : points.subspan(1)) cairo_line_to(cairo, p.x, p.y);
  cairo_stroke(cairo);
  cairo_restore(cairo);
}

void Canvas::dot(Point at, double radius, Color color) {
  cairo_new_path(surface_->cairo);
  cairo_arc(surface_->cairo, at.x, at.y, radius, 0, 2 * std::numbers::pi);
  set_color(surface_->cairo, color);
  cairo_fill(surface_->cairo);
}

void Canvas::fill(const Box& box, Color color) {
  cairo_rectangle(surface_->cairo, box.x, box.y, box.width, box.height);
  set_color(surface_->cairo, color);
  cairo_fill(surface_->cairo);
}

void Canvas::frame(const Box& box, Color color) {
  cairo_rectangle(surface_->cairo, box.x, box.y, box.width, box.height);
  cairo_set_line_width(surface_->cairo, 1);
  set_color(surface_->cairo, color);
  cairo_stroke(surface_->cairo);
}

// The cells are one image, as tall and wide in pixels as the box is in a PNG. In an SVG it is embedded: thousands of rectangles would show
// gaps between them, and viewers blur images that they enlarge.
void Canvas::cells(const Box& box, int rows, int columns, std::span<const Color> colors) {
  if (rows <= 0 || columns <= 0) return;
  const int wide = std::max(columns, static_cast<int>(std::lround(box.width * kPixelsPerPoint)));
  const int tall = std::max(rows, static_cast<int>(std::lround(box.height * kPixelsPerPoint)));
  cairo_surface_t* image = cairo_image_surface_create(CAIRO_FORMAT_RGB24, wide, tall);
  check(cairo_surface_status(image), "cells");
  cairo_surface_flush(image);
  unsigned char* data = cairo_image_surface_get_data(image);
  const int stride = cairo_image_surface_get_stride(image);
  for (int y = 0; y < tall; ++y) {
    auto* pixel = reinterpret_cast<uint32_t*>(data + static_cast<ptrdiff_t>(y) * stride);
    const auto row = static_cast<size_t>(static_cast<int64_t>(y) * rows / tall) * static_cast<size_t>(columns);
    for (int x = 0; x < wide; ++x) {
      const Color c = colors[row + static_cast<size_t>(static_cast<int64_t>(x) * columns / wide)];
      pixel[x] = static_cast<uint32_t>(c.r) << 16 | static_cast<uint32_t>(c.g) << 8 | c.b;
    }
  }
  cairo_surface_mark_dirty(image);
  cairo_t* cairo = surface_->cairo;
  cairo_save(cairo);
  cairo_translate(cairo, box.x, box.y);
  cairo_scale(cairo, box.width / wide, box.height / tall);
  cairo_set_source_surface(cairo, image, 0, 0);
  cairo_pattern_set_filter(cairo_get_source(cairo), CAIRO_FILTER_NEAREST);
  cairo_rectangle(cairo, 0, 0, wide, tall);
  cairo_fill(cairo);
  cairo_restore(cairo);
  cairo_surface_destroy(image);
}

void Canvas::clip(const Box& box) {
  cairo_save(surface_->cairo);
  cairo_rectangle(surface_->cairo, box.x, box.y, box.width, box.height);
  cairo_clip(surface_->cairo);
}

void Canvas::unclip() { cairo_restore(surface_->cairo); }

std::vector<std::byte> Canvas::finish(const std::string& description) {
  Surface& s = *surface_;
  check(cairo_status(s.cairo), "the picture");
  if (format_ == Format::kPng) {
    std::vector<std::byte> png;
    check(cairo_surface_write_to_png_stream(s.surface, append, &png), "the PNG");
    return png;
  }
  cairo_surface_finish(s.surface);
  check(cairo_surface_status(s.surface), "the SVG");
  if (description.empty()) return std::move(s.bytes);
  std::string svg(reinterpret_cast<const char*>(s.bytes.data()), s.bytes.size());
  const size_t root = svg.find("<svg");
  const size_t head = root == std::string::npos ? root : svg.find('>', root);
  if (head == std::string::npos) throw std::runtime_error("drawing: the SVG has no root element");
  svg.insert(head + 1, "\n<desc>" + xml(drawable(description)) + "</desc>");
  const auto bytes = std::as_bytes(std::span(svg));
  return {bytes.begin(), bytes.end()};
}

}  // namespace cyfa::draw
