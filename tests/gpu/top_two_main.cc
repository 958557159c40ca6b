// Questions whose greedy texts differ between two runs, beside what the CPU's model thought there:
// its two best tokens at the first place where the texts part, and how far their logits lie apart.
//
// usage: top_two MODEL DIFFERENCES.json   (of needles.py compare; one line a question)
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "tests/support/model_driver.h"

namespace augur::tests {
namespace {

// Greedy tokens while the text is a beginning of both answers; then the logits that part them.
void Show(const engine::Tokenizer& tokenizer, ModelDriver* model, const nlohmann::json& question) {
  const std::string expected = question.at("expected"), found = question.at("found");
  const auto parting = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  const size_t common = parting.first - expected.begin();
  const std::vector<int32_t> prompt =
      tokenizer.Encode(question.at("prompt").get<std::string>(), {});
  ModelDriver::Sequence sequence = model->Start(prompt, 16);
  std::vector<float> logits = model->Prefill(&sequence, 512);
  std::vector<int32_t> answer;
  while (true) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + 2, order.end(),
                      [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    answer.push_back(order[0]);
    if (tokenizer.Decode(answer, true).size() > common || answer.size() == 16) {
      std::printf("tokens %zu, expected \"%s\", found \"%s\": parts at \"%s\" %.4f, \"%s\" %.4f, margin %.4f\n",
                  prompt.size(), expected.c_str(), found.c_str(),
                  tokenizer.TokenBytes(order[0]).c_str(), logits[order[0]],
                  tokenizer.TokenBytes(order[1]).c_str(), logits[order[1]],
                  logits[order[0]] - logits[order[1]]);
      break;
    }
    logits = model->Decode(&sequence, 1)[0];
  }
  model->Finish(sequence);
}

int Main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: top_two MODEL DIFFERENCES.json\n");
    return 2;
  }
  const auto tokenizer = engine::LoadTokenizer(std::string(argv[1]) + "/tokenizer.json");
  std::ifstream file(argv[2]);
  const nlohmann::json questions = nlohmann::json::parse(file, nullptr, false);
  if (!tokenizer.ok() || !questions.is_array()) {
    std::fprintf(stderr, "top_two: %s\n",
                 tokenizer.ok() ? "the second file is no JSON list"
                                : std::string(tokenizer.status().message()).c_str());
    return 2;
  }
  ModelDriver model({.folder = argv[1], .threads = 2, .kv_dtype = kernels::DType::kBF16});
  for (const nlohmann::json& question : questions) Show(**tokenizer, &model, question);
  return 0;
}

}  // namespace
}  // namespace augur::tests

int main(int argc, char** argv) { return augur::tests::Main(argc, argv); }
