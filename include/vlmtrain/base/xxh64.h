#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vlmtrain {

/// XXH64 with seed 0 of bytes in a row, however they are divided: what `xxhsum -H64` prints
/// (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md). Finds bytes that changed by chance; no protection
/// against someone who wants to change them.
class Xxh64 {
 public:
  Xxh64();

  Xxh64& add(std::string_view bytes);

  /// Of all bytes so far.
  uint64_t value() const;
  /// 16 hexadecimal digits.
  std::string hex() const;

 private:
  static constexpr size_t kStripe = 32;

  std::array<uint64_t, 4> lanes_;
  std::array<char, kStripe> buffer_{};  // of the last stripe, which is not full
  uint64_t total_bytes_ = 0;
};

}  // namespace vlmtrain
