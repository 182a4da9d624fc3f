#include "vlmtrain/report/plan_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "report/format/html.h"
#include "report/plan_example.h"
#include "report/run_example.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::report {
namespace {

using memory::Component;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = 1 << 20;

/// Allocations of an artificial step.
class TimelineBuilder {
 public:
  TimelineBuilder& set_tag(Component component, bool backward = false, int block = -1) {
    point_.tag = {component, block};
    point_.is_backward = backward;
    return *this;
  }
  TimelineBuilder& add(Component component, int64_t bytes) {
    point_.bytes_by_component[static_cast<size_t>(component)] += bytes;
    point_.reserved_bytes = std::max(point_.reserved_bytes, sum_allocated_bytes(point_));
    timeline_.push_back(point_);
    return *this;
  }
  const MemoryTimeline& timeline() const { return timeline_; }

 private:
  planner::MemoryTimelinePoint point_;
  MemoryTimeline timeline_;
};

/// Two micro-batches of three blocks and an optimizer step. The peak is in the second loss.
MemoryTimeline example_step() {
  TimelineBuilder builder;
  builder.set_tag(Component::kOther).add(Component::kWeights, 100 * kMiB);
  for (const int64_t loss : {10, 20}) {
    builder.set_tag(Component::kInput).add(Component::kInput, kMiB);
    for (int block = 0; block < 3; ++block) {
      builder.set_tag(Component::kVision, false, block).add(Component::kVision, 5 * kMiB);
    }
    builder.set_tag(Component::kLoss).add(Component::kLoss, loss * kMiB).add(Component::kLoss, -loss * kMiB);
    for (int block = 2; block >= 0; --block) {
      builder.set_tag(Component::kVision, true, block).add(Component::kVision, -5 * kMiB);
    }
    builder.set_tag(Component::kOther).add(Component::kInput, -kMiB);
  }
  builder.set_tag(Component::kOptimizer).add(Component::kOptimizer, kMiB).add(Component::kOptimizer, -kMiB);
  return builder.timeline();
}

planner::Plan make_plan(MemoryTimeline timeline) {
  planner::Plan plan = make_example_plan();
  plan.detail.timeline = std::move(timeline);
  return plan;
}

TEST(PlanTimelineTest, PhasesFollowFromTags) {
  std::vector<std::string> names;
  std::vector<size_t> first;
  for (const auto& phase : find_step_phases(example_step())) {
    names.push_back(fmt::format("{} {}", phase.micro_batch_number, phase.pass_name));
    first.push_back(phase.first_event_index);
  }
  EXPECT_THAT(names, testing::ElementsAre("1 forward", "1 backward", "2 forward", "2 backward", "0 optimizer"));
  EXPECT_THAT(first, testing::ElementsAre(0, 7, 11, 17, 21));
}

TEST(PlanTimelineTest, FewEventsAreKept) {
  EXPECT_EQ(downsample_timeline(example_step(), 1000).size(), example_step().size());
}

TEST(PlanTimelineTest, DownsamplingKeepsThePeaks) {
  TimelineBuilder builder;
  constexpr size_t kEvents = 50'000;
  constexpr size_t kSpikes[] = {17, 12'345, 49'990};
  for (size_t event = 0; event < kEvents / 2; ++event) {
    const bool spike = std::find(std::begin(kSpikes), std::end(kSpikes), 2 * event) != std::end(kSpikes) ||
                       std::find(std::begin(kSpikes), std::end(kSpikes), 2 * event + 1) != std::end(kSpikes);
    const int64_t bytes = spike ? 900 * kMiB : kMiB + static_cast<int64_t>(event % 7);
    builder.set_tag(Component::kLanguage).add(Component::kLanguage, bytes).add(Component::kLanguage, -bytes);
  }
  const auto& timeline = builder.timeline();
  const auto indices = downsample_timeline(timeline, 400);
  EXPECT_LE(indices.size(), 400u);
  EXPECT_GE(indices.size(), 300u);
  EXPECT_EQ(indices.front(), 0u);
  EXPECT_EQ(indices.back(), kEvents - 1);
  EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
  EXPECT_EQ(std::adjacent_find(indices.begin(), indices.end()), indices.end()) << "no duplicates";
  const auto spikes = std::count_if(indices.begin(), indices.end(),
                                    [&](size_t event) { return sum_allocated_bytes(timeline[event]) == 900 * kMiB; });
  EXPECT_EQ(spikes, 3);
  EXPECT_NE(std::find(indices.begin(), indices.end(), find_peak_event_index(timeline)), indices.end());
}

TEST(PlanTimelineTest, DataContainsEveryEvent) {
  const MemoryTimeline timeline = example_step();
  const auto data = parse_page_data(render_plan_timeline(make_plan(timeline)));
  ASSERT_EQ(data["points"].size(), timeline.size());
  EXPECT_EQ(data["events"], timeline.size());
  EXPECT_EQ(data["peak_event"], 15);
  const std::map<std::string, Component> components{
      {"weights", Component::kWeights},     {"optimizer", Component::kOptimizer}, {"gradients", Component::kGradients},
      {"workspace", Component::kWorkspace}, {"other", Component::kOther},         {"input", Component::kInput},
      {"vision", Component::kVision},       {"language", Component::kLanguage},   {"loss", Component::kLoss},
      {"masks", Component::kMasks}};
  std::vector<int64_t> bytes(components.size() + 1, 0);
  for (size_t i = 0; i < timeline.size(); ++i) {
    const auto& row = data["points"][i];
    for (size_t k = 2; k < row.size(); k += 2) bytes[row[k].get<size_t>()] += row[k + 1].get<int64_t>();
    for (size_t s = 0; s < components.size(); ++s) {
      const Component component = components.at(data["components"][s]["key"]);
      EXPECT_EQ(bytes[s], timeline[i].bytes_by_component[static_cast<size_t>(component)]) << "event " << i;
    }
    EXPECT_EQ(bytes.back(), timeline[i].reserved_bytes);
  }
  EXPECT_EQ(data["places"][data["points"][15][1].get<size_t>()], "loss, forward pass");
  EXPECT_EQ(data["places"][data["points"][17][1].get<size_t>()], "vision block 2, backward pass");
}

TEST(PlanTimelineTest, PageDescribesTheStep) {
  planner::Plan plan = make_plan(example_step());
  const std::string page = render_plan_timeline(plan);
  EXPECT_THAT(page, HasSubstr("fits: 20.6 of 25.0 GB, micro-batch 2 x accumulation 8"));
  EXPECT_THAT(page, HasSubstr("It has 2 of the 8 micro-batches"));
  EXPECT_THAT(page, HasSubstr("The peak of this step: loss, forward pass. An earlier step had a higher peak, 19.0 GB"));
  EXPECT_THAT(page, Not(HasSubstr("The chart draws")));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(PlanTimelineTest, PageLoadsNothing) {
  const std::string page = render_plan_timeline(make_plan(example_step()));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* const reference : {"http:", "https:", " src=", "href=", "url(", "@import", "fetch("}) {
    EXPECT_THAT(page, Not(HasSubstr(reference)));
  }
}

TEST(PlanTimelineTest, ExternalNamesAreEscaped) {
  planner::Plan plan = make_plan(example_step());
  plan.model = "<script>alert(1)</script>{{data}}";
  plan.worst_batch.first_sample_id = "\"><img onerror='x'>\xff";
  const std::string page = render_plan_timeline(plan);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;{{data}}"));
  EXPECT_NO_THROW(parse_page_data(page));
}

TEST(PlanTimelineTest, LargeTimelinesStaySmall) {
  TimelineBuilder builder;
  for (int i = 0; i < 100'000; ++i) {
    const int64_t bytes = 123'456'512 + 512 * (i % 911);
    builder.set_tag(Component::kVision, i > 30'000, i % 27).add(Component::kVision, bytes);
    builder.add(i % 3 == 0 ? Component::kLoss : Component::kVision, i % 3 == 0 ? 512 * i : -bytes);
  }
  const std::string page = render_plan_timeline(make_plan(builder.timeline()));
  EXPECT_LT(page.size(), 2'000'000u);
  EXPECT_THAT(page, HasSubstr("200,000 allocations and frees"));
  EXPECT_THAT(page, HasSubstr("The chart draws 19,99"));
}

TEST(PlanTimelineTest, APlanWithoutTimelineIsAnError) {
  EXPECT_THROW(render_plan_timeline(make_example_plan()), InternalError);
}

TEST(PageTest, JsonCannotCloseItsScriptElement) {
  EXPECT_EQ(escape_script_json({"</script><!--", "\xff"}), "[\"\\u003c/script>\\u003c!--\",\"\xef\xbf\xbd\"]");
}

TEST(PageTest, AKeyWithoutValueIsAnError) {
  EXPECT_THROW(fill_page_template("plan_timeline.html", {}), InternalError);
  EXPECT_THROW(fill_page_template("no such page", {}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::report
