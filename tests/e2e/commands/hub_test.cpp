#include <algorithm>
#include <optional>

#include "e2e/command.h"
#include "hub/hub_server.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Commands with a Hub on the loopback interface, which has the model org/tiny and the data set
/// org/questions, and an empty cache.
class HubCommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    server_.emplace(folder() / "hub");
    std::filesystem::create_directories(server_->root() / "models/org/tiny");
    std::filesystem::copy(checkpoint(), model());
    server_->write("datasets/org/questions/main/data/train-00000-of-00001.parquet",
                   read_text(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/io/data/mixed_batch.parquet"));
    setenv("HF_HOME", (folder() / "hf").c_str(), 1);
    setenv("HF_ENDPOINT", server_->endpoint().c_str(), 1);
    unsetenv("HF_HUB_OFFLINE");
  }
  void TearDown() override {
    setenv("HF_HUB_OFFLINE", "1", 1);
    unsetenv("HF_HOME");
    unsetenv("HF_ENDPOINT");
    server_.reset();
    CommandTest::TearDown();
  }

  const hub::HubServer& server() const { return *server_; }
  std::filesystem::path model() const { return server_->root() / "models/org/tiny/main"; }
  std::filesystem::path snapshots() const { return folder() / "hf/hub/models--org--tiny/snapshots"; }

  /// Pushes a commit whose weights cannot be read.
  void push_broken_weights() const { server_->write("models/org/tiny/main/model.safetensors", "broken"); }

  /// Returns the number of downloads of a file.
  int64_t count_downloads(const std::string& name) const {
    const auto requests = server_->requests();
    return std::ranges::count_if(requests, [&](const nlohmann::json& request) {
      return request["port"] == server_->storage_port() && request["path"].get<std::string>().ends_with(name);
    });
  }

  /// Returns what a command that must succeed prints on stdout.
  std::string run_well(const std::vector<std::string>& arguments) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

 private:
  std::optional<hub::HubServer> server_;
};

TEST_F(HubCommandTest, ResumedRunsUseTheSavedCommit) {
  train_well({"model.path=org/tiny", "training.max_steps=2"});
  ASSERT_THAT(entries(snapshots()), testing::SizeIs(1));
  const std::string commit = entries(snapshots()).front();
  EXPECT_THAT(read_text(folder() / "run/config.yaml"), HasSubstr("org/tiny: " + commit));

  push_broken_weights();
  run_well({"download", "org/tiny"});
  EXPECT_THAT(entries(snapshots()), testing::SizeIs(2));
  EXPECT_EQ(train({"model.path=org/tiny", "output.dir=new"}).exit_code, 4) << "new runs use the newest commit";
  train_well({"model.path=org/tiny", "training.max_steps=3", "training.resume=changed"});
  setenv("HF_HUB_OFFLINE", "1", 1);
  train_well({"model.path=org/tiny", "training.max_steps=4", "training.resume=changed"});
  EXPECT_THAT(step_lines("run/metrics.jsonl"), testing::SizeIs(4));
  EXPECT_THAT(read_text(folder() / "run/config.yaml"), HasSubstr("org/tiny: " + commit));
}

TEST_F(HubCommandTest, EqualsTrainingFromAFolder) {
  train_well({"output.dir=by_folder"});
  train_well({"output.dir=by_id", "model.path=org/tiny"});
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"}) {
    EXPECT_EQ(read_text(folder() / "by_id/checkpoints/step-4" / file),
              read_text(folder() / "by_folder/checkpoints/step-4" / file))
        << file;
  }
}

TEST_F(HubCommandTest, AdaptersNameTheirBase) {
  train_well({"model.path=org/tiny", "lora.rank=2"});
  const std::string commit = entries(snapshots()).front();
  const auto config = json_file("run/checkpoints/step-4/adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"], "org/tiny");
  EXPECT_EQ(config["revision"], commit);

  // On another machine, the base is downloaded at the adapter's commit.
  push_broken_weights();
  std::filesystem::remove_all(folder() / "hf");
  run_well({"merge", "--adapter", "run/checkpoints/step-4", "--out", "merged"});
  EXPECT_EQ(entries(snapshots()), std::vector<std::string>{commit});
  setenv("HF_HUB_OFFLINE", "1", 1);
  const std::string question = "Is there a fracture?";
  const auto answer = [&](const std::string& folder) {
    return run_well({"generate", "--checkpoint", folder, "--prompt", question, "--device", "cpu"});
  };
  EXPECT_EQ(answer("merged"), answer("run/checkpoints/step-4"));
}

TEST_F(HubCommandTest, AdaptersAndModelsAreNotConfused) {
  train_well({"lora.rank=2", "training.max_steps=1"});
  std::filesystem::create_directories(server().root() / "models/org/adapter");
  std::filesystem::copy(folder() / "run/checkpoints/step-1", server().root() / "models/org/adapter/main");
  for (const Result& as_model : {train({"model.path=org/adapter", "output.dir=new"}),
                                 run({"plan", "--model", "org/adapter", "--gpu-gb", "24", "--images", "1"})}) {
    EXPECT_EQ(as_model.exit_code, 4);
    EXPECT_THAT(as_model.err, HasSubstr("model.path: org/adapter is an adapter; set model.adapter to it"));
  }
  for (const Result& as_adapter : {train({"model.adapter=org/tiny", "model.path=org/tiny", "output.dir=new"}),
                                   run({"merge", "--adapter", "org/tiny", "--out", "merged"})}) {
    EXPECT_EQ(as_adapter.exit_code, 4);
    EXPECT_THAT(as_adapter.err, testing::ContainsRegex("error: org/tiny(@[0-9a-f]+)?: is not an adapter"));
  }
  run_well({"download", "org/adapter"});
}

