#include "vlmtrain/nn/weights/sharded_block.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {
namespace {

using SectionKind = ShardedBlock::SectionKind;

/// The shards of the same weights on several ranks.
class BlockShards {
 public:
  BlockShards(int64_t count, const std::function<std::vector<ShardedBlock::Weight>()>& weights, at::ScalarType dtype) {
    for (int64_t rank = 0; rank < count; ++rank) {
      weights_.push_back(weights());
      blocks_.emplace_back(weights_.back(), at::TensorOptions(dtype), Shard{.rank = rank, .count = count});
    }
  }

  ShardedBlock& block(size_t rank) { return blocks_[rank]; }
  const at::Tensor& tensor(size_t rank, size_t i) const { return weights_[rank][i].tensor; }

  at::Tensor all_gather() const {
    at::Tensor buffer = at::empty({blocks_.front().bytes()}, at::kByte);
    for (const SectionKind kind : {SectionKind::kTrained, SectionKind::kFrozen}) {
      std::vector<at::Tensor> section_shards;
      for (const auto& block : blocks_) section_shards.push_back(block.local_shard(kind));
      if (blocks_.front().elements(kind) > 0) blocks_.front().view_section(kind, buffer).copy_(at::cat(section_shards));
    }
    return buffer;
  }

 private:
  std::vector<std::vector<ShardedBlock::Weight>> weights_;
  std::vector<ShardedBlock> blocks_;
};

std::vector<ShardedBlock::Weight> make_three_weights() {
  return {{.kind = SectionKind::kTrained, .tensor = at::empty({7, 100}), .quantized_weight = nullptr},
          {.kind = SectionKind::kFrozen, .tensor = at::empty({33}), .quantized_weight = nullptr},
          {.kind = SectionKind::kTrained, .tensor = at::empty({5}), .quantized_weight = nullptr}};
}

TEST(ShardedBlockTest, ShardsTogetherAreTheWeights) {
  for (const int64_t count : {2, 3, 4}) {
    SCOPED_TRACE(count);
    BlockShards shards(count, make_three_weights, at::kFloat);
    const std::vector<at::Tensor> values{at::randn({7, 100}), at::randn({33}), at::randn({5})};
    std::vector<int64_t> element_counts(values.size());
    for (size_t rank = 0; rank < static_cast<size_t>(count); ++rank) {
      for (size_t i = 0; i < values.size(); ++i) {
        shards.block(rank).set_values(i, values[i]);
        const ElementRange local_range = shards.block(rank).local_range(i);
        element_counts[i] += local_range.count;
        if (local_range.count == 0) continue;
        EXPECT_TRUE(at::equal(shards.block(rank).view_local_values(i),
                              values[i].view(-1).narrow(0, local_range.first, local_range.count)));
      }
    }
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(element_counts[i], values[i].numel()) << "each element is in one part";
    const at::Tensor buffer = shards.all_gather();
    for (size_t rank = 0; rank < static_cast<size_t>(count); ++rank) {
      shards.block(rank).unshard(buffer);
      for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(shards.tensor(rank, i), values[i]));
      shards.block(rank).reshard();
    }
  }
}

TEST(ShardedBlockTest, ReshardedBlockCannotBeRead) {
  BlockShards shards(2, make_three_weights, at::kFloat);
  EXPECT_FALSE(shards.block(0).is_unsharded());
  EXPECT_EQ(shards.tensor(0, 0).sizes(), (std::vector<int64_t>{7, 100}));
  EXPECT_EQ(shards.tensor(0, 0).storage().data(), nullptr);
  const at::Tensor small = at::empty({shards.block(0).bytes() - 1}, at::kByte);
  EXPECT_THROW(shards.block(0).unshard(small), InternalError);
}

/// A graph saves views of weights, which must follow the block to its next buffer.
TEST(ShardedBlockTest, ViewsFollowTheBlockToAnotherBuffer) {
  BlockShards shards(2, make_three_weights, at::kFloat);
  for (size_t rank = 0; rank < 2; ++rank) {
    shards.block(rank).set_values(0, at::arange(700, at::kFloat).view({7, 100}));
  }
  const at::Tensor first = shards.all_gather(), second = shards.all_gather();
  shards.block(0).unshard(first);
  const at::Tensor view = shards.tensor(0, 0).t();
  shards.block(0).reshard();
  first.zero_();
  shards.block(0).unshard(second);
  EXPECT_EQ(view.const_data_ptr(), shards.tensor(0, 0).const_data_ptr());
  EXPECT_EQ(view[1][0].item<float>(), 1);
}

/// Host dry runs take place on the meta device.
TEST(ShardedBlockTest, WorksOnTheMetaDevice) {
  const auto options = at::TensorOptions(at::kFloat).device(at::kMeta);
  const at::Tensor trained = at::empty({7, 100}, options), frozen = at::empty({33}, options.dtype(at::kByte));
  ShardedBlock block({{.kind = SectionKind::kTrained, .tensor = trained, .quantized_weight = nullptr},
                      {.kind = SectionKind::kFrozen, .tensor = frozen, .quantized_weight = nullptr}},
                     options, {.rank = 1, .count = 2});
  EXPECT_EQ(trained.sizes(), (std::vector<int64_t>{7, 100}));
  block.unshard(at::empty({block.bytes()}, options.dtype(at::kByte)));
  EXPECT_EQ(trained.t().sizes(), (std::vector<int64_t>{100, 7}));
  block.reshard();
}

