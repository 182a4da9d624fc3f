#include "vlmtrain/kernels/dequantize.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

class DequantizeKernels : public EmulatedKernels {
 protected:
  void SetUp() override {
    EmulatedKernels::SetUp();
    at::manual_seed(1);
  }

  static at::Tensor bytes(int64_t count) { return at::randint(256, {count}, at::kByte); }

  static Nf4Blocks blocks(int64_t super_blocks, std::vector<int64_t> first_super_blocks) {
    const auto weights = std::ssize(first_super_blocks);
    return {.packed = bytes(super_blocks * kNf4SuperBlock / 2),
            .absmax = bytes(super_blocks * kNf4NestedBlock),
            .nested_absmax = at::rand({super_blocks}),
            .nested_offset = at::rand({weights}),
            .absmax_codes = at::randn({256}),
            .values = at::randn({16}),
            .first_super_blocks = std::move(first_super_blocks)};
  }
};

TEST_P(DequantizeKernels, Nf4IsAtensToTheBit) {
  for (const auto dtype : kTypes) {
    for (const auto& firsts : {std::vector<int64_t>{0}, {0, 1, 4}, {0, 1, 2, 3, 4}}) {
      const Nf4Blocks held = blocks(5, firsts);
      const at::Tensor made = at::empty({5 * kNf4SuperBlock}, dtype);
      nf4_dequantize(made, held);
      EXPECT_TRUE(at::equal(made, reference::nf4_dequantize(held, dtype))) << dtype;
    }
  }
}

TEST_P(DequantizeKernels, Int8IsAtensToTheBit) {
  for (const auto dtype : kTypes) {
    for (const int64_t columns : kOddColumns) {
      const at::Tensor values = at::randint(-127, 128, {3, columns}, at::kChar), absmax = at::rand({3});
      const at::Tensor made = at::empty({3, columns}, dtype);
      int8_dequantize(made, values, absmax, 1.0 / 127);
      EXPECT_TRUE(at::equal(made, reference::int8_dequantize(values, absmax, 1.0 / 127, dtype))) << dtype;
    }
  }
}

TEST_P(DequantizeKernels, CountBeyondThirtyTwoBits) {
  constexpr int64_t kSuperBlocks = (int64_t{1} << 31) / kNf4SuperBlock + 1;
  const Nf4Blocks one = blocks(1, {0});
  const auto behind = [](const at::Tensor& tail, int64_t count) {
    const at::Tensor whole = without_memory({count}, tail.scalar_type());
    whole.narrow(0, count - tail.numel(), tail.numel()).copy_(tail);
    return whole;
  };
  Nf4Blocks many = one;
  many.packed = behind(one.packed, kSuperBlocks * kNf4SuperBlock / 2);
  many.absmax = behind(one.absmax, kSuperBlocks * kNf4NestedBlock);
  many.nested_absmax = behind(one.nested_absmax, kSuperBlocks);
  const at::Tensor made = without_memory({kSuperBlocks * kNf4SuperBlock}, at::kBFloat16);
  settings().last_blocks = 8;
  nf4_dequantize(made, many);
  EXPECT_TRUE(at::equal(made.narrow(0, (kSuperBlocks - 1) * kNf4SuperBlock, kNf4SuperBlock),
                        reference::nf4_dequantize(one, at::kBFloat16)));

  constexpr int64_t kColumns = 4096, kRows = (int64_t{1} << 31) / kColumns + 2;
  const at::Tensor row = at::randint(-127, 128, {kColumns}, at::kChar), absmax = at::rand({1});
  const at::Tensor result = without_memory({kRows, kColumns}, at::kBFloat16);
  int8_dequantize(result, behind(row, kRows * kColumns).view({kRows, kColumns}), behind(absmax, kRows), 1.0 / 127);
  EXPECT_TRUE(at::equal(result.narrow(0, kRows - 1, 1),
                        reference::int8_dequantize(row.view({1, -1}), absmax, 1.0 / 127, at::kBFloat16)));
}

INSTANTIATE_TEST_SUITE_P(Orders, DequantizeKernels, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
