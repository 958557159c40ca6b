#include "loadtest/random_variates.h"

#include <cmath>

namespace augur::loadtest {
namespace {

constexpr double kPi = 3.14159265358979323846;

}  // namespace

double DrawExponential(SeededDraw* draw) { return -std::log1p(-draw->Unit()); }

double DrawNormal(SeededDraw* draw) {
  const double radius = std::sqrt(2 * DrawExponential(draw));
  return radius * std::cos(2 * kPi * draw->Unit());
}

double DrawGamma(double shape, SeededDraw* draw) {
  if (shape < 1) {
    // Gamma(a) = Gamma(a + 1) * U^(1/a).
    const double boost = std::pow(1 - draw->Unit(), 1 / shape);
    return DrawGamma(shape + 1, draw) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = DrawNormal(draw);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    const double u = 1 - draw->Unit();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace augur::loadtest
