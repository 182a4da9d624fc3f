#include "vlmtrain/base/value_check.h"

#include <fmt/format.h>

#include <cstdint>

namespace vlmtrain {

template <class T>
ValueCheck<T> at_least(T min_value) {
  return {fmt::format("at least {}", min_value), [min_value](const T& value) { return value >= min_value; }};
}

template <class T>
ValueCheck<T> exceeds(T min_value) {
  return {fmt::format("greater than {}", min_value), [min_value](const T& value) { return value > min_value; }};
}

template <class T>
ValueCheck<T> between(T min_value, T max_value) {
  return {fmt::format("from {} to {}", min_value, max_value),
          [min_value, max_value](const T& value) { return value >= min_value && value <= max_value; }};
}

template <class T>
ValueCheck<T> in_half_open_range(T min_value, T max_value) {
  return {fmt::format("from {} to below {}", min_value, max_value),
          [min_value, max_value](const T& value) { return value >= min_value && value < max_value; }};
}

template ValueCheck<int64_t> at_least(int64_t);
template ValueCheck<double> at_least(double);
template ValueCheck<int64_t> exceeds(int64_t);
template ValueCheck<double> exceeds(double);
template ValueCheck<int64_t> between(int64_t, int64_t);
template ValueCheck<double> between(double, double);
template ValueCheck<double> in_half_open_range(double, double);

}  // namespace vlmtrain
