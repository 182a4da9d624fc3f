#define PCRE2_CODE_UNIT_WIDTH 8

#include "vlmtrain/base/regex.h"

#include <pcre2.h>

#include <fmt/format.h>

#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain {

namespace {

std::string get_pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Impl {
  struct Deleter {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  };

  std::unique_ptr<pcre2_code, Deleter> code;
  std::unique_ptr<pcre2_match_context, Deleter> limits;
};

Regex::Regex(std::string_view expression, const RegexSettings& settings) {
  auto impl = std::make_shared<Impl>();
  const uint32_t flags = settings.matches_whole_text ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0U;
  int code = 0;
  PCRE2_SIZE offset = 0;
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), flags, &code,
                                 &offset, nullptr));
  if (impl->code == nullptr) throw RegexError(fmt::format("{} at character {}", get_pcre2_message(code), offset));
  impl->limits.reset(pcre2_match_context_create(nullptr));
  VLMTRAIN_CHECK(impl->limits != nullptr, "PCRE2 cannot allocate memory for a match");
  pcre2_set_match_limit(impl->limits.get(), settings.max_steps);
  pcre2_set_depth_limit(impl->limits.get(), settings.max_steps);
  pcre2_set_heap_limit(impl->limits.get(), settings.max_heap_kib);
  impl_ = std::move(impl);
}

std::optional<Regex::Match> Regex::search(std::string_view text, size_t offset) const {
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  VLMTRAIN_CHECK(data != nullptr, "PCRE2 cannot allocate memory for a match");
  const int result = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset, 0,
                                 data.get(), impl_->limits.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) throw RegexError(get_pcre2_message(result));
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(data.get());
  Match match(num_groups() + 1);
  for (size_t i = 0; i < static_cast<size_t>(result); ++i) {
    if (offsets[2 * i] != PCRE2_UNSET) match[i] = Group{.begin = offsets[2 * i], .end = offsets[2 * i + 1]};
  }
  return match;
}

size_t Regex::num_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_CAPTURECOUNT, &count);
  return count;
}

size_t Regex::num_named_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_NAMECOUNT, &count);
  return count;
}

std::optional<size_t> Regex::find_group(const std::string& name) const {
  const int number = pcre2_substring_number_from_name(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(name.c_str()));
  return number > 0 ? std::optional(static_cast<size_t>(number)) : std::nullopt;
}

}  // namespace vlmtrain
