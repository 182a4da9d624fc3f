#pragma once

#include "kernels/cuda/device.h"

namespace vlmtrain::kernels {

/// 128 random bits, a function of a key and a counter (Philox4x32-10; Salmon et al. 2011, "Parallel
/// Random Numbers: As Easy as 1, 2, 3").
struct RandomBits {
  uint32_t words[4];

  /// Returns one of eight 16-bit numbers.
  __device__ __forceinline__ uint32_t half(int index) const { return words[index / 2] >> (index % 2 * 16) & 0xffffU; }
};

/// Computes Philox4x32-10. The constants are those of the paper.
__device__ __forceinline__ RandomBits philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplierA = 0xD2511F53, kMultiplierB = 0xCD9E8D57;
  constexpr uint32_t kWeylA = 0x9E3779B9, kWeylB = 0xBB67AE85;
  auto key_a = static_cast<uint32_t>(key), key_b = static_cast<uint32_t>(key >> 32);
  RandomBits x{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplierA * x.words[0], b = kMultiplierB * x.words[2];
    x = {{static_cast<uint32_t>(b >> 32) ^ x.words[1] ^ key_a, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ x.words[3] ^ key_b, static_cast<uint32_t>(a)}};
    key_a += kWeylA;
    key_b += kWeylB;
  }
  return x;
}

}  // namespace vlmtrain::kernels
