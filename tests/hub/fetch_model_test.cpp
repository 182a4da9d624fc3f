#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "hub/hub_server.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/snapshot.h"

namespace vlmtrain::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class FetchModel : public HubTest {
 protected:
  /// Writes a model of two shards and a tokenizer.
  void write_sharded_model() const {
    write_model("config.json", "{}");
    write_model("tokenizer.json", std::string(100'000, 't'));
    write_model("README.md", "not needed");
    write_model("model.safetensors.index.json",
                R"({"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}})");
    write_model("model-1-of-2.safetensors", std::string(300'000, 'a'));
    write_model("model-2-of-2.safetensors", std::string(200'000, 'b'));
    write_model("onnx/model.safetensors", "not needed");
  }

  static std::vector<std::string> list(const fs::path& path) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (!entry.is_directory()) names.push_back(entry.path().lexically_relative(path).string());
    }
    std::ranges::sort(names);
    return names;
  }

  /// Expects that all blobs are complete and nothing else is in their folder.
  void expect_no_partial_blobs() const {
    for (const auto& entry : fs::directory_iterator(settings_.cache / "models--org--model/blobs"))
      EXPECT_EQ(entry.path().extension(), "") << entry.path();
  }
};

TEST_F(FetchModel, DownloadsNeededFiles) {
  write_sharded_model();
  const Snapshot snapshot = fetch();
  EXPECT_TRUE(is_commit(snapshot.repo.revision));
  EXPECT_THAT(list(snapshot.folder),
              testing::ElementsAre("config.json", "model-1-of-2.safetensors", "model-2-of-2.safetensors",
                                   "model.safetensors.index.json", "tokenizer.json"));
  EXPECT_EQ(io::read_file(snapshot.folder / "model-1-of-2.safetensors"), std::string(300'000, 'a'));
  EXPECT_EQ(io::read_file(snapshot.folder / "tokenizer.json"), std::string(100'000, 't'));
  EXPECT_EQ(snapshot.folder, settings_.cache / "models--org--model/snapshots" / snapshot.repo.revision);
  expect_no_partial_blobs();
}

TEST_F(FetchModel, ConfigFilesNeedNoWeights) {
  write_sharded_model();
  const Snapshot snapshot = fetch("org/model", ModelFiles::kConfig);
  EXPECT_THAT(list(snapshot.folder),
              testing::ElementsAre("config.json", "model.safetensors.index.json", "tokenizer.json"));
}

TEST_F(FetchModel, CachedCommitNeedsNoNetwork) {
  write_sharded_model();
  const std::string commit = fetch().repo.revision;
  const size_t num_requests = requests().size();
  write_model("config.json", R"({"changed": true})");
  EXPECT_EQ(fetch().repo.revision, commit);
  settings_.offline_variable = "HF_HUB_OFFLINE";
  EXPECT_EQ(fetch().repo.revision, commit);
  EXPECT_EQ(fetch("org/model@" + commit).repo.revision, commit);
  EXPECT_EQ(requests().size(), num_requests);
  settings_.offline_variable.clear();
  const Snapshot newest = fetch("org/model", ModelFiles::kWithWeights, Freshness::kNewest);
  EXPECT_NE(newest.repo.revision, commit);
  EXPECT_EQ(io::read_file(newest.folder / "config.json"), R"({"changed": true})");
  // An earlier commit is still read and downloaded by its name.
  fs::remove_all(settings_.cache);
  EXPECT_EQ(io::read_file(fetch("org/model@" + commit).folder / "config.json"), "{}");
}

TEST_F(FetchModel, BranchesAndTagsAreCommits) {
  write_sharded_model();
  write_model("config.json", R"({"branch": "v1"})", "v1");
  write_model("model.safetensors", "w", "v1");
  EXPECT_EQ(io::read_file(fetch("org/model@v1").folder / "config.json"), R"({"branch": "v1"})");
  const UserError error = fail("org/model@v2");
  EXPECT_EQ(error.code(), ExitCode::kUsage);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("org/model: has no revision v2"), HasSubstr(server().endpoint())));
}

TEST_F(FetchModel, OfflineErrorNamesWhatIsMissing) {
  write_sharded_model();
  settings_.offline_variable = "HF_HUB_OFFLINE";
  EXPECT_EQ(fail().code(), ExitCode::kBadData);
  EXPECT_THAT(fail().what(), AllOf(HasSubstr("org/model: not a folder on this machine, not in the cache"),
                                   HasSubstr("HF_HUB_OFFLINE")));
  EXPECT_TRUE(requests().empty());
  settings_.offline_variable.clear();
  fetch("org/model", ModelFiles::kConfig);
  settings_.offline_variable = "HF_HUB_OFFLINE";
  EXPECT_THAT(fail().what(),
              AllOf(HasSubstr("lacks model-1-of-2.safetensors and 1 more"), HasSubstr("vlmtrain download")));
}

TEST_F(FetchModel, TokenIsSentToTheEndpointOnly) {
  write_sharded_model();
  set_faults({{"private", {{"org/model", "hf_secret"}}}});
  const UserError without_token = fail();
  EXPECT_EQ(without_token.code(), ExitCode::kUsage);
  EXPECT_THAT(without_token.what(),
              AllOf(HasSubstr("org/model: is neither a folder nor a repository"), HasSubstr("HF_TOKEN")));
  settings_.token = "hf_secret";
  settings_.token_source = "HF_TOKEN";
  fetch();
  size_t num_to_storage = 0;
  for (const auto& request : requests()) {
    if (request["port"] == server().storage_port()) {
      ++num_to_storage;
      EXPECT_EQ(request["token"], "") << request;
    }
  }
  EXPECT_EQ(num_to_storage, 2U);
}

TEST_F(FetchModel, LostConnectionsContinue) {
  write_sharded_model();
  set_faults({{"drop", {"model-1-of-2.safetensors", 131'072}}, {"drops", 2}});
  EXPECT_EQ(io::read_file(fetch().folder / "model-1-of-2.safetensors"), std::string(300'000, 'a'));
  std::vector<std::string> ranges;
  for (const auto& request : requests()) {
    if (request["port"] == server().storage_port() &&
        request["path"].get<std::string>().ends_with("model-1-of-2.safetensors"))
      ranges.push_back(request["range"].is_null() ? "" : request["range"].get<std::string>());
  }
  EXPECT_THAT(ranges, testing::ElementsAre("", "bytes=131072-", "bytes=262144-"));
}

TEST_F(FetchModel, PartialContentsContinueInTheNextCall) {
  write_sharded_model();
  for (const bool has_ranges : {true, false}) {
    fs::remove_all(settings_.cache);
    fetch("org/model", ModelFiles::kConfig);
    set_faults({{"status", {"/storage/", 403, 100}}});
    EXPECT_EQ(fail().code(), ExitCode::kFailed);
    set_faults({{"no_ranges", !has_ranges}});
    for (const auto& entry : fs::directory_iterator(settings_.cache / "models--org--model/blobs")) {
      if (entry.path().extension() == ".incomplete") std::ofstream(entry.path()) << std::string(1000, 'a');
    }
    EXPECT_EQ(io::read_file(fetch().folder / "model-1-of-2.safetensors"), std::string(300'000, 'a'));
    EXPECT_EQ(io::read_file(fetch().folder / "model-2-of-2.safetensors"), std::string(200'000, 'b'));
    expect_no_partial_blobs();
  }
}

TEST_F(FetchModel, OtherContentIsAnError) {
  write_sharded_model();
  for (const char* fault : {"other_bytes", "more_bytes"}) {
    for (const char* file : {"tokenizer.json", "model-2-of-2.safetensors"}) {
      fs::remove_all(settings_.cache);
      set_faults({{fault, file}});
      const UserError error = fail();
      EXPECT_EQ(error.code(), ExitCode::kBadData) << fault;
      EXPECT_THAT(error.what(), AllOf(HasSubstr(std::string("org/model: ") + file), HasSubstr("other content")));
    }
  }
  set_faults(nlohmann::json::object());
  EXPECT_EQ(io::read_file(fetch().folder / "tokenizer.json"), std::string(100'000, 't'));
}

TEST_F(FetchModel, TemporaryFailuresAreRetried) {
  write_sharded_model();
  set_faults({{"status", {"/api/", 503, 2}}});
  fetch();
  fs::remove_all(settings_.cache);
  set_faults({{"status", {"/resolve/", 429, 2}}});
  fetch();
}

TEST_F(FetchModel, NamesCannotLeaveTheCache) {
  write_sharded_model();
  for (const char* name :
       {"../evil.json", "/etc/evil.json", "a/../../evil.json", "", ".", "a//b.json", "evil\n.json"}) {
    set_faults({{"listing", Json::array({Json::array({name, 5})})}});
    EXPECT_EQ(fail().code(), ExitCode::kFailed) << name;
    EXPECT_THAT(fail().what(), HasSubstr("not a relative path")) << name;
  }
}

TEST_F(FetchModel, NamesMayHaveBackslashes) {
  write_sharded_model();
  write_model("additional_chat_templates/a\\..\\b.jinja", "template");
  EXPECT_EQ(io::read_file(fetch().folder / "additional_chat_templates/a\\..\\b.jinja"), "template");
}

TEST_F(FetchModel, FilesShorterThanListedFail) {
  write_sharded_model();
  set_faults({{"listed_bytes", Json::array({"config.json", 3})}});
  const UserError error = fail();
  EXPECT_EQ(error.code(), ExitCode::kBadData);
  EXPECT_THAT(error.what(), HasSubstr("the server sends other content"));
}

TEST_F(FetchModel, DiskSpaceIsCheckedFirst) {
  write_sharded_model();
  set_faults({{"listing", Json::array({Json::array({"huge.json", int64_t{1} << 43})})}});
  const UserError error = fail();
  EXPECT_EQ(error.code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("to be downloaded"), HasSubstr("HF_HUB_CACHE")));
}

TEST_F(FetchModel, TwoProcessesShareACache) {
  write_sharded_model();
  set_faults({{"pause", {"model-1-of-2.safetensors", 100'000, 0.2}}});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { fetch(); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(io::read_file(fetch().folder / "model-1-of-2.safetensors"), std::string(300'000, 'a'));
  const auto all = requests();
  EXPECT_EQ(std::ranges::count_if(all, [&](const auto& request) { return request["port"] == server().storage_port(); }),
            2);
}

/// A process that is killed in the middle of a download.
TEST_F(FetchModel, KillsLoseNothing) {
  write_sharded_model();
  set_faults({{"pause", {"model-1-of-2.safetensors", 10'000, 0.005}}});
  int kills = 0;
  for (int round = 0; round < 20; ++round) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      try {
        fetch();
      } catch (...) {
        _exit(1);
      }
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + 7 * round));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    kills += WIFSIGNALED(status) ? 1 : 0;
  }
  EXPECT_GT(kills, 5);
  const Snapshot snapshot = fetch();
  EXPECT_EQ(io::read_file(snapshot.folder / "model-1-of-2.safetensors"), std::string(300'000, 'a'));
  EXPECT_EQ(io::read_file(snapshot.folder / "tokenizer.json"), std::string(100'000, 't'));
  expect_no_partial_blobs();
}

}  // namespace
}  // namespace vlmtrain::hub
