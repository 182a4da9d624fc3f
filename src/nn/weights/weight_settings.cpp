#include "vlmtrain/nn/weights/weight_settings.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/regex.h"

namespace vlmtrain::nn {

namespace {

/// Returns whether the last components of `path` are `suffix`.
bool has_path_suffix(const std::string& path, const std::string& suffix) {
  if (!path.ends_with(suffix)) return false;
  const size_t prefix_size = path.size() - suffix.size();
  return prefix_size == 0 || path[prefix_size - 1] == '.';
}

}  // namespace

double LoraSettings::scale() const {
  const auto rank_value = static_cast<double>(rank);
  return alpha / (use_rslora ? std::sqrt(rank_value) : rank_value);
}

bool LoraSettings::matches_modules_to_save(std::string_view parameter) const {
  return std::ranges::any_of(modules_to_save,
                             [&](const std::string& module) { return is_under_module(parameter, module); });
}

LoraTarget::LoraTarget(std::string pattern) : pattern_(std::move(pattern)) {
  if (pattern_ == "all-linear") {
    matches_ = [](const std::string&) { return true; };
  } else if (!is_regular_expression(pattern_)) {
    matches_ = [suffix = pattern_](const std::string& path) { return has_path_suffix(path, suffix); };
  } else {
    matches_ = make_regular_expression_matcher(std::string(keys::lora::kTargetModules), pattern_, "names of Linears");
  }
}

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
