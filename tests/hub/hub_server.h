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

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/settings.h"
#include "vlmtrain/hub/snapshot.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

/// A Hub on the loopback interface (server.py).
class HubServer {
 public:
  /// `root` is the folder of its repositories. With `certificate`, a PEM file with a key, it uses TLS.
  explicit HubServer(std::filesystem::path root, const std::string& certificate = "")
      : root_(std::move(root)), scheme_(certificate.empty() ? "http" : "https") {
    std::filesystem::create_directories(root_);
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    process_ = fork();
    if (process_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      execlp("python3", "python3", VLMTRAIN_SOURCE_DIR "/tests/hub/server.py", root_.c_str(),
             certificate.empty() ? nullptr : certificate.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    FILE* const output = fdopen(ends[0], "r");
    const int count = std::fscanf(output, "%d %d", &api_port_, &storage_port_);
    std::fclose(output);
    if (count != 2) throw std::runtime_error("server.py did not start");
  }
  ~HubServer() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  const std::filesystem::path& root() const { return root_; }
  std::string endpoint() const { return scheme_ + "://127.0.0.1:" + std::to_string(api_port_); }
  int storage_port() const { return storage_port_; }

  /// Writes a file below the root, such as models/ORG/NAME/main/config.json.
  void write(const std::string& path, const std::string& content) const {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::remove(file);  // the server keeps earlier commits by hard links
    std::ofstream(file, std::ios::binary) << content;
  }
  void set_faults(const nlohmann::json& faults) const { write("faults.json", faults.dump()); }

  /// Returns the requests so far.
  std::vector<nlohmann::json> requests() const {
    std::vector<nlohmann::json> result;
    std::ifstream file(root_ / "requests.jsonl");
    for (std::string line; std::getline(file, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }

 private:
  std::filesystem::path root_;
  std::string scheme_;
  pid_t process_ = -1;
  int api_port_ = 0, storage_port_ = 0;
};

/// A server, and the cache of its client.
class HubTest : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    TemporaryFolderTest::SetUp();
    server_.emplace(folder() / "hub");
    settings_ = {.cache = folder() / "cache", .endpoint = server_->endpoint(), .retry_seconds = 0.01};
  }
  void TearDown() override {
    server_.reset();
    TemporaryFolderTest::TearDown();
  }

  const HubServer& server() const { return *server_; }
  void write_model(const std::string& path, const std::string& content, const std::string& branch = "main") const {
    server_->write("models/org/model/" + branch + "/" + path, content);
  }
  void write_dataset(const std::string& path, const std::string& content) const {
    server_->write("datasets/org/data/main/" + path, content);
  }
  void set_faults(const nlohmann::json& faults) const { server_->set_faults(faults); }
  std::vector<nlohmann::json> requests() const { return server_->requests(); }

  /// Fetches a model with its weights.
  Snapshot fetch(const std::string& reference = "org/model", ModelFiles files = ModelFiles::kWithWeights,
                 Freshness freshness = Freshness::kCached) const {
    return fetch_model(settings_, parse_model_reference(reference), files, freshness);
  }

  /// Returns the error of fetch(reference).
  UserError fail(const std::string& reference = "org/model") const {
    try {
      fetch(reference);
    } catch (const UserError& error) {
      return error;
    }
    ADD_FAILURE() << reference << " was fetched";
    return {ExitCode::kSuccess, ""};
  }

  HubSettings settings_;

 private:
  std::optional<HubServer> server_;
};

}  // namespace vlmtrain::hub
