#include "text/jinja/dates.h"

#include <array>
#include <ctime>

#include "text/jinja/runtime/budget.h"

namespace vlmtrain::text::jinja {
namespace {

constexpr size_t kMaxFormatBytes = 1000;

/// Digits [at, at + count) of a date.
int parse_digits(const std::string& now, size_t pos, size_t count) {
  int value = 0;
  for (size_t i = pos; i < pos + count; ++i) {
    if (i >= now.size() || now[i] < '0' || now[i] > '9') throw evaluation_error("\"{}\" is no date", now);
    value = value * 10 + (now[i] - '0');
  }
  return value;
}

bool is_leap(int year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

std::tm parse_date(const std::string& now) {
  std::tm date{};
  const int year = parse_digits(now, 0, 4);
  const int month = parse_digits(now, 5, 2);
  const int day = parse_digits(now, 8, 2);
  const bool has_time = now.size() > 10;
  const std::array<int, 12> days = {31, is_leap(year) ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_valid =
      year >= 1 && month >= 1 && month <= 12 && day >= 1 && day <= days.at(static_cast<size_t>(month - 1));
  if (!is_valid || now[4] != '-' || now[7] != '-' || (has_time && now[10] != 'T' && now[10] != ' ')) {
    throw evaluation_error("\"{}\" is no date", now);
  }
  date.tm_year = year - 1900;
  date.tm_mon = month - 1;
  date.tm_mday = day;
  if (has_time) {
    date.tm_hour = parse_digits(now, 11, 2);
    date.tm_min = parse_digits(now, 14, 2);
    date.tm_sec = parse_digits(now, 17, 2);
    if (date.tm_hour > 23 || date.tm_min > 59 || date.tm_sec > 59) throw evaluation_error("\"{}\" is no date", now);
  }
  date.tm_yday = day - 1;
  for (size_t i = 0; i + 1 < static_cast<size_t>(month); ++i) date.tm_yday += days.at(i);
  const int past_years = year - 1;
  date.tm_wday = (1 + past_years * 365 + past_years / 4 - past_years / 100 + past_years / 400 + date.tm_yday) % 7;
  date.tm_isdst = -1;
  return date;
}

}  // namespace

std::string format_date(const std::string& now, const std::string& format) {
  if (now.empty()) throw evaluation_error("the template asks for the date, and none was given");
  if (format.size() > kMaxFormatBytes)
    throw evaluation_error("strftime_now: the format has more than {} bytes", kMaxFormatBytes);
  const std::tm date = parse_date(now);
  // What Python writes itself: microseconds, and nothing of a zone.
  std::string portable_format;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      portable_format += format[i];
      continue;
    }
    const char directive = format[++i];
    if (directive == 'f') {
      portable_format += "000000";
    } else if (directive == 's') {
      throw evaluation_error("strftime_now: %s is not supported");
    } else if (directive != 'z' && directive != 'Z') {
      portable_format.append(1, '%').append(1, directive);
    }
  }
  if (portable_format.empty()) return portable_format;
  std::array<char, 16 * 1024> buffer{};
  // A byte more, so that nothing written is told from too much.
  const size_t size = std::strftime(buffer.data(), buffer.size(), (portable_format + "|").c_str(), &date);
  if (size == 0) throw evaluation_error("strftime_now: the format writes too much");
  return {buffer.data(), size - 1};
}

}  // namespace vlmtrain::text::jinja
