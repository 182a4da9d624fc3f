#include "vlmtrain/engine/gradients/gradient_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "engine/gradients/vector_parameters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::engine {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int64_t kBucketLimit = 25 * 1024 * 1024 / 4;

bool is_matrix(const nn::Parameter& parameter) {
  return parameter.tensor.dim() == 2 && !parameter.is_embedding;
}

int64_t round_up_to_multiple(int64_t elements, int64_t multiple) {
  return (elements + multiple - 1) / multiple * multiple;
}

/// The parameters of a small transformer without values.
class LayoutStore {
 public:
  explicit LayoutStore(int64_t features, int num_blocks = 5) {
    const nn::ParameterScope scope(store_, nn::Component::kLanguageModel, "model");
    store_.add_embedding("embedding", nn::Component::kLanguageModel, {1000, features}, nn::InitialValues::zeros());
    for (int block = 0; block < num_blocks; ++block) {
      const auto block_scope = scope / fmt::format("{}", block);
      block_scope.add_parameter("norm", {features}, nn::InitialValues::ones());
      nn::MergedLinear(block_scope, {"q", "k", "v"}, features, {features, features / 2, features / 2}, /*bias=*/true);
      nn::Linear(block_scope / "o", features, features, /*bias=*/false);
      nn::MergedLinear(block_scope, {"gate", "up"}, features, {4 * features, 4 * features}, /*bias=*/false);
      nn::Linear(block_scope / "down", 4 * features, features, /*bias=*/false);
    }
    scope.add_parameter("norm", {features}, nn::InitialValues::ones());
  }

  const nn::ParameterStore& store() const { return store_; }
  const nn::Parameter& parameter(size_t i) const { return store_.all().at(i); }

  /// Returns the parameters that share the memory of the first one, for each such group of
  /// matrices.
  std::vector<std::vector<size_t>> find_matrix_groups() const {
    std::map<const void*, std::vector<size_t>> groups;
    for (size_t i = 0; i < store_.all().size(); ++i) {
      if (is_matrix(parameter(i))) groups[parameter(i).tensor.storage().unsafeGetStorageImpl()].push_back(i);
    }
    std::vector<std::vector<size_t>> lists;
    for (const auto& [storage, group] : groups) lists.push_back(group);
    return lists;
  }

 private:
  nn::ParameterStore store_{at::TensorOptions(at::kFloat).device(at::kMeta)};
};

/// Returns the padded elements of the undivided parameters of each part of a bucket.
std::vector<int64_t> count_part_elements(const GradientLayout& layout, size_t bucket) {
  std::vector<int64_t> elements(static_cast<size_t>(layout.shard().count), 0);
  for (const size_t i : layout.buckets()[bucket].parameter_indices) {
    elements.at(static_cast<size_t>(layout.offset(i) / layout.get_part_elements(bucket))) +=
        round_up_to_multiple(layout.elements(i), kShardAlignment);
  }
  return elements;
}

class GradientLayoutTest : public testing::TestWithParam<int64_t> {
 protected:
  int64_t ranks() const { return GetParam(); }
  GradientLayout make_layout(const LayoutStore& parameters, int64_t rank = 0) const {
    return GradientLayout(parameters.store(), {.rank = rank, .count = ranks()}, is_matrix);
  }
};

TEST_P(GradientLayoutTest, EachElementBelongsToOneRank) {
  const LayoutStore parameters(160);
  std::vector<int64_t> counts(parameters.store().all().size(), 0);
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    const GradientLayout layout = make_layout(parameters, rank);
    for (size_t i = 0; i < layout.size(); ++i) {
      const ElementRange range = layout.get_local_range(i);
      EXPECT_EQ(range.first, range.count == 0 ? 0 : counts[i]) << "pieces follow each other";
      counts[i] += range.count;
      const bool is_whole = range.count == 0 || range.count == layout.elements(i);
      EXPECT_TRUE(is_whole || !is_matrix(parameters.parameter(i))) << layout.name(i);
    }
  }
  const GradientLayout layout = make_layout(parameters);
  for (size_t i = 0; i < layout.size(); ++i) EXPECT_EQ(counts[i], layout.elements(i)) << layout.name(i);
}

TEST_P(GradientLayoutTest, ParametersOfABucketDoNotOverlap) {
  for (const int64_t features : {160, 1024}) {
    const LayoutStore parameters(features);
    const GradientLayout layout = make_layout(parameters);
    std::vector<int64_t> num_placements(layout.size(), 0);
    for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
      const auto& [elements, indices, block, is_on_host] = layout.buckets()[bucket];
      EXPECT_EQ(elements % (ranks() * (ranks() == 1 ? 128 : kShardAlignment)), 0);
      std::map<int64_t, size_t> by_offset;
      for (const size_t i : indices) {
        EXPECT_EQ(layout.bucket_index(i), bucket);
        EXPECT_TRUE(by_offset.emplace(layout.offset(i), i).second) << layout.name(i);
        ++num_placements[i];
      }
      int64_t end = 0;
      for (const auto& [offset, i] : by_offset) {
        EXPECT_GE(offset, end) << layout.name(i);
        end = offset + layout.elements(i);
      }
      EXPECT_LE(end, elements);
    }
    EXPECT_THAT(num_placements, Each(1));
  }
}

