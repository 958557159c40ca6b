// Line plots as SVG, drawn by us: no script, no font, no resource from anywhere.
//
// Thread: plain functions. Ownership: values. Units: of the data; sizes in SVG's user units.
// Failure: none; points that are not finite, or not above 0 on a logarithmic axis, are left out.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace augur::loadtest {

struct PlotPoint {
  double x = 0;
  double y = 0;
  bool hollow = false;  // drawn as a ring
  std::string note;     // shown when pointed at
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
  bool dashed = false;
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // ticks at the points themselves, where these are few
  bool log_y = false;
  std::vector<PlotSeries> series;  // at most six have colours of their own
};

// A whole SVG document: `plots` in rows of two, with a heading and a line below it.
std::string PlotSheet(const std::string& heading, const std::string& subheading,
                      const std::vector<Plot>& plots);

// Ticks at 1, 2 or 5 times a power of ten that cover [low, high], about `wanted` of them.
std::vector<double> LinearTicks(double low, double high, int wanted);
// 1, 2, 5 times powers of ten within [low, high]; powers alone over more than three decades.
std::vector<double> LogTicks(double low, double high);
// "0.5", "250", "12k".
std::string TickText(double value);

// For text and attributes of XML and HTML.
std::string EscapeXml(const std::string& text);

}  // namespace augur::loadtest
