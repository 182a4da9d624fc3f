#include "vlmtrain/nn/sharded_block.h"

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

using Kind = ShardedBlock::Kind;

/// The parts that so many processes hold of the same weights, and where they are brought together.
class Parts {
 public:
  Parts(int64_t count, const std::function<std::vector<ShardedBlock::Weight>()>& weights, at::ScalarType dtype) {
    for (int64_t rank = 0; rank < count; ++rank) {
      weights_.push_back(weights());
      blocks_.emplace_back(weights_.back(), at::TensorOptions(dtype), Shard{.rank = rank, .count = count});
    }
  }

  ShardedBlock& block(size_t rank) { return blocks_[rank]; }
  const at::Tensor& tensor(size_t rank, size_t i) const { return weights_[rank][i].tensor; }

  at::Tensor together() const {
    at::Tensor place = at::empty({blocks_.front().bytes()}, at::kByte);
    for (const Kind kind : {Kind::kTrained, Kind::kFrozen}) {
      std::vector<at::Tensor> parts;
      for (const auto& block : blocks_) parts.push_back(block.part(kind));
      if (blocks_.front().elements(kind) > 0) blocks_.front().whole(kind, place).copy_(at::cat(parts));
    }
    return place;
  }

 private:
  std::vector<std::vector<ShardedBlock::Weight>> weights_;
  std::vector<ShardedBlock> blocks_;
};

std::vector<ShardedBlock::Weight> three_weights() {
  return {{.kind = Kind::kTrained, .tensor = at::empty({7, 100}), .quantized = nullptr},
          {.kind = Kind::kFrozen, .tensor = at::empty({33}), .quantized = nullptr},
          {.kind = Kind::kTrained, .tensor = at::empty({5}), .quantized = nullptr}};
}

TEST(ShardedBlockTest, PartsTogetherAreTheWeights) {
  for (const int64_t count : {2, 3, 4}) {
    SCOPED_TRACE(count);
    Parts parts(count, three_weights, at::kFloat);
    const std::vector<at::Tensor> values{at::randn({7, 100}), at::randn({33}), at::randn({5})};
    std::vector<int64_t> held(values.size());
    for (size_t rank = 0; rank < static_cast<size_t>(count); ++rank) {
      for (size_t i = 0; i < values.size(); ++i) {
        parts.block(rank).set_values(i, values[i]);
        const Piece piece = parts.block(rank).piece(i);
        held[i] += piece.count;
        if (piece.count == 0) continue;
        EXPECT_TRUE(at::equal(parts.block(rank).own_piece(i), values[i].view(-1).narrow(0, piece.first, piece.count)));
      }
    }
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(held[i], values[i].numel()) << "each element is in one part";
    const at::Tensor place = parts.together();
    for (size_t rank = 0; rank < static_cast<size_t>(count); ++rank) {
      parts.block(rank).lend(place);
      for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(parts.tensor(rank, i), values[i]));
      parts.block(rank).release();
    }
  }
}

TEST(ShardedBlockTest, WhatIsNotThereCannotBeRead) {
  Parts parts(2, three_weights, at::kFloat);
  EXPECT_FALSE(parts.block(0).is_lent());
  EXPECT_EQ(parts.tensor(0, 0).sizes(), (std::vector<int64_t>{7, 100}));
  EXPECT_EQ(parts.tensor(0, 0).storage().data(), nullptr);
  const at::Tensor small = at::empty({parts.block(0).bytes() - 1}, at::kByte);
  EXPECT_THROW(parts.block(0).lend(small), InternalError);
}

/// A graph keeps views of weights; they are where the block is when they are read again.
TEST(ShardedBlockTest, ViewsFollowTheBlockToAnotherPlace) {
  Parts parts(2, three_weights, at::kFloat);
  for (size_t rank = 0; rank < 2; ++rank) {
    parts.block(rank).set_values(0, at::arange(700, at::kFloat).view({7, 100}));
  }
  const at::Tensor first = parts.together(), second = parts.together();
  parts.block(0).lend(first);
  const at::Tensor view = parts.tensor(0, 0).t();
  parts.block(0).release();
  first.zero_();
  parts.block(0).lend(second);
  EXPECT_EQ(view.const_data_ptr(), parts.tensor(0, 0).const_data_ptr());
  EXPECT_EQ(view[1][0].item<float>(), 1);
}

/// As rehearsals of the host have it, where nothing has values.
TEST(ShardedBlockTest, IsThereOnTheMetaDevice) {
  const auto options = at::TensorOptions(at::kFloat).device(at::kMeta);
  const at::Tensor trained = at::empty({7, 100}, options), frozen = at::empty({33}, options.dtype(at::kByte));
  ShardedBlock block({{.kind = Kind::kTrained, .tensor = trained, .quantized = nullptr},
                      {.kind = Kind::kFrozen, .tensor = frozen, .quantized = nullptr}},
                     options, {.rank = 1, .count = 2});
  EXPECT_EQ(trained.sizes(), (std::vector<int64_t>{7, 100}));
  block.lend(at::empty({block.bytes()}, options.dtype(at::kByte)));
  EXPECT_EQ(trained.t().sizes(), (std::vector<int64_t>{100, 7}));
  block.release();
}

