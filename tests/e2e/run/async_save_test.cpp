#include <chrono>
#include <map>
#include <memory>

#include "distributed/thread_ranks.h"
#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Runs that train while a checkpoint is written, which a preloaded library holds before its final
/// rename.
class AsyncSaveTest : public CommandTest {
 protected:
  using Settings = std::vector<std::string>;

  static Settings settings(const std::string& dir, const std::string& async, const Settings& more = {}) {
    Settings all{"output.dir=" + dir,       "output.async_save=" + async,  "output.save_steps=5",
                 "training.max_steps=20",   "output.sample_predictions=0", "output.report=false",
                 "output.tensorboard=false"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Starts a process in `at` whose checkpoints are held.
  std::unique_ptr<Process> start(const std::vector<std::string>& arguments, const fs::path& at) const {
    setenv("LD_PRELOAD", VLMTRAIN_HELD_RENAME, 1);
    auto process = std::make_unique<Process>(at, arguments);
    unsetenv("LD_PRELOAD");
    return process;
  }
  std::unique_ptr<Process> start(const Settings& overrides) const {
    return start(train_arguments(overrides), folder());
  }
  static void hold(int step, const fs::path& at) { write_text(at / ("hold-step-" + std::to_string(step)), ""); }
  static void release(int step, const fs::path& at) { fs::remove(at / ("hold-step-" + std::to_string(step))); }
  void hold(int step) const { hold(step, folder()); }
  void release(int step) const { release(step, folder()); }
  /// Returns whether everything of a checkpoint but its name is written.
  bool is_held(int step) const { return fs::exists(folder() / ("held-step-" + std::to_string(step))); }

  fs::path get_checkpoint_folder(const std::string& dir, int step) const {
    return folder() / dir / "checkpoints" / ("step-" + std::to_string(step));
  }
  size_t steps_logged(const std::string& dir = "run") const {
    return split_lines(read_text(folder() / dir / "metrics.jsonl")).size();
  }
  /// Returns "checkpoint 5" and so on, in their order.
  std::vector<std::string> events(const std::string& dir = "run") const {
    std::vector<std::string> actual;
    for (const auto& event : step_lines(dir + "/events.jsonl")) {
      actual.push_back(event["kind"].get<std::string>() + " " + std::to_string(event["step"].get<int>()));
    }
    return actual;
  }

  /// Returns the content of all files of a checkpoint by name, without the memory limit, which
  /// depends on free memory.
  static std::map<std::string, std::string> read_files(const fs::path& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
      if (!entry.is_regular_file()) continue;
      std::string text = read_text(entry.path());
      if (entry.path().filename() == "state.json") {
        auto json = nlohmann::ordered_json::parse(text);
        json["host_memory"].erase("tensor_limit_bytes");
        text = json.dump();
      } else if (entry.path().filename() == "checksums.json") {
        auto json = nlohmann::ordered_json::parse(text);
        json["files"].erase("trainer_state/state.json");
        text = json.dump();
      }
      files.emplace(fs::relative(entry.path(), checkpoint).string(), std::move(text));
    }
    return files;
  }
  void expect_same_checkpoint(const std::string& a, const std::string& b, int step) const {
    const auto expected = read_files(get_checkpoint_folder(a, step)),
               actual = read_files(get_checkpoint_folder(b, step));
    ASSERT_GT(expected.size(), 5U);
    EXPECT_EQ(actual, expected) << "step " << step;
  }
};

struct SavedKind {
  const char* name;
  std::vector<std::string> settings;
};

class AsyncSaveConfigTest : public AsyncSaveTest, public testing::WithParamInterface<SavedKind> {};

TEST_P(AsyncSaveConfigTest, WritesTheSameBytes) {
  auto more = GetParam().settings;
  more.insert(more.end(), {"training.max_steps=6", "output.save_steps=2", "output.save_total_limit=9"});
  train_well(settings("waits", "false", more));
  train_well(settings("goes-on", "true", more));
  for (const int step : {2, 4, 6}) expect_same_checkpoint("waits", "goes-on", step);
  EXPECT_EQ(entries(folder() / "goes-on/checkpoints"), entries(folder() / "waits/checkpoints"));
  EXPECT_EQ(entries(folder() / "goes-on"), entries(folder() / "waits")) << "temporary files remain";
  EXPECT_EQ(read_text(folder() / "goes-on/ledger.json"), read_text(folder() / "waits/ledger.json"));
  const auto sync_measured = json_file("waits/plan.json")["measured"],
             async_measured = json_file("goes-on/plan.json")["measured"];
  EXPECT_EQ(sync_measured["checkpoint_copies_bytes"], 0);
  EXPECT_GT(async_measured["checkpoint_copies_bytes"], 0);
  EXPECT_EQ(async_measured["allocated_peak_bytes"], sync_measured["allocated_peak_bytes"])
      << "copies do not count for steps";
}

INSTANTIATE_TEST_SUITE_P(A, AsyncSaveConfigTest,
                         testing::Values(SavedKind{"RunInFp32", {}},
                                         SavedKind{"RunIn16Bits",
                                                   {"training.precision=fp16", "training.optimizer_states=8bit",
                                                    "model.freeze_vision_tower=true"}},
                                         SavedKind{"RunSavedInBf16", {"output.dtype=bf16"}},
                                         SavedKind{"RunWithLora", {"lora.rank=2"}}),
                         [](const auto& instance) { return instance.param.name; });

TEST_F(AsyncSaveTest, TrainsWhileSaving) {
  hold(5);
  const auto process = start(settings("run", "true", {"output.save_total_limit=9"}));
  wait_until(*process, [&] { return is_held(5) && steps_logged() >= 9; });
  ASSERT_TRUE(process->is_running());
  EXPECT_FALSE(fs::exists(get_checkpoint_folder("run", 5))) << "it is not complete yet";
  EXPECT_EQ(entries(folder() / "run/checkpoints").size(), 1U) << "but it is being written";
  EXPECT_THAT(events(), Not(Contains(HasSubstr("checkpoint"))));
  hold(10);
  release(5);
  wait_until(*process, [&] { return !events().empty(); });
  EXPECT_TRUE(fs::exists(get_checkpoint_folder("run", 5)));
  EXPECT_THAT(events(), ElementsAre("checkpoint 5"));
  EXPECT_EQ(json_file("run/ledger.json"), json_file("run/checkpoints/step-5/trainer_state/ledger.json"))
      << "the ledger next to it is that of its step";
  release(10);
  const Result result = process->wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(events(), ElementsAre("checkpoint 5", "checkpoint 10", "checkpoint 15", "checkpoint 20"));
}

TEST_F(AsyncSaveTest, KillWhileSavingKeepsThePreviousCheckpoint) {
  train_well(settings("whole", "false", {"output.save_total_limit=1"}));
  const auto overrides = settings("run", "true", {"output.save_total_limit=1"});
  hold(10);
  const auto process = start(overrides);
  wait_until(*process, [&] { return is_held(10) && steps_logged() >= 13; });
  process->send(SIGKILL);
  process->wait();
  EXPECT_TRUE(fs::exists(get_checkpoint_folder("run", 5))) << "it is removed once the next is complete";
  EXPECT_FALSE(fs::exists(get_checkpoint_folder("run", 10)));
  release(10);
  const Result repeated = train(overrides);
  ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
  EXPECT_THAT(repeated.err, HasSubstr("resuming after step 5 from"));
  expect_same_checkpoint("whole", "run", 20);
  EXPECT_THAT(entries(folder() / "run/checkpoints"), ElementsAre("step-20"));
  EXPECT_EQ(steps_logged(), 20U);
}

TEST_F(AsyncSaveTest, StopWaitsForBothCheckpoints) {
  hold(5);
  const auto process = start(settings("run", "true", {"output.save_total_limit=9", "training.max_steps=100000"}));
  wait_until(*process, [&] { return is_held(5) && steps_logged() >= 7; });
  process->send(SIGTERM);
  release(5);
  const Result result = process->wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  const int last = step_lines("run/metrics.jsonl").back()["step"];
  EXPECT_THAT(events(), Contains("checkpoint 5"));
  EXPECT_EQ(events().at(events().size() - 2), "checkpoint " + std::to_string(last));
  EXPECT_EQ(events().back(), "stopped " + std::to_string(last));
  EXPECT_TRUE(fs::exists(get_checkpoint_folder("run", 5)));
  EXPECT_TRUE(fs::exists(get_checkpoint_folder("run", last)));
}

TEST_F(AsyncSaveTest, WriteErrorEndsTheRun) {
  hold(5);
  const auto process = start(settings("run", "true"));
  wait_until(*process, [&] { return is_held(5) && steps_logged() >= 7; });
  fs::remove_all(folder() / "run/checkpoints");
  release(5);
  const Result result = process->wait();
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: run/checkpoints/step-5: cannot be written (No such file or directory)"));
  EXPECT_THAT(result.err, HasSubstr("the error occurred while a checkpoint was written"));
  EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  EXPECT_THAT(events().back(), HasSubstr("failed"));
  EXPECT_LE(steps_logged(), 10U);
}

TEST_F(AsyncSaveTest, RanksWriteTheSameBytes) {
  for (const char* async : {"false", "true"}) {
    auto arguments = train_arguments(
        settings(async, async, {"training.max_steps=6", "output.save_steps=2", "output.save_total_limit=9"}));
    arguments.insert(arguments.end(), {"--nproc-per-node", "2"});
    const Result result = run(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  for (const int step : {2, 4, 6}) expect_same_checkpoint("false", "true", step);
}

TEST_F(AsyncSaveTest, FinishesWritingAfterALostRank) {
  const int64_t port = distributed::free_port();
  std::vector<std::unique_ptr<Process>> ranks;
  std::vector<fs::path> at;
  for (const char* rank : {"0", "1"}) {
    at.push_back(folder() / ("streams-" + std::string(rank)));
    fs::create_directories(at.back());
    for (const char* name : {"train.yaml", "train.json", "images"}) {
      fs::create_symlink(folder() / name, at.back() / name);
    }
    hold(5, at.back());
    const std::map<const char*, std::string> variables{{"WORLD_SIZE", "2"},
                                                       {"RANK", rank},
                                                       {"LOCAL_RANK", rank},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", std::to_string(port)}};
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
    auto overrides = settings((folder() / "run").string(), "true", {"training.max_steps=100000"});
    ranks.push_back(start(train_arguments(overrides), at.back()));
    for (const auto& [name, value] : variables) unsetenv(name);
  }
  wait_until(*ranks[0], [&] { return fs::exists(at[0] / "held-step-5") && steps_logged() >= 7; });
  ranks[1]->send(SIGKILL);
  std::this_thread::sleep_for(8s);
  EXPECT_TRUE(ranks[0]->is_running()) << "it has the signal, and writes";
  release(5, at[0]);
  const auto released = std::chrono::steady_clock::now();
  const Result result = ranks[0]->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - released, 15s);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr(" disconnected: it was killed"));
  ASSERT_TRUE(fs::exists(get_checkpoint_folder("run", 5)));
  EXPECT_GT(read_files(get_checkpoint_folder("run", 5)).size(), 5U);
}

}  // namespace

}  // namespace vlmtrain::e2e
