#include "text/jinja/dates.h"

#include <array>
#include <ctime>

#include "text/jinja/limits.h"

namespace vlmtrain::text::jinja {
namespace {

constexpr size_t kMaxFormat = 1000;

/// Digits [at, at + count) of a date.
int part_of(const std::string& now, size_t at, size_t count) {
  int value = 0;
  for (size_t i = at; i < at + count; ++i) {
    if (i >= now.size() || now[i] < '0' || now[i] > '9') throw failure("\"{}\" is no date", now);
    value = value * 10 + (now[i] - '0');
  }
  return value;
}

bool is_leap(int year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

std::tm parse_date(const std::string& now) {
  std::tm date{};
  const int year = part_of(now, 0, 4);
  const int month = part_of(now, 5, 2);
  const int day = part_of(now, 8, 2);
  const bool has_time = now.size() > 10;
  const std::array<int, 12> days = {31, is_leap(year) ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_date =
      year >= 1 && month >= 1 && month <= 12 && day >= 1 && day <= days.at(static_cast<size_t>(month - 1));
  if (!is_date || now[4] != '-' || now[7] != '-' || (has_time && now[10] != 'T' && now[10] != ' ')) {
    throw failure("\"{}\" is no date", now);
  }
  date.tm_year = year - 1900;
  date.tm_mon = month - 1;
  date.tm_mday = day;
  if (has_time) {
    date.tm_hour = part_of(now, 11, 2);
    date.tm_min = part_of(now, 14, 2);
    date.tm_sec = part_of(now, 17, 2);
    if (date.tm_hour > 23 || date.tm_min > 59 || date.tm_sec > 59) throw failure("\"{}\" is no date", now);
  }
  date.tm_yday = day - 1;
  for (size_t i = 0; i + 1 < static_cast<size_t>(month); ++i) date.tm_yday += days.at(i);
  const int before = year - 1;
  date.tm_wday = (1 + before * 365 + before / 4 - before / 100 + before / 400 + date.tm_yday) % 7;
  date.tm_isdst = -1;
  return date;
}

}  // namespace

std::string format_date(const std::string& now, const std::string& format) {
  if (now.empty()) throw failure("the template asks for the date, and none was given");
  if (format.size() > kMaxFormat) throw failure("strftime_now: the format has more than {} bytes", kMaxFormat);
  const std::tm date = parse_date(now);
  // What Python writes itself: microseconds, and nothing of a zone.
  std::string plain;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      plain += format[i];
      continue;
    }
    const char letter = format[++i];
    if (letter == 'f') {
      plain += "000000";
    } else if (letter == 's') {
      throw failure("strftime_now: %s is not supported");
    } else if (letter != 'z' && letter != 'Z') {
      plain.append(1, '%').append(1, letter);
    }
  }
  if (plain.empty()) return plain;
  std::array<char, 16 * 1024> buffer{};
  // A byte more, so that nothing written is told from too much.
  const size_t size = std::strftime(buffer.data(), buffer.size(), (plain + "|").c_str(), &date);
  if (size == 0) throw failure("strftime_now: the format writes too much");
  return {buffer.data(), size - 1};
}

}  // namespace vlmtrain::text::jinja
