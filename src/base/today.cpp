#include "vlmtrain/base/today.h"

#include <fmt/format.h>

#include <ctime>

namespace vlmtrain {

std::string current_date() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  localtime_r(&now, &date);
  constexpr int kTmBaseYear = 1900;
  return fmt::format("{:04}-{:02}-{:02}", date.tm_year + kTmBaseYear, date.tm_mon + 1, date.tm_mday);
}

}  // namespace vlmtrain
