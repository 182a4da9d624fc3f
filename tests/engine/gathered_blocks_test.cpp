#include "vlmtrain/engine/gathered_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "vlmtrain/engine/training.h"

namespace vlmtrain::engine {
namespace {

using testing::Each;
using testing::Le;

/// The first of two processes, of which the other one has zeros in its parts. It notes how many blocks are there, or
/// on their way, whenever one more is asked for.
class NotedGathers : public Consensus {
 public:
  explicit NotedGathers(const nn::ParameterStore& store) : store_(store) {}

  std::vector<std::string> each(std::string own) const override {
    const std::string other = own == "-" ? own : other_.value_or(own);
    return {own, other};
  }
  GatherTicket gather_into(const at::Tensor& all, const at::Tensor& own) const override {
    all.zero_();
    all.narrow(0, 0, own.numel()).copy_(own);
    const auto lent =
        std::ranges::count_if(store_.blocks(), [](const auto& block) { return block.sharded->is_lent(); });
    lent_before.push_back(lent);
    there.push_back(lent + ++under_way_);
    return {};
  }
  void finish_gather(GatherTicket /*ticket*/) const override { --under_way_; }
  void add_up_parts(const at::Tensor& /*all*/) const override { ++sums_of_parts; }

  /// From now on the other one goes along with passes as if it needed these.
  void set_other(std::string words) { other_ = std::move(words); }
  void forget() { sums_of_parts = 0, lent_before.clear(), there.clear(); }

  mutable int64_t sums_of_parts = 0;
  mutable std::vector<int64_t> lent_before, there;  // at each gather; the latter with that

 private:
  const nn::ParameterStore& store_;
  std::optional<std::string> other_;
  mutable int64_t under_way_ = 0;
};

class GatheredBlocksTest : public testing::Test {
 protected:
  void train(std::vector<size_t> samples) {
    noted_.forget();
    std::vector<data::Sample> chosen;
    for (const size_t i : samples) chosen.push_back(samples_[i]);
    const CrossEntropy objective(TaskSettings{});
    const StepInput input = step_input(objective, chosen);
    Step step(training_, input, noted_);
    step.accumulate(SmallStep{.micro_batch_size = std::ssize(chosen)}.layout_of(*model_, chosen));
    training_.sums.drop();
  }

  int64_t vision_blocks() const {
    return std::ranges::count_if(model_->parameters().blocks(), [this](const nn::BlockPlace& block) {
      return model_->parameters().all()[block.first].component == nn::Component::kVisionTower;
    });
  }
  int64_t language_blocks() const { return std::ssize(model_->parameters().blocks()) - vision_blocks(); }
  int64_t gathers() const { return std::ssize(noted_.there); }

  std::vector<data::Sample> samples_ = batch_of_eight();
  std::unique_ptr<models::VisionLanguageModel> model_ = [] {
    const auto folder = parity::Case("mixed_batch").checkpoint();
    auto model =
        models::build_model(folder, at::kCPU, at::kFloat, {}, nn::Quantization::kNone, {.rank = 0, .count = 2});
    models::load_weights(*model, folder);
    return model;
  }();
  Training training_{*model_, AdamWSettings{}, 1, {.rank = 0, .count = 2}};
  NotedGathers noted_{model_->parameters()};

  void SetUp() override { training_.connect(noted_); }
};

constexpr size_t kWords = 0, kPicture = 2;

TEST_F(GatheredBlocksTest, TwoAtMostAreThereAndTheNextComesWhileOneRuns) {
  train({kPicture});
  EXPECT_THAT(noted_.there, Each(Le(2)));
  EXPECT_EQ(std::ranges::count(noted_.lent_before, 0), 1) << "none is there before the pass, one at each other gather";
  EXPECT_EQ(gathers(), 2 * (vision_blocks() + language_blocks()) - 1) << "the last one stays for the backward pass";
}

TEST_F(GatheredBlocksTest, APassOfWordsLeavesTheTowerOut) {
  train({kWords});
  EXPECT_EQ(gathers(), 2 * language_blocks() - 1);
}

TEST_F(GatheredBlocksTest, WhoHasNoPicturesGoesAlongWithWhoHas) {
  train({kPicture});
  const int64_t wanted = gathers(), sums = noted_.sums_of_parts;
  noted_.set_other("tb1");
  train({kWords});
  EXPECT_EQ(gathers(), wanted);
  EXPECT_EQ(noted_.sums_of_parts, sums);
  EXPECT_THAT(noted_.there, Each(Le(2)));
  noted_.set_other("tb2");
  train({kPicture});
  EXPECT_EQ(gathers(), wanted + 2 * vision_blocks()) << "the tower once more, forward and backward";
  EXPECT_EQ(noted_.sums_of_parts, sums) << "what both passes learn is added up once";
}

}  // namespace
}  // namespace vlmtrain::engine
