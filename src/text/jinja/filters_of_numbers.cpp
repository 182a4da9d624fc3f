#include <array>
#include <cmath>

#include "text/jinja/callables.h"
#include "text/jinja/numbers.h"

namespace vlmtrain::text::jinja {
namespace {

constexpr double kWholeLimit = 9.2e18;

Number needed_number(std::string_view filter, const Value& value) {
  const auto number = number_of(value);
  if (number) return *number;
  if (value.is_undefined()) throw Failure{value.why_undefined()};
  throw failure("{} needs a number, not {}", filter, value.type_name());
}

Value whole_of(double real) {
  if (!(std::fabs(real) < kWholeLimit)) throw failure("{} is no whole number of 64 bits", real);
  return Value(static_cast<int64_t>(real));
}

Value abs_filter(Context& context, const Value& value, const Bound& /*given*/) {
  const Number number = needed_number("abs", value);
  return compare(Comparison::kLess, value, Value(0), context.budget) ? negative(value)
         : number.is_whole                                           ? Value(number.whole)
                                                                     : value;
}

Value int_filter(Context& /*context*/, const Value& value, const Bound& given) {
  const Value fallback = given[0] != nullptr ? *given[0] : Value(0);
  if (value.is_undefined()) throw Failure{value.why_undefined()};
  if (value.text() != nullptr) {
    if (const auto whole = parse_whole(value.text()->view(), static_cast<int>(given.whole(1, 10))))
      return Value(*whole);
    const auto real = parse_real(value.text()->view());
    return real && std::isfinite(*real) ? whole_of(*real) : fallback;
  }
  const auto number = number_of(value);
  if (!number || std::isnan(number->real)) return fallback;
  return number->is_whole ? Value(number->whole) : whole_of(number->real);
}

Value float_filter(Context& /*context*/, const Value& value, const Bound& given) {
  const Value fallback = given[0] != nullptr ? *given[0] : Value(0.0);
  if (value.is_undefined()) throw Failure{value.why_undefined()};
  if (value.text() != nullptr) {
    const auto real = parse_real(value.text()->view());
    return real ? Value(*real) : fallback;
  }
  const auto number = number_of(value);
  return number ? Value(number->real) : fallback;
}

Value round_filter(Context& /*context*/, const Value& value, const Bound& given) {
  const Number number = needed_number("round", value);
  const int64_t precision = given.whole(0, 0);
  const std::string_view method = given.text(1) != nullptr ? given.text(1)->view() : "common";
  if (method == "common") return rounded(number, precision);
  if (method != "ceil" && method != "floor") throw failure("round: the method must be common, ceil or floor");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number.real * unit;
  if (!std::isfinite(scaled)) throw failure("round: the number is too large");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

constexpr std::array kFiltersOfNumbers = {
    Method{"abs", {""}, abs_filter},
    Method{"float", {"default"}, float_filter},
    Method{"int", {"default base"}, int_filter},
    Method{"round", {"precision method"}, round_filter},
};

}  // namespace

std::span<const Method> filters_of_numbers() {
  return kFiltersOfNumbers;
}

}  // namespace vlmtrain::text::jinja
