#pragma once

#include <memory>
#include <string>

namespace vlmtrain::nn {

/// A regular expression of a whole path, in PCRE2's syntax. It uses no stack, and a bounded number of steps a match.
class PathPattern {
 public:
  /// Throws UserError (kUsage) that names `key` for an expression that is none.
  PathPattern(const std::string& key, const std::string& expression);

  /// Throws UserError (kUsage) where the steps do not suffice.
  bool matches(const std::string& path) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace vlmtrain::nn
