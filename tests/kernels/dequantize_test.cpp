#include "vlmtrain/kernels/dequantize.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {
namespace {

class DequantizeKernels : public EmulatedKernelTest {
 protected:
  void SetUp() override {
    EmulatedKernelTest::SetUp();
    at::manual_seed(1);
  }

  static at::Tensor random_bytes(int64_t count) { return at::randint(256, {count}, at::kByte); }

  static Nf4Weights make_blocks(int64_t super_blocks, int64_t columns, std::vector<Nf4Weights::Weight> weights) {
    return {.packed_indices = random_bytes(super_blocks * kNf4SuperBlockSize / 2),
            .absmax = random_bytes(super_blocks * kNf4NestedBlockSize),
            .nested_absmax = at::rand({super_blocks}),
            .nested_offset = at::rand({std::ssize(weights)}),
            .absmax_codebook = at::randn({256}),
            .values = at::randn({16}),
            .columns = columns,
            .weights = std::move(weights)};
  }
};

TEST_P(DequantizeKernels, Nf4MatchesAtenBitExactly) {
  for (const auto dtype : kTypes) {
    for (const int64_t columns : {128, 124, 121}) {  // packs of 16 bytes, of 8 bytes, and single values
      const int64_t full_rows = kNf4SuperBlockSize / columns;
      for (const auto& places : {std::vector<Nf4Weights::Weight>{{0, 0, 5 * full_rows}},
                                 {{0, 0, full_rows}, {1, full_rows, 3 * full_rows}, {4, 4 * full_rows, full_rows}},
                                 {{0, 2, 1}, {1, 5, full_rows - 1}, {2, full_rows + 4, 7}, {3, 300, 1}, {4, 303, 2}}}) {
        const Nf4Weights weights = make_blocks(5, columns, places);
        for (const int64_t padding : {0, 8, 3}) {
          const at::Tensor actual = at::randn({5 * full_rows, columns + padding}).to(dtype), expected = actual.clone();
          nf4_dequantize(actual, weights);
          reference::nf4_dequantize(expected, weights);
          EXPECT_TRUE(at::equal(actual, expected)) << dtype << " " << columns << " + " << padding;
        }
      }
    }
  }
}

TEST_P(DequantizeKernels, Int8MatchesAtenBitExactly) {
  for (const auto dtype : kTypes) {
    for (const int64_t columns : kOddColumns) {
      const at::Tensor values = at::randint(-127, 128, {3, columns}, at::kChar), absmax = at::rand({3});
      const at::Tensor expected = reference::int8_dequantize(values, absmax, 1.0 / 127, dtype);
      for (const int64_t padding : {0, 16, 3}) {
        // The last column of the tensor is not part of the result.
        const at::Tensor all = at::ones({3, columns + padding + 1}, dtype);
        const at::Tensor actual = all.narrow(1, 0, columns + padding);
        int8_dequantize(actual, values, absmax, 1.0 / 127);
        EXPECT_TRUE(at::equal(actual, at::constant_pad_nd(expected, {0, padding})))
            << dtype << " " << columns << " + " << padding;
        EXPECT_TRUE(at::equal(all.select(1, columns + padding), at::ones({3}, dtype)));
      }
    }
  }
}

TEST_P(DequantizeKernels, HandleIndicesBeyond32Bits) {
  constexpr int64_t kSuperBlocks = (int64_t{1} << 31) / kNf4SuperBlockSize + 1;
  constexpr int64_t kColumns = 4096, kSuperBlockRows = kNf4SuperBlockSize / kColumns;
  const Nf4Weights small = make_blocks(1, kColumns, {{0, 0, kSuperBlockRows}});
  const auto embed_at_end = [](const at::Tensor& tail, int64_t count) {
    const at::Tensor padded = reserve_tensor({count}, tail.scalar_type());
    padded.narrow(0, count - tail.numel(), tail.numel()).copy_(tail);
    return padded;
  };
  Nf4Weights large = small;
  large.packed_indices = embed_at_end(small.packed_indices, kSuperBlocks * kNf4SuperBlockSize / 2);
  large.absmax = embed_at_end(small.absmax, kSuperBlocks * kNf4NestedBlockSize);
  large.nested_absmax = embed_at_end(small.nested_absmax, kSuperBlocks);
  large.nested_offset = at::cat({at::rand({1}), small.nested_offset});
  large.weights = {{0, 0, (kSuperBlocks - 2) * kSuperBlockRows},
                   {kSuperBlocks - 1, (kSuperBlocks - 1) * kSuperBlockRows, kSuperBlockRows}};
  const at::Tensor actual = reserve_tensor({kSuperBlocks * kSuperBlockRows, kColumns}, at::kBFloat16);
  settings().max_trailing_blocks = 8;
  nf4_dequantize(actual, large);
  const at::Tensor expected = at::empty({kSuperBlockRows, kColumns}, at::kBFloat16);
  reference::nf4_dequantize(expected, small);
  EXPECT_TRUE(at::equal(actual.narrow(0, (kSuperBlocks - 1) * kSuperBlockRows, kSuperBlockRows), expected));
  Nf4Weights too_large = large;
  too_large.weights = {{0, 0, kSuperBlocks * kSuperBlockRows}};
  EXPECT_THROW(nf4_dequantize(actual, too_large), InternalError);

  constexpr int64_t kRows = (int64_t{1} << 31) / kColumns + 2;
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
