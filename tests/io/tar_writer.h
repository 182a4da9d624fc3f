#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Writer of a tar archive in memory.
class TarWriter {
 public:
  TarWriter& add(std::string_view name, std::string_view content, char type = '0', std::string_view prefix = "") {
    add_header(name, fmt::format("{:011o}", content.size()), type, prefix);
    text_ += content;
    text_.resize((text_.size() + 511) / 512 * 512, '\0');
    return *this;
  }
  /// Adds a member with the GNU header for names that exceed their field.
  TarWriter& add_long(std::string_view name, std::string_view content) {
    return add("././@LongLink", std::string(name) + '\0', 'L').add(name.substr(0, 99), content);
  }
  /// Adds a member with a pax header of one record.
  TarWriter& add_pax(std::string_view key, std::string_view value, std::string_view name, std::string_view content) {
    const size_t rest = key.size() + value.size() + 3;
    size_t length = rest + 1;
    while (length != rest + fmt::formatted_size("{}", length)) ++length;
    return add("pax", fmt::format("{} {}={}\n", length, key, value), 'x').add(name, content);
  }
  void add_header(std::string_view name, std::string_view bytes, char type, std::string_view prefix = "") {
    std::string header(512, '\0');
    header.replace(0, name.size(), name);
    header.replace(124, bytes.size(), bytes);
    header[156] = type;
    header.replace(257, 8, std::string_view("ustar\00000", 8));
    header.replace(345, prefix.size(), prefix);
    header.replace(148, 8, "        ");
    uint64_t sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
    text_ += header;
  }

  /// Returns the added members without the end-of-archive blocks.
  const std::string& open() const { return text_; }
  std::string closed() const { return text_ + std::string(1024, '\0'); }

 private:
  std::string text_;
};

}  // namespace vlmtrain::io
