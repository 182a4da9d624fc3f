#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// One text for each of many things, by index, for millions of them: all lie in one block, and each takes 12 bytes
/// beside its letters. Views hold until the next set().
class TextColumn {
 public:
  TextColumn() = default;
  /// Empty ones.
  explicit TextColumn(int64_t size) : offsets_(static_cast<size_t>(size)), lengths_(static_cast<size_t>(size)) {}

  int64_t size() const { return std::ssize(offsets_); }
  std::string_view operator[](int64_t index) const;
  /// REQUIRES: less than 4 GiB. What was there before keeps its room.
  void set(int64_t index, std::string_view text);
  void push_back(std::string_view text);

  bool operator==(const TextColumn& other) const;

 private:
  std::string chars_;
  std::vector<uint64_t> offsets_;  // in letters_
  std::vector<uint32_t> lengths_;  // bytes
};

/// The same where few texts are the texts of all: 4 bytes each.
class DictionaryTextColumn {
 public:
  DictionaryTextColumn() = default;
  explicit DictionaryTextColumn(int64_t size) : codes_(static_cast<size_t>(size)) {}

  int64_t size() const { return std::ssize(codes_); }
  const std::string& operator[](int64_t index) const { return texts_[codes_.at(static_cast<size_t>(index))]; }
  void set(int64_t index, std::string_view text);

 private:
  std::vector<std::string> texts_{std::string()};
  std::map<std::string, uint32_t, std::less<>> code_by_text_{{std::string(), 0}};
  std::vector<uint32_t> codes_;  // of texts_
};

}  // namespace vlmtrain
