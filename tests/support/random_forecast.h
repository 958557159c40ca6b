// A seeded random file of Forecast heads: until trained ones exist, and where only bits matter.
#pragma once

#include <cstdint>
#include <string>

namespace augur::tests {

// Writes heads for a model of that shape; uniform in +-1/sqrt(hidden), as training begins.
void WriteRandomForecast(const std::string& path, int num_layers, int kv_width, int hidden,
                         uint32_t seed);

}  // namespace augur::tests
