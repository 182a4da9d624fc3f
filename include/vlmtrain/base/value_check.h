#pragma once

#include <functional>
#include <optional>
#include <string>

namespace vlmtrain {

/// A value that the user sets, or std::nullopt (`auto` in YAML) if the program chooses it.
template <class T>
using AutoOr = std::optional<T>;

/// A condition on the value of an option. `description` completes "must be …" in the documentation
/// and in error messages.
template <class T>
struct ValueCheck {
  std::string description;
  std::function<bool(const T&)> is_satisfied;
};

// The functions below return checks of numbers, for T = int64_t or double (in_half_open_range: only
// double).

/// Returns the check value >= min_value.
template <class T>
ValueCheck<T> at_least(T min_value);
/// Returns the check value > min_value.
template <class T>
ValueCheck<T> exceeds(T min_value);
/// Returns the check min_value <= value <= max_value.
template <class T>
ValueCheck<T> between(T min_value, T max_value);
/// Returns the check min_value <= value < max_value.
template <class T>
ValueCheck<T> in_half_open_range(T min_value, T max_value);

/// Returns a check that `auto` and every value that satisfies `check` satisfy.
template <class T>
ValueCheck<AutoOr<T>> allow_auto(const ValueCheck<T>& check) {
  return {"auto, or " + check.description,
          [check](const AutoOr<T>& value) { return !value || check.is_satisfied(*value); }};
}

}  // namespace vlmtrain
