#include "vlmtrain/nn/weights/name_pattern.h"

#include <optional>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/regex.h"

namespace vlmtrain::nn {

bool is_under_module(std::string_view path, std::string_view module) {
  if (module.empty()) return false;
  for (size_t position = path.find(module); position != std::string_view::npos;
       position = path.find(module, position + 1)) {
    const size_t end = position + module.size();
    if ((position == 0 || path[position - 1] == '.') && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

bool is_regular_expression(std::string_view pattern) {
  return pattern.find_first_of("*+?()[]{}|\\^$") != std::string_view::npos;
}

std::function<bool(const std::string&)> make_regular_expression_matcher(const std::string& key,
                                                                        const std::string& expression,
                                                                        const std::string& alternative) {
  // Names have fewer than 100 characters, so that a reasonable expression stays far below the default
  // limits.
  std::optional<Regex> regex;
  try {
    regex.emplace(expression, RegexSettings{.matches_whole_text = true});
  } catch (const RegexError& error) {
    throw usage_error("{}: {} is an invalid regular expression ({}); correct it, or list {}", key, expression,
                      error.what(), alternative);
  }
  return [key, expression, alternative, regex = *std::move(regex)](const std::string& name) {
    try {
      return regex.search(name).has_value();
    } catch (const RegexError& error) {
      throw usage_error("{}: {} takes too long on {} ({}); simplify it, or list {}", key, expression, name,
                        error.what(), alternative);
    }
  };
}

NamePattern::NamePattern(std::string_view key, std::string text) : text_(std::move(text)) {
  if (is_regular_expression(text_)) {
    matches_ = make_regular_expression_matcher(std::string(key), text_, "parts of names, such as embed_tokens");
  } else {
    matches_ = [module = text_](const std::string& name) { return is_under_module(name, module); };
  }
}

}  // namespace vlmtrain::nn
