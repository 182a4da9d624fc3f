#include <algorithm>
#include <array>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text::jinja {
namespace {

/// A range of bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
};

/// Returns the bytes of text[start:end], where argument `first_argument_index` is `start` and the
/// next argument is `end`. Returns nothing if `start` is greater than `end`.
std::optional<ByteRange> find_search_range(const TextValue& text, const BoundArguments& args,
                                           size_t first_argument_index) {
  const auto length = static_cast<int64_t>(text.length);
  const auto resolve_index = [&](size_t argument_index, int64_t fallback) {
    const int64_t pos =
        args.value_or_null(argument_index) != nullptr ? args.integer(argument_index, fallback) : fallback;
    return pos < 0 ? std::max<int64_t>(pos < -length ? 0 : pos + length, 0) : pos;
  };
  const int64_t begin = resolve_index(first_argument_index, 0);
  const int64_t end = std::min(resolve_index(first_argument_index + 1, length), length);
  if (begin > end) return std::nullopt;
  return ByteRange{to_byte_offset(text.view(), static_cast<size_t>(begin)),
                   to_byte_offset(text.view(), static_cast<size_t>(end))};
}

template <StripSide side>
Value strip_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  return make_text_result(context, strip(*self.text(), args.text(0), side));
}

template <bool from_right>
Value split_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const TextValue* separator = args.text(0);
  const int64_t maxsplit_argument = args.integer(1, -1);
  const int64_t max_splits = maxsplit_argument < 0 ? INT64_MAX : maxsplit_argument;
  if (separator != nullptr && separator->view().empty()) throw evaluation_error("split(): the separator is empty");
  // rfind takes the product of both sizes in the worst case. The factor is limited, because typical
  // texts take far less. Not tuned.
  if (separator != nullptr && from_right)
    context.budget.charge_scan(text.view().size() * std::min<size_t>(separator->view().size(), 1000));
  std::vector<TextWithOrigins> pieces = separator != nullptr
                                            ? split_at_separator(text, separator->view(), max_splits, from_right)
                                        : from_right ? rsplit_at_white_space(text, max_splits)
                                                     : split_at_white_space(text, max_splits);
  context.budget.charge_allocation(text.view().size() + pieces.size() * (sizeof(Value) + sizeof(TextValue)));
  return to_list_value(std::move(pieces));
}

template <bool from_right>
Value partition_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const TextValue& separator = args.required_text(0);
  if (separator.view().empty()) throw evaluation_error("partition(): the separator is empty");
  context.budget.charge_allocation(text.view().size());
  const size_t pos =
      from_right ? text.view().rfind(separator.view()) : find_substring(text.view(), separator.view(), 0);
  if (pos == std::string_view::npos) {
    const Value empty = Value::text("");
    return from_right ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  }
  const size_t suffix_begin = pos + separator.view().size();
  return Value::tuple({Value::text(text.content.slice(0, pos)), Value::text(text.content.slice(pos, suffix_begin)),
                       Value::text(text.content.slice(suffix_begin, text.view().size()))});
}

Value splitlines_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  std::vector<TextWithOrigins> lines = split_lines(self.text()->content, args.boolean(0, false));
  context.budget.charge_allocation(self.text()->view().size() + lines.size() * (sizeof(Value) + sizeof(TextValue)));
  return to_list_value(std::move(lines));
}

/// The methods startswith and, with `at_end`, endswith.
template <bool at_end>
Value starts_or_ends_with_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const auto range = find_search_range(*self.text(), args, 1);
  const auto matches_affix = [&](const Value& affix) {
    if (affix.text() == nullptr)
      throw evaluation_error("startswith() and endswith() need strings, not {}", affix.type_name());
    if (!range) return false;
    const std::string_view haystack = self.text()->view().substr(range->begin, range->end - range->begin);
    return at_end ? haystack.ends_with(affix.text()->view()) : haystack.starts_with(affix.text()->view());
  };
  const Value& affix = *args[0];
  context.budget.charge_steps();
  if (affix.sequence() == nullptr || affix.sequence()->type != Sequence::Type::kTuple)
    return Value(matches_affix(affix));
  return Value(std::any_of(affix.sequence()->items.begin(), affix.sequence()->items.end(), matches_affix));
}

/// The methods removeprefix and, with `at_end`, removesuffix.
template <bool at_end>
Value remove_affix_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const std::string_view affix = args.required_text(0).view();
  const size_t size = text.view().size();
  if (at_end ? !text.view().ends_with(affix) : !text.view().starts_with(affix)) return self;
  return make_text_result(context,
                          at_end ? text.content.slice(0, size - affix.size()) : text.content.slice(affix.size(), size));
}

Value replace_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  return Value::text(
      replace(*self.text(), args.required_text(0), args.required_text(1), args.integer(2, -1), context.budget));
}