TEST_P(GradientLayoutTest, MergedWeightsAreAdjacentInOnePart) {
  const LayoutStore parameters(160);
  const GradientLayout layout = make_layout(parameters);
  for (const auto& group : parameters.find_matrix_groups()) {
    for (size_t member = 1; member < group.size(); ++member) {
      const size_t i = group[member], previous = group[member - 1];
      EXPECT_EQ(layout.bucket_index(i), layout.bucket_index(previous));
      EXPECT_EQ(layout.offset(i), layout.offset(previous) + layout.elements(previous)) << layout.name(i);
      EXPECT_EQ(layout.get_local_range(i).count > 0, layout.get_local_range(previous).count > 0);
    }
  }
}

TEST_P(GradientLayoutTest, PartsOfUndividedParametersAreBalanced) {
  if (ranks() == 1) GTEST_SKIP() << "all parameters share the buckets of one rank";
  for (const int64_t features : {160, 1024}) {
    const LayoutStore parameters(features);
    const GradientLayout layout = make_layout(parameters);
    std::vector<int64_t> largest_unit(layout.buckets().size(), 0);
    for (const auto& group : parameters.find_matrix_groups()) {
      const size_t bucket = layout.bucket_index(group.front());
      int64_t elements = 0;
      for (const size_t i : group) elements += round_up_to_multiple(layout.elements(i), kShardAlignment);
      largest_unit[bucket] = std::max(largest_unit[bucket], elements);
    }
    for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
      if (!is_matrix(parameters.parameter(layout.buckets()[bucket].parameter_indices.front()))) continue;
      const auto elements = count_part_elements(layout, bucket);
      const int64_t total = std::accumulate(elements.begin(), elements.end(), int64_t{0});
      EXPECT_EQ(std::ranges::max(elements), layout.get_part_elements(bucket)) << "padding of the largest part";
      EXPECT_LE(std::ranges::max(elements), total / ranks() + largest_unit[bucket]);
    }
  }
}

/// A layer has one matrix pair that is half of all its elements, so that buckets of one layer would
/// be nearly half empty.
TEST_P(GradientLayoutTest, BucketsOfLargeMatricesHaveLittlePadding) {
  const LayoutStore parameters(2048, /*num_blocks=*/32);
  const GradientLayout layout = make_layout(parameters);
  int64_t elements = 0, used_elements = 0;
  for (const auto& bucket : layout.buckets()) elements += bucket.elements;
  for (size_t i = 0; i < layout.size(); ++i) used_elements += layout.elements(i);
  // 10 % in each bucket but the last one, which takes what remains.
  EXPECT_LE(static_cast<double>(elements), 1.25 * static_cast<double>(used_elements));
}

TEST_P(GradientLayoutTest, RanksHaveNearlyEqualSharesAndTheFirstTheLargest) {
  for (const int64_t features : {160, 1024}) {
    const LayoutStore parameters(features);
    std::vector<int64_t> shares;
    int64_t largest_unit = 0;
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      const GradientLayout layout = make_layout(parameters, rank);
      int64_t share = 0;
      for (const auto& group : parameters.find_matrix_groups()) {
        int64_t elements = 0;
        for (const size_t i : group) {
          elements += layout.elements(i);
          share += layout.get_local_range(i).count;
        }
        largest_unit = std::max(largest_unit, elements);
      }
      shares.push_back(share);
    }
    EXPECT_EQ(shares.front(), std::ranges::max(shares));
    EXPECT_LE(shares.front() - std::ranges::min(shares), largest_unit);
  }
}

TEST_P(GradientLayoutTest, BucketsAreInOrderOfCompletion) {
  const LayoutStore parameters(1024, /*num_blocks=*/64);
  const GradientLayout layout = make_layout(parameters);
  ASSERT_GT(layout.buckets().size(), 2U);
  for (size_t bucket = 1; bucket < layout.buckets().size(); ++bucket) {
    EXPECT_LT(layout.buckets()[bucket].parameter_indices.back(), layout.buckets()[bucket - 1].parameter_indices.back());
  }
}

