#include "text/jinja/printf.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/access.h"
#include "text/jinja/letters.h"
#include "text/jinja/numbers.h"
#include "text/jinja/python_text.h"

namespace vlmtrain::text::jinja {
namespace {

constexpr size_t kMaxWidth = 1000;

/// What stands between % and its letter.
struct Conversion {
  std::string flags;
  size_t width = 0;
  std::optional<size_t> precision;
  char letter = 0;
  bool has(char flag) const { return flags.find(flag) != std::string::npos; }
};

std::string digits_of(const Conversion& conversion, const Value& value) {
  const auto number = number_of(value);
  if (!number) throw failure("%{} needs a number, not {}", conversion.letter, value.type_name());
  std::string form = "%";
  for (const char flag : conversion.flags) {
    if (flag != '-' && flag != '0') form += flag;
  }
  char buffer[1500];
  int written = 0;
  const auto precision = static_cast<int>(conversion.precision.value_or(6));
  switch (conversion.letter) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool decimal = std::string_view("diu").find(conversion.letter) != std::string_view::npos;
      if (!number->is_whole && (!decimal || !(std::fabs(number->real) < 9e18))) {
        throw failure("%{} needs a whole number of 64 bits", conversion.letter);
      }
      const int64_t whole = number->is_whole ? number->whole : static_cast<int64_t>(number->real);
      if (conversion.has('#')) throw failure("the flag # is not supported in %{}", conversion.letter);
      const uint64_t magnitude = whole < 0 ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole);
      std::string text = conversion.letter == 'x'   ? fmt::format("{:x}", magnitude)
                         : conversion.letter == 'X' ? fmt::format("{:X}", magnitude)
                         : conversion.letter == 'o' ? fmt::format("{:o}", magnitude)
                                                    : fmt::format("{}", magnitude);
      if (conversion.precision && text.size() < *conversion.precision) {
        text.insert(0, *conversion.precision - text.size(), '0');
      }
      const char* sign = whole < 0 ? "-" : conversion.has('+') ? "+" : conversion.has(' ') ? " " : "";
      return sign + text;
    }
    default:
      form += ".*";
      form += conversion.letter;
      written = std::snprintf(buffer, sizeof buffer, form.c_str(), precision, number->real);  // NOLINT(cert-err33-c)
      return {buffer, buffer + std::clamp<int>(written, 0, sizeof buffer - 1)};
  }
}

MarkedText converted(const Conversion& conversion, const Value& value, Budget& budget) {
  MarkedText out;
  switch (conversion.letter) {
    case 's':
      append_str(out, value, budget);
      break;
    case 'r':
      append_repr(out, value, budget);
      break;
    case 'c': {
      if (value.text() == nullptr || value.text()->length != 1) throw failure("%c needs one character");
      out = value.text()->marked;
      break;
    }
    default: {
      if (std::string_view("diuxXofFeEgG").find(conversion.letter) == std::string_view::npos) {
        throw failure("%{} is not supported in a format", conversion.letter);
      }
      std::string digits = digits_of(conversion, value);
      if (conversion.has('0') && !conversion.has('-') && digits.size() < conversion.width) {
        const size_t sign = digits.find_first_of("+- ") == 0 ? 1 : 0;
        digits.insert(sign, conversion.width - digits.size(), '0');
      }
      return MarkedText(std::move(digits));
    }
  }
  if (conversion.precision && conversion.letter != 'c') {
    return out.slice(0, place_of(out.bytes(), *conversion.precision));
  }
  return out;
}

/// The text after a % that print_formatted reads.
class ConversionReader {
 public:
  ConversionReader(std::string_view text, size_t at) : text_(text), at_(at) {}
  size_t at() const { return at_; }

  /// What is between ( and ), or nothing.
  std::optional<std::string_view> name() {
    if (peek() != '(') return std::nullopt;
    const size_t end = text_.find(')', at_);
    if (end == std::string_view::npos) throw failure("a format lacks a )");
    const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return name;
  }

  Conversion conversion() {
    Conversion read;
    while (std::string_view("-+ 0#").find(peek()) != std::string_view::npos) {
      if (!read.has(peek())) read.flags += peek();
      ++at_;
    }
    read.width = number();
    if (peek() == '.') {
      ++at_;
      read.precision = number();
    }
    while (std::string_view("hlL").find(peek()) != std::string_view::npos) ++at_;
    read.letter = peek();
    ++at_;
    return read;
  }

 private:
  char peek() const {
    if (at_ >= text_.size()) throw failure("a format ends within a %");
    return text_[at_];
  }
  size_t number() {
    size_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      value = std::min(value * 10 + static_cast<size_t>(peek() - '0'), kMaxWidth + 1);
    if (value > kMaxWidth) throw failure("a format asks for more than {} characters", kMaxWidth);
    return value;
  }

  std::string_view text_;
  size_t at_;
};

