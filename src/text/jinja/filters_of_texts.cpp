#include <algorithm>
#include <array>

#include "text/jinja/access.h"
#include "text/jinja/callables.h"
#include "text/jinja/letters.h"
#include "text/jinja/operators.h"
#include "text/jinja/printf.h"
#include "text/jinja/python_text.h"
#include "text/jinja/text_edit.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

Text text_of(Context& context, const Value& value) {
  return Text(str_of(value, context.budget));
}

Value changed(Context& context, MarkedText text) {
  context.budget.made(text.size());
  return Value::text(std::move(text));
}

template <MarkedText (*change)(const MarkedText&)>
Value change_filter(Context& context, const Value& value, const Bound& /*given*/) {
  return changed(context, change(str_of(value, context.budget)));
}

/// As Jinja's filter takes words, which is not what str.title() does.
MarkedText with_capitals(const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  bool at_start = true;
  MarkedText out;
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end; at = next_character(bytes, at)) {
      const char32_t character = read_utf8(bytes, at).code_point;
      const bool separates =
          is_space(character) ||
          (character < 0x80 && std::string_view("-({[<").find(static_cast<char>(character)) != std::string_view::npos);
      if (at_start) {
        append_upper(bytes, at, written);
      } else {
        append_lower(bytes, at, written);
      }
      at_start = separates;
    }
  });
  return out;
}

Value escape_filter(Context& context, const Value& value, const Bound& /*given*/) {
  if (value.text() != nullptr && value.text()->is_escaped) return value;
  MarkedText escaped = html_escaped(str_of(value, context.budget));
  context.budget.made(escaped.size());
  return Value::text(std::move(escaped), true);
}

Value forceescape_filter(Context& context, const Value& value, const Bound& /*given*/) {
  MarkedText escaped = html_escaped(str_of(value, context.budget));
  context.budget.made(escaped.size());
  return Value::text(std::move(escaped), true);
}

Value safe_filter(Context& context, const Value& value, const Bound& /*given*/) {
  return Value::text(str_of(value, context.budget), true);
}

Value trim_filter(Context& context, const Value& value, const Bound& given) {
  return changed(context, strip(text_of(context, value), given.text(0), Side::kBoth));
}

Value replace_filter(Context& context, const Value& value, const Bound& given) {
  const int64_t count = given.given(2) != nullptr ? given.whole(2, -1) : -1;
  return Value::text(replace(text_of(context, value), text_of(context, *given[0]), text_of(context, *given[1]), count,
                             context.budget));
}

Value string_filter(Context& context, const Value& value, const Bound& /*given*/) {
  return value.text() != nullptr ? value : Value::text(str_of(value, context.budget));
}

Value center_filter(Context& context, const Value& value, const Bound& given) {
  return Value::text(centered(text_of(context, value), given.whole(0, 80), context.budget));
}

/// The line break that ends a line, as one \n.
void append_break(MarkedText& out, const MarkedText& ending) {
  bool written_yet = false;
  out.append_written(ending, [&](size_t /*begin*/, size_t /*end*/, std::string& written) {
    if (!std::exchange(written_yet, true)) written += '\n';
  });
}

Value indent_filter(Context& context, const Value& value, const Bound& given) {
  if (value.text() == nullptr) throw failure("indent needs a text, not {}", value.type_name());
  MarkedText indention;
  if (given[0] != nullptr && given[0]->text() != nullptr) {
    indention = given[0]->text()->marked;
  } else {
    const int64_t width = std::max<int64_t>(given.whole(0, 4), 0);
    Budget::check_text(static_cast<size_t>(width));
    indention.append(std::string(static_cast<size_t>(width), ' '));
  }
  const bool blank = given.flag(2, false);
  MarkedText whole = value.text()->marked;
  whole.append("\n");
  const std::vector<MarkedText> lines = split_lines(whole, false);
  MarkedText out;
  if (given.flag(1, false)) out.append(indention);
  size_t at = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0 && (blank || !lines[i].empty())) out.append(indention);
    out.append(lines[i]);
    at += lines[i].size();
    if (i + 1 == lines.size()) break;
    const size_t next = whole.bytes().compare(at, 2, "\r\n") == 0 ? at + 2 : next_character(whole.bytes(), at);
    append_break(out, whole.slice(at, next));
    at = next;
    Budget::check_text(out.size());
  }
  return changed(context, std::move(out));
}

Value join_filter(Context& context, const Value& value, const Bound& given) {
  const MarkedText separator = given[0] != nullptr ? str_of(*given[0], context.budget) : MarkedText();
  std::vector<MarkedText> texts;
  const auto all_items = items_of(value, context.budget);
  for (const Value& item : all_items->items) {
    texts.push_back(
        str_of(given.given(1) != nullptr ? get_path(item, *given[1], context.budget) : item, context.budget));
  }
  return Value::text(join(separator, texts, context.budget));
}

Value format_filter(Context& context, const Value& value, const Bound& given) {
  const Text text = text_of(context, value);
  const Arguments& all = given.all();
  if (all.keyword.empty()) return print_formatted(text, Value::tuple(all.positional), context.budget);
  if (!all.positional.empty()) throw failure("format takes values by place or by name, not both");
  return print_formatted(text, Value::dict(all.keyword), context.budget);
}

