#include "vlmtrain/io/json.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {

namespace {

// SAX handler that stores only the position and message of the first error. The exceptions of the
// DOM parser lack the position for some errors, such as a number overflow.
class JsonErrorHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    position_ = position;
    message_ = error.what();
    return false;
  }

  const std::optional<std::size_t>& position() const { return position_; }
  const std::string& message() const { return message_; }

 private:
  std::optional<std::size_t> position_;
  std::string message_;
};

// Scanner for the nesting depth and the number of keys of a text that may not be JSON. It runs
// before the parser and finds every nested list and object that the parser would find.
class NestingScanner {
 public:
  // Scans `text` up to the first bracket that exceeds kMaxJsonDepth.
  explicit NestingScanner(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      switch (text[i]) {
        case '"':
          i = find_string_end(text, i);
          break;
        case '{':
        case '[':
          if (open_containers_.size() == kMaxJsonDepth) {
            too_deep_offset_ = i;
            return;
          }
          open_containers_.push_back({text[i] == '{', 1});
          break;
        case '}':
        case ']':
          if (!open_containers_.empty()) open_containers_.pop_back();
          break;
        case ',':
          if (!open_containers_.empty() && open_containers_.back().is_object)
            max_keys_per_object_ = std::max(max_keys_per_object_, ++open_containers_.back().num_entries);
          break;
        default:
          break;
      }
    }
  }

  /// Returns the offset of the first bracket that exceeds kMaxJsonDepth.
  const std::optional<size_t>& too_deep_offset() const { return too_deep_offset_; }
  /// Returns the largest number of keys of one object.
  size_t max_keys_per_object() const { return max_keys_per_object_; }

 private:
  static size_t find_string_end(std::string_view text, size_t quote) {
    size_t i = quote + 1;
    while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    return i;
  }

  struct OpenContainer {
    bool is_object;
    size_t num_entries;  // one more than the commas
  };

  std::vector<OpenContainer> open_containers_;
  size_t max_keys_per_object_ = 0;
  std::optional<size_t> too_deep_offset_;
};

// Returns only the reason and the expected token of the library's message, which has the form
// "[json.exception…] parse error at line 1, column 2: syntax error … - REASON; last read: 'TOKEN';
// expected …". The last token may consist of megabytes of invalid UTF-8.
std::string shorten_reason(std::string message) {
  for (const std::string_view prefix_end : {"] ", ": "}) {
    const size_t end = message.find(prefix_end);
    if (end != std::string::npos && (prefix_end == "] " || message.starts_with("parse error"))) {
      message.erase(0, end + prefix_end.size());
    }
  }
  const size_t last_read_pos = message.find("; last read: '");
  if (last_read_pos != std::string::npos) {
    const size_t expected_pos = message.rfind("'; expected ");
    message.erase(last_read_pos,
                  expected_pos == std::string::npos ? std::string::npos : expected_pos + 1 - last_read_pos);
  }
  return make_excerpt(message, 200);
}

// Returns false for continuation bytes of UTF-8.
bool is_utf8_character_start(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

JsonError make_json_error(std::string_view text, size_t offset, std::string reason) {
  const std::string_view prefix = text.substr(0, offset);
  const size_t newline = prefix.rfind('\n');
  const std::string_view line_prefix = newline == std::string_view::npos ? prefix : prefix.substr(newline + 1);
  return {.line = 1 + std::count(prefix.begin(), prefix.end(), '\n'),
          .column = 1 + std::count_if(line_prefix.begin(), line_prefix.end(), is_utf8_character_start),
          .reason = std::move(reason)};
}

[[noreturn]] void throw_invalid_json(std::string_view text, std::string_view source) {
  throw_if_lfs_pointer(source, text);
  if (has_utf16_byte_order_mark(text)) throw data_error("{}: {}", source, kUtf16ErrorSuffix);
  const JsonError error = find_json_error(text);
  throw data_error("{}: not valid JSON at line {}, column {}: {}; {}", source, error.line, error.column, error.reason,
                   kInvalidJsonHint);
}

// Parses a text whose depth was checked.
template <class Json>
Json parse_with_depth_check(std::string_view text, std::string_view source) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) throw_invalid_json(text, source);
  return value;
}

