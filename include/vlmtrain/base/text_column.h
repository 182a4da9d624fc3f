#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// A vector of strings for millions of entries. All characters are in one block, and each entry
/// takes 12 bytes in addition to its characters. Indices outside of [0, size()) throw
/// std::out_of_range.
class TextColumn {
 public:
  TextColumn() = default;
  /// Makes a column of `size` empty strings.
  explicit TextColumn(int64_t size) : offsets_(static_cast<size_t>(size)), lengths_(static_cast<size_t>(size)) {}

  int64_t size() const { return std::ssize(offsets_); }
  /// Returns a view that is valid until the next set() or push_back().
  std::string_view operator[](int64_t index) const;
  /// Replaces an entry. The memory of the previous string is not reused. REQUIRES: `text` is
  /// shorter than 4 GiB.
  void set(int64_t index, std::string_view text);
  /// Appends an entry. REQUIRES: `text` is shorter than 4 GiB.
  void push_back(std::string_view text);

  bool operator==(const TextColumn& other) const;

 private:
  std::string chars_;
  std::vector<uint64_t> offsets_;  // in chars_
  std::vector<uint32_t> lengths_;  // bytes
};

/// A dictionary-encoded vector of strings, for columns with few distinct values. Each distinct
/// string is stored twice, in the list and in the map, and each entry takes 4 bytes. Indices
/// outside of [0, size()) throw std::out_of_range.
class DictionaryTextColumn {
 public:
  DictionaryTextColumn() = default;
  /// Makes a column of `size` empty strings.
  explicit DictionaryTextColumn(int64_t size) : text_indices_(static_cast<size_t>(size)) {}

  int64_t size() const { return std::ssize(text_indices_); }
  /// Returns a reference that is valid until the next set().
  const std::string& operator[](int64_t index) const { return texts_[text_indices_.at(static_cast<size_t>(index))]; }
  /// Replaces an entry. The dictionary keeps strings that no entry uses any more.
  void set(int64_t index, std::string_view text);

 private:
  std::vector<std::string> texts_{std::string()};
  std::map<std::string, uint32_t, std::less<>> index_by_text_{{std::string(), 0}};
  std::vector<uint32_t> text_indices_;  // indices into texts_
};

}  // namespace vlmtrain
