#include "vlmtrain/io/dataset_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "io/byte_order_mark.h"
#include "io/dataset_record.h"
#include "io/mapped_file.h"
#include "io/white_space.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

/// What else data sets come as, by its first bytes; empty where that is not known.
std::string_view foreign_format(std::string_view content) {
  using namespace std::string_view_literals;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kFormats{
      {{"PAR1"sv, "Parquet, which is not read yet"sv},
       {"ARROW1"sv, "an Arrow file, which is not read yet"sv},
       {"PK\3\4"sv, "a zip archive: unpack it first"sv},
       {"\x1F\x8B"sv, "compressed with gzip: unpack it first"sv},
       {"\x28\xB5\x2F\xFD"sv, "compressed with zstd: unpack it first"sv},
       {"<"sv, "a web page or XML"sv}}};
  for (const auto& [start, name] : kFormats) {
    if (content.starts_with(start)) return name;
  }
  return content.substr(0, 262).ends_with("ustar") ? "a tar archive: unpack it first" : "";
}

// The records are cut out of the text and parsed one by one: this tells their lines, keeps one JSON tree in memory
// instead of a million, and lets JSON lines and arrays share all that follows.
class DatasetReader {
 public:
  DatasetReader(std::string_view text, const std::filesystem::path& file, const std::filesystem::path& image_root)
      : text_(text), source_(file.string()), stem_(file.stem().string()), image_root_(image_root) {
    at_ = text_.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0;
  }

  std::vector<Record> read() {
    skip_space();
    if (at_ == text_.size()) {
      throw data_error("{} is empty; a JSON array of records or one record a line is wanted", source_);
    }
    switch (text_[at_]) {
      case '[':
        read_array();
        break;
      case '{':
        refuse_single_object();
        read_lines();
        break;
      default:
        fail_neither();
    }
    return std::move(records_);
  }

 private:
  void read_array() {
    ++at_;
    skip_space();
    if (at_ < text_.size() && text_[at_] == ']') {
      end_array();
      return;
    }
    while (true) {
      skip_space();
      const size_t begin = at_;
      at_ = end_of_element();
      add_element(text_.substr(begin, at_ - begin), begin);
      if (at_ < text_.size() && text_[at_] == ']') {
        end_array();
        return;
      }
      if (at_ == text_.size() || text_[at_] != ',') {
        fail_broken();
      }
      ++at_;
    }
  }

  void end_array() {
    ++at_;
    skip_space();
    if (at_ != text_.size()) {
      fail_broken();
    }
  }

  // The position of the comma or bracket that follows the element at at_, or the text's end. The element itself is
  // checked when it is parsed, so brackets need not match here, only balance.
  size_t end_of_element() const {
    size_t depth = 0;
    for (size_t i = at_; i < text_.size(); ++i) {
      switch (text_[i]) {
        case '"':
          i = end_of_string(i);
          break;
        case '{':
        case '[':
          ++depth;
          break;
        case '}':
        case ']':
          if (depth == 0) {
            return i;
          }
          --depth;
          break;
        case ',':
          if (depth == 0) {
            return i;
          }
          break;
        default:
          break;
      }
    }
    return text_.size();
  }

  // The position of the quote that closes the string opened at `quote`, or the text's end.
  size_t end_of_string(size_t quote) const {
    size_t i = quote + 1;
    while (i < text_.size() && text_[i] != '"') {
      i += text_[i] == '\\' ? 2 : 1;
    }
    return std::min(i, text_.size());
  }

  void add_element(std::string_view element, size_t begin) {
    const auto value = json_of(element);
    if (!value) fail_broken();
    add(read_record(*value, next_id(), image_root_), begin);
  }

  void read_lines() {
    while (at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      const std::string_view line = text_.substr(at_, end - at_);
      if (line.find_first_not_of(kWhiteSpace) != std::string_view::npos) {
        add_line(line);
      }
      at_ = end + 1;
    }
  }

  void add_line(std::string_view line) {
    if (const auto value = json_of(line)) {
      add(read_record(*value, next_id(), image_root_), at_);
      return;
    }
    const JsonFault fault = find_json_fault(line);
    Record record;
    record.id = printable(next_id());
    record.problem = fmt::format("the line is not valid JSON at column {}: {}", fault.column, fault.reason);
    add(std::move(record), at_);
  }

  // Lines are counted on the way: records come in the order of the text.
  void add(Record record, size_t begin) {
    line_ += std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                        text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
    counted_ = begin;
    record.place = fmt::format("line {}", line_);
    records_.push_back(std::move(record));
  }

  // An object over several lines would be taken for as many broken records.
  void refuse_single_object() const {
    const std::string_view first_line = text_.substr(at_, text_.find('\n', at_) - at_);
    if (first_line.size() < text_.size() - at_ && !json::accept(first_line) && json::accept(text_)) {
      throw data_error("{} is one JSON object; a JSON array of records or one record a line is wanted", source_);
    }
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(kWhiteSpace, at_), text_.size()); }
  std::string next_id() const { return fmt::format("{}:{}", stem_, records_.size()); }

  [[noreturn]] void fail_broken() const {
    const JsonFault fault = find_json_fault(text_);
    throw data_error("{}: not valid JSON at line {}, column {}: {}", source_, fault.line, fault.column, fault.reason);
  }

  [[noreturn]] void fail_neither() const {
    if (is_git_lfs_pointer(text_)) {
      throw data_error("{} is a Git LFS pointer, not the data: run `git lfs pull` in its folder", source_);
    }
    if (is_utf16(text_)) throw data_error("{} {}", source_, kUtf16Remedy);
    if (const auto format = foreign_format(text_); !format.empty()) {
      throw data_error("{} is {}; JSON arrays and JSON Lines are read, with pictures as files (docs/data.md)", source_,
                       format);
    }
    throw data_error(
        "{} is neither a JSON array nor JSON lines: it begins with neither [ nor {{; docs/data.md shows records, and a "
        "table (CSV) has to be made into such",
        source_);
  }

  std::string_view text_;
  std::string source_;
  std::string stem_;
  const std::filesystem::path& image_root_;
  size_t at_ = 0;
  size_t counted_ = 0;  // of the text, line breaks
  int64_t line_ = 1;
  std::vector<Record> records_;
};

}  // namespace

std::vector<Record> read_dataset(const std::filesystem::path& file, const std::filesystem::path& image_root) {
  const MappedFile mapped(file);
  return DatasetReader(mapped.text(), file, image_root).read();
}

}  // namespace vlmtrain::io
