// What is put around the ids of a text (begin token and the like): a list of templates, applied in
// order.
//
// Thread: immutable once built. Failure: none.
#pragma once

#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

// TemplateProcessing for a single sequence: the ids before and after it. A template that has the
// sequence more than once or not at all is refused when the file is read.
struct SequenceTemplate {
  std::vector<TokenId> before;
  std::vector<TokenId> after;
};

class PostProcessor {
 public:
  explicit PostProcessor(std::vector<SequenceTemplate> templates);
  std::vector<TokenId> Apply(std::vector<TokenId> ids) const;

 private:
  SequenceTemplate around_;  // all templates as one
};

}  // namespace augur::engine
