#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

io::InMemoryRecords make_task_records(const std::vector<std::string>& tasks) {
  std::vector<io::Record> records;
  for (const auto& task : tasks) {
    io::Record record;
    record.task = task;
    records.push_back(std::move(record));
  }
  return io::InMemoryRecords(std::move(records));
}

std::vector<Sample> make_samples(const std::vector<std::string>& tasks) {
  std::vector<Sample> samples;
  for (const auto& task : tasks) {
    Sample sample;
    sample.index = std::ssize(samples);
    sample.task = task;
    sample.token_ids = {1, 2, 3};
    sample.label_mask = {0, 1, static_cast<char>(samples.size() % 2)};
    samples.push_back(std::move(sample));
  }
  return samples;
}

TEST(Tasks, ListsNamesInOrderWithCounts) {
  auto records = make_task_records({"vqa", "caption", "vqa", "", "vqa", "broken"});
  records[5].problem = "it has no turns";
  const TaskTable tasks(records);
  EXPECT_THAT(tasks.names(), ElementsAre("caption", "none", "vqa"));
  EXPECT_THAT(tasks.sample_counts(), ElementsAre(1, 1, 3));
  EXPECT_EQ(tasks.num_tasks(), 3);
  EXPECT_EQ(tasks.find_task_index("vqa"), 2);
  EXPECT_EQ(tasks.find_task_index(""), 1);
  EXPECT_THROW(tasks.find_task_index("broken"), InternalError);
}

TEST(Tasks, RecordsWithoutTaskAreOneTask) {
  EXPECT_THAT(TaskTable(make_task_records({"", ""})).names(), ElementsAre("none"));
}

TEST(Tasks, MicroBatchHasTheTaskOfEachLabelOnRequest) {
  auto samples = make_samples({"b", "a", "b"});
  TaskTable(make_task_records({"a", "b"})).assign_task_indices(samples);
  EXPECT_FALSE(collate(samples).label_task_indices.defined());
  const auto batch = collate(samples, /*with_tasks=*/true).to(at::kCPU);
  const auto* const tasks = batch.label_task_indices.const_data_ptr<int64_t>();
  EXPECT_THAT(std::vector(tasks, tasks + batch.label_tokens()), ElementsAre(1, 0, 0, 1));
}

}  // namespace
}  // namespace vlmtrain::data