/// Parameters in backward order, one after the other, in buckets that are then divided evenly.
TEST_P(GradientLayoutTest, DivisibleParametersAreSequential) {
  for (const int64_t features : {160, 1024}) {
    const LayoutStore parameters(features);
    const int64_t alignment = ranks() == 1 ? 128 : kShardAlignment;
    std::vector<int64_t> elements;
    std::vector<std::pair<size_t, int64_t>> positions(parameters.store().all().size());  // bucket, offset
    std::vector<bool> is_done(positions.size(), false);
    for (size_t i = positions.size(); i-- > 0;) {
      if (is_done[i]) continue;
      std::vector<size_t> unit;
      int64_t unit_elements = 0;
      for (size_t other = 0; other <= i; ++other) {
        if (!parameters.parameter(other).tensor.is_alias_of(parameters.parameter(i).tensor)) continue;
        unit.push_back(other);
        unit_elements += round_up_to_multiple(parameters.parameter(other).tensor.numel(), alignment);
      }
      if (elements.empty() || elements.back() + unit_elements > kBucketLimit) elements.push_back(0);
      for (const size_t member : unit) {
        is_done[member] = true;
        positions[member] = {elements.size() - 1, elements.back()};
        elements.back() += round_up_to_multiple(parameters.parameter(member).tensor.numel(), alignment);
      }
    }
    for (int64_t& count : elements) count = round_up_to_multiple((count + ranks() - 1) / ranks(), alignment) * ranks();
    const Shard shard{.rank = 0, .count = ranks()};
    for (const auto& layout : {GradientLayout(parameters.store(), shard),
                               GradientLayout(parameters.store(), shard, [](const nn::Parameter&) { return false; })}) {
      EXPECT_EQ(layout.get_non_block_bucket_sizes(), elements);
      for (size_t i = 0; i < layout.size(); ++i)
        EXPECT_EQ(std::pair(layout.bucket_index(i), layout.offset(i)), positions[i]) << layout.name(i);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientLayoutTest, testing::Values(1, 2, 3, 5, 16));

TEST(GradientLayoutValues, OfThreeRanks) {
  const Vectors vectors({3, 7 * kMillion, 129, 4 * kMillion, 2 * kMillion});
  const GradientLayout layout(vectors.store(), {.rank = 2, .count = 3});
  EXPECT_THAT(layout.get_non_block_bucket_sizes(), ElementsAre(6'000'384, 7'000'320, 768));
  EXPECT_EQ(layout.offset(4), 0);
  EXPECT_EQ(layout.offset(3), 2'000'128);
  EXPECT_EQ(layout.offset(2), 6'000'128);
  EXPECT_EQ(layout.get_local_range(4).count, 0);
  EXPECT_EQ(layout.get_local_range(3).first, 2'000'128) << "parts have 2,000,128 elements";
  EXPECT_EQ(layout.get_local_range(3).count, 1'999'872);
  EXPECT_EQ(layout.get_local_range(2).count, 129);
  const GradientLayout undivided(vectors.store(), {}, [](const nn::Parameter&) { return true; });
  EXPECT_EQ(undivided.get_non_block_bucket_sizes(), GradientLayout(vectors.store()).get_non_block_bucket_sizes())
      << "one rank has all elements";
}

/// The A of adapters remain adjacent in the order of their memory, although each B comes between.
TEST(GradientLayoutValues, ParametersOfOneStorageAreInItsOrder) {
  constexpr int64_t kElements = 2 * kShardAlignment;
  nn::ParameterStore store(at::TensorOptions(at::kFloat));
  const at::Tensor storage = at::zeros({4, kElements});
  for (const int64_t position : {2, 0, 3, 1}) {  // A, B, A, B
    store.add(fmt::format("{}", position), nn::Component::kLanguageModel, {kElements}, nn::InitialValues::zeros(),
              /*is_adapter=*/true, storage.select(0, position).detach());
  }
  const GradientLayout layout(store);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(layout.offset(i), std::stoi(store.all()[i].name) * kElements);
}

TEST(GradientLayoutValues, ParametersOfShardedBlocksAreDivided) {
  const Shard shard{.rank = 0, .count = 2};
  nn::ParameterStore store(nn::ParameterSettings{.options = at::TensorOptions(at::kFloat), .shard = shard});
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  scope.add_parameter("norm", {8}, nn::InitialValues::ones());
  scope.add_parameter("weight", {32, 32}, nn::InitialValues::zeros());
  store.finish_block(1);
  const GradientLayout layout(store, shard);
  EXPECT_TRUE(layout.has_sharded_blocks());
  EXPECT_FALSE(layout.is_in_sharded_block(0));
  EXPECT_TRUE(layout.is_in_sharded_block(1));
  EXPECT_EQ(layout.get_local_range(1).count, 512);
  EXPECT_THAT(layout.get_non_block_bucket_sizes(), ElementsAre(512));
  EXPECT_THROW(GradientLayout(store, shard, is_matrix), InternalError);
  EXPECT_THROW(GradientLayout(store, {.rank = 2, .count = 2}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::engine
