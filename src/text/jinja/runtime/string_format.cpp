#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text::jinja {
namespace {

/// Limit of width and precision, so that format_unpadded_number() can use a fixed buffer. Templates
/// need a few characters.
constexpr size_t kMaxFormatWidth = 1000;

/// A conversion specifier of the operator `%`.
struct ConversionSpecifier {
  std::string flags;
  size_t width = 0;
  std::optional<size_t> precision;
  char type = 0;
  /// Returns whether `flags` contains this flag.
  bool has_flag(char flag_char) const { return flags.find(flag_char) != std::string::npos; }
};

/// Returns a number with its sign and precision, but without padding to the width.
std::string format_unpadded_number(const ConversionSpecifier& conversion, const Value& value) {
  const auto number = to_number(value);
  if (!number) throw evaluation_error("%{} needs a number, not {}", conversion.type, value.type_name());
  std::string format = "%";
  for (const char flag_char : conversion.flags) {
    if (flag_char != '-' && flag_char != '0') format += flag_char;  // callers pad
  }
  char buffer[1500];  // a double has up to 309 digits before the point and up to kMaxFormatWidth after it
  int num_printed_bytes = 0;
  const auto precision = static_cast<int>(conversion.precision.value_or(6));
  switch (conversion.type) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool is_decimal_conversion = std::string_view("diu").find(conversion.type) != std::string_view::npos;
      constexpr double kMaxFormattedInteger = 9e18;  // slightly below 2^63, which a cast to int64_t must not reach
      if (!number->is_integer && (!is_decimal_conversion || !(std::fabs(number->float_value) < kMaxFormattedInteger))) {
        throw evaluation_error("%{} needs a 64-bit integer", conversion.type);
      }
      const int64_t integer = number->is_integer ? number->integer : static_cast<int64_t>(number->float_value);
      if (conversion.has_flag('#')) throw evaluation_error("the flag # is not supported in %{}", conversion.type);
      const uint64_t magnitude = integer < 0 ? 0 - static_cast<uint64_t>(integer) : static_cast<uint64_t>(integer);
      std::string text = conversion.type == 'x'   ? fmt::format("{:x}", magnitude)
                         : conversion.type == 'X' ? fmt::format("{:X}", magnitude)
                         : conversion.type == 'o' ? fmt::format("{:o}", magnitude)
                                                  : fmt::format("{}", magnitude);
      if (conversion.precision && text.size() < *conversion.precision) {
        text.insert(0, *conversion.precision - text.size(), '0');
      }
      const char* sign = integer < 0 ? "-" : conversion.has_flag('+') ? "+" : conversion.has_flag(' ') ? " " : "";
      return sign + text;
    }
    default:
      format += ".*";
      format += conversion.type;
      num_printed_bytes =
          std::snprintf(buffer, sizeof buffer, format.c_str(), precision, number->float_value);  // NOLINT(cert-err33-c)
      return {buffer, buffer + std::clamp<int>(num_printed_bytes, 0, sizeof buffer - 1)};
  }
}

/// Returns a converted value. Pads it to the width only with zeros; apply_percent_format() pads
/// with spaces.
TextWithOrigins format_value(const ConversionSpecifier& conversion, const Value& value, RenderBudget& budget) {
  TextWithOrigins out;
  switch (conversion.type) {
    case 's':
      append_str(out, value, budget);
      break;
    case 'r':
      append_repr(out, value, budget);
      break;
    case 'c': {
      if (value.text() == nullptr || value.text()->length != 1) throw evaluation_error("%c needs one character");
      out = value.text()->content;
      break;
    }
    default: {
      if (std::string_view("diuxXofFeEgG").find(conversion.type) == std::string_view::npos) {
        throw evaluation_error("%{} is not supported in a format", conversion.type);
      }
      std::string digits = format_unpadded_number(conversion, value);
      if (conversion.has_flag('0') && !conversion.has_flag('-') && digits.size() < conversion.width) {
        const size_t sign_length = digits.find_first_of("+- ") == 0 ? 1 : 0;
        digits.insert(sign_length, conversion.width - digits.size(), '0');
      }
      return TextWithOrigins(std::move(digits));
    }
  }
  if (conversion.precision && conversion.type != 'c') {
    return out.slice(0, to_byte_offset(out.bytes(), *conversion.precision));
  }
  return out;
}

