#pragma once

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace vlmtrain::io {

/// Where a text stops being JSON, and why.
struct JsonError {
  int64_t line;    ///< from 1
  int64_t column;  ///< from 1, in characters
  std::string reason;
};

/// The first fault of a text that is not JSON (RFC 8259, UTF-8, a byte order mark is allowed).
/// REQUIRES: the text has one.
JsonError find_json_error(std::string_view text);

/// Parses a text; data_error names `source`, line and column. The ordered form keeps the keys in the text's order; its
/// time is quadratic in the keys of one object, so it is not for vocabularies.
nlohmann::json parse_json(std::string_view text, std::string_view source);
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view source);

/// Reads a file; data_error names file, line and column.
nlohmann::json read_json(const std::filesystem::path& path);
nlohmann::ordered_json read_ordered_json(const std::filesystem::path& path);

namespace detail {

[[noreturn]] void fail_not_an_object(std::string_view key, std::string_view source);
[[noreturn]] void fail_missing(std::string_view key, std::string_view source);
[[noreturn]] void fail_type(std::string_view key, std::string_view expected, std::string actual,
                            std::string_view source);

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
std::string_view describe_expected_type() {
  if constexpr (std::same_as<T, bool>) {
    return "true or false";
  } else if constexpr (std::unsigned_integral<T>) {
    return "a whole number of at least 0";
  } else if constexpr (std::integral<T>) {
    return "a whole number";
  } else if constexpr (std::floating_point<T>) {
    return "a number";
  } else if constexpr (std::same_as<T, std::string>) {
    return "a string";
  } else {
    static_assert(IsVector<T>::value, "get<T>: T is bool, a number, std::string, or a vector of these");
    return "a list";
  }
}

template <class T, class Json>
T convert(const Json& value, std::string_view key, std::string_view source) {
  if constexpr (std::same_as<T, bool>) {
    if (value.is_boolean()) {
      return value.template get<bool>();
    }
  } else if constexpr (std::integral<T>) {
    if (value.is_number_unsigned() && std::in_range<T>(value.template get<uint64_t>())) {
      return static_cast<T>(value.template get<uint64_t>());
    }
    if (value.is_number_integer() && !value.is_number_unsigned() && std::in_range<T>(value.template get<int64_t>())) {
      return static_cast<T>(value.template get<int64_t>());
    }
  } else if constexpr (std::floating_point<T>) {
    if (value.is_number()) {
      return value.template get<T>();
    }
  } else if constexpr (std::same_as<T, std::string>) {
    if (value.is_string()) {
      return value.template get<std::string>();
    }
  } else if constexpr (IsVector<T>::value) {
    if (value.is_array()) {
      T items;
      items.reserve(value.size());
      for (const auto& item : value) {
        items.push_back(convert<typename T::value_type>(item, key, source));
      }
      return items;
    }
  }
  fail_type(key, describe_expected_type<T>(), value.dump(-1, ' ', false, Json::error_handler_t::replace), source);
}

}  // namespace detail

/// The value of `key` in `object` as T: bool, a number type, std::string, or a vector of these. Nothing is converted
/// silently: no number from a string, no fraction or out-of-range number as an integer. data_error names `source` (a
/// file, as a rule), the key, and what was found.
template <class T, class Json>
T get(const Json& object, std::string_view key, std::string_view source) {
  if (!object.is_object()) {
    detail::fail_not_an_object(key, source);
  }
  const auto it = object.find(key);
  if (it == object.end()) {
    detail::fail_missing(key, source);
  }
  return detail::convert<T>(*it, key, source);
}

/// As get(); `fallback` where the key is absent or null, for Hugging Face files write null for "the default".
template <class T, class Json>
T get_or(const Json& object, std::string_view key, std::type_identity_t<T> fallback, std::string_view source) {
  if (!object.is_object()) {
    detail::fail_not_an_object(key, source);
  }
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return fallback;
  }
  return detail::convert<T>(*it, key, source);
}

}  // namespace vlmtrain::io
