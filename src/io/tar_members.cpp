#include "io/tar_members.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

constexpr uint64_t kBlock = 512;
/// Of a name or of pax records; more is no tar that a data set is.
constexpr uint64_t kMostHeaderBytes = uint64_t{1} << 20;

/// A header's field, up to its NUL.
std::string_view field(std::string_view header, size_t offset, size_t bytes) {
  const std::string_view all = header.substr(offset, bytes);
  return all.substr(0, all.find('\0'));
}

/// Octal digits between blanks, or GNU's binary form for what has too many of them.
std::optional<uint64_t> number(std::string_view header, size_t offset, size_t bytes) {
  const std::string_view all = header.substr(offset, bytes);
  uint64_t value = 0;
  if ((static_cast<unsigned char>(all.front()) & 0x80U) != 0) {
    for (const char letter : all.substr(all.size() - sizeof(value))) {
      value = value << 8U | static_cast<unsigned char>(letter);
    }
    return value >> 62U == 0 ? std::optional(value) : std::nullopt;
  }
  const size_t begin = all.find_first_not_of(' ');
  const size_t end = std::min(all.find_first_of(std::string_view(" \0", 2), std::min(begin, all.size())), all.size());
  for (size_t i = begin; i < end; ++i) {
    if (all[i] < '0' || all[i] > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(all[i] - '0');
  }
  return value;
}

/// Of all bytes, its own field taken as blanks.
bool has_its_checksum(std::string_view header) {
  constexpr size_t kOffset = 148;
  constexpr size_t kBytes = 8;
  uint64_t sum = kBytes * ' ';
  for (size_t i = 0; i < header.size(); ++i) {
    if (i < kOffset || i >= kOffset + kBytes) sum += static_cast<unsigned char>(header[i]);
  }
  return number(header, kOffset, kBytes) == sum;
}

std::string name_in(std::string_view header) {
  constexpr std::string_view kPosixMagic("ustar\0", 6);
  const std::string name(field(header, 0, 100));
  const std::string_view prefix = header.substr(257, 6) == kPosixMagic ? field(header, 345, 155) : "";
  return prefix.empty() ? name : std::string(prefix) + "/" + name;
}

class TarScan {
 public:
  explicit TarScan(const StoredFile& tar) : tar_(tar), file_(tar) {}

  void pass(const std::function<void(TarMember)>& use) {
    while (at_ + kBlock <= tar_.size()) {
      const std::string header = file_.read(at_, kBlock);
      if (header.find_first_not_of('\0') == std::string::npos) return;
      const auto bytes = number(header, 124, 12);
      if (!has_its_checksum(header) || !bytes) fail("has no header of a member");
      at_ += kBlock;
      take(header, *bytes, use);
    }
    if (at_ < tar_.size()) fail("ends within a header");
  }

 private:
  void take(std::string_view header, uint64_t bytes, const std::function<void(TarMember)>& use) {
    switch (header[156]) {
      case 'L':
        next_.name = std::string(field(extra(bytes), 0, std::string::npos));
        break;
      case 'x':
        read_pax(extra(bytes));
        break;
      case '0':
      case '\0':
      case '7':
      case 'S': {
        TarMember member{
            .name = next_.name.value_or(name_in(header)), .offset = at_, .bytes = next_.bytes.value_or(bytes)};
        if (header[156] == 'S' || next_.is_sparse) member.problem = "is stored as a sparse file, which is not read";
        skip(member.bytes);
        if (at_ > tar_.size()) {
          member.problem = "is cut off: the tar ends within it";
          at_ = tar_.size();
        }
        next_ = {};
        if (!member.name.ends_with('/')) use(std::move(member));
        return;
      }
      case 'K':
      case 'g':
        break;  // of links, or of nothing that is read here
      case '1':
      case '2': {
        TarMember member{.name = next_.name.value_or(name_in(header)),
                         .offset = at_,
                         .problem =
                             "is a link, which is not followed: make the tar with --dereference and "
                             "--hard-dereference"};
        next_ = {};
        use(std::move(member));
        break;
      }
      default:
        next_ = {};
        break;
    }
    skip(bytes);
    if (at_ > tar_.size()) fail("ends within a header");
  }

  /// The content of a header that stands before another.
  std::string extra(uint64_t bytes) const {
    if (bytes > kMostHeaderBytes || at_ + bytes > tar_.size()) fail("has a header that is too long");
    return file_.read(at_, bytes);
  }

  /// Records "LENGTH KEY=VALUE\n", of which LENGTH counts all bytes.
  void read_pax(std::string_view records) {
    while (!records.empty()) {
      const size_t blank = records.find(' ');
      size_t length = 0;
      for (const char digit : records.substr(0, std::min(blank, size_t{8}))) {
        if (digit < '0' || digit > '9') fail("has a pax header that is damaged");
        length = length * 10 + static_cast<size_t>(digit - '0');
      }
      if (blank == std::string_view::npos || length < blank + 3 || length > records.size()) {
        fail("has a pax header that is damaged");
      }
      set_pax(records.substr(blank + 1, length - blank - 2));
      records.remove_prefix(length);
    }
  }

  void set_pax(std::string_view record) {
    const size_t equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(std::min(equals + 1, record.size()));
    if (key == "path") next_.name = std::string(value);
    if (key.starts_with("GNU.sparse.")) next_.is_sparse = true;
    if (key != "size") return;
    uint64_t bytes = 0;
    for (const char digit : value) {
      if (digit < '0' || digit > '9' || bytes >> 58U != 0) fail("has a pax header that is damaged");
      bytes = bytes * 10 + static_cast<uint64_t>(digit - '0');
    }
    next_.bytes = bytes;
  }

  /// Contents fill whole blocks.
  void skip(uint64_t bytes) { at_ += (bytes + kBlock - 1) / kBlock * kBlock; }

  [[noreturn]] void fail(std::string_view what) const {
    throw data_error("{}: the tar {} at byte {}: it is damaged, or no tar; make it anew", tar_.path().string(), what,
                     at_);
  }

  /// What extra headers say of the member that follows them.
  struct Next {
    std::optional<std::string> name{};
    std::optional<uint64_t> bytes{};
    bool is_sparse = false;
  };

  const StoredFile& tar_;
  StoredFile::Opened file_;
  uint64_t at_ = 0;
  Next next_;
};

}  // namespace

void for_each_member(const StoredFile& tar, const std::function<void(TarMember)>& use) {
  TarScan(tar).pass(use);
}

bool is_tar(std::string_view first_bytes) {
  return first_bytes.size() >= kBlock && first_bytes.substr(257, 5) == "ustar";
}

}  // namespace vlmtrain::io
