#include "tests/e2e/needles.h"

#include <fstream>

#include "nlohmann/json.hpp"

namespace augur::tests {

std::vector<Needle> LoadNeedles(const std::string& length) {
  std::ifstream file(AUGUR_NEEDLES);
  const nlohmann::json all = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::vector<Needle> needles;
  if (!all.is_object() || !all.contains(length)) return needles;
  for (const nlohmann::json& entry : all[length]) {
    needles.push_back({entry["prompt"], entry["answer"], entry["tokens"]});
  }
  return needles;
}

bool IsRight(const Needle& needle, const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin != std::string::npos &&
         text.compare(begin, needle.answer.size(), needle.answer) == 0;
}

}  // namespace augur::tests
