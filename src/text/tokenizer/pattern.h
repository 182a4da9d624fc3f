#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// A range of bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
};

/// A pattern of tokenizer.json that matches parts of a text. Immutable and thread-safe.
class Pattern {
 public:
  Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  virtual ~Pattern() = default;

  /// Appends all matches to `matches` from left to right. No match is empty, and none overlap.
  /// REQUIRES valid UTF-8.
  virtual void find_all_matches(std::string_view text, std::vector<ByteRange>& matches) const = 0;
};

/// Returns a pattern that matches `literal`. REQUIRES that `literal` is not empty.
std::unique_ptr<Pattern> make_literal_pattern(std::string literal);
/// Returns a pattern that matches single numeric characters, see is_numeric().
std::unique_ptr<Pattern> make_numeric_pattern();
/// Returns a pattern that matches a regular expression in PCRE2's syntax, with Unicode classes.
/// Throws UserError (kBadData) about `node` if the expression does not compile. find_all_matches()
/// of the result throws UserError (bad data) if a match exceeds the limits of time and memory.
std::unique_ptr<Pattern> make_regex_pattern(const std::string& expression, const JsonNode& node);

/// Returns the pattern of the key `pattern` of `node`: {"String": …} or {"Regex": …}. Throws
/// UserError (kBadData) for other values.
std::unique_ptr<Pattern> make_pattern(const JsonNode& node);

}  // namespace vlmtrain::text