/// A parser of the conversion specifier after a %. Throws EvaluationError if the text ends within
/// the specifier.
class ConversionParser {
 public:
  ConversionParser(std::string_view text, size_t pos) : text_(text), pos_(pos) {}
  /// Returns the offset after the parsed part.
  size_t position() const { return pos_; }

  /// Returns the name between ( and ), or nothing.
  std::optional<std::string_view> parse_mapping_key() {
    if (peek() != '(') return std::nullopt;
    const size_t end = text_.find(')', pos_);
    if (end == std::string_view::npos) throw evaluation_error("a format string lacks a )");
    const std::string_view name = text_.substr(pos_ + 1, end - pos_ - 1);
    pos_ = end + 1;
    return name;
  }

  ConversionSpecifier parse_conversion() {
    ConversionSpecifier result;
    while (std::string_view("-+ 0#").find(peek()) != std::string_view::npos) {
      if (!result.has_flag(peek())) result.flags += peek();
      ++pos_;
    }
    result.width = parse_number();
    if (peek() == '.') {
      ++pos_;
      result.precision = parse_number();
    }
    // Length modifiers of C, which Python ignores.
    while (std::string_view("hlL").find(peek()) != std::string_view::npos) ++pos_;
    result.type = peek();
    ++pos_;
    return result;
  }

 private:
  char peek() const {
    if (pos_ >= text_.size()) throw evaluation_error("a format string ends within a conversion specifier");
    return text_[pos_];
  }
  size_t parse_number() {
    size_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++pos_)
      value = std::min(value * 10 + static_cast<size_t>(peek() - '0'), kMaxFormatWidth + 1);
    if (value > kMaxFormatWidth)
      throw evaluation_error("a format string requests more than {} characters", kMaxFormatWidth);
    return value;
  }

  std::string_view text_;
  size_t pos_;
};

/// Returns the value of a replacement field of format(), such as {0.name[key]}: `field_path` is an
/// argument name or index, then attributes and items. An empty name means argument
/// `next_argument_index`, which is then incremented.
Value look_up_replacement_field(RenderContext& context, std::string_view field_path, const Arguments& arguments,
                                size_t& next_argument_index) {
  const size_t end = std::min(field_path.find_first_of(".["), field_path.size());
  const std::string_view name = field_path.substr(0, end);
  std::optional<Value> value;
  const auto index = name.empty() ? static_cast<int64_t>(next_argument_index++) : parse_int(name, 10);
  if (index) {
    if (*index < 0 || static_cast<size_t>(*index) >= arguments.positional.size()) {
      throw evaluation_error("format() lacks the argument {}", *index);
    }
    value = arguments.positional[static_cast<size_t>(*index)];
  }
  for (const auto& [key, argument] : arguments.keyword) {
    if (!index && key == name) value = argument;
  }
  if (!value) throw evaluation_error("format() lacks the argument \"{}\"", name);
  for (std::string_view remaining = field_path.substr(end); !remaining.empty();) {
    const bool is_item_access = remaining[0] == '[';
    const size_t key_end =
        is_item_access ? remaining.find(']') : std::min(remaining.find_first_of(".[", 1), remaining.size());
    if (key_end == std::string_view::npos || key_end < 2)
      throw evaluation_error("format() cannot parse {{{}}}", field_path);
    const std::string_view key = remaining.substr(1, key_end - 1);
    const auto number = is_item_access ? parse_int(key, 10) : std::nullopt;
    value = is_item_access ? get_item(*value, number ? Value(*number) : Value::text(std::string(key)), context.budget)
                           : get_attribute(*value, key);
    remaining.remove_prefix(is_item_access ? key_end + 1 : key_end);
    if (!remaining.empty() && remaining[0] != '.' && remaining[0] != '[')
      throw evaluation_error("format() cannot parse {{{}}}", field_path);
  }
  return *value;
}

}  // namespace

