#include <algorithm>
#include <array>

#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"
#include "vlmtrain/text/python_str.h"

namespace vlmtrain::text::jinja {
namespace {

/// Returns whether str.splitlines() splits at the character.
bool is_line_break(char32_t character) {
  return (character >= 0x0A && character <= 0x0D) || (character >= 0x1C && character <= 0x1E) || character == 0x85 ||
         character == 0x2028 || character == 0x2029;
}

/// Returns `text` with each character converted by append_converted(bytes, pos, out), which appends
/// the new form of the character at byte `pos` of `bytes` to `out`.
template <class AppendConverted>
TextWithOrigins convert_case(const TextWithOrigins& text, AppendConverted append_converted) {
  TextWithOrigins out;
  const std::string_view bytes = text.bytes();
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end; pos = find_next_character(bytes, pos)) append_converted(bytes, pos, buffer);
  });
  return out;
}

}  // namespace

TextWithOrigins strip(const TextValue& text, const TextValue* characters, StripSide side) {
  const std::string_view bytes = text.view();
  const auto is_strippable_position = [&](size_t pos) {
    if (characters == nullptr) return is_python_space(read_utf8(bytes, pos).code_point);
    return characters->view().find(bytes.substr(pos, find_next_character(bytes, pos) - pos)) != std::string_view::npos;
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != StripSide::kRight && begin < end && is_strippable_position(begin))
    begin = find_next_character(bytes, begin);
  while (side != StripSide::kLeft && end > begin) {
    const size_t last_character_pos = find_previous_character(bytes, end);
    if (!is_strippable_position(last_character_pos)) break;
    end = last_character_pos;
  }
  return text.content.slice(begin, end);
}

TextWithOrigins replace(const TextValue& text, const TextValue& needle, const TextValue& replacement, int64_t count,
                        RenderBudget& budget) {
  const std::string_view bytes = text.view();
  budget.charge_allocation(bytes.size());
  TextWithOrigins out;
  const auto append_source_range = [&](size_t begin, size_t end) {
    if (begin < end) out.append(text.content, begin, end);
  };
  size_t copied_end = 0;
  for (size_t pos = 0; count != 0; --count) {
    pos = find_substring(bytes, needle.view(), pos);
    if (pos == std::string_view::npos) break;
    append_source_range(copied_end, pos);
    out.append(replacement.content);
    budget.charge_steps();
    RenderBudget::check_value_size(out.size());
    copied_end = pos + needle.view().size();
    pos = copied_end;
    if (needle.view().empty()) {
      if (pos == bytes.size()) break;
      pos = find_next_character(bytes, pos);
    }
  }
  append_source_range(copied_end, bytes.size());
  out.inherit_origins(text.content);
  budget.charge_allocation(out.size());
  return out;
}

TextWithOrigins join(const TextWithOrigins& separator, const std::vector<TextWithOrigins>& items,
                     RenderBudget& budget) {
  TextWithOrigins out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(items[i]);
    RenderBudget::check_value_size(out.size());
  }
  budget.charge_allocation(out.size());
  return out;
}

std::vector<TextWithOrigins> split_lines(const TextWithOrigins& text, bool keep_ends) {
  const std::string_view bytes = text.bytes();
  std::vector<TextWithOrigins> lines;
  for (size_t begin = 0; begin < bytes.size();) {
    size_t end = begin;
    while (end < bytes.size() && !is_line_break(read_utf8(bytes, end).code_point))
      end = find_next_character(bytes, end);
    size_t next_line_begin = end;
    if (end < bytes.size())
      next_line_begin = bytes.substr(end, 2) == "\r\n" ? end + 2 : find_next_character(bytes, end);
    lines.push_back(text.slice(begin, keep_ends ? next_line_begin : end));
    begin = next_line_begin;
  }
  return lines;
}

TextWithOrigins capitalize(const TextWithOrigins& text) {
  const std::string_view bytes = text.bytes();
  TextWithOrigins out;
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end; pos = find_next_character(bytes, pos)) {
      if (pos == 0) {
        append_titlecase(bytes, pos, buffer);
      } else {
        append_lowercase(bytes, pos, buffer);
      }
    }
  });
  return out;
}

TextWithOrigins escape_html(const TextWithOrigins& text) {
  const std::string_view bytes = text.bytes();
  TextWithOrigins out;
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (const char byte_char : bytes.substr(begin, end - begin)) {
      constexpr std::string_view kHtmlSpecialCharacters = "&<>'\"";
      constexpr std::array kHtmlEntities = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
      const size_t entity_index = kHtmlSpecialCharacters.find(byte_char);
      if (entity_index == std::string_view::npos) {
        buffer += byte_char;
      } else {
        buffer += kHtmlEntities[entity_index];
      }
    }
  });
  return out;
}

