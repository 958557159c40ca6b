// Oniguruma (Ruby syntax) to PCRE2, for the part of the language that tokenizers use.
#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/regex.h"

namespace augur::engine {
namespace {

// PCRE2's own \s has U+180E, its \w lacks marks and connectors; Oniguruma follows Unicode's
// definitions.
constexpr std::string_view kSpace = "\\p{White_Space}";
constexpr std::string_view kNotSpace = "\\P{White_Space}";
constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size() && error_.empty()) {
      if (in_[at_] == '\\') {
        Escape();
      } else if (in_class_) {
        InClass();
      } else {
        Outside();
      }
    }
    if (!error_.empty()) return absl::UnimplementedError(error_);
    return out_;
  }

 private:
  bool At(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void Copy(size_t bytes) {
    out_.append(in_.substr(at_, bytes));
    at_ += bytes;
  }

  void Refuse(std::string_view construct) {
    error_ = absl::StrCat("unsupported regular expression construct \"", std::string(construct),
                          "\" in \"", std::string(in_), "\"");
  }

  void Replace(size_t bytes, std::string_view with) {
    out_.append(with);
    at_ += bytes;
  }

  void Escape() {
    if (at_ + 1 >= in_.size()) return Refuse("\\");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        return Replace(2, kSpace);
      case 'S':
        return Replace(2, kNotSpace);
      case 'w':
        return Replace(2, in_class_ ? std::string(kWordMembers)
                                    : absl::StrCat("[", std::string(kWordMembers), "]"));
      case 'W':
        if (in_class_) return Refuse("[\\W]");
        return Replace(2, absl::StrCat("[^", std::string(kWordMembers), "]"));
      case 'p':
      case 'P':
        return Property();
      case 'x':
        return HexEscape();
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
        return Copy(2);
      case 'A':
      case 'z':
        return in_class_ ? Refuse(in_.substr(at_, 2)) : Copy(2);
      default:
        break;
    }
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) return Replace(1, "");  // an escaped character beyond ASCII is itself
    if (std::isalnum(byte)) return Refuse(in_.substr(at_, 2));
    Copy(2);
  }

  // \p{L}, \p{^Lu}, \p{Han}: general categories pass, longer names are scripts, matched by Script
  // as Oniguruma does (PCRE2 would take Script_Extensions).
  void Property() {
    const size_t close = in_.find('}', at_);
    if (in_.substr(at_ + 2, 1) != "{" || close == std::string_view::npos) {
      return Refuse(in_.substr(at_, 3));
    }
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    for (const char c : name) {
      if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') {
        return Refuse(in_.substr(at_, close + 1 - at_));
      }
    }
    const bool is_script = name.size() > 2 && name != "White_Space" && name != "Alphabetic";
    absl::StrAppend(&out_, std::string(in_.substr(at_, 2)), "{", negated ? "^" : "",
                    is_script ? "sc:" : "", std::string(name), "}");
    at_ = close + 1;
  }

  // \xHH and \x{H...} with exactly the digits both engines read.
  void HexEscape() {
    size_t end = at_ + 2;
    const bool braces = in_.substr(end, 1) == "{";
    if (braces) ++end;
    const size_t digits_begin = end;
    while (end < in_.size() && end - digits_begin < (braces ? 8u : 2u) &&
           std::isxdigit(static_cast<unsigned char>(in_[end]))) {
      ++end;
    }
    const size_t digits = end - digits_begin;
    if (braces ? (digits == 0 || in_.substr(end, 1) != "}") : digits != 2) {
      return Refuse(in_.substr(at_, end - at_));
    }
    if (!braces && in_[digits_begin] >= '8')
      return Refuse(in_.substr(at_, 4));  // a raw byte in Oniguruma
    Copy(end - at_ + (braces ? 1 : 0));
  }

  void InClass() {
    if (At("&&")) return Refuse("&&");
    if (in_[at_] == '[') return Refuse(At("[:") ? "[[: :]]" : "[[ ]]");
    if (in_[at_] == ']') in_class_ = false;
    Copy(1);
  }

  void Outside() {
    const char c = in_[at_];
    if (c == '[') {
      in_class_ = true;
      Copy(At("[^") ? 2 : 1);
      if (At("]")) Refuse("[]");
    } else if (c == '(' && in_.substr(at_ + 1, 1) == "?") {
      Group();
    } else if (c == '(' && in_.substr(at_ + 1, 1) == "*") {
      Refuse("(*");  // a verb in PCRE2, an error in Oniguruma
    } else if (c == '}' && (in_.substr(at_ + 1, 1) == "+" || in_.substr(at_ + 1, 1) == "?")) {
      Refuse(in_.substr(at_, 2));  // possessive or lazy here, a second quantifier in Ruby
    } else {
      Copy(1);
    }
  }

  void Group() {
    for (const std::string_view opening :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (At(opening)) return Copy(opening.size());
    }
    if (At("(?i)") && at_ == 0) return Copy(4);  // elsewhere its reach over alternatives differs
    Refuse(in_.substr(at_, 4));
  }

  std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::string> TranslateToPcre2(std::string_view pattern) {
  return Translation(pattern).Run();
}

std::string EscapeForRegex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::ispunct(byte)) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace augur::engine
