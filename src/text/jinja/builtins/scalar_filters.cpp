#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"
#include "vlmtrain/text/python_str.h"

namespace vlmtrain::text::jinja {

namespace {

/// Returns str(value).
TextValue to_text(RenderContext& context, const Value& value) {
  return TextValue(to_str(value, context.budget));
}

template <TextWithOrigins (*transform)(const TextWithOrigins&)>
Value transform_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  return make_text_result(context, transform(to_str(value, context.budget)));
}

/// Returns the result of Jinja2's filter title. Its words begin after white space, hyphens and
/// opening brackets; the words of str.title() begin after any character without case.
TextWithOrigins capitalize_words(const TextWithOrigins& text) {
  const std::string_view bytes = text.bytes();
  bool is_word_start = true;
  TextWithOrigins out;
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (size_t pos = begin; pos < end; pos = find_next_character(bytes, pos)) {
      const char32_t character = read_utf8(bytes, pos).code_point;
      const bool is_separator =
          is_python_space(character) ||
          (character < 0x80 && std::string_view("-({[<").find(static_cast<char>(character)) != std::string_view::npos);
      if (is_word_start) {
        append_uppercase(bytes, pos, buffer);
      } else {
        append_lowercase(bytes, pos, buffer);
      }
      is_word_start = is_separator;
    }
  });
  return out;
}

Value escape_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  if (value.text() != nullptr && value.text()->is_escaped) return value;
  TextWithOrigins escaped = escape_html(to_str(value, context.budget));
  context.budget.charge_allocation(escaped.size());
  return Value::text(std::move(escaped), true);
}

Value forceescape_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  TextWithOrigins escaped = escape_html(to_str(value, context.budget));
  context.budget.charge_allocation(escaped.size());
  return Value::text(std::move(escaped), true);
}

Value safe_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  return Value::text(to_str(value, context.budget), true);
}

Value trim_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  return make_text_result(context, strip(to_text(context, value), args.text(0), StripSide::kBoth));
}

Value replace_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const int64_t count = args.value_or_null(2) != nullptr ? args.integer(2, -1) : -1;
  return Value::text(
      replace(to_text(context, value), to_text(context, *args[0]), to_text(context, *args[1]), count, context.budget));
}

Value string_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  return value.text() != nullptr ? value : Value::text(to_str(value, context.budget));
}

Value center_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  return Value::text(center(to_text(context, value), args.integer(0, 80), context.budget));
}

/// Appends \n with the origin of the first character of `line_break`.
void append_newline(TextWithOrigins& out, const TextWithOrigins& line_break) {
  bool has_written_newline = false;
  out.append_transformed(line_break, [&](size_t /*begin*/, size_t /*end*/, std::string& buffer) {
    if (!std::exchange(has_written_newline, true)) buffer += '\n';
  });
}

Value indent_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  if (value.text() == nullptr) throw evaluation_error("indent needs a string, not {}", value.type_name());
  TextWithOrigins indentation;
  if (args[0] != nullptr && args[0]->text() != nullptr) {
    indentation = args[0]->text()->content;
  } else {
    const int64_t width = std::max<int64_t>(args.integer(0, 4), 0);
    RenderBudget::check_value_size(static_cast<size_t>(width));
    indentation.append(std::string(static_cast<size_t>(width), ' '));
  }
  const bool indents_blank_lines = args.boolean(2, false);
  TextWithOrigins text = value.text()->content;
  text.append("\n");
  const std::vector<TextWithOrigins> lines = split_lines(text, false);
  TextWithOrigins out;
  if (args.boolean(1, false)) out.append(indentation);
  size_t pos = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0 && (indents_blank_lines || !lines[i].empty())) out.append(indentation);
    out.append(lines[i]);
    pos += lines[i].size();
    if (i + 1 == lines.size()) break;
    const size_t next_line_begin =
        text.bytes().compare(pos, 2, "\r\n") == 0 ? pos + 2 : find_next_character(text.bytes(), pos);
    append_newline(out, text.slice(pos, next_line_begin));
    pos = next_line_begin;
    RenderBudget::check_value_size(out.size());
  }
  return make_text_result(context, std::move(out));
}

Value join_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const TextWithOrigins separator = args[0] != nullptr ? to_str(*args[0], context.budget) : TextWithOrigins();
  std::vector<TextWithOrigins> texts;
  const auto items = to_sequence(value, context.budget);
  for (const Value& item : items->items) {
    texts.push_back(to_str(args.value_or_null(1) != nullptr ? get_item_at_path(item, *args[1], context.budget) : item,
                           context.budget));
  }
  return Value::text(join(separator, texts, context.budget));
}

Value format_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const TextValue text = to_text(context, value);
  const Arguments& arguments = args.arguments();
  if (arguments.keyword.empty()) return apply_percent_format(text, Value::tuple(arguments.positional), context.budget);
  if (!arguments.positional.empty()) throw evaluation_error("format takes positional or keyword arguments, not both");
  return apply_percent_format(text, Value::dict(arguments.keyword), context.budget);
}

