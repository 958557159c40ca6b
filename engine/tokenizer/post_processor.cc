#include "engine/tokenizer/post_processor.h"

#include <utility>

namespace augur::engine {

PostProcessor::PostProcessor(std::vector<SequenceTemplate> templates) {
  for (SequenceTemplate& outer : templates) {
    outer.before.insert(outer.before.end(), around_.before.begin(), around_.before.end());
    around_.before = std::move(outer.before);
    around_.after.insert(around_.after.end(), outer.after.begin(), outer.after.end());
  }
}

std::vector<TokenId> PostProcessor::Apply(std::vector<TokenId> ids) const {
  ids.insert(ids.begin(), around_.before.begin(), around_.before.end());
  ids.insert(ids.end(), around_.after.begin(), around_.after.end());
  return ids;
}

}  // namespace augur::engine
