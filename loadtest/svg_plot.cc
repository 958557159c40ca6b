#include "loadtest/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace augur::loadtest {
namespace {

constexpr double kPlotWidth = 540;
constexpr double kPlotHeight = 300;
constexpr double kGap = 16;
constexpr double kHeading = 70;
constexpr double kLeft = 58;
constexpr double kRight = 18;
constexpr double kTop = 62;
constexpr double kBottom = 46;
constexpr size_t kFewPoints = 9;
// Told apart by the colour-blind too (after Okabe and Ito 2008).
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool IsDrawn(const Plot& plot, const PlotPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!plot.log_x || point.x > 0) &&
         (!plot.log_y || point.y > 0);
}

// One axis: from data to user units.
class Axis {
 public:
  Axis(bool log, Range range, double from, double to)
      : log_(log), low_(Map(range.low)), high_(Map(range.high)), from_(from), to_(to) {
    if (high_ - low_ < 1e-12) {
      low_ -= 0.5;
      high_ += 0.5;
    }
  }
  double At(double value) const {
    return from_ + (to_ - from_) * (Map(value) - low_) / (high_ - low_);
  }

 private:
  double Map(double value) const { return log_ ? std::log10(value) : value; }

  bool log_;
  double low_;
  double high_;
  double from_;
  double to_;
};

std::string Text(double x, double y, const char* kind, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, kind,
                         EscapeXml(text));
}

std::string LineTo(double x1, double y1, double x2, double y2, const char* kind) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                         x1, y1, x2, y2, kind);
}

// Everything of one plot, at the origin.
class PlotDrawing {
 public:
  explicit PlotDrawing(const Plot& plot) : plot_(plot) {
    Range x;
    Range y;
    for (const PlotSeries& series : plot.series) {
      for (const PlotPoint& point : series.points) {
        if (!IsDrawn(plot, point)) continue;
        x.Take(point.x);
        y.Take(point.y);
        xs_.push_back(point.x);
      }
    }
    std::sort(xs_.begin(), xs_.end());
    xs_.erase(std::unique(xs_.begin(), xs_.end()), xs_.end());
    if (xs_.empty()) {
      x = {1, 2};
      y = {1, 2};
    }
    ChooseTicks(&x, &y);
    x_ = Axis(plot.log_x, x, kLeft, kPlotWidth - kRight);
    y_ = Axis(plot.log_y, y, kPlotHeight - kBottom, kTop);
  }

  std::string Svg() const {
    std::string svg = absl::StrFormat(
        "<rect width=\"%g\" height=\"%g\" rx=\"8\" class=\"card\"/>\n", kPlotWidth, kPlotHeight);
    svg += Text(16, 24, "title", plot_.title);
    svg += Legend() + Grid();
    if (xs_.empty()) svg += Text(kPlotWidth / 2, kPlotHeight / 2, "none", "no data");
    for (size_t i = 0; i < plot_.series.size(); ++i) svg += Curve(i);
    return svg;
  }

 private:
  void ChooseTicks(Range* x, Range* y) {
    if (plot_.log_y) {
      y->low /= 1.25;
      y->high *= 1.25;
      y_ticks_ = LogTicks(y->low, y->high);
    } else {
      y->low = std::min(y->low, 0.0);
      if (y->high <= y->low) y->high = y->low + 1;
      y_ticks_ = LinearTicks(y->low, y->high, 5);
      y->high = std::max(y->high * 1.04, y_ticks_.back());
    }
    if (xs_.size() <= kFewPoints) {
      x_ticks_ = xs_;
    } else {
      x_ticks_ = plot_.log_x ? LogTicks(x->low, x->high) : LinearTicks(x->low, x->high, 6);
    }
  }

  std::string Legend() const {
    std::string svg;
    double at = 16;
    for (size_t i = 0; i < plot_.series.size(); ++i) {
      const PlotSeries& series = plot_.series[i];
      svg += absl::StrFormat(
          "<line x1=\"%.1f\" y1=\"40\" x2=\"%.1f\" y2=\"40\" class=\"curve\" stroke=\"%s\"%s/>\n",
          at, at + 18, kColours[i % kColours.size()], Dash(series));
      svg += Text(at + 23, 44, "legend", series.name);
      at += 36 + 6.3 * static_cast<double>(series.name.size());
    }
    return svg;
  }

