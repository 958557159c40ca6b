// Oniguruma patterns on PCRE2: what passes means the same, the rest is refused by name.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace augur::engine {
namespace {

std::vector<std::string> MatchesOf(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> found;
  if (!regex.ok()) return found;
  const Regex::Matches matches = regex->FindAll(text);
  EXPECT_EQ(matches.searched, text.size());
  for (const TextSpan& span : matches.spans)
    found.push_back(text.substr(span.begin, span.end - span.begin));
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, SpaceIsUnicodeWhiteSpace) {
  EXPECT_EQ(MatchesOf("\\s", "a\u0085b\u00A0c\u2003d\u200Be\u180Ef\u001C"),
            (Strings{"\u0085", "\u00A0", "\u2003"}));
  EXPECT_EQ(MatchesOf("[^\\s]+", "ab \u3000c"), (Strings{"ab", "c"}));
  EXPECT_EQ(MatchesOf("[\\S]", "a b"), (Strings{"a", "b"}));
}

TEST(Regex, WordHasMarksAndConnectors) {
  EXPECT_EQ(MatchesOf("\\w+", "e\u0301_\u203F1-x"), (Strings{"e\u0301_\u203F1", "x"}));
  EXPECT_EQ(MatchesOf("\\W", "a-b"), (Strings{"-"}));
  EXPECT_EQ(MatchesOf("[^\\w]", "a-b"), (Strings{"-"}));
}

TEST(Regex, EmptyMatchesCutButDoNotRepeat) {
  EXPECT_EQ(MatchesOf("x*", "axxb"), (Strings{"", "xx", ""}));
  EXPECT_EQ(MatchesOf("", "\u4E2D"), (Strings{"", ""}));
}

TEST(Regex, LinesEndAtLineFeedOnly) { EXPECT_EQ(MatchesOf("^.", "a\nb\rc"), (Strings{"a", "b"})); }

TEST(Regex, RefusesWhatHasNoTranslation) {
  for (const std::string pattern :
       {"\\b",          "\\h",    "\\K",   "\\R",    "\\X",     "\\1",    "[a&&b]",
        "[[:alpha:]]",  "[a[b]]", "[\\W]", "(?m:.)", "(?<n>a)", "a(?i)b", "(*VERB)",
        "\\p{Foo Bar}", "\\pL",   "a{2}+", "\\xFF",  "\\x{zz}", "\\",     "[]a]"}) {
    const absl::StatusOr<std::string> translated = TranslateToPcre2(pattern);
    EXPECT_FALSE(translated.ok()) << pattern;
    EXPECT_TRUE(absl::IsUnimplemented(translated.status()))
        << pattern << " " << translated.status();
    EXPECT_NE(translated.status().message().find(pattern), std::string::npos);
  }
}

TEST(Regex, SyntaxErrorsNameThePattern) {
  for (const std::string pattern : {"(", "[a", "*a", "\\p{NoSuchScript}", "a{3,1}"}) {
    const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_TRUE(absl::IsInvalidArgument(regex.status()));
    EXPECT_NE(regex.status().message().find(pattern), std::string::npos) << regex.status();
  }
}

TEST(Regex, EscapedTextMatchesItself) {
  const std::string text = "a.b*[c]\\d(\u00E9)^$|?+{1}#-/ ";
  EXPECT_EQ(MatchesOf(EscapeForRegex(text), "x" + text + "y"), (Strings{text}));
}

// Exponential backtracking meets the limit: what was not searched is reported, not lost.
TEST(Regex, GivesUpAtItsLimit) {
  const absl::StatusOr<Regex> regex = Regex::Compile("ab|(?:(?:a|a)(?:a|a)?)+c");
  ASSERT_TRUE(regex.ok()) << regex.status();
  const std::string text = "abab" + std::string(200, 'a');
  const Regex::Matches matches = regex->FindAll(text);
  EXPECT_EQ(matches.spans.size(), 2u);
  EXPECT_EQ(matches.searched, 4u);
}

}  // namespace
}  // namespace augur::engine
