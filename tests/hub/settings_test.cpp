#include "vlmtrain/hub/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/snapshot_path.h"

namespace vlmtrain::hub {
namespace {

/// Tests in a process with none of the Hub's variables.
class Settings : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    TemporaryFolderTest::SetUp();
    for (const char* variable : {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_ENDPOINT",
                                 "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE",
                                 "TRANSFORMERS_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_IMPLICIT_TOKEN",
                                 "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}) {
      unsetenv(variable);
    }
    set("HOME", folder().string());
  }

  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
};

TEST_F(Settings, CacheFolder) {
  EXPECT_EQ(read_hub_settings().cache, folder() / ".cache/huggingface/hub");
  set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(read_hub_settings().cache, "/x/huggingface/hub");
  set("HF_HOME", "~/hf");
  EXPECT_EQ(read_hub_settings().cache, folder() / "hf/hub");
  set("HF_HUB_CACHE", "/scratch/hub");
  EXPECT_EQ(read_hub_settings().cache, "/scratch/hub");
}

TEST_F(Settings, PathsHaveVariables) {
  set("SCRATCH_1", "/scratch");
  unsetenv("UNSET");
  const std::pair<const char*, const char*> paths[] = {{"$SCRATCH_1/hub", "/scratch/hub"},
                                                       {"${SCRATCH_1}2", "/scratch2"},
                                                       {"/a$UNSET/${UNSET}", "/a$UNSET/${UNSET}"},
                                                       {"/a$/${SCRATCH_1", "/a$/${SCRATCH_1"},
                                                       {"/$SCRATCH_1$SCRATCH_1", "//scratch/scratch"}};
  for (const auto& [text, path] : paths) {
    set("HF_HUB_CACHE", text);
    EXPECT_EQ(read_hub_settings().cache, path);
  }
}

TEST_F(Settings, Token) {
  set("HF_HOME", folder().string());
  EXPECT_EQ(read_hub_settings().token, "");
  put("token", "hf_file\n");
  EXPECT_EQ(read_hub_settings().token, "hf_file");
  EXPECT_EQ(read_hub_settings().token_source, (folder() / "token").string());
  set("HF_TOKEN", " hf_variable\n");
  EXPECT_EQ(read_hub_settings().token, "hf_variable");
  EXPECT_EQ(read_hub_settings().token_source, "HF_TOKEN");
  set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  EXPECT_EQ(read_hub_settings().token, "");
  unsetenv("HF_HUB_DISABLE_IMPLICIT_TOKEN");
  set("HF_TOKEN", "two words");
  EXPECT_THROW(read_hub_settings(), UserError);
}

TEST_F(Settings, MissingTokenFilesAreReported) {
  const CapturedLog log;
  read_hub_settings();
  EXPECT_EQ(log.lines(), 0) << "the default file may be missing";
  set("HF_TOKEN_PATH", "/nowhere/token");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(read_hub_settings().token, "");
  EXPECT_EQ(log.lines(), 1);
  EXPECT_THAT(log.text(), testing::HasSubstr("HF_TOKEN_PATH: /nowhere/token does not exist"));
}

TEST_F(Settings, EndpointAndOffline) {
  EXPECT_EQ(read_hub_settings().endpoint, "https://huggingface.co");
  EXPECT_FALSE(read_hub_settings().is_offline());
  set("HF_ENDPOINT", "http://mirror/hub/");
  set("HF_HUB_OFFLINE", "0");
  set("TRANSFORMERS_OFFLINE", "yes");
  EXPECT_FALSE(read_hub_settings().is_offline());
  unsetenv("HF_HUB_OFFLINE");
  EXPECT_EQ(read_hub_settings().endpoint, "http://mirror/hub");
  EXPECT_EQ(read_hub_settings().offline_variable, "TRANSFORMERS_OFFLINE");
  for (const char* endpoint : {"mirror", "http://user:password@mirror", "http://mirror\nerror: line 2"}) {
    set("HF_ENDPOINT", endpoint);
    EXPECT_THAT(io::get_error_message([] { read_hub_settings(); }, ExitCode::kUsage),
                testing::Not(testing::HasSubstr("\n")));
  }
}

TEST_F(Settings, CertificatesAndTimeout) {
  put("ca.pem", "");
  set("SSL_CERT_FILE", (folder() / "ca.pem").string());
  set("HF_HUB_DOWNLOAD_TIMEOUT", "2.5");
  EXPECT_EQ(read_hub_settings().ca_bundle, (folder() / "ca.pem").string());
  EXPECT_EQ(read_hub_settings().timeout_seconds, 2.5);
  set("HF_HUB_DOWNLOAD_TIMEOUT", "soon");
  EXPECT_THROW(read_hub_settings(), UserError);
  unsetenv("HF_HUB_DOWNLOAD_TIMEOUT");
  set("SSL_CERT_FILE", "/nowhere.pem");
  EXPECT_THROW(read_hub_settings(), UserError);
}

TEST(SnapshotPath, IsParsed) {
  const std::string commit(40, 'a');
  EXPECT_EQ(parse_snapshot_path("/c/models--org--my-model/snapshots/" + commit),
            (Repo{RepoType::kModel, "org/my-model", commit}));
  const std::string commit_paths[] = {"/c/models--org/snapshots/", "/c/datasets--org--m/snapshots/",
                                      "/c/models--org--m/blobs/"};
  for (const std::string& path : commit_paths) EXPECT_FALSE(parse_snapshot_path(path + commit)) << path;
  EXPECT_FALSE(parse_snapshot_path("/c/models--org--m/snapshots/main"));
}

TEST_F(Settings, FoldersOnThisMachineTakePrecedence) {
  const auto previous = std::filesystem::current_path();
  std::filesystem::current_path(folder());
  EXPECT_TRUE(find_model_reference("org/model"));
  EXPECT_TRUE(find_model_reference("org/model@v1"));
  EXPECT_FALSE(find_model_reference("./org/model"));
  std::filesystem::create_directories("org/model");
  EXPECT_FALSE(find_model_reference("org/model"));
  EXPECT_FALSE(find_model_reference("org/modle"));  // a mistake in a path of this machine
  std::filesystem::create_symlink("/nowhere", "linked");
  std::filesystem::create_symlink("/nowhere", "org/linked");
  for (const char* path : {"linked/model", "org/linked"}) {
    EXPECT_THAT(io::get_error_message([&] { find_model_reference(path); }, ExitCode::kUsage),
                testing::HasSubstr("links to /nowhere, which does not exist"));
  }
  EXPECT_TRUE(find_model_reference("hf://org/model"));
  EXPECT_THROW(find_model_reference("hf://model"), UserError);
  std::filesystem::current_path(previous);
}

}  // namespace
}  // namespace vlmtrain::hub
