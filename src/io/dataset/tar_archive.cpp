#include "io/dataset/tar_archive.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

// Offsets, sizes and type flags of header fields below are those of the formats in tar_archive.h.

constexpr uint64_t kTarBlockBytes = 512;  // unit of headers and contents
/// Maximum size of an extended header. Chosen without measurement: names and pax records of data
/// sets are far smaller, so a larger size indicates a damaged tar.
constexpr uint64_t kMaxTarHeaderBytes = uint64_t{1} << 20;

/// Returns a field of a header up to its first NUL.
std::string_view extract_header_field(std::string_view header, size_t offset, size_t bytes) {
  const std::string_view field = header.substr(offset, bytes);
  return field.substr(0, field.find('\0'));
}

/// Parses octal digits surrounded by spaces, or GNU tar's big-endian binary form for larger
/// numbers, which is marked by the highest bit. Returns nothing if invalid or not less than 2^62.
std::optional<uint64_t> parse_number(std::string_view header, size_t offset, size_t bytes) {
  const std::string_view field = header.substr(offset, bytes);
  uint64_t value = 0;
  if ((static_cast<unsigned char>(field.front()) & 0x80U) != 0) {
    for (const char c : field.substr(field.size() - sizeof(value))) {
      value = value << 8U | static_cast<unsigned char>(c);
    }
    return value >> 62U == 0 ? std::optional(value) : std::nullopt;
  }
  const size_t begin = field.find_first_not_of(' ');
  const size_t end =
      std::min(field.find_first_of(std::string_view(" \0", 2), std::min(begin, field.size())), field.size());
  for (size_t i = begin; i < end; ++i) {
    if (field[i] < '0' || field[i] > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(field[i] - '0');
  }
  return value;
}

/// Returns true if the checksum field is the sum of all bytes of the header, in which the field
/// itself counts as spaces.
bool is_checksum_valid(std::string_view header) {
  constexpr size_t kChecksumOffset = 148;
  constexpr size_t kChecksumBytes = 8;
  uint64_t sum = kChecksumBytes * ' ';
  for (size_t i = 0; i < header.size(); ++i) {
    if (i < kChecksumOffset || i >= kChecksumOffset + kChecksumBytes) sum += static_cast<unsigned char>(header[i]);
  }
  return parse_number(header, kChecksumOffset, kChecksumBytes) == sum;
}

/// Returns the name field. In POSIX headers, the prefix field has the first part of a long name;
/// GNU headers use these bytes for other fields.
std::string extract_member_name(std::string_view header) {
  constexpr std::string_view kPosixMagic("ustar\0", 6);
  const std::string name(extract_header_field(header, 0, 100));
  const std::string_view prefix = header.substr(257, 6) == kPosixMagic ? extract_header_field(header, 345, 155) : "";
  return prefix.empty() ? name : std::string(prefix) + "/" + name;
}

class TarScanner {
 public:
  explicit TarScanner(const DataFile& tar) : tar_(tar), tar_handle_(tar) {}

  void visit_members(const std::function<void(TarMember)>& visit) {
    while (offset_ + kTarBlockBytes <= tar_.size()) {
      const std::string header = tar_handle_.read(offset_, kTarBlockBytes);
      if (header.find_first_not_of('\0') == std::string::npos) return;
      const auto bytes = parse_number(header, 124, 12);
      if (!is_checksum_valid(header) || !bytes) fail("has no member header");
      offset_ += kTarBlockBytes;
      handle_header(header, *bytes, visit);
    }
    if (offset_ < tar_.size()) fail("ends within a header");
  }

 private:
  void handle_header(std::string_view header, uint64_t bytes, const std::function<void(TarMember)>& visit) {
    switch (header[156]) {
      case 'L':  // GNU: the content is the name of the next member
        pending_attributes_.name = std::string(extract_header_field(read_extended_header(bytes), 0, std::string::npos));
        break;
      case 'x':  // pax: the content is attributes of the next member
        parse_pax_records(read_extended_header(bytes));
        break;
      case '0':
      case '\0':   // a file in tars older than POSIX
      case '7':    // a contiguous file, which readers treat as a file
      case 'S': {  // GNU: a sparse file
        TarMember member{.name = pending_attributes_.name.value_or(extract_member_name(header)),
                         .offset = offset_,
                         .bytes = pending_attributes_.bytes.value_or(bytes)};
        if (header[156] == 'S' || pending_attributes_.is_sparse)
          member.problem = "is stored as a sparse file, which is not supported";
        skip_content(member.bytes);
        if (offset_ > tar_.size()) {
          member.problem = "is truncated: the tar ends within it";
          offset_ = tar_.size();
        }
        pending_attributes_ = {};
        if (!member.name.ends_with('/')) visit(std::move(member));
        return;
      }
      case 'K':
      case 'g':
        break;     // long link targets and global pax headers are not needed
      case '1':    // a hard link
      case '2': {  // a symbolic link
        TarMember member{
            .name = pending_attributes_.name.value_or(extract_member_name(header)),
            .offset = offset_,
            .problem =
                "is a link, and links are not followed: create the tar with --dereference and --hard-dereference"};
        pending_attributes_ = {};
        visit(std::move(member));
        break;
      }
      default:  // folders, devices and pipes
        pending_attributes_ = {};
        break;
    }
    skip_content(bytes);
    if (offset_ > tar_.size()) fail("ends within a header");
  }

  /// Returns the content of an extended header, which precedes the header of its member.
  std::string read_extended_header(uint64_t bytes) const {
    if (bytes > kMaxTarHeaderBytes || offset_ + bytes > tar_.size()) fail("has a header that is too long");
    return tar_handle_.read(offset_, bytes);
  }

  /// Parses records of the form "LENGTH KEY=VALUE" with a final line break. LENGTH is the size of
  /// the whole record in bytes, including itself and the line break.
  void parse_pax_records(std::string_view records) {
    while (!records.empty()) {
      const size_t space_pos = records.find(' ');
      size_t length = 0;
      // Eight digits cannot overflow and exceed any length within kMaxTarHeaderBytes.
      for (const char digit : records.substr(0, std::min(space_pos, size_t{8}))) {
        if (digit < '0' || digit > '9') fail("has a pax header that is damaged");
        length = length * 10 + static_cast<size_t>(digit - '0');
      }
      if (space_pos == std::string_view::npos || length < space_pos + 3 || length > records.size()) {
        fail("has a pax header that is damaged");
      }
      apply_pax_record(records.substr(space_pos + 1, length - space_pos - 2));
      records.remove_prefix(length);
    }
  }

  void apply_pax_record(std::string_view record) {
    const size_t equals_position = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals_position);
    const std::string_view value = record.substr(std::min(equals_position + 1, record.size()));
    if (key == "path") pending_attributes_.name = std::string(value);
    if (key.starts_with("GNU.sparse.")) pending_attributes_.is_sparse = true;
    if (key != "size") return;
    uint64_t bytes = 0;
    for (const char digit : value) {
      if (digit < '0' || digit > '9' || bytes >> 58U != 0) fail("has a pax header that is damaged");
      bytes = bytes * 10 + static_cast<uint64_t>(digit - '0');
    }
    pending_attributes_.bytes = bytes;
  }

  /// Advances over a content, which is padded to whole blocks.
  void skip_content(uint64_t bytes) { offset_ += (bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes; }

  [[noreturn]] void fail(std::string_view reason) const {
    throw data_error("{}: the tar {} at byte {}: it is damaged or not a tar; create it again", tar_.path().string(),
                     reason, offset_);
  }

  /// Attributes from extended headers for the next member.
  struct PendingAttributes {
    std::optional<std::string> name{};
    std::optional<uint64_t> bytes{};
    bool is_sparse = false;
  };

  const DataFile& tar_;
  DataFile::OpenHandle tar_handle_;
  uint64_t offset_ = 0;
  PendingAttributes pending_attributes_;
};

}  // namespace

void for_each_tar_member(const DataFile& tar, const std::function<void(TarMember)>& visit) {
  TarScanner(tar).visit_members(visit);
}

bool is_tar(std::string_view first_bytes) {
  return first_bytes.size() >= kTarBlockBytes && first_bytes.substr(257, 5) == "ustar";
}

}  // namespace vlmtrain::io
