// Draws from distributions, from the same seeded bits on every machine.
//
// Thread: plain functions; the draw has one owner. Failure: none.
#pragma once

#include "loadtest/seeded_draw.h"

namespace augur::loadtest {

// Mean 1.
double DrawExponential(SeededDraw* draw);
// Mean 0, standard deviation 1 (Box and Muller 1958; the second of the pair is not used).
double DrawNormal(SeededDraw* draw);
// Mean `shape`, variance `shape`; shape above 0 (Marsaglia and Tsang 2000).
double DrawGamma(double shape, SeededDraw* draw);

}  // namespace augur::loadtest
