#include "loadtest/training_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace augur::loadtest {

std::string TrainingLines(const DocumentsOfTasks& documents) {
  std::string lines;
  size_t most = 0;
  for (const auto& [task, of_task] : documents) most = std::max(most, of_task.size());
  for (size_t number = 0; number < most; ++number) {
    for (const auto& [task, of_task] : documents) {
      if (number >= of_task.size()) continue;
      const Document& document = of_task[number];
      std::string text = document.text;
      for (const Question& question : document.questions) {
        text += question.text + " " + question.answer;
        for (const std::string& answer : question.more_answers) text += ", " + answer;
      }
      lines += nlohmann::json{{"text", text}, {"asked_from", document.text.size()}}.dump() + "\n";
    }
  }
  return lines;
}

}  // namespace augur::loadtest
