#include <algorithm>
#include <array>

#include "text/jinja/letters.h"
#include "text/jinja/method_table.h"
#include "text/jinja/operators.h"
#include "text/jinja/printf.h"
#include "text/jinja/text_edit.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

Value made(Context& context, MarkedText text) {
  context.budget.made(text.size());
  return Value::text(std::move(text));
}

/// The bytes between the characters that two arguments name, as a slice does.
struct Window {
  size_t begin;
  size_t end;
};

/// Nothing where it begins past the text or its end.
std::optional<Window> window_of(const Text& text, const Bound& given, size_t first) {
  const auto length = static_cast<int64_t>(text.length);
  const auto place = [&](size_t argument, int64_t fallback) {
    const int64_t at = given.given(argument) != nullptr ? given.whole(argument, fallback) : fallback;
    return at < 0 ? std::max<int64_t>(at < -length ? 0 : at + length, 0) : at;
  };
  const int64_t begin = place(first, 0);
  const int64_t end = std::min(place(first + 1, length), length);
  if (begin > end) return std::nullopt;
  return Window{place_of(text.view(), static_cast<size_t>(begin)), place_of(text.view(), static_cast<size_t>(end))};
}

template <Side side>
Value strip_method(Context& context, const Value& self, const Bound& given) {
  return made(context, strip(*self.text(), given.text(0), side));
}

/// Pieces between separators, from the left or from the right, at most `most` cuts.
std::vector<MarkedText> cut_at(const Text& text, std::string_view separator, int64_t most, bool from_right) {
  const std::string_view bytes = text.view();
  std::vector<size_t> cuts;
  if (from_right) {
    for (size_t end = bytes.size(); static_cast<int64_t>(cuts.size()) < most && end >= separator.size();) {
      const size_t at = bytes.rfind(separator, end - separator.size());
      if (at == std::string_view::npos) break;
      cuts.push_back(at);
      end = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t at = find_text(bytes, separator, 0);
         at != std::string_view::npos && static_cast<int64_t>(cuts.size()) < most;
         at = find_text(bytes, separator, at + separator.size())) {
      cuts.push_back(at);
    }
  }
  std::vector<MarkedText> pieces;
  pieces.reserve(cuts.size() + 1);
  size_t begin = 0;
  for (const size_t at : cuts) {
    pieces.push_back(text.marked.slice(begin, at));
    begin = at + separator.size();
  }
  pieces.push_back(text.marked.slice(begin, bytes.size()));
  return pieces;
}

/// Words between white space.
std::vector<MarkedText> cut_at_space(const Text& text, int64_t most) {
  const std::string_view bytes = text.view();
  const auto space_at = [&](size_t at) { return is_space(read_utf8(bytes, at).code_point); };
  std::vector<MarkedText> words;
  for (size_t at = 0; at < bytes.size();) {
    while (at < bytes.size() && space_at(at)) at = next_character(bytes, at);
    if (at == bytes.size()) break;
    size_t end = at;
    if (static_cast<int64_t>(words.size()) == most) end = bytes.size();
    while (end < bytes.size() && !space_at(end)) end = next_character(bytes, end);
    words.push_back(text.marked.slice(at, end));
    at = end;
  }
  return words;
}

std::vector<MarkedText> cut_at_space_from_right(const Text& text, int64_t most) {
  const std::string_view bytes = text.view();
  const auto space_before = [&](size_t at) {
    return is_space(read_utf8(bytes, previous_character(bytes, at)).code_point);
  };
  std::vector<MarkedText> words;
  for (size_t end = bytes.size(); end > 0;) {
    while (end > 0 && space_before(end)) end = previous_character(bytes, end);
    if (end == 0) break;
    size_t begin = end;
    if (static_cast<int64_t>(words.size()) == most) begin = 0;
    while (begin > 0 && !space_before(begin)) begin = previous_character(bytes, begin);
    words.push_back(text.marked.slice(begin, end));
    end = begin;
  }
  std::reverse(words.begin(), words.end());
  return words;
}

