#include "vlmtrain/base/number_behind.h"

#include <charconv>
#include <system_error>

namespace vlmtrain {

std::optional<int64_t> parse_suffix_int(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  int64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + prefix.size(), last, number);
  return error == std::errc() && end == last ? std::optional(number) : std::nullopt;
}

}  // namespace vlmtrain