TEST(ShardedBlockTest, Bf16TakesHalfTheMemory) {
  const auto weights = [] {
    return std::vector<ShardedBlock::Weight>{
        {.kind = SectionKind::kTrained, .tensor = at::empty({512, 2}, at::kBFloat16), .quantized_weight = nullptr}};
  };
  BlockShards shards(2, weights, at::kBFloat16);
  EXPECT_EQ(shards.block(0).bytes(), 2048);
  EXPECT_EQ(shards.block(0).local_shard(SectionKind::kTrained).nbytes(), 1024U);
  EXPECT_EQ(shards.block(0).elements(SectionKind::kFrozen), 0);
  const at::Tensor values = at::randn({512, 2});
  for (size_t rank = 0; rank < 2; ++rank) shards.block(rank).set_values(0, values);
  const at::Tensor buffer = shards.all_gather();
  shards.block(1).unshard(buffer);
  EXPECT_TRUE(at::equal(shards.tensor(1, 0), values.to(at::kBFloat16)));
}

TEST(ShardedBlockTest, QuantizedWeightsStayPacked) {
  for (const Quantization quantization : {Quantization::kNf4, Quantization::kInt8}) {
    SCOPED_TRACE(to_string(quantization));
    const Quantizer quantizer(quantization, at::TensorOptions(at::kFloat));
    const at::Tensor values = at::randn({128, 256});
    const auto full_weight = quantizer.make_weight({128, 256});
    full_weight->quantize(values);
    std::vector<std::shared_ptr<QuantizedWeight>> weights_of_ranks;
    const auto weights = [&] {
      weights_of_ranks.emplace_back(quantizer.make_weight({128, 256}));
      return std::vector<ShardedBlock::Weight>{
          {.kind = SectionKind::kFrozen, .tensor = {}, .quantized_weight = weights_of_ranks.back()}};
    };
    BlockShards shards(3, weights, at::kFloat);
    for (size_t rank = 0; rank < 3; ++rank) shards.block(rank).set_values(0, values);
    EXPECT_LT(shards.block(0).bytes(), 128 * 256 * 2) << "less than in 16 bits";
    const at::Tensor buffer = shards.all_gather();
    for (size_t rank = 0; rank < 3; ++rank) {
      shards.block(rank).unshard(buffer);
      EXPECT_TRUE(at::equal(weights_of_ranks[rank]->dequantize(), full_weight->dequantize()));
    }
  }
}

TEST(ShardedBlockTest, GroupsRemainAdjacent) {
  const Quantizer quantizer(Quantization::kNf4, at::TensorOptions(at::kFloat));
  const std::vector<at::Tensor> values{at::randn({192, 256}), at::randn({64, 256}), at::randn({70, 256})};
  std::vector<std::vector<std::shared_ptr<QuantizedWeight>>> weights_of_ranks;
  const auto weights = [&] {
    weights_of_ranks.push_back(quantizer.make_weight_group({192, 64, 70}, 256));
    std::vector<ShardedBlock::Weight> all;
    for (const auto& weight : weights_of_ranks.back()) {
      all.push_back({.kind = SectionKind::kFrozen, .tensor = {}, .quantized_weight = weight});
      all.push_back({.kind = SectionKind::kFrozen, .tensor = at::empty({33}), .quantized_weight = nullptr});
    }
    return all;
  };
  BlockShards shards(3, weights, at::kFloat);
  for (size_t rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < values.size(); ++i) shards.block(rank).set_values(2 * i, values[i]);
  }
  const at::Tensor buffer = shards.all_gather();
  for (size_t rank = 0; rank < 3; ++rank) {
    shards.block(rank).unshard(buffer);
    const auto actual = dequantize_group({weights_of_ranks[rank].begin(), weights_of_ranks[rank].end()});
    ASSERT_EQ(actual.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto single_weight = quantizer.make_weight(values[i].sizes());
      single_weight->quantize(values[i]);
      EXPECT_TRUE(at::equal(actual[i], single_weight->dequantize())) << i;
    }
  }
}

/// A weight missing from its allocation takes no memory of the block.
TEST(ShardedBlockTest, PartialGroupTakesNoExtraMemory) {
  const auto weights = [] {
    const at::Tensor all = at::empty({3, 4096});
    return std::vector<ShardedBlock::Weight>{
        {.kind = SectionKind::kFrozen, .tensor = all[0], .quantized_weight = nullptr},
        {.kind = SectionKind::kFrozen, .tensor = all[2], .quantized_weight = nullptr}};
  };
  BlockShards shards(2, weights, at::kFloat);
  EXPECT_EQ(shards.block(0).bytes(), 2 * 4096 * 4);
}

}  // namespace
}  // namespace vlmtrain::nn