Value wordcount_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  const TextValue text = to_text(context, value);
  context.budget.charge_scan(text.view().size());
  int64_t count = 0;
  bool was_in_word = false;
  for (size_t pos = 0; pos < text.view().size(); pos = find_next_character(text.view(), pos)) {
    const bool is_in_word = is_word_character(read_utf8(text.view(), pos).code_point);
    if (is_in_word && !was_in_word) ++count;
    was_in_word = is_in_word;
  }
  return Value(count);
}

Value truncate_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  if (value.text() == nullptr) throw evaluation_error("truncate needs a string, not {}", value.type_name());
  const TextValue& text = *value.text();
  const TextValue truncation_suffix = args.text(2) != nullptr ? *args.text(2) : TextValue(TextWithOrigins("..."));
  const auto length = args.integer(0, 255);
  const int64_t leeway = args.value_or_null(3) != nullptr ? args.integer(3, 5) : 5;
  if (length < static_cast<int64_t>(truncation_suffix.length) || leeway < 0)
    throw evaluation_error("truncate: the length or leeway is too small");
  if (static_cast<int64_t>(text.length) - leeway <= length) return value;
  size_t end_offset = to_byte_offset(text.view(), static_cast<size_t>(length) - truncation_suffix.length);
  if (!args.boolean(1, false)) end_offset = std::min(text.view().substr(0, end_offset).rfind(' '), end_offset);
  TextWithOrigins out = text.content.slice(0, end_offset);
  out.append(truncation_suffix.content);
  return make_text_result(context, std::move(out));
}

/// Returns the result of Python's urllib.parse.quote(), or of quote_plus() with `is_query`.
TextWithOrigins percent_encode(const TextWithOrigins& text, bool is_query) {
  const std::string_view bytes = text.bytes();
  TextWithOrigins out;
  out.append_transformed(text, [&](size_t begin, size_t end, std::string& buffer) {
    for (const char byte_char : bytes.substr(begin, end - begin)) {
      const auto byte = static_cast<unsigned char>(byte_char);
      const bool is_unreserved =
          byte < 0x80 && (is_word_character(byte) || std::string_view(".-~").find(byte_char) != std::string_view::npos);
      if (is_unreserved || (byte_char == '/' && !is_query)) {
        buffer += byte_char;
      } else if (byte_char == ' ' && is_query) {
        buffer += '+';
      } else {
        buffer += fmt::format("%{:02X}", byte);
      }
    }
  });
  return out;
}

Value urlencode_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  if (value.text() != nullptr || !is_iterable(value))
    return make_text_result(context, percent_encode(to_str(value, context.budget), false));
  std::vector<TextWithOrigins> query_parameters;
  const auto add_query_parameter = [&](const Value& key, const Value& item) {
    TextWithOrigins query_parameter = percent_encode(to_str(key, context.budget), true);
    query_parameter.append("=");
    query_parameter.append(percent_encode(to_str(item, context.budget), true));
    query_parameters.push_back(std::move(query_parameter));
  };
  if (value.dict() != nullptr) {
    for (const auto& [key, item] : value.dict()->entries) add_query_parameter(key, item);
  } else {
    const auto items = to_sequence(value, context.budget);
    for (const Value& pair : items->items) {
      const auto pair_items = to_sequence(pair, context.budget);
      if (pair_items->items.size() != 2) throw evaluation_error("urlencode needs pairs");
      add_query_parameter(pair_items->items[0], pair_items->items[1]);
    }
  }
  return Value::text(join(TextWithOrigins("&"), query_parameters, context.budget));
}

