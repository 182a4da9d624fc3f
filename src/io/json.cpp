#include "vlmtrain/io/json.h"

#include <algorithm>
#include <optional>

#include "io/byte_order_mark.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"

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
  constexpr size_t kLongest = 200;
  message.resize(std::min(message.size(), kLongest));
  return message;
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

template <class Json>
Json parse(std::string_view text, std::string_view source) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    if (is_utf16(text)) throw data_error("{} {}", source, kUtf16Remedy);
    const JsonFault fault = find_json_fault(text);
    throw data_error("{}: not valid JSON at line {}, column {}: {}", source, fault.line, fault.column, fault.reason);
  }
  return value;
}

}  // namespace

JsonFault find_json_fault(std::string_view text) {
  FaultFinder finder;
  nlohmann::json::sax_parse(text, &finder);
  VLMTRAIN_CHECK(finder.position(), "the text is valid JSON");
  // The position counts the bytes read, the wrong one and a byte order mark included.
  const size_t offset = std::min(std::max<size_t>(*finder.position(), 1) - 1, text.size());
  const std::string_view before = text.substr(0, offset);
  const size_t newline = before.rfind('\n');
  const std::string_view in_line = newline == std::string_view::npos ? before : before.substr(newline + 1);
  return {.line = 1 + std::count(before.begin(), before.end(), '\n'),
          .column = 1 + std::count_if(in_line.begin(), in_line.end(), starts_character),
          .reason = reason_of(finder.message())};
}

nlohmann::json parse_json(std::string_view text, std::string_view source) {
  return parse<nlohmann::json>(text, source);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view source) {
  return parse<nlohmann::ordered_json>(text, source);
}

nlohmann::json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

nlohmann::ordered_json read_ordered_json(const std::filesystem::path& path) {
  return parse_ordered_json(read_file(path), path.string());
}

namespace detail {

void fail_not_an_object(std::string_view key, std::string_view source) {
  throw data_error("{}: a JSON object with the key \"{}\" is wanted, and this is none", source, key);
}

void fail_missing(std::string_view key, std::string_view source) {
  throw data_error("{}: the key \"{}\" is missing", source, key);
}

void fail_type(std::string_view key, std::string_view expected, std::string found, std::string_view source) {
  constexpr size_t kLongest = 60;
  if (found.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && !starts_character(found[end])) {
      --end;
    }
    found = found.substr(0, end) + "...";
  }
  throw data_error("{}: \"{}\" should be {}, not {}", source, key, expected, found);
}

}  // namespace detail
}  // namespace vlmtrain::io
