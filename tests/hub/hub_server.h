#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "vlmtrain/hub/settings.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

/// A Hub on the loopback interface (server.py), and the cache of its client.
class HubTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "vlmtrain-hub-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::filesystem::create_directories(root());
    start_server();
    settings_ = {.cache = folder_ / "cache", .endpoint = endpoint(), .retry_seconds = 0.01};
  }

  void TearDown() override {
    if (server_ > 0) {
      kill(server_, SIGKILL);
      waitpid(server_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path root() const { return folder_ / "hub"; }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(api_port_); }

  static void write(const std::filesystem::path& path, const std::string& content) {
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::remove(path);  // the server keeps earlier commits by hard links
    std::ofstream(path, std::ios::binary) << content;
  }
  void write_model(const std::string& path, const std::string& content, const std::string& branch = "main") const {
    write(root() / "models/org/model" / branch / path, content);
  }
  void write_dataset(const std::string& path, const std::string& content) const {
    write(root() / "datasets/org/data/main" / path, content);
  }
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
  void set_faults(const nlohmann::json& faults) const { write(root() / "faults.json", faults.dump()); }

  /// The requests so far.
  std::vector<nlohmann::json> requests() const {
    std::vector<nlohmann::json> result;
    std::ifstream file(root() / "requests.jsonl");
    for (std::string line; std::getline(file, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }

  HubSettings settings_;
  int api_port_ = 0, storage_port_ = 0;

 private:
  void start_server() {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    server_ = fork();
    if (server_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      execlp("python3", "python3", VLMTRAIN_SOURCE_DIR "/tests/hub/server.py", root().c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    FILE* const output = fdopen(ends[0], "r");
    ASSERT_EQ(fscanf(output, "%d %d", &api_port_, &storage_port_), 2) << "server.py did not start";
    fclose(output);
  }

  std::filesystem::path folder_;
  pid_t server_ = -1;
};

}  // namespace vlmtrain::hub
