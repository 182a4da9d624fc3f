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
  explicit TextColumn(int64_t size) : places_(static_cast<size_t>(size)), lengths_(static_cast<size_t>(size)) {}

  int64_t size() const { return std::ssize(places_); }
  std::string_view operator[](int64_t index) const;
  /// REQUIRES: less than 4 GiB. What was there before keeps its room.
  void set(int64_t index, std::string_view text);
  void push_back(std::string_view text);

  bool operator==(const TextColumn& other) const;

 private:
  std::string letters_;
  std::vector<uint64_t> places_;   // in letters_
  std::vector<uint32_t> lengths_;  // bytes
};

/// The same where few texts are the texts of all: 4 bytes each.
class RepeatedTextColumn {
 public:
  RepeatedTextColumn() = default;
  explicit RepeatedTextColumn(int64_t size) : numbers_(static_cast<size_t>(size)) {}

  int64_t size() const { return std::ssize(numbers_); }
  const std::string& operator[](int64_t index) const { return texts_[numbers_.at(static_cast<size_t>(index))]; }
  void set(int64_t index, std::string_view text);

 private:
  std::vector<std::string> texts_{std::string()};
  std::map<std::string, uint32_t, std::less<>> number_of_{{std::string(), 0}};
  std::vector<uint32_t> numbers_;  // of texts_
};

}  // namespace vlmtrain
