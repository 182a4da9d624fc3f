#include "vlmtrain/base/natural_order.h"

#include <algorithm>
#include <compare>

namespace vlmtrain {
namespace {

constexpr std::string_view kDigits = "0123456789";

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

/// Takes the digits that `text` starts with, without leading zeros, off its front.
std::string_view take_number(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of(kDigits), text.size());
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

std::strong_ordering compare_naturally(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view left = take_number(a);
      const std::string_view right = take_number(b);
      if (left.size() != right.size()) return left.size() <=> right.size();
      if (left != right) return left <=> right;
    } else if (a.front() != b.front()) {
      return static_cast<unsigned char>(a.front()) <=> static_cast<unsigned char>(b.front());
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() <=> b.size();
}

}  // namespace

bool comes_before(std::string_view a, std::string_view b) {
  const auto order = compare_naturally(a, b);
  return order == 0 ? a < b : order < 0;
}

}  // namespace vlmtrain