template <TextWithOrigins (*transform)(const TextWithOrigins&)>
Value apply_text_transform(RenderContext& context, const Value& self, const BoundArguments& /*args*/) {
  return make_text_result(context, transform(self.text()->content));
}

/// The methods find, rfind, index and rindex. If there is no match, find and rfind return -1; index
/// and rindex (`requires_match`) throw EvaluationError.
template <bool from_right, bool requires_match>
Value text_find_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const std::string_view needle = args.required_text(0).view();
  const auto range = find_search_range(text, args, 1);
  size_t pos = std::string_view::npos;
  if (range) {
    const std::string_view haystack = text.view().substr(range->begin, range->end - range->begin);
    context.budget.charge_scan(haystack.size() * (from_right ? std::clamp<size_t>(needle.size(), 1, 1000) : 1));
    pos = from_right ? haystack.rfind(needle) : find_substring(haystack, needle, 0);
    if (pos != std::string_view::npos) pos += range->begin;
  }
  if (pos != std::string_view::npos) {
    return Value(text.is_ascii ? pos : TextValue(TextWithOrigins(std::string(text.view().substr(0, pos)))).length);
  }
  if (requires_match) throw evaluation_error("index(): substring not found");
  return Value(-1);
}

Value text_count_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const std::string_view needle = args.required_text(0).view();
  const auto range = find_search_range(text, args, 1);
  context.budget.charge_scan(text.view().size());
  if (!range) return Value(0);
  const std::string_view haystack = text.view().substr(range->begin, range->end - range->begin);
  if (needle.empty()) return Value(TextValue(TextWithOrigins(std::string(haystack))).length + 1);
  int64_t count = 0;
  for (size_t pos = find_substring(haystack, needle, 0); pos != std::string_view::npos;
       pos = find_substring(haystack, needle, pos + needle.size())) {
    ++count;
  }
  return Value(count);
}

Value join_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  std::vector<TextWithOrigins> texts;
  const auto items = to_sequence(*args[0], context.budget);
  for (const Value& item : items->items) {
    if (item.text() == nullptr) throw evaluation_error("join() needs strings, not {}", item.type_name());
    context.budget.charge_allocation(item.text()->view().size());
    texts.push_back(item.text()->content);
  }
  return Value::text(join(self.text()->content, texts, context.budget));
}

Value format_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  return apply_brace_format(context, *self.text(), args.arguments());
}

/// Returns whether the text is not empty and `predicate` is true for all characters.
template <bool (*predicate)(char32_t)>
Value all_characters_match_method(RenderContext& context, const Value& self, const BoundArguments& /*args*/) {
  const std::string_view bytes = self.text()->view();
  context.budget.charge_scan(bytes.size());
  for (size_t pos = 0; pos < bytes.size(); pos = find_next_character(bytes, pos)) {
    if (!predicate(read_utf8(bytes, pos).code_point)) return Value(false);
  }
  return Value(!bytes.empty());
}

/// Returns whether Python's str.isalnum() is true.
bool is_alphanumeric(char32_t character) {
  return is_letter(character) || is_numeric(character);
}

/// Returns whether the text has a character of the expected case and none of another case.
template <bool (*is_expected_case)(char32_t), bool (*is_other_case)(char32_t)>
Value letter_case_method(RenderContext& context, const Value& self, const BoundArguments& /*args*/) {
  const std::string_view bytes = self.text()->view();
  context.budget.charge_scan(bytes.size());
  bool has_expected_case = false;
  for (size_t pos = 0; pos < bytes.size(); pos = find_next_character(bytes, pos)) {
    const char32_t character = read_utf8(bytes, pos).code_point;
    if (is_other_case(character) || is_titlecase(character)) return Value(false);
    has_expected_case = has_expected_case || is_expected_case(character);
  }
  return Value(has_expected_case);
}

Value isascii_method(RenderContext& /*context*/, const Value& self, const BoundArguments& /*args*/) {
  return Value(self.text()->is_ascii);
}

Value isprintable_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  if (self.text()->view().empty()) return Value(true);
  return all_characters_match_method<is_printable>(context, self, args);
}

Value isidentifier_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const std::string_view bytes = self.text()->view();
  if (bytes.empty() || is_numeric(read_utf8(bytes, 0).code_point)) return Value(false);
  return all_characters_match_method<is_word_character>(context, self, args);
}

/// Returns the argument `fillchar`, or a space if it is missing. Throws EvaluationError if it is
/// not a single character.
std::string_view get_fill_character(const BoundArguments& args) {
  const TextValue* fill = args.text(1);
  if (fill != nullptr && fill->length != 1) throw evaluation_error("the fill character must be one character");
  return fill != nullptr ? fill->view() : " ";
}

