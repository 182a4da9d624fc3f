#pragma once

#include <array>
#include <string>
#include <string_view>

namespace vlmtrain::text::jinja {

/// Characters that become several in capitals: all for which Python's str.upper() or str.title() gives more than one
/// (Unicode's SpecialCasing.txt, what holds in every language). In order.
struct SpecialCase {
  char32_t character;
  std::u32string_view replacement;
};

extern const std::array<SpecialCase, 102> kSpecialUpper;
extern const std::array<SpecialCase, 48> kSpecialTitle;

bool append_special_case(const SpecialCase* begin, const SpecialCase* end, char32_t character, std::string& out);

template <class Table>
bool append_special_case(const Table& table, char32_t character, std::string& out) {
  return append_special_case(table.data(), table.data() + table.size(), character, out);
}

}  // namespace vlmtrain::text::jinja
