#pragma once

#include <cstdint>

// A bf16 weight that is its fp32 master rounded to nearest, together with the master's low 16 bits,
// has all of the master's information (Split-SGD-BF16; Kalamkar et al. 2019, arXiv 1905.12322, has
// the idea with truncation). Compiled for the host and by nvcc.

#ifdef __CUDACC__
#define VLMTRAIN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define VLMTRAIN_HOST_DEVICE constexpr
#endif

namespace vlmtrain::kernels {

/// The two halves of an fp32 number.
struct SplitMaster {
  uint16_t weight;   ///< bits of the nearest bf16 number, ties to even
  int16_t low_bits;  ///< low half of the fp32 number: how many ulps of fp32 it is from `weight`, away from zero
};

/// Returns the halves of the fp32 number with these bits. join_master() returns the number again, bit by
/// bit, except for ties that are rounded down, one number in 131,072: they move by one ulp of fp32
/// toward the weight. NaN stays NaN.
VLMTRAIN_HOST_DEVICE SplitMaster split_master(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f800000, kTie = 0x8000, kQuietBit = 0x40;
  const uint32_t high = bits >> 16, low = bits & 0xffff;
  if ((bits & 0x7fffffff) > kInfinity) return {static_cast<uint16_t>(high | kQuietBit), 0};
  const uint32_t is_rounded_up = low + (high & 1) > kTie ? 1 : 0;
  const uint32_t is_lower_tie = low == kTie && is_rounded_up == 0 ? 1 : 0;
  return {static_cast<uint16_t>(high + is_rounded_up), static_cast<int16_t>(low - is_lower_tie)};
}

/// Returns the bits of the fp32 number that split_master() has split.
VLMTRAIN_HOST_DEVICE uint32_t join_master(SplitMaster halves) {
  return (uint32_t{halves.weight} << 16) + static_cast<uint32_t>(int32_t{halves.low_bits});
}

}  // namespace vlmtrain::kernels