template <bool from_right>
Value split_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const Text* separator = given.text(0);
  const int64_t asked = given.whole(1, -1);
  const int64_t most = asked < 0 ? INT64_MAX : asked;
  if (separator != nullptr && separator->view().empty()) throw failure("split(): the separator is empty");
  // The worst case of rfind.
  if (separator != nullptr && from_right)
    context.budget.walk(text.view().size() * std::min<size_t>(separator->view().size(), 1000));
  std::vector<MarkedText> pieces = separator != nullptr ? cut_at(text, separator->view(), most, from_right)
                                   : from_right         ? cut_at_space_from_right(text, most)
                                                        : cut_at_space(text, most);
  context.budget.made(text.view().size() + pieces.size() * (sizeof(Value) + sizeof(Text)));
  return as_list(std::move(pieces));
}

template <bool from_right>
Value partition_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const Text& separator = given.needed_text(0);
  if (separator.view().empty()) throw failure("partition(): the separator is empty");
  context.budget.made(text.view().size());
  const size_t at = from_right ? text.view().rfind(separator.view()) : find_text(text.view(), separator.view(), 0);
  if (at == std::string_view::npos) {
    const Value empty = Value::text("");
    return from_right ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  }
  const size_t after = at + separator.view().size();
  return Value::tuple({Value::text(text.marked.slice(0, at)), Value::text(text.marked.slice(at, after)),
                       Value::text(text.marked.slice(after, text.view().size()))});
}

Value splitlines_method(Context& context, const Value& self, const Bound& given) {
  std::vector<MarkedText> lines = split_lines(self.text()->marked, given.flag(0, false));
  context.budget.made(self.text()->view().size() + lines.size() * (sizeof(Value) + sizeof(Text)));
  return as_list(std::move(lines));
}

template <bool at_end>
Value affix_method(Context& context, const Value& self, const Bound& given) {
  const auto window = window_of(*self.text(), given, 1);
  const auto fits = [&](const Value& affix) {
    if (affix.text() == nullptr) throw failure("startswith() and endswith() need texts, not {}", affix.type_name());
    if (!window) return false;
    const std::string_view part = self.text()->view().substr(window->begin, window->end - window->begin);
    return at_end ? part.ends_with(affix.text()->view()) : part.starts_with(affix.text()->view());
  };
  const Value& affix = *given[0];
  context.budget.step();
  if (affix.sequence() == nullptr || affix.sequence()->form != Sequence::Form::kTuple) return Value(fits(affix));
  return Value(std::any_of(affix.sequence()->items.begin(), affix.sequence()->items.end(), fits));
}

template <bool at_end>
Value remove_affix_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const std::string_view affix = given.needed_text(0).view();
  const size_t size = text.view().size();
  if (at_end ? !text.view().ends_with(affix) : !text.view().starts_with(affix)) return self;
  return made(context, at_end ? text.marked.slice(0, size - affix.size()) : text.marked.slice(affix.size(), size));
}

Value replace_method(Context& context, const Value& self, const Bound& given) {
  return Value::text(
      replace(*self.text(), given.needed_text(0), given.needed_text(1), given.whole(2, -1), context.budget));
}

template <MarkedText (*change)(const MarkedText&)>
Value change_method(Context& context, const Value& self, const Bound& /*given*/) {
  return made(context, change(self.text()->marked));
}

/// Words begin with a capital, where a word is letters.
MarkedText in_title_case(const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  MarkedText out;
  bool in_word = false;
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end; at = next_character(bytes, at)) {
      const char32_t character = read_utf8(bytes, at).code_point;
      if (in_word) {
        append_lower(bytes, at, written);
      } else {
        append_title(bytes, at, written);
      }
      in_word = is_upper(character) || is_lower(character) || is_title(character);
    }
  });
  return out;
}

MarkedText with_case_swapped(const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  MarkedText out;
  out.append_written(text, [&](size_t begin, size_t end, std::string& written) {
    for (size_t at = begin; at < end; at = next_character(bytes, at)) {
      if (is_upper(read_utf8(bytes, at).code_point)) {
        append_lower(bytes, at, written);
      } else {
        append_upper(bytes, at, written);
      }
    }
  });
  return out;
}

