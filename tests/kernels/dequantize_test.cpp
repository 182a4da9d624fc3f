#include "vlmtrain/kernels/dequantize.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"

namespace vlmtrain::kernels {
namespace {

class DequantizeKernels : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static at::Tensor random_bytes(int64_t count) { return at::randint(256, {count}, at::kByte); }

  static Nf4Weights make_blocks(int64_t super_blocks, std::vector<int64_t> first_super_blocks) {
    const auto weights = std::ssize(first_super_blocks);
    return {.packed_indices = random_bytes(super_blocks * kNf4SuperBlockSize / 2),
            .absmax = random_bytes(super_blocks * kNf4NestedBlockSize),
            .nested_absmax = at::rand({super_blocks}),
            .nested_offset = at::rand({weights}),
            .absmax_codebook = at::randn({256}),
            .values = at::randn({16}),
            .first_super_blocks = std::move(first_super_blocks)};
  }
};

TEST_P(DequantizeKernels, Nf4MatchesAtenBitExactly) {
  for (const auto dtype : kTypes) {
    for (const auto& first_super_blocks : {std::vector<int64_t>{0}, {0, 1, 4}, {0, 1, 2, 3, 4}}) {
      const Nf4Weights weights = make_blocks(5, first_super_blocks);
      const at::Tensor actual = at::empty({5 * kNf4SuperBlockSize}, dtype);
      nf4_dequantize(actual, weights);
      EXPECT_TRUE(at::equal(actual, reference::nf4_dequantize(weights, dtype))) << dtype;
    }
  }
}

TEST_P(DequantizeKernels, Int8MatchesAtenBitExactly) {
  for (const auto dtype : kTypes) {
    for (const int64_t columns : kOddColumns) {
      const at::Tensor values = at::randint(-127, 128, {3, columns}, at::kChar), absmax = at::rand({3});
      const at::Tensor actual = at::empty({3, columns}, dtype);
      int8_dequantize(actual, values, absmax, 1.0 / 127);
      EXPECT_TRUE(at::equal(actual, reference::int8_dequantize(values, absmax, 1.0 / 127, dtype))) << dtype;
    }
  }
}

TEST_P(DequantizeKernels, HandleIndicesBeyond32Bits) {
  constexpr int64_t kSuperBlocks = (int64_t{1} << 31) / kNf4SuperBlockSize + 1;
  const Nf4Weights small = make_blocks(1, {0});
  const auto embed_at_end = [](const at::Tensor& tail, int64_t count) {
    const at::Tensor padded = reserve_tensor({count}, tail.scalar_type());
    padded.narrow(0, count - tail.numel(), tail.numel()).copy_(tail);
    return padded;
  };
  Nf4Weights large = small;
  large.packed_indices = embed_at_end(small.packed_indices, kSuperBlocks * kNf4SuperBlockSize / 2);
  large.absmax = embed_at_end(small.absmax, kSuperBlocks * kNf4NestedBlockSize);
  large.nested_absmax = embed_at_end(small.nested_absmax, kSuperBlocks);
  const at::Tensor actual = reserve_tensor({kSuperBlocks * kNf4SuperBlockSize}, at::kBFloat16);
  settings().max_trailing_blocks = 8;
  nf4_dequantize(actual, large);
  EXPECT_TRUE(at::equal(actual.narrow(0, (kSuperBlocks - 1) * kNf4SuperBlockSize, kNf4SuperBlockSize),
                        reference::nf4_dequantize(small, at::kBFloat16)));

  constexpr int64_t kColumns = 4096, kRows = (int64_t{1} << 31) / kColumns + 2;
  const at::Tensor row = at::randint(-127, 128, {kColumns}, at::kChar), absmax = at::rand({1});
  const at::Tensor result = reserve_tensor({kRows, kColumns}, at::kBFloat16);
  int8_dequantize(result, embed_at_end(row, kRows * kColumns).view({kRows, kColumns}), embed_at_end(absmax, kRows),
                  1.0 / 127);
  EXPECT_TRUE(at::equal(result.narrow(0, kRows - 1, 1),
                        reference::int8_dequantize(row.view({1, -1}), absmax, 1.0 / 127, at::kBFloat16)));
}

INSTANTIATE_TEST_SUITE_P(Orders, DequantizeKernels, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
