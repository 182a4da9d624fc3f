#include "vlmtrain/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

namespace vlmtrain {

namespace {

// PRIME64_1 to PRIME64_5 of xxhash_spec.md (see hash.h), which also specifies all rotations and
// shifts of Xxh64.
constexpr uint64_t kPrime1 = 0x9e3779b185ebca87U;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fU;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9U;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63U;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5U;

static_assert(std::endian::native == std::endian::little, "XXH64 reads words little-endian");

template <class Word>
Word load_word(const char* cursor) {
  Word word = 0;
  std::memcpy(&word, cursor, sizeof(word));
  return word;
}

uint64_t mix_lane(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t merge_lane(uint64_t hash, uint64_t lane) {
  return (hash ^ mix_lane(0, lane)) * kPrime1 + kPrime4;
}

void add_stripe(std::array<uint64_t, 4>& lanes, const char* stripe) {
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    lanes[lane] = mix_lane(lanes[lane], load_word<uint64_t>(stripe + lane * sizeof(uint64_t)));
  }
}

}  // namespace

ContentHash& ContentHash::add(uint64_t number) {
  // Each step is invertible, so different states stay different. The multipliers are the increment
  // of SplitMix64, the constant of degski's 64-bit mixer and the first multiplier of SplitMix64's
  // finalizer. Their combination and the shifts were chosen without measurement.
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

std::string ContentHash::to_hex() const {
  return fmt::format("{:016x}", state_);
}

Xxh64::Xxh64() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

Xxh64& Xxh64::add(std::string_view bytes) {
  const size_t num_buffered_bytes = total_bytes_ % kStripeBytes;
  total_bytes_ += bytes.size();
  if (num_buffered_bytes > 0) {
    const size_t count = std::min(kStripeBytes - num_buffered_bytes, bytes.size());
    std::memcpy(buffer_.data() + num_buffered_bytes, bytes.data(), count);
    bytes.remove_prefix(count);
    if (num_buffered_bytes + count < kStripeBytes) return *this;
    add_stripe(lanes_, buffer_.data());
  }
  auto lanes = lanes_;  // A local copy stays in registers.
  const char* cursor = bytes.data();
  const char* const end = cursor + bytes.size() / kStripeBytes * kStripeBytes;
  for (; cursor < end; cursor += kStripeBytes) add_stripe(lanes, cursor);
  lanes_ = lanes;
  bytes.remove_prefix(bytes.size() / kStripeBytes * kStripeBytes);
  if (!bytes.empty()) std::memcpy(buffer_.data(), bytes.data(), bytes.size());
  return *this;
}

uint64_t Xxh64::value() const {
  uint64_t hash = kPrime5;
  if (total_bytes_ >= kStripeBytes) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merge_lane(hash, lane);
  }
  hash += total_bytes_;
  const char* cursor = buffer_.data();
  const char* const end = cursor + total_bytes_ % kStripeBytes;
  for (; end - cursor >= 8; cursor += 8) {
    hash = std::rotl(hash ^ mix_lane(0, load_word<uint64_t>(cursor)), 27) * kPrime1 + kPrime4;
  }
  if (end - cursor >= 4) {
    hash = std::rotl(hash ^ (load_word<uint32_t>(cursor) * kPrime1), 23) * kPrime2 + kPrime3;
    cursor += 4;
  }
  for (; cursor < end; ++cursor) {
    hash = std::rotl(hash ^ (static_cast<unsigned char>(*cursor) * kPrime5), 11) * kPrime1;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string Xxh64::to_hex() const {
  return fmt::format("{:016x}", value());
}

// The constants and shifts are those of the reference implementation,
// prng.di.unimi.it/splitmix64.c.
uint64_t RandomStream::next() {
  state_ += 0x9e3779b97f4a7c15U;
  uint64_t bits = state_;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31);
}

uint64_t RandomStream::uniform(uint64_t bound) {
  const uint64_t rejection_limit = (0 - bound) % bound;  // 2^64 mod bound
  uint64_t value = next();
  while (value < rejection_limit) value = next();
  return value % bound;
}

uint64_t derive_stream_seed(uint64_t seed, std::string_view stream, std::initializer_list<uint64_t> position) {
  uint64_t result = RandomStream(seed).next();
  for (const char c : stream) result = RandomStream(result ^ static_cast<unsigned char>(c)).next();
  for (const uint64_t number : position) result = RandomStream(result ^ number).next();
  return result;
}

std::vector<int64_t> make_random_permutation(int64_t count, uint64_t seed) {
  std::vector<int64_t> permutation(static_cast<size_t>(count));
  std::iota(permutation.begin(), permutation.end(), int64_t{0});
  RandomStream random(seed);
  for (size_t last = permutation.size(); last > 1; --last)
    std::swap(permutation[last - 1], permutation[random.uniform(last)]);
  return permutation;
}

}  // namespace vlmtrain
