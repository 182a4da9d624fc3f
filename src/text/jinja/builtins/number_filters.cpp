#include <array>
#include <cmath>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/numbers.h"

namespace vlmtrain::text::jinja {
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
