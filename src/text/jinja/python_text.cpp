#include "text/jinja/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/letters.h"
#include "text/jinja/operators.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

void append_repr_of_text(MarkedText& out, const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  const bool doubles = bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = doubles ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end;) {
      const Utf8Step step = read_utf8(bytes, at);
      const char32_t character = step.code_point;
      if (character == U'\\' || character == static_cast<char32_t>(quote)) {
        written.append(1, '\\').append(1, static_cast<char>(character));
      } else if (character == U'\n' || character == U'\r' || character == U'\t') {
        written += character == U'\n' ? "\\n" : character == U'\r' ? "\\r" : "\\t";
      } else if (is_printable(character)) {
        written.append(bytes.substr(at, step.bytes));
      } else if (character < 0x100) {
        written += fmt::format("\\x{:02x}", static_cast<uint32_t>(character));
      } else if (character < 0x10000) {
        written += fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
      } else {
        written += fmt::format("\\U{:08x}", static_cast<uint32_t>(character));
      }
      at += step.bytes;
    }
  });
  out.append(std::string_view(&quote, 1));
}

void append_repr_of_items(MarkedText& out, const Sequence& sequence, Budget& budget) {
  const auto write = [&](const char* before, const char* after) {
    out.append(before);
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(out, sequence.items[i], budget);
    }
    out.append(after);
  };
  switch (sequence.form) {
    case Sequence::Form::kTuple:
      return write("(", sequence.items.size() == 1 ? ",)" : ")");
    case Sequence::Form::kKeys:
      return write("dict_keys([", "])");
    case Sequence::Form::kValues:
      return write("dict_values([", "])");
    case Sequence::Form::kItems:
      return write("dict_items([", "])");
    case Sequence::Form::kList:
      return write("[", "]");
    default:
      throw failure("a {} cannot be written; make a list of it",
                    Value(std::make_shared<const Sequence>(sequence)).type_name());
  }
}

void append_json_text(MarkedText& out, const MarkedText& text, bool ascii) {
  const std::string_view bytes = text.bytes();
  out.append("\"");
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end;) {
      const Utf8Step step = read_utf8(bytes, at);
      auto character = static_cast<uint32_t>(step.code_point);
      constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
      const size_t escape = character < 0x80 ? kEscaped.find(static_cast<char>(character)) : std::string_view::npos;
      if (escape != std::string_view::npos) {
        written.append(1, '\\').append(1, "\"\\nrtbf"[escape]);
      } else if (character < 0x20 || (ascii && character > 0x7E && character < 0x10000)) {
        written += fmt::format("\\u{:04x}", character);
      } else if (ascii && character >= 0x10000) {
        character -= 0x10000;
        written += fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + (character >> 10U), 0xDC00U + (character & 0x3FFU));
      } else {
        written.append(bytes.substr(at, step.bytes));
      }
      at += step.bytes;
    }
  });
  out.append("\"");
}

/// json.dumps of one value and what lies in it.
class JsonWriter {
 public:
  JsonWriter(MarkedText& out, const JsonStyle& style, Budget& budget) : out_(out), style_(style), budget_(budget) {}

  void write(const Value& value, size_t level) {
    budget_.step();
    Budget::check_text(out_.size());
    if (value.text() != nullptr) return append_json_text(out_, value.text()->marked, style_.ascii);
    if (value.is_none()) return out_.append("null");
    if (value.boolean() != nullptr) return out_.append(*value.boolean() ? "true" : "false");
    if (value.integer() != nullptr) return out_.append(std::to_string(*value.integer()));
    if (value.real() != nullptr) return write_real(*value.real());
    const bool is_list = value.sequence() != nullptr && (value.sequence()->form == Sequence::Form::kList ||
                                                         value.sequence()->form == Sequence::Form::kTuple);
    if (is_list) return write_list(value.sequence()->items, level);
    if (value.dict() != nullptr) return write_dict(*value.dict(), level);
    throw failure("a value of type {} cannot be written as JSON", value.type_name());
  }

 private:
  void write_real(double value) {
    if (std::isfinite(value)) return out_.append(repr_of_real(value));
    out_.append(std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
  }

  void begin_item(bool first, size_t level) {
    if (!first) out_.append(style_.between_items);
    begin_line(level);
  }

  void begin_line(size_t level) {
    if (!style_.indent) return;
    Budget::check_text(style_.indent->size() * level);
    out_.append("\n");
    for (size_t i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  void write_list(const std::vector<Value>& items, size_t level) {
    out_.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      begin_item(i == 0, level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) begin_line(level);
    out_.append("]");
  }

  void write_dict(const Dict& dict, size_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return is_less(a->first, b->first, budget_); });
    }
    out_.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      begin_item(i == 0, level + 1);
      write_key(entries[i]->first);
      out_.append(style_.after_key);
      write(entries[i]->second, level + 1);
    }
    if (!entries.empty()) begin_line(level);
    out_.append("}");
  }

  void write_key(const Value& key) {
    if (key.text() != nullptr) return write(key, 0);
    out_.append("\"");
    write(key, 0);
    out_.append("\"");
  }

  MarkedText& out_;
  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

std::string repr_of_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // The shortest digits that give this number again, with an exponent where Python writes one.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  int exponent = 0;
  const size_t mark = scientific.find('e');
  const char* digits = buffer + mark + (scientific[mark + 1] == '+' ? 2 : 1);
  std::from_chars(digits, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

void append_str(MarkedText& out, const Value& value, Budget& budget) {
  if (value.is_undefined()) return;
  if (value.text() != nullptr) {
    budget.made(value.text()->view().size());
    Budget::check_text(out.size() + value.text()->view().size());
    return out.append(value.text()->marked);
  }
  append_repr(out, value, budget);
}

void append_repr(MarkedText& out, const Value& value, Budget& budget) {
  budget.step();
  Budget::check_text(out.size());
  if (value.is_undefined()) return out.append("Undefined");
  if (value.is_none()) return out.append("None");
  if (value.boolean() != nullptr) return out.append(*value.boolean() ? "True" : "False");
  if (value.integer() != nullptr) return out.append(std::to_string(*value.integer()));
  if (value.real() != nullptr) return out.append(repr_of_real(*value.real()));
  if (value.text() != nullptr) {
    budget.made(value.text()->view().size());
    return append_repr_of_text(out, value.text()->marked);
  }
  if (value.sequence() != nullptr) return append_repr_of_items(out, *value.sequence(), budget);
  if (value.dict() == nullptr) throw failure("a value of type {} cannot be written", value.type_name());
  out.append("{");
  bool first = true;
  for (const auto& [key, item] : value.dict()->entries) {
    if (!std::exchange(first, false)) out.append(", ");
    append_repr(out, key, budget);
    out.append(": ");
    append_repr(out, item, budget);
  }
  out.append("}");
}

MarkedText str_of(const Value& value, Budget& budget) {
  if (value.text() != nullptr) return value.text()->marked;
  MarkedText out;
  append_str(out, value, budget);
  budget.made(out.size());
  return out;
}

void append_json(MarkedText& out, const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter(out, style, budget).write(value, 0);
  budget.made(out.size());
}

}  // namespace vlmtrain::text::jinja
