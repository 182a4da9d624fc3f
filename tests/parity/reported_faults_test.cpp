#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "distributed/ranks_of_threads.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "parity/tiny_preset.h"
#include "parity/unlike_samples.h"
#include "vlmtrain/distributed/consensus.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// What users of other trainers report of vision-language models, of each family. Where else such a report has become
/// a test is listed in docs/soundness.md.
class ReportedFaults : public testing::TestWithParam<std::string> {
 protected:
  /// The words of the error; empty where there is none.
  std::string error_of(const io::Record& record) const {
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

/// "Image features and image tokens do not match": marks and pictures.
TEST_P(ReportedFaults, AnotherNumberOfMarksThanPicturesIsAnErrorThatNamesTheSample) {
  auto json = io::read_json(preset_.checkpoint().parent_path() / "records.json");
  const auto several = std::ranges::find_if(json, [](const auto& one) { return one.at("id") == "several"; });
  ASSERT_NE(several, json.end());
  for (const std::string marks : {"<image>\n", "<image>\n<image>\n<image>\n"}) {
    (*several)["conversations"][0]["value"] = marks + "Compare them.";
    EXPECT_THAT(error_of(preset_.read({*several}).front()),
                AllOf(HasSubstr("several"), HasSubstr("<image> marks for 2")));
  }
}

/// The same: a token that stands for a feature, written by someone in the conversation.
TEST_P(ReportedFaults, AnImageTokenInTheWordsIsAnErrorThatNamesTheSample) {
  const auto sample = data::make_sample(*processor_, record("one"), 0);
  const int64_t token = sample.token_ids[static_cast<size_t>(sample.image_token_positions.front())];
  const std::string written = processor_->tokenizer().decode(std::vector{token}, /*skip_special_tokens=*/false);
  ASSERT_NE(written, "");
  for (const std::string id : {"words", "one"}) {
    io::Record changed = record(id);
    changed.turns.front().text += " What is " + written + "?";
    const std::string error = error_of(changed);
    EXPECT_THAT(error, AllOf(HasSubstr(id), HasSubstr("image tokens in its text"))) << written;
  }
}

/// "Hangs where a rank has no image".
TEST_P(ReportedFaults, ARankWithoutAPictureLearnsWithTheOthers) {
  std::vector<data::Sample> with_media, words;
  for (const auto& one : unlike_samples(*processor_, records_)) (one.images > 0 ? with_media : words).push_back(one);
  ASSERT_FALSE(with_media.empty());
  ASSERT_FALSE(words.empty());
  auto all = with_media;
  all.insert(all.end(), words.begin(), words.end());

  struct Learnt {
    std::vector<double> losses;
    std::map<std::string, at::Tensor> weights;
  };
  std::mutex mutex;
  const auto train = [&](const std::vector<std::vector<data::Sample>>& samples_of_ranks) {
    std::vector<Learnt> learnt(samples_of_ranks.size());
    distributed::as_ranks(std::ssize(samples_of_ranks), [&](const distributed::Launch& launch) {
      distributed::Ranks meeting(launch);
      const distributed::RankConsensus consensus(meeting.collectives());
      const auto model = models::load_model(preset_.checkpoint(), at::kCPU, at::kFloat);
      // So large an epsilon makes the update proportional to the gradient, whose rounding it does not magnify.
      engine::Training training(*model, {.epsilon = 1e-2});
      training.connect(consensus);
      const auto& samples = samples_of_ranks[static_cast<size_t>(launch.rank)];
      const engine::CrossEntropy objective(engine::TaskSettings{});
      Learnt own;
      for (int step = 0; step < 3; ++step) {
        const engine::StepInput input{
            .objective = objective, .samples = samples, .normalizers = consensus.sum(objective.normalizers(samples))};
        engine::Step one(training, input, consensus);
        one.accumulate(engine::SmallStep{.micro_batch_size = 2}.layout_of(*model, samples));
        one.prepare();
        own.losses.push_back(one.apply({1e-2, 1e-2, 1e-2}).loss.item<double>());
      }
      for (const auto& parameter : model->parameters().all()) own.weights[parameter.name] = parameter.values().clone();
      const std::lock_guard lock(mutex);
      learnt[static_cast<size_t>(launch.rank)] = std::move(own);
    });
    return learnt;
  };

  const auto wanted = train({all}).front();
  EXPECT_LT(wanted.losses.back(), wanted.losses.front());
  for (const auto& found : train({with_media, words})) {
    for (size_t i = 0; i < wanted.losses.size(); ++i) EXPECT_NEAR(found.losses[i] / wanted.losses[i], 1, 1e-5) << i;
    for (const auto& [name, weight] : wanted.weights) {
      if (has_zero_true_gradient(name)) continue;
      EXPECT_LT(relative_difference(found.weights.at(name), weight), 1e-5) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, ReportedFaults, testing::ValuesIn(TinyPreset::names()),
                         [](const auto& instance) { return TinyPreset::test_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::parity
