#include "vlmtrain/base/random.h"

#include <numeric>
#include <utility>

namespace vlmtrain {

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
