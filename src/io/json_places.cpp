#include "io/json_places.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "io/byte_order_mark.h"
#include "io/record_json.h"
#include "io/white_space.h"
#include "io/wrapped_records.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/lfs_pointer.h"

namespace vlmtrain::io {
namespace {

/// Pages are given back after so many bytes.
constexpr size_t kReleasedBytes = size_t{16} << 20;

/// What else data sets come as, by its first bytes; empty where that is not known.
std::string_view foreign_format(std::string_view content) {
  using namespace std::string_view_literals;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kFormats{
      {{"ARROW1"sv, "an Arrow file: write it as Parquet (datasets: `to_parquet`)"sv},
       {"PK\3\4"sv, "a zip archive: unpack it first"sv},
       {"\x1F\x8B"sv, "compressed with gzip: unpack it first"sv},
       {"\x28\xB5\x2F\xFD"sv, "compressed with zstd: unpack it first"sv},
       {"<"sv, "a web page or XML"sv}}};
  for (const auto& [start, name] : kFormats) {
    if (content.starts_with(start)) return name;
  }
  return "";
}

class JsonScan {
 public:
  JsonScan(const MappedFile& file, const std::string& source)
      : file_(file), text_(file.text()), source_(source), at_(text_.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0) {}

  JsonPlaces places() {
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
    found_.begins.shrink_to_fit();
    found_.lines.shrink_to_fit();
    return std::move(found_);
  }

 private:
  void read_lines() {
    found_.are_lines = true;
    found_.end = text_.size();
    while (at_ < text_.size()) {
      const auto* const line_break =
          static_cast<const char*>(std::memchr(text_.data() + at_, '\n', text_.size() - at_));
      const size_t end = line_break == nullptr ? text_.size() : static_cast<size_t>(line_break - text_.data());
      if (text_.substr(at_, end - at_).find_first_not_of(kWhiteSpace) != std::string_view::npos) add(at_);
      at_ = end + 1;
    }
  }

  void read_array() {
    ++at_;
    skip_space();
    while (at_ == text_.size() || text_[at_] != ']' || !found_.begins.empty()) {
      skip_space();
      add(at_);
      pass_element();
      if (at_ == text_.size() || text_[at_] == '}') fail_broken();
      if (text_[at_] == ']') break;
      ++at_;
    }
    found_.end = at_++;
    skip_space();
    if (at_ != text_.size()) fail_broken();
  }

  // From the element's begin to the comma or bracket behind it, or to the text's end.
  void pass_element() {
    const size_t begin = at_;
    bool is_over = false;  // a list, an object or a string was closed: nothing may follow it
    for (; at_ < text_.size(); ++at_) {
      const char letter = text_[at_];
      if (open_.empty() && (letter == ',' || letter == ']' || letter == '}')) break;
      if (is_over && kWhiteSpace.find(letter) == std::string_view::npos) fail_broken();
      if (letter == '"') {
        pass_string();
      } else if (letter == '{' || letter == '[') {
        if (open_.size() == kDeepestJson) fail_broken();
        open_.push_back(letter == '{' ? '}' : ']');
        continue;
      } else if (letter == '}' || letter == ']') {
        if (open_.back() != letter) fail_broken();
        open_.pop_back();
      } else {
        continue;
      }
      is_over = open_.empty();
    }
    if (at_ == begin || !open_.empty()) fail_broken();
  }

  // From a quote to the one that closes it.
  void pass_string() {
    while (true) {
      const size_t quote = text_.find('"', at_ + 1);
      if (quote == std::string_view::npos) fail_broken();
      const size_t before = text_.find_last_not_of('\\', quote - 1);  // the opening quote at the latest
      at_ = quote;
      if ((quote - before) % 2 == 1) return;
    }
  }

  // Lines are counted on the way: records come in the order of the text.
  void add(size_t begin) {
    line_ += static_cast<uint64_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                              text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
    counted_ = begin;
    if (line_ > std::numeric_limits<uint32_t>::max()) {
      throw data_error("{} has more than 4,294,967,295 lines; divide it into several files", source_);
    }
    found_.begins.push_back(begin);
    found_.lines.push_back(static_cast<uint32_t>(line_));
    if (begin - released_ < kReleasedBytes) return;
    file_.release(released_, begin - released_);
    released_ = begin;
  }

  // One object in all: over several lines it would be taken for as many broken records, on one line for one record.
  void refuse_single_object() const {
    const size_t line_end = text_.find('\n', at_);
    const std::string_view first_line = text_.substr(at_, line_end - at_);
    const bool is_on_one_line =
        line_end == std::string_view::npos || text_.find_first_not_of(kWhiteSpace, line_end) == std::string_view::npos;
    if (is_on_one_line) {
      if (const auto found = describe_wrapped_records(first_line); !found.empty())
        throw data_error("{} {}", source_, found);
      return;
    }
    if (nlohmann::json::accept(first_line) || !nlohmann::json::accept(text_)) return;
    const std::string found = describe_wrapped_records(text_.substr(at_));
    throw data_error("{} {}", source_,
                     found.empty()
                         ? "is one JSON object over several lines; a JSON array of records or one record a line "
                           "is wanted: write it on one line"
                         : found);
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(kWhiteSpace, at_), text_.size()); }

  [[noreturn]] void fail_broken() const {
    const JsonFault fault = find_json_fault(without_python_numbers(text_));
    throw data_error("{}: not valid JSON at line {}, column {}: {}", source_, fault.line, fault.column, fault.reason);
  }

  [[noreturn]] void fail_neither() const {
    refuse_lfs_pointer(source_, text_);
    if (is_utf16(text_)) throw data_error("{} {}", source_, kUtf16Remedy);
    if (const auto format = foreign_format(text_); !format.empty()) {
      throw data_error("{} is {}; JSON arrays, JSON Lines, Parquet and WebDataset tars are read (docs/data.md)",
                       source_, format);
    }
    throw data_error(
        "{} is neither a JSON array nor JSON lines: it begins with neither [ nor {{; docs/data.md shows records, and a "
        "table (CSV) has to be made into such",
        source_);
  }

  const MappedFile& file_;
  std::string_view text_;
  const std::string& source_;
  size_t at_;
  std::vector<char> open_;  // the brackets that close what is open
  size_t counted_ = 0;      // of the text, line breaks
  uint64_t line_ = 1;
  size_t released_ = 0;
  JsonPlaces found_;
};

void drop_space_behind(std::string_view& text) {
  text = text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

}  // namespace

std::string_view JsonPlaces::text_of(size_t place, std::string_view bytes) const {
  if (are_lines) return bytes.substr(0, bytes.find('\n'));
  drop_space_behind(bytes);
  if (place + 1 < begins.size()) {
    bytes.remove_suffix(1);  // the comma
    drop_space_behind(bytes);
  }
  return bytes;
}

JsonPlaces find_json_records(const MappedFile& file, const std::string& source) {
  return JsonScan(file, source).places();
}

}  // namespace vlmtrain::io
