#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vlmtrain {

/// A 64-bit hash of values in a row, which tells by chance or mistake changed content from unchanged: two contents that
/// differ have the same hash once in 2^64 times. No protection against someone who wants them to. The same on every
/// machine of the same byte order. Each text is hashed with its length, so ("ab", "c") differs from ("a", "bc").
class ContentHash {
 public:
  ContentHash& add(uint64_t number);
  ContentHash& add(std::string_view text);

  uint64_t value() const { return state_; }
  /// 16 hexadecimal digits.
  std::string hex() const;

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15U;
};

}  // namespace vlmtrain