/// Reads what stands in braces: a name or number, then attributes and items.
Value looked_up(Context& context, std::string_view path, const Arguments& arguments, size_t& next) {
  const size_t end = std::min(path.find_first_of(".["), path.size());
  const std::string_view name = path.substr(0, end);
  std::optional<Value> value;
  const auto index = name.empty() ? static_cast<int64_t>(next++) : parse_whole(name, 10);
  if (index) {
    if (*index < 0 || static_cast<size_t>(*index) >= arguments.positional.size()) {
      throw failure("format() is given no argument {}", *index);
    }
    value = arguments.positional[static_cast<size_t>(*index)];
  }
  for (const auto& [key, given] : arguments.keyword) {
    if (!index && key == name) value = given;
  }
  if (!value) throw failure("format() is given no argument \"{}\"", name);
  for (std::string_view rest = path.substr(end); !rest.empty();) {
    const bool item = rest[0] == '[';
    const size_t stop = item ? rest.find(']') : std::min(rest.find_first_of(".[", 1), rest.size());
    if (stop == std::string_view::npos || stop < 2) throw failure("format() cannot read {{{}}}", path);
    const std::string_view key = rest.substr(1, stop - 1);
    const auto number = item ? parse_whole(key, 10) : std::nullopt;
    value = item ? get_item(*value, number ? Value(*number) : Value::text(std::string(key)), context.budget)
                 : get_attribute(*value, key);
    rest.remove_prefix(item ? stop + 1 : stop);
    if (!rest.empty() && rest[0] != '.' && rest[0] != '[') throw failure("format() cannot read {{{}}}", path);
  }
  return *value;
}

}  // namespace

Value print_formatted(const Text& text, const Value& values, Budget& budget) {
  const std::string_view bytes = text.view();
  const bool is_tuple = values.sequence() != nullptr && values.sequence()->form == Sequence::Form::kTuple;
  const std::vector<Value> single = is_tuple ? std::vector<Value>{} : std::vector<Value>{values};
  const std::vector<Value>& given = is_tuple ? values.sequence()->items : single;
  size_t used = 0;
  bool by_name = false;
  MarkedText out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t mark = std::min(bytes.find('%', at), bytes.size());
    if (mark > at) out.append(text.marked, at, mark);
    if (mark == bytes.size()) break;
    ConversionReader reader(bytes, mark + 1);
    const auto name = reader.name();
    const Conversion conversion = reader.conversion();
    at = reader.at();
    if (conversion.letter == '%') {
      out.append("%");
      continue;
    }
    Value value;
    if (name) {
      by_name = true;
      if (values.dict() == nullptr) throw failure("a format with names needs a dict");
      const Value* found = values.dict()->find(*name);
      if (found == nullptr) throw failure("a format's dict lacks \"{}\"", *name);
      value = *found;
    } else {
      if (used >= given.size()) throw failure("a format is given too few values");
      value = given[used++];
    }
    const MarkedText written = converted(conversion, value, budget);
    const size_t characters = Text(written).length;
    const std::string padding(conversion.width > characters ? conversion.width - characters : 0, ' ');
    if (!conversion.has('-')) out.append(padding);
    out.append(written);
    if (conversion.has('-')) out.append(padding);
    Budget::check_text(out.size());
  }
  if (used < given.size() && !by_name && (is_tuple || values.dict() == nullptr) &&
      !(values.sequence() != nullptr && !is_tuple)) {
    throw failure("a format is given too many values");
  }
  budget.made(out.size());
  return Value::text(std::move(out));
}

Value formatted(Context& context, const Text& text, const Arguments& arguments) {
  const std::string_view bytes = text.view();
  MarkedText out;
  size_t next = 0;
  bool numbered = false;
  for (size_t at = 0; at < bytes.size();) {
    const size_t mark = std::min(bytes.find_first_of("{}", at), bytes.size());
    if (mark > at) out.append(text.marked, at, mark);
    if (mark == bytes.size()) break;
    if (mark + 1 < bytes.size() && bytes[mark + 1] == bytes[mark]) {
      out.append(text.marked, mark, mark + 1);
      at = mark + 2;
      continue;
    }
    const size_t end = bytes.find('}', mark);
    if (bytes[mark] == '}' || end == std::string_view::npos) throw failure("a format has a single brace");
    std::string_view path = bytes.substr(mark + 1, end - mark - 1);
    if (path.find_first_of(":{") != std::string_view::npos) {
      throw failure("format(): specifications ({{{}}}) are not supported", path);
    }
    bool as_repr = false;
    if (const size_t bang = path.find('!'); bang != std::string_view::npos) {
      const std::string_view conversion = path.substr(bang + 1);
      if (conversion != "r" && conversion != "s") throw failure("format(): !{} is not supported", conversion);
      as_repr = conversion == "r";
      path = path.substr(0, bang);
    }
    const Value value = looked_up(context, path, arguments, next);
    numbered = numbered || (!path.empty() && path[0] >= '0' && path[0] <= '9');
    if (numbered && next > 0) throw failure("format(): {{}} and {{0}} cannot stand together");
    if (as_repr) {
      append_repr(out, value, context.budget);
    } else {
      append_str(out, value, context.budget);
    }
    at = end + 1;
  }
  context.budget.made(out.size());
  return Value::text(std::move(out));
}

}  // namespace vlmtrain::text::jinja