template <class Json>
std::string dump_as_valid_utf8(const Json& value, int indent) {
  const std::string text = value.dump(indent, ' ', false, Json::error_handler_t::replace);
  // The library does not escape DEL and the C1 control characters (U+0080 to U+009F). JSON is ASCII
  // outside of strings, so these bytes are in a string, where an escape is equivalent.
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if (byte == 0x7F) {
      result += "\\u007f";
    } else if (byte == 0xC2 && next >= 0x80 && next <= 0x9F) {
      result += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

std::string describe_json_exception(const std::exception& error) {
  return shorten_reason(error.what());
}

JsonError find_json_error(std::string_view text) {
  if (const auto offset = NestingScanner(text).too_deep_offset()) {
    return make_json_error(text, *offset, fmt::format("more than {} nested lists and objects", kMaxJsonDepth));
  }
  JsonErrorHandler error_handler;
  nlohmann::json::sax_parse(text, &error_handler);
  VLMTRAIN_CHECK(error_handler.position(), "the text is valid JSON");
  // The position counts the bytes read, including the wrong one and a byte order mark.
  const size_t error_offset = std::min(std::max<size_t>(*error_handler.position(), 1) - 1, text.size());
  return make_json_error(text, error_offset, shorten_reason(error_handler.message()));
}

bool is_json_too_deep(std::string_view text) {
  return NestingScanner(text).too_deep_offset().has_value();
}

std::optional<nlohmann::json> try_parse_json(std::string_view text) {
  if (is_json_too_deep(text)) return std::nullopt;
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? std::nullopt : std::optional(std::move(value));
}

std::optional<RecordJson> try_parse_record_json(std::string_view text) {
  // Far above the keys of real records, and fast: a million comparisons of keys.
  constexpr size_t kMaxOrderedKeysPerObject = 1000;
  const NestingScanner scanner(text);
  if (scanner.too_deep_offset()) return std::nullopt;
  if (scanner.max_keys_per_object() > kMaxOrderedKeysPerObject) {
    nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    return value.is_discarded() ? std::nullopt : std::optional<RecordJson>(value);
  }
  RecordJson value = RecordJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? std::nullopt : std::optional(std::move(value));
}

nlohmann::json parse_json(std::string_view text, std::string_view source) {
  if (is_json_too_deep(text)) throw_invalid_json(text, source);
  return parse_with_depth_check<nlohmann::json>(text, source);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view source) {
  // Ordered files are configurations and states of runs, with a few thousand keys at most. The time
  // of parsing is quadratic in the keys, so a much larger object would take minutes.
  constexpr size_t kMaxKeysPerObject = 50'000;
  const NestingScanner scanner(text);
  if (scanner.too_deep_offset()) throw_invalid_json(text, source);
  if (scanner.max_keys_per_object() > kMaxKeysPerObject) {
    throw data_error("{}: an object has {} keys, more than {}; use the original file", source,
                     scanner.max_keys_per_object(), kMaxKeysPerObject);
  }
  return parse_with_depth_check<nlohmann::ordered_json>(text, source);
}

nlohmann::json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

nlohmann::ordered_json read_ordered_json(const std::filesystem::path& path) {
  return parse_ordered_json(read_file(path), path.string());
}

std::string to_json_string(const nlohmann::json& value, int indent) {
  return dump_as_valid_utf8(value, indent);
}

std::string to_json_string(const nlohmann::ordered_json& value, int indent) {
  return dump_as_valid_utf8(value, indent);
}

void add_field_aliases(nlohmann::ordered_json& object, std::initializer_list<FieldAlias> aliases) {
  for (const FieldAlias& field : aliases) object[field.alias] = nlohmann::ordered_json(object.at(field.name));
}

std::string make_json_excerpt(const nlohmann::json& value) {
  return make_excerpt(to_json_string(value));
}

std::string make_json_excerpt(const nlohmann::ordered_json& value) {
  return make_excerpt(to_json_string(value));
}

namespace detail {

void throw_not_an_object(std::string_view key, std::string_view source) {
  throw data_error("{}: not a JSON object; one with the key \"{}\" is expected", source, key);
}

void throw_missing_key(std::string_view key, std::string_view source) {
  throw data_error("{}: the key \"{}\" is missing; add it, or use the original file", source, key);
}

void throw_wrong_type(std::string_view key, std::string_view expected, const std::string& actual,
                      std::string_view source) {
  throw data_error("{}: \"{}\" must be {}, not {}; correct it", source, make_excerpt(key), expected,
                   make_excerpt(actual, 60));
}

}  // namespace detail

bool is_empty_value(const nlohmann::json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

std::vector<std::string> find_unread_keys(const nlohmann::json& object, std::span<const std::string_view> read_keys,
                                          std::span<const HarmlessKey> harmless_keys) {
  std::vector<std::string> result;
  for (const auto& [key, value] : object.items()) {
    const bool is_read_or_harmless_key =
        std::ranges::find(read_keys, std::string_view(key)) != read_keys.end() ||
        std::ranges::find(harmless_keys, std::string_view(key), &HarmlessKey::name) != harmless_keys.end();
    if (!is_read_or_harmless_key && !is_empty_value(value)) result.push_back(key);
  }
  return result;
}

}  // namespace vlmtrain::io
