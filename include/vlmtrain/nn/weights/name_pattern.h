#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace vlmtrain::nn {

/// Returns whether `path` contains the components of `module` consecutively:
/// `model.connector.proj.weight` contains `connector` and `connector.proj`.
bool is_under_module(std::string_view path, std::string_view module);

/// Returns whether a pattern of names is a regular expression: it contains one of *+?()[]{}|\^$.
bool is_regular_expression(std::string_view pattern);

/// Returns a function that matches whole names with a regular expression (PCRE2). Throws UserError
/// (kUsage) for an invalid expression, and the function throws it for one that exceeds its step
/// limit. Messages name the option `key` and suggest to list `alternative`.
std::function<bool(const std::string& name)> make_regular_expression_matcher(const std::string& key,
                                                                             const std::string& expression,
                                                                             const std::string& alternative);

/// A pattern of parameter names: consecutive components of the name (`embed_tokens`, `bias`,
/// `layers.0`), or a regular expression for the whole name.
class NamePattern {
 public:
  /// `key` is the option that messages name. Throws UserError (kUsage) for an invalid regular
  /// expression.
  NamePattern(std::string_view key, std::string text);

  /// Returns whether the name of a parameter matches. Throws UserError (kUsage) if the regular
  /// expression exceeds its step limit.
  bool matches(const std::string& name) const { return matches_(name); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::function<bool(const std::string& name)> matches_;
};

}  // namespace vlmtrain::nn
