#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// The error of an invalid expression, or of a match that exceeds the limits.
class RegexError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How a Regex matches.
struct RegexSettings {
  bool matches_whole_text = false;  ///< only the whole text matches, not a part of it
  /// Steps of backtracking of one search. An expression with nested repetition reaches the limit
  /// within milliseconds instead of running for hours.
  uint32_t max_steps = 100'000;
  /// Memory of one search. PCRE2 backtracks on the heap.
  uint32_t max_heap_kib = 64 * 1024;
};

/// A compiled regular expression in PCRE2's syntax. Immutable and thread-safe; copies share the
/// compiled expression.
class Regex {
 public:
  /// A group of a match, as bytes [begin, end) of the text.
  struct Group {
    size_t begin;
    size_t end;
  };
  /// The groups of a match; the first is the whole match. Groups without a match are nullopt.
  using Match = std::vector<std::optional<Group>>;

  /// Throws RegexError with PCRE2's message and the position of the error.
  explicit Regex(std::string_view expression, const RegexSettings& settings = {});

  /// Returns the first match that begins at or after `offset`, a number of bytes. Throws RegexError
  /// if the search exceeds the limits.
  std::optional<Match> search(std::string_view text, size_t offset = 0) const;

  /// Returns the number of groups, without the whole match.
  size_t num_groups() const;
  /// Returns the number of groups with a name.
  size_t num_named_groups() const;
  /// Returns the number of the group with a name, at least 1; nullopt if there is none.
  std::optional<size_t> find_group(const std::string& name) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace vlmtrain
