#include "vlmtrain/base/text_column.h"

#include <limits>

#include "vlmtrain/base/error.h"

namespace vlmtrain {

std::string_view TextColumn::operator[](int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return std::string_view(chars_).substr(offsets_.at(i), lengths_.at(i));
}

void TextColumn::set(int64_t index, std::string_view text) {
  VLMTRAIN_CHECK(text.size() <= std::numeric_limits<uint32_t>::max(),
                 "the text has {} bytes; the maximum is below 4 GiB", text.size());
  const auto i = static_cast<size_t>(index);
  offsets_.at(i) = chars_.size();
  lengths_.at(i) = static_cast<uint32_t>(text.size());
  chars_ += text;
}

void TextColumn::push_back(std::string_view text) {
  offsets_.push_back(0);
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

void DictionaryTextColumn::set(int64_t index, std::string_view text) {
  auto it = index_by_text_.find(text);
  if (it == index_by_text_.end()) {
    it = index_by_text_.emplace(text, static_cast<uint32_t>(texts_.size())).first;
    texts_.emplace_back(text);
  }
  text_indices_.at(static_cast<size_t>(index)) = it->second;
}

}  // namespace vlmtrain
