#include "vlmtrain/memory/host_memory.h"

#include <algorithm>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr double kGigabyte = 1e9;

/// Runs on the CPU with little memory. The model is tiny, so that most memory is the program's own.
class HostMemoryTest : public CommandTest {
 protected:
  /// Returns the bytes of tensors that exist all the time, and their peak.
  static std::pair<double, double> standing_and_peak(const nlohmann::ordered_json& plan) {
    const auto& memory = plan["memory"];
    const auto bytes = [&](const char* of) { return memory[of].get<double>(); };
    return {bytes("weights_bytes") + bytes("gradients_bytes") + bytes("optimizer_bytes"),
            bytes("allocated_peak_bytes")};
  }

  /// Expects the losses of a run with enough memory.
  void expect_losses(const std::vector<nlohmann::ordered_json>& expected) const {
    const auto steps = step_lines("run/metrics.jsonl");
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(steps[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 1e-4);
    }
  }

  nlohmann::ordered_json plan() const { return json_file("run/plan.json"); }

  /// Returns a memory.limit_gb that leaves `bytes` for tensors, according to a plan.
  /// `count_cached`: and for the memory that malloc keeps.
  static std::string compute_limit(const nlohmann::ordered_json& plan, double tensor_bytes, bool count_cached = true) {
    const auto& memory = plan["memory"];
    const double other_bytes = memory["total_bytes"].get<double>() - memory["allocated_peak_bytes"].get<double>() -
                               memory["fragmentation_bytes"].get<double>();
    const double cached_share =
        count_cached ? memory["fragmentation_bytes"].get<double>() / memory["allocated_peak_bytes"].get<double>() : 0;
    constexpr double kWithoutMargin = 0.95;
    return "memory.limit_gb=" +
           std::to_string((other_bytes + (1 + cached_share) * tensor_bytes) / kWithoutMargin / kGigabyte);
  }
};