Value center_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  return Value::text(center(*self.text(), args.integer(0, 0), context.budget, get_fill_character(args)));
}

/// The methods rjust and, with `at_end`, ljust: the padding is on the left or at the end.
template <bool at_end>
Value justify_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const std::string_view fill = get_fill_character(args);
  const int64_t num_fill_characters = std::max<int64_t>(args.integer(0, 0) - static_cast<int64_t>(text.length), 0);
  RenderBudget::check_value_size(static_cast<size_t>(num_fill_characters));
  TextWithOrigins out;
  if (at_end) out.append(text.content);
  for (int64_t i = 0; i < num_fill_characters; ++i) out.append(fill);
  if (!at_end) out.append(text.content);
  return make_text_result(context, std::move(out));
}

Value zfill_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const TextValue& text = *self.text();
  const int64_t num_fill_characters = std::max<int64_t>(args.integer(0, 0) - static_cast<int64_t>(text.length), 0);
  RenderBudget::check_value_size(static_cast<size_t>(num_fill_characters));
  const size_t sign_length = text.view().starts_with('-') || text.view().starts_with('+') ? 1 : 0;
  TextWithOrigins out;
  if (sign_length == 1) out.append(text.content, 0, 1);
  out.append(std::string(static_cast<size_t>(num_fill_characters), '0'));
  out.append(text.content, sign_length, text.view().size());
  return make_text_result(context, std::move(out));
}

constexpr std::array kTextMethods = {
    Builtin{"capitalize", {""}, apply_text_transform<capitalize>},
    Builtin{"center", {"width fillchar", 1}, center_method},
    Builtin{"count", {"sub start end", 1}, text_count_method},
    Builtin{"endswith", {"suffix start end", 1}, starts_or_ends_with_method<true>},
    Builtin{"find", {"sub start end", 1}, text_find_method<false, false>},
    Builtin{"format", {"*"}, format_method},
    Builtin{"index", {"sub start end", 1}, text_find_method<false, true>},
    Builtin{"isalnum", {""}, all_characters_match_method<is_alphanumeric>},
    Builtin{"isalpha", {""}, all_characters_match_method<is_letter>},
    Builtin{"isascii", {""}, isascii_method},
    Builtin{"isdecimal", {""}, all_characters_match_method<is_decimal>},
    Builtin{"isdigit", {""}, all_characters_match_method<is_digit>},
    Builtin{"isidentifier", {""}, isidentifier_method},
    Builtin{"islower", {""}, letter_case_method<is_lowercase, is_uppercase>},
    Builtin{"isnumeric", {""}, all_characters_match_method<is_numeric>},
    Builtin{"isprintable", {""}, isprintable_method},
    Builtin{"isspace", {""}, all_characters_match_method<is_python_space>},
    Builtin{"isupper", {""}, letter_case_method<is_uppercase, is_lowercase>},
    Builtin{"join", {"iterable", 1}, join_method},
    Builtin{"ljust", {"width fillchar", 1}, justify_method<true>},
    Builtin{"lower", {""}, apply_text_transform<to_lower>},
    Builtin{"lstrip", {"chars"}, strip_method<StripSide::kLeft>},
    Builtin{"partition", {"sep", 1}, partition_method<false>},
    Builtin{"removeprefix", {"prefix", 1}, remove_affix_method<false>},
    Builtin{"removesuffix", {"suffix", 1}, remove_affix_method<true>},
    Builtin{"replace", {"old new count", 2}, replace_method},
    Builtin{"rfind", {"sub start end", 1}, text_find_method<true, false>},
    Builtin{"rindex", {"sub start end", 1}, text_find_method<true, true>},
    Builtin{"rjust", {"width fillchar", 1}, justify_method<false>},
    Builtin{"rpartition", {"sep", 1}, partition_method<true>},
    Builtin{"rsplit", {"sep maxsplit"}, split_method<true>},
    Builtin{"rstrip", {"chars"}, strip_method<StripSide::kRight>},
    Builtin{"split", {"sep maxsplit"}, split_method<false>},
    Builtin{"splitlines", {"keepends"}, splitlines_method},
    Builtin{"startswith", {"prefix start end", 1}, starts_or_ends_with_method<false>},
    Builtin{"strip", {"chars"}, strip_method<StripSide::kBoth>},
    Builtin{"swapcase", {""}, apply_text_transform<swap_case>},
    Builtin{"title", {""}, apply_text_transform<to_title_case>},
    Builtin{"upper", {""}, apply_text_transform<to_upper>},
    Builtin{"zfill", {"width", 1}, zfill_method},
};

}  // namespace

std::span<const Builtin> get_text_methods() {
  return kTextMethods;
}

}  // namespace vlmtrain::text::jinja
