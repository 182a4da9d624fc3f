#include "io/dataset/record_offsets.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/dataset/record_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

/// Interval at which scanned pages are released, which bounds the resident memory of a scan. Chosen
/// without measurement: smaller values only cost more system calls.
constexpr size_t kPageReleaseIntervalBytes = size_t{16} << 20;

/// Returns a description of the unsupported format that begins with these bytes, and the fix, or "".
/// Signatures: Arrow IPC file, zip local header, gzip (RFC 1952), Zstandard (RFC 8878), and markup.
std::string_view describe_unsupported_format(std::string_view content) {
  using namespace std::string_view_literals;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kUnsupportedFormats{
      {{"ARROW1"sv, "an Arrow file; write it as Parquet (datasets: `to_parquet`)"sv},
       {"PK\3\4"sv, "a zip archive; unpack it first"sv},
       {"\x1F\x8B"sv, "compressed with gzip; unpack it first"sv},
       {"\x28\xB5\x2F\xFD"sv, "compressed with zstd; unpack it first"sv},
       {"<"sv, "a web page or XML; write a JSON array of records, or one record per line"sv}}};
  for (const auto& [magic, name] : kUnsupportedFormats) {
    if (content.starts_with(magic)) return name;
  }
  return "";
}

/// A scanner for the beginnings of records (find_record_offsets). Both references must outlive it.
class JsonRecordScanner {
 public:
  JsonRecordScanner(const MappedFile& file, const std::string& source)
      : file_(file),
        text_(file.text()),
        source_(source),
        pos_(text_.starts_with(kUtf8ByteOrderMark) ? kUtf8ByteOrderMark.size() : 0) {}

  RecordOffsets scan_records() {
    skip_whitespace();
    if (pos_ == text_.size()) {
      throw data_error("{}: is empty; write a JSON array of records, or one record per line", source_);
    }
    switch (text_[pos_]) {
      case '[':
        scan_array();
        break;
      case '{':
        check_not_single_object();
        scan_lines();
        break;
      default:
        throw_unknown_format();
    }
    offsets_.begin_offsets.shrink_to_fit();
    offsets_.line_numbers.shrink_to_fit();
    return std::move(offsets_);
  }

 private:
  void scan_lines() {
    offsets_.is_json_lines = true;
    offsets_.end = text_.size();
    while (pos_ < text_.size()) {
      const auto* const newline = static_cast<const char*>(std::memchr(text_.data() + pos_, '\n', text_.size() - pos_));
      const size_t end = newline == nullptr ? text_.size() : static_cast<size_t>(newline - text_.data());
      if (text_.substr(pos_, end - pos_).find_first_not_of(kJsonWhitespace) != std::string_view::npos)
        add_record_offset(pos_);
      pos_ = end + 1;
    }
  }

  void scan_array() {
    ++pos_;
    skip_whitespace();
    // Only an empty array has its bracket here; after a comma, a bracket is an error of the next
    // element.
    while (pos_ == text_.size() || text_[pos_] != ']' || !offsets_.begin_offsets.empty()) {
      skip_whitespace();
      add_record_offset(pos_);
      skip_element();
      if (pos_ == text_.size() || text_[pos_] == '}') throw_invalid_json();
      if (text_[pos_] == ']') break;
      ++pos_;
    }
    offsets_.end = pos_++;
    skip_whitespace();
    if (pos_ != text_.size()) throw_invalid_json();
  }

  // Advances from the start of an element to the comma or bracket after it, or to the end of the
  // text. Throws data_error if the element is empty or its brackets do not match.
  void skip_element() {
    const size_t begin = pos_;
    bool is_value_complete = false;  // a list, object or string has ended: only whitespace may follow in this element
    for (; pos_ < text_.size(); ++pos_) {
      const char c = text_[pos_];
      if (expected_closing_brackets_.empty() && (c == ',' || c == ']' || c == '}')) break;
      if (is_value_complete && kJsonWhitespace.find(c) == std::string_view::npos) throw_invalid_json();
      if (c == '"') {
        skip_string();
      } else if (c == '{' || c == '[') {
        if (expected_closing_brackets_.size() == kMaxJsonDepth) throw_invalid_json();
        expected_closing_brackets_.push_back(c == '{' ? '}' : ']');
        continue;
      } else if (c == '}' || c == ']') {
        if (expected_closing_brackets_.back() != c) throw_invalid_json();
        expected_closing_brackets_.pop_back();
      } else {
        continue;
      }
      is_value_complete = expected_closing_brackets_.empty();
    }
    if (pos_ == begin || !expected_closing_brackets_.empty()) throw_invalid_json();
  }

