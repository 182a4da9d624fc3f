#include <gmock/gmock.h>

#include "base/captured_log.h"
#include "hub/hub_server.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/snapshot.h"

namespace vlmtrain::hub {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// A cache in an unusual state.
class Cache : public HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    write_model("config.json", "{}");
    write_model("tokenizer.json", "{}");
    write_model("model.safetensors", kWeights);
  }

  Snapshot fetch(Freshness freshness = Freshness::kCached) const {
    return fetch_model(settings_, {.id = "org/model"}, ModelFiles::kWithWeights, freshness);
  }

  fs::path repo_folder() const { return settings_.cache / "models--org--model"; }

  /// Changes one bit of a cached file.
  static void flip_bit(const fs::path& path) {
    std::string content = io::read_file(path);
    content[content.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << content;
  }

  const std::string kWeights = std::string(3 << 20, 'w');
};

TEST_F(Cache, VerifiedDownloadsReplaceDamagedFiles) {
  for (const Freshness freshness : {Freshness::kVerified, Freshness::kNewest}) {
    const fs::path folder = fetch().folder;
    for (const char* name : {"tokenizer.json", "model.safetensors"}) flip_bit(folder / name);
    const size_t num_requests = requests().size();
    fetch();
    EXPECT_EQ(requests().size(), num_requests) << "hashes are checked on request only";
    EXPECT_NE(io::read_file(folder / "model.safetensors"), kWeights);
    fetch(freshness);
    EXPECT_EQ(io::read_file(folder / "model.safetensors"), kWeights);
    EXPECT_EQ(io::read_file(folder / "tokenizer.json"), "{}");
    const auto all = requests();
    const auto num_downloads =
        std::ranges::count_if(all.begin() + static_cast<int64_t>(num_requests), all.end(), [](auto& request) {
          return request["path"].template get<std::string>().find("/resolve/") != std::string::npos;
        });
    EXPECT_EQ(num_downloads, 2) << "config.json is not damaged";
  }
}

TEST_F(Cache, DamagedBlobsOfOtherCommitsAreNotUsed) {
  flip_bit(fetch().folder / "model.safetensors");
  write_model("config.json", R"({"changed": true})");
  EXPECT_EQ(io::read_file(fetch(Freshness::kNewest).folder / "model.safetensors"), kWeights);
}

TEST_F(Cache, DamagedFilesWithoutNetworkAreErrors) {
  const fs::path folder = fetch().folder;
  flip_bit(folder / "model.safetensors");
  settings_.offline_variable = "HF_HUB_OFFLINE";
  EXPECT_THAT(io::get_error_message([&] { fetch(Freshness::kVerified); }, ExitCode::kBadData),
              AllOf(HasSubstr("model.safetensors: is damaged"), HasSubstr("without HF_HUB_OFFLINE")));
  EXPECT_TRUE(fs::exists(folder / "model.safetensors"));
}

TEST_F(Cache, PartialContentsOfFinishedDownloadsAreRemoved) {
  const fs::path blob = fs::canonical(fetch().folder / "model.safetensors");
  const fs::path partial = blob.string() + ".vlmtrain.incomplete";
  std::ofstream(partial) << "www";
  fetch();
  EXPECT_FALSE(fs::exists(partial));
}

TEST_F(Cache, IsUsedIfTheHubFails) {
  const Snapshot snapshot = fetch();
  set_faults({{"status", {"/", 500, 100}}});
  const CapturedLog log;
  EXPECT_EQ(fetch(Freshness::kNewest).repo, snapshot.repo);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("warning: org/model: "), HasSubstr("status 500"),
                                HasSubstr("using the cached commit " + snapshot.repo.revision)));
  flip_bit(snapshot.folder / "model.safetensors");
  EXPECT_THROW(fetch(Freshness::kNewest), UserError) << "a damaged file cannot be replaced";
}

TEST_F(Cache, FoldersInPlaceOfFilesAreNamed) {
  const fs::path blob = fs::canonical(fetch().folder / "model.safetensors");
  for (const fs::path& path : {repo_folder() / "refs/main", blob}) {
    fs::remove(path);
    fs::create_directories(path);
    EXPECT_THAT(io::get_error_message([&] { fetch(); }, ExitCode::kFailed),
                HasSubstr(path.string() + ": is a folder in place of a file; remove it"));
    fs::remove(path);
  }
  EXPECT_EQ(io::read_file(fetch().folder / "model.safetensors"), kWeights);
}

TEST_F(Cache, FilesInPlaceOfFoldersAreNamed) {
  put("file", "");
  settings_.cache = folder() / "file/hub";
  EXPECT_THAT(io::get_error_message([&] { fetch(); }, ExitCode::kFailed),
              HasSubstr((folder() / "file").string() + ": is a file in place of a folder; move it away"));
}

}  // namespace
}  // namespace vlmtrain::hub
