#include "text/jinja/runtime/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/operators.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text::jinja {
namespace {

/// Appends repr() of a text, with the quotes and escapes that Python chooses.
void append_text_repr(TextWithOrigins& out, const TextWithOrigins& text) {
  const std::string_view bytes = text.bytes();
  const bool uses_double_quotes =
      bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = uses_double_quotes ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end;) {
      const Utf8Character utf8_character = read_utf8(bytes, pos);
      const char32_t character = utf8_character.code_point;
      if (character == U'\\' || character == static_cast<char32_t>(quote)) {
        buffer.append(1, '\\').append(1, static_cast<char>(character));
      } else if (character == U'\n' || character == U'\r' || character == U'\t') {
        buffer += character == U'\n' ? "\\n" : character == U'\r' ? "\\r" : "\\t";
      } else if (is_printable(character)) {
        buffer.append(bytes.substr(pos, utf8_character.num_bytes));
      } else if (character < 0x100) {
        buffer += fmt::format("\\x{:02x}", static_cast<uint32_t>(character));
      } else if (character < 0x10000) {
        buffer += fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
      } else {
        buffer += fmt::format("\\U{:08x}", static_cast<uint32_t>(character));
      }
      pos += utf8_character.num_bytes;
    }
  });
  out.append(std::string_view(&quote, 1));
}

/// Appends repr() of a sequence. Throws EvaluationError for ranges and generators.
void append_sequence_repr(TextWithOrigins& out, const Sequence& sequence, RenderBudget& budget) {
  const auto write_items = [&](const char* opening, const char* closing) {
    out.append(opening);
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(out, sequence.items[i], budget);
    }
    out.append(closing);
  };
  switch (sequence.type) {
    case Sequence::Type::kTuple:
      return write_items("(", sequence.items.size() == 1 ? ",)" : ")");
    case Sequence::Type::kKeys:
      return write_items("dict_keys([", "])");
    case Sequence::Type::kValues:
      return write_items("dict_values([", "])");
    case Sequence::Type::kItems:
      return write_items("dict_items([", "])");
    case Sequence::Type::kList:
      return write_items("[", "]");
    default:
      throw evaluation_error("a {} cannot be printed; convert it to a list",
                             Value(std::make_shared<const Sequence>(sequence)).type_name());
  }
}

/// Appends a text as a JSON string.
void append_json_text(TextWithOrigins& out, const TextWithOrigins& text, bool ensure_ascii) {
  const std::string_view bytes = text.bytes();
  out.append("\"");
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end;) {
      const Utf8Character utf8_character = read_utf8(bytes, pos);
      auto character = static_cast<uint32_t>(utf8_character.code_point);
      constexpr std::string_view kEscapedCharacters = "\"\\\n\r\t\b\f";
      const size_t escape_index =
          character < 0x80 ? kEscapedCharacters.find(static_cast<char>(character)) : std::string_view::npos;
      if (escape_index != std::string_view::npos) {
        buffer.append(1, '\\').append(1, "\"\\nrtbf"[escape_index]);  // in the order of kEscapedCharacters
      } else if (character < 0x20 || (ensure_ascii && character > 0x7E && character < 0x10000)) {
        buffer += fmt::format("\\u{:04x}", character);
      } else if (ensure_ascii && character >= 0x10000) {
        character -= 0x10000;  // a surrogate pair
        buffer += fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + (character >> 10U), 0xDC00U + (character & 0x3FFU));
      } else {
        buffer.append(bytes.substr(pos, utf8_character.num_bytes));
      }
      pos += utf8_character.num_bytes;
    }
  });
  out.append("\"");
}

/// A writer of JSON in the format of Python's json.dumps(). Appends to `out`.
class JsonWriter {
 public:
  JsonWriter(TextWithOrigins& out, const JsonStyle& style, RenderBudget& budget)
      : out_(out), style_(style), budget_(budget) {}

  /// Appends `value`. `depth` is the number of enclosing containers, for the indentation.
  void write_value(const Value& value, size_t depth) {
    budget_.charge_steps();
    RenderBudget::check_value_size(out_.size());
    if (value.text() != nullptr) return append_json_text(out_, value.text()->content, style_.ensure_ascii);
    if (value.is_none()) return out_.append("null");
    if (value.boolean() != nullptr) return out_.append(*value.boolean() ? "true" : "false");
    if (value.integer() != nullptr) return out_.append(std::to_string(*value.integer()));
    if (value.float_value() != nullptr) return write_float(*value.float_value());
    const bool is_json_array = value.sequence() != nullptr && (value.sequence()->type == Sequence::Type::kList ||
                                                               value.sequence()->type == Sequence::Type::kTuple);
    if (is_json_array) return write_list(value.sequence()->items, depth);
    if (value.dict() != nullptr) return write_dict(*value.dict(), depth);
    throw evaluation_error("a value of type {} is not JSON serializable", value.type_name());
  }

 private:
  void write_float(double value) {
    if (std::isfinite(value)) return out_.append(format_float_repr(value));
    out_.append(std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
  }

  void write_item_prefix(bool is_first, size_t depth) {
    if (!is_first) out_.append(style_.item_separator);
    write_newline_and_indent(depth);
  }

  void write_newline_and_indent(size_t depth) {
    if (!style_.indent) return;
    RenderBudget::check_value_size(style_.indent->size() * depth);
    out_.append("\n");
    for (size_t i = 0; i < depth; ++i) out_.append(*style_.indent);
  }

  void write_list(const std::vector<Value>& items, size_t depth) {
    out_.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      write_item_prefix(i == 0, depth + 1);
      write_value(items[i], depth + 1);
    }
    if (!items.empty()) write_newline_and_indent(depth);
    out_.append("]");
  }