  // Advances from a quote to its closing quote.
  void skip_string() {
    while (true) {
      const size_t quote_pos = text_.find('"', pos_ + 1);
      if (quote_pos == std::string_view::npos) throw_invalid_json();
      const size_t last_non_backslash_pos = text_.find_last_not_of('\\', quote_pos - 1);  // stops at the opening quote
      pos_ = quote_pos;
      if ((quote_pos - last_non_backslash_pos) % 2 == 1) return;  // an even number does not escape the quote
    }
  }

  // Appends a record. Counts only the lines since the last record, because records come in the
  // order of the text.
  void add_record_offset(size_t begin) {
    line_number_ += static_cast<uint64_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_prefix_bytes_),
                                                     text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
    counted_prefix_bytes_ = begin;
    if (line_number_ > std::numeric_limits<uint32_t>::max()) {
      throw data_error("{}: has more than 4,294,967,295 lines; split it into several files", source_);
    }
    offsets_.begin_offsets.push_back(begin);
    offsets_.line_numbers.push_back(static_cast<uint32_t>(line_number_));
    if (begin - released_prefix_bytes_ < kPageReleaseIntervalBytes) return;
    file_.release_pages(released_prefix_bytes_, begin - released_prefix_bytes_);
    released_prefix_bytes_ = begin;
  }

  // Throws data_error if the file is one object that contains records. As JSON Lines, it would be
  // one record, or a broken record on each line if it spans several lines.
  void check_not_single_object() const {
    const size_t line_end = text_.find('\n', pos_);
    const std::string_view first_line = text_.substr(pos_, line_end - pos_);
    const bool is_on_one_line = line_end == std::string_view::npos ||
                                text_.find_first_not_of(kJsonWhitespace, line_end) == std::string_view::npos;
    if (is_on_one_line) {
      if (const auto description = describe_wrapped_records(first_line); !description.empty())
        throw data_error("{}: {}", source_, description);
      return;
    }
    if (nlohmann::json::accept(first_line) || !nlohmann::json::accept(text_)) return;
    const std::string description = describe_wrapped_records(text_.substr(pos_));
    throw data_error("{}: {}", source_,
                     description.empty() ? "is one JSON object over several lines; write it on one line" : description);
  }

  void skip_whitespace() { pos_ = std::min(text_.find_first_not_of(kJsonWhitespace, pos_), text_.size()); }

  [[noreturn]] void throw_invalid_json() const {
    const JsonError error = find_json_error(zero_non_finite_literals(text_));
    throw data_error("{}: not valid JSON at line {}, column {}: {}; {}", source_, error.line, error.column,
                     error.reason, kInvalidJsonHint);
  }

  [[noreturn]] void throw_unknown_format() const {
    throw_if_lfs_pointer(source_, text_);
    if (has_utf16_byte_order_mark(text_)) throw data_error("{}: {}", source_, kUtf16ErrorSuffix);
    if (const auto format = describe_unsupported_format(text_); !format.empty()) {
      throw data_error("{}: is {} (docs/reference/data-formats.md)", source_, format);
    }
    throw data_error(
        "{}: is neither a JSON array nor JSON Lines: it begins with neither [ nor {{; convert tables (CSV) to records "
        "as in docs/reference/data-formats.md",
        source_);
  }

  const MappedFile& file_;
  std::string_view text_;
  const std::string& source_;
  size_t pos_;
  std::vector<char> expected_closing_brackets_;  // of the open lists and objects, innermost last
  size_t counted_prefix_bytes_ = 0;              // size of the text's prefix whose line breaks are counted
  uint64_t line_number_ = 1;                     // at counted_prefix_bytes_
  size_t released_prefix_bytes_ = 0;             // size of the text's prefix whose pages were released
  RecordOffsets offsets_;
};

