#include "vlmtrain/base/text_column.h"

#include <limits>

#include "vlmtrain/base/error.h"

namespace vlmtrain {

std::string_view TextColumn::operator[](int64_t index) const {
  const auto place = static_cast<size_t>(index);
  return std::string_view(letters_).substr(places_.at(place), lengths_.at(place));
}

void TextColumn::set(int64_t index, std::string_view text) {
  VLMTRAIN_CHECK(text.size() <= std::numeric_limits<uint32_t>::max(), "a text of {} bytes", text.size());
  const auto place = static_cast<size_t>(index);
  places_.at(place) = letters_.size();
  lengths_.at(place) = static_cast<uint32_t>(text.size());
  letters_ += text;
}

void TextColumn::push_back(std::string_view text) {
  places_.push_back(0);
  lengths_.push_back(0);
  set(size() - 1, text);
}

bool TextColumn::operator==(const TextColumn& other) const {
  if (size() != other.size()) return false;
  for (int64_t index = 0; index < size(); ++index) {
    if ((*this)[index] != other[index]) return false;
  }
  return true;
}

void RepeatedTextColumn::set(int64_t index, std::string_view text) {
  auto known = number_of_.find(text);
  if (known == number_of_.end()) {
    known = number_of_.emplace(text, static_cast<uint32_t>(texts_.size())).first;
    texts_.emplace_back(text);
  }
  numbers_.at(static_cast<size_t>(index)) = known->second;
}

}  // namespace vlmtrain
