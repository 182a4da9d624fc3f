#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "distributed/thread_ranks.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "parity/distinct_samples.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Faults of vision-language models reported by users of other trainers, tested for each family.
/// docs/explanation/guarantees.md lists the other tests that stem from such reports.
class ReportedFaults : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!preset_.takes_media()) GTEST_SKIP() << "the family has no vision tower";
  }

  /// Returns the error message; empty without an error.
  std::string get_error(const io::Record& record) const {
    try {
      data::make_sample(*processor_, record, 0);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    return "";
  }

  const io::Record& record(const std::string& id) const { return *std::ranges::find(records_, id, &io::Record::id); }

  const TinyPreset preset_{GetParam()};
  const std::unique_ptr<models::Processor> processor_ = models::load_processor(preset_.checkpoint(), {});
  const std::vector<io::Record> records_ = preset_.records();
};

/// Report: "Image features and image tokens do not match", here placeholders and images.
TEST_P(ReportedFaults, WrongNumberOfMarksNamesTheSample) {
  auto json = io::read_json(preset_.checkpoint().parent_path() / "records.json");
  const auto record_entry = std::ranges::find_if(json, [](const auto& entry) { return entry.at("id") == "several"; });
  ASSERT_NE(record_entry, json.end());
  const std::vector<std::pair<std::string, std::string>> cases{
      {"<image>\n", "1 <image> placeholder for 2 "},  // images or volumes
      {"<image>\n<image>\n<image>\n", "3 <image> placeholders for 2 "}};
  for (const auto& [placeholders, problem] : cases) {
    (*record_entry)["conversations"][0]["value"] = placeholders + "Compare them.";
    EXPECT_THAT(get_error(preset_.read({*record_entry}).front()), AllOf(HasSubstr("several"), HasSubstr(problem)));
  }
}

/// The same report, caused by an image token that a user wrote in the conversation.
TEST_P(ReportedFaults, ImageTokenInTextNamesTheSample) {
  const auto sample = data::make_sample(*processor_, record("one"), 0);
  const int64_t token = sample.token_ids[static_cast<size_t>(sample.image_token_positions.front())];
  const std::string token_text = processor_->tokenizer().decode(std::vector{token}, /*skip_special_tokens=*/false);
  ASSERT_NE(token_text, "");
  for (const std::string id : {"words", "one"}) {
    io::Record edited_record = record(id);
    edited_record.turns.front().text += " What is " + token_text + "?";
    const std::string error = get_error(edited_record);
    EXPECT_THAT(error, AllOf(HasSubstr(id), HasSubstr("image tokens in its text"))) << token_text;
  }
}

/// Report: "Hangs where a rank has no image".
TEST_P(ReportedFaults, RankWithoutImagesLearnsWithTheOthers) {
  std::vector<data::Sample> media_samples, text_samples;
  for (const auto& sample : make_distinct_samples(*processor_, records_))
    (sample.num_media() > 0 ? media_samples : text_samples).push_back(sample);
  ASSERT_FALSE(media_samples.empty());
  ASSERT_FALSE(text_samples.empty());
  auto all = media_samples;
  all.insert(all.end(), text_samples.begin(), text_samples.end());

  struct TrainingResult {
    std::vector<double> losses;
    std::map<std::string, at::Tensor> weights;
  };
  std::mutex mutex;
  const auto train = [&](const std::vector<std::vector<data::Sample>>& rank_samples) {
    std::vector<TrainingResult> results(rank_samples.size());
    distributed::run_ranks(std::ssize(rank_samples), [&](const distributed::LaunchInfo& launch) {
      distributed::DistributedContext ranks(launch);
      const distributed::RankConsensus consensus(ranks.collectives());
      const auto model = models::load_model(preset_.checkpoint(), at::kCPU, at::kFloat);
      // A large epsilon makes the update proportional to the gradient, so rounding is not
      // amplified.
      engine::TrainingState training(*model, {.adamw = {.epsilon = 1e-2}});
      training.set_consensus(consensus);
      const auto& samples = rank_samples[static_cast<size_t>(launch.rank)];
      const engine::CrossEntropyObjective objective(engine::TaskSettings{});
      TrainingResult result;
      for (int step = 0; step < 3; ++step) {
        const engine::StepInput input{.objective = objective,
                                      .samples = samples,
                                      .normalizers = consensus.sum_over_ranks(objective.compute_normalizers(samples))};
        engine::TrainingStep optimizer_step(training, input, consensus);
        optimizer_step.accumulate(engine::SmallStep{.micro_batch_size = 2}.make_layout(*model, samples));
        optimizer_step.prepare();
        result.losses.push_back(optimizer_step.apply_update({1e-2, 1e-2, 1e-2}).loss.item<double>());
      }
      for (const auto& parameter : model->parameters().all())
        result.weights[parameter.name] = parameter.values().clone();
      const std::lock_guard lock(mutex);
      results[static_cast<size_t>(launch.rank)] = std::move(result);
    });
    return results;
  };

  const auto expected = train({all}).front();
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const auto& actual : train({media_samples, text_samples})) {
    for (size_t i = 0; i < expected.losses.size(); ++i)
      EXPECT_NEAR(actual.losses[i] / expected.losses[i], 1, 1e-5) << i;
    for (const auto& [name, weight] : expected.weights) {
      if (has_zero_true_gradient(name)) continue;
      EXPECT_LT(relative_difference(actual.weights.at(name), weight), 1e-5) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, ReportedFaults, testing::ValuesIn(TinyPreset::names()),
                         [](const auto& instance) { return TinyPreset::make_test_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::parity
