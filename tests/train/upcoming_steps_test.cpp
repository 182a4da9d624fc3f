#include "train/upcoming_steps.h"

#include <gtest/gtest.h>

#include <set>

#include "data/fake_processor.h"
#include "planner/rehearsal.h"

namespace vlmtrain::train {
namespace {

TEST(UpcomingSteps, ASampleThatIsTakenOutIsReplacedByTheNextOfTheOrder) {
  constexpr int64_t kSamples = 11;
  const auto records = data::make_records(kSamples);
  const data::FakeProcessor processor;
  const TaskBalance tasks({}, data::Tasks(records));
  data::Ledger ledger("train.json", kSamples);
  data::Loader loader(records, processor,
                      {.global_batch_size = 4, .seed = 2, .on_bad_sample = data::BadSamplePolicy::kSkip}, {}, ledger);
  UpcomingSteps upcoming(loader, planner::micro_batches_of(2), tasks, /*twin=*/nullptr, 1, 8);
  std::vector<int64_t> drawn;
  int64_t lost = -1;
  for (int64_t number = 1; number <= 8; ++number) {
    UpcomingStep step = upcoming.next(0);
    EXPECT_EQ(step.step, number);
    if (number == 2) {
      lost = step.batch.samples[2].index;
      ledger.mark_dropped(lost, "s", "does not fit into memory", "is too large");
      upcoming.replace(step, 2);
    }
    ASSERT_EQ(step.batch.samples.size(), 4U) << "step " << number;
    EXPECT_EQ(step.batch.label_tokens, 4);
    EXPECT_EQ(step.foreseen.layout, step.planned);
    EXPECT_EQ(step.planned.micro_batches, (std::vector<int64_t>{2, 2}));
    for (const auto& sample : step.batch.samples) drawn.push_back(sample.index);
  }
  std::vector<int64_t> wanted;
  for (int64_t epoch = 0; wanted.size() < drawn.size(); ++epoch) {
    for (const int64_t index : data::epoch_order(kSamples, 2, epoch)) {
      if (index != lost) wanted.push_back(index);
    }
  }
  wanted.resize(drawn.size());
  EXPECT_EQ(drawn, wanted);
}

}  // namespace
}  // namespace vlmtrain::train