TEST_F(HostMemoryTest, ReportsPlannedAndMeasuredMemory) {
  const Result result = train({"memory.limit_gb=4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("host memory: planned "));
  EXPECT_THAT(result.err, HasSubstr("peak host memory: tensors of "));
  const auto json = plan();
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["available_limited_by"], "memory.limit_gb");
  EXPECT_EQ(json["available_bytes"], 4'000'000'000);
  EXPECT_EQ(json["micro_batch_size"], 4);
  const auto planned = json["memory"]["allocated_peak_bytes"].get<double>();
  const auto measured = json["measured"]["allocated_peak_bytes"].get<double>();
  EXPECT_LT(measured, 1.02 * planned);
  EXPECT_GT(measured, 0.8 * planned);
  EXPECT_GT(json["measured"]["resident_peak_bytes"].get<double>(), measured);
  EXPECT_EQ(json["measured"]["refused_allocations"], 0);
}

TEST_F(HostMemoryTest, UsesSmallerMicroBatchesWithLessMemory) {
  train_well({"output.dir=ample"});
  std::filesystem::rename(folder() / "ample", folder() / "run");
  const auto ample = plan();
  const auto losses = step_lines("run/metrics.jsonl");
  std::filesystem::remove_all(folder() / "run");

  const auto [standing, peak] = standing_and_peak(ample);
  ASSERT_EQ(ample["micro_batch_size"], 4);
  const Result result = train({compute_limit(ample, standing + (peak - standing) / 2)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(plan()["micro_batch_size"], 4);
  EXPECT_LT(plan()["memory"]["allocated_peak_bytes"], plan()["limit_bytes"]);
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), losses.size());
  int64_t max_micro_batches = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    max_micro_batches = std::max(max_micro_batches, steps[i]["micro_batches"].get<int64_t>());
    EXPECT_NEAR(steps[i]["loss"].get<double>(), losses[i]["loss"].get<double>(), 1e-4);
  }
  EXPECT_GT(max_micro_batches, 1) << "steps of small samples may still fit in one";
}

TEST_F(HostMemoryTest, ResumedRunKeepsItsSplit) {
  train_well({"training.max_steps=4", "output.save_steps=2", "memory.recompute=1+1"});
  const auto uninterrupted = step_lines("run/metrics.jsonl");
  std::filesystem::remove_all(folder() / "run/checkpoints/step-4");
  const auto state = json_file("run/checkpoints/step-2/trainer_state/state.json");
  ASSERT_TRUE(state["host_memory"].is_object()) << state;
  EXPECT_EQ(state["host_memory"]["recomputed_language_blocks"], 1);

  // The memory that is free now would allow it to recompute nothing.
  const Result repeated = train({"training.max_steps=4", "output.save_steps=2"});
  ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
  const auto saved_state = json_file("run/checkpoints/step-4/trainer_state/state.json");
  EXPECT_EQ(saved_state["host_memory"], state["host_memory"]);
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(steps[i]["loss"].dump(), uninterrupted[i]["loss"].dump());
}

TEST_F(HostMemoryTest, ResumedRunWithLessMemoryWarnsOrIsRefused) {
  train_well({"training.max_steps=2"});
  const auto ample = plan();
  const auto peak = ample["memory"]["allocated_peak_bytes"].get<double>();
  // The checkpoint's micro-batches of 4 still fit.
  const Result less = train({"training.max_steps=2", compute_limit(ample, 1.5 * peak + 3e7)});
  EXPECT_EQ(less.exit_code, 0) << less.err;
  EXPECT_THAT(less.err, HasSubstr("micro-batches stay the same"));
  const Result little = train({"training.max_steps=2", compute_limit(ample, 0.4 * peak)});
  EXPECT_EQ(little.exit_code, 3) << little.err;
  const auto settings = little.err.find("training.micro_batch_size=");
  ASSERT_NE(settings, std::string::npos) << little.err;
  std::istringstream word_stream(little.err.substr(settings));
  std::vector<std::string> pasted{"training.max_steps=2", compute_limit(ample, 0.4 * peak)};
  for (std::string word; word_stream >> word;) pasted.push_back(word);
  const Result smaller = train(pasted);
  EXPECT_EQ(smaller.exit_code, 0) << smaller.err;
}

TEST_F(HostMemoryTest, RefusalSuggestsSettingsThatFit) {
  const Result result = train({"memory.limit_gb=0.05"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("does not fit in host memory: a step needs at least"));
  EXPECT_THAT(result.err, HasSubstr("0.05 GB (memory.limit_gb)"));
  EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
}

/// Resident memory stays as planned, and no limit is exceeded: for samples with hundreds of images,
/// whose decoded pixels and tokens are not tensors, and for long texts.
TEST_F(HostMemoryTest, ResidentMemoryStaysWithinThePlan) {
  const auto conversation = [](const std::string& question, const std::string& answer) {
    return nlohmann::json{{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", answer}}};
  };
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  nlohmann::json image_record = records()[0];
  const std::string image = image_record.contains("image") && image_record["image"].is_string()
                                ? image_record["image"].get<std::string>()
                                : entries(folder() / "images").front();
  constexpr int kImages = 20, kWords = 600;
  image_record = {{"image", nlohmann::json(std::vector<std::string>(kImages, image))},
                  {"conversations", conversation(repeated("<image>\n", kImages) + "What?", "It is so.")}};
  const nlohmann::json text{{"conversations", conversation("Say it.", repeated("a word and ", kWords))}};
  for (auto sample : {image_record, text}) {
    auto all = nlohmann::json::array();
    for (const char* id : {"one", "two"}) {
      sample["id"] = id;
      all.push_back(sample);
    }
    write_records(all);
    std::filesystem::remove_all(folder() / "run");
    const std::vector<std::string> settings{"data.max_length=1000000", "training.global_batch_size=2",
                                            "training.max_steps=2", "output.sample_predictions=0"};
    train_well(settings);
    const auto ample = plan();
    EXPECT_LE(ample["measured"]["resident_peak_bytes"], ample["memory"]["total_bytes"]) << ample["memory"];
    // Too little for the plan's micro-batches; with the margin it is all the free memory.
    const auto peak = ample["memory"]["allocated_peak_bytes"].get<double>();
    const auto standing = ample["memory"]["weights_bytes"].get<double>() +
                          ample["memory"]["gradients_bytes"].get<double>() +
                          ample["memory"]["optimizer_bytes"].get<double>();
    std::filesystem::remove_all(folder() / "run");
    auto limited_settings = settings;
    limited_settings.push_back(compute_limit(ample, standing + 0.6 * (peak - standing)));
    train_well(limited_settings);
    const auto tight = plan();
    EXPECT_LE(tight["measured"]["resident_peak_bytes"], tight["memory"]["total_bytes"]) << tight["memory"];
    EXPECT_LE(tight["measured"]["resident_peak_bytes"], tight["available_bytes"]);
  }
}

/// The message names the sample, and each suggested setting lets the run start.
TEST_F(HostMemoryTest, NamesTheLongSample) {
  auto all = records();
  std::string word_stream;
  for (int i = 0; i < 4000; ++i) word_stream += "word ";
  all.push_back(
      {{"id", "the-long-one"},
       {"conversations", {{{"from", "human"}, {"value", "Say it."}}, {{"from", "gpt"}, {"value", word_stream}}}}});
  write_records(all);
  const std::vector<std::string> settings{"data.max_length=1000000", "training.max_steps=1", "output.report=false",
                                          "output.sample_predictions=0"};
  const auto add_settings = [&](std::initializer_list<std::string> more) {
    auto arguments = settings;
    arguments.insert(arguments.end(), more);
    return arguments;
  };
  // The memory of a run without the long text.
  train_well(add_settings({"data.max_length=2000", "data.on_bad_sample=skip"}));
  const auto without = plan();
  std::filesystem::remove_all(folder() / "run");
  const Result refused =
      train(add_settings({compute_limit(without, 1.1 * without["memory"]["allocated_peak_bytes"].get<double>())}));
  ASSERT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("sample the-long-one of "));
  EXPECT_THAT(refused.err, HasSubstr("memory.limit_gb="));
  EXPECT_THAT(refused.err, HasSubstr("data.on_bad_sample=skip"));
  EXPECT_THAT(refused.err, Not(HasSubstr("image_max_pixels")));
  EXPECT_THAT(refused.err, Not(HasSubstr("GPU")));
  const std::string limit = compute_limit(without, 1.1 * without["memory"]["allocated_peak_bytes"].get<double>());
  for (const auto& line : split_lines(refused.err)) {
    if (!line.starts_with("  data.max_length=") && !line.starts_with("  memory.limit_gb=")) continue;
    SCOPED_TRACE(line);
    std::filesystem::remove_all(folder() / "run");
    auto arguments = add_settings({limit});
    std::istringstream suggestion(line.substr(0, line.find(": ")));
    for (std::string word; suggestion >> word;) arguments.push_back(word);
    const Result result = train(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

/// A step may have larger samples than planned (allow_splits); the guard refuses their
/// allocations.
TEST_F(HostMemoryTest, SplitsAStepAboveTheLimit) {
  train_well({});
  const auto ample = plan();
  const auto losses = step_lines("run/metrics.jsonl");
  std::filesystem::remove_all(folder() / "run");
  const auto [standing, peak] = standing_and_peak(ample);
  const Result result = train({"training.micro_batch_size=4", "memory.recompute=none", "memory.allow_splits=true",
                               compute_limit(ample, standing + 0.7 * (peak - standing), /*count_cached=*/false)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("would exceed the run's limit of"));
  EXPECT_GT(plan()["measured"]["refused_allocations"], 0);
  EXPECT_LE(plan()["measured"]["allocated_peak_bytes"], plan()["limit_bytes"]);
  expect_losses(losses);
}

/// Ranks have different samples, which fail in different micro-batches; both ranks repeat the step.
TEST_F(HostMemoryTest, RetriesAStepAboveTheLimitOnAllRanks) {
  const auto train_in_two = [this](std::vector<std::string> overrides) {
    overrides.emplace_back("training.global_batch_size=8");
    auto arguments = train_arguments(overrides);
    arguments.insert(arguments.end(), {"--nproc-per-node", "2"});
    return run(arguments);
  };
  ASSERT_EQ(train_in_two({}).exit_code, 0);
  const auto ample = plan();
  const auto losses = step_lines("run/metrics.jsonl");
  std::filesystem::remove_all(folder() / "run");
  const auto [standing, peak] = standing_and_peak(ample);
  const Result result =
      train_in_two({"training.micro_batch_size=4", "memory.recompute=none", "memory.allow_splits=true",
                    compute_limit(ample, standing + 0.7 * (peak - standing), /*count_cached=*/false)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(read_text(folder() / "run/events.jsonl") + read_text(folder() / "run/rank-1.log"),
              AllOf(HasSubstr("would exceed the run's limit of"), HasSubstr("out of memory (rank 1: ")));
  expect_losses(losses);
}

/// Runs the program in a shell that executes `before` first.
class HostMemoryShellTest : public HostMemoryTest {
 protected:
  Result train_in_shell(const std::string& before) const {
    std::string command = before + " && exec " + VLMTRAIN_BINARY;
    for (const auto& argument : train_arguments({"training.max_steps=1"})) command += " " + argument;
    return Process(folder(), {"-c", command}, 0, "/bin/sh").wait();
  }
};

TEST_F(HostMemoryShellTest, AddressSpaceLimitBoundsARun) {
  constexpr int64_t kKibibytes = 24'000'000;
  const Result result = train_in_shell("ulimit -v " + std::to_string(kKibibytes));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(plan()["available_bytes"], kKibibytes * 1024);
  // The machine may have less memory than the limit.
  if (plan()["available_limited_by"] != "the machine's available memory") {
    EXPECT_EQ(plan()["available_limited_by"], "the address space limit, ulimit -v");
  }
}

/// A control group below that of the tests, of version 1 or 2.
class OwnControlGroup {
 public:
  OwnControlGroup() {
    auto groups = memory::find_control_groups("/", "memory");
    std::ranges::reverse(groups);  // its own group first
    for (const auto& group : groups) {
      const auto created = group.path / ("vlmtrain-test-" + std::to_string(getpid()));
      std::error_code error;
      if (!std::filesystem::create_directory(created, error) || error) continue;
      limit_file_ = created / (group.is_cgroup_v2 ? "memory.max" : "memory.limit_in_bytes");
      if (std::filesystem::exists(limit_file_)) {
        folder_ = created;
        break;
      }
      std::filesystem::remove(created, error);
    }
  }
  ~OwnControlGroup() {
    std::error_code error;
    if (!folder_.empty()) std::filesystem::remove(folder_, error);
  }
  OwnControlGroup(const OwnControlGroup&) = delete;
  OwnControlGroup& operator=(const OwnControlGroup&) = delete;

  bool limit(int64_t bytes) const {
    if (folder_.empty()) return false;
    std::ofstream file(limit_file_);
    return static_cast<bool>(file << bytes << std::flush);
  }
  std::filesystem::path processes() const { return folder_ / "cgroup.procs"; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path limit_file_;
};

TEST_F(HostMemoryShellTest, ControlGroupBoundsARun) {
  const OwnControlGroup group;
  if (!group.limit(1'500'000'000)) GTEST_SKIP() << "cannot create a control group";
  const Result result = train_in_shell("echo $$ > " + group.processes().string());
  if (result.exit_code == 2) GTEST_SKIP() << "cannot move a process into a control group: " << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LE(plan()["available_bytes"], 1'500'000'000);
  EXPECT_THAT(plan()["available_limited_by"].get<std::string>(), HasSubstr("vlmtrain-test-"));
}

}  // namespace

}  // namespace vlmtrain::e2e
