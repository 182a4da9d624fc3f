#define PCRE2_CODE_UNIT_WIDTH 8

#include "vlmtrain/nn/weights/lora_settings.h"

#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

std::string get_pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

/// A compiled PCRE2 expression that matches whole paths in a bounded number of steps and without
/// recursion on the stack.
class PathPattern {
 public:
  /// Throws UserError (kUsage) that names `key` if the expression is invalid.
  PathPattern(const std::string& key, const std::string& expression);

  /// Throws UserError (kUsage) if the step limit is reached.
  bool matches(const std::string& path) const;

 private:
  struct CompiledPattern;
  std::shared_ptr<const CompiledPattern> compiled_pattern_;
};

struct PathPattern::CompiledPattern {
  CompiledPattern() = default;
  CompiledPattern(const CompiledPattern&) = delete;
  CompiledPattern& operator=(const CompiledPattern&) = delete;
  ~CompiledPattern() {
    pcre2_match_context_free(match_limits);
    pcre2_code_free(code);
  }

  std::string key;
  std::string expression;
  pcre2_code* code = nullptr;
  pcre2_match_context* match_limits = nullptr;
};

PathPattern::PathPattern(const std::string& key, const std::string& expression) {
  // Paths of modules have fewer than 100 characters, so a reasonable expression needs far fewer
  // steps. An expression with nested repetition reaches the limit within milliseconds instead of
  // running for hours.
  constexpr uint32_t kMaxMatchSteps = 100'000;
  // PCRE2 backtracks on the heap. The step limit is reached before 64 MiB are used.
  constexpr uint32_t kMaxHeapKib = 64 * 1024;
  auto compiled_pattern = std::make_shared<CompiledPattern>();
  compiled_pattern->key = key;
  compiled_pattern->expression = expression;
  int code = 0;
  PCRE2_SIZE offset = 0;
  compiled_pattern->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                         PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &offset, nullptr);
  if (compiled_pattern->code == nullptr) {
    throw usage_error(
        "{}: {} is an invalid regular expression ({} at character {}); correct it, or list names of Linears", key,
        expression, get_pcre_message(code), offset);
  }
  compiled_pattern->match_limits = pcre2_match_context_create(nullptr);
  VLMTRAIN_CHECK(compiled_pattern->match_limits != nullptr, "PCRE2 cannot allocate memory for a match");
  pcre2_set_match_limit(compiled_pattern->match_limits, kMaxMatchSteps);
  pcre2_set_depth_limit(compiled_pattern->match_limits, kMaxMatchSteps);
  pcre2_set_heap_limit(compiled_pattern->match_limits, kMaxHeapKib);
  compiled_pattern_ = std::move(compiled_pattern);
}

bool PathPattern::matches(const std::string& path) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match_data(
      pcre2_match_data_create_from_pattern(compiled_pattern_->code, nullptr), &pcre2_match_data_free);
  VLMTRAIN_CHECK(match_data != nullptr, "PCRE2 cannot allocate memory for a match");
  const int result = pcre2_match(compiled_pattern_->code, reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(), 0, 0,
                                 match_data.get(), compiled_pattern_->match_limits);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw usage_error("{}: {} takes too long on {} ({}); simplify it, or list names of Linears", compiled_pattern_->key,
                      compiled_pattern_->expression, path, get_pcre_message(result));
  }
  return true;
}

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

bool is_under_module(std::string_view path, std::string_view module) {
  if (module.empty()) return false;
  for (size_t position = path.find(module); position != std::string_view::npos;
       position = path.find(module, position + 1)) {
    const size_t end = position + module.size();
    if ((position == 0 || path[position - 1] == '.') && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

LoraTarget::LoraTarget(std::string pattern) : pattern_(std::move(pattern)) {
  if (pattern_ == "all-linear") {
    matches_ = [](const std::string&) { return true; };
  } else if (pattern_.find_first_of("*+?()[]{}|\\^$") == std::string::npos) {
    matches_ = [suffix = pattern_](const std::string& path) { return has_path_suffix(path, suffix); };
  } else {
    matches_ = [path_pattern = PathPattern("lora.target_modules", pattern_)](const std::string& path) {
      return path_pattern.matches(path);
    };
  }
}

}  // namespace vlmtrain::nn
