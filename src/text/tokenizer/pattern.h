#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// Bytes [begin, end) of a text.
struct Range {
  size_t begin;
  size_t end;
};

/// Something to look for in a text. Thread-safe.
class Pattern {
 public:
  Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  virtual ~Pattern() = default;

  /// Appends all matches from left to right, none empty or overlapping. REQUIRES valid UTF-8.
  virtual void find_all(std::string_view text, std::vector<Range>& matches) const = 0;
};

/// Finds a string as it is; REQUIRES that it is not empty.
std::unique_ptr<Pattern> make_literal_pattern(std::string literal);
/// Finds single numeric characters (is_numeric).
std::unique_ptr<Pattern> make_numeric_pattern();
/// Finds a regular expression in PCRE2's syntax, with Unicode classes. Throws an error of `node`, which names it, if it
/// does not compile.
std::unique_ptr<Pattern> make_regex_pattern(const std::string& expression, const JsonNode& node);

/// The pattern under the key `pattern` of `node`: {"String": …} or {"Regex": …}.
std::unique_ptr<Pattern> make_pattern(const JsonNode& node);

}  // namespace vlmtrain::text
