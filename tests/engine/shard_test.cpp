#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "engine/small_parameters.h"
#include "vlmtrain/engine/saved_pieces.h"
#include "vlmtrain/engine/shared_weights.h"

namespace vlmtrain::engine {
namespace {

/// Parts are equal and cover each element once, in whole blocks of 256 of its tensor.
TEST(ShardTest, EachElementBelongsToOneRank) {
  for (const int64_t ranks : {1, 2, 3, 5, 16}) {
    SCOPED_TRACE(ranks);
    std::map<size_t, int64_t> elements;
    std::vector<int64_t> buckets;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Parameters parameters(at::kFloat, /*large=*/true);
      const GradientSums sums(parameters.store(), 1, {.rank = rank, .count = ranks});
      for (size_t i = 0; i < sums.size(); ++i) {
        const Piece piece = sums.piece(i);
        EXPECT_EQ(piece.first, piece.count == 0 ? 0 : elements[i]) << "pieces follow each other";
        EXPECT_EQ(piece.first % kShardAlignment, 0);
        elements[i] += piece.count;
        EXPECT_LE(sums.place(i) + sums.elements(i), sums.bucket_elements()[sums.bucket(i)]);
      }
      for (const int64_t bucket : sums.bucket_elements()) EXPECT_EQ(bucket % ranks, 0);
      if (rank + 1 < ranks) continue;
      for (const auto& [i, count] : elements) EXPECT_EQ(count, sums.elements(i)) << i;
    }
  }
}

TEST(ShardTest, SharedWeightsAreViewsThatTheModelSees) {
  Parameters parameters, before;
  before.copy_from(parameters);
  const at::Tensor held = parameters.tensor("language.matrix");  // as a module holds it
  const GradientSums sums(parameters.store(), 1, {.rank = 1, .count = 2});
  const SharedWeights weights(parameters.store(), sums);
  for (const auto& parameter : parameters.store().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor, before.tensor(parameter.name))) << parameter.name;
    EXPECT_TRUE(parameter.tensor.requires_grad() && parameter.tensor.is_leaf());
  }
  parameters.tensor("language.matrix").detach().fill_(7);
  EXPECT_EQ(held.sum().item<double>(), 7.0 * static_cast<double>(held.numel()));
}

/// What is read first travels first, and is waited for alone.
class NotedGathers : public Consensus {
 public:
  engine::GatherTicket gather_parts(const at::Tensor& /*all*/) const override { return begun++; }
  void finish_gather(engine::GatherTicket ticket) const override { EXPECT_EQ(ticket, finished++); }

  mutable int64_t begun = 0, finished = 0;
};

TEST(ShardTest, ABlockWaitsForItsOwnWeights) {
  nn::ParameterStore store{at::TensorOptions(at::kFloat)};
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  constexpr int64_t kOfBucket = 25 * 1024 * 1024 / 4;  // so that each matrix is a bucket of its own
  for (const char* name : {"embedding", "first", "second", "output"}) {
    const size_t first = store.all().size();
    scope.parameter(name, {kOfBucket}, nn::InitialValues::zeros());
    if (std::string_view(name) == "first" || std::string_view(name) == "second") store.close_block(first);
  }
  for (const auto& parameter : store.all()) parameter.tensor.detach().zero_();
  const GradientSums sums(store, 1, {.rank = 0, .count = 2});
  SharedWeights weights(store, sums);
  const NotedGathers gathers;
  weights.gather(gathers);
  EXPECT_EQ(gathers.begun, 4);
  EXPECT_EQ(gathers.finished, 0) << "nothing is waited for yet";
  store.use_outside_of_blocks();
  EXPECT_EQ(gathers.finished, 2) << "embedding and output";
  store.use_block(1, 2);
  EXPECT_EQ(gathers.finished, 3);
  store.use_block(1, 2);
  EXPECT_EQ(gathers.finished, 3) << "it is there";
  store.use_block(2, 3);
  EXPECT_EQ(gathers.finished, 4);
  weights.gather(gathers);
  weights.finish();
  EXPECT_EQ(gathers.finished, 8);
}

TEST(SavedPiecesTest, NamesAreReadBack) {
  const auto piece = parse_piece_name(piece_name("first_moment.a.b", 512));
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->first, "first_moment.a.b");
  EXPECT_EQ(piece->second, 512);
  for (const char* other : {"", "a", "a@", "a@-1", "a@1x", "@"}) EXPECT_FALSE(parse_piece_name(other)) << other;
}

TEST(SavedPiecesTest, WhatIsAskedForIsJoined) {
  const at::Tensor all = at::arange(10, at::kFloat);
  const SavedPieces saved({{"m@0", all.narrow(0, 0, 4)}, {"m@4", all.narrow(0, 4, 6)}, {"w", all.view({2, 5})}});
  for (const char* name : {"m", "w"}) {
    EXPECT_TRUE(at::equal(*saved.find(name, 3, 4, 10, at::kFloat), all.narrow(0, 3, 4))) << name;
    EXPECT_TRUE(at::equal(*saved.find(name, 0, 10, 10, at::kFloat), all)) << name;
    EXPECT_FALSE(saved.find(name, 0, 10, 12, at::kFloat)) << name << ": of another size";
    EXPECT_FALSE(saved.find(name, 0, 10, 10, at::kByte)) << name << ": of another type";
  }
  int read = 0;
  const auto unread = [&](int64_t first, int64_t count) {
    return UnreadTensor{.dtype = at::kFloat, .shape = {count}, .read = [&read, all, first, count] {
                          ++read;
                          return all.narrow(0, first, count);
                        }};
  };
  const SavedPieces later(std::map<std::string, UnreadTensor>{{"m@0", unread(0, 4)}, {"m@4", unread(4, 6)}});
  EXPECT_TRUE(at::equal(*later.find("m", 5, 4, 10, at::kFloat), all.narrow(0, 5, 4)));
  EXPECT_EQ(read, 1) << "the piece that was asked for";
  EXPECT_EQ(saved.whole("m"), nullptr);
  EXPECT_NE(saved.whole("w"), nullptr);
  const SavedPieces with_a_gap({{"m@0", all.narrow(0, 0, 4)}, {"m@5", all.narrow(0, 5, 5)}});
  EXPECT_FALSE(with_a_gap.find("m", 0, 10, 10, at::kFloat));
  const SavedPieces without_the_last({{"m@0", all.narrow(0, 0, 4)}});
  EXPECT_FALSE(without_the_last.find("m", 0, 4, 10, at::kFloat));
}

}  // namespace
}  // namespace vlmtrain::engine