TEST_F(HubCommandTest, DownloadsReplaceDamagedFiles) {
  run_well({"download", "org/tiny"});
  const auto weights = snapshots() / entries(snapshots()).front() / "model.safetensors";
  const std::string content = read_text(weights);
  write_text(folder() / "train.yaml", "model: {path: org/tiny}\ndata: {train: data.jsonl}\noutput: {dir: run}\n");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"download", "org/tiny"}, {"download", "--config", "train.yaml"}}) {
    write_text(std::filesystem::canonical(weights), std::string(content.size(), '\0'));
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("model.safetensors: is damaged"));
    EXPECT_TRUE(read_text(weights) == content);
  }
}

TEST_F(HubCommandTest, RanksShareADownload) {
  train_well({"model.path=org/tiny", "--nproc-per-node", "2", "training.max_steps=1"});
  EXPECT_EQ(count_downloads("model.safetensors"), 1);
}

TEST_F(HubCommandTest, PlanNeedsConfigFilesOnly) {
  const auto plan = [&](const std::string& path) {
    return run_well({"plan", "--model", path, "--gpu-gb", "24", "--images", "1", "--json"});
  };
  const auto by_id = nlohmann::json::parse(plan("org/tiny"));
  EXPECT_EQ(count_downloads("model.safetensors"), 0);
  EXPECT_EQ(by_id["split"], nlohmann::json::parse(plan(checkpoint().string()))["split"]);
}

TEST_F(HubCommandTest, DataIsDownloadedForMachinesWithoutNetwork) {
  write_text(folder() / "hub.yaml",
             "model: {path: org/tiny}\ndata: {train: 'hf://datasets/org/questions', eval: 0.5}\n"
             "training: {global_batch_size: 2, max_steps: 2, precision: fp32}\noutput: {dir: run}\n");
  const auto downloads = nlohmann::json::parse(run_well({"download", "--config", "hub.yaml", "--json"}))["downloads"];
  ASSERT_EQ(downloads.size(), 2);
  EXPECT_EQ(downloads[0]["reference"], "hf://datasets/org/questions");
  setenv("HF_HUB_OFFLINE", "1", 1);
  run_well({"--config", "hub.yaml", "--device", "cpu"});
  EXPECT_THAT(read_text(folder() / "run/config.yaml"),
              HasSubstr("hf://datasets/org/questions: " + downloads[0]["commit"].get<std::string>()));
  run_well({"eval", "--config", "hub.yaml", "--checkpoint", "org/tiny", "--device", "cpu"});
  run_well({"inspect", "--config", "hub.yaml"});
}

TEST_F(HubCommandTest, FoldersTakePrecedence) {
  std::filesystem::create_directories(folder() / "org");
  std::filesystem::copy(checkpoint(), folder() / "org/tiny");
  const Result result = train({"model.path=org/tiny", "training.max_steps=1"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("org/tiny: a folder on this machine; the Hub is not used"));
  EXPECT_THAT(server().requests(), testing::IsEmpty());
}

TEST_F(HubCommandTest, MissingModelsAreExplained) {
  const Result unknown = train({"model.path=org/tiyn"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err,
              AllOf(HasSubstr("org/tiyn: is neither a folder nor a repository at"), HasSubstr("check the name")));
  const Result no_data_set = train({"model.path=org/tiny", "data.train=hf://org/questions"});
  EXPECT_EQ(no_data_set.exit_code, 2);
  EXPECT_THAT(no_data_set.err, HasSubstr("hf://org/questions: is not a data set of the Hub; write hf://datasets/"));
  std::filesystem::remove_all(folder() / "hf");
  setenv("HF_HUB_OFFLINE", "1", 1);
  const Result offline = train({"model.path=org/tiny"});
  EXPECT_EQ(offline.exit_code, 4);
  EXPECT_THAT(offline.err, AllOf(HasSubstr("not in the cache"), HasSubstr("run `vlmtrain download org/tiny`")));
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
}

// Programs that download nothing do not load libcurl.
TEST_F(HubCommandTest, FoldersNeedNoPlugin) {
  std::filesystem::create_directories(folder() / "elsewhere");
  copy_program(folder() / "elsewhere");
  const auto run_copy = [&](const std::string& path) {
    return Process(folder(), train_arguments({"model.path=" + path, "training.max_steps=1", "output.dir=run"}), 0,
                   folder() / "elsewhere/vlmtrain")
        .wait();
  };
  EXPECT_EQ(run_copy(checkpoint()).exit_code, 0);
  const Result by_id = run_copy("org/tiny");
  EXPECT_EQ(by_id.exit_code, 5);
  EXPECT_THAT(by_id.err, HasSubstr("libvlmtrain_curl.so"));
}

}  // namespace

}  // namespace vlmtrain::e2e