  void write_dict(const Dict& dict, size_t depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* left, const auto* right) {
        return is_less(left->first, right->first, budget_);
      });
    }
    out_.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      write_item_prefix(i == 0, depth + 1);
      write_key(entries[i]->first);
      out_.append(style_.key_separator);
      write_value(entries[i]->second, depth + 1);
    }
    if (!entries.empty()) write_newline_and_indent(depth);
    out_.append("}");
  }

  void write_key(const Value& key) {
    if (key.text() != nullptr) return write_value(key, 0);
    out_.append("\"");
    write_value(key, 0);
    out_.append("\"");
  }

  TextWithOrigins& out_;
  const JsonStyle& style_;
  RenderBudget& budget_;
};

/// Parses the digits of an escape sequence such as \u00e9. Throws EvaluationError unless there are
/// exactly `num_digits` digits, and for surrogates and numbers above U+10FFFF.
char32_t parse_code_point(std::string_view digits, size_t num_digits, int base) {
  uint32_t code_point = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code_point, base);
  if (digits.size() != num_digits || error != std::errc{} || end != digits.data() + digits.size()) {
    throw evaluation_error("a string has an escape sequence with too few digits");
  }
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000))
    throw evaluation_error("a string has an escape sequence for an invalid code point");
  return code_point;
}

}  // namespace

std::string format_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Like Python, to_chars writes the shortest digits that round-trip. Python writes an exponent
  // below 1e-4 and from 1e16; to_chars has a different rule.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific_notation(buffer, static_cast<size_t>(end - buffer));
  int exponent = 0;
  const size_t exponent_pos = scientific_notation.find('e');
  const char* exponent_digits = buffer + exponent_pos + (scientific_notation[exponent_pos + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_digits, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(scientific_notation);
  const auto fixed_notation_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string fixed_notation(buffer, fixed_notation_end);
  if (fixed_notation.find('.') == std::string::npos) fixed_notation += ".0";
  return fixed_notation;
}

void append_str(TextWithOrigins& out, const Value& value, RenderBudget& budget) {
  if (value.is_undefined()) return;
  if (value.text() != nullptr) {
    budget.charge_allocation(value.text()->view().size());
    RenderBudget::check_value_size(out.size() + value.text()->view().size());
    return out.append(value.text()->content);
  }
  append_repr(out, value, budget);
}

void append_repr(TextWithOrigins& out, const Value& value, RenderBudget& budget) {
  budget.charge_steps();
  RenderBudget::check_value_size(out.size());
  if (value.is_undefined()) return out.append("Undefined");
  if (value.is_none()) return out.append("None");
  if (value.boolean() != nullptr) return out.append(*value.boolean() ? "True" : "False");
  if (value.integer() != nullptr) return out.append(std::to_string(*value.integer()));
  if (value.float_value() != nullptr) return out.append(format_float_repr(*value.float_value()));
  if (value.text() != nullptr) {
    budget.charge_allocation(value.text()->view().size());
    return append_text_repr(out, value.text()->content);
  }
  if (value.sequence() != nullptr) return append_sequence_repr(out, *value.sequence(), budget);
  if (value.dict() == nullptr) throw evaluation_error("a value of type {} cannot be printed", value.type_name());
  out.append("{");
  bool is_first = true;
  for (const auto& [key, item] : value.dict()->entries) {
    if (!std::exchange(is_first, false)) out.append(", ");
    append_repr(out, key, budget);
    out.append(": ");
    append_repr(out, item, budget);
  }
  out.append("}");
}

TextWithOrigins to_str(const Value& value, RenderBudget& budget) {
  if (value.text() != nullptr) return value.text()->content;
  TextWithOrigins out;
  append_str(out, value, budget);
  budget.charge_allocation(out.size());
  return out;
}

void append_json(TextWithOrigins& out, const Value& value, const JsonStyle& style, RenderBudget& budget) {
  JsonWriter(out, style, budget).write_value(value, 0);
  budget.charge_allocation(out.size());
}

std::string unescape_literal(std::string_view literal) {
  std::string text;
  for (size_t pos = 0; pos < literal.size();) {
    if (literal[pos] != '\\' || pos + 1 == literal.size()) {
      text += literal[pos++];
      continue;
    }
    const char escape_letter = literal[pos + 1];
    pos += 2;
    constexpr std::string_view kEscapeLetters = "\\'\"abfnrtv";
    constexpr std::string_view kUnescapedCharacters = "\\'\"\a\b\f\n\r\t\v";
    const size_t escape_index = kEscapeLetters.find(escape_letter);
    if (escape_index != std::string_view::npos) {
      text += kUnescapedCharacters[escape_index];
    } else if (escape_letter == 'x' || escape_letter == 'u' || escape_letter == 'U') {
      const size_t num_digits = escape_letter == 'x' ? 2 : escape_letter == 'u' ? 4 : 8;
      append_utf8(text, parse_code_point(literal.substr(pos, num_digits), num_digits, 16));
      pos += num_digits;
    } else if (escape_letter >= '0' && escape_letter <= '7') {
      size_t end = pos;
      while (end < literal.size() && end < pos + 2 && literal[end] >= '0' && literal[end] <= '7') ++end;
      append_utf8(text, parse_code_point(literal.substr(pos - 1, end - pos + 1), end - pos + 1, 8));
      pos = end;
    } else if (escape_letter == 'N') {
      throw evaluation_error("a string has the escape sequence \\N, which is not supported");
    } else if (escape_letter != '\n') {  // a backslash before a line break continues the line
      text.append(1, '\\').append(1, escape_letter);
    }
  }
  return text;
}

}  // namespace vlmtrain::text::jinja