  std::string Grid() const {
    std::string svg;
    for (const double tick : y_ticks_) {
      const double at = y_.At(tick);
      if (at < kTop - 0.5 || at > kPlotHeight - kBottom + 0.5) continue;
      svg += LineTo(kLeft, at, kPlotWidth - kRight, at, "grid");
      svg += Text(kLeft - 7, at + 4, "ytick", TickText(tick));
    }
    double last = -1e9;
    for (const double tick : x_ticks_) {
      const double at = x_.At(tick);
      svg += LineTo(at, kPlotHeight - kBottom, at, kPlotHeight - kBottom + 4, "axis");
      if (at - last < 26) continue;  // there is no room for its text
      last = at;
      svg += Text(at, kPlotHeight - kBottom + 17, "xtick", TickText(tick));
    }
    svg += LineTo(kLeft, kPlotHeight - kBottom, kPlotWidth - kRight, kPlotHeight - kBottom, "axis");
    svg += Text((kLeft + kPlotWidth - kRight) / 2, kPlotHeight - 10, "xlabel", plot_.x_label);
    svg += Text(kPlotWidth - kRight, 24, "unit", plot_.y_label);
    return svg;
  }

  static const char* Dash(const PlotSeries& series) {
    return series.dashed ? " stroke-dasharray=\"5 4\"" : "";
  }

  std::string Curve(size_t number) const {
    const PlotSeries& series = plot_.series[number];
    const char* colour = kColours[number % kColours.size()];
    std::string path;
    std::string marks;
    for (const PlotPoint& point : series.points) {
      if (!IsDrawn(plot_, point)) continue;
      const double x = x_.At(point.x);
      const double y = y_.At(point.y);
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : " L", x, y);
      absl::StrAppendFormat(
          &marks,
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\" fill=\"%s\" stroke=\"%s\" "
          "class=\"mark\"><title>%s</title></circle>\n",
          x, y, point.hollow ? "#ffffff" : colour, colour,
          EscapeXml(absl::StrCat(series.name, ": ", TickText(point.y), " ", plot_.y_label,
                                 point.note.empty() ? "" : ", ", point.note)));
    }
    if (path.empty()) return "";
    return absl::StrFormat("<path d=\"%s\" class=\"curve\" stroke=\"%s\"%s/>\n%s", path, colour,
                           Dash(series), marks);
  }

  const Plot& plot_;
  std::vector<double> xs_;
  std::vector<double> x_ticks_;
  std::vector<double> y_ticks_;
  Axis x_{false, {0, 1}, 0, 1};
  Axis y_{false, {0, 1}, 0, 1};
};

constexpr char kStyle[] =
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
    "font-size:11px;fill:#475569}"
    ".heading{font-size:20px;font-weight:600;fill:#0f172a}.sub{font-size:12px}"
    ".title{font-size:14px;font-weight:600;fill:#0f172a}.legend{fill:#334155}"
    ".ytick{text-anchor:end}.xtick,.xlabel,.none{text-anchor:middle}.unit{text-anchor:end}"
    ".card{fill:#ffffff;stroke:#e2e8f0}.grid{stroke:#eef2f7}.axis{stroke:#94a3b8}"
    ".curve{fill:none;stroke-width:2;stroke-linejoin:round}.mark{stroke-width:2}";

}  // namespace

std::string EscapeXml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // Control characters are not XML; what comes from a daemon may hold any.
        escaped += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return escaped;
}

std::string TickText(double value) {
  const double size = std::fabs(value);
  if (size >= 1e6) return absl::StrFormat("%.4gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%.4gk", value / 1e3);
  return absl::StrFormat("%.4g", value);
}

std::vector<double> LinearTicks(double low, double high, int wanted) {
  const double raw = std::max(high - low, 1e-12) / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  for (double i = first; (i - 1) * step < high - 1e-9 * step; ++i) {
    ticks.push_back(i * step);
    if (ticks.back() >= high - 1e-9 * step) break;
  }
  return ticks;
}

std::vector<double> LogTicks(double low, double high) {
  std::vector<double> ticks;
  const bool powers_alone = high / low > 1e3;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (powers_alone && factor != 1.0) continue;
      const double tick = factor * power;
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string PlotSheet(const std::string& heading, const std::string& subheading,
                      const std::vector<Plot>& plots) {
  const size_t rows = (plots.size() + 1) / 2;
  const double width = 2 * kPlotWidth + 3 * kGap;
  const double height = kHeading + static_cast<double>(rows) * (kPlotHeight + kGap);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
      "height=\"%g\" role=\"img\">\n<style>%s</style>\n"
      "<rect width=\"%g\" height=\"%g\" fill=\"#f8fafc\"/>\n",
      width, height, width, height, kStyle, width, height);
  svg += Text(kGap + 4, 32, "heading", heading) + Text(kGap + 4, 53, "sub", subheading);
  for (size_t i = 0; i < plots.size(); ++i) {
    const double x = kGap + static_cast<double>(i % 2) * (kPlotWidth + kGap);
    const double y = kHeading + static_cast<double>(i / 2) * (kPlotHeight + kGap);
    svg += absl::StrFormat("<g transform=\"translate(%g %g)\">\n%s</g>\n", x, y,
                           PlotDrawing(plots[i]).Svg());
  }
  return svg + "</svg>\n";
}

}  // namespace augur::loadtest
