#include "vlmtrain/base/content_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace vlmtrain {

ContentHash& ContentHash::add(uint64_t number) {
  // Each step can be undone, so that no two states become one; the last line is SplitMix64's way to spread the bits.
  uint64_t mixed = state_ ^ (number * 0x9e3779b97f4a7c15U);
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93U;
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9U;
  state_ = mixed ^ (mixed >> 32);
  return *this;
}

ContentHash& ContentHash::add(std::string_view text) {
  add(uint64_t{text.size()});
  for (size_t place = 0; place < text.size(); place += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + place, std::min(sizeof(word), text.size() - place));
    add(word);
  }
  return *this;
}

std::string ContentHash::text() const {
  return fmt::format("{:016x}", state_);
}

}  // namespace vlmtrain