TEST(ShardedBlockTest, OfSixteenBitsTakesHalfAndConverts) {
  const auto weights = [] {
    return std::vector<ShardedBlock::Weight>{
        {.kind = Kind::kTrained, .tensor = at::empty({512, 2}, at::kBFloat16), .quantized = nullptr}};
  };
  Parts parts(2, weights, at::kBFloat16);
  EXPECT_EQ(parts.block(0).bytes(), 2048);
  EXPECT_EQ(parts.block(0).part(Kind::kTrained).nbytes(), 1024U);
  EXPECT_EQ(parts.block(0).elements(Kind::kFrozen), 0);
  const at::Tensor values = at::randn({512, 2});
  for (size_t rank = 0; rank < 2; ++rank) parts.block(rank).set_values(0, values);
  const at::Tensor place = parts.together();
  parts.block(1).lend(place);
  EXPECT_TRUE(at::equal(parts.tensor(1, 0), values.to(at::kBFloat16)));
}

TEST(ShardedBlockTest, QuantisedWeightsGoAsTheyArePacked) {
  for (const Quantization quantization : {Quantization::kNf4, Quantization::kInt8}) {
    SCOPED_TRACE(name_of(quantization));
    const Quantizer quantizer(quantization, at::TensorOptions(at::kFloat));
    const at::Tensor values = at::randn({128, 256});
    const auto whole = quantizer.make({128, 256});
    whole->quantize(values);
    std::vector<std::shared_ptr<QuantizedWeight>> held;
    const auto weights = [&] {
      held.emplace_back(quantizer.make({128, 256}));
      return std::vector<ShardedBlock::Weight>{{.kind = Kind::kFrozen, .tensor = {}, .quantized = held.back()}};
    };
    Parts parts(3, weights, at::kFloat);
    for (size_t rank = 0; rank < 3; ++rank) parts.block(rank).set_values(0, values);
    EXPECT_LT(parts.block(0).bytes(), 128 * 256 * 2) << "less than in 16 bits";
    const at::Tensor place = parts.together();
    for (size_t rank = 0; rank < 3; ++rank) {
      parts.block(rank).lend(place);
      EXPECT_TRUE(at::equal(held[rank]->dequantize(), whole->dequantize()));
    }
  }
}

TEST(ShardedBlockTest, GroupsStillLieEndToEnd) {
  const Quantizer quantizer(Quantization::kNf4, at::TensorOptions(at::kFloat));
  const std::vector<at::Tensor> values{at::randn({192, 256}), at::randn({64, 256}), at::randn({70, 256})};
  std::vector<std::vector<std::shared_ptr<QuantizedWeight>>> held;
  const auto weights = [&] {
    held.push_back(quantizer.make_group({192, 64, 70}, 256));
    std::vector<ShardedBlock::Weight> all;
    for (const auto& weight : held.back()) {
      all.push_back({.kind = Kind::kFrozen, .tensor = {}, .quantized = weight});
      all.push_back({.kind = Kind::kFrozen, .tensor = at::empty({33}), .quantized = nullptr});
    }
    return all;
  };
  Parts parts(3, weights, at::kFloat);
  for (size_t rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < values.size(); ++i) parts.block(rank).set_values(2 * i, values[i]);
  }
  const at::Tensor place = parts.together();
  for (size_t rank = 0; rank < 3; ++rank) {
    parts.block(rank).lend(place);
    const auto found = dequantize_together({held[rank].begin(), held[rank].end()});
    ASSERT_EQ(found.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto alone = quantizer.make(values[i].sizes());
      alone->quantize(values[i]);
      EXPECT_TRUE(at::equal(found[i], alone->dequantize())) << i;
    }
  }
}

/// One that is left out of what shares an allocation is no place of its own.
TEST(ShardedBlockTest, APartOfAGroupTakesNoMoreThanItself) {
  const auto weights = [] {
    const at::Tensor all = at::empty({3, 4096});
    return std::vector<ShardedBlock::Weight>{{.kind = Kind::kFrozen, .tensor = all[0], .quantized = nullptr},
                                             {.kind = Kind::kFrozen, .tensor = all[2], .quantized = nullptr}};
  };
  Parts parts(2, weights, at::kFloat);
  EXPECT_EQ(parts.block(0).bytes(), 2 * 4096 * 4);
}

}  // namespace
}  // namespace vlmtrain::nn
