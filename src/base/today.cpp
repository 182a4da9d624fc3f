#include "vlmtrain/base/today.h"

#include <fmt/format.h>

#include <ctime>

namespace vlmtrain {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  localtime_r(&now, &date);
  constexpr int kFirstYear = 1900;
  return fmt::format("{:04}-{:02}-{:02}", date.tm_year + kFirstYear, date.tm_mon + 1, date.tm_mday);
}

}  // namespace vlmtrain