/// find, rfind, index and rindex: -1, or a Failure, where it is not in the window.
template <bool from_right, bool must_be_there>
Value find_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const std::string_view what = given.needed_text(0).view();
  const auto window = window_of(text, given, 1);
  size_t at = std::string_view::npos;
  if (window) {
    const std::string_view part = text.view().substr(window->begin, window->end - window->begin);
    context.budget.walk(part.size() * (from_right ? std::clamp<size_t>(what.size(), 1, 1000) : 1));
    at = from_right ? part.rfind(what) : find_text(part, what, 0);
    if (at != std::string_view::npos) at += window->begin;
  }
  if (at != std::string_view::npos) {
    return Value(text.ascii ? at : Text(MarkedText(std::string(text.view().substr(0, at)))).length);
  }
  if (must_be_there) throw failure("index(): the text is not in the other");
  return Value(-1);
}

Value count_in_text_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const std::string_view what = given.needed_text(0).view();
  const auto window = window_of(text, given, 1);
  context.budget.walk(text.view().size());
  if (!window) return Value(0);
  const std::string_view part = text.view().substr(window->begin, window->end - window->begin);
  if (what.empty()) return Value(Text(MarkedText(std::string(part))).length + 1);
  int64_t count = 0;
  for (size_t at = find_text(part, what, 0); at != std::string_view::npos;
       at = find_text(part, what, at + what.size())) {
    ++count;
  }
  return Value(count);
}

Value join_method(Context& context, const Value& self, const Bound& given) {
  std::vector<MarkedText> texts;
  const auto all_items = items_of(*given[0], context.budget);
  for (const Value& item : all_items->items) {
    if (item.text() == nullptr) throw failure("join() needs texts, not {}", item.type_name());
    context.budget.made(item.text()->view().size());
    texts.push_back(item.text()->marked);
  }
  return Value::text(join(self.text()->marked, texts, context.budget));
}

Value format_method(Context& context, const Value& self, const Bound& given) {
  return formatted(context, *self.text(), given.all());
}

/// Whether there is a character and `holds` for each.
template <bool (*holds)(char32_t)>
Value all_method(Context& context, const Value& self, const Bound& /*given*/) {
  const std::string_view bytes = self.text()->view();
  context.budget.walk(bytes.size());
  for (size_t at = 0; at < bytes.size(); at = next_character(bytes, at)) {
    if (!holds(read_utf8(bytes, at).code_point)) return Value(false);
  }
  return Value(!bytes.empty());
}

bool is_letter_or_number(char32_t character) {
  return is_letter(character) || is_numeric(character);
}

template <bool (*wanted)(char32_t), bool (*unwanted)(char32_t)>
Value case_method(Context& context, const Value& self, const Bound& /*given*/) {
  const std::string_view bytes = self.text()->view();
  context.budget.walk(bytes.size());
  bool any = false;
  for (size_t at = 0; at < bytes.size(); at = next_character(bytes, at)) {
    const char32_t character = read_utf8(bytes, at).code_point;
    if (unwanted(character) || is_title(character)) return Value(false);
    any = any || wanted(character);
  }
  return Value(any);
}

Value isascii_method(Context& /*context*/, const Value& self, const Bound& /*given*/) {
  return Value(self.text()->ascii);
}

Value isprintable_method(Context& context, const Value& self, const Bound& given) {
  if (self.text()->view().empty()) return Value(true);
  return all_method<is_printable>(context, self, given);
}

Value isidentifier_method(Context& context, const Value& self, const Bound& given) {
  const std::string_view bytes = self.text()->view();
  if (bytes.empty() || is_numeric(read_utf8(bytes, 0).code_point)) return Value(false);
  return all_method<is_word_character>(context, self, given);
}

std::string_view fill_of(const Bound& given) {
  const Text* fill = given.text(1);
  if (fill != nullptr && fill->length != 1) throw failure("a text is filled with one character");
  return fill != nullptr ? fill->view() : " ";
}

Value center_method(Context& context, const Value& self, const Bound& given) {
  return Value::text(centered(*self.text(), given.whole(0, 0), context.budget, fill_of(given)));
}