TextWithOrigins center(const TextValue& text, int64_t width, RenderBudget& budget, std::string_view fill) {
  const auto length = static_cast<int64_t>(text.length);
  if (width <= length) return text.content;
  RenderBudget::check_value_size(static_cast<size_t>(width) * fill.size());
  const int64_t num_fill_characters = width - length;
  // The rule of CPython's str.center() for an odd number of fill characters.
  const int64_t num_left_fill_characters = num_fill_characters / 2 + (num_fill_characters & width & 1);
  TextWithOrigins out;
  for (int64_t i = 0; i < num_left_fill_characters; ++i) out.append(fill);
  out.append(text.content);
  for (int64_t i = num_left_fill_characters; i < num_fill_characters; ++i) out.append(fill);
  budget.charge_allocation(out.size());
  return out;
}

Value to_list_value(std::vector<TextWithOrigins> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (TextWithOrigins& text : texts) items.push_back(Value::text(std::move(text)));
  return Value::list(std::move(items));
}

std::vector<TextWithOrigins> split_at_separator(const TextValue& text, std::string_view separator, int64_t max_splits,
                                                bool from_right) {
  const std::string_view bytes = text.view();
  std::vector<size_t> separator_positions;
  if (from_right) {
    for (size_t end = bytes.size();
         static_cast<int64_t>(separator_positions.size()) < max_splits && end >= separator.size();) {
      const size_t pos = bytes.rfind(separator, end - separator.size());
      if (pos == std::string_view::npos) break;
      separator_positions.push_back(pos);
      end = pos;
    }
    std::reverse(separator_positions.begin(), separator_positions.end());
  } else {
    for (size_t pos = find_substring(bytes, separator, 0);
         pos != std::string_view::npos && static_cast<int64_t>(separator_positions.size()) < max_splits;
         pos = find_substring(bytes, separator, pos + separator.size())) {
      separator_positions.push_back(pos);
    }
  }
  std::vector<TextWithOrigins> pieces;
  pieces.reserve(separator_positions.size() + 1);
  size_t begin = 0;
  for (const size_t pos : separator_positions) {
    pieces.push_back(text.content.slice(begin, pos));
    begin = pos + separator.size();
  }
  pieces.push_back(text.content.slice(begin, bytes.size()));
  return pieces;
}

std::vector<TextWithOrigins> split_at_white_space(const TextValue& text, int64_t max_splits) {
  const std::string_view bytes = text.view();
  const auto is_space_position = [&](size_t pos) { return is_python_space(read_utf8(bytes, pos).code_point); };
  std::vector<TextWithOrigins> words;
  for (size_t pos = 0; pos < bytes.size();) {
    while (pos < bytes.size() && is_space_position(pos)) pos = find_next_character(bytes, pos);
    if (pos == bytes.size()) break;
    size_t end = pos;
    if (static_cast<int64_t>(words.size()) == max_splits) end = bytes.size();
    while (end < bytes.size() && !is_space_position(end)) end = find_next_character(bytes, end);
    words.push_back(text.content.slice(pos, end));
    pos = end;
  }
  return words;
}

std::vector<TextWithOrigins> rsplit_at_white_space(const TextValue& text, int64_t max_splits) {
  const std::string_view bytes = text.view();
  const auto is_preceded_by_space = [&](size_t pos) {
    return is_python_space(read_utf8(bytes, find_previous_character(bytes, pos)).code_point);
  };
  std::vector<TextWithOrigins> words;
  for (size_t end = bytes.size(); end > 0;) {
    while (end > 0 && is_preceded_by_space(end)) end = find_previous_character(bytes, end);
    if (end == 0) break;
    size_t begin = end;
    if (static_cast<int64_t>(words.size()) == max_splits) begin = 0;
    while (begin > 0 && !is_preceded_by_space(begin)) begin = find_previous_character(bytes, begin);
    words.push_back(text.content.slice(begin, end));
    end = begin;
  }
  std::reverse(words.begin(), words.end());
  return words;
}

TextWithOrigins to_upper(const TextWithOrigins& text) {
  return convert_case(text, append_uppercase);
}

TextWithOrigins to_lower(const TextWithOrigins& text) {
  return convert_case(text, append_lowercase);
}

TextWithOrigins to_title_case(const TextWithOrigins& text) {
  const std::string_view bytes = text.bytes();
  TextWithOrigins out;
  bool is_in_word = false;
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end; pos = find_next_character(bytes, pos)) {
      const char32_t character = read_utf8(bytes, pos).code_point;
      if (is_in_word) {
        append_lowercase(bytes, pos, buffer);
      } else {
        append_titlecase(bytes, pos, buffer);
      }
      is_in_word = is_uppercase(character) || is_lowercase(character) || is_titlecase(character);
    }
  });
  return out;
}

TextWithOrigins swap_case(const TextWithOrigins& text) {
  const std::string_view bytes = text.bytes();
  TextWithOrigins out;
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end; pos = find_next_character(bytes, pos)) {
      if (is_uppercase(read_utf8(bytes, pos).code_point)) {
        append_lowercase(bytes, pos, buffer);
      } else {
        append_uppercase(bytes, pos, buffer);
      }
    }
  });
  return out;
}

}  // namespace vlmtrain::text::jinja
