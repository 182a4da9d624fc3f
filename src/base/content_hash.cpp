#include "vlmtrain/base/content_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace vlmtrain {

ContentHash& ContentHash::add(uint64_t number) {
  // Each step can be undone, so that no two states become one; the last line is SplitMix64's way to spread the bits.
  uint64_t hash = state_ ^ (number * 0x9e3779b97f4a7c15U);
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93U;
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9U;
  state_ = hash ^ (hash >> 32);
  return *this;
}

ContentHash& ContentHash::add(std::string_view text) {
  add(uint64_t{text.size()});
  for (size_t offset = 0; offset < text.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + offset, std::min(sizeof(word), text.size() - offset));
    add(word);
  }
  return *this;
}

std::string ContentHash::hex() const {
  return fmt::format("{:016x}", state_);
}

}  // namespace vlmtrain
