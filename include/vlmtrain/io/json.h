#pragma once

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace vlmtrain::io {

/// The JSON of a data set's records. Keeps the order of keys, in which chat templates write tools.
using RecordJson = nlohmann::ordered_json;

/// The whitespace of JSON (RFC 8259, section 2).
inline constexpr std::string_view kJsonWhitespace = " \t\r\n";

/// The byte order mark of UTF-8.
inline constexpr std::string_view kUtf8ByteOrderMark = "\xEF\xBB\xBF";

/// Returns true for text with a byte order mark of UTF-16, which tools on Windows write as
/// "Unicode".
inline bool has_utf16_byte_order_mark(std::string_view text) {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}

/// The fix in an error message about a file that is not JSON.
inline constexpr std::string_view kInvalidJsonHint = "correct the file, or download it again";

/// End of an error message about a UTF-16 file. The name of the file precedes it.
inline constexpr std::string_view kUtf16ErrorSuffix = "is UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)";

/// Maximum nesting depth of lists and objects that is parsed. Functions that walk a value, such as
/// copies, recurse once per level, so deeper values could exhaust the stack. The files of a model
/// have fewer than ten levels.
inline constexpr size_t kMaxJsonDepth = 200;

/// Position and reason of the first error in a text that is not JSON.
struct JsonError {
  int64_t line;        ///< from 1
  int64_t column;      ///< from 1, in characters (code points)
  std::string reason;  ///< phrase for messages, such as "unexpected end of input; expected ']'", without line breaks
};

/// Returns the first error of a text that is not JSON (RFC 8259 in UTF-8, with an optional byte
/// order mark). REQUIRES: the text has an error.
JsonError find_json_error(std::string_view text);

/// Returns true if lists and objects of the text are nested deeper than kMaxJsonDepth.
bool is_json_too_deep(std::string_view text);

/// Returns the value of a text, or nothing if it is not JSON or nested too deeply.
std::optional<nlohmann::json> try_parse_json(std::string_view text);

/// Same as try_parse_json() for records. Sorts the keys if an object has more than 1000, because
/// keeping their order takes quadratic time.
std::optional<RecordJson> try_parse_record_json(std::string_view text);

/// Parses a text. Throws data_error that names `source` (usually a file), line and column if it is
/// not JSON or nested too deeply.
nlohmann::json parse_json(std::string_view text, std::string_view source);
/// Same as parse_json(), but keeps the order of keys. Takes quadratic time in the keys of one
/// object, so objects with more than 50,000 keys are refused.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view source);

/// Reads and parses a file. Throws as read_file() (io/file.h) and parse_json().
nlohmann::json read_json(const std::filesystem::path& path);
/// Same as read_json(), with the limits of parse_ordered_json().
nlohmann::ordered_json read_ordered_json(const std::filesystem::path& path);

/// Returns a value as JSON text: on one line if `indent` is negative, else with `indent` spaces per
/// level. Accepts any string: invalid UTF-8, which a path may contain, becomes U+FFFD, and control
/// characters become escapes.
std::string to_json_string(const nlohmann::json& value, int indent = -1);
std::string to_json_string(const nlohmann::ordered_json& value, int indent = -1);

/// A field of a JSON file with two names. Both are written, because scripts read the earlier one.
struct FieldAlias {
  const char* name;
  const char* alias;  ///< the name in earlier versions
};

/// Copies object[name] to object[alias] for each of `aliases`. REQUIRES: `object` has the names and
/// lacks the aliases.
void add_field_aliases(nlohmann::ordered_json& object, std::initializer_list<FieldAlias> aliases);

/// Returns the name by which `object` has the field: `field.name`, or `field.alias` if only that is
/// present, as in files of earlier versions.
template <class Json>
const char* find_field_name(const Json& object, FieldAlias field) {
  return object.is_object() && !object.contains(field.name) && object.contains(field.alias) ? field.alias : field.name;
}

/// Returns the beginning of to_json_string() on one line, for messages.
std::string make_json_excerpt(const nlohmann::json& value);
std::string make_json_excerpt(const nlohmann::ordered_json& value);

/// Returns the message of an exception of nlohmann::json on one line, without the library's prefix
/// "[json.exception...]".
std::string describe_json_exception(const std::exception& error);

/// A key of a JSON object that is ignored because its value cannot change what is learned or saved.
struct HarmlessKey {
  std::string_view name;
  std::string_view reason;  ///< why the key is harmless, as documentation of the table
};

/// Returns true for values that mean the same as an absent key: null, "", [] and {}.
bool is_empty_value(const nlohmann::json& value);

/// Returns the keys of `object` that are neither in `read_keys` nor in `harmless_keys` and whose
/// value is not empty (is_empty_value), in alphabetical order. REQUIRES: `object` is an object.
std::vector<std::string> find_unread_keys(const nlohmann::json& object, std::span<const std::string_view> read_keys,
                                          std::span<const HarmlessKey> harmless_keys = {});

namespace detail {

[[noreturn]] void throw_not_an_object(std::string_view key, std::string_view source);
[[noreturn]] void throw_missing_key(std::string_view key, std::string_view source);
[[noreturn]] void throw_wrong_type(std::string_view key, std::string_view expected, const std::string& actual,
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
T convert_json_value(const Json& value, std::string_view key, std::string_view source) {
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
        items.push_back(convert_json_value<typename T::value_type>(item, key, source));
      }
      return items;
    }
  }
  throw_wrong_type(key, describe_expected_type<T>(), value.dump(-1, ' ', false, Json::error_handler_t::replace),
                   source);
}

}  // namespace detail

/// Returns the value of `key` in `object` as T: bool, a number type, std::string, or a vector of
/// these. There are no implicit conversions: no number from a string, no integer from a fraction or
/// from a number out of range. Throws data_error that names `source` (usually a file), the key and
/// the actual value.
template <class T, class Json>
T get(const Json& object, std::string_view key, std::string_view source) {
  if (!object.is_object()) {
    detail::throw_not_an_object(key, source);
  }
  const auto it = object.find(key);
  if (it == object.end()) {
    detail::throw_missing_key(key, source);
  }
  return detail::convert_json_value<T>(*it, key, source);
}

/// Same as get(), but returns `fallback` if the key is absent or null. Hugging Face files write
/// null for "the default".
template <class T, class Json>
T get_or(const Json& object, std::string_view key, std::type_identity_t<T> fallback, std::string_view source) {
  if (!object.is_object()) {
    detail::throw_not_an_object(key, source);
  }
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return fallback;
  }
  return detail::convert_json_value<T>(*it, key, source);
}

}  // namespace vlmtrain::io