Value wordcount_filter(Context& context, const Value& value, const Bound& /*given*/) {
  const Text text = text_of(context, value);
  context.budget.walk(text.view().size());
  int64_t count = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.view().size(); at = next_character(text.view(), at)) {
    const bool is_word = is_word_character(read_utf8(text.view(), at).code_point);
    if (is_word && !in_word) ++count;
    in_word = is_word;
  }
  return Value(count);
}

Value truncate_filter(Context& context, const Value& value, const Bound& given) {
  if (value.text() == nullptr) throw failure("truncate needs a text, not {}", value.type_name());
  const Text& text = *value.text();
  const Text end = given.text(2) != nullptr ? *given.text(2) : Text(MarkedText("..."));
  const auto length = given.whole(0, 255);
  const int64_t leeway = given.given(3) != nullptr ? given.whole(3, 5) : 5;
  if (length < static_cast<int64_t>(end.length) || leeway < 0)
    throw failure("truncate: the length or leeway is too small");
  if (static_cast<int64_t>(text.length) - leeway <= length) return value;
  size_t kept = place_of(text.view(), static_cast<size_t>(length) - end.length);
  if (!given.flag(1, false)) kept = std::min(text.view().substr(0, kept).rfind(' '), kept);
  MarkedText out = text.marked.slice(0, kept);
  out.append(end.marked);
  return changed(context, std::move(out));
}

MarkedText quoted(const MarkedText& text, bool in_query) {
  const std::string_view bytes = text.bytes();
  MarkedText out;
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (const char letter : bytes.substr(begin, end - begin)) {
      const auto byte = static_cast<unsigned char>(letter);
      const bool plain =
          byte < 0x80 && (is_word_character(byte) || std::string_view(".-~").find(letter) != std::string_view::npos);
      if (plain || (letter == '/' && !in_query)) {
        written += letter;
      } else if (letter == ' ' && in_query) {
        written += '+';
      } else {
        written += fmt::format("%{:02X}", byte);
      }
    }
  });
  return out;
}

Value urlencode_filter(Context& context, const Value& value, const Bound& /*given*/) {
  if (value.text() != nullptr || !can_iterate(value))
    return changed(context, quoted(str_of(value, context.budget), false));
  std::vector<MarkedText> parts;
  const auto add = [&](const Value& key, const Value& item) {
    MarkedText part = quoted(str_of(key, context.budget), true);
    part.append("=");
    part.append(quoted(str_of(item, context.budget), true));
    parts.push_back(std::move(part));
  };
  if (value.dict() != nullptr) {
    for (const auto& [key, item] : value.dict()->entries) add(key, item);
  } else {
    const auto all_items = items_of(value, context.budget);
    for (const Value& pair : all_items->items) {
      const auto both = items_of(pair, context.budget);
      if (both->items.size() != 2) throw failure("urlencode needs pairs");
      add(both->items[0], both->items[1]);
    }
  }
  return Value::text(join(MarkedText("&"), parts, context.budget));
}

Value tojson_filter(Context& context, const Value& value, const Bound& given) {
  JsonStyle style;
  style.ascii = given.flag(0, false);
  if (const Value* indent = given.given(1)) {
    if (indent->text() != nullptr) {
      style.indent = indent->text()->view();
    } else {
      const int64_t width = std::max<int64_t>(given.whole(1, 0), 0);
      Budget::check_text(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.between_items = ",";
  }
  if (const Value* separators = given.given(2)) {
    const auto both = items_of(*separators, context.budget);
    if (both->items.size() != 2 || both->items[0].text() == nullptr || both->items[1].text() == nullptr) {
      throw failure("tojson: separators must be two texts");
    }
    style.between_items = both->items[0].text()->view();
    style.after_key = both->items[1].text()->view();
  }
  style.sort_keys = given.flag(3, false);
  MarkedText out;
  append_json(out, value, style, context.budget);
  return Value::text(std::move(out));
}

constexpr std::array kFiltersOfTexts = {
    Method{"capitalize", {""}, change_filter<capitalized>},
    Method{"center", {"width"}, center_filter},
    Method{"e", {""}, escape_filter},
    Method{"escape", {""}, escape_filter},
    Method{"forceescape", {""}, forceescape_filter},
    Method{"format", {"*"}, format_filter},
    Method{"indent", {"width first blank"}, indent_filter},
    Method{"join", {"d attribute"}, join_filter},
    Method{"lower", {""}, change_filter<lowercase>},
    Method{"replace", {"old new count", 2}, replace_filter},
    Method{"safe", {""}, safe_filter},
    Method{"string", {""}, string_filter},
    Method{"title", {""}, change_filter<with_capitals>},
    Method{"tojson", {"ensure_ascii indent separators sort_keys"}, tojson_filter},
    Method{"trim", {"chars"}, trim_filter},
    Method{"truncate", {"length killwords end leeway"}, truncate_filter},
    Method{"upper", {""}, change_filter<uppercase>},
    Method{"urlencode", {""}, urlencode_filter},
    Method{"wordcount", {""}, wordcount_filter},
};

}  // namespace

std::span<const Method> filters_of_texts() {
  return kFiltersOfTexts;
}

}  // namespace vlmtrain::text::jinja