template <bool at_end>
Value justify_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const std::string_view fill = fill_of(given);
  const int64_t missing = std::max<int64_t>(given.whole(0, 0) - static_cast<int64_t>(text.length), 0);
  Budget::check_text(static_cast<size_t>(missing));
  MarkedText out;
  if (at_end) out.append(text.marked);
  for (int64_t i = 0; i < missing; ++i) out.append(fill);
  if (!at_end) out.append(text.marked);
  return made(context, std::move(out));
}

Value zfill_method(Context& context, const Value& self, const Bound& given) {
  const Text& text = *self.text();
  const int64_t missing = std::max<int64_t>(given.whole(0, 0) - static_cast<int64_t>(text.length), 0);
  Budget::check_text(static_cast<size_t>(missing));
  const size_t sign = text.view().starts_with('-') || text.view().starts_with('+') ? 1 : 0;
  MarkedText out;
  if (sign == 1) out.append(text.marked, 0, 1);
  out.append(std::string(static_cast<size_t>(missing), '0'));
  out.append(text.marked, sign, text.view().size());
  return made(context, std::move(out));
}

constexpr std::array kTextMethods = {
    Method{"capitalize", {""}, change_method<capitalized>},
    Method{"center", {"width fillchar", 1}, center_method},
    Method{"count", {"sub start end", 1}, count_in_text_method},
    Method{"endswith", {"suffix start end", 1}, affix_method<true>},
    Method{"find", {"sub start end", 1}, find_method<false, false>},
    Method{"format", {"*"}, format_method},
    Method{"index", {"sub start end", 1}, find_method<false, true>},
    Method{"isalnum", {""}, all_method<is_letter_or_number>},
    Method{"isalpha", {""}, all_method<is_letter>},
    Method{"isascii", {""}, isascii_method},
    Method{"isdecimal", {""}, all_method<is_decimal>},
    Method{"isdigit", {""}, all_method<is_digit>},
    Method{"isidentifier", {""}, isidentifier_method},
    Method{"islower", {""}, case_method<is_lower, is_upper>},
    Method{"isnumeric", {""}, all_method<is_numeric>},
    Method{"isprintable", {""}, isprintable_method},
    Method{"isspace", {""}, all_method<is_space>},
    Method{"isupper", {""}, case_method<is_upper, is_lower>},
    Method{"join", {"iterable", 1}, join_method},
    Method{"ljust", {"width fillchar", 1}, justify_method<true>},
    Method{"lower", {""}, change_method<lowercase>},
    Method{"lstrip", {"chars"}, strip_method<Side::kLeft>},
    Method{"partition", {"sep", 1}, partition_method<false>},
    Method{"removeprefix", {"prefix", 1}, remove_affix_method<false>},
    Method{"removesuffix", {"suffix", 1}, remove_affix_method<true>},
    Method{"replace", {"old new count", 2}, replace_method},
    Method{"rfind", {"sub start end", 1}, find_method<true, false>},
    Method{"rindex", {"sub start end", 1}, find_method<true, true>},
    Method{"rjust", {"width fillchar", 1}, justify_method<false>},
    Method{"rpartition", {"sep", 1}, partition_method<true>},
    Method{"rsplit", {"sep maxsplit"}, split_method<true>},
    Method{"rstrip", {"chars"}, strip_method<Side::kRight>},
    Method{"split", {"sep maxsplit"}, split_method<false>},
    Method{"splitlines", {"keepends"}, splitlines_method},
    Method{"startswith", {"prefix start end", 1}, affix_method<false>},
    Method{"strip", {"chars"}, strip_method<Side::kBoth>},
    Method{"swapcase", {""}, change_method<with_case_swapped>},
    Method{"title", {""}, change_method<in_title_case>},
    Method{"upper", {""}, change_method<uppercase>},
    Method{"zfill", {"width", 1}, zfill_method},
};

}  // namespace

std::span<const Method> methods_of_texts() {
  return kTextMethods;
}

}  // namespace vlmtrain::text::jinja
