#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "distributed/trained_ranks.h"

namespace vlmtrain::distributed {
namespace {

using engine::AdamWSettings;

class SharedStates : public testing::TestWithParam<How> {};

TEST_P(SharedStates, TrainAsWholeOnesDo) {
  const Trained alone = train(1, kWhole, GetParam(), 3);
  for (const int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const Trained whole = train(ranks, kWhole, GetParam(), 3), shared = train(ranks, kSharedStates, GetParam(), 3);
    expect_same(shared, whole, GetParam().tolerance);
    expect_same(shared, alone, GetParam().tolerance);
  }
}

TEST_P(SharedStates, GoOnInAnotherNumberOfRanks) {
  const Trained undisturbed = train(2, kSharedStates, GetParam(), 4), begun = train(3, kSharedStates, GetParam(), 2);
  for (const int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    Trained on = train(ranks, ranks > 1 ? kSharedStates : kWhole, GetParam(), 2, begun);
    on.losses.insert(on.losses.begin(), begun.losses.begin(), begun.losses.end());
    on.norms.insert(on.norms.begin(), begun.norms.begin(), begun.norms.end());
    expect_same(on, undisturbed, GetParam().tolerance);
  }
  const Trained again = train(3, kSharedStates, GetParam(), 2);
  EXPECT_EQ(again.losses, begun.losses) << "to the bit";
  for (const auto& [name, tensor] : begun.state) EXPECT_TRUE(at::equal(tensor, again.state.at(name))) << name;
}

AdamWSettings with_states(engine::OptimizerStates states) {
  AdamWSettings settings = kTestSettings;
  settings.states = states;
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Of, SharedStates,
                         testing::Values(How{.name = "Fp32"},
                                         // Products of 16 bits differ by the shapes in which they are made.
                                         How{.name = "Bf16", .dtype = at::kBFloat16, .tolerance = 3e-2},
                                         How{.name = "EightBits",
                                             .settings = with_states(engine::OptimizerStates::k8Bit),
                                             .tolerance = 1e-4}),
                         [](const auto& instance) { return instance.param.name; });

/// Two ranks add up in one order only, and without clipping nothing else depends on how sums are stored.
TEST(SharedStatesTest, OfTwoRanksAreThoseOfWholeOnesToTheBit) {
  How how{.name = "unclipped"};
  how.settings.max_grad_norm = 0;
  const Trained whole = train(2, kWhole, how, 3), shared = train(2, kSharedStates, how, 3);
  EXPECT_EQ(shared.losses, whole.losses);
  for (const auto& [name, weight] : whole.weights) EXPECT_TRUE(at::equal(shared.weights.at(name), weight)) << name;
  const engine::SavedPieces pieces(shared.state);
  for (const auto& [name, tensor] : whole.state) {
    const auto joined = pieces.find(name, 0, tensor.numel(), tensor.numel(), tensor.scalar_type());
    ASSERT_TRUE(joined) << name;
    EXPECT_TRUE(at::equal(*joined, tensor.view(-1))) << name;
  }
}

TEST(SharedStatesTest, BytesAndCallsAreThoseOfTheWeights) {
  as_ranks(2, [](const Launch& launch) {
    Ranks ranks(launch);
    const RankConsensus consensus(ranks.collectives());
    const at::Tensor values = at::arange(8, at::kFloat) * static_cast<double>(launch.rank + 1);
    consensus.add_up_parts(values);
    consensus.finish();
    const at::Tensor summed = at::arange(8, at::kFloat) * 3;
    EXPECT_TRUE(at::equal(values.narrow(0, 4 * launch.rank, 4), summed.narrow(0, 4 * launch.rank, 4)));
    consensus.finish_gather(consensus.gather_parts(values));
    EXPECT_TRUE(at::equal(values, summed));
    EXPECT_EQ(ranks.collectives().summed().calls, 0);
    EXPECT_EQ(ranks.collectives().summed_in_parts().bytes, 32);
    EXPECT_EQ(ranks.collectives().gathered().bytes, 32);
    EXPECT_EQ(ranks.collectives().gathered().calls, 1);
  });
}

}  // namespace
}  // namespace vlmtrain::distributed
