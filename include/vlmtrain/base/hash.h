#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// A 64-bit hash of a sequence of numbers and strings, which detects changed content. Two different
/// contents have equal hashes with a probability of about 2^-64. The hash is not cryptographic. It
/// depends on the order of the calls of add(). Files store it, so its values must not change.
class ContentHash {
 public:
  /// Adds a number.
  ContentHash& add(uint64_t number);
  /// Adds a string of any bytes and its length, so that ("ab", "c") differs from ("a", "bc").
  ContentHash& add(std::string_view text);

  uint64_t value() const { return state_; }
  /// Returns the value as 16 hexadecimal digits.
  std::string to_hex() const;

 private:
  // 2^64 / golden ratio, the increment of SplitMix64. Any other initial value would do.
  uint64_t state_ = 0x9e3779b97f4a7c15U;
};

/// XXH64 with seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): the value
/// that `xxhsum -H64` prints. The value does not depend on how the bytes are divided between calls
/// of add(). Not cryptographic.
class Xxh64 {
 public:
  Xxh64();

  Xxh64& add(std::string_view bytes);

  /// Returns the hash of all bytes added so far.
  uint64_t value() const;
  /// Returns the value as 16 hexadecimal digits.
  std::string to_hex() const;

 private:
  static constexpr size_t kStripeBytes = 32;  // bytes that the four lanes consume at once (xxhash_spec.md)

  std::array<uint64_t, 4> lanes_;
  std::array<char, kStripeBytes> buffer_{};  // the last, incomplete stripe
  uint64_t total_bytes_ = 0;
};

/// Returns the seed of an independent random stream. It depends only on the run's seed, the name
/// `stream` and a position such as {epoch, step}, so a resumed run continues at any point without
/// replaying earlier steps. Its values must not change, or resumed runs would train on other
/// samples.
uint64_t derive_stream_seed(uint64_t seed, std::string_view stream, std::initializer_list<uint64_t> position = {});

/// The generator SplitMix64 (Steele, Lea, Flood 2014). It gives the same numbers with every
/// compiler and standard library, unlike the distributions of <random>.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  /// Returns 64 uniform random bits.
  uint64_t next();
  /// Returns a uniform number in [0, bound) without modulo bias. REQUIRES: bound > 0.
  uint64_t uniform(uint64_t bound);

 private:
  uint64_t state_;
};

/// Returns a uniformly random permutation of 0 … count-1 (Fisher-Yates). REQUIRES: count >= 0.
std::vector<int64_t> make_random_permutation(int64_t count, uint64_t seed);

}  // namespace vlmtrain
