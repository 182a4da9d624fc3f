#include "nn/path_pattern.h"

#include <utility>

#include "vlmtrain/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace vlmtrain::nn {

namespace {

std::string get_pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct PathPattern::Compiled {
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }

  std::string key;
  std::string expression;
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
};

PathPattern::PathPattern(const std::string& key, const std::string& expression) {
  constexpr uint32_t kMaxMatchSteps = 100'000;
  constexpr uint32_t kMaxHeapKib = 64 * 1024;
  auto compiled = std::make_shared<Compiled>();
  compiled->key = key;
  compiled->expression = expression;
  int code = 0;
  PCRE2_SIZE offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                 PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &offset, nullptr);
  if (compiled->code == nullptr) {
    throw usage_error("{}: {} is no regular expression ({} at character {}); correct it, or give names of Linears", key,
                      expression, get_pcre_message(code), offset);
  }
  compiled->limits = pcre2_match_context_create(nullptr);
  VLMTRAIN_CHECK(compiled->limits != nullptr, "no memory for a match");
  pcre2_set_match_limit(compiled->limits, kMaxMatchSteps);
  pcre2_set_depth_limit(compiled->limits, kMaxMatchSteps);
  pcre2_set_heap_limit(compiled->limits, kMaxHeapKib);
  compiled_ = std::move(compiled);
}

bool PathPattern::matches(const std::string& path) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr), &pcre2_match_data_free);
  VLMTRAIN_CHECK(data != nullptr, "no memory for a match");
  const int result = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(), 0, 0,
                                 data.get(), compiled_->limits);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw usage_error("{}: {} takes too long on {} ({}); simplify it, or give names of Linears", compiled_->key,
                      compiled_->expression, path, get_pcre_message(result));
  }
  return true;
}

}  // namespace vlmtrain::nn
