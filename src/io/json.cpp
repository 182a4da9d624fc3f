#include "vlmtrain/io/json.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "io/byte_order_mark.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json_reason.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/lfs_pointer.h"

namespace vlmtrain::io {
namespace {

// Walks a text without keeping anything but the place of the first error. The DOM parser's exceptions do not carry the
// place for all kinds of errors (a number overflow has none).
class FaultFinder : public nlohmann::json_sax<nlohmann::json> {
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

// Brackets are counted before anything is parsed, so it need not be JSON: only what a parser would take for nesting
// counts, and it takes no more than this does.
class NestingScan {
 public:
  explicit NestingScan(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      switch (text[i]) {
        case '"':
          i = end_of_string(text, i);
          break;
        case '{':
        case '[':
          if (open_.size() == kDeepestJson) {
            too_deep_at_ = i;
            return;
          }
          open_.push_back({text[i] == '{', 1});
          break;
        case '}':
        case ']':
          if (!open_.empty()) open_.pop_back();
          break;
        case ',':
          if (!open_.empty() && open_.back().is_object) most_keys_ = std::max(most_keys_, ++open_.back().entries);
          break;
        default:
          break;
      }
    }
  }

  const std::optional<size_t>& too_deep_at() const { return too_deep_at_; }
  /// Of one object.
  size_t most_keys() const { return most_keys_; }

 private:
  static size_t end_of_string(std::string_view text, size_t quote) {
    size_t i = quote + 1;
    while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    return i;
  }

  struct Open {
    bool is_object;
    size_t entries;
  };

  std::vector<Open> open_;
  size_t most_keys_ = 0;
  std::optional<size_t> too_deep_at_;
};

// The library's message repeats place and the text read last, which may be megabytes and not UTF-8: only the reason and
// what was expected are kept.
std::string reason_of(std::string message) {
  for (const std::string_view prefix_end : {"] ", ": "}) {
    const size_t end = message.find(prefix_end);
    if (end != std::string::npos && (prefix_end == "] " || message.starts_with("parse error"))) {
      message.erase(0, end + prefix_end.size());
    }
  }
  const size_t last_read = message.find("; last read: '");
  if (last_read != std::string::npos) {
    const size_t expected = message.rfind("'; expected ");
    message.erase(last_read, expected == std::string::npos ? std::string::npos : expected + 1 - last_read);
  }
  return excerpt(message, 200);
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

JsonFault fault_at(std::string_view text, size_t offset, std::string reason) {
  const std::string_view before = text.substr(0, offset);
  const size_t newline = before.rfind('\n');
  const std::string_view in_line = newline == std::string_view::npos ? before : before.substr(newline + 1);
  return {.line = 1 + std::count(before.begin(), before.end(), '\n'),
          .column = 1 + std::count_if(in_line.begin(), in_line.end(), starts_character),
          .reason = std::move(reason)};
}

[[noreturn]] void fail(std::string_view text, std::string_view source) {
  refuse_lfs_pointer(source, text);
  if (is_utf16(text)) throw data_error("{} {}", source, kUtf16Remedy);
  const JsonFault fault = find_json_fault(text);
  throw data_error("{}: not valid JSON at line {}, column {}: {}", source, fault.line, fault.column, fault.reason);
}

template <class Json>
Json parse_shallow(std::string_view text, std::string_view source) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) fail(text, source);
  return value;
}

template <class Json>
std::string text_of_json(const Json& value, int indent) {
  const std::string text = value.dump(indent, ' ', false, Json::error_handler_t::replace);
  // Outside of strings JSON is ASCII, so these bytes stand in one, where an escape means the same.
  std::string safe;
  safe.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if (byte == 0x7F) {
      safe += "\\u007f";
    } else if (byte == 0xC2 && next >= 0x80 && next <= 0x9F) {
      safe += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      safe += text[i];
    }
  }
  return safe;
}

}  // namespace

std::string json_reason(const std::exception& error) {
  return reason_of(error.what());
}

JsonFault find_json_fault(std::string_view text) {
  if (const auto too_deep = NestingScan(text).too_deep_at()) {
    return fault_at(text, *too_deep, fmt::format("more than {} lists and objects stand in each other", kDeepestJson));
  }
  FaultFinder finder;
  nlohmann::json::sax_parse(text, &finder);
  VLMTRAIN_CHECK(finder.position(), "the text is valid JSON");
  // The position counts the bytes read, the wrong one and a byte order mark included.
  const size_t offset = std::min(std::max<size_t>(*finder.position(), 1) - 1, text.size());
  return fault_at(text, offset, reason_of(finder.message()));
}

bool is_json_too_deep(std::string_view text) {
  return NestingScan(text).too_deep_at().has_value();
}

std::optional<nlohmann::json> json_of(std::string_view text) {
  if (is_json_too_deep(text)) return std::nullopt;
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? std::nullopt : std::optional(std::move(value));
}

nlohmann::json parse_json(std::string_view text, std::string_view source) {
  if (is_json_too_deep(text)) fail(text, source);
  return parse_shallow<nlohmann::json>(text, source);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view source) {
  constexpr size_t kMostKeys = 50'000;
  const NestingScan scan(text);
  if (scan.too_deep_at()) fail(text, source);
  if (scan.most_keys() > kMostKeys) {
    throw data_error("{}: an object of {} keys is not what such a file holds; at most {} are read", source,
                     scan.most_keys(), kMostKeys);
  }
  return parse_shallow<nlohmann::ordered_json>(text, source);
}

nlohmann::json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

nlohmann::ordered_json read_ordered_json(const std::filesystem::path& path) {
  return parse_ordered_json(read_file(path), path.string());
}

std::string json_text(const nlohmann::json& value, int indent) {
  return text_of_json(value, indent);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return text_of_json(value, indent);
}

std::string json_excerpt(const nlohmann::json& value) {
  return excerpt(json_text(value));
}

std::string json_excerpt(const nlohmann::ordered_json& value) {
  return excerpt(json_text(value));
}

namespace detail {

void fail_not_an_object(std::string_view key, std::string_view source) {
  throw data_error("{}: a JSON object with the key \"{}\" is wanted, and this is none", source, key);
}

void fail_missing(std::string_view key, std::string_view source) {
  throw data_error("{}: the key \"{}\" is missing", source, key);
}

void fail_type(std::string_view key, std::string_view expected, std::string found, std::string_view source) {
  throw data_error("{}: \"{}\" should be {}, not {}", source, excerpt(key), expected, excerpt(found, 60));
}

}  // namespace detail
}  // namespace vlmtrain::io