Value tojson_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  JsonStyle style;
  style.ensure_ascii = args.boolean(0, false);
  if (const Value* indent = args.value_or_null(1)) {
    if (indent->text() != nullptr) {
      style.indent = indent->text()->view();
    } else {
      const int64_t width = std::max<int64_t>(args.integer(1, 0), 0);
      RenderBudget::check_value_size(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (const Value* separators = args.value_or_null(2)) {
    const auto pair_items = to_sequence(*separators, context.budget);
    if (pair_items->items.size() != 2 || pair_items->items[0].text() == nullptr ||
        pair_items->items[1].text() == nullptr) {
      throw evaluation_error("tojson: separators must be two strings");
    }
    style.item_separator = pair_items->items[0].text()->view();
    style.key_separator = pair_items->items[1].text()->view();
  }
  style.sort_keys = args.boolean(3, false);
  TextWithOrigins out;
  append_json(out, value, style, context.budget);
  return Value::text(std::move(out));
}

constexpr std::array kTextFilters = {
    Builtin{"capitalize", {""}, transform_filter<capitalize>},
    Builtin{"center", {"width"}, center_filter},
    Builtin{"e", {""}, escape_filter},
    Builtin{"escape", {""}, escape_filter},
    Builtin{"forceescape", {""}, forceescape_filter},
    Builtin{"format", {"*"}, format_filter},
    Builtin{"indent", {"width first blank"}, indent_filter},
    Builtin{"join", {"d attribute"}, join_filter},
    Builtin{"lower", {""}, transform_filter<to_lower>},
    Builtin{"replace", {"old new count", 2}, replace_filter},
    Builtin{"safe", {""}, safe_filter},
    Builtin{"string", {""}, string_filter},
    Builtin{"title", {""}, transform_filter<capitalize_words>},
    Builtin{"tojson", {"ensure_ascii indent separators sort_keys"}, tojson_filter},
    Builtin{"trim", {"chars"}, trim_filter},
    Builtin{"truncate", {"length killwords end leeway"}, truncate_filter},
    Builtin{"upper", {""}, transform_filter<to_upper>},
    Builtin{"urlencode", {""}, urlencode_filter},
    Builtin{"wordcount", {""}, wordcount_filter},
};

}  // namespace

std::span<const Builtin> get_text_filters() {
  return kTextFilters;
}

namespace {

/// Limit of conversions to integers: slightly below 2^63, the first value that int64_t cannot hold.
constexpr double kMaxConvertibleFloat = 9.2e18;

/// Returns `value` as a number. Throws EvaluationError with the name `filter` if it is not a
/// number.
Number to_number_or_throw(std::string_view filter, const Value& value) {
  const auto number = to_number(value);
  if (number) return *number;
  if (value.is_undefined()) throw EvaluationError{value.get_undefined_message()};
  throw evaluation_error("{} needs a number, not {}", filter, value.type_name());
}

/// Returns Python's int() of a float, rounded toward 0. Throws EvaluationError beyond
/// kMaxConvertibleFloat.
Value truncate_to_integer(double float_value) {
  if (!(std::fabs(float_value) < kMaxConvertibleFloat))
    throw evaluation_error("{} is not a 64-bit integer", float_value);
  return Value(static_cast<int64_t>(float_value));
}

Value abs_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  const Number number = to_number_or_throw("abs", value);
  // As in Python, the result for a boolean is an integer.
  return apply_comparison_operator(ComparisonOperator::kLess, value, Value(0), context.budget) ? negate(value)
         : number.is_integer                                                                   ? Value(number.integer)
                                                                                               : value;
}

Value int_filter(RenderContext& /*context*/, const Value& value, const BoundArguments& args) {
  Value fallback = args[0] != nullptr ? *args[0] : Value(0);
  if (value.is_undefined()) throw EvaluationError{value.get_undefined_message()};
  if (value.text() != nullptr) {
    if (const auto integer = parse_int(value.text()->view(), static_cast<int>(args.integer(1, 10))))
      return Value(*integer);
    const auto float_value = parse_float(value.text()->view());
    return float_value && std::isfinite(*float_value) ? truncate_to_integer(*float_value) : fallback;
  }
  const auto number = to_number(value);
  if (!number || std::isnan(number->float_value)) return fallback;
  return number->is_integer ? Value(number->integer) : truncate_to_integer(number->float_value);
}

Value float_filter(RenderContext& /*context*/, const Value& value, const BoundArguments& args) {
  const Value fallback = args[0] != nullptr ? *args[0] : Value(0.0);
  if (value.is_undefined()) throw EvaluationError{value.get_undefined_message()};
  if (value.text() != nullptr) {
    const auto float_value = parse_float(value.text()->view());
    return float_value ? Value(*float_value) : fallback;
  }
  const auto number = to_number(value);
  return number ? Value(number->float_value) : fallback;
}

Value round_filter(RenderContext& /*context*/, const Value& value, const BoundArguments& args) {
  const Number number = to_number_or_throw("round", value);
  const int64_t precision = args.integer(0, 0);
  const std::string_view method = args.text(1) != nullptr ? args.text(1)->view() : "common";
  if (method == "common") return round_number(number, precision);
  if (method != "ceil" && method != "floor") throw evaluation_error("round: the method must be common, ceil or floor");
  const double power_of_ten = std::pow(10.0, static_cast<double>(precision));
  const double scaled_value = number.float_value * power_of_ten;
  if (!std::isfinite(scaled_value)) throw evaluation_error("round: the number is too large");
  return Value((method == "ceil" ? std::ceil(scaled_value) : std::floor(scaled_value)) / power_of_ten);
}

constexpr std::array kNumberFilters = {
    Builtin{"abs", {""}, abs_filter},
    Builtin{"float", {"default"}, float_filter},
    Builtin{"int", {"default base"}, int_filter},
    Builtin{"round", {"precision method"}, round_filter},
};

}  // namespace

std::span<const Builtin> get_number_filters() {
  return kNumberFilters;
}

}  // namespace vlmtrain::text::jinja