void trim_trailing_whitespace(std::string_view& text) {
  text = text.substr(0, text.find_last_not_of(kJsonWhitespace) + 1);
}

/// Header of an index file in the machine's byte order. The offsets (uint64_t) and line numbers
/// (uint32_t) of all records follow. Fields are those of RecordOffsets.
struct JsonIndexHeader {
  std::array<char, 8> magic{'v', 'l', 'm', 'j', 's', 'o', 'n', '1'};
  uint64_t version_hash = 0;
  uint64_t is_json_lines = 0;
  uint64_t end = 0;
  uint64_t num_records = 0;
  uint64_t hash = 0;  ///< of the other fields except `magic`, and of the content after the header

  void update_hash(std::string_view body) {
    hash = ContentHash().add(version_hash).add(is_json_lines).add(end).add(num_records).add(body).value();
  }
};

template <class T>
std::string_view to_byte_view(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Moves the first values.size() elements of `bytes` into `values`.
template <class T>
void consume_values(std::string_view& bytes, std::vector<T>& values) {
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  bytes.remove_prefix(values.size() * sizeof(T));
}

}  // namespace

std::string_view RecordOffsets::extract_record(size_t index, std::string_view bytes) const {
  if (is_json_lines) return bytes.substr(0, bytes.find('\n'));
  trim_trailing_whitespace(bytes);
  if (index + 1 < begin_offsets.size()) {
    bytes.remove_suffix(1);  // the comma
    trim_trailing_whitespace(bytes);
  }
  return bytes;
}

RecordOffsets find_record_offsets(const MappedFile& file, const std::string& source) {
  return JsonRecordScanner(file, source).scan_records();
}

fs::path get_json_index_path(const fs::path& file) {
  const fs::path folder = get_user_cache_folder();
  std::error_code error;
  const fs::path canonical_path = fs::weakly_canonical(file, error);
  if (folder.empty() || error) return {};
  return folder / "json-index" / ContentHash().add(canonical_path.native()).to_hex();
}

std::optional<RecordOffsets> read_json_index(const fs::path& index, uint64_t version_hash, uint64_t file_bytes) {
  std::error_code error;
  if (index.empty() || !fs::is_regular_file(index, error)) return std::nullopt;
  std::string content;
  try {
    content = read_file(index);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  JsonIndexHeader header;
  const JsonIndexHeader default_header;
  if (content.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof(header));
  std::string_view body = std::string_view(content).substr(sizeof(header));
  JsonIndexHeader recomputed_header = header;
  recomputed_header.update_hash(body);
  constexpr uint64_t kIndexBytesPerRecord = sizeof(uint64_t) + sizeof(uint32_t);
  const bool is_valid = header.magic == default_header.magic && header.version_hash == version_hash &&
                        header.hash == recomputed_header.hash && header.end <= file_bytes &&
                        body.size() == header.num_records * kIndexBytesPerRecord;
  if (!is_valid) return std::nullopt;
  RecordOffsets offsets;
  offsets.is_json_lines = header.is_json_lines != 0;
  offsets.end = header.end;
  offsets.begin_offsets.resize(header.num_records);
  offsets.line_numbers.resize(header.num_records);
  consume_values(body, offsets.begin_offsets);
  consume_values(body, offsets.line_numbers);
  return offsets;
}

void write_json_index(const fs::path& index, uint64_t version_hash, const RecordOffsets& offsets) {
  if (index.empty()) return;
  JsonIndexHeader header;
  header.version_hash = version_hash;
  header.is_json_lines = offsets.is_json_lines ? 1 : 0;
  header.end = offsets.end;
  header.num_records = offsets.begin_offsets.size();
  const std::string body = std::string(to_byte_view(offsets.begin_offsets)).append(to_byte_view(offsets.line_numbers));
  header.update_hash(body);
  try {
    fs::create_directories(index.parent_path());
    write_file(index, std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body);
  } catch (const std::exception& error) {
    spdlog::info("{}: the record offsets cannot be cached ({}); the next start reads the data again", index.string(),
                 error.what());
  }
}

}  // namespace vlmtrain::io