Value apply_percent_format(const TextValue& text, const Value& values, RenderBudget& budget) {
  const std::string_view bytes = text.view();
  const bool is_tuple = values.sequence() != nullptr && values.sequence()->type == Sequence::Type::kTuple;
  const std::vector<Value> single_value_list = is_tuple ? std::vector<Value>{} : std::vector<Value>{values};
  const std::vector<Value>& format_values = is_tuple ? values.sequence()->items : single_value_list;
  size_t num_consumed_values = 0;
  bool uses_mapping_keys = false;
  TextWithOrigins out;
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t percent_pos = std::min(bytes.find('%', pos), bytes.size());
    if (percent_pos > pos) out.append(text.content, pos, percent_pos);
    if (percent_pos == bytes.size()) break;
    ConversionParser parser(bytes, percent_pos + 1);
    const auto name = parser.parse_mapping_key();
    const ConversionSpecifier conversion = parser.parse_conversion();
    pos = parser.position();
    if (conversion.type == '%') {
      out.append("%");
      continue;
    }
    Value value;
    if (name) {
      uses_mapping_keys = true;
      if (values.dict() == nullptr) throw evaluation_error("a format string with names needs a dict");
      const Value* entry = values.dict()->find(*name);
      if (entry == nullptr) throw evaluation_error("the dict of a format string lacks \"{}\"", *name);
      value = *entry;
    } else {
      if (num_consumed_values >= format_values.size())
        throw evaluation_error("not enough arguments for a format string");
      value = format_values[num_consumed_values++];
    }
    const TextWithOrigins formatted_value = format_value(conversion, value, budget);
    const size_t num_characters = TextValue(formatted_value).length;
    const std::string padding(conversion.width > num_characters ? conversion.width - num_characters : 0, ' ');
    if (!conversion.has_flag('-')) out.append(padding);
    out.append(formatted_value);
    if (conversion.has_flag('-')) out.append(padding);
    RenderBudget::check_value_size(out.size());
  }
  // As in CPython's PyUnicode_Format(): unused values are an error unless `values` supports
  // subscripting, such as a dict or a list, because it then counts as a mapping.
  if (num_consumed_values < format_values.size() && !uses_mapping_keys && (is_tuple || values.dict() == nullptr) &&
      !(values.sequence() != nullptr && !is_tuple)) {
    throw evaluation_error("too many arguments for a format string");
  }
  budget.charge_allocation(out.size());
  return Value::text(std::move(out));
}

Value apply_brace_format(RenderContext& context, const TextValue& text, const Arguments& arguments) {
  const std::string_view bytes = text.view();
  TextWithOrigins out;
  size_t next_argument_index = 0;
  bool has_numbered_fields = false;
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t brace_pos = std::min(bytes.find_first_of("{}", pos), bytes.size());
    if (brace_pos > pos) out.append(text.content, pos, brace_pos);
    if (brace_pos == bytes.size()) break;
    if (brace_pos + 1 < bytes.size() && bytes[brace_pos + 1] == bytes[brace_pos]) {
      out.append(text.content, brace_pos, brace_pos + 1);
      pos = brace_pos + 2;
      continue;
    }
    const size_t end = bytes.find('}', brace_pos);
    if (bytes[brace_pos] == '}' || end == std::string_view::npos)
      throw evaluation_error("a format string has a single brace");
    std::string_view field_path = bytes.substr(brace_pos + 1, end - brace_pos - 1);
    if (field_path.find_first_of(":{") != std::string_view::npos) {
      throw evaluation_error("format(): specifications ({{{}}}) are not supported", field_path);
    }
    bool uses_repr = false;
    // Conversions !r and !s.
    if (const size_t exclamation_pos = field_path.find('!'); exclamation_pos != std::string_view::npos) {
      const std::string_view conversion = field_path.substr(exclamation_pos + 1);
      if (conversion != "r" && conversion != "s") throw evaluation_error("format(): !{} is not supported", conversion);
      uses_repr = conversion == "r";
      field_path = field_path.substr(0, exclamation_pos);
    }
    const Value value = look_up_replacement_field(context, field_path, arguments, next_argument_index);
    has_numbered_fields = has_numbered_fields || (!field_path.empty() && field_path[0] >= '0' && field_path[0] <= '9');
    if (has_numbered_fields && next_argument_index > 0)
      throw evaluation_error("format(): fields {{}} and {{0}} cannot be mixed");
    if (uses_repr) {
      append_repr(out, value, context.budget);
    } else {
      append_str(out, value, context.budget);
    }
    pos = end + 1;
  }
  context.budget.charge_allocation(out.size());
  return Value::text(std::move(out));
}

}  // namespace vlmtrain::text::jinja
