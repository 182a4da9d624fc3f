#include "vlmtrain/base/number_words.h"

#include <fmt/format.h>

namespace vlmtrain {

std::string grouped(int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", grouped(number / 1000), number % 1000);
}

std::string counted(int64_t number, const char* noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

std::string number_words(int64_t number) {
  const auto value = static_cast<double>(number);
  if (value >= 1e9) return fmt::format("{:.2f} billion", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} million", value / 1e6);
  return grouped(number);
}

}  // namespace vlmtrain
