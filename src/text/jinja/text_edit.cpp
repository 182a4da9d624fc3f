#include "text/jinja/text_edit.h"

#include <algorithm>
#include <array>

#include "text/jinja/letters.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

bool ends_line(char32_t character) {
  return (character >= 0x0A && character <= 0x0D) || (character >= 0x1C && character <= 0x1E) || character == 0x85 ||
         character == 0x2028 || character == 0x2029;
}

}  // namespace

MarkedText strip(const Text& text, const Text* characters, Side side) {
  const std::string_view bytes = text.view();
  const auto drops = [&](size_t at) {
    if (characters == nullptr) return is_space(read_utf8(bytes, at).code_point);
    return characters->view().find(bytes.substr(at, next_character(bytes, at) - at)) != std::string_view::npos;
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != Side::kRight && begin < end && drops(begin)) begin = next_character(bytes, begin);
  while (side != Side::kLeft && end > begin) {
    const size_t last = previous_character(bytes, end);
    if (!drops(last)) break;
    end = last;
  }
  return text.marked.slice(begin, end);
}

MarkedText replace(const Text& text, const Text& what, const Text& by, int64_t count, Budget& budget) {
  const std::string_view bytes = text.view();
  budget.made(bytes.size());
  MarkedText out;
  const auto keep = [&](size_t begin, size_t end) {
    if (begin < end) out.append(text.marked, begin, end);
  };
  size_t kept = 0;
  for (size_t at = 0; count != 0; --count) {
    at = find_text(bytes, what.view(), at);
    if (at == std::string_view::npos) break;
    keep(kept, at);
    out.append(by.marked);
    budget.step();
    Budget::check_text(out.size());
    kept = at + what.view().size();
    at = kept;
    if (what.view().empty()) {
      if (at == bytes.size()) break;
      at = next_character(bytes, at);
    }
  }
  keep(kept, bytes.size());
  out.keep_place_of(text.marked);
  budget.made(out.size());
  return out;
}

MarkedText join(const MarkedText& separator, const std::vector<MarkedText>& items, Budget& budget) {
  MarkedText out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(items[i]);
    Budget::check_text(out.size());
  }
  budget.made(out.size());
  return out;
}

std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends) {
  const std::string_view bytes = text.bytes();
  std::vector<MarkedText> lines;
  for (size_t begin = 0; begin < bytes.size();) {
    size_t end = begin;
    while (end < bytes.size() && !ends_line(read_utf8(bytes, end).code_point)) end = next_character(bytes, end);
    size_t next = end;
    if (end < bytes.size()) next = bytes.substr(end, 2) == "\r\n" ? end + 2 : next_character(bytes, end);
    lines.push_back(text.slice(begin, keep_ends ? next : end));
    begin = next;
  }
  return lines;
}

MarkedText capitalized(const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  MarkedText out;
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end; at = next_character(bytes, at)) {
      if (at == 0) {
        append_title(bytes, at, written);
      } else {
        append_lower(bytes, at, written);
      }
    }
  });
  return out;
}

MarkedText html_escaped(const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  MarkedText out;
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (const char letter : bytes.substr(begin, end - begin)) {
      constexpr std::string_view kSpecial = "&<>'\"";
      constexpr std::array kWritten = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
      const size_t special = kSpecial.find(letter);
      if (special == std::string_view::npos) {
        written += letter;
      } else {
        written += kWritten[special];
      }
    }
  });
  return out;
}

MarkedText centered(const Text& text, int64_t width, Budget& budget, std::string_view fill) {
  const auto length = static_cast<int64_t>(text.length);
  if (width <= length) return text.marked;
  Budget::check_text(static_cast<size_t>(width) * fill.size());
  const int64_t missing = width - length;
  const int64_t left = missing / 2 + (missing & width & 1);
  MarkedText out;
  for (int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(text.marked);
  for (int64_t i = left; i < missing; ++i) out.append(fill);
  budget.made(out.size());
  return out;
}

Value as_list(std::vector<MarkedText> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (MarkedText& text : texts) items.push_back(Value::text(std::move(text)));
  return Value::list(std::move(items));
}

}  // namespace vlmtrain::text::jinja
