#include "vlmtrain/base/number_words.h"

#include <fmt/format.h>

namespace vlmtrain {

std::string with_commas(int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", with_commas(number / 1000), number % 1000);
}

std::string pluralize(int64_t number, const char* noun) {
  return fmt::format("{} {}{}", with_commas(number), noun, number == 1 ? "" : "s");
}

std::string human_count(int64_t number) {
  const auto value = static_cast<double>(number);
  if (value >= 1e9) return fmt::format("{:.2f} billion", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} million", value / 1e6);
  return with_commas(number);
}

}  // namespace vlmtrain
